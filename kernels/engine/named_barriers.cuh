/* The named barriers of a block, each with a number of its own, so that no two features of a kernel
 * meet at the same one. Included by kernels/engine/ptx.cuh, whose ptx_bar_sync and ptx_bar_arrive take them. */
#pragma once

#include <stdint.h>

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
