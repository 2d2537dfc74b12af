/* Commands go from a kernel through pinned memory to the proxy whole and in order, and how fast
 * they do.
 *
 *   gpu_ring check   the proxy's fabric gets every put of four posting CTAs, each ring's in order,
 *                    ring after ring full
 *   gpu_ring bench   commands per second of 1, 2, 4 and 8 posting CTAs into the proxy; and how long
 *                    a command takes until a thread that polls as the proxy does sees it
 *
 * The way to the host cannot be timed by itself without a common clock. What is timed, on the GPU's
 * clock alone: from the command's store until the kernel sees the answer that the polling thread
 * writes to pinned memory. That is the way there and the GPU's read of host memory, which is timed
 * too: the answer lies there on average half a read before the read that finds it begins to come
 * back. So the way there is the round trip less one read; the round trip bounds it. */
#include "kernels/cta/cta.cuh"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern "C" {
#include "core/cta/ring_host.h"
#include "backends/proxy.h"
#include "backends/wall_clock.h"
}

#define CUDA(call)                                                                                 \
    do {                                                                                           \
        cudaError_t e_ = (call);                                                                   \
        if (e_ != cudaSuccess) {                                                                   \
            printf("%s: %s\n", #call, cudaGetErrorString(e_));                                     \
            exit(3);                                                                               \
        }                                                                                          \
    } while (0)

enum { RINGS = 8, CAPACITY = 1024, TRIPS = 20000, LIMIT_NS = 2000000000 };

/* One thread of each block posts `count` puts whose source says the number. */
__global__ void post(const __grid_constant__ struct gpu_launch launch, uint32_t count)
{
    struct mk_cta cta;
    cta_begin(&cta, &launch, blockIdx.x, 1);
    if (cta_begin_commands(&cta))
        return;
    for (uint32_t i = 0; i < count; i++) {
        struct mk_chunk c = {i, MK_SPACE_HEAP, (uint64_t)i * MK_HEAP_UNIT, 8192, 128};
        if (mk_cta_put(&cta, 1, &c, 16))
            return;
    }
    mk_cta_drain(&cta);
    cta_end(&cta);
    cta_leave(&launch);
}

/* The round trip, and a read of host memory, TRIPS times each, ns. */
__global__ void ping(struct mk_ring *ring, volatile uint64_t *answer, uint32_t *trips,
                     uint32_t *reads)
{
    for (uint32_t i = 0; i < TRIPS; i++) {
        struct mk_command c = mk_command_put(1, 0, 8192, 128, 16, mk_ring_parity(CAPACITY, i));
        uint64_t start = clock64(), begin = ptx_globaltimer();
        ptx_store_16(&ring->slots[i & (CAPACITY - 1)], c.lo, c.hi);
        while (*answer != i + 1)
            if (ptx_globaltimer() - begin > LIMIT_NS)
                return;
        trips[i] = (uint32_t)(clock64() - start);
        start = clock64();
        if (*answer != i + 1) /* a branch: the clock is read when the word is here */
            return;
        reads[i] = (uint32_t)(clock64() - start);
    }
}

/* Completes puts in the order in which they came, and wants each ring's in order. */
struct counting_fabric {
    struct fabric fabric;
    uint64_t cookies[8 * CAPACITY], posted, completed, next[RINGS], wrong;
    uint32_t rings, per_ring;
};

static int counting_put(struct fabric *fabric, const struct fabric_put *put)
{
    struct counting_fabric *f = (struct counting_fabric *)fabric;
    if (f->posted - f->completed == 8 * CAPACITY)
        return -EAGAIN;
    /* Whose it is: of the rings, the one that is due this number. Ties are the same put. */
    uint64_t number = put->source / MK_HEAP_UNIT;
    uint32_t ring = 0;
    while (ring < f->rings && f->next[ring] % f->per_ring != number)
        ring++;
    if (ring == f->rings || put->peer != 1 || put->bytes != 128 || put->destination != 8192 ||
        put->flag != 16)
        f->wrong++;
    else
        f->next[ring]++;
    f->cookies[f->posted++ % (8 * CAPACITY)] = put->cookie;
    return 0;
}

static int counting_flush(struct fabric *)
{
    return 0;
}

static int counting_poll(struct fabric *fabric, struct fabric_completion *out, int max)
{
    struct counting_fabric *f = (struct counting_fabric *)fabric;
    int n = 0;
    for (; n < max && f->completed < f->posted; n++) {
        out[n].cookie = f->cookies[f->completed++ % (8 * CAPACITY)];
        out[n].status = 0;
    }
    return n;
}

static int failed(void *context)
{
    return __atomic_load_n((int *)context, __ATOMIC_RELAXED);
}

static void fail(void *context, const struct mk_failure *failure)
{
    printf("the proxy says: failure of kind %d\n", (int)failure->kind);
    __atomic_store_n((int *)context, 1, __ATOMIC_RELAXED);
}

struct stage {
    struct mk_ring *rings[RINGS];
    struct gpu_launch launch;
    struct counting_fabric fabric;
    struct proxy *proxy;
    int job_failed;
};

static void stage_open(struct stage *s, uint32_t rings, uint32_t per_ring)
{
    static struct fabric_ops ops;
    ops.name = "counting";
    ops.put = counting_put;
    ops.flush = counting_flush;
    ops.poll = counting_poll;
    uint64_t *words;
    memset(s, 0, sizeof *s);
    s->fabric.fabric.ops = &ops;
    s->fabric.rings = rings;
    s->fabric.per_ring = per_ring;
    CUDA(cudaMalloc(&words, 64 * 8));
    CUDA(cudaMemset(words, 0, 64 * 8));
    CUDA(cudaHostAlloc(&s->launch.report, sizeof *s->launch.report, cudaHostAllocMapped));
    memset(s->launch.report, 0, sizeof *s->launch.report);
    for (uint32_t i = 0; i < rings; i++) {
        CUDA(cudaHostAlloc(&s->rings[i], mk_ring_bytes(CAPACITY), cudaHostAllocMapped));
        memset(s->rings[i], 0, mk_ring_bytes(CAPACITY));
        s->rings[i]->capacity = CAPACITY;
        s->launch.rings[i] = s->rings[i];
    }
    s->launch.ring_capacity = CAPACITY;
    s->launch.left = words;
    s->launch.ending = (uint32_t *)(words + 2);
    s->launch.posted = words + 8;
    s->launch.split.ctas[MK_COMPUTE] = 0;
    s->launch.split.ctas[MK_INTER_SEND] = rings;
    s->launch.plan = 1;
    s->launch.timeout_ns = LIMIT_NS;
    struct proxy_config config = {};
    config.rings = s->rings;
    config.ring_count = rings;
    config.fabric = &s->fabric.fabric;
    config.timeout_ns = LIMIT_NS;
    config.topo.nodes = 2;
    config.topo.gpus = 1;
    config.heap_bytes = 1ull << 40;
    config.heap_flags = 1024;
    config.now = wall_clock;
    config.failed = failed;
    config.fail = fail;
    config.context = &s->job_failed;
    if (proxy_create(&s->proxy, &config) || proxy_start(s->proxy)) {
        printf("no proxy\n");
        exit(3);
    }
}

static void stage_close(struct stage *s)
{
    proxy_stop(s->proxy);
    proxy_destroy(s->proxy);
    for (int i = 0; i < RINGS; i++)
        cudaFreeHost(s->rings[i]);
    cudaFreeHost(s->launch.report);
    cudaFree(s->launch.left);
}

/* Commands per second; 0 where something was lost. */
static double rate(uint32_t rings, uint32_t per_ring, int launches)
{
    struct stage s;
    float ms = 0;
    cudaEvent_t begin, end;
    stage_open(&s, rings, per_ring);
    CUDA(cudaEventCreate(&begin));
    CUDA(cudaEventCreate(&end));
    post<<<rings, 32>>>(s.launch, per_ring); /* warms up */
    CUDA(cudaEventRecord(begin));
    for (int i = 1; i < launches; i++)
        post<<<rings, 32>>>(s.launch, per_ring);
    CUDA(cudaEventRecord(end));
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaEventElapsedTime(&ms, begin, end));
    uint64_t wanted = (uint64_t)rings * per_ring * launches;
    int right =
        !s.fabric.wrong && !s.job_failed && !s.launch.report->failed && s.fabric.posted == wanted;
    if (!right)
        printf("WRONG: %llu of %llu commands came, %llu out of order\n",
               (unsigned long long)s.fabric.posted, (unsigned long long)wanted,
               (unsigned long long)s.fabric.wrong);
    stage_close(&s);
    return right ? (double)rings * per_ring * (launches - 1) / ms * 1e3 : 0;
}

