/* The GPU executor: one process per rank, one persistent kernel per launch on the caller's
 * stream. */
#include "core/comm/comm.h"
#include "core/base/clock.h"
#include "core/comm/gpus.h"
#include "kernels/host/cuda_device.h"
#include "kernels/host/cuda_heap.h"
#include "kernels/host/cuda_register.h"
#include "kernels/host/cuda_tracks.h"
#include "core/ops/op.h"
#include "core/ops/registry.h"
#include "kernels/host/op.h"
#include "kernels/host/report.h"
#include "kernels/host/streams.h"
#include "kernels/host/stuck.h"

#include <cuda_runtime_api.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { RING_CAPACITY = 1024, DEVICE_WORDS = 64, POSTED = COMM_MOST_PLANS * DEVICE_WORDS };
enum { ENDING = POSTED + MK_MAX_RINGS };
#define LONG_NS 3600000000000ull /* a timeout that is enough for anybody */
#define LINGER_NS 2000000000ull  /* that a kernel may go on once the job has failed */
#define LEFT_NS 100000000ull     /* for the counts of plans to come from the GPU */

/* How an op gets onto the GPU. */
#define DECLARE_HOST(name)
#define DECLARE_GPU(name) GPU_OPERATOR(name)
#define MK_OPERATOR(name, NAME, where) DECLARE_##where(name)
MK_OPERATORS(MK_OPERATOR)
#undef MK_OPERATOR

static const struct gpu_functions cuda_ops[MK_OPS] = {
#define CUDA_OP_HOST(name)                                                                         \
    {                                                                                              \
        NULL, NULL                                                                                 \
    } /* has no kernel */
#define CUDA_OP_GPU(name) GPU_FUNCTIONS(name)
#define MK_OPERATOR(name, NAME, where) [MK_OP_##NAME] = CUDA_OP_##where(name),
    MK_OPERATORS(MK_OPERATOR)
#undef MK_OPERATOR
};

struct cuda_executor {
    struct cuda_device device;
    int on_network; /* this communicator holds cuda_register.h's one place */
    /* by a plan's slot, what does not change from launch to launch */
    struct gpu_launch launches[COMM_MOST_PLANS];
    /* device memory: DEVICE_WORDS per plan, then `posted` of each ring, then `ending` */
    uint64_t *words;
    struct gpu_report *report;  /* pinned */
    struct cuda_tracks *tracks; /* NULL: tracing is off */
    struct streams streams;     /* of the launches that have not been waited for */
    /* carries the word that ends waits past a running kernel; collects tracks */
    cudaStream_t aside;
    const struct mk_plan *last_plan;
    int hangs;      /* a kernel did not end when it had to */
    int number;     /* the GPU's, for threads that have not set it */
    uint64_t *left; /* pinned: where exec_cuda_left copies to */
};

static int exec_cuda_refuse(struct mk_comm *comm, int result, const char *what)
{
    snprintf(comm->error, sizeof comm->error, "%s: %s", what,
             cudaGetErrorString(cudaGetLastError()));
    return result;
}

/* Kernels, their attributes and events are of the thread's current device. */
static int exec_cuda_current(struct mk_comm *comm)
{
    const struct cuda_executor *x = comm->exec_state;
    int current = -1;
    if (cudaGetDevice(&current) != cudaSuccess)
        return exec_cuda_refuse(comm, -EIO, "CUDA does not say which GPU is current");
    if (current == x->device.number)
        return 0;
    snprintf(
        comm->error, sizeof comm->error,
        "GPU %d is current in this thread, and the communicator's is GPU %d: cudaSetDevice(%d) "
        "comes first",
        current, x->device.number, x->device.number);
    return -EINVAL;
}

static uint32_t exec_cuda_sms(struct mk_comm *comm)
{
    const struct cuda_executor *x = comm->exec_state;
    return x->device.sms;
}

static uint32_t exec_cuda_block_shared(struct mk_comm *comm)
{
    struct cuda_executor *x = comm->exec_state;
    return x->device.block_shared;
}

