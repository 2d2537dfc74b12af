/*
 * The second attention engine: O = softmax(scale Q K^T) V for bf16 inputs, fp32 statistics and
 * sums, bf16 O, and the logarithm of each row's sum of weights, on any GPU of compute capability
 * 8.0 and up. It needs mma.sync, ldmatrix and cp.async; no TMA, mbarriers, clusters, setmaxnreg or
 * wgmma, and at most 99 KB of shared memory. The method is FlashAttention-2's (arXiv 2307.08691).
 *
 * A CTA takes a tile of queries. Each of its warps has 16 rows of it, or twice 16 that lie 64
 * apart, and keeps their sums in registers, as wgmma lays them, while it goes through all keys that
 * the tile may see. With 32 rows what a warp reads of K and V serves twice, and shared memory is as
 * fast as the tensor cores of an A100 or H100; it then takes all registers that a thread can have.
 * So eight such warps fill an SM, no warp is left for a producer, and all threads copy: the next
 * block of K and V to one of two stages while this one is multiplied. They meet once a block. Where
 * an SM has room for two CTAs, softmax of one falls under products of the other.
 *
 * Weights are 2^(x - reference), and a row's reference is raised (its sums are multiplied then)
 * only when a score is more than 2^8 above it: for most blocks no row of a warp has one. What a
 * reference is cancels in O and in the logarithm, and no sum overflows.
 *
 * The seam is the Hopper engine's (kernels/engine/attention_source.cuh): the keys come in runs, each
 * walked from its last block to its first, and sums are carried over them. Thread 0 is the producer
 * that the source is told of.
 *
 * Every wait ends: copies complete, threads wait for each other, and the source's waits are
 * bounded.
 */
#pragma once

#include "kernels/engine/attention_clean.cuh"
#include "kernels/mma/quad.cuh"

/* Heads of bf16 in memory: slabs of rows, in each its heads' elements. Pitches in bytes, multiples
 * of 16 as the base is. */
struct mma_heads {
    char *base;
    uint64_t pitch, head_pitch, slab_pitch; /* of a row, a head in it, a slab */
};

/* *v follows *k: what is read of V is k[1], which is a register pair fewer. */
struct mma_attention_keys : attention_keys_of<mma_heads> {
};

/* A kernel parameter. */
struct mma_attention_operands {
    struct mma_heads q, o;
    uint32_t columns; /* elements of a head, a multiple of 8 */
    float scale;      /* of Q K^T */
};

/* dim: elements of a head, rounded up to 64. keys: of a block. blocks: of 16 rows that a warp has.
 * held: of Q, how many 16s of a row stay in registers. ctas: that an SM should hold at a time. */
template <int dim_, int keys_, int warps_, int blocks_, int held_, int ctas_>
struct mma_attention_shape {
    static constexpr int dim = dim_, keys = keys_, warps = warps_, blocks = blocks_, held = held_,
                         ctas = ctas_;
    static constexpr int kept = held ? held : 1;
    static constexpr int threads = warps * 32, tile_rows = warps * blocks * 16;
    static constexpr int scores = keys / 2, sums = dim / 2; /* of a lane, in each block of rows */

    /* Piece p (16 bytes) of row r lies at p ^ (r % 8), so eight rows are in all banks. */
    static constexpr uint32_t row_bytes = dim * 2, pieces = dim / 8;
    static constexpr uint32_t q_bytes = tile_rows * row_bytes, block_bytes = keys * row_bytes;
    static constexpr uint32_t stage_bytes = 2 * block_bytes;            /* K, V */
    static constexpr uint32_t tiles_offset = q_bytes + 2 * stage_bytes; /* this one and the next */
    static constexpr uint32_t notes_offset =
        tiles_offset + 64; /* kernels/engine/attention_clean.cuh */
    static constexpr uint32_t shared_bytes =
        notes_offset + clean_bytes<dim> + 128; /* to align the first */
    static constexpr bool async_proxy = false;

