/* A consumer warpgroup of the attention engine: products, softmax, and the way of O out. Part of
 * attention.cuh. */
#pragma once

#include "kernels/hopper/attention_shape.cuh"

/* A thread's two rows: r and r + 8. */
struct attention_rows {
    float maximum[2]; /* of Q K^T, not scaled */
    float sum[2];     /* of the weights in this thread's columns */
};

/* Starts s = Q K^T. */
template <class shape>
PTX_FN void attention_start_scores(float (&s)[shape::keys / 2], uint32_t q, uint32_t k)
{
    uint64_t a = wgmma_descriptor(q, 0), b = wgmma_descriptor(k, 0);
#pragma unroll
    for (int i = 0; i < shape::dim / 16; i++)
        wgmma_bf16<0>(s, wgmma_advance(a, i / 4 * shape::panel_bytes + i % 4 * 32),
                      wgmma_advance(b, i / 4 * shape::keys * 128 + i % 4 * 32), i > 0);
    wgmma_commit();
}

/* Starts o += P V. */
template <class shape>
PTX_FN void attention_start_sums(float (&o)[shape::dim / 2], const uint32_t (&p)[shape::keys / 4],
                                 uint32_t v, uint32_t accumulate)
{
    uint64_t b = wgmma_descriptor(v, shape::keys * 128);
#pragma unroll
    for (int i = 0; i < shape::keys / 16; i++)
        wgmma_bf16_registers<1>(o, &p[i * 4], wgmma_advance(b, i * 16 * 128),
                                i > 0 ? 1 : accumulate);
    wgmma_commit();
}

/* Hides the scores of keys that a row does not see. end: for each row, the first such key of the
 * block. */
template <class shape>
PTX_FN void attention_mask(float (&s)[shape::keys / 2], const int32_t (&end)[2])
{
    int32_t column = threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < shape::keys / 2; i++)
        if (i / 4 * 8 + i % 2 >= end[i / 2 % 2] - column)
            s[i] = -INFINITY;
}

/* Turns scores into weights, and takes them up in rows' statistics. factor: what sums so far are to
 * be multiplied by. */
template <class shape, bool masked>
PTX_FN void attention_softmax(float (&s)[shape::keys / 2], struct attention_rows *rows,
                              float (&factor)[2], float scale)
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float m = rows->maximum[r];
#pragma unroll
        for (int i = 0; i < shape::keys / 4; i++)
            m = fmaxf(m, s[i / 2 * 4 + r * 2 + i % 2]);
        m = fmaxf(m, __shfl_xor_sync(0xffffffff, m, 1));
        m = fmaxf(m, __shfl_xor_sync(0xffffffff, m, 2));
        float scaled = __fmul_rn(m, scale);
        if (masked && m == -INFINITY)
            scaled = 0; /* no key yet: all weights are 0 */
        /* Of two rounded products: 1 where the maximum stays. One rounding for both would leave that of
         * the product, the same in each block, and 400 blocks later 2e-4 too much or too little. */
        factor[r] = ptx_exp2(__fsub_rn(__fmul_rn(rows->maximum[r], scale), scaled));
        rows->maximum[r] = m;
        /* rounded by itself in each form of this, with a mask and without */
        float sum[2] = {__fmul_rn(rows->sum[r], factor[r]), 0};
#pragma unroll
        for (int i = 0; i < shape::keys / 4; i++) {
            float *w = &s[i / 2 * 4 + r * 2 + i % 2];
            *w = ptx_exp2(fmaf(*w, scale, -scaled));
            sum[i % 2] += *w;
        }
        rows->sum[r] = sum[0] + sum[1];
    }
}

template <class shape>
PTX_FN void attention_round(uint32_t (&p)[shape::keys / 4], const float (&s)[shape::keys / 2])
{
#pragma unroll
    for (int i = 0; i < shape::keys / 4; i++)
        p[i] = ptx_pack_bf16(s[i * 2], s[i * 2 + 1]);
}