static uint32_t exec_cuda_share(struct mk_comm *comm)
{
    const struct cuda_executor *x = comm->exec_state;
    return x->device.share;
}

static enum mk_engine exec_cuda_engine(struct mk_comm *comm)
{
    const struct cuda_executor *x = comm->exec_state;
    return x->device.major == 9 ? MK_ENGINE_WGMMA : MK_ENGINE_MMA;
}

static int exec_cuda_make_rings(struct mk_comm *comm)
{
    if (comm->topo.nodes == 1)
        return 0;
    for (uint32_t i = 0; i < MK_MAX_RINGS; i++) {
        void *ring = NULL;
        if (cudaHostAlloc(&ring, mk_ring_bytes(RING_CAPACITY),
                          cudaHostAllocPortable | cudaHostAllocMapped) != cudaSuccess)
            return exec_cuda_refuse(comm, -ENOMEM, "no pinned memory for the command rings");
        memset(ring, 0, mk_ring_bytes(RING_CAPACITY));
        comm->rings[i] = ring;
        comm->rings[i]->capacity = RING_CAPACITY;
        comm->ring_count = i + 1;
    }
    return 0;
}

static int exec_cuda_make_state(struct mk_comm *comm, struct cuda_executor *x)
{
    size_t words = (ENDING + 1) * sizeof *x->words;
    void *report = NULL, *left = NULL, *device = NULL;
    if (cudaHostAlloc(&report, sizeof *x->report, cudaHostAllocPortable | cudaHostAllocMapped) !=
        cudaSuccess)
        return exec_cuda_refuse(comm, -ENOMEM, "no pinned memory for the GPU's reports");
    x->report = report;
    memset(x->report, 0, sizeof *x->report);
    if (cudaHostAlloc(&left, COMM_MOST_PLANS * sizeof *x->left, cudaHostAllocPortable) !=
            cudaSuccess ||
        cudaGetDevice(&x->number) != cudaSuccess)
        return exec_cuda_refuse(comm, -ENOMEM, "no pinned memory for the plans' counters");
    x->left = left;
    if (cudaStreamCreateWithFlags(&x->aside, cudaStreamNonBlocking) != cudaSuccess)
        return exec_cuda_refuse(comm, -EIO, "no stream");
    if (cudaMalloc(&device, words) != cudaSuccess)
        return exec_cuda_refuse(comm, -ENOMEM, "no GPU memory for the plans' counters");
    x->words = device;
    if (cudaMemset(device, 0, words) != cudaSuccess || cudaDeviceSynchronize() != cudaSuccess)
        return exec_cuda_refuse(comm, -EIO, "the plans' counters cannot be cleared");
    comm->progress = x->report->progress;
    comm->progress_count = (1 + MK_AUXILIARY_WARPS) * x->device.sms;
    comm->track_warps = GPU_TRACK_WARPS;
    if (!comm->config.trace_events)
        return 0;
    int result = cuda_tracks_create(&x->tracks, comm->progress_count * GPU_TRACK_WARPS,
                                    comm->config.trace_events, x->aside);
    return result ? exec_cuda_refuse(comm, result, "no GPU memory for the trace") : 0;
}

static int exec_cuda_open(struct mk_comm *comm)
{
    struct cuda_executor *x = calloc(1, sizeof *x);
    if (!x)
        return -ENOMEM;
    comm->exec_state = x;
    int result = cuda_device_choose(comm, &x->device);
    if (result)
        return result;
    if ((1 + MK_AUXILIARY_WARPS) * x->device.sms > GPU_MAX_CTAS)
        x->device.sms = GPU_MAX_CTAS / (1 + MK_AUXILIARY_WARPS);
    result = cuda_heap_open(comm);
    if (!result)
        result = exec_cuda_make_rings(comm);
    if (!result && comm->topo.nodes > 1) {
        result = cuda_register_open();
        x->on_network = !result;
        if (result == -EBUSY)
            snprintf(comm->error, sizeof comm->error,
                     "this process already has a communicator with a GPU on the network");
        else if (result)
            exec_cuda_refuse(comm, result, "the GPU cannot be prepared for the network");
    }
    return result ? result : exec_cuda_make_state(comm, x);
}