    /* In the tile: the first row of a warp's block. */
    static ATTENTION_MEMBER uint32_t row(uint32_t warp, uint32_t block)
    {
        return warp / 4 * (blocks * 64) + block * 64 + warp % 4 * 16;
    }

    /* Columns 2 * pair and 2 * pair + 1 of a key's V. */
    static ATTENTION_MEMBER uint32_t value_pair(uint32_t key, uint32_t pair)
    {
        return key * row_bytes + (pair / 4 ^ key % 8) * 16 + pair % 4 * 4;
    }

    static_assert(dim == 64 || dim == 128, "rows of 128 or 256 bytes");
    static_assert(warps % 4 == 0 && warps / 4 <= NAMED_WARPGROUPS && keys % 16 == 0 &&
                      keys * pieces % threads == 0,
                  "whole copies");
    static_assert(held <= dim / 16 && shared_bytes <= 99 * 1024, "what a CTA of sm_86 has");
};

/* Where a lane finds what it names to ldmatrix: row lane % 16 and piece lane / 16, for 16 x 16 of Q
 * and V; row lane % 8 + lane / 16 * 8 and piece lane / 8 % 2 for those of K. From there it is 32
 * bytes to the next 16 along a row, by exclusive or in each 128. */
template <class shape> PTX_FN uint32_t mma_tile_place(uint32_t row, uint32_t piece)
{
    return row * shape::row_bytes + (piece ^ row % 8) * 16;
}

PTX_FN uint32_t mma_along(uint32_t place, int sixteenth)
{
    return (place ^ sixteenth % 4 * 32) + sixteenth / 4 * 128;
}

/* Of a shape: a kernel of more fails at once, as no SM that runs this code has shared memory for two
 * of its blocks. (Of PTX the newest is taken.) */
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ < 900 || __CUDA_ARCH__ >= 1200)
constexpr int mma_attention_most_ctas = 1;
#else
constexpr int mma_attention_most_ctas = 2;
#endif

/* ---- Copies ---- */

/* The thread copies its pieces of a block of keys, rows first, ... of a run, to `to`. checked: rows
 * behind the run's are zeros. */
template <class shape, bool checked>
PTX_FN void mma_copy_keys(const struct mma_heads *of, const struct mma_attention_keys *keys,
                          int32_t first, uint32_t columns, uint32_t to)
{
    constexpr int step = shape::threads / shape::pieces; /* rows that are copied at once */
    const uint32_t row = threadIdx.x / shape::pieces, piece = threadIdx.x % shape::pieces;
    const char *from = of->base + keys->slab * of->slab_pitch + keys->head * of->head_pitch +
                       (keys->row + first + (int32_t)row) * of->pitch + piece * 16;
    const bool inside = piece * 8 < columns;
    const int32_t rows = keys->keys - first - (int32_t)row;
    to += mma_tile_place<shape>(row, piece);
#pragma unroll
    for (int j = 0; j < shape::keys / step; j++, from += step * of->pitch) {
        const bool here = inside && (!checked || j * step < rows);
        mma_copy_16(to + j * step * shape::row_bytes, here ? from : of->base, here ? 16 : 0);
    }
}

/* Whether what the thread copied of a block's V has a value that is not finite. It is there. */
template <class shape> PTX_FN bool mma_copied_not_finite(uint32_t values)
{
    constexpr int step = shape::threads / shape::pieces;
    uint32_t any = 0;
    values += mma_tile_place<shape>(threadIdx.x / shape::pieces, threadIdx.x % shape::pieces);
#pragma unroll 1 /* registers */
    for (int j = 0; j < shape::keys / step; j++)
        any |= clean_not_finite(ptx_load_shared_4(values + j * step * shape::row_bytes));
    return any;
}

