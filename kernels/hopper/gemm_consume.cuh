/* A consumer warpgroup of engine wgmma: it multiplies what is in the stages, joins sums where each
 * warpgroup or CTA has a part of K, and stores C. */
#pragma once

#include "kernels/hopper/gemm_shape.cuh"
#include "kernels/hopper/wgmma.cuh"

/* Starts the products of one stage: `blocks` x 64 rows of A with all columns of B. */
template <class shape>
PTX_FN void gemm_multiply_stage(float (&sum)[shape::blocks][shape::sums], uint32_t stage,
                                uint32_t half, uint32_t accumulate, uint32_t first_row)
{
    constexpr uint32_t block_bytes = 64 * 128;
    static_assert(shape::b_kn != ENGINE_B_EITHER, "engine_as_laid tells");
    constexpr uint32_t b_step = shape::b_kn ? 16 * 128 : 32;
    uint32_t part = shape::parts == 2 ? half : 0;
    uint64_t a = wgmma_descriptor(stage + part * shape::a_part_bytes + first_row * 128, 0);
    uint64_t b = wgmma_descriptor(stage + shape::a_bytes + part * shape::b_part_bytes,
                                  shape::b_kn ? shape::box_bytes : 0);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; k++) {
#pragma unroll
        for (int m = 0; m < shape::blocks; m++) {
            const uint64_t a_now = wgmma_advance(a, m * block_bytes + k * 32),
                           b_now = wgmma_advance(b, k * b_step);
            if constexpr (shape::products == GEMM_BF16)
                wgmma_bf16<shape::b_kn>(sum[m], a_now, b_now, k > 0 ? 1 : accumulate);
            else
                wgmma_f16<shape::b_kn>(sum[m], a_now, b_now, k > 0 ? 1 : accumulate);
        }
    }
    wgmma_commit();
}

/* The same number: of a tight shape, or a tight source, nothing that derives from it is kept from tile to tile. */
template <class shape, bool tight = false> PTX_FN uint32_t gemm_again(uint32_t v)
{
    if constexpr (shape::tight || tight)
        return ptx_opaque(v);
    return v;
}

/* Whether a consumer has most to keep. */
template <class shape, class tile_source>
constexpr bool gemm_tightest = shape::fronted || tile_source::template raw_sets<shape> == 1;

/* A consumer's half, likewise of such a source. */
template <class shape, class tile_source> PTX_FN uint32_t gemm_half(uint32_t half)
{
    return gemm_tightest<shape, tile_source> ? ptx_opaque(threadIdx.x) / 128 - 1 : half;
}

/* And the CTA's rank in its cluster. */
template <class shape, class tile_source> PTX_FN uint32_t gemm_rank(uint32_t rank)
{
    if constexpr (gemm_tightest<shape, tile_source> && shape::cluster > 1)
        return ptx_opaque(ptx_cluster_rank());
    return rank;
}

/* A warpgroup's 64 x 64 sums to a box in shared memory. 128-byte swizzle: the 16-byte piece p of
 * row r lies at piece p ^ (r % 8). */
template <class shape, bool tight> PTX_FN void gemm_fill_box(uint32_t box, const float *sum)
{
    uint32_t thread = gemm_again<shape, tight>(threadIdx.x) % 128, lane = thread % 32;
    uint32_t row = thread / 32 * 16 + lane % 16; /* whose address this lane gives to stmatrix */
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const float *d = sum + j * 8;
        uint32_t piece = (j * 2 + lane / 16) ^ (row % 8);
        ptx_stmatrix_x4(box + row * 128 + piece * 16, half_pack<shape::element>(d[0], d[1]),
                        half_pack<shape::element>(d[2], d[3]),
                        half_pack<shape::element>(d[4], d[5]),
                        half_pack<shape::element>(d[6], d[7]));
    }
}

/*
 * Stores the warpgroup's half of the tile, a box at a time: registers to shared memory, then a TMA
 * store, which drops what lies outside C. columns: of boxes. `boxes` counts those used so far. A
 * box is written again when the store that read it last is through.
 */