template <class shape>
PTX_FN void attention_scale(float (&o)[shape::dim / 2], const float (&factor)[2])
{
#pragma unroll
    for (int i = 0; i < shape::dim / 2; i++)
        o[i] *= factor[i / 2 % 2];
}

/* What a consumer thread keeps besides scores, weights and sums. */
struct attention_state {
    struct pipeline_position k_ring, v_ring;
    struct attention_rows rows;
    float scale; /* times log2(e) */
    uint32_t shared, q;
    int32_t row; /* of the tile: this thread's first */
};

/* The calling warp is done with the stage, and goes on to the next. */
template <class shape>
PTX_FN void attention_release(uint32_t barriers, struct pipeline_position *at)
{
    pipeline_release<shape::stages, 1>(barriers, at->stage, threadIdx.x % 32);
    pipeline_step<shape::stages>(at);
}

/* For each of the thread's rows: the first key that it does not see, counted from key `first` on.
 */
PTX_FN void attention_ends(int32_t (&end)[2], const struct attention_keys *keys, int32_t row,
                           int32_t first)
{
    for (int r = 0; r < 2; r++)
        end[r] = min(keys->keys, row + r * 8 + keys->diagonal + 1) - first;
}

/* Before a block's P V, where not all rows of the tile see all of its keys: V has what 0 may be
 * multiplied with. All consumers call, each for a part of it. */
template <class shape>
PTX_FN void attention_clean(const struct attention_operands *op, const struct attention_state *t,
                            const struct attention_keys *keys, int32_t block, int32_t tile)
{
    constexpr uint32_t threads = shape::groups * 128;
    const uint32_t thread = threadIdx.x - 128,
                   values = t->shared + shape::v_offset + t->v_ring.stage * shape::block_bytes;
    const int32_t first = block * shape::keys,
                  all = min(keys->keys, keys->diagonal + 1) - first; /* that all rows see */
    uint32_t any = 0;
    pipeline_wait_full<shape::stages>(t->shared + shape::v_barriers, &t->v_ring, op->limit_ns);
    for (int panel = 0; panel < shape::panels; panel++)
#pragma unroll 1 /* registers */
        for (uint32_t i = max(all, 0) * 8 + thread; i < shape::keys * 8; i += threads)
            any |= clean_not_finite(ptx_load_shared_4(values + (panel * shape::keys * 8 + i) * 16));
    if (ptx_bar_any(named_consumers(threads), any != 0))
        clean_block<shape>(values, t->shared + shape::notes_offset, tile, keys->keys - first,
                           first - keys->diagonal, thread, named_consumers(threads));
}

/* One step: takes up block `next` of tile `tile`, and adds P V of the block before. */
template <class shape, bool masked>
PTX_FN void attention_step(const struct attention_operands *op, struct attention_state *t,
                           float (&s)[shape::keys / 2], uint32_t (&p)[shape::keys / 4],
                           float (&o)[shape::dim / 2], uint32_t *accumulate,
                           const struct attention_keys *keys, int32_t next, int32_t tile)
{
    float factor[2];
    uint32_t k = t->k_ring.stage, v = t->v_ring.stage;
    pipeline_wait_full<shape::stages>(t->shared + shape::k_barriers, &t->k_ring, op->limit_ns);
    wgmma_settle(o);
    wgmma_settle(p);
    wgmma_fence();
    attention_start_scores<shape>(s, t->q, t->shared + shape::k_offset + k * shape::block_bytes);
    pipeline_wait_full<shape::stages>(t->shared + shape::v_barriers, &t->v_ring, op->limit_ns);
    wgmma_fence();
    attention_start_sums<shape>(o, p, t->shared + shape::v_offset + v * shape::block_bytes,
                                *accumulate);
    *accumulate = 1;
    wgmma_wait<1>();
    wgmma_settle(s);
    attention_release<shape>(t->shared + shape::k_barriers, &t->k_ring);
    if (masked) {
        int32_t end[2];
        attention_ends(end, keys, t->row, next * shape::keys);
        attention_mask<shape>(s, end);
    }
    attention_softmax<shape, masked>(s, &t->rows, factor, t->scale);
    ptx_after(t->rows.sum[0] + t->rows.sum[1]);
    wgmma_wait<0>();
    wgmma_settle(o);
    wgmma_settle(s);
    attention_release<shape>(t->shared + shape::v_barriers, &t->v_ring);
    attention_round<shape>(p, s);
    attention_scale<shape>(o, factor);
    if (masked)
        attention_clean<shape>(op, t, keys, next, tile);
}

