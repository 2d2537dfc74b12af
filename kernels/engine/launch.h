/* What a launch on the GPU is given besides its plan. Filled by exec_cuda.c, read by cta.cuh. */
#pragma once

#include "core/cta/command.h"
#include "core/cta/cta.h"

enum {
    GPU_MAX_CTAS = 1024,
    /* Tracks of a CTA: the thread that waits and moves data; the first consumer warpgroup; a warp
     * that sends what consumers leave to it. */
    GPU_TRACK_OWN = 0,
    GPU_TRACK_TILES = 1,
    GPU_TRACK_SENDER = 2,
    GPU_TRACK_WARPS = 3,
    GPU_COPY_STAGE_BYTES = 16384,
    GPU_COPY_STAGES = 8, /* of a thread that copies */
    GPU_COPY_SHARED_BYTES = GPU_COPY_STAGES * (GPU_COPY_STAGE_BYTES + 8) + 128
};

/* Barriers in a CTA's shared memory that its threads wait at. */
enum gpu_barrier {
    GPU_BARRIER_NONE,
    /* of a stage of the engine's ring: its bytes have landed, and its readers are done */
    GPU_BARRIER_EMPTY,
    GPU_BARRIER_COPY, /* of a stage of a thread's copies: its bytes have landed */
    /* of a place of the outbox: a part of a tile is in it, and the one before it is gone */
    GPU_BARRIER_THERE,
    /* of the attention engine's rings of K and of V, and of its place for queries: as EMPTY */
    GPU_BARRIER_KEYS,
    GPU_BARRIER_VALUES,
    GPU_BARRIER_QUERIES,
    GPU_BARRIERS
};

/* Where a thread stood when a barrier had outlasted its limit, before it trapped: one 16-byte
 * store, so that of several threads one is told whole. barrier is GPU_BARRIER_NONE where no
 * thread did. */
struct gpu_stuck {
    uint8_t barrier, stage, parity, warp; /* stage: or place; warp: of the block */
    uint32_t block;
    uint32_t tile; /* how many tiles (of a copy: pieces) of this block came before */
};

MK_PURE void gpu_stuck_pack(const struct gpu_stuck *s, uint64_t *low, uint64_t *high)
{
    *low = s->barrier | (uint64_t)s->stage << 8 | (uint64_t)s->parity << 16 |
           (uint64_t)s->warp << 24 | (uint64_t)s->block << 32;
    *high = s->tile;
}

/* How long a CTA that waits for a word of host memory leaves it alone before it looks again, ns: as
 * long as it did last time and once more, but all `count` CTAs that post look once in 4 us together
 * at most. */
MK_PURE uint32_t gpu_host_pause(uint32_t last_ns, uint32_t count)
{
    uint32_t most = 4096 * (count ? count : 1);
    return !last_ns ? 512 : last_ns * 2 < most ? last_ns * 2 : most;
}

/* A CTA's wait that has lasted for a while: what it saw when this was noted, or when it ended. */
struct gpu_wait {
    uint64_t start, seen, wanted; /* start: by the GPU's clock */
    uint32_t role;
};

/* What the GPU tells the host while it runs, in pinned host memory: written by the GPU, never
 * polled by it (a hundred CTAs that look at host memory now and then keep PCIe so busy that a
 * system fence takes 130 us; measured on 8 H200s). */
struct gpu_report {
    uint64_t stuck[2]; /* a struct gpu_stuck, packed; first, so that it lies at a multiple of 16 */
    uint32_t failed;   /* set last; what follows is valid */
    uint32_t cta, role, flag, cause;
    uint64_t seen, wanted, epoch, waited_ns;
    uint64_t start; /* of that wait, by the GPU's clock */
    uint32_t one;   /* the host's: pinned, so that the copy engine takes it past a running kernel */
    /* per CTA, as struct mk_comm has it: a wait that has lasted for a while */
    uint64_t progress[GPU_MAX_CTAS];
    struct gpu_wait waits[GPU_MAX_CTAS]; /* of a flag, those that `progress` shows */
};

struct gpu_launch {
    char *heap; /* this rank's */
    char *peers[MK_MAX_LOCAL];
    const char *arguments[MK_SPACES];    /* by enum mk_space; the heap at MK_SPACE_HEAP */
    struct mk_ring *rings[MK_MAX_RINGS]; /* pinned host memory, as the GPU addresses it */
    uint32_t ring_capacity;              /* of each, so that no kernel reads it from the host */
    uint64_t *posted;                    /* per ring: commands posted so far; device memory */
    uint64_t *left; /* of the plan: blocks that have left, all launches together; device memory */
    /* of the plan: tiles asked for, all launches together, where CTAs take them in turn */
    uint64_t *taken;
    uint32_t *ending; /* device memory, two words. First: a CTA has reported a failure; second: the
                       * host wants an end. Either ends every wait */
    struct gpu_report *report;
    struct mk_track *tracks; /* GPU_TRACK_WARPS per CTA; NULL: tracing is off */
    struct mk_role_split split;
    uint32_t plan, local; /* its number; which of its node's ranks this one is */
    uint64_t timeout_ns;  /* of a wait for a flag */
    uint64_t
        longest_ns; /* that such waits can take, one behind the other: for a flag of each rank */
};

/* CTAs are numbered role by role; thread blocks of compute CTAs may hold others too. inter_reduce
 * comes last, so that where it is co-resident no other number changes. */
MK_PURE uint32_t gpu_cta_of_block(const struct mk_role_split *split, uint32_t block)
{
    uint32_t compute = split->ctas[MK_COMPUTE];
    return block < compute ? block : block + split->intra_comm_warps * compute;
}

/* Number of auxiliary `auxiliary` of `role` in the thread block of compute CTA `block`. */
MK_PURE uint32_t gpu_auxiliary_of_block(const struct mk_role_split *split, enum mk_role role,
                                        uint32_t auxiliary, uint32_t block)
{
    uint32_t number = auxiliary * split->ctas[MK_COMPUTE] + block;
    for (int i = 0; i < (int)role; i++)
        number += split->ctas[i];
    return number;
}