static int exec_cuda_plan(struct mk_comm *comm, struct mk_plan *plan)
{
    struct cuda_executor *x = comm->exec_state;
    if (!cuda_ops[plan->problem.op].launch) {
        snprintf(comm->error, sizeof comm->error,
                 "%s has no GPU kernel in this build; --exec host runs it",
                 plan_op_name(plan->problem.op));
        return -EINVAL;
    }
    if (plan->problem.engine == MK_ENGINE_WGMMA && x->device.major != 9) {
        snprintf(comm->error, sizeof comm->error,
                 "engine=wgmma is Hopper's (compute capability 9.0), and this GPU's is %d: "
                 "engine=mma, which it takes by itself",
                 x->device.major);
        return -EINVAL;
    }
    if (plan->problem.engine == MK_ENGINE_MMA && plan->problem.fp8 &&
        op_has_fp8_on_mma(plan->problem.op) && x->device.major * 10 + x->device.minor < 89) {
        snprintf(comm->error, sizeof comm->error,
                 "dtype=fp8: tensor cores multiply it from compute capability 8.9 on, and this "
                 "GPU's is %d.%d; dtype=bf16 runs on it",
                 x->device.major, x->device.minor);
        return -EINVAL;
    }
    int result = exec_cuda_current(comm);
    if (result)
        return result;
    struct gpu_launch *l = &x->launches[plan->slot];
    uint64_t *words = x->words + plan->slot * DEVICE_WORDS;
    memset(l, 0, sizeof *l);
    l->heap = comm->heap.base;
    for (uint32_t i = 0; i < comm->topo.gpus; i++)
        l->peers[i] = comm->heap.peers[i];
    l->ring_capacity = RING_CAPACITY;
    for (uint32_t i = 0; i < comm->ring_count; i++)
        l->rings[i] = comm->rings[i];
    l->left = words;
    l->taken = words + 16; /* words that different CTAs hammer lie on lines of their own */
    l->ending = (uint32_t *)(x->words + ENDING);
    l->posted = x->words + POSTED;
    l->report = x->report;
    l->tracks = x->tracks ? cuda_tracks_device(x->tracks) : NULL;
    l->split = plan->problem.tuning.split;
    l->plan = plan->id;
    l->local = mk_local_of(&comm->topo, comm->topo.rank);
    l->timeout_ns = plan->problem.timeout_ns;
    if (l->timeout_ns < LONG_NS) /* by the clock, of which ranks that take turns have a part */
        l->timeout_ns *= x->device.turns;
    l->timeout_ns = gpus_wait_limit(l->timeout_ns, x->device.watched);
    l->longest_ns = l->timeout_ns * mk_world(&comm->topo);
    return cuda_ops[plan->problem.op].prepare(plan, comm->error, sizeof comm->error);
}

/* Its last launch has ended, on every rank: what a new plan must find 0 is cleared here. */
static int exec_cuda_unplan(struct mk_comm *comm, struct mk_plan *plan)
{
    struct cuda_executor *x = comm->exec_state;
    char *heap = comm->heap.base;
    if (x->last_plan == plan)
        x->last_plan = NULL;
    if (cudaMemsetAsync(x->words + plan->slot * DEVICE_WORDS, 0, DEVICE_WORDS * sizeof *x->words,
                        x->aside) != cudaSuccess ||
        cudaMemsetAsync(heap + plan->flag_base * 8ull, 0, plan->flags * 8ull, x->aside) !=
            cudaSuccess ||
        cudaMemsetAsync(heap + plan->heap_base, 0, plan->heap_bytes, x->aside) != cudaSuccess ||
        cudaStreamSynchronize(x->aside) != cudaSuccess)
        return exec_cuda_refuse(comm, -EIO, "a plan's memory cannot be cleared");
    return 0;
}

