/* The emulated executor, form (a): a rank is a process, and a thread of it is a small GPU that runs
 * the kernels' own code (sim/hopper). Heap, time and fabric are real: flags of other ranks and of
 * the proxy are words that change by themselves. Memory is not watched: global memory has other
 * processes' hands in it, and the explorer, where nothing has, does it better (world_emulated.c).
 */
#include "backends/wall_clock.h"
#include "core/comm/comm.h"
#include "core/comm/gpus.h"
#include "core/base/sentence.h"
#include "kernels/host/report.h"
#include "sim/emulated.h"
#include "sim/emulated_copy.h"
#include "sim/hopper/hopper.h"
#include "sim/host_heap.h"
#include "sim/launch_queue.h"

#include <errno.h>
#include <stdlib.h>

#define CTAS ((1 + MK_AUXILIARY_WARPS) * EMULATED_SMS)
#define TRACKS (CTAS * GPU_TRACK_WARPS)
#define MACHINE_BYTES ((size_t)64 << 20)

/* Words of the GPU: of each plan, then of the rings, then the two that end waits. Words that
 * different CTAs hammer lie on lines of their own. */
enum { PLAN_WORDS = 64, TAKEN = 16, POSTED = COMM_MOST_PLANS * PLAN_WORDS };
enum { ENDING = POSTED + MK_MAX_RINGS, WORDS = ENDING + 16 };

/* The thread looks around after so many steps of the machine. Threads that poll look at the time
 * as often as this, where nothing else runs and where something does. */
#define STEPS 64
#define TICK_NS 500000ull
#define BUSY_TICK_NS 5000000ull

/* A kernel ends so soon after the job has failed, or it is left where it stands. */
#define LINGER_NS 1500000000ull

struct emulated_executor {
    struct launch_queue queue;
    struct mk_comm *comm;
    struct hopper *hopper;
    uint64_t *words;
    struct gpu_report *report;
    struct mk_track *tracks; /* NULL: tracing is off */
    int left;                /* the machine was left in the middle of a launch, and runs no more */
    uint64_t beats;          /* atomic; as struct mk_comm has it */
};

/* ---- running ---- */

static void exec_emulated_fail_device(struct emulated_executor *x, const struct mk_plan *plan,
                                      const char *why)
{
    struct mk_failure f = {.kind = MK_FAIL_DEVICE,
                           .op = plan->problem.op,
                           .rank = x->comm->topo.rank,
                           .cta = UINT32_MAX,
                           .flag = UINT32_MAX,
                           .chunk = UINT32_MAX,
                           .producer = x->comm->topo.rank};
    snprintf(f.detail, sizeof f.detail, "%.*s", (int)sizeof f.detail - 1, why);
    comm_fail(x->comm, &f);
}

/* What goes on between the kernels' steps. 0: the launch is left where it stands. */
static int exec_emulated_look(struct emulated_executor *x, const struct mk_plan *plan,
                              uint64_t *failed_at)
{
    uint32_t *ending = (uint32_t *)(x->words + ENDING);
    uint64_t now = wall_clock(NULL);
    if (hopper_error(x->hopper)) {
        exec_emulated_fail_device(x, plan, hopper_error(x->hopper));
        return 0;
    }
    if (x->report->failed == 1) {
        struct mk_failure f;
        gpu_report_failure(x->report, plan, plan->problem.op, x->comm->topo.rank, &f);
        x->report->failed = 2; /* taken */
        comm_fail(x->comm, &f);
    }
    if (!*failed_at && comm_failed(x->comm)) {
        *failed_at = now;
        ending[1] = 1;
    }
    __atomic_store_n(&x->beats, hopper_work(x->hopper), __ATOMIC_RELAXED);
    __atomic_fetch_add(&x->queue.turns, 1, __ATOMIC_RELAXED);
    return !launch_queue_stops(&x->queue) && (!*failed_at || now - *failed_at < LINGER_NS);
}

