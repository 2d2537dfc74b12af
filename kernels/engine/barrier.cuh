/* Waits at barriers in shared memory. What such a wait is for always comes unless the kernel has a
 * bug (flags of other GPUs, which may be late, are waited for elsewhere and with a sentence of
 * their own). So a wait that outlasts its limit says where it stood, in a word that the host reads,
 * and traps: the launch fails instead of hanging. */
#pragma once

#include "kernels/engine/launch.h"
#include "kernels/engine/ptx.cuh"

/* A kernel's parameters have it, so that a wait keeps nothing in registers for the case that it
 * fails. */
struct barrier_watch {
    uint64_t *stuck; /* of struct gpu_report, as the GPU addresses it; NULL: nobody reads it */
    uint64_t limit_ns;
};

PTX_FN void barrier_stuck(const struct barrier_watch *watch, enum gpu_barrier barrier,
                          uint32_t stage, struct mbar_phase phase, uint32_t tile)
{
    if (watch->stuck) {
        struct gpu_stuck s;
        uint64_t low, high;
        s.barrier = barrier;
        s.stage = stage;
        s.parity = phase.parity;
        s.warp = threadIdx.x / 32;
        s.block = blockIdx.x;
        s.tile = tile;
        gpu_stuck_pack(&s, &low, &high);
        ptx_store_16(watch->stuck, low, high);
        __threadfence_system();
    }
    ptx_fail();
}

/* Waits for the phase. `stage` and `tile` are what struct gpu_stuck has. The
 * launches before this one, which it may have begun behind, have bounds of their own and are not
 * counted. */
PTX_FN void barrier_wait(const struct barrier_watch *watch, uint32_t bar, struct mbar_phase phase,
                         enum gpu_barrier barrier, uint32_t stage, uint32_t tile)
{
    if (ptx_mbar_try(bar, phase))
        return;
    ptx_await_launches();
    uint64_t start = ptx_globaltimer();
    for (uint32_t tries = 1; !ptx_mbar_try(bar, phase); tries++)
        if (tries % 64 == 0 && ptx_globaltimer() - start > watch->limit_ns)
            barrier_stuck(watch, barrier, stage, phase, tile);
}
