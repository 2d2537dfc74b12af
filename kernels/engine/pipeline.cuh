/* A ring of stages in shared memory, between one thread that fills them by TMA (the producer) and
 * warps that read them.
 *
 * Two mbarriers a stage keep them in step: `full` (the bytes that the producer expects have landed)
 * and `empty` (all readers of the stage are done). Nothing here knows what lies in a stage. The
 * barriers lie together, 16 bytes a stage, at an address that is a multiple of 8: all `full`, then
 * all `empty`.
 *
 * The producer and each reader keep a position in the ring, which begins at {}; the phase tells one
 * lap from the next. */
#pragma once

#include "kernels/engine/barrier.cuh"

struct pipeline_position {
    uint32_t stage;
    struct mbar_phase phase;
};

template <int stages> PTX_FN void pipeline_step(struct pipeline_position *at)
{
    if (++at->stage == stages) {
        at->stage = 0;
        at->phase = mbar_phase_next(at->phase);
    }
}

/* Where the i-th filling of the ring stands. */
template <uint32_t stages> PTX_FN struct pipeline_position pipeline_at(uint32_t i)
{
    return {i % stages, mbar_phase_of_ring<stages>(i)};
}

template <int stages> PTX_FN uint32_t pipeline_full(uint32_t barriers, uint32_t stage)
{
    return barriers + stage * 8;
}

template <int stages> PTX_FN uint32_t pipeline_empty(uint32_t barriers, uint32_t stage)
{
    return barriers + stages * 8 + stage * 8;
}

/* One thread, before anybody uses the ring; a barrier of the CTA (of the cluster, where stages are
 * filled across it) follows. readers: arrivals that give a stage back; fillers: that fill it. */
template <int stages>
PTX_FN void pipeline_init(uint32_t barriers, uint32_t readers, uint32_t fillers = 1)
{
    for (int s = 0; s < stages; s++) {
        ptx_mbar_init(pipeline_full<stages>(barriers, s), fillers);
        ptx_mbar_init(pipeline_empty<stages>(barriers, s), readers);
    }
    ptx_mbar_init_fence();
}

/* The producer, before it fills the stage: its readers are done. A stage starts out empty: its
 * first lap waits for the phase before the first. */
template <int stages>
PTX_FN void pipeline_wait_empty(uint32_t barriers, const struct pipeline_position *at,
                                uint64_t limit_ns)
{
    ptx_mbar_wait(pipeline_empty<stages>(barriers, at->stage), mbar_phase_before(at->phase),
                  limit_ns);
}

/* The same, for a producer that says where it stood before it traps (kernels/engine/barrier.cuh). It
 * speaks for the whole ring: a stage whose bytes do not land is not given back either, so readers
 * wait somewhat longer than it does. */
template <int stages>
PTX_FN void pipeline_wait_empty(uint32_t barriers, const struct pipeline_position *at,
                                const struct barrier_watch *watch, uint32_t tile,
                                enum gpu_barrier ring = GPU_BARRIER_EMPTY)
{
    barrier_wait(watch, pipeline_empty<stages>(barriers, at->stage), mbar_phase_before(at->phase),
                 ring, at->stage, tile);
}

/* A reader: the stage's bytes are here. */
template <int stages>
PTX_FN void pipeline_wait_full(uint32_t barriers, const struct pipeline_position *at,
                               uint64_t limit_ns)
{
    ptx_mbar_wait(pipeline_full<stages>(barriers, at->stage), at->phase, limit_ns);
}

/* The calling warp is done with the stage. It says so to the producers of all `cluster` CTAs that
 * fill it. */
template <int stages, int cluster>
PTX_FN void pipeline_release(uint32_t barriers, uint32_t stage, uint32_t lane)
{
    uint32_t empty = pipeline_empty<stages>(barriers, stage);
    if (cluster > 1) {
        if (lane < cluster)
            ptx_mbar_arrive_at(empty, lane);
    } else if (lane == 0) {
        ptx_mbar_arrive(empty);
    }
}

/* The same for a warp whose lanes have read the stage by loads of their own; they have met since.
 */
template <int stages, int cluster>
PTX_FN void pipeline_release_loaded(uint32_t barriers, uint32_t stage, uint32_t lane)
{
    uint32_t empty = pipeline_empty<stages>(barriers, stage);
    if (cluster > 1) {
        if (lane < cluster)
            ptx_mbar_arrive_at_release(empty, lane);
    } else if (lane == 0) {
        ptx_mbar_arrive(empty);
    }
}

/* The same where what they have read by loads is filled by their own CTA alone: its producer is
 * told of these, the others of what wgmma has read. rank: the CTA's in its cluster. */
template <int stages, int cluster>
PTX_FN void pipeline_release_own(uint32_t barriers, uint32_t stage, uint32_t lane, uint32_t rank)
{
    uint32_t empty = pipeline_empty<stages>(barriers, stage);
    if (cluster > 1 && lane < cluster && lane != rank)
        ptx_mbar_arrive_at(empty, lane);
    if (lane == (cluster > 1 ? rank : 0))
        ptx_mbar_arrive(empty);
}

/* The producer, after its last stage: all stages have been given back, nothing that it loaded is
 * read any more. */
template <int stages>
PTX_FN void pipeline_drain(uint32_t barriers, struct pipeline_position *at,
                           const struct barrier_watch *watch, uint32_t tile)
{
    for (int s = 0; s < stages; s++) {
        pipeline_wait_empty<stages>(barriers, at, watch, tile);
        pipeline_step<stages>(at);
    }
}