/* Until the kernel has ended. 0: it was left. */
static int exec_emulated_run_kernel(struct emulated_executor *x, const struct mk_plan *plan)
{
    uint64_t failed_at = 0, ticked = wall_clock(NULL);
    uint32_t idle = 0;
    while (hopper_busy(x->hopper, 0)) {
        int steps = 0;
        while (steps < STEPS && hopper_step(x->hopper))
            steps++;
        if (!exec_emulated_look(x, plan, &failed_at))
            return 0;
        idle = steps ? 0 : idle + 1;
        uint64_t now = wall_clock(NULL);
        if (now - ticked < (steps ? BUSY_TICK_NS : TICK_NS)) {
            launch_queue_back_off(idle);
            continue;
        }
        ticked = now;
        if (!hopper_tick(x->hopper) && !steps && !hopper_step(x->hopper) &&
            hopper_busy(x->hopper, 0))
            hopper_deadlock(x->hopper);
    }
    return exec_emulated_look(x, plan, &failed_at);
}

static void exec_emulated_run_launch(struct mk_comm *comm, const struct launch *launch)
{
    struct emulated_executor *x = comm->exec_state;
    const struct mk_plan *plan = launch->plan;
    struct gpu_launch l;
    if (x->left)
        return;
    uint64_t *words = x->words + plan->slot * PLAN_WORDS;
    emulated_launch_begin(&l, plan, comm->heap.base, comm->heap.peers, comm->rings,
                          comm->ring_count, launch->arguments);
    l.split = mk_half_split(&l.split, launch->half);
    l.left = words;
    l.taken = words + TAKEN;
    l.posted = x->words + POSTED;
    l.ending = (uint32_t *)(x->words + ENDING);
    l.report = x->report;
    l.tracks = x->comm->unrecorded ? NULL : x->tracks;
    hopper_use(x->hopper, 0);
    int result = emulated_op_of(plan->problem.op)->launch(plan, &l, NULL);
    if (result)
        exec_emulated_fail_device(x, plan,
                                  result == -EINVAL ? "a pointer that the TMA unit cannot take"
                                                    : "the kernel could not be launched");
    else if (!exec_emulated_run_kernel(x, plan))
        x->left = 1;
}

static void exec_emulated_fail_silent(struct mk_comm *comm, const struct launch *launch,
                                      uint64_t silent_ns)
{
    exec_emulated_fail_device(comm->exec_state, launch->plan,
                              "the kernel's code does not come back");
}

/* ---- life ---- */

static uint32_t exec_emulated_sms(struct mk_comm *comm)
{
    return EMULATED_SMS;
}

static uint32_t exec_emulated_block_shared(struct mk_comm *comm)
{
    return EMULATED_BLOCK_SHARED;
}

/* As kernels write them: their times are this host's. */
static int exec_emulated_make_tracks(struct emulated_executor *x)
{
    uint32_t capacity = x->comm->config.trace_events;
    if (!capacity)
        return 0;
    x->tracks = calloc(TRACKS, sizeof *x->tracks);
    for (uint32_t i = 0; x->tracks && i < TRACKS; i++) {
        x->tracks[i] = (struct mk_track){.events = malloc(capacity * sizeof(struct mk_event)),
                                         .capacity = capacity};
        if (!x->tracks[i].events)
            return -ENOMEM;
    }
    x->comm->tracks = x->tracks;
    x->comm->track_count = x->tracks ? TRACKS : 0;
    return x->tracks ? 0 : -ENOMEM;
}

static int exec_emulated_make_machine(struct emulated_executor *x)
{
    const struct hopper_config config = {.ranks = 1,
                                         .sms = EMULATED_SMS,
                                         .spare = EMULATED_SMS,
                                         .seed = x->comm->topo.rank,
                                         .clock = wall_clock,
                                         .first_rank = x->comm->topo.rank,
                                         .calm = 1,
                                         .memory = MACHINE_BYTES};
    int result = hopper_create(&x->hopper, &config);
    hopper_use(NULL, 0); /* it belongs to the executor's thread */
    if (!result)
        x->words = hopper_memory(x->hopper, WORDS * sizeof *x->words);
    x->report = aligned_alloc(MK_CACHE_LINE, mk_round_up(sizeof *x->report, MK_CACHE_LINE));
    if (result || !x->words || !x->report)
        return -ENOMEM;
    memset(x->report, 0, sizeof *x->report);
    x->comm->progress = x->report->progress;
    x->comm->progress_count = CTAS;
    _Static_assert(CTAS <= GPU_MAX_CTAS, "a word for each CTA");
    return 0;
}

/* MKERNEL_P2P=off: no other GPU and no NIC reaches this one's memory, so each is a node of its own,
 * and what it sends is staged. 0 or -errno with a sentence. */
