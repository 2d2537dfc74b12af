/* AllGather+GEMM over two nodes is right where the NIC cannot reach the heap of one rank: then all ranks
 * stage. The heap is the host executor's, said to be a GPU's; its owner copies. */
#include "tests/helpers/fake_copier.h"
#include "tests/helpers/job.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { M = 64, N = 24, K = 32, NODES = 2, LAUNCHES = 6 };

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
    fake_copier.lag = 2;
    fake_copier.unordered = c->rank == 0; /* one rank's GPU is enough */
    int result = comm_open_with(&comm, &config, &exec, &net_fabric);
    if (!result)
        result = mk_plan_create(&plan, comm, &q);
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
    if (!result && !fake_copier.made) {
        snprintf(text, size, "nothing was staged");
        result = -1;
    }
    free(a);
    free(b);
    free(out);
    return result;
}

static void right_over_staged_puts(void **state)
{
    for (uint32_t world = 2; world <= 4; world += 2) {
        struct job j;
        job_init(&j, world, 30);
        job_start_all(&j, run, NULL);
        job_finish(&j);
        for (uint32_t r = 0; r < world; r++) {
            assert_string_equal(j.reports[r].text, "");
            assert_true(j.reports[r].came);
            assert_int_equal(j.reports[r].result, 0);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(right_over_staged_puts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