template <class shape, bool tight>
PTX_FN void gemm_store(const CUtensorMap *map_c, uint32_t columns,
                       const float (&sum)[shape::blocks][shape::sums], uint32_t shared,
                       uint32_t half, const struct engine_place *place, uint32_t *boxes)
{
    uint32_t thread = threadIdx.x % 128;
    int32_t row0 = place->y + shape::first_row(half);
    shared = gemm_again<shape, tight>(shared);
    uint32_t ring = shared + shape::c_offset + half * shape::c_boxes * shape::box_bytes;
#pragma unroll
    for (int m = 0; m < shape::blocks; m++) {
#pragma unroll
        for (int n = 0; n < shape::tile_n / 64; n++) {
            if (n >= columns)
                break;
            /* its tiles take all boxes in turn, and end with the last */
            constexpr bool all = shape::tile_n / 64 % shape::c_boxes == 0;
            static_assert(!shape::fronted || all, "as often");
            uint32_t box = ring + (shape::fronted || (tight && all) ? n : (*boxes)++) %
                                      shape::c_boxes * shape::box_bytes;
            if (thread == 0)
                ptx_bulk_wait_read<shape::c_boxes - 1>();
            ptx_bar_sync(named_warpgroup(half));
            gemm_fill_box<shape, tight>(box, &sum[m][n * 32]);
            ptx_fence_async_shared();
            ptx_bar_sync(named_warpgroup(half));
            if (thread == 0) {
                ptx_tma_store_3d(map_c, box, place->x + n * 64, row0 + m * 64, place->z);
                ptx_bulk_commit();
            }
        }
    }
}

/* A consumer warpgroup goes past a tile of which it has nothing to compute: each stage is given
 * back as it comes. */
template <class shape, class tile_source>
PTX_FN void gemm_pass(const struct gemm_operands *op, tile_source *source, uint32_t barriers,
                      struct pipeline_position *at, const struct mk_tile *tile, uint32_t i,
                      uint32_t half)
{
    const uint32_t stages_of_k = source->stages_of_k(op, tile);
    for (uint32_t k = 0; k < stages_of_k; k++) {
        pipeline_wait_full<shape::stages>(barriers, at, op->limit_ns);
        if (k == 0 && threadIdx.x % 128 == 0) {
            source->begin(i, tile);
            if (i > 0)
                source->publish(i - 1, half);
        }
        __syncwarp(); /* no lane still waits for a phase that another one lets go */
        pipeline_release<shape::stages, shape::sharers>(barriers, at->stage, threadIdx.x % 32);
        pipeline_step<shape::stages>(at);
    }
    if (threadIdx.x % 128 == 0)
        source->after(i, tile, half);
}

/* Where each consumer has multiplied its part of K: the second gives its sums to the first, thread
 * by thread, and is told by the first's next call that they have been taken. i: tiles before. */
template <class shape, class tile_source>
PTX_FN void gemm_join(float (&sum)[shape::blocks][shape::sums], uint32_t shared, uint32_t half,
                      uint32_t i)
{
    uint32_t at =
        shared + shape::c_offset + shape::c_boxes * shape::box_bytes + threadIdx.x % 128 * 16;
    if (i > 0 && half == 0)
        ptx_bar_arrive(named_sums_taken());
    if (i > 0 && half == 1)
        ptx_bar_sync(named_sums_taken());
    if (half == 0)
        ptx_bar_sync(named_sums_given());
#pragma unroll
    for (int j = 0; j < shape::tile_n / 8; j++) {
        float *d = &sum[0][j * 4];
        if (half == 0) {
            uint4 v = ptx_load_shared_4(at + j * 2048);
            d[0] = tile_source::join(d[0], __uint_as_float(v.x));
            d[1] = tile_source::join(d[1], __uint_as_float(v.y));
            d[2] = tile_source::join(d[2], __uint_as_float(v.z));
            d[3] = tile_source::join(d[3], __uint_as_float(v.w));
        } else {
            ptx_store_shared_4(at + j * 2048, ptx_copy_4(d));
        }
    }
    if (half == 1)
        ptx_bar_arrive(named_sums_given());
}

/* Where each CTA of the cluster has multiplied half of K: its second consumer gives its sums to the
 * other CTA's first, thread by thread, which has the same rows; by stores that complete bytes of a
 * barrier there, so that no fence is needed. i: tiles before. */
