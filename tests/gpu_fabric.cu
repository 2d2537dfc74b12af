/* GPU memory through softnic between two processes (each on a GPU of its own where there are two):
 * data before flag, also while a kernel holds every SM, directly and staged through host memory;
 * and how fast.
 *
 *   gpu_fabric check
 *   gpu_fabric bench [MB/s at least, from 1 MB chunks on] */
#include <cuda_runtime.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern "C" {
#include "backends/stage.h"
#include "backends/verbs/verbs_rc.h"
#include "kernels/host/cuda_register.h"
}

enum { FLAG_BYTES = 4096, DATA = 64 << 20, CHUNKS = 400 };

#define MUST(condition)                                                                            \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "rank %u, line %d: %s; %s%s\n", rank, __LINE__, #condition, error,     \
                    cudaGetErrorString(cudaGetLastError()));                                       \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)

static uint32_t rank;
static char error[256];
static struct verbs_api api;
static struct verbs_rc_config config;
static struct fabric *fabric;
static char *heap;

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

__global__ void fill(uint64_t *p, uint64_t words, uint64_t stamp)
{
    for (uint64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < words; i += gridDim.x * blockDim.x)
        p[i] = stamp + i;
}

/* Every SM waits, with all its shared memory, for flag 1 to reach `chunks`; after each step the
 * chunk must be whole. */
__global__ void __launch_bounds__(1024, 1)
    receive(const char *h, uint64_t chunks, uint64_t bytes, uint64_t stamp, uint64_t step,
            unsigned *wrong, uint64_t limit_ns)
{
    __shared__ uint64_t seen;
    uint64_t start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    for (uint64_t c = 1; c <= chunks; c++) {
        if (threadIdx.x == 0)
            do {
                asm volatile("ld.acquire.sys.global.u64 %0, [%1];"
                             : "=l"(seen)
                             : "l"(h + 8)
                             : "memory");
                asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
            } while (seen < c && now - start < limit_ns);
        __syncthreads();
        if (seen < c) {
            if (threadIdx.x == 0)
                atomicAdd(wrong, 1000000u);
            return;
        }
        const volatile uint64_t *p =
            (const volatile uint64_t *)(h + FLAG_BYTES + (c - 1) * bytes % DATA);
        for (uint64_t i = threadIdx.x + blockIdx.x * blockDim.x; i < bytes / 8;
             i += (uint64_t)gridDim.x * blockDim.x)
            if (p[i] != stamp + (c - 1) * step + i)
                atomicAdd(wrong, 1u);
        __syncthreads();
    }
}

static int open_inner(void *, struct fabric **out, const struct stage_memory *memory, char *text,
                      size_t size)
{
    struct verbs_rc_config c = config;
    c.options.qps = 1;
    c.end.heap.memory = MK_MEMORY_HOST;
    c.end.heap.base = memory->base;
    c.end.heap.flag_bytes = memory->flag_bytes;
    c.end.heap.bytes = memory->bytes;
    return verbs_rc_open(out, &c, text, size);
}

static void open_all(int fd, int staged)
{
    static uint32_t peer;
    int devices = 0;
    MUST(cudaGetDeviceCount(&devices) == cudaSuccess &&
         cudaSetDevice((int)rank % devices) == cudaSuccess);
    MUST(cudaMalloc(&heap, FLAG_BYTES + DATA) == cudaSuccess &&
         cudaMemset(heap, 0, FLAG_BYTES + DATA) == cudaSuccess);
    MUST(cudaDeviceSynchronize() == cudaSuccess && !cuda_register_open());
    MUST(!verbs_api_open(&api, VERBS_SOFT, error, sizeof error));
    peer = 1 - rank;
    config.api = &api;
    snprintf(config.end.nics.devices[0], sizeof config.end.nics.devices[0], "soft%u", rank);
    config.end.nics.count = 1;
    config.end.heap.memory = MK_MEMORY_CUDA;
    config.end.heap.base = heap;
    config.end.heap.flag_bytes = FLAG_BYTES;
    config.end.heap.bytes = FLAG_BYTES + DATA;
    config.end.rank = rank;
    config.end.world = 2;
    config.end.peers = &peer;
    config.end.peer_count = 1;
    verbs_options_default(&config.options);
    int rc = verbs_rc_open(&fabric, &config, error, sizeof error);
    MUST(staged ? rc == -EOPNOTSUPP : !rc);
    if (staged) {
        struct stage_config s = {};
        s.ops = mr_provider(MK_MEMORY_CUDA);
        s.heap.memory = MK_MEMORY_CUDA;
        s.heap.base = heap;
        s.heap.flag_bytes = FLAG_BYTES;
        s.heap.bytes = FLAG_BYTES + DATA;
        s.rank = rank;
        s.world = 2;
        s.peers = &peer;
        s.peer_count = 1;
        s.open_inner = open_inner;
        MUST(!stage_open(&fabric, &s, error, sizeof error));
    }
    size_t bytes = fabric->ops->address_bytes(fabric);
    char *all = (char *)calloc(2, bytes);
    fabric->ops->address(fabric, all + rank * bytes);
    MUST(write(fd, all + rank * bytes, bytes) == (ssize_t)bytes &&
         recv(fd, all + peer * bytes, bytes, MSG_WAITALL) == (ssize_t)bytes);
    MUST(!fabric->ops->connect(fabric, all, &peer, 1, error, sizeof error));
    free(all);
}

static void meet(int fd)
{
    char byte = 0;
    MUST(write(fd, &byte, 1) == 1 && read(fd, &byte, 1) == 1);
}