static int exec_cuda_store(struct mk_comm *comm, uint64_t offset, const void *from, uint64_t bytes)
{
    struct cuda_executor *x = comm->exec_state;
    if (cudaMemcpyAsync((char *)comm->heap.base + offset, from, bytes, cudaMemcpyHostToDevice,
                        x->aside) != cudaSuccess ||
        cudaStreamSynchronize(x->aside) != cudaSuccess)
        return exec_cuda_refuse(comm, -EIO, "the symmetric heap cannot be written");
    return 0;
}

/* For kernels/host/streams.h. */
static int exec_cuda_stream_ended(void *stream)
{
    cudaError_t status = cudaStreamQuery(stream);
    return status == cudaSuccess ? 1 : status == cudaErrorNotReady ? 0 : -(int)status;
}

static int exec_cuda_launch(struct mk_comm *comm, struct mk_plan *plan, enum mk_half half,
                            void *const arguments[MK_SPACES - 1], void *stream)
{
    struct cuda_executor *x = comm->exec_state;
    int result = exec_cuda_current(comm);
    if (result)
        return result;
    struct gpu_launch launch = x->launches[plan->slot];
    launch.split = mk_half_split(&launch.split, half);
    launch.tracks = comm->unrecorded ? NULL : launch.tracks;
    launch.arguments[MK_SPACE_HEAP] = comm->heap.base;
    for (int i = 0; i < MK_SPACES - 1; i++)
        launch.arguments[MK_SPACE_ARG0 + i] = arguments[i];
    if (streams_add(&x->streams, stream, exec_cuda_stream_ended)) {
        snprintf(comm->error, sizeof comm->error,
                 "launches on more than %d streams at once: wait for some of them", STREAMS_MOST);
        return -EBUSY;
    }
    x->last_plan = plan;
    result = cuda_ops[plan->problem.op].launch(plan, &launch, stream);
    if (result == -EINVAL)
        snprintf(comm->error, sizeof comm->error,
                 "%s: a pointer that the TMA unit cannot take; align arguments to 16 bytes",
                 plan_op_name(plan->problem.op));
    else if (result)
        exec_cuda_refuse(comm, result, "the kernel could not be launched");
    return result;
}

/* Graphs of several plans may be under way, and nothing tells which was launched last: a flag
 * belongs to one plan. */
static const struct mk_plan *exec_cuda_plan_of_flag(const struct mk_comm *comm,
                                                    const struct cuda_executor *x, uint32_t flag)
{
    for (uint32_t i = 0; i < comm->plan_count; i++) {
        const struct mk_plan *p = comm->plans[i];
        if (p && flag - p->flag_base < p->flags)
            return p;
    }
    return x->last_plan;
}

static void exec_cuda_fail_from_device(struct mk_comm *comm, cudaError_t error)
{
    struct mk_failure f = {.kind = MK_FAIL_DEVICE,
                           .rank = comm->topo.rank,
                           .cta = UINT32_MAX,
                           .flag = UINT32_MAX,
                           .chunk = UINT32_MAX,
                           .producer = comm->topo.rank,
                           .status = error};
    const struct cuda_executor *x = comm->exec_state;
    if (x->last_plan)
        f.op = x->last_plan->problem.op;
    stuck_say(x->report->stuck, f.detail, sizeof f.detail);
    size_t said = strlen(f.detail);
    snprintf(f.detail + said, sizeof f.detail - said, "%s%s", cudaGetErrorString(error),
             error != cudaErrorLaunchTimeout
                 ? ""
                 : "; a driver with a display on its GPU ends launches of several seconds: smaller "
                   "ones fit, or the display on another GPU");
    comm_fail(comm, &f);
}

