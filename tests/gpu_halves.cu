/* Launches of moe_dispatch and moe_combine in two halves ("launch=halves") on two GPUs.
 *
 *   gpu_halves check    two batches begin, a kernel that fills the GPU, both end: captured in one CUDA graph and
 *                       replayed with other experts each time: rows and sums have the bits of whole launches
 *   gpu_halves bench    us of a launch in one piece, in halves, of the kernel, and of the kernel between the
 *                       halves, against both in turn: 16, 64 and 128 tokens a rank. Then the last two again
 *                       where in each turn one rank, one after the other, is late by the longer kernel
 *
 * Needs two Hopper GPUs. */
#include "tests/helpers/gpu_numbers.cuh"
#include "tests/helpers/gpu_pair.cuh"

#include <algorithm>

enum { MOST = 128, HIDDEN = 7168, EXPERTS = 64, K = 8, EACH = EXPERTS / GPUS };
enum { REPLAYS = 20, BURST = 20, ROUNDS = 15 };
static const uint32_t checked[] = {5, 46, MOST}, measured[] = {16, 64, MOST};

/* Turns of the kernel between, each about 20 ns. */
static const int fillers[] = {1000, 2500};

struct batch {
    uint32_t tokens;
    struct mk_plan *plans[2][2]; /* dispatch, combine; whole, halves */
    void *x, *weights, *rows[2], *y[2], *counts[2];
    uint32_t *ids;
    uint64_t rows_bytes;
};

/* The caller's work: all warps of all SMs multiply. */
__global__ void __launch_bounds__(512) filler_kernel(float *out, int turns)
{
    float sum = threadIdx.x, by = 1.0f - 1e-6f * blockIdx.x;
    for (int i = 0; i < turns; i++)
#pragma unroll
        for (int j = 0; j < 8; j++)
            sum = fmaf(sum, by, 1.0f);
    if (sum == -1)
        *out = sum;
}

struct filler {
    float *out;
    int turns, blocks;
};

static int batch_open(struct batch *b, struct mk_comm *comm, uint32_t tokens, uint32_t rank)
{
    static const char *const options[] = {"", "launch=halves"};
    int result = 0;
    *b = {};
    b->tokens = tokens;
    for (int op = 0; op < 2; op++)
        for (int halves = 0; halves < 2 && !result; halves++) {
            struct mk_spec spec = {};
            spec.op = op ? MK_OP_MOE_COMBINE : MK_OP_MOE_DISPATCH;
            const uint64_t shape[] = {tokens, HIDDEN, EXPERTS, K};
            memcpy(spec.shape, shape, sizeof shape);
            spec.options = options[halves];
            spec.timeout_ns = 3000000000;
            result = mk_plan_create(&b->plans[op][halves], comm, &spec);
        }
    if (result)
        return result;
    b->rows_bytes = mk_moe_rows(b->plans[0][0]) * HIDDEN * 2;
    b->x = device_numbers((uint64_t)tokens * HIDDEN * 2, 0, rank + 1);
    b->weights = device_numbers((uint64_t)tokens * K * 4, 1, rank + 9);
    for (int i = 0; i < 2; i++)
        if (cudaMalloc(&b->rows[i], b->rows_bytes) || cudaMemset(b->rows[i], 0, b->rows_bytes) ||
            cudaMalloc(&b->y[i], (uint64_t)tokens * HIDDEN * 2) ||
            cudaMalloc(&b->counts[i], EACH * 8))
            return -1;
    return b->x && b->weights && !cudaMalloc((void **)&b->ids, tokens * K * 4) ? 0 : -1;
}

/* Other experts, k different ones of a token. */
static int batch_fill(struct batch *b, uint64_t *random)
{
    static uint32_t ids[MOST * K];
    for (uint32_t i = 0; i < b->tokens; i++) {
        const uint32_t first = random_below(random, EXPERTS),
                       step = 1 + 2 * random_below(random, 8);
        for (uint32_t k = 0; k < K; k++)
            ids[i * K + k] = (first + k * step) % EXPERTS;
    }
    return cudaMemcpy(b->ids, ids, b->tokens * K * 4, cudaMemcpyDefault) ||
           cudaMemset(b->y[1], 0xff, (uint64_t)b->tokens * HIDDEN * 2) ||
           cudaMemset(b->counts[1], 0xff, EACH * 8) || cudaDeviceSynchronize();
}

static void batch_arguments(struct batch *b, int op, int halves, void *arguments[4])
{
    void *const dispatch[] = {b->x, b->ids, b->rows[halves], b->counts[halves]},
                *const combine[] = {b->rows[halves], b->ids, b->weights, b->y[halves]};
    memcpy(arguments, op ? combine : dispatch, 4 * sizeof *arguments);
}

