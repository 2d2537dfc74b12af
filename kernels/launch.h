/* What a launch on the GPU is given besides its plan. Filled by exec_cuda.c, read by cta.cuh. */
#ifndef MK_KERNELS_LAUNCH_H
#define MK_KERNELS_LAUNCH_H

#include "core/command.h"
#include "core/cta.h"

enum {
    GPU_MAX_CTAS = 1024,
    GPU_TRACK_WARPS = 2, /* tracks of a CTA: the thread that waits and moves data; the first consumer warpgroup */
    GPU_COPY_STAGE_BYTES = 16384,
    GPU_COPY_STAGES = 8,
    GPU_COPY_SHARED_BYTES = GPU_COPY_STAGES * GPU_COPY_STAGE_BYTES + GPU_COPY_STAGES * 8 + 128
};

/* What the GPU tells the host while it runs, in pinned host memory. `stop` goes the other way. */
struct gpu_report {
    uint32_t stop;   /* host: the job has failed, end every wait */
    uint32_t failed; /* GPU: set last; what follows is valid */
    uint32_t cta, role, flag, cause;
    uint64_t seen, wanted, epoch, waited_ns;
    uint64_t progress[GPU_MAX_CTAS]; /* per CTA, as struct mk_comm has it: what it has been waiting for for a while */
};

struct gpu_launch {
    char *heap; /* this rank's */
    char *peers[MK_MAX_LOCAL];
    const char *arguments[MK_SPACES]; /* by enum mk_space; the heap at MK_SPACE_HEAP */
    struct mk_ring *rings[MK_MAX_RINGS]; /* pinned host memory, as the GPU addresses it */
    uint64_t *posted;                    /* per ring: commands posted so far; device memory */
    uint64_t *epoch;                     /* of the plan: launches finished. Device memory */
    uint64_t *left;                      /* of the plan: CTAs that have left, all launches together */
    uint32_t *claim;                     /* of the plan: who reports the failure; 0: nobody yet */
    struct gpu_report *report;
    struct mk_track *tracks; /* GPU_TRACK_WARPS per CTA; NULL: tracing is off */
    struct mk_role_split split;
    uint32_t plan;
    uint32_t local; /* local rank */
    uint64_t timeout_ns;
};

#endif
