/* A ring of stages in shared memory between a warp that fills them by cp.async, 16 bytes a lane at
 * a time, and warps that read them by ldmatrix. It is kernels/engine/pipeline.cuh's ring for GPUs where
 * mbarriers count no bytes and a wait does not suspend its thread: `full` counts the copies of 32
 * lanes.
 *
 * ldmatrix and mma.sync are `.aligned`: all lanes of a warp come to them together (PTX ISA, 9.7.14).
 * Lanes part where each polls by itself, and where one acts for its warp; some compilers of PTX leave
 * them apart until somebody brings them together. So that is done where they part: a warp waits by
 * ring_wait_full and gives a stage back by ring_give_back, and another branch of one lane that such
 * an instruction follows ends with __syncwarp. */
#pragma once

#include "kernels/mma/mma.cuh"
#include "kernels/engine/pipeline.cuh"

/* One thread, before anybody uses the ring; a barrier of the CTA follows. fillers: threads that
 * copy to a stage; readers: warps that give it back. */
template <int stages> PTX_FN void ring_init(uint32_t barriers, uint32_t fillers, uint32_t readers)
{
    for (int s = 0; s < stages; s++) {
        ptx_mbar_init(pipeline_full<stages>(barriers, s), fillers);
        ptx_mbar_init(pipeline_empty<stages>(barriers, s), readers);
    }
}

/* The barrier's phase has completed. A wait that outlasts `limit_ns` fails the
 * launch. */
PTX_FN void ring_wait(uint32_t bar, struct mbar_phase phase, uint64_t limit_ns)
{
    if (mma_mbar_try(bar, phase))
        return;
    const uint64_t start = ptx_globaltimer();
    for (uint32_t tries = 1; !mma_mbar_try(bar, phase); tries++)
        if (tries % 256 == 0 && ptx_globaltimer() - start > limit_ns)
            ptx_fail();
}

/* A reader, all lanes of a warp: the stage's copies are here. One thread calls ring_wait. */
template <int stages>
PTX_FN void ring_wait_full(uint32_t barriers, const struct pipeline_position *at, uint64_t limit_ns)
{
    ring_wait(pipeline_full<stages>(barriers, at->stage), at->phase, limit_ns);
    __syncwarp();
}

/* A reader, all lanes of a warp: they have read what was in the stage with this barrier `empty`. */
PTX_FN void ring_give_back(uint32_t empty)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        ptx_mbar_arrive(empty);
    __syncwarp();
}

/* The producer, before it fills the stage: its readers are done. If that lasts longer than it may,
 * it says where (kernels/engine/barrier.cuh). */
template <int stages>
PTX_FN void ring_wait_empty(uint32_t barriers, const struct pipeline_position *at,
                            const struct barrier_watch *watch, uint32_t tile, enum gpu_barrier ring)
{
    const uint32_t bar = pipeline_empty<stages>(barriers, at->stage);
    if (mma_mbar_try(bar, mbar_phase_before(at->phase)))
        return;
    const uint64_t start = ptx_globaltimer();
    for (uint32_t tries = 1; !mma_mbar_try(bar, mbar_phase_before(at->phase)); tries++)
        if (tries % 256 == 0 && ptx_globaltimer() - start > watch->limit_ns)
            barrier_stuck(watch, ring, at->stage, mbar_phase_before(at->phase), tile);
}

/* The producer, after its last stage: nothing that it has copied is read any more. */
template <int stages>
PTX_FN void ring_drain(uint32_t barriers, struct pipeline_position *at,
                       const struct barrier_watch *watch, uint32_t tile, enum gpu_barrier ring)
{
    for (int s = 0; s < stages; s++) {
        ring_wait_empty<stages>(barriers, at, watch, tile, ring);
        pipeline_step<stages>(at);
    }
}

/* Piece p (16 bytes) of row r of a stage lies at p ^ (r % 8) of rows of 128 bytes, and at p ^ (r /
 * 2 % 4) of those of 64: eight rows that follow each other are in all banks then. What a row's
 * number makes of it, in bytes. */
template <uint32_t row_bytes> PTX_FN uint32_t mma_swizzle(uint32_t row)
{
    return row_bytes == 128 ? row % 8 * 16 : row / 2 % 4 * 16;
}