static int batch_launch(struct batch *b, int op, int halves, cudaStream_t stream)
{
    void *arguments[4];
    batch_arguments(b, op, halves, arguments);
    return mk_launch(b->plans[op][halves], arguments, 4, stream);
}

static int batch_begin(struct batch *b, int op, cudaStream_t stream)
{
    void *arguments[4];
    batch_arguments(b, op, 1, arguments);
    return mk_launch_begin(b->plans[op][1], arguments, 4, stream);
}

static int batch_end(struct batch *b, int op, cudaStream_t stream)
{
    return mk_launch_end(b->plans[op][1], stream);
}

/* 0: what the halves have made has the bits of whole launches. */
static int batch_check(const struct batch *b)
{
    static char host[2][MOST * GPUS * HIDDEN * 2]; /* an expert has a token once */
    static uint32_t counts[2][2 * EACH];
    int failed = 0;
    for (int i = 0; i < 2; i++)
        failed |= cudaMemcpy(counts[i], b->counts[i], sizeof counts[i], cudaMemcpyDefault) ||
                  cudaMemcpy(host[i], b->y[i], (uint64_t)b->tokens * HIDDEN * 2, cudaMemcpyDefault);
    if (failed || memcmp(counts[0], counts[1], sizeof counts[0]) ||
        memcmp(host[0], host[1], (uint64_t)b->tokens * HIDDEN * 2))
        return 1;
    for (uint32_t e = 0; e < EACH && !failed; e++) {
        const uint64_t at = counts[0][2 * e] * (HIDDEN * 2ull),
                       bytes = counts[0][2 * e + 1] * (HIDDEN * 2ull);
        for (int i = 0; i < 2; i++)
            failed |= bytes > sizeof host[i] ||
                      cudaMemcpy(host[i], (char *)b->rows[i] + at, bytes, cudaMemcpyDefault);
        failed = failed || memcmp(host[0], host[1], bytes);
    }
    return failed;
}

static int filler_open(struct filler *f, int turns)
{
    int device = 0;
    f->turns = turns;
    return cudaGetDevice(&device) ||
                   cudaDeviceGetAttribute(&f->blocks, cudaDevAttrMultiProcessorCount, device) ||
                   cudaMalloc(&f->out, 4)
               ? -1
               : 0;
}

static int filler_launch(const struct filler *f, cudaStream_t stream)
{
    filler_kernel<<<f->blocks, 512, 0, stream>>>(f->out, f->turns);
    return cudaGetLastError() != cudaSuccess;
}

/* ---- what is captured ---- */

enum what { WHOLE, HALVES, FILLER, BETWEEN, IN_TURN, LATE_BETWEEN, LATE_IN_TURN, WHATS };

/* late: what the rank does first; NULL: nothing. */
static int enqueue(enum what what, struct batch *b, int op, const struct filler *f,
                   const struct filler *late, cudaStream_t stream)
{
    int failed = 0;
    if (what >= LATE_BETWEEN) {
        if (late)
            failed |= filler_launch(late, stream);
        what = what == LATE_BETWEEN ? BETWEEN : IN_TURN;
    }
    if (what == WHOLE || what == IN_TURN)
        failed |= batch_launch(b, op, 0, stream);
    if (what == HALVES || what == BETWEEN)
        failed |= batch_begin(b, op, stream);
    if (what >= FILLER)
        failed |= filler_launch(f, stream);
    if (what == HALVES || what == BETWEEN)
        failed |= batch_end(b, op, stream);
    return failed;
}

template <class body> static cudaGraphExec_t capture(cudaStream_t stream, body enqueues)
{
    cudaGraph_t graph = NULL;
    cudaGraphExec_t out = NULL;
    if (cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal))
        return NULL;
    const int failed = enqueues();
    if (cudaStreamEndCapture(stream, &graph) || failed || cudaGraphInstantiate(&out, graph, 0))
        return NULL;
    cudaGraphDestroy(graph);
    return out;
}

/* ---- check ---- */