template <class shape>
PTX_FN void mma_copy_block(const struct mma_attention_keys *keys, int32_t first, uint32_t columns,
                           uint32_t stage)
{
    if (first + shape::keys <= keys->keys && columns == shape::dim) {
        mma_copy_keys<shape, false>(keys->k, keys, first, shape::dim, stage);
        mma_copy_keys<shape, false>(keys->k + 1, keys, first, shape::dim,
                                    stage + shape::block_bytes);
    } else {
        mma_copy_keys<shape, true>(keys->k, keys, first, columns, stage);
        mma_copy_keys<shape, true>(keys->k + 1, keys, first, columns, stage + shape::block_bytes);
    }
}

/* A warp copies its own rows of Q. Those behind the tile's are zeros. */
template <class shape>
PTX_FN void mma_copy_queries(const struct mma_attention_operands *op,
                             const struct attention_tile *tile, uint32_t warp, uint32_t shared)
{
    constexpr uint32_t step = 32 / shape::pieces;
    const uint32_t lane = threadIdx.x % 32, down = lane / shape::pieces,
                   piece = lane % shape::pieces;
    const char *base =
        op->q.base + tile->slab * op->q.slab_pitch + tile->head * op->q.head_pitch + piece * 16;
#pragma unroll
    for (int m = 0; m < shape::blocks; m++)
#pragma unroll
        for (uint32_t j = 0; j < 16; j += step) {
            const uint32_t row = shape::row(warp, m) + j + down;
            const bool inside = row < tile->rows && piece * 8 < op->columns;
            mma_copy_16(shared + mma_tile_place<shape>(row, piece),
                        inside ? base + (tile->row + (int32_t)row) * op->q.pitch : op->q.base,
                        inside ? 16 : 0);
        }
}

/* ---- Products and softmax of a warp ---- */

/* What a thread keeps of its rows: lane / 4 of each block, and that + 8. */
template <class shape> struct mma_attention_rows {
    float reference[shape::blocks][2]; /* of scores times scale times log2(e) */
    float sum[shape::blocks][2];       /* of the weights in this thread's columns */
};

enum { MMA_AHEAD = 2 }; /* steps from the load of a fragment to its products */

/* s = Q K^T. q, k: the lane's place in the warp's rows, and in the block. */
template <class shape>
PTX_FN void mma_scores(float (&s)[shape::blocks][shape::scores],
                       const uint32_t (&kept)[shape::kept][shape::blocks][4], uint32_t q,
                       uint32_t k)
{
    constexpr int groups = shape::keys / 16, steps = shape::dim / 16 * groups;
    uint32_t a[2][shape::blocks][4], b[2 * MMA_AHEAD][4];
    static_assert(MMA_AHEAD <= groups, "two places for Q");
#pragma unroll
    for (int t = -MMA_AHEAD; t < steps; t++) {
        const int soon = t + MMA_AHEAD, i = t / groups;
        if (soon < steps) {
            const int ahead = soon / groups;
            if (soon % groups == 0 && ahead >= shape::held)
#pragma unroll
                for (int m = 0; m < shape::blocks; m++)
                    ptx_ldmatrix_x4(mma_along(q, ahead) + m * (64 * shape::row_bytes),
                                    a[ahead % 2][m]);
            ptx_ldmatrix_x4(mma_along(k, ahead) + soon % groups * (16 * shape::row_bytes),
                            b[soon % (2 * MMA_AHEAD)]);
        }
        if (t < 0)
            continue;
#pragma unroll
        for (int m = 0; m < shape::blocks; m++)
#pragma unroll
            for (int n = 0; n < 2; n++) {
                float *d = &s[m][(t % groups * 2 + n) * 4];
                if (i == 0)
                    d[0] = d[1] = d[2] = d[3] = 0;
                mma_bf16(d, i < shape::held ? kept[i][m] : a[i % 2][m],
                         &b[t % (2 * MMA_AHEAD)][n * 2]);
            }
    }
}

