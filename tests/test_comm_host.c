/* Over the real bootstrap and the host executor, AllGather+GEMM on one node is right on every rank,
 * launch after launch; and when a rank is killed, the others say which, and what they were waiting
 * for. */
#include "core/comm/comm.h"
#include "tests/helpers/job.h"

#include <math.h>

#include "tests/helpers/test.h"

enum { M = 36, N = 40, K = 24, LAUNCHES = 7 };

static uint16_t to_bf16(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static float from_bf16(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    float x;
    memcpy(&x, &u, 4);
    return x;
}

/* Element i of a matrix of rank `rank` in launch `launch`: any rank can make any other's. */
static uint16_t element(uint32_t rank, uint32_t launch, uint32_t matrix, uint32_t i)
{
    uint32_t x = (rank * 31 + launch * 7 + matrix * 3 + 1) * 2654435761u + i * 40503u;
    x ^= x >> 13;
    x *= 2246822519u;
    return to_bf16((float)(int32_t)(x ^ x >> 16) / 2147483648.0f);
}

static void open_config(const struct bootstrap_config *c, struct mk_config *m)
{
    memset(m, 0, sizeof *m);
    m->version = MK_VERSION_NUMBER;
    m->exec = MK_EXEC_HOST;
    m->rank = c->rank;
    m->nodes = 1;
    m->gpus = c->world;
    memcpy(m->host, c->host, sizeof m->host);
    memcpy(m->token, c->token, sizeof m->token);
    m->port = c->port;
    m->listen_fd = c->listen_fd;
    m->heap_bytes = 1 << 20;
    m->timeout_ns = c->timeout_ns;
}

static int wrong(const struct bootstrap_config *c, uint32_t launch, const uint16_t *got)
{
    uint32_t shard = M / c->world;
    for (uint32_t row = 0; row < M; row++)
        for (uint32_t col = 0; col < N; col++) {
            double sum = 0, size = 0;
            for (uint32_t k = 0; k < K; k++) {
                double p = (double)from_bf16(element(row / shard, launch, 0, row % shard * K + k)) *
                           (double)from_bf16(element(c->rank, launch, 1, k * N + col));
                sum += p;
                size += fabs(p);
            }
            /* One rounding to bf16 (half of 2^-7), and K roundings of float32 on the way. */
            if (!(fabs((double)from_bf16(got[row * N + col]) - sum) <=
                  fabs(sum) / 256 + size * K * 1.2e-7))
                return (int)(row * N + col) + 1;
        }
    return 0;
}

struct buffers {
    uint16_t *a, *b, *c;
};

static int launch(struct mk_plan *plan, const struct bootstrap_config *c, uint32_t number,
                  struct buffers *m)
{
    uint32_t shard = M / c->world;
    m->a = aligned_alloc(16, mk_round_up(shard * K * 2, 16));
    m->b = aligned_alloc(16, mk_round_up(K * N * 2, 16));
    m->c = aligned_alloc(16, mk_round_up(M * N * 2, 16));
    for (uint32_t i = 0; i < shard * K; i++)
        m->a[i] = element(c->rank, number, 0, i);
    for (uint32_t i = 0; i < K * N; i++)
        m->b[i] = element(c->rank, number, 1, i);
    memset(m->c, 0x7f, M * N * 2); /* a NaN: an element that is not written is wrong */
    return mk_ag_gemm(plan, m->a, m->b, m->c, NULL);
}

static void release(struct buffers *m)
{
    free(m->a);
    free(m->b);
    free(m->c);
}

static int run_launches(const struct bootstrap_config *c, char *text, size_t size, void *argument)
{
    struct mk_config config;
    struct mk_comm *comm;
    struct mk_plan *plan;
    struct buffers m[LAUNCHES] = {0};
    struct mk_problem q = {.op = MK_OP_AG_GEMM, .m = M, .n = N, .k = K};
    q.tuning.tile_m = q.tuning.tile_n = q.tuning.chunk_rows = 8;
    open_config(c, &config);
    int result = mk_comm_open(&comm, &config);
    if (!result)
        result = comm_make_plan(&plan, comm, &q);
    for (uint32_t i = 0; i < LAUNCHES && !result; i++)
        result = launch(plan, c, i, &m[i]);
    if (!result)
        result = mk_wait(comm);
    if (result)
        snprintf(text, size, "%s", mk_error(comm));
    for (uint32_t i = 0; i < LAUNCHES; i++) {
        int bad = result ? 0 : wrong(c, i, m[i].c);
        if (bad) {
            snprintf(text, size, "launch %u is wrong at row %d, col %d", i, (bad - 1) / N,
                     (bad - 1) % N);
            result = -1;
        }
    }
    mk_comm_close(comm);
    for (uint32_t i = 0; i < LAUNCHES; i++)
        release(&m[i]);
    return result;
}

CASE(every_launch_is_right)
{
    for (uint32_t world = 1; world <= 4; world += world) {
        struct job j;
        job_init(&j, world, 30);
        job_start_all(&j, run_launches, NULL);
        job_finish(&j);
        for (uint32_t r = 0; r < world; r++) {
            assert_string_equal(j.reports[r].text, "");
            assert_true(j.reports[r].came);
            assert_int_equal(j.reports[r].result, 0);
        }
    }
}

/* Rank 2 dies before its first launch, when the others are waiting for its rows. */
static int lose_rank_2(const struct bootstrap_config *c, char *text, size_t size, void *argument)
{
    struct mk_config config;
    struct mk_comm *comm;
    struct mk_plan *plan;
    struct buffers m = {0};
    struct mk_problem q = {.op = MK_OP_AG_GEMM, .m = M, .n = N, .k = K};
    open_config(c, &config);
    int result = mk_comm_open(&comm, &config);
    if (!result)
        result = comm_make_plan(&plan, comm, &q);
    if (!result && c->rank == 2) {
        job_sleep(0.2);
        raise(SIGKILL);
    }
    if (!result)
        result = launch(plan, c, 0, &m);
    if (!result)
        result = mk_wait(comm);
    snprintf(text, size, "%s", mk_error(comm));
    mk_comm_close(comm);
    release(&m);
    return result;
}

CASE(a_killed_rank_is_named_with_the_chunk)
{
    struct job j;
    job_init(&j, 4, 20);
    job_start_all(&j, lose_rank_2, NULL);
    job_finish(&j);
    for (uint32_t r = 0; r < 4; r++) {
        if (r == 2)
            continue;
        assert_true(j.reports[r].came);
        assert_int_equal(j.reports[r].result, -EIO);
        assert_non_null(strstr(j.reports[r].text, "ag_gemm: rank 2 is lost"));
        assert_non_null(
            strstr(j.reports[r].text, "was waiting for chunk 0 of rank 2's A in epoch 1"));
        assert_string_equal(j.reports[r].text, j.reports[0].text);
        assert_true(job_ended_within(&j, r, 2.5));
    }
}