template <class shape>
PTX_FN void gemm_give(float (&sum)[shape::blocks][shape::sums], uint32_t shared, uint32_t half,
                      uint32_t rank, uint32_t i, uint64_t limit_ns)
{
    const uint32_t at = shared + shape::c_offset + shape::c_boxes * shape::box_bytes +
                        threadIdx.x % 128 * 16,
                   given = shared + shape::given_offset, taken = shared + shape::taken_offset;
    if (half == 0) {
        if (threadIdx.x % 128 == 0)
            ptx_mbar_expect(given, shape::tile_n * 256);
        if (i > 0 && threadIdx.x % 32 == 0) /* its lanes have read what came before */
            ptx_mbar_arrive_at_release(taken, 1 - rank);
        ptx_mbar_wait(given, mbar_phase_of(i), limit_ns);
    } else if (i > 0) {
        ptx_mbar_wait(taken, mbar_phase_before(mbar_phase_of(i)), limit_ns);
    }
#pragma unroll
    for (int j = 0; j < shape::tile_n / 8; j++) {
        float *d = &sum[0][j * 4];
        if (half == 0) {
            uint4 v = ptx_load_shared_4(at + j * 2048);
            d[0] += __uint_as_float(v.x);
            d[1] += __uint_as_float(v.y);
            d[2] += __uint_as_float(v.z);
            d[3] += __uint_as_float(v.w);
        } else {
            ptx_store_async_4(at + j * 2048, given, 1 - rank, ptx_copy_4(d));
        }
    }
    if (half == 0)
        __syncwarp();
}

/* The last tiles may have fewer rows than a product, or none: whatever lies in their stages behind
 * these is multiplied, and stored by nobody. */
template <class shape> PTX_FN void gemm_leave_rest(const struct gemm_operands *op, uint32_t shared)
{
    if (op->a_rest < shape::loaded_rows || op->a_rows % (shape::tile_m * shape::cluster))
        for (uint32_t stage = 0; stage < shape::stages; stage++)
            ptx_shared_left(shared + stage * shape::stage_bytes, shape::a_bytes);
}

/* Multiplies all of a tile's K: the sums are whole when it returns, and its stages given back. */
template <class shape, class tile_source>
PTX_FN void gemm_multiply(const struct gemm_operands *op, tile_source *source,
                          struct gemm_ring *ring, float (&sum)[shape::blocks][shape::sums],
                          const struct mk_tile *tile, uint32_t i, uint32_t half, uint32_t first_row)
{
    const uint32_t stages_of_k = source->stages_of_k(op, tile),
                   later = stages_of_k > 2 ? 2 : stages_of_k - 1, lane = threadIdx.x % 32;
    uint32_t previous = 0;
    for (uint32_t k = 0; k < stages_of_k; k++) {
        pipeline_wait_full<shape::stages>(ring->barriers, &ring->at, op->limit_ns);
        if (k == 0 && threadIdx.x % 128 == 0)
            source->begin(i, tile);
        if (i > 0 && k == later && threadIdx.x % 128 == 0)
            source->publish(i - 1, half);
        gemm_multiply_stage<shape>(sum, ring->shared + ring->at.stage * shape::stage_bytes, half,
                                   k > 0, first_row);
        /* One stage's products stay under way while the one before is given back. */
        wgmma_wait<1>();
        if (k > 0)
            pipeline_release<shape::stages, shape::sharers>(ring->barriers, previous, lane);
        previous = ring->at.stage;
        pipeline_step<shape::stages>(&ring->at);
    }
    wgmma_wait<0>();
    pipeline_release<shape::stages, shape::sharers>(ring->barriers, previous, lane);
#pragma unroll
    for (int m = 0; m < shape::blocks; m++)
        wgmma_settle(sum[m]);
}

/* The same by the loop for the layout that B has. Of two loops that begin with what the last tile
 * has left, ptxas lets no product run beside the next (C7515), hence the zeros. */