/* o += P V; P is s, rounded. v: the lane's place in the block. */
template <class shape>
PTX_FN void mma_add_values(float (&o)[shape::blocks][shape::sums],
                           const float (&s)[shape::blocks][shape::scores], uint32_t v)
{
    constexpr int groups = shape::dim / 16, steps = shape::keys / 16 * groups;
    uint32_t p[shape::blocks][4], b[2 * MMA_AHEAD][4];
#pragma unroll
    for (int t = -MMA_AHEAD; t < steps; t++) {
        const int soon = t + MMA_AHEAD;
        if (soon < steps)
            ptx_ldmatrix_x4_transposed(mma_along(v, soon % groups) +
                                           soon / groups * (16 * shape::row_bytes),
                                       b[soon % (2 * MMA_AHEAD)]);
        if (t < 0)
            continue;
#pragma unroll
        for (int m = 0; m < shape::blocks; m++) {
            if (t % groups == 0)
#pragma unroll
                for (int r = 0; r < 4; r++)
                    p[m][r] = ptx_pack_bf16(s[m][t / groups * 8 + r * 2],
                                            s[m][t / groups * 8 + r * 2 + 1]);
#pragma unroll
            for (int n = 0; n < 2; n++)
                mma_bf16(&o[m][(t % groups * 2 + n) * 4], p[m], &b[t % (2 * MMA_AHEAD)][n * 2]);
        }
    }
}

/* Hides the scores of keys that a row does not see: of the block's, those from `keys` on, and for
 * this thread's first row those from `reach` on, for others as many later as they are below it. */
template <class shape>
PTX_FN void mma_hide(float (&s)[shape::blocks][shape::scores], int32_t keys, int32_t reach)
{
    const int32_t column = threadIdx.x % 4 * 2;
#pragma unroll
    for (int m = 0; m < shape::blocks; m++)
#pragma unroll
        for (int i = 0; i < shape::scores; i++)
            if (i / 4 * 8 + i % 2 >= min(keys, reach + m * 64 + i / 2 % 2 * 8) - column)
                s[m][i] = -INFINITY;
}

/* Raises the references of those of the warp's rows to their highest scores that need it; `most`: in this thread. */
template <class shape>
PTX_FN void mma_raise(float (&o)[shape::blocks][shape::sums],
                      struct mma_attention_rows<shape> *rows, const float (&most)[shape::blocks][2],
                      float scale)
{
#pragma unroll
    for (int m = 0; m < shape::blocks; m++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float top = most[m][r];
            top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, 1));
            top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, 2));
            /* a row's follows from the row alone, not from others of its warp */
            top = fmaf(top, scale, -rows->reference[m][r]) > 8 ? __fmul_rn(top, scale)
                                                               : rows->reference[m][r];
            const float factor = ptx_exp2(rows->reference[m][r] - top);
            rows->reference[m][r] = top;
            rows->sum[m][r] = __fmul_rn(rows->sum[m][r], factor);
#pragma unroll
            for (int i = 0; i < shape::sums / 2; i++)
                o[m][i / 2 * 4 + r * 2 + i % 2] *= factor;
        }
}

/* Turns scores into weights, and adds them to the rows' sums. */
template <class shape>
PTX_FN void mma_weights(float (&s)[shape::blocks][shape::scores],
                        float (&o)[shape::blocks][shape::sums],
                        struct mma_attention_rows<shape> *rows, float scale)
{
    float most[shape::blocks][2];
    bool above = false;
#pragma unroll
    for (int m = 0; m < shape::blocks; m++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            most[m][r] = s[m][r * 2];
#pragma unroll
            for (int i = 1; i < shape::scores / 2; i++)
                most[m][r] = fmaxf(most[m][r], s[m][i / 2 * 4 + r * 2 + i % 2]);
            above |= fmaf(most[m][r], scale, -rows->reference[m][r]) > 8;
        }
    if (__any_sync(0xffffffff, above))
        mma_raise<shape>(o, rows, most, scale);
#pragma unroll
    for (int m = 0; m < shape::blocks; m++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float sum[2] = {rows->sum[m][r], 0};
#pragma unroll
            for (int i = 0; i < shape::scores / 2; i++) {
                float *w = &s[m][i / 2 * 4 + r * 2 + i % 2];
                *w = ptx_exp2(fmaf(*w, scale, -rows->reference[m][r]));
                sum[i % 2] += *w;
            }
            rows->sum[m][r] = sum[0] + sum[1];
        }
}