static int exec_emulated_choose_memory(struct mk_comm *comm)
{
    int wanted = gpus_peers_wanted(comm->error, sizeof comm->error);
    if (wanted)
        return wanted < 0 ? wanted : 0;
    if (comm->topo.gpus > 1)
        return mk_fail(
            -ENODEV, comm->error, sizeof comm->error,
            "MKERNEL_P2P=off: emulated GPUs do not reach each other's memory either: each is "
            "a node of its own, as --nodes %u --gpus 1 has it",
            mk_world(&comm->topo));
    comm->heap.memory = MK_MEMORY_CUDA;
    mr_provide(MK_MEMORY_CUDA, &emulated_copy_ops);
    return 0;
}

static int exec_emulated_open(struct mk_comm *comm)
{
    const struct launch_queue queue = {.run = exec_emulated_run_launch,
                                       .silent = exec_emulated_fail_silent,
                                       .linger_ns = LINGER_NS};
    struct emulated_executor *x = launch_queue_open(comm, sizeof *x, &queue);
    if (!x)
        return -ENOMEM;
    snprintf(comm->device, sizeof comm->device, "emulated");
    x->comm = comm;
    comm->exec_beats = &x->beats;
    comm->track_warps = GPU_TRACK_WARPS;
    int result = exec_emulated_choose_memory(comm);
    result = result ? result : host_heap_open(comm);
    if (result)
        return result;
    result = exec_emulated_make_machine(x);
    result = result ? result : host_rings_open(comm);
    result = result ? result : exec_emulated_make_tracks(x);
    result = result ? result : launch_queue_start(&x->queue);
    if (result)
        snprintf(comm->error, sizeof comm->error, "the emulated GPU can't start: %s",
                 strerror(-result));
    return result;
}

static int exec_emulated_plan(struct mk_comm *comm, struct mk_plan *plan)
{
    struct emulated_executor *x = comm->exec_state;
    const struct emulated_op *op = emulated_op_of(plan->problem.op);
    if (!op)
        return mk_fail(-EINVAL, comm->error, sizeof comm->error,
                       "%s has no GPU kernel that could be emulated; --exec host runs it",
                       plan_op_name(plan->problem.op));
    int result = launch_queue_wait(&x->queue);
    if (!result) {
        hopper_use(x->hopper, 0);
        result = op->prepare(plan, comm->error, sizeof comm->error);
        hopper_use(NULL, 0);
    }
    return result;
}

static int exec_emulated_unplan(struct mk_comm *comm, struct mk_plan *plan)
{
    struct emulated_executor *x = comm->exec_state;
    launch_queue_unplan(&x->queue, plan);
    memset(x->words + plan->slot * PLAN_WORDS, 0, PLAN_WORDS * sizeof *x->words);
    host_heap_clear(comm, plan);
    return 0;
}

static int exec_emulated_posted(struct mk_comm *comm, uint64_t posted[MK_MAX_RINGS])
{
    const struct emulated_executor *x = comm->exec_state;
    memcpy(posted, x->words + POSTED, MK_MAX_RINGS * sizeof *posted);
    return 0;
}

static void exec_emulated_close(struct mk_comm *comm)
{
    struct emulated_executor *x = comm->exec_state;
    if (!x || launch_queue_stop(&x->queue))
        return;
    host_rings_close(comm);
    launch_queue_forget(comm);
    hopper_destroy(x->hopper);
    for (uint32_t i = 0; x->tracks && i < TRACKS; i++)
        free(x->tracks[i].events);
    free(x->tracks);
    free(x->report);
    host_heap_close(comm);
    free(x);
}

static int exec_emulated_empty_tracks(struct mk_comm *comm)
{
    struct emulated_executor *x = comm->exec_state;
    for (uint32_t i = 0; x->tracks && i < TRACKS; i++) {
        x->tracks[i].count = 0;
        x->tracks[i].dropped = 0;
    }
    return 0;
}

const struct mk_exec_ops exec_emulated = {
    .name = "emulated",
    .sms = exec_emulated_sms,
    .block_shared = exec_emulated_block_shared,
    .open = exec_emulated_open,
    .plan = exec_emulated_plan,
    .unplan = exec_emulated_unplan,
    .launch = launch_queue_launch,
    .wait = launch_queue_end,
    .posted = exec_emulated_posted,
    .left = launch_queue_left,
    .close = exec_emulated_close,
    .forget = exec_emulated_empty_tracks,
};
