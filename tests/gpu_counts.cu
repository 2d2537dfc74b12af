/* One captured CUDA graph serves every batch: a launch of each MoE operator whose plan reads how many
 * tokens there are ("tokens=launch") is captured once and replayed 200 times, each time with other
 * counts and other experts on each rank. Its results have the bits of a plan that is told the same by
 * ids that name no expert; what is behind the count is not written. In the end more tokens than there
 * is room for end the launch on both ranks.
 *
 *   gpu_counts check        needs two Hopper GPUs */
#include "tests/helpers/gpu_numbers.cuh"
#include "tests/helpers/gpu_pair.cuh"

enum { TOKENS = 75, EXPERTS = 16, K = 4, REPLAYS = 200, ARGUMENTS = 8, NONE = -1 };

struct moe_case {
    uint32_t op;
    uint64_t shape[MK_SHAPE];
};

static const struct moe_case cases[] = {
    {MK_OP_MOE_DISPATCH, {TOKENS, 520, EXPERTS, K}},
    {MK_OP_MOE_COMBINE, {TOKENS, 520, EXPERTS, K}},
    {MK_OP_MOE_DISPATCH_GEMM, {TOKENS, 256, 264, EXPERTS, K}},
    {MK_OP_MOE_FFN, {TOKENS, 256, 264, EXPERTS, K}},
};

/* Both plans' arguments: those that they share are the same memory. */
struct operands {
    struct mk_plan *counted, *told;
    void *of_counted[ARGUMENTS + 1], *of_told[ARGUMENTS];
    char *host[2]; /* of an output */
    uint64_t bytes[ARGUMENTS];
    uint32_t count, ids, table, made; /* which; table, made: NONE where there is none */
    int is_y;                         /* `made` is rows of tokens, not of experts */
};

static int operands_open(struct operands *o, uint32_t rank)
{
    uint64_t most = 0;
    o->count = mk_plan_arguments(o->told);
    o->table = o->made = o->ids = (uint32_t)NONE;
    for (uint32_t i = 0; i < o->count; i++) {
        const char *type = mk_plan_argument_type(o->told, i);
        const int is_output = mk_plan_argument_is_output(o->told, i), number = *type == 'u';
        o->bytes[i] = mk_plan_argument_bytes(o->told, i);
        if (number)
            *(is_output ? &o->table : &o->ids) = i;
        else if (is_output)
            o->made = i;
        most = o->bytes[i] > most ? o->bytes[i] : most;
        o->of_counted[i] = device_numbers(o->bytes[i], *type == 'f', rank * 8 + i);
        o->of_told[i] = is_output || number ? device_numbers(o->bytes[i], 0, 0) : o->of_counted[i];
        if (!o->of_counted[i] || !o->of_told[i])
            return -1;
    }
    o->is_y = !strcmp(mk_plan_argument_name(o->told, o->made), "Y");
    for (int i = 0; i < 2; i++)
        if (!(o->host[i] = (char *)malloc(most)))
            return -1;
    return cudaMalloc(&o->of_counted[o->count], 4) ? -1 : 0;
}

static void operands_close(struct operands *o)
{
    for (uint32_t i = 0; i < o->count; i++) {
        if (o->of_told[i] != o->of_counted[i])
            cudaFree(o->of_told[i]);
        cudaFree(o->of_counted[i]);
    }
    cudaFree(o->of_counted[o->count]);
    free(o->host[0]);
    free(o->host[1]);
}

/* Experts of all tokens, of which the first `tokens` are there; outputs that nobody has written. */
static int operands_fill(struct operands *o, uint32_t tokens, uint64_t *random)
{
    uint32_t named[TOKENS * K], told[TOKENS * K];
    int failed = 0;
    for (uint32_t i = 0; i < TOKENS * K; i++) {
        const uint32_t first = i % K ? named[i - 1] : random_below(random, EXPERTS);
        named[i] = i % K ? (first + 1) % EXPERTS : first;
        told[i] = i < tokens * K ? named[i] : UINT32_MAX;
    }
    failed |= cudaMemcpy(o->of_counted[o->ids], named, sizeof named, cudaMemcpyDefault);
    failed |= cudaMemcpy(o->of_told[o->ids], told, sizeof told, cudaMemcpyDefault);
    failed |= cudaMemcpy(o->of_counted[o->count], &tokens, sizeof tokens, cudaMemcpyDefault);
    for (uint32_t i = 0; i < o->count; i++)
        if (i != o->ids && o->of_told[i] != o->of_counted[i]) {
            failed |= cudaMemset(o->of_counted[i], 0xff, o->bytes[i]);
            failed |= cudaMemset(o->of_told[i], 0xff, o->bytes[i]);
        }
    return failed || cudaDeviceSynchronize() ? -1 : 0;
}

static int operands_fetch(struct operands *o, uint32_t i)
{
    return cudaMemcpy(o->host[0], o->of_counted[i], o->bytes[i], cudaMemcpyDefault) ||
           cudaMemcpy(o->host[1], o->of_told[i], o->bytes[i], cudaMemcpyDefault);
}