static void exec_cuda_fail_from_report(struct mk_comm *comm, const struct cuda_executor *x)
{
    const struct gpu_report *r = x->report;
    const struct mk_plan *plan = exec_cuda_plan_of_flag(comm, x, r->flag);
    struct mk_failure f;
    if (!plan) { /* a graph was replayed whose plan is gone */
        exec_cuda_fail_from_device(comm, cudaErrorLaunchFailure);
        return;
    }
    gpu_report_failure(r, plan, plan->problem.op, comm->topo.rank, &f);
    comm_fail(comm, &f);
}

/* Ends the waits of a kernel that runs: the copy engine sets the word that they look at. */
static void exec_cuda_end_waits(struct cuda_executor *x)
{
    x->report->one = 1;
    cudaMemcpyAsync((uint32_t *)(x->words + ENDING) + 1, &x->report->one, sizeof x->report->one,
                    cudaMemcpyHostToDevice, x->aside);
}

/* A thread of the library's own: its GPU, and no call of it disturbs a capture of the program's. */
static int exec_cuda_own_thread(const struct cuda_executor *x)
{
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    return cudaSetDevice(x->number) != cudaSuccess ||
           cudaThreadExchangeStreamCaptureMode(&mode) != cudaSuccess;
}

/* Past the kernel that runs, by the copy engine. */
static int exec_cuda_left(struct mk_comm *comm, uint64_t left[COMM_MOST_PLANS])
{
    struct cuda_executor *x = comm->exec_state;
    uint64_t began = mk_now_ns();
    if (exec_cuda_own_thread(x))
        return -EIO;
    for (uint32_t i = 0; i < comm->plan_count; i++)
        if (comm->plans[i] &&
            cudaMemcpyAsync(x->left + i, x->words + (size_t)i * DEVICE_WORDS, sizeof *x->left,
                            cudaMemcpyDeviceToHost, x->aside) != cudaSuccess)
            return -EIO;
    while (!exec_cuda_stream_ended(x->aside)) {
        if (mk_now_ns() - began > LEFT_NS)
            return -ETIMEDOUT;
        nanosleep(&(struct timespec){0, 50000}, NULL);
    }
    memcpy(left, x->left, comm->plan_count * sizeof *left);
    return 0;
}

static void exec_cuda_end_waits_aside(struct mk_comm *comm)
{
    if (!exec_cuda_own_thread(comm->exec_state))
        exec_cuda_end_waits(comm->exec_state);
}

/* At the end of a job that has failed, whose launches nobody may have waited for: whether one does
 * not end. */
static int exec_cuda_hangs(struct cuda_executor *x)
{
    uint64_t began = mk_now_ns();
    while (!streams_ended(&x->streams, exec_cuda_stream_ended)) {
        if (mk_now_ns() - began > LINGER_NS)
            return 1;
        nanosleep(&(struct timespec){0, 50000}, NULL);
    }
    return 0;
}

/* Waits for these streams, and meanwhile carries bad news both ways. */
static int exec_cuda_wait_for(struct mk_comm *comm, struct streams *streams)
{
    struct cuda_executor *x = comm->exec_state;
    uint64_t stopped = 0, asked = mk_now_ns();
    int reported = 0, ended;
    while (!(ended = streams_ended(streams, exec_cuda_stream_ended))) {
        uint64_t now = mk_now_ns();
        if (!reported && __atomic_load_n(&x->report->failed, __ATOMIC_ACQUIRE)) {
            exec_cuda_fail_from_report(comm, x);
            reported = 1;
        }
        comm_interrupted(comm);
        if (!stopped && comm_failed(comm)) {
            exec_cuda_end_waits(x);
            stopped = now;
        }
        /* every wait of a kernel sees `stop` within 50 us */
        if (stopped && now - stopped > LINGER_NS) {
            x->hangs = 1;
            snprintf(comm->error, sizeof comm->error,
                     "the kernel did not end within 2 s after the job had failed");
            return -ETIMEDOUT;
        }
        if (now - asked > 1000000) /* short waits spin, long ones leave the core to others */
            nanosleep(&(struct timespec){0, 50000}, NULL);
    }
    if (ended < 0)
        exec_cuda_fail_from_device(comm, (cudaError_t)-ended);
    else if (!reported && __atomic_load_n(&x->report->failed, __ATOMIC_ACQUIRE))
        exec_cuda_fail_from_report(comm, x);
    /* of launches on other streams, which may still run, the wait for the last one collects */
    if (x->tracks && ended == 1 && streams_ended(&x->streams, exec_cuda_stream_ended) == 1 &&
        cuda_tracks_collect(x->tracks, comm))
        exec_cuda_fail_from_device(comm, cudaGetLastError());
    return comm_failed(comm) ? -EIO : 0;
}

