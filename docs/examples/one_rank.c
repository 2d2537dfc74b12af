/* One rank of one: C = A * B on the host executor. docs/GUIDE.md shows this program. */
#include <mkernel/mkernel.h>

#include <stdio.h>
#include <stdlib.h>

enum { M = 256, N = 512, K = 512 };

static int multiply(const void *a, const void *b, void *c) /* bf16: A [M, K], B [K, N], C [M, N] */
{
    struct mk_config config = {
        .version = MK_VERSION_NUMBER, .nodes = 1, .gpus = 1, .exec = MK_EXEC_HOST};
    struct mk_spec spec = {.op = MK_OP_AG_GEMM, .shape = {M, N, K}};
    struct mk_comm *comm;
    struct mk_plan *plan;
    int rc = mk_comm_open(&comm, &config);
    if (!rc && !(rc = mk_plan_create(&plan, comm, &spec)) &&
        !(rc = mk_ag_gemm(plan, a, b, c, NULL)))
        rc = mk_wait(comm);
    if (rc)
        fprintf(stderr, "%s\n", mk_error(comm));
    mk_comm_close(comm);
    return rc;
}

int main(void)
{
    uint16_t *a = aligned_alloc(16, 2 * M * K), *b = aligned_alloc(16, 2 * K * N),
             *c = aligned_alloc(16, 2 * M * N);
    if (!a || !b || !c)
        return 1;
    for (int i = 0; i < M * K; i++)
        a[i] = 0x3f80; /* 1 */
    for (int i = 0; i < K * N; i++)
        b[i] = 0x4000; /* 2 */
    if (multiply(a, b, c))
        return 1;
    printf("%#x\n", c[M * N - 1]); /* 0x4480: 1024, which is 2 K */
    return 0;
}
