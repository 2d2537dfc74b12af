/* Is what a GEMM operator ended with right? By another path than the executor's: whole matrices,
 * from inputs made anew. */
#include "experiments/ops/check_gemm_gpu.h"
#include "experiments/job/op.h"

#include <errno.h>
#include <stdlib.h>

/* What a GPU computed, a GPU checks, from the keys of the inputs (run_data_plain). */
static int gemm_check_gpu(const struct run_data *d, const void *c, uint64_t launch, int gathers,
                          int scatters, uint32_t roundings, struct check_result *result)
{
    const struct mk_problem *q = &d->job->problem;
    uint32_t world = mk_world(&q->topo), me = d->job->identity.rank;
    uint64_t rows = scatters ? q->m / world : q->m, keys[MK_MAX_RANKS];
    for (uint32_t i = 0; i < world; i++)
        keys[i] = run_data_key(d, 1 + (gathers ? me : i), launch);
    const struct check_gemm_gpu g = {.m = rows,
                                     .n = q->n,
                                     .k = q->k,
                                     .products = gathers ? 1 : world,
                                     .a_key = run_data_key(d, 0, launch),
                                     .a_first = scatters ? me * rows * q->k : 0,
                                     .a_step = q->m * q->k,
                                     .b_keys = keys,
                                     .c = c,
                                     .b_transposed = q->b_transposed,
                                     .roundings = roundings,
                                     .frobenius = roundings ? CHECK_FAST : 0};
    return check_gemm_gpu(&g, result);
}

/* One product is the reference: where ranks are summed over, every rank's A stands side by side,
 * and every rank's B below one another. */
int run_check_gemm(const struct run_data *d, const void *const arguments[RUN_ARGUMENTS],
                   uint64_t launch, const struct check_pace *pace, struct check_result *result,
                   int gathers, int scatters)
{
    const struct mk_problem *q = &d->job->problem;
    uint32_t world = mk_world(&q->topo), me = d->job->identity.rank;
    uint64_t shard = q->m / world, rows = scatters ? shard : q->m,
             depth = gathers ? q->k : world * q->k;
    uint64_t first = scatters ? me * shard : 0;
    /* Fast: each rank's product is rounded (one rounding of the whole, as they add up), then each
     * of the world - 1 sums in any order, and a node's sum perhaps once more on its way out. */
    uint32_t roundings = !gathers && !q->deterministic ? world + 1 : 0;
    if (d->cuda && check_gemm_gpu)
        return gemm_check_gpu(d, arguments[2], launch, gathers, scatters, roundings, result);
    uint16_t *a = malloc(rows * depth * 2), *b = gathers ? NULL : malloc(depth * q->n * 2);
    int status = -ENOMEM;
    if (!a || (!b && !gathers))
        goto out;
    for (uint32_t rank = 0; rank < world; rank++) {
        if (gathers) {
            run_data_input(d, 0, rank, launch, 0, shard * q->k, a + rank * shard * q->k);
            continue;
        }
        for (uint64_t row = 0; row < rows; row++)
            run_data_input(d, 0, rank, launch, (first + row) * q->k, q->k,
                           a + row * depth + rank * q->k);
        if (!q->b_transposed)
            run_data_input(d, 1, rank, launch, 0, q->k * q->n, b + rank * q->k * q->n);
        for (uint64_t col = 0; q->b_transposed && col < q->n; col++)
            run_data_input(d, 1, rank, launch, col * q->k, q->k, b + col * depth + rank * q->k);
    }
    struct check_gemm g = {.m = rows,
                           .n = q->n,
                           .k = depth,
                           .a = a,
                           .b = gathers ? arguments[1] : b,
                           .c = arguments[2],
                           .b_transposed = q->b_transposed,
                           .roundings = roundings,
                           .frobenius = roundings ? CHECK_FAST : 0};
    status = check_gemm(&g, pace, result);
out:
    free(a);
    free(b);
    return status;
}