/* Adds to a tile's sums what their rows see of values that are not finite. */
template <class shape>
PTX_FN void mma_add_seen(float (&o)[shape::blocks][shape::sums], uint32_t notes, uint32_t warp)
{
    const uint32_t lane = threadIdx.x % 32, row = shape::row(warp, 0) + lane / 4;
#pragma unroll
    for (int column = 0; column < shape::sums / 2; column++) { /* of the lane's */
        const uint32_t note =
            ptx_load_shared(notes + (column / 2 * 8 + lane % 4 * 2 + column % 2) * 4);
#pragma unroll
        for (int m = 0; m < shape::blocks; m++)
#pragma unroll
            for (int r = 0; r < 2; r++)
                o[m][column / 2 * 4 + r * 2 + column % 2] += clean_seen(note, row + m * 64 + r * 8);
    }
}

/* Divides a tile's sums, and stores them and the logarithms: 16 bytes of a row at a time, which the
 * lanes of a quad exchange. */
template <class shape>
PTX_FN void mma_finish(const struct mma_attention_operands *op,
                       const float (&o)[shape::blocks][shape::sums],
                       const struct mma_attention_rows<shape> *rows,
                       const struct attention_tile *tile, float *lse, uint32_t warp)
{
    const uint32_t lane = threadIdx.x % 32, column = lane % 4 * 8;
    char *const base =
        op->o.base + tile->slab * op->o.slab_pitch + tile->head * op->o.head_pitch + column * 2;
#pragma unroll
    for (int m = 0; m < shape::blocks; m++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const uint32_t row = shape::row(warp, m) + lane / 4 + r * 8;
            float sum = rows->sum[m][r];
            sum += __shfl_xor_sync(0xffffffff, sum, 1);
            sum += __shfl_xor_sync(0xffffffff, sum, 2);
            const float inverse = sum > 0 ? ptx_reciprocal(sum) : 0;
            if (lane % 4 == 0 && row < tile->rows)
                lse[row] = sum > 0 ? (rows->reference[m][r] + ptx_log2(sum)) * 0.6931471805599453f
                                   : -INFINITY;
            char *const to = base + (tile->row + (int32_t)row) * op->o.pitch;
#pragma unroll
            for (int j = 0; j < shape::dim / 32; j++) {
                uint32_t v[4];
#pragma unroll
                for (int n = 0; n < 4; n++) {
                    const float *d = &o[m][(j * 4 + n) * 4 + r * 2];
                    v[n] = ptx_pack_bf16(d[0] * inverse, d[1] * inverse);
                }
                mma_exchange(v);
                if (row < tile->rows && j * 32 + column < op->columns)
                    *(uint4 *)(to + j * 64) = make_uint4(v[0], v[1], v[2], v[3]);
            }
        }
}

/* ---- A CTA ---- */

/* A tile as thread 0 has left it in shared memory for all threads, and its number behind it: not in
 * registers, which the main loop needs. */
PTX_FN struct attention_tile mma_tile_at(uint32_t place)
{
    const uint4 v = ptx_load_shared_4(place);
    return {(int32_t)v.x, (int32_t)v.y, (int32_t)v.z, v.w};
}

PTX_FN int32_t mma_tile_number(uint32_t place)
{
    return ptx_load_shared(place + 16);
}

/* The block of keys that is copied next: of its tile, the run, and the block's number in it. */
struct mma_walk {
    struct mma_attention_keys keys;
    uint32_t run;
    int32_t block;
};

template <class shape, class Source>
PTX_FN void mma_walk_begin(struct mma_walk *at, const Source *source,
                           const struct attention_tile *tile)
{
    source->keys(*tile, at->run = 0, &at->keys);
    at->block = attention_blocks<shape>(tile, 0, &at->keys) - 1;
}

