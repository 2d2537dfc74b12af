/* Which phase of an mbarrier a wait is for. An mbarrier's phases follow each other, and a wait tells
 * them apart by parity alone: the first has 0, the next 1. A phase is a type of its own, made by the
 * functions below, so that no other number is taken for one. Included by kernels/engine/ptx.cuh. */
#pragma once

#include <stdint.h>

struct mbar_phase {
    uint32_t parity; /* 0 or 1 */

    mbar_phase() = default;
    explicit __device__ constexpr mbar_phase(uint32_t of) : parity(of)
    {
    }
};

/* The phase that the use-th use of a barrier completes, from 0 on. */
PTX_FN struct mbar_phase mbar_phase_of(uint32_t use)
{
    return mbar_phase(use & 1);
}

/* The same of use i of a ring of so many barriers, which take turns. */
template <uint32_t places> PTX_FN struct mbar_phase mbar_phase_of_ring(uint32_t i)
{
    return mbar_phase(i / places & 1);
}

/* The phase before. What a place waits for before its first use, the phase before the first, is
 * complete from the beginning. */
PTX_FN struct mbar_phase mbar_phase_before(struct mbar_phase p)
{
    return mbar_phase(p.parity ^ 1);
}

/* The phase behind. */
PTX_FN struct mbar_phase mbar_phase_next(struct mbar_phase p)
{
    return mbar_phase(p.parity ^ 1);
}