template <class shape, class tile_source>
PTX_FN void gemm_multiply_laid(const struct gemm_operands *op, tile_source *source,
                               struct gemm_ring *ring, float (&sum)[shape::blocks][shape::sums],
                               const struct mk_tile *tile, uint32_t i, uint32_t half,
                               uint32_t first_row)
{
    if constexpr (shape::b_kn == ENGINE_B_EITHER) {
#pragma unroll
        for (int m = 0; m < shape::blocks; m++)
#pragma unroll
            for (int j = 0; j < shape::tile_n / 2; j++)
                sum[m][j] = 0;
    }
    engine_as_laid<shape>(op, [&](auto laid) {
        gemm_multiply<decltype(laid)>(op, source, ring, sum, tile, i, half, first_row);
    });
}

/* kernels/hopper/gemm_tree.cuh has it, which kernels of such sources include. */
template <class shape, class tile_source>
PTX_FN void gemm_sum_blocks(const struct gemm_operands *op, tile_source *source,
                            struct gemm_ring *ring, float (&sum)[shape::blocks][shape::sums],
                            const struct mk_tile *tile, uint32_t i, uint32_t half);

/* kernels/hopper/gemm_promote.cuh has it, which kernels of e4m3 include. */
template <class shape, class tile_source>
PTX_FN void gemm_promote(const struct gemm_operands *op, tile_source *source,
                         struct gemm_ring *ring, float (&sum)[shape::blocks][shape::sums],
                         const struct mk_tile *tile, uint32_t i, uint32_t half, uint32_t rank);

/* A consumer warpgroup. */
template <class shape, class tile_source>
PTX_FN void gemm_consume(const struct gemm_operands *op, tile_source *source, uint32_t shared,
                         uint32_t half, uint32_t rank)
{
    float sum[shape::blocks][shape::sums];
    struct gemm_ring ring = {shared, shape::barriers(shared), {}};
    struct mk_tile tile;
    uint32_t boxes = 0, i;
    const auto own_half = [&] { return gemm_half<shape, tile_source>(half); };
    const auto own_rank = [&] { return gemm_rank<shape, tile_source>(rank); };
    if (!shape::half)
        ptx_await_launches(); /* scales are read by consumers, too */
    for (i = 0; source->publish_early(i), source->next(i, &tile); i++) {
        const uint32_t height = gemm_height<shape, tile_source>(&tile);
        if ((tile_source::halves && shape::first_row(own_half()) >= height) ||
            source->idle(&tile, rank * height + shape::first_row(own_half()))) {
            gemm_pass<shape>(op, source, ring.barriers, &ring.at, &tile, i, own_half());
            continue;
        }
        if constexpr (tile_source::tree)
            engine_as_laid<shape>(op, [&](auto laid) {
                gemm_sum_blocks<decltype(laid)>(op, source, &ring, sum, &tile, i, half);
            });
        else if constexpr (shape::half)
            gemm_multiply_laid<shape>(op, source, &ring, sum, &tile, i, half,
                                      shape::splits ? 64 * (half ^ rank) : shape::first_row(half));
        else
            gemm_promote<shape>(op, source, &ring, sum, &tile, i, own_half(), own_rank());
        if constexpr (shape::splits)
            gemm_give<shape>(sum, shared, half, rank, i, op->limit_ns);
        else if (shape::joins)
            gemm_join<shape, tile_source>(sum, shared, half, i);
        source->template add<shape>(i, sum, own_half(), own_rank(), &ring);
        source->template epilogue<shape>(&tile, sum, 0);
        if ((!shape::joins || half == 0) &&
            !source->template store_sums<shape>(i, sum, own_half(), own_rank())) {
            struct engine_place place =
                source->place(i, &tile, own_rank() * gemm_height<shape, tile_source>(&tile));
            gemm_store<shape, tile_source::tree || gemm_tightest<shape, tile_source>>(
                source->c(op, &tile), source->template boxes<shape>(&tile), sum, shared, own_half(),
                &place, &boxes);
        }
#pragma unroll
        for (int m = 0; m < shape::blocks; m++)
            wgmma_settle(sum[m]); /* what a source has made of them stays here */
        if (threadIdx.x % 128 == 0)
            source->after(i, &tile, own_half());
    }
    if (threadIdx.x % 128 == 0) {
        ptx_bulk_wait_read<0>(); /* who announces stores waits for them */
        if (i > 0)
            source->publish(i - 1, own_half());
    }
}