/* The first block: its weights are there, its P V is not. */
template <class shape>
PTX_FN void attention_first(const struct attention_operands *op, struct attention_state *t,
                            float (&s)[shape::keys / 2], uint32_t (&p)[shape::keys / 4],
                            const struct attention_keys *keys, int32_t block)
{
    float factor[2];
    int32_t end[2];
    uint32_t k = t->k_ring.stage;
    pipeline_wait_full<shape::stages>(t->shared + shape::k_barriers, &t->k_ring, op->limit_ns);
    wgmma_fence();
    attention_start_scores<shape>(s, t->q, t->shared + shape::k_offset + k * shape::block_bytes);
    wgmma_wait<0>();
    wgmma_settle(s);
    attention_release<shape>(t->shared + shape::k_barriers, &t->k_ring);
    attention_ends(end, keys, t->row, block * shape::keys);
    attention_mask<shape>(s, end);
    for (int r = 0; r < 2; r++) {
        t->rows.maximum[r] = -INFINITY;
        t->rows.sum[r] = 0;
    }
    attention_softmax<shape, true>(s, &t->rows, factor, t->scale);
    attention_round<shape>(p, s);
}

/* The last block's P V, the rows' sums over the warp meanwhile, and the division. */
template <class shape>
PTX_FN void attention_finish(const struct attention_operands *op, struct attention_state *t,
                             uint32_t (&p)[shape::keys / 4], float (&o)[shape::dim / 2],
                             uint32_t accumulate, uint32_t rows, float *lse)
{
    float inverse[2];
    uint32_t v = t->v_ring.stage;
    pipeline_wait_full<shape::stages>(t->shared + shape::v_barriers, &t->v_ring, op->limit_ns);
    wgmma_settle(o);
    wgmma_settle(p);
    wgmma_fence();
    attention_start_sums<shape>(o, p, t->shared + shape::v_offset + v * shape::block_bytes,
                                accumulate);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float sum = t->rows.sum[r];
        sum += __shfl_xor_sync(0xffffffff, sum, 1);
        sum += __shfl_xor_sync(0xffffffff, sum, 2);
        inverse[r] = sum > 0 ? ptx_reciprocal(sum) : 0;
        if (threadIdx.x % 4 == 0 && t->row + r * 8 < rows)
            lse[t->row + r * 8] =
                sum > 0 ? t->rows.maximum[r] * op->scale + ptx_log2(sum) * 0.6931471805599453f
                        : -INFINITY;
    }
    wgmma_wait<0>();
    wgmma_settle(o);
    attention_release<shape>(t->shared + shape::v_barriers, &t->v_ring);
    attention_scale<shape>(o, inverse);
}

/* Stores the warpgroup's 64 rows: registers to shared memory, then TMA stores, which drop what lies
 * outside O. */