/* Chunks one after the other, flag 1 counting them. Returns seconds from the first put to the last
 * completion. */
static double send_chunks(uint64_t count, uint64_t bytes, uint64_t in_flight)
{
    double begun = seconds();
    uint64_t sent = 0, done = 0;
    while (done < count) {
        MUST(seconds() - begun < 8);
        while (sent < count && sent - done < in_flight) {
            struct fabric_put p = {};
            p.peer = 1 - rank;
            p.flag = 1;
            p.value = sent + 1;
            p.source = p.destination = FLAG_BYTES + sent * bytes % DATA;
            p.bytes = bytes;
            if (fabric->ops->put(fabric, &p))
                break;
            sent++;
        }
        fabric->ops->flush(fabric);
        struct fabric_completion c;
        while (fabric->ops->poll(fabric, &c, 1)) {
            MUST(!c.status);
            done++;
        }
    }
    return seconds() - begun;
}

static void check(int fd)
{
    const uint64_t bytes = 1 << 20, chunks = DATA / bytes, stamp = 7777, step = bytes / 8;
    if (rank == 0) {
        fill<<<132, 1024>>>((uint64_t *)(heap + FLAG_BYTES), DATA / 8, stamp);
        MUST(cudaDeviceSynchronize() == cudaSuccess);
        meet(fd);
        send_chunks(chunks, bytes, 16);
        meet(fd);
        return;
    }
    unsigned *wrong, host = 0;
    cudaStream_t s;
    struct fabric_completion c;
    int sms = 0;
    MUST(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0) == cudaSuccess);
    MUST(cudaMalloc(&wrong, 4) == cudaSuccess && cudaMemset(wrong, 0, 4) == cudaSuccess);
    MUST(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking) == cudaSuccess);
    MUST(cudaFuncSetAttribute(receive, cudaFuncAttributeMaxDynamicSharedMemorySize, 220 << 10) ==
         cudaSuccess);
    receive<<<sms, 1024, 220 << 10, s>>>(heap, chunks, bytes, stamp, step, wrong, 5000000000ull);
    meet(fd);
    while (cudaStreamQuery(s) == cudaErrorNotReady)
        fabric->ops->poll(fabric, &c, 1);
    MUST(cudaMemcpy(&host, wrong, 4, cudaMemcpyDeviceToHost) == cudaSuccess);
    MUST(host == 0);
    meet(fd);
}

static int too_slow;

static void bench(int fd, int staged, double least)
{
    static const uint64_t sizes[] = {8192, 65536, 262144, 1 << 20, 4 << 20};
    struct fabric_completion c;
    for (int i = 0; i < 5; i++) {
        uint64_t count = sizes[i] >= 4 << 20 ? CHUNKS / 4 : CHUNKS;
        meet(fd);
        if (rank == 0) {
            double lone = send_chunks(20, sizes[i], 1) / 20, s = send_chunks(count, sizes[i], 64);
            double rate = (double)count * (double)sizes[i] / s * 1e-9;
            printf("%s %8llu B: %6.1f GB/s, one alone %.1f us\n", staged ? "staged" : "direct",
                   (unsigned long long)sizes[i], rate, lone * 1e6);
            fflush(stdout);
            too_slow |= sizes[i] >= 1 << 20 && rate < least;
        }
        if (rank == 0)
            MUST(write(fd, "x", 1) == 1);
        else
            /* a staged rank moves on what arrives */
            for (char byte; recv(fd, &byte, 1, MSG_DONTWAIT) != 1;)
                fabric->ops->poll(fabric, &c, 1);
    }
}

static int run(uint32_t own, int fd, const char *options, int benches, double least)
{
    int staged = strstr(options, "refuse") != NULL;
    rank = own;
    alarm(50);
    setenv("SOFTNIC", options, 1);
    open_all(fd, staged);
    if (benches)
        bench(fd, staged, least);
    else
        check(fd);
    meet(fd);
    fabric->ops->close(fabric);
    cuda_register_close();
    return too_slow;
}

static int pair(const char *options, int benches, double least)
{
    int fds[2], status = 0, failed = 0;
    pid_t pids[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, fds))
        return 1;
    fflush(NULL);
    for (uint32_t i = 0; i < 2; i++)
        if (!(pids[i] = fork())) {
            close(fds[1 - i]);
            exit(run(i, fds[i], options, benches, least));
        }
    close(fds[0]);
    close(fds[1]);
    for (int i = 0; i < 2; i++) {
        waitpid(pids[i], &status, 0);
        failed |= status;
    }
    printf("%s SOFTNIC=%s: %s\n", benches ? "bench" : "check", options, failed ? "FAILED" : "ok");
    return failed != 0;
}

static int no_gpu(void)
{
    int status, fds = fork(); /* this process must not start CUDA: its children do */
    if (!fds) {
        int n = 0, major = 0;
        _exit(cudaGetDeviceCount(&n) == cudaSuccess && n &&
                      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) ==
                          cudaSuccess &&
                      major >= 9
                  ? 0
                  : 1);
    }
    return waitpid(fds, &status, 0) < 0 || status;
}

int main(int argc, char **argv)
{
    int benches = argc > 1 && !strcmp(argv[1], "bench");
    if (no_gpu()) {
        printf("skipped: no Hopper GPU\n");
        return 77;
    }
    int failed = pair("", benches, argc > 2 ? atof(argv[2]) / 1000 : 0);
    if (benches)
        failed |= pair("bw=unlimited,latency=0ns", 1, 0);
    return failed | pair(benches ? "gpu=refuse,bw=unlimited" : "gpu=refuse", benches, 0);
}
