/* Inside mkernel: the communicator, and the two interfaces that its parts plug into: an executor
 * (sim/, kernels/) and the network (backends/). core knows them only by these tables. */
#pragma once

#include "core/comm/bootstrap.h"
#include "core/cta/command.h"
#include "core/cta/halves.h"
#include "core/mkernel.h"
#include "core/base/ranges.h"
#include "core/plan/tuning.h"

#include <pthread.h>

enum mk_memory { MK_MEMORY_HOST, MK_MEMORY_CUDA };

/* The symmetric heap: flags first, data behind them, one allocation, all 0 when it is opened.
 * Offsets count from `base`; flag i lies at 8 * i. */
struct mk_heap {
    enum mk_memory memory;
    void *base;
    void *peers[MK_MAX_LOCAL]; /* the heaps of this node's ranks as mapped here, own included */
    uint64_t flag_bytes;       /* data begins here; a multiple of 4096 */
    uint64_t bytes;            /* in all */
    uint64_t
        mapped[MK_MAX_LOCAL]; /* of GPU memory by VMM: bytes at each of `peers`; 0: by cudaIpc */
};

/* Plans that a communicator can have at one time: the room of the tables by plan->slot. */
#define COMM_MOST_PLANS 4096u
/* ... and that it makes in all: their numbers are in commands (core/cta/command.h). */
#define COMM_MOST_PLAN_IDS (((uint32_t)1 << 24) - 1)

struct mk_comm {
    struct mk_config config; /* with defaults filled in */
    uint32_t stage;          /* how far opening came */
    struct mk_topo topo;
    struct bootstrap *bootstrap;
    struct mk_heap heap;
    struct ranges free_bytes, free_flags; /* of the heap, by offset and by number */
    /* host memory; ring i belongs to the i-th CTA that may post */
    struct mk_ring *rings[MK_MAX_RINGS];
    uint32_t ring_count;
    const struct mk_exec_ops *exec;
    void *exec_state;
    char device[64]; /* the executor's device, as tuned plans name it; set by its open */
    struct tuning_table tuning;
    const struct mk_net_ops *net; /* NULL on one node */
    void *net_state;
    /* by plan->slot; NULL: there is none. All slots in use are below plan_count. The proxy's thread
     * reads them, under the lock. */
    struct mk_plan *plans[COMM_MOST_PLANS];
    uint32_t plan_count, last_plan_id;
    pthread_mutex_t plans_lock;
    /* after mk_wait: grid CTA i at i (two per CTA on the GPU: see track_warps) */
    struct mk_track *tracks;
    uint32_t track_count;
    uint32_t track_warps; /* tracks per CTA */
    /* ns that times in tracks may be off, on this host's CLOCK_MONOTONIC; 0 on the host */
    uint64_t gpu_clock_residual;
    /* One word per grid CTA, in host memory, which the CTA keeps up to date and any thread may read
     * with plans_lock held: epoch << 32 | mk_event_what of what it does now (low half 0: nothing).
     * NULL where the executor keeps none. */
    uint64_t *progress;
    uint32_t progress_count;
    /* Grow with the work of this rank itself (tiles, copies; parts of a trace), not while it waits.
     * Atomic, relaxed; any thread may read them. The first is the executor's, NULL where it keeps
     * none. */
    const uint64_t *exec_beats;
    uint64_t beats;
    struct mk_message_log messages;
    int unrecorded; /* 1: launches leave no events, though there are tracks. Said between launches;
                     * a CUDA graph goes on as it was captured */
    void *trace_state; /* the tracer's, between mk_trace_begin and mk_trace_end; from malloc */
    uint32_t calling;  /* atomic: a collective call that this rank is in (comm_calls) */
    struct comm_watch *watch;  /* comm_watch.c; NULL: of one rank */
    struct mk_failure failure; /* this rank's own copy, once the job has failed */
    char error[512];
};

/* An executor. All functions return 0 or -errno with comm->error set. `close` is called after every
 * `open`, one that failed included, and after the network's; once the job has failed it must not
 * wait for other ranks. */
