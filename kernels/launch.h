/* What a launch on the GPU is given besides its plan. Filled by exec_cuda.c, read by cta.cuh. */
#ifndef MK_KERNELS_LAUNCH_H
#define MK_KERNELS_LAUNCH_H

#include "core/command.h"
#include "core/cta.h"

enum {
    GPU_MAX_CTAS = 1024,
    GPU_TRACK_WARPS =
        2, /* tracks of a CTA: the thread that waits and moves data; the first consumer warpgroup */
    GPU_COPY_STAGE_BYTES = 16384,
    GPU_COPY_STAGES = 8, /* of a thread that copies */
    GPU_COPY_SHARED_BYTES = GPU_COPY_STAGES * (GPU_COPY_STAGE_BYTES + 8) + 128
};

/* What the GPU tells the host while it runs, in pinned host memory: written by the GPU, never polled by it (a hundred CTAs
 * that look at host memory now and then keep PCIe so busy that a system fence takes 130 us; measured on 8 H200s). */
struct gpu_report {
    uint32_t failed; /* set last; what follows is valid */
    uint32_t cta, role, flag, cause;
    uint64_t seen, wanted, epoch, waited_ns;
    uint32_t one; /* the host's: pinned, so that the copy engine takes it past a running kernel */
    uint64_t progress
        [GPU_MAX_CTAS]; /* per CTA, as struct mk_comm has it: what it has been waiting for for a while */
};

struct gpu_launch {
    char *heap; /* this rank's */
    char *peers[MK_MAX_LOCAL];
    const char *arguments[MK_SPACES];    /* by enum mk_space; the heap at MK_SPACE_HEAP */
    struct mk_ring *rings[MK_MAX_RINGS]; /* pinned host memory, as the GPU addresses it */
    uint32_t ring_capacity;              /* of each, so that no kernel reads it from the host */
    uint64_t *posted;                    /* per ring: commands posted so far; device memory */
    uint64_t *epoch;                     /* of the plan: launches finished. Device memory */
    uint64_t *left;                      /* of the plan: CTAs that have left, all launches together */
    uint32_t *ending; /* device memory, two words. First: a CTA has reported a failure; second: the
                                          * host wants an end. Either ends every wait */
    struct gpu_report *report;
    struct mk_track *tracks; /* GPU_TRACK_WARPS per CTA; NULL: tracing is off */
    struct mk_role_split split;
    uint32_t plan;
    uint64_t timeout_ns;
};

/* CTAs are numbered role by role; thread blocks of compute CTAs may hold others too. inter_reduce comes last, so that where it
 * rides no other number changes. */
MK_PURE uint32_t gpu_cta_of_block(const struct mk_role_split *split, uint32_t block)
{
    uint32_t compute = split->ctas[MK_COMPUTE];
    return block < compute ? block : block + mk_role_rides(split, MK_INTRA_COMM) * compute;
}

/* Number of rider `rider` of `role` in the thread block of compute CTA `block`. */
MK_PURE uint32_t gpu_rider_of_block(const struct mk_role_split *split, enum mk_role role, uint32_t rider,
                                    uint32_t block)
{
    uint32_t number = rider * split->ctas[MK_COMPUTE] + block;
    for (int i = 0; i < (int)role; i++)
        number += split->ctas[i];
    return number;
}

#endif