/* Bytes [begin, end) of an output are alike. */
static int alike(const struct operands *o, uint64_t begin, uint64_t end)
{
    return !memcmp(o->host[0] + begin, o->host[1] + begin, end - begin);
}

/* 0: right. */
static int operands_check(struct operands *o, uint32_t tokens)
{
    uint32_t table[2 * EXPERTS / GPUS] = {};
    if (o->table != (uint32_t)NONE) {
        if (operands_fetch(o, o->table) || !alike(o, 0, o->bytes[o->table]))
            return 1;
        memcpy(table, o->host[0], sizeof table);
    }
    if (operands_fetch(o, o->made))
        return 1;
    const uint64_t bytes = o->bytes[o->made];
    if (o->is_y) {
        const uint64_t row = bytes / TOKENS;
        for (uint64_t i = tokens * row; i < bytes; i++)
            if ((unsigned char)o->host[0][i] != 0xff)
                return 1;
        return !alike(o, 0, tokens * row);
    }
    const uint64_t row = bytes / mk_moe_rows(o->told);
    for (uint32_t e = 0; e < EXPERTS / GPUS; e++)
        if (!alike(o, table[2 * e] * row, (table[2 * e] + table[2 * e + 1]) * row))
            return 1;
    return 0;
}

static int capture(struct operands *o, cudaStream_t stream, cudaGraphExec_t *out)
{
    cudaGraph_t graph = NULL;
    if (cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal))
        return -1;
    int result = mk_launch(o->counted, o->of_counted, o->count + 1, stream);
    if (cudaStreamEndCapture(stream, &graph) || cudaGraphInstantiate(out, graph, 0))
        result = -1;
    if (graph)
        cudaGraphDestroy(graph);
    return result;
}

/* 0; 1: wrong; below 0: mk_error says why. */
static int run_case(struct mk_comm *comm, const struct moe_case *of, uint32_t rank, int last)
{
    struct operands o = {};
    struct mk_spec spec = {};
    cudaStream_t stream = NULL;
    cudaGraphExec_t graph = NULL;
    uint64_t random = 977 * (rank + 1) + of->op;
    uint32_t none = 0;
    spec.op = of->op;
    memcpy(spec.shape, of->shape, sizeof spec.shape);
    int result = mk_plan_create(&o.told, comm, &spec);
    spec.options = "tokens=launch";
    if (!result)
        result = mk_plan_create(&o.counted, comm, &spec);
    if (!result)
        result = operands_open(&o, rank) || cudaStreamCreate(&stream) || capture(&o, stream, &graph)
                     ? -1
                     : 0;
    for (int i = 0; i < REPLAYS && !result; i++) {
        const uint32_t tokens = random_below(&random, 5) ? random_below(&random, TOKENS + 1) : 0;
        none += !tokens;
        result = operands_fill(&o, tokens, &random);
        if (!result)
            result = cudaGraphLaunch(graph, stream) ? -1 : 0;
        if (!result)
            result = mk_launch(o.told, o.of_told, o.count, stream);
        if (!result)
            result = mk_wait_stream(comm, stream);
        if (!result && operands_check(&o, tokens)) {
            fprintf(stderr, "rank %u: %s is wrong in replay %d, of %u tokens\n", rank,
                    mk_op_name((enum mk_op)of->op), i, tokens);
            result = 1;
        }
    }
    if (!result)
        printf("rank %u: %s: a graph replayed with %d counts, %u of them 0: right\n", rank,
               mk_op_name((enum mk_op)of->op), REPLAYS, none);
    if (!result && last) {
        result = operands_fill(&o, TOKENS, &random);
        const int32_t too_many = rank ? TOKENS + 1 : TOKENS;
        cudaMemcpy(o.of_counted[o.count], &too_many, 4, cudaMemcpyDefault);
        if (!result)
            result = cudaGraphLaunch(graph, stream) ? -1 : 0;
        const char *says = mk_wait_stream(comm, stream) ? mk_error(comm) : "nothing";
        if (!strstr(says, "rank 1 has 76 tokens by its count")) {
            fprintf(stderr, "rank %u, of one token too many: %s\n", rank, says);
            result = 1;
        }
    }
    if (graph)
        cudaGraphExecDestroy(graph);
    if (stream)
        cudaStreamDestroy(stream);
    operands_close(&o);
    return result;
}

static int rank_main(int rank, int listener, unsigned port)
{
    struct mk_comm *comm;
    const uint32_t count = sizeof cases / sizeof *cases;
    int result = pair_open(&comm, rank, listener, port, "counts");
    for (uint32_t i = 0; i < count && !result; i++)
        result = run_case(comm, &cases[i], rank, i + 1 == count);
    if (result < 0)
        fprintf(stderr, "rank %u: %s\n", rank, mk_error(comm));
    mk_comm_close(comm);
    fflush(stdout);
    return result != 0;
}

int main(void)
{
    if (too_few_gpus(GPUS)) {
        printf("skipped: fewer than %d Hopper GPUs\n", GPUS);
        return 77;
    }
    return pair_run(rank_main);
}
