/* The emulated executor, form (a): a rank is a process, and a thread of it is a small GPU that runs
 * the kernels' own code (sim/hopper). Heap, time and fabric are real: flags of other ranks and of
 * the proxy are words that change by themselves. Memory is not watched: global memory has other
 * processes' hands in it, and the explorer, where nothing has, does it better (world_emulated.c).
 */
#include "backends/wall_clock.h"
#include "core/comm.h"
#include "kernels/report.h"
#include "sim/emulated.h"
#include "sim/hopper/hopper.h"
#include "sim/host_heap.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>

#ifdef MK_HAVE_EMULATION

#define QUEUE 256 /* launches that may be asked for before one is done */
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

/* A kernel ends so soon after the job has failed, or it is left where it stands. Whoever waits
 * looks around this often, and allows kernel code that much beyond the timeout. */
#define LINGER_NS 1500000000ull
#define LOOK_NS 50000000ull
#define BEYOND_NS 300000000ull

struct launch {
    struct mk_plan *plan;
    void *arguments[MK_SPACES - 1];
};

struct emulated_executor {
    struct mk_comm *comm;
    struct hopper *hopper;
    uint64_t *words;
    struct gpu_report *report;
    struct mk_track *tracks; /* NULL: tracing is off */
    pthread_t thread;
    int threaded;
    pthread_mutex_t lock;
    pthread_cond_t asked, done;
    struct launch queue[QUEUE];
    uint64_t head, tail; /* launches asked for, launches done */
    int stop;            /* atomic; the communicator closes */
    int ended;           /* the thread has */
    int left;            /* the machine was left in the middle of a launch, and runs no more */
    uint64_t beats;      /* atomic; as struct mk_comm has it */
    uint64_t turns;      /* atomic; grows while the thread comes back from the kernels' code */
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
    __atomic_fetch_add(&x->turns, 1, __ATOMIC_RELAXED);
    return !__atomic_load_n(&x->stop, __ATOMIC_RELAXED) &&
           (!*failed_at || now - *failed_at < LINGER_NS);
}

/* Nothing can run: spin in case that lasts nanoseconds, then give the core to another rank, then
 * sleep. */
static void exec_emulated_back_off(uint32_t idle)
{
    if (idle < 16)
        return;
    if (idle < 48) {
        sched_yield();
        return;
    }
    struct timespec t = {0, idle < 256 ? 10000 : 100000};
    nanosleep(&t, NULL);
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
            exec_emulated_back_off(idle);
            continue;
        }
        ticked = now;
        if (!hopper_tick(x->hopper) && !steps && !hopper_step(x->hopper) &&
            hopper_busy(x->hopper, 0))
            hopper_deadlock(x->hopper);
    }
    return exec_emulated_look(x, plan, &failed_at);
}

static void exec_emulated_run_launch(struct emulated_executor *x, const struct launch *launch)
{
    const struct mk_plan *plan = launch->plan;
    struct gpu_launch l;
    uint64_t *words = x->words + plan->slot * PLAN_WORDS;
    emulated_launch_begin(&l, plan, x->comm->heap.base, x->comm->heap.peers, x->comm->rings,
                          x->comm->ring_count, launch->arguments);
    l.left = words;
    l.taken = words + TAKEN;
    l.posted = x->words + POSTED;
    l.ending = (uint32_t *)(x->words + ENDING);
    l.report = x->report;
    l.tracks = x->tracks;
    hopper_use(x->hopper, 0);
    int result = emulated_op_of(plan->problem.op)->launch(plan, &l, NULL);
    if (result)
        exec_emulated_fail_device(x, plan,
                                  result == -EINVAL ? "a pointer that the TMA unit cannot take"
                                                    : "the kernel could not be launched");
    else if (!exec_emulated_run_kernel(x, plan))
        x->left = 1;
}

static void *exec_emulated_main(void *argument)
{
    struct emulated_executor *x = argument;
    pthread_mutex_lock(&x->lock);
    for (;;) {
        while (x->head == x->tail && !x->stop)
            pthread_cond_wait(&x->asked, &x->lock);
        if (x->stop)
            break;
        struct launch launch = x->queue[x->tail % QUEUE];
        pthread_mutex_unlock(&x->lock);
        if (!x->left && !comm_failed(x->comm))
            exec_emulated_run_launch(x, &launch);
        pthread_mutex_lock(&x->lock);
        x->tail++;
        pthread_cond_broadcast(&x->done);
    }
    x->ended = 1;
    pthread_cond_broadcast(&x->done);
    pthread_mutex_unlock(&x->lock);
    return NULL;
}

/* With the lock held: waits until at most `left` launches are left or, with left UINT64_MAX, the
 * thread has ended. 0, or -ETIMEDOUT where kernel code does not come back. */
static int exec_emulated_wait_until(struct emulated_executor *x, uint64_t left)
{
    uint64_t moved_at = wall_clock(NULL), seen = __atomic_load_n(&x->turns, __ATOMIC_RELAXED);
    while (left == UINT64_MAX ? !x->ended : x->head - x->tail > left) {
        uint64_t until = wall_clock(NULL) + LOOK_NS;
        mk_cond_wait_until(&x->done, &x->lock, until);
        uint64_t now = wall_clock(NULL), turns = __atomic_load_n(&x->turns, __ATOMIC_RELAXED);
        if (turns != seen)
            moved_at = now;
        seen = turns;
        uint64_t most = comm_failed(x->comm) ? LINGER_NS : x->comm->config.timeout_ns + BEYOND_NS;
        if (now - moved_at <= most)
            continue;
        if (left != UINT64_MAX && !comm_failed(x->comm))
            exec_emulated_fail_device(x, x->queue[x->tail % QUEUE].plan,
                                      "the kernel's code does not come back");
        return -ETIMEDOUT;
    }
    return 0;
}

