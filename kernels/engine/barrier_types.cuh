/* Types of what the threads of a block meet at, to which no number converts. Included by kernels/engine/ptx.cuh. */
#pragma once

#include <stdint.h>

/* Which phase of an mbarrier a wait is for. An mbarrier's phases follow each other, and a wait tells
 * them apart by parity alone: the first has 0, the next 1. The functions below make phases. */
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

/* The named barriers of a block, each with a number of its own, so that no two features of a kernel
 * meet at the same one. ptx_bar_sync and ptx_bar_arrive take them. */
enum {
    NAMED_BLOCK,          /* __syncthreads: all threads of the block that have not ended */
    NAMED_WARPGROUP,      /* and the next ones: a warpgroup that multiplies */
    NAMED_WARPGROUPS = 3, /* so many */

    /* Both consumers of engine wgmma, where each multiplies a part of K (gemm_join): the second has
     * given its sums; the first has taken them. */
    NAMED_SUMS_GIVEN = NAMED_WARPGROUP + NAMED_WARPGROUPS,
    NAMED_SUMS_TAKEN,

    NAMED_PRODUCERS, /* the warps of engine mma that copy to the ring */
    NAMED_COPIERS,   /* all threads of engine mma's attention, who all copy */
    NAMED_CONSUMERS, /* all warpgroups of engine wgmma's attention that multiply */
    NAMED_END
};
static_assert(NAMED_END <= 16, "a block has barriers 0 to 15");

struct named_barrier {
    uint32_t id, threads; /* of those who meet there, a multiple of 32 */

    explicit __device__ constexpr named_barrier(uint32_t number, uint32_t count)
        : id(number), threads(count)
    {
    }
};

/* group: of those that multiply, less than NAMED_WARPGROUPS. */
PTX_FN struct named_barrier named_warpgroup(uint32_t group)
{
    return named_barrier(NAMED_WARPGROUP + group, 128);
}

PTX_FN struct named_barrier named_sums_given(void)
{
    return named_barrier(NAMED_SUMS_GIVEN, 256);
}

PTX_FN struct named_barrier named_sums_taken(void)
{
    return named_barrier(NAMED_SUMS_TAKEN, 256);
}

PTX_FN struct named_barrier named_producers(uint32_t warps)
{
    return named_barrier(NAMED_PRODUCERS, warps * 32);
}

PTX_FN struct named_barrier named_copiers(uint32_t threads)
{
    return named_barrier(NAMED_COPIERS, threads);
}

PTX_FN struct named_barrier named_consumers(uint32_t threads)
{
    return named_barrier(NAMED_CONSUMERS, threads);
}
