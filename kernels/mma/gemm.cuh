/*
 * The second GEMM engine: C = A B for bf16 or fp16 inputs, fp32 accumulation, C as they are, as the
 * compute role of a persistent kernel on any GPU of compute capability 8.0 and up. It needs mma.sync, ldmatrix,
 * cp.async and mbarriers that count arrivals; no clusters, setmaxnreg or wgmma, and at most 99 KB of
 * shared memory. From 9.0 on one thread's TMA loads stand for cp.async (mma_bulk).
 *
 * The consumers, warps 0 to 7 (or 3), multiply; the lanes of the warp behind them, the producer,
 * copy tiles of A and B to a ring of stages, 16 bytes each; warps behind that one are free for
 * other work of the block. Two mbarriers a stage keep them in step: `full` (the copies of all 32
 * lanes have landed) and `empty` (all consumer warps are done). Nobody waits for copies but who
 * reads them. By TMA the first of these lanes loads whole tiles: 16 bytes a lane pass the pipes that
 * ldmatrix takes, and cost an H100 a tenth of the rate (docs/FIGURES.md).
 *
 * Where a warp has all columns of a tile (warp_columns == 1) its sums lie as wgmma's do: a
 * warpgroup's registers hold what kernels/hopper/gemm.cuh's would. Where warps share rows, each has
 * so many columns (64) of all 16 rows of its blocks, which follow each other, and reads less of
 * shared memory, which is as busy as the tensor cores on an A100 or H100. What sends sums to peers
 * (kernels/engine/fragments.cuh) has 16 columns of 16 rows at a time: it is the same of both.
 *
 * The engine is a template over a tile shape (struct mma_shape) and a tile source, which is
 * what kernels/engine/engine.cuh says; struct mma_source is what every source begins with.
 *
 * A and B may be e4m3, of which two lie where one element of bf16 would: a stage then has twice as
 * much of K, and all that is counted in elements below is counted in pairs of them
 * (kernels/mma/gemm_promote.cuh).
 *
 * Every wait ends: copies complete, consumers wait for nothing else, and the source's waits are
 * bounded.
 */
#pragma once
#include "kernels/mma/gemm_consume.cuh"
#include "kernels/mma/gemm_produce.cuh"

/* Which warp does what, where it waits and at what it arrives. bulk: tiles come by TMA. */
template <class shape, class tile_source, bool bulk> struct mma_roles {
    static constexpr uint32_t consumers = shape::warps, producers = shape::producers,
                              free = tile_source::auxiliary_warps, full = MBAR_SET(MBAR_FULL),
                              empty = MBAR_SET(MBAR_EMPTY);

    /* role, first warp, warps, {waits for, one thread arrives at, one of each warp, each lane} */
    static constexpr struct warp_table table = {{
        {ENGINE_CONSUMER, 0, 4, 0, warp_also({full, 0, empty}, tile_source::consumer_at[0])},
        {ENGINE_CONSUMER, 4, consumers - 4, 0,
         warp_also({full, 0, empty}, tile_source::consumer_at[1])},
        {ENGINE_PRODUCER, consumers, producers, 0,
         warp_also({empty, bulk ? full : 0, 0, bulk ? 0 : full}, tile_source::producer_at)},
        {ENGINE_FREE, consumers + producers, free},
        tile_source::chosen_roles[0],
        tile_source::chosen_roles[1],
    }};
    static_assert(table.covers(consumers + producers + free) && (table.meets() || consumers == 4),
                  "each warp has a role, and who waits is waited for");
};

template <class shape, class tile_source>
constexpr uint32_t mma_threads = (shape::warps + shape::producers + tile_source::auxiliary_warps) *
                                 32;

/*
 * Runs the CTA's tiles. All mma_threads<shape, tile_source> threads call, once, with
 * shape::shared_bytes of dynamic shared memory; the kernel has __launch_bounds__ of them and
 * shape::ctas. Returns when all stores have been issued.
 */
template <class shape, class tile_source>
PTX_FN void mma_compute(const struct mma_operands *op, tile_source *source, uint8_t *memory)
{
    const uint32_t shared = (ptx_shared(memory) + 1023) & ~1023u, producer = shape::warps * 32;
    const bool bulk = mma_bulk<shape, tile_source>(op);
    if (threadIdx.x == 0) {
        ring_init<shape::stages>(
            shared + shape::barriers_offset,
            bulk ? warp_arrivals<mma_roles<shape, tile_source, true>, MBAR_FULL>()
                 : warp_arrivals<mma_roles<shape, tile_source, false>, MBAR_FULL>(),
            warp_arrivals<mma_roles<shape, tile_source, false>, MBAR_EMPTY>());
        if (bulk)
            ptx_mbar_init_fence();
    }
    __syncthreads();
    /* The shuffle tells the compiler that it is the same in all lanes. */
    const uint32_t warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);
    typedef mma_roles<shape, tile_source, false> roles;
    constexpr uint32_t consumers = roles::table.end_of(ENGINE_CONSUMER),
                       producers = roles::table.end_of(ENGINE_PRODUCER);
    if (warp < consumers)
        mma_consume<shape>(op, source, shared, warp);
    else if (warp < producers)
        mma_produce_as_built<shape>(op, source, shared, threadIdx.x - producer, bulk);
    else /* ENGINE_FREE */
        source->auxiliary_warp(warp - producers);
}