/* ---- life ---- */

static uint32_t exec_emulated_sms(struct mk_comm *comm)
{
    return EMULATED_SMS;
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

static int exec_emulated_open(struct mk_comm *comm)
{
    struct emulated_executor *x = calloc(1, sizeof *x);
    if (!x) {
        snprintf(comm->error, sizeof comm->error, "no memory for the emulated GPU");
        return -ENOMEM;
    }
    comm->exec_state = x;
    snprintf(comm->device, sizeof comm->device, "emulated");
    x->comm = comm;
    pthread_mutex_init(&x->lock, NULL);
    pthread_cond_init(&x->asked, NULL);
    mk_cond_init(&x->done);
    comm->exec_beats = &x->beats;
    comm->track_warps = GPU_TRACK_WARPS;
    int result = host_heap_open(comm);
    if (result)
        return result;
    result = exec_emulated_make_machine(x);
    if (!result)
        result = host_rings_open(comm);
    if (!result)
        result = exec_emulated_make_tracks(x);
    if (!result) {
        result = -pthread_create(&x->thread, NULL, exec_emulated_main, x);
        x->threaded = !result;
    }
    if (result)
        snprintf(comm->error, sizeof comm->error, "the emulated GPU can't start: %s",
                 strerror(-result));
    return result;
}

static int exec_emulated_plan(struct mk_comm *comm, struct mk_plan *plan)
{
    struct emulated_executor *x = comm->exec_state;
    const struct emulated_op *op = emulated_op_of(plan->problem.op);
    if (!op) {
        snprintf(comm->error, sizeof comm->error,
                 "%s has no GPU kernel that could be emulated; --exec host runs it",
                 plan_op_name(plan->problem.op));
        return -EINVAL;
    }
    pthread_mutex_lock(&x->lock);
    int result = exec_emulated_wait_until(x, 0);
    if (!result) {
        hopper_use(x->hopper, 0);
        result = op->prepare(plan, comm->error, sizeof comm->error);
        hopper_use(NULL, 0);
    }
    pthread_mutex_unlock(&x->lock);
    return result;
}

static int exec_emulated_unplan(struct mk_comm *comm, struct mk_plan *plan)
{
    struct emulated_executor *x = comm->exec_state;
    memset(x->words + plan->slot * PLAN_WORDS, 0, PLAN_WORDS * sizeof *x->words);
    host_heap_clear(comm, plan);
    return 0;
}

static int exec_emulated_launch(struct mk_comm *comm, struct mk_plan *plan,
                                void *const arguments[MK_SPACES - 1], void *stream)
{
    struct emulated_executor *x = comm->exec_state;
    struct launch launch = {.plan = plan};
    memcpy(launch.arguments, arguments, sizeof launch.arguments);
    pthread_mutex_lock(&x->lock);
    int result = exec_emulated_wait_until(x, QUEUE - 1);
    if (!result)
        x->queue[x->head++ % QUEUE] = launch;
    pthread_cond_signal(&x->asked);
    pthread_mutex_unlock(&x->lock);
    return result;
}

static int exec_emulated_wait(struct mk_comm *comm)
{
    struct emulated_executor *x = comm->exec_state;
    pthread_mutex_lock(&x->lock);
    int result = exec_emulated_wait_until(x, 0);
    pthread_mutex_unlock(&x->lock);
    return comm_failed(comm) ? -EIO : result;
}

static void exec_emulated_forget(struct mk_comm *comm)
{
    comm->exec_beats = NULL;
    comm->exec_state = NULL;
    comm->tracks = NULL;
    comm->progress = NULL;
    comm->ring_count = comm->track_count = comm->progress_count = 0;
}

static void exec_emulated_close(struct mk_comm *comm)
{
    struct emulated_executor *x = comm->exec_state;
    if (!x)
        return;
    if (x->threaded) {
        pthread_mutex_lock(&x->lock);
        /* a kernel that still runs is left where it stands, as no call waits for it */
        __atomic_store_n(&x->stop, 1, __ATOMIC_RELAXED);
        pthread_cond_signal(&x->asked);
        int hangs = exec_emulated_wait_until(x, UINT64_MAX);
        pthread_mutex_unlock(&x->lock);
        if (hangs) { /* whatever its code may still touch stays, for as long as the process */
            pthread_detach(x->thread);
            exec_emulated_forget(comm);
            comm->plan_count = 0;
            return;
        }
        pthread_join(x->thread, NULL);
    }
    host_rings_close(comm);
    exec_emulated_forget(comm);
    hopper_destroy(x->hopper);
    for (uint32_t i = 0; x->tracks && i < TRACKS; i++)
        free(x->tracks[i].events);
    free(x->tracks);
    free(x->report);
    host_heap_close(comm);
    pthread_mutex_destroy(&x->lock);
    pthread_cond_destroy(&x->asked);
    pthread_cond_destroy(&x->done);
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
    .open = exec_emulated_open,
    .plan = exec_emulated_plan,
    .unplan = exec_emulated_unplan,
    .launch = exec_emulated_launch,
    .wait = exec_emulated_wait,
    .close = exec_emulated_close,
    .forget = exec_emulated_empty_tracks,
};

#endif