/* False: that was the last block of the tile at `place`. */
template <class shape, class Source>
PTX_FN bool mma_walk_on(struct mma_walk *at, const Source *source, uint32_t place)
{
    if (--at->block >= 0)
        return true;
    const struct attention_tile tile = mma_tile_at(place);
    do {
        if (!source->keys(tile, ++at->run, &at->keys))
            return false;
        at->block = attention_blocks<shape>(&tile, at->run, &at->keys) - 1;
    } while (at->block < 0);
    return true;
}

/* All threads go on to the tile whose number thread 0 has left at `place`: when they return, its Q
 * and first block of keys are under way. What was copied for the tile before is read no more.
 * False: there is no tile. */
template <class shape, class Source>
PTX_FN bool mma_begin_tile(const struct mma_attention_operands *op, Source *source,
                           struct mma_walk *at, uint32_t shared, uint32_t place, uint32_t stage)
{
    struct attention_tile tile;
    if (threadIdx.x == 0) {
        const int32_t id = mma_tile_number(place);
        if (id != ATTENTION_NONE) {
            source->tile(id, &tile);
            mma_walk_begin<shape>(at, source, &tile);
            source->before(tile, 0, at->keys, at->block * shape::keys);
            ptx_store_shared_4(place, make_uint4(tile.head, tile.row, tile.slab, tile.rows));
        }
    }
    ptx_bar_sync(named_copiers(shape::threads));
    if (mma_tile_number(place) == ATTENTION_NONE)
        return false;
    tile = mma_tile_at(place);
    mma_walk_begin<shape>(at, source, &tile);
    mma_copy_queries<shape>(op, &tile, ptx_opaque(threadIdx.x / 32), shared); /* no place is kept */
    mma_copy_block<shape>(&at->keys, at->block * shape::keys, op->columns, stage);
    ptx_copy_async_commit();
    return true;
}

/* The products of a block with the tile's rows, and the softmax between them. stage: where it lies.
 * keys, reach: of mma_hide, for the warp's first row. */
template <class shape>
PTX_FN void mma_block(float (&o)[shape::blocks][shape::sums],
                      struct mma_attention_rows<shape> *rows,
                      const uint32_t (&kept)[shape::kept][shape::blocks][4], uint32_t q,
                      uint32_t stage, int32_t keys, int32_t reach, float scale)
{
    const uint32_t lane = threadIdx.x % 32;
    float s[shape::blocks][shape::scores];
    mma_scores<shape>(s, kept, q,
                      stage + mma_tile_place<shape>(lane % 8 + lane / 16 * 8, lane / 8 % 2));
    if (min(keys, reach) < shape::keys)
        mma_hide<shape>(s, keys, reach + (int32_t)lane / 4);
    mma_weights<shape>(s, o, rows, scale);
    mma_add_values<shape>(o, s,
                          stage + shape::block_bytes + mma_tile_place<shape>(lane % 16, lane / 16));
}

/*
 * Runs the CTA's tiles. All shape::threads threads call, once, with shape::shared_bytes of dynamic
 * shared memory; the kernel has __launch_bounds__(shape::threads, shape::ctas). Returns when all
 * stores have been issued.
 */
