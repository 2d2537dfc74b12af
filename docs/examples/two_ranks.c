/* Two ranks as two processes: each has half of K, and gets half of the rows of the sum of both
 * products (gemm_rs).
 *
 *   two_ranks 0 PORT & two_ranks 1 PORT
 *
 * Several hosts: config.host is rank 0's, the same everywhere; config.nodes counts the hosts, and
 * config.gpus the ranks of each. */
#include <mkernel/mkernel.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 2, M = 256, N = 128, K = 192 };

static uint16_t bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)(bits >> 16); /* exact for the small numbers here */
}

static void fill(uint16_t *out, int count, float value)
{
    for (int i = 0; i < count; i++)
        out[i] = bf16(value);
}

/* Says what went wrong, leaves the job, and gives the exit status. */
static int end(struct mk_comm *comm, uint32_t rank, int rc)
{
    if (rc)
        fprintf(stderr, "rank %u: %s\n", rank, mk_error(comm));
    mk_comm_close(comm);
    return rc != 0;
}

int main(int argc, char **argv)
{
    static uint16_t a[M * K] __attribute__((aligned(16))), b[K * N] __attribute__((aligned(16))),
        c[M / RANKS * N] __attribute__((aligned(16)));
    if (argc != 3) {
        fprintf(stderr, "usage: two_ranks RANK PORT\n");
        return 2;
    }
    uint32_t rank = (uint32_t)atoi(argv[1]);
    const char *token = getenv("MKERNEL_TOKEN"); /* whoever knows it may join */
    struct mk_config config = {.version = MK_VERSION_NUMBER,
                               .rank = rank,
                               .nodes = 1,
                               .gpus = RANKS,
                               .exec = MK_EXEC_HOST,
                               .host = "127.0.0.1",
                               .port = (uint16_t)atoi(argv[2])};
    struct mk_spec spec = {.op = MK_OP_GEMM_RS, .shape = {M, N, K}, .deterministic = 1};
    struct mk_comm *comm;
    struct mk_plan *plan;
    snprintf(config.token, sizeof config.token, "%s", token ? token : "an example's");
    int rc = mk_comm_open(&comm, &config);
    if (!rc)
        rc = mk_plan_create(&plan, comm, &spec);
    if (rc)
        return end(comm, rank, rc);
    printf("rank %u: %u tiles, %llu bytes from the other rank, plan %s\n", rank,
           mk_plan_tiles(plan), (unsigned long long)mk_plan_nvlink_bytes(plan),
           mk_plan_options(plan));
    for (int launch = 1; launch <= 3 && !rc; launch++) {
        fill(a, M * K, (float)(launch * (rank + 1)));
        fill(b, K * N, 1);
        rc = mk_gemm_rs(plan, a, b, c, NULL);
        if (!rc)
            rc = mk_wait(comm); /* then A and B may be written again, and C read */
        for (int i = 0; i < M / RANKS * N && !rc; i++)
            if (c[i] != bf16((float)(launch * 3 * K))) { /* K * launch * (1 + 2) */
                fprintf(stderr, "rank %u: launch %d: C[%d] is wrong\n", rank, launch, i);
                mk_comm_close(comm);
                return 1;
            }
    }
    if (!rc)
        printf("rank %u: 3 launches are right\n", rank);
    return end(comm, rank, rc);
}
