/* AllGather+GEMM over two nodes is right where the heap is memory that the CPU does not write.
 * Where the NIC cannot reach that of one rank, all ranks stage, over either fabric; where it can,
 * verbs needs no copy, and the efa fabric copies flags alone. The heap is the host executor's, said
 * to be a GPU's; its owner copies. */
#include "backends/efa/efa_imm.h"
#include "tests/helpers/fake_copier.h"
#include "tests/helpers/job.h"

#include "tests/helpers/test.h"

enum { M = 64, N = 24, K = 32, NODES = 2, LAUNCHES = 6 };

static const struct way {
    const char *fabric;
    int refused; /* rank 0's memory, by the NIC */
    int copies_out, copies_in;
} ways[] = {{"verbs", 1, 1, 1}, {"verbs", 0, 0, 0}, {"efa", 1, 1, 1}, {"efa", 0, 0, 1}};

static int open_as_gpu(struct mk_comm *comm)
{
    int result = exec_host.open(comm);
    comm->heap.memory = MK_MEMORY_CUDA;
    mr_provide(MK_MEMORY_CUDA, &fake_copier_ops);
    return result;
}

/* Small whole numbers: bf16 and every order of summation are exact. */
static float element(uint32_t rank, uint32_t launch, uint32_t i)
{
    return (float)((rank * 5 + launch * 3 + i * 7) % 5) - 2;
}

static uint16_t to_bf16(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    return (uint16_t)(u >> 16);
}

static int wrong(uint32_t rank, uint32_t world, uint32_t launch, const uint16_t *c)
{
    uint32_t shard = M / world;
    for (uint32_t row = 0; row < M; row++)
        for (uint32_t col = 0; col < N; col++) {
            float sum = 0;
            for (uint32_t k = 0; k < K; k++)
                sum += element(row / shard, launch, row % shard * K + k) *
                       element(rank + 100, launch, k * N + col);
            if (c[row * N + col] != to_bf16(sum))
                return 1;
        }
    return 0;
}

static int run(const struct bootstrap_config *c, char *text, size_t size, void *argument)
{
    const struct way *way = argument;
    struct mk_exec_ops exec = exec_host;
    struct mk_config config = {.exec = MK_EXEC_HOST,
                               .rank = c->rank,
                               .nodes = NODES,
                               .gpus = c->world / NODES,
                               .port = c->port,
                               .listen_fd = c->listen_fd,
                               .heap_bytes = 1 << 20,
                               .timeout_ns = c->timeout_ns};
    struct mk_comm *comm;
    struct mk_plan *plan;
    struct mk_problem q = {.op = MK_OP_AG_GEMM, .m = M, .n = N, .k = K};
    uint16_t *a = aligned_alloc(16, M * K * 2), *b = aligned_alloc(16, K * N * 2),
             *out = aligned_alloc(16, M * N * 2);
    exec.open = open_as_gpu;
    q.tuning.tile_m = q.tuning.tile_n = q.tuning.chunk_rows = 8;
    memcpy(config.host, c->host, sizeof config.host);
    memcpy(config.token, c->token, sizeof config.token);
    snprintf(config.nic, sizeof config.nic, "soft");
    snprintf(config.fabric, sizeof config.fabric, "%s", way->fabric);
    fake_copier.lag = 2;
    fake_copier.unordered = way->refused && c->rank == 0;
    int result = comm_open_with(&comm, &config, &exec, &net_fabric);
    if (!result)
        result = comm_make_plan(&plan, comm, &q);
    for (uint32_t launch = 0; launch < LAUNCHES && !result; launch++) {
        for (uint32_t i = 0; i < M / c->world * K; i++)
            a[i] = to_bf16(element(c->rank, launch, i));
        for (uint32_t i = 0; i < K * N; i++)
            b[i] = to_bf16(element(c->rank + 100, launch, i));
        memset(out, 0x7f, M * N * 2);
        result = mk_ag_gemm(plan, a, b, out, NULL);
        if (!result)
            result = mk_wait(comm);
        if (!result && wrong(c->rank, c->world, launch, out)) {
            snprintf(text, size, "launch %u is wrong", launch);
            result = -1;
        }
    }
    if (result && !text[0])
        snprintf(text, size, "%s", mk_error(comm));
    mk_comm_close(comm);
    if (!result && ((fake_copier.ended[MEMORY_TO_HOST] > 0) != way->copies_out ||
                    (fake_copier.ended[MEMORY_FROM_HOST] > 0) != way->copies_in)) {
        snprintf(text, size, "%llu copies to the host and %llu from it",
                 (unsigned long long)fake_copier.ended[MEMORY_TO_HOST],
                 (unsigned long long)fake_copier.ended[MEMORY_FROM_HOST]);
        result = -1;
    }
    free(a);
    free(b);
    free(out);
    return result;
}

static void right(const struct way *way)
{
    for (uint32_t world = 2; world <= 4; world += 2) {
        struct job j;
        job_init(&j, world, 30);
        job_start_all(&j, run, (void *)(uintptr_t)way);
        job_finish(&j);
        for (uint32_t r = 0; r < world; r++)
            if (!j.reports[r].came || j.reports[r].result || j.reports[r].text[0])
                fail_msg("%s, %s, rank %u of %u: %s", way->fabric,
                         way->refused ? "staged" : "direct", r, world, j.reports[r].text);
    }
}

CASE(test_verbs)
{
    for (int i = 0; i < 2; i++)
        right(&ways[i]);
}

CASE(test_efa)
{
#ifdef MK_HAVE_EFA
    setenv("SOFTNIC", "reorder=300us", 1);
    for (int i = 2; i < 4; i++)
        right(&ways[i]);
#else
    print_message("skipped: this build is without <infiniband/efadv.h>\n");
    skip();
#endif
}

/* A GPU's heap has by default no more flags than an immediate names, so that the efa fabric opens
 * over it. */
CASE(test_default_flags)
{
    const struct mk_config config = {
        .exec = MK_EXEC_CUDA, .nodes = 1, .gpus = 1, .listen_fd = -1, .heap_bytes = 1 << 20};
    struct mk_comm *comm;
    assert_int_equal(comm_open_with(&comm, &config, &exec_host, NULL), 0);
    assert_int_equal(comm->heap.memory, MK_MEMORY_CUDA);
    assert_in_range(comm->heap.flag_bytes / 8, 1 << 16, EFA_MAX_FLAGS);
    mk_comm_close(comm);
}
