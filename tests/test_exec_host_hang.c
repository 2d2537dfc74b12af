/* A CTA that hangs in its tile's math: the launch ends with a sentence that names it, a thread that
 * waits comes back, and the communicator can be closed. The library that hangs is this program's
 * own sgemm. */
/* WAITS */
#include "core/comm/comm.h"
#include "tests/helpers/sanitized.h"

#include <cblas.h>
#include <time.h>
#include <unistd.h>
#include "tests/helpers/test.h"

enum { M = 64, N = 64, K = 64 };

static int hangs, slow_ms; /* hangs: 1: until `released` */
static int released;

void cblas_sgemm(const enum CBLAS_ORDER order, const enum CBLAS_TRANSPOSE ta,
                 const enum CBLAS_TRANSPOSE tb, const blasint m, const blasint n, const blasint k,
                 const float alpha, const float *a, const blasint lda, const float *b,
                 const blasint ldb, const float beta, float *c, const blasint ldc)
{
    while (__atomic_load_n(&hangs, __ATOMIC_RELAXED) &&
           !__atomic_load_n(&released, __ATOMIC_RELAXED))
        usleep(10000);
    usleep((useconds_t)slow_ms * 1000);
    memset(c, 0, (size_t)m * (size_t)n * sizeof *c);
}

static struct mk_comm *comm;
static struct mk_plan *plan;
static uint16_t *a, *b, *c;

static void open_one(uint64_t timeout_ns)
{
    struct mk_config config = {.version = MK_VERSION_NUMBER,
                               .exec = MK_EXEC_HOST,
                               .nodes = 1,
                               .gpus = 1,
                               .listen_fd = -1,
                               .timeout_ns = timeout_ns,
                               .tuning = "none"};
    struct mk_problem problem = {.op = MK_OP_AG_GEMM, .exec = MK_EXEC_HOST, .m = M, .n = N, .k = K};
    problem.tuning.tile_m = problem.tuning.tile_n = 16; /* 16 tiles */
    if (mk_comm_open(&comm, &config) || comm_make_plan(&plan, comm, &problem))
        fail_msg("%s", mk_error(comm));
    a = calloc(M * K, 2);
    b = calloc(K * N, 2);
    c = calloc(M * N, 2);
    assert_true(a && b && c);
}

static void free_all(void)
{
    free(a);
    free(b);
    free(c);
}

/* Sixteen tiles of a fifth of the timeout: no wait is too long, and all together take three times
 * as long. */
CASE(test_slow_tiles)
{
    open_one(1000000000);
    slow_ms = 200;
    double start = test_seconds();
    assert_int_equal(mk_ag_gemm(plan, a, b, c, NULL), 0);
    assert_int_equal(mk_wait(comm), 0);
    assert_true(test_seconds() - start >= 3);
    slow_ms = 0;
    mk_comm_close(comm);
    free_all();
}

static void expect_hang(double start, double least, double most)
{
    const char *text = mk_error(comm);
    double took = test_seconds() - start;
    if (took < least || took > most * SLOWDOWN)
        fail_msg("it took %.2f s, not %.1f to %.1f", took, least, most);
    if (!strstr(text, "ag_gemm: rank 0 CTA ") ||
        !strstr(text, "its own computation to go on in epoch 1"))
        fail_msg("\"%s\"", text);
    start = test_seconds();
    mk_comm_close(comm);
    assert_true(test_seconds() - start < 2.5 * SLOWDOWN);
}

CASE(test_hang)
{
    open_one(1000000000);
    hangs = 1;
    released = 0;
    double start = test_seconds();
    assert_int_equal(mk_ag_gemm(plan, a, b, c, NULL), 0);
    assert_int_equal(mk_wait(comm), -EIO);
    expect_hang(start, 1, 5);
    /* It comes back when all is closed: what it touches is still there. */
    released = 1;
    sleep(1);
    hangs = 0;
    free_all();
}

/* Launches beyond those that may be asked for wait, too. */
CASE(test_hang_with_a_full_queue)
{
    int result = 0;
    open_one(1000000000);
    hangs = 1;
    released = 0;
    double start = test_seconds();
    for (int i = 0; i < 400 && !result; i++)
        result = mk_ag_gemm(plan, a, b, c, NULL);
    assert_int_not_equal(result, 0);
    assert_int_equal(mk_wait(comm), -EIO);
    expect_hang(start, 1, 6);
    released = 1;
    sleep(1);
    hangs = 0;
    free_all();
}