struct mk_exec_ops {
    const char *name;
    uint32_t (*sms)(struct mk_comm *comm); /* 0: no limit */
    /* of those, that a plan may have since ranks share a device; NULL, or 0: all */
    uint32_t (*share)(struct mk_comm *comm);
    /* bytes of shared memory that a block of any rank may have; NULL, or 0: not known */
    uint32_t (*block_shared)(struct mk_comm *comm);
    /* that its device is best on; NULL: wgmma, where there are engines */
    enum mk_engine (*engine)(struct mk_comm *comm);
    int (*open)(struct mk_comm *comm); /* allocates heap (heap.flag_bytes, .bytes are set) and
                                        * rings, maps the peers     (uses the bootstrap) */
    /* once per plan, before its first launch; -EINVAL or -ENOSPC: this executor cannot run it */
    int (*plan)(struct mk_comm *comm, struct mk_plan *plan);
    /* The plan goes, and no launch of any rank uses it any more: frees what `plan` made, and clears
     * the plan's flags and its part of this rank's heap. */
    int (*unplan)(struct mk_comm *comm, struct mk_plan *plan);
    /* of a plan with halves (op_halves) one of these, in turn; of others MK_WHOLE */
    int (*launch)(struct mk_comm *comm, struct mk_plan *plan, enum mk_half half,
                  void *const arguments[MK_SPACES - 1], void *stream);
    /* Writes into this rank's heap, with no launch running; NULL: it is host memory */
    int (*store)(struct mk_comm *comm, uint64_t offset, const void *from, uint64_t bytes);
    /* for the launches of this communicator, on whatever streams */
    int (*wait)(struct mk_comm *comm);
    /* for what is on this stream; NULL: there are no streams, `wait` */
    int (*wait_stream)(struct mk_comm *comm, void *stream);
    /* Commands that ended launches have posted, by ring; NULL: those of the rings themselves. 0 or
     * -errno with a sentence */
    int (*posted)(struct mk_comm *comm, uint64_t posted[MK_MAX_RINGS]);
    void (*close)(struct mk_comm *comm);
    /* By slot, a number for each plan that grows as launches of it end on this rank, alike on all
     * ranks. comm_watch.c's thread calls; NULL, or not 0: not known */
    int (*left)(struct mk_comm *comm, uint64_t left[COMM_MOST_PLANS]);
    /* The job has failed: ends the waits of launches that run. comm_watch.c's thread calls; NULL:
     * they see it themselves */
    void (*end_waits)(struct mk_comm *comm);
    /* empties the tracks, when all launches have ended; NULL: it keeps none */
    int (*forget)(struct mk_comm *comm);
};

/* The network of one rank: NIC, fabric and proxy. */
struct mk_net_ops {
    /* registers the heap, connects the rails (uses the bootstrap), starts the proxy */
    int (*open)(struct mk_comm *comm);
    void (*close)(struct mk_comm *comm); /* stops the proxy, closes the NIC */
};

extern const struct mk_exec_ops exec_host; /* sim/ */
#ifdef MK_HAVE_EMULATION
extern const struct mk_exec_ops exec_emulated; /* sim/ */
#endif
#ifdef MK_HAVE_CUDA
extern const struct mk_exec_ops exec_cuda; /* kernels/ */
#endif
extern const struct mk_net_ops net_fabric; /* backends/ */

struct agree_field;

/* mk_comm_open of ranks that must be alike in more than that: in `count` fields (at most
 * COMM_FIELDS) of the caller's, which are compared first, so that a difference is told by its own
 * name and not by its consequences. */
#define COMM_FIELDS 64u
int comm_open_alike(struct mk_comm **out, const struct mk_config *config,
                    const struct agree_field *fields, uint32_t count);

/* Opens with the given parts; mk_comm_open gives those of this build. */
int comm_open_with(struct mk_comm **out, const struct mk_config *config,
                   const struct mk_exec_ops *exec, const struct mk_net_ops *net);

/* Any part: the job has failed. First come, first kept; goes to every rank. Once it has failed
 * (comm_failed, though this part saw nothing), a part that waits reports its wait with a TIMEOUT:
 * the job's sentence takes in the best, and names the rank that hangs. Any thread. */
void comm_fail(struct mk_comm *comm, const struct mk_failure *failure);

/* Any part, in its wait loops: has the job failed, here or elsewhere? Cheap. Any thread. */
int comm_failed(struct mk_comm *comm);

/* Any part, in loops that wait on the program's own thread, without a lock: whether the program
 * wants an end (mk_set_interrupt). Then the job has failed. */
int comm_interrupted(struct mk_comm *comm);

/* mk_plan_create of a problem; exec, sms and topo are filled in here. */
int comm_make_plan(struct mk_plan **out, struct mk_comm *comm, const struct mk_problem *problem);

/* Fills in what the plan that a command names knows of a failure: op, and where failure->flag is
 * not UINT32_MAX, chunk and what. Nothing, where there is no such plan. Any thread. */
void comm_describe(struct mk_comm *comm, uint32_t plan_id, struct mk_failure *failure);