static int check(struct mk_comm *comm, uint32_t rank, const struct filler *f, cudaStream_t stream)
{
    struct batch b[2];
    uint64_t random = 977 * (rank + 1);
    for (uint32_t tokens : checked) {
        for (int i = 0; i < 2; i++)
            if (int result = batch_open(&b[i], comm, tokens, rank))
                return result;
        cudaGraphExec_t graph = capture(stream, [&] {
            int failed = 0;
            for (int op = 0; op < 2; op++) {
                for (int i = 0; i < 2; i++)
                    failed |= batch_begin(&b[i], op, stream);
                failed |= filler_launch(f, stream);
                for (int i = 0; i < 2; i++)
                    failed |= batch_end(&b[i], op, stream);
            }
            return failed;
        });
        if (!graph)
            return -1;
        for (int replay = 0; replay < REPLAYS; replay++) {
            for (int i = 0; i < 2; i++)
                if (batch_fill(&b[i], &random))
                    return -1;
            if (cudaGraphLaunch(graph, stream))
                return -1;
            for (int i = 0; i < 2; i++)
                for (int op = 0; op < 2; op++)
                    if (batch_launch(&b[i], op, 0, stream))
                        return -1;
            if (mk_wait_stream(comm, stream))
                return -1;
            for (int i = 0; i < 2; i++)
                if (batch_check(&b[i])) {
                    fprintf(stderr, "rank %u: batch %d of %u tokens is wrong in replay %d\n", rank,
                            i, tokens, replay);
                    return 1;
                }
        }
        cudaGraphExecDestroy(graph);
        printf("rank %u: a graph of two batches of %u tokens in halves, replayed %d times: right\n",
               rank, tokens, REPLAYS);
    }
    return 0;
}

/* ---- bench ---- */

/* us of one of BURST launches in a graph, the median. In turn i rank i % GPUS is late. */
static double measure(struct mk_comm *comm, uint32_t rank, enum what what, struct batch *b, int op,
                      const struct filler *f, const struct filler *late, cudaStream_t stream)
{
    double us[ROUNDS];
    cudaEvent_t from, to;
    cudaEventCreate(&from);
    cudaEventCreate(&to);
    cudaGraphExec_t graph = capture(stream, [&] {
        int failed = 0;
        for (int i = 0; i < BURST; i++)
            failed |= enqueue(what, b, op, f, i % GPUS == (int)rank ? late : NULL, stream);
        return failed;
    });
    if (!graph)
        return -1;
    for (int round = -2; round < ROUNDS; round++) {
        float ms = 0;
        cudaEventRecord(from, stream);
        cudaGraphLaunch(graph, stream);
        cudaEventRecord(to, stream);
        if (mk_wait_stream(comm, stream))
            return -1;
        cudaEventElapsedTime(&ms, from, to);
        us[round < 0 ? 0 : round] = ms * 1000 / BURST;
    }
    cudaGraphExecDestroy(graph);
    std::sort(us, us + ROUNDS);
    return us[ROUNDS / 2];
}

static int bench(struct mk_comm *comm, uint32_t rank, const struct filler *of, cudaStream_t stream)
{
    uint64_t random = rank + 1;
    if (!rank)
        printf("us, 2 ranks, %d,E%d,k%d, medians of %d graphs of %d\n"
               "%-12s %6s %8s %8s %8s %9s %9s %13s %13s\n",
               HIDDEN, EXPERTS, K, ROUNDS, BURST, "operator", "tokens", "whole", "halves", "kernel",
               "in turn", "between", "late, in turn", "late, between");
    for (uint32_t tokens : measured) {
        struct batch b;
        if (int result = batch_open(&b, comm, tokens, rank))
            return result;
        if (batch_fill(&b, &random))
            return -1;
        for (int op = 0; op < 2; op++)
            for (int i = 0; i < 2; i++) {
                double us[WHATS];
                for (int what = 0; what < WHATS; what++)
                    if ((us[what] = measure(comm, rank, (enum what)what, &b, op, &of[i], &of[1],
                                            stream)) < 0)
                        return -1;
                if (!rank)
                    printf("%-12s %6u %8.1f %8.1f %8.1f %9.1f %9.1f %13.1f %13.1f\n",
                           op ? "moe_combine" : "moe_dispatch", tokens, us[WHOLE], us[HALVES],
                           us[FILLER], us[IN_TURN], us[BETWEEN], us[LATE_IN_TURN],
                           us[LATE_BETWEEN]);
            }
    }
    return 0;
}

static int is_bench;

static int rank_main(int rank, int listener, unsigned port)
{
    struct mk_comm *comm;
    struct filler of[2] = {};
    cudaStream_t stream = NULL;
    setvbuf(stdout, NULL, _IOLBF, 0);
    int result = pair_open(&comm, rank, listener, port, "halves");
    for (int i = 0; i < 2 && !result; i++)
        result = filler_open(&of[i], fillers[i]);
    if (!result)
        result = cudaSetDevice(rank) || cudaStreamCreate(&stream) ? -1 : 0;
    if (!result)
        result = is_bench ? bench(comm, rank, of, stream) : check(comm, rank, &of[0], stream);
    if (result < 0)
        fprintf(stderr, "rank %u: %s\n", rank, mk_error(comm));
    mk_comm_close(comm);
    fflush(stdout);
    return result != 0;
}

int main(int count, char **arguments)
{
    is_bench = count > 1 && !strcmp(arguments[1], "bench");
    if (too_few_gpus(GPUS)) {
        printf("skipped: fewer than %d Hopper GPUs\n", GPUS);
        return 77;
    }
    return pair_run(rank_main);
}