struct poller {
    struct mk_ring *ring;
    volatile uint64_t *answer;
};

static void *answer_all(void *argument)
{
    struct poller *p = (struct poller *)argument;
    uint64_t start = wall_clock(NULL);
    struct mk_command c;
    for (uint64_t i = 0; i < TRIPS; i++) {
        while (!mk_ring_peek(p->ring, i, &c))
            if (i % 64 == 0 && wall_clock(NULL) - start > 20ull * LIMIT_NS)
                return NULL;
        *p->answer = i + 1;
    }
    return NULL;
}

static int by_value(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static int latency(void)
{
    struct poller p = {};
    uint32_t *trips, *reads;
    uint64_t *answer;
    pthread_t thread;
    int khz = 0, device = 0;
    CUDA(cudaGetDevice(&device));
    CUDA(cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, device));
    CUDA(cudaHostAlloc(&p.ring, mk_ring_bytes(CAPACITY), cudaHostAllocMapped));
    CUDA(cudaHostAlloc(&answer, 4096, cudaHostAllocMapped));
    CUDA(cudaHostAlloc(&trips, 2 * TRIPS * sizeof *trips, cudaHostAllocMapped));
    memset(p.ring, 0, mk_ring_bytes(CAPACITY));
    memset(trips, 0, 2 * TRIPS * sizeof *trips);
    reads = trips + TRIPS;
    p.ring->capacity = CAPACITY;
    *answer = 0;
    p.answer = answer;
    if (pthread_create(&thread, NULL, answer_all, &p))
        return 1;
    ping<<<1, 1>>>(p.ring, answer, trips, reads);
    CUDA(cudaDeviceSynchronize());
    pthread_join(thread, NULL);
    if (*answer != TRIPS) {
        printf("WRONG: %llu of %d commands were seen\n", (unsigned long long)*answer, TRIPS);
        return 1;
    }
    qsort(trips, TRIPS, sizeof *trips, by_value);
    qsort(reads, TRIPS, sizeof *reads, by_value);
    double us = 1e3 / khz;
    printf("round trip        median %.2f us, p99 %.2f us\n", trips[TRIPS / 2] * us,
           trips[TRIPS * 99 / 100] * us);
    printf("read of host word median %.2f us, p99 %.2f us\n", reads[TRIPS / 2] * us,
           reads[TRIPS * 99 / 100] * us);
    printf("store to seen     about %.2f us (the round trip less a read, medians; SM clock at most "
           "%.2f GHz)\n",
           (trips[TRIPS / 2] - (double)reads[TRIPS / 2]) * us, khz * 1e-6);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc != 2 || (strcmp(argv[1], "check") && strcmp(argv[1], "bench"))) {
        fprintf(stderr, "usage: gpu_ring check|bench\n");
        return 2;
    }
    if (!strcmp(argv[1], "check"))
        return rate(4, 5000, 3) > 0 && rate(1, 1023, 5) > 0 && rate(8, 1025, 3) > 0 ? 0 : 1;
    int wrong = 0;
    for (uint32_t rings = 1; rings <= RINGS; rings *= 2) {
        double r = rate(rings, 200000, 4);
        printf("%u posting CTA%s: %.2f M commands/s to the proxy\n", rings, rings > 1 ? "s" : "",
               r / 1e6);
        wrong |= r == 0;
    }
    return latency() | wrong;
}