static int exec_cuda_wait(struct mk_comm *comm)
{
    struct cuda_executor *x = comm->exec_state;
    return exec_cuda_wait_for(comm, &x->streams);
}

static int exec_cuda_wait_stream(struct mk_comm *comm, void *stream)
{
    struct streams one = {.of = {stream}, .count = 1};
    return exec_cuda_wait_for(comm, &one);
}

static int exec_cuda_posted(struct mk_comm *comm, uint64_t posted[MK_MAX_RINGS])
{
    struct cuda_executor *x = comm->exec_state;
    if (cudaMemcpyAsync(posted, x->words + POSTED, MK_MAX_RINGS * sizeof *posted,
                        cudaMemcpyDeviceToHost, x->aside) != cudaSuccess ||
        cudaStreamSynchronize(x->aside) != cudaSuccess)
        return exec_cuda_refuse(comm, -EIO, "the counts of commands cannot be read");
    return 0;
}

static int exec_cuda_forget(struct mk_comm *comm)
{
    struct cuda_executor *x = comm->exec_state;
    int result = x->tracks ? cuda_tracks_forget(x->tracks, comm) : 0;
    return result ? exec_cuda_refuse(comm, result, "the GPU's tracks cannot be emptied") : 0;
}

static void exec_cuda_close(struct mk_comm *comm)
{
    struct cuda_executor *x = comm->exec_state;
    if (!x)
        return;
    if (x->words && comm_failed(comm) && !x->hangs) {
        exec_cuda_end_waits(x);
        x->hangs = exec_cuda_hangs(x);
    }
    /* freeing waits for the kernel: what it may still touch is the driver's to free, when the
     * process ends */
    if (x->hangs) {
        comm->exec_state = NULL;
        comm->progress = NULL;
        comm->ring_count = comm->track_count = comm->progress_count = comm->plan_count = 0;
        return;
    }
    if (x->on_network)
        cuda_register_close();
    if (x->aside)
        cudaStreamDestroy(x->aside);
    cuda_tracks_destroy(x->tracks, comm);
    cuda_heap_close(comm);
    for (uint32_t i = 0; i < comm->ring_count; i++)
        cudaFreeHost(comm->rings[i]);
    comm->ring_count = 0;
    comm->progress = NULL;
    comm->progress_count = 0;
    cudaFree(x->words);
    cudaFreeHost(x->report);
    cudaFreeHost(x->left);
    free(x);
    comm->exec_state = NULL;
}

const struct mk_exec_ops exec_cuda = {
    .name = "cuda",
    .sms = exec_cuda_sms,
    .block_shared = exec_cuda_block_shared,
    .share = exec_cuda_share,
    .engine = exec_cuda_engine,
    .open = exec_cuda_open,
    .plan = exec_cuda_plan,
    .unplan = exec_cuda_unplan,
    .store = exec_cuda_store,
    .launch = exec_cuda_launch,
    .wait = exec_cuda_wait,
    .wait_stream = exec_cuda_wait_stream,
    .posted = exec_cuda_posted,
    .close = exec_cuda_close,
    .left = exec_cuda_left,
    .end_waits = exec_cuda_end_waits_aside,
    .forget = exec_cuda_forget,
};