template <class shape, class Source>
PTX_FN void mma_attention(const struct mma_attention_operands *op, Source *source, uint8_t *memory)
{
    const uint32_t shared = (ptx_shared(memory) + 127) & ~127u, lane = threadIdx.x % 32;
    /* The shuffle tells the compiler that it is the same in all lanes. */
    const uint32_t warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);
    const uint32_t q = shared + mma_tile_place<shape>(shape::row(warp, 0) + lane % 16, lane / 16);
    const float scale = op->scale * 1.4426950408889634f;
    float o[shape::blocks][shape::sums];
    uint32_t kept[shape::kept][shape::blocks][4];
    struct mma_attention_rows<shape> rows;
    struct mma_walk at;
    const uint32_t stages = shared + shape::q_bytes, notes = shared + shape::notes_offset;
    uint32_t place = shared + shape::tiles_offset; /* of the tile */
    uint32_t now = 0;                              /* where in `stages` its next block lies */
    if (threadIdx.x == 0) {
        source->open();
        ptx_store_shared(notes + shape::dim * 4, (uint32_t)ATTENTION_NONE);
        ptx_store_shared(place + 16, source->take());
    }
    bool goes_on = mma_begin_tile<shape>(op, source, &at, shared, place, stages);
    while (goes_on) {
#pragma unroll
        for (int m = 0; m < shape::blocks; m++) {
#pragma unroll
            for (int i = 0; i < shape::sums; i++)
                o[m][i] = 0;
#pragma unroll
            for (int r = 0; r < 2; r++) {
                rows.reference[m][r] = -1e30f; /* below all, and differences from it are numbers */
                rows.sum[m][r] = 0;
            }
        }
        if (threadIdx.x % 128 == 0)
            source->begin(mma_tile_number(place), mma_tile_at(place), warp / 4);
        if constexpr (shape::held > 0) {
            ptx_copy_async_wait<0>(); /* of its own rows each warp has copied Q */
            __syncwarp();
#pragma unroll
            for (int i = 0; i < shape::held; i++)
#pragma unroll
                for (int m = 0; m < shape::blocks; m++)
                    ptx_ldmatrix_x4(mma_along(q, i) + m * (64 * shape::row_bytes), kept[i][m]);
        }
        bool more;
#pragma unroll 1
        do {
            /* The lane's own warp number: with the uniform one a register more is spilled. */
            const int32_t begins = at.block * shape::keys, keys = at.keys.keys - begins,
                          seen = at.keys.diagonal + 1 - begins; /* by the tile's first row */
            bool cleans = false;
            more = mma_walk_on<shape>(&at, source, place);
            if (threadIdx.x == 0 && more)
                source->before(mma_tile_at(place), at.run, at.keys, at.block * shape::keys);
            ptx_copy_async_wait<0>();
            /* this block is here, and the one before it read */
            if (seen < shape::keys)
                cleans =
                    ptx_bar_any(named_copiers(shape::threads),
                                mma_copied_not_finite<shape>(stages + now + shape::block_bytes));
            else
                ptx_bar_sync(named_copiers(shape::threads));
            if (more) {
                mma_copy_block<shape>(&at.keys, at.block * shape::keys, op->columns,
                                      stages + (now ^ shape::stage_bytes));
                ptx_copy_async_commit();
            } else if (threadIdx.x == 0) {
                ptx_store_shared((place ^ 32) + 16, source->take());
            }
            if (cleans)
                clean_block<shape>(stages + now + shape::block_bytes, notes, mma_tile_number(place),
                                   keys, 1 - seen, threadIdx.x, named_copiers(shape::threads));
            __syncwarp(); /* as kernels/mma/ring.cuh says */
            mma_block<shape>(o, &rows, kept, q, stages + now, keys,
                             (int32_t)shape::row(threadIdx.x / 32, 0) + seen, scale);
            now ^= shape::stage_bytes;
        } while (more);
        /* The next tile's copies are under way while this one is stored. */
        const uint32_t done = place;
        place ^= 32;
        goes_on = mma_begin_tile<shape>(op, source, &at, shared, place, stages + now);
        const struct attention_tile tile = mma_tile_at(done);
        if (clean_noted(notes, shape::dim, mma_tile_number(done)))
            mma_add_seen<shape>(o, notes, warp);
        mma_finish<shape>(op, o, &rows, &tile, source->lse(tile), warp);
        ptx_bar_sync(named_warpgroup(warp / 4));
        if (threadIdx.x % 128 == 0)
            source->after(mma_tile_number(done), tile, warp / 4);
    }
    if (threadIdx.x == 0)
        source->close();
}