template <class shape>
PTX_FN void attention_store(const CUtensorMap *to, const float (&o)[shape::dim / 2],
                            const struct attention_state *t, const struct attention_tile *tile,
                            bool noted)
{
    const uint32_t thread = threadIdx.x % 128, lane = thread % 32,
                   group = threadIdx.x / 128 - 1; /* read again: a register fewer is kept */
    uint32_t row = thread / 32 * 16 + lane % 16;  /* whose address this lane gives to stmatrix */
    const uint32_t box = t->q + shape::o_offset;
    if (shape::own_o && thread == 0)
        ptx_bulk_wait_read<0>();
    ptx_bar_sync(named_warpgroup(group));
#pragma unroll
    for (int j = 0; j < shape::dim / 16; j++) {
        const float *d = o + j * 8;
        uint32_t piece = (j % 4 * 2 + lane / 16) ^ (row % 8);
        ptx_stmatrix_x4(box + j / 4 * shape::panel_bytes + row * 128 + piece * 16,
                        ptx_pack_bf16(d[0], d[1]), ptx_pack_bf16(d[2], d[3]),
                        ptx_pack_bf16(d[4], d[5]), ptx_pack_bf16(d[6], d[7]));
    }
    if (noted) {
        ptx_bar_sync(named_warpgroup(group));
        clean_add_seen<shape>(box, t->shared + shape::notes_offset, group * 64, thread);
    }
    ptx_fence_async_shared();
    ptx_bar_sync(named_warpgroup(group));
    if (thread == 0) {
#pragma unroll
        for (int p = 0; p < shape::panels; p++)
            ptx_tma_store_4d(to, box + p * shape::panel_bytes, p * 64, tile->head,
                             tile->row + group * 64, tile->slab);
        ptx_bulk_commit();
        if (!shape::own_o)
            ptx_bulk_wait_read<0>();
    }
    if (!shape::own_o)
        __syncwarp();
}

template <class shape, class Source>
PTX_FN void attention_consume(const struct attention_operands *op, Source *source, uint32_t shared,
                              uint32_t group)
{
    float s[shape::keys / 2], o[shape::dim / 2];
    uint32_t p[shape::keys / 4];
    struct attention_state t;
    t.k_ring = t.v_ring = {};
    t.scale = op->scale * 1.4426950408889634f;
    t.shared = shared;
    t.q = shared + group * shape::group_bytes;
    t.row = group * 64 + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
    for (struct pipeline_position q_ring = {};; pipeline_step<1>(&q_ring)) {
        struct attention_tile tile;
        struct attention_keys keys;
        pipeline_wait_full<1>(shared + shape::q_barriers, &q_ring, op->limit_ns);
        /* One lane reads it: the one that later gives it back for the warp. */
        int32_t id = 0;
        if (threadIdx.x % 32 == 0)
            id = ptx_load_shared(shared + shape::tile_offset);
        id = __shfl_sync(0xffffffff, id, 0);
        if (id == ATTENTION_NONE)
            break;
        source->tile(id, &tile);
        source->keys(tile, 0, &keys);
        int32_t left = attention_blocks<shape>(&tile, 0, &keys) - 1;
        int32_t clean = attention_clean_blocks<shape>(&keys);
        uint32_t accumulate = 0;
        attention_first<shape>(op, &t, s, p, &keys, left);
        if (left >= clean)
            attention_clean<shape>(op, &t, &keys, left, id);
        if (threadIdx.x % 128 == 0)
            source->begin(id, tile, group);
        for (uint32_t run = 0;;) {
            while (left > clean)
                attention_step<shape, true>(op, &t, s, p, o, &accumulate, &keys, --left, id);
            while (left > 0)
                attention_step<shape, false>(op, &t, s, p, o, &accumulate, &keys, --left, id);
            if (!source->keys(tile, ++run, &keys))
                break;
            left = attention_blocks<shape>(&tile, run, &keys);
            clean = attention_clean_blocks<shape>(&keys);
        }
        if (shape::own_o)
            pipeline_release<1, 1>(shared + shape::q_barriers, 0, threadIdx.x % 32);
        attention_finish<shape>(op, &t, p, o, accumulate, tile.rows, source->lse(tile));
        attention_store<shape>(source->output(&op->o, tile), o, &t, &tile,
                               clean_noted(shared + shape::notes_offset, shape::dim, id));
        if (!shape::own_o)
            pipeline_release<1, 1>(shared + shape::q_barriers, 0, threadIdx.x % 32);
        if (threadIdx.x % 128 == 0)
            source->after(id, tile, group);
    }
    if (threadIdx.x % 128 == 0)
        ptx_bulk_wait_all();
}
