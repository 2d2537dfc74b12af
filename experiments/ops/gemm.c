/* Is what a GEMM operator ended with right? By another path than the executor's: whole matrices,
 * from inputs made anew. */
#include "experiments/ops/check_gemm_gpu.h"
#include "experiments/job/op.h"
#include "core/quantize.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#ifdef MK_HAVE_CUDA
#include <cuda_runtime_api.h>

#include "experiments/job/gpu_tensors.h"
#endif

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

/* ---- FP8 ---- */

#ifdef MK_HAVE_CUDA
/* gemm_quantize by a GPU: rows of `s`, which the host would take a second for. 0 or -errno. */
static int gemm_quantize_on_gpu(const struct run_source *s, uint64_t rows, uint64_t k, int square,
                                uint64_t pitch, uint8_t *to, float *scales)
{
    const uint64_t blocks = mk_ceil_div(k, MK_SCALE_BLOCK),
                   count = square ? mk_ceil_div(rows, MK_SCALE_BLOCK) * pitch : blocks * pitch;
    char *memory = NULL;
    if (cudaMalloc((void **)&memory, rows * k * 3 + count * sizeof *scales) != cudaSuccess)
        return -ENOMEM;
    float *of = (float *)memory;
    uint16_t *x = (uint16_t *)(of + count);
    uint8_t *codes = (uint8_t *)(x + rows * k);
    int result = cudaMemsetAsync(of, 0, count * sizeof *of, 0) == cudaSuccess ? 0 : -EIO;
    if (!result)
        result = gpu_fill(x, s->key, s->before, rows * k, 0);
    if (!result)
        result = gpu_quantize(x, rows, k, square, codes, of, pitch, 0);
    if (!result &&
        ((to && cudaMemcpy(to, codes, rows * k, cudaMemcpyDefault) != cudaSuccess) ||
         (scales && cudaMemcpy(scales, of, count * sizeof *of, cudaMemcpyDefault) != cudaSuccess)))
        result = -EIO;
    cudaFree(memory);
    return result;
}
#else
static int gemm_quantize_on_gpu(const struct run_source *s, uint64_t rows, uint64_t k, int square,
                                uint64_t pitch, uint8_t *to, float *scales)
{
    return -ENODEV;
}
#endif

/* Rows of A of `rank`, or of B, and their scales, as struct mk_spec has them; either may be NULL.
 */
static void gemm_quantize(const struct run_data *d, uint32_t argument, uint32_t rank,
                          uint64_t launch, uint8_t *to, float *scales)
{
    const struct mk_problem *q = &d->job->problem;
    uint64_t rows = d->bytes[argument] / q->k, blocks = mk_ceil_div(q->k, MK_SCALE_BLOCK),
             pitch = argument ? mk_round_up(blocks, 4) : rows;
    const struct run_source s = run_data_plain(d, argument, rank, launch);
    if (d->cuda && !gemm_quantize_on_gpu(&s, rows, q->k, argument > 0, pitch, to, scales))
        return;
    uint16_t *x = malloc(MK_SCALE_BLOCK * q->k * sizeof *x);
    uint8_t *codes = to ? NULL : malloc(MK_SCALE_BLOCK * q->k);
    float *some = calloc(MK_SCALE_BLOCK * blocks + 4, sizeof *some);
    for (uint64_t row = 0; x && some && (to || codes) && row < rows; row += MK_SCALE_BLOCK) {
        uint64_t count = rows - row < MK_SCALE_BLOCK ? rows - row : MK_SCALE_BLOCK;
        uint8_t *out = to ? to + row * q->k : codes;
        run_data_input(d, argument, rank, launch, row * q->k, count * q->k, x);
        if (argument)
            quantize_blocks(x, count, q->k, out,
                            scales ? scales + row / MK_SCALE_BLOCK * pitch : some, pitch);
        else
            quantize_rows(x, count, q->k, out, scales ? scales + row : some,
                          scales ? pitch : MK_SCALE_BLOCK);
    }
    free(x);
    free(codes);
    free(some);
}

void run_make_fp8(const struct run_data *d, uint32_t argument, uint64_t launch, void *to)
{
    uint32_t of = argument % 3; /* A, B, C, A's scales, B's */
    memset(to, 0, d->bytes[argument]);
    gemm_quantize(d, of, d->job->identity.rank, launch, argument < 3 ? to : NULL,
                  argument < 3 ? NULL : to);
}

static int gemm_check_fp8(const struct run_data *d, const void *const arguments[RUN_ARGUMENTS],
                          uint64_t launch, const struct check_pace *pace,
                          struct check_result *result)
{
    const struct mk_problem *q = &d->job->problem;
    uint64_t shard = q->m / mk_world(&q->topo), k = q->k, blocks = mk_ceil_div(k, MK_SCALE_BLOCK);
    uint8_t *codes = malloc(shard * k);
    float *scales = malloc(shard * blocks * sizeof *scales), *a = malloc(q->m * k * sizeof *a),
          *b = malloc(q->n * k * sizeof *b);
    int status = -ENOMEM;
    if (codes && scales && a && b) {
        for (uint32_t rank = 0; rank < mk_world(&q->topo); rank++, spawn_beat()) {
            gemm_quantize(d, 0, rank, launch, codes, scales);
            dequantize_rows(codes, shard, k, scales, shard, a + rank * shard * k);
        }
        dequantize_blocks(arguments[1], q->n, k, arguments[4], mk_round_up(blocks, 4), b);
        const struct check_gemm g = {.m = q->m,
                                     .n = q->n,
                                     .k = k,
                                     .a_wide = a,
                                     .b_wide = b,
                                     .c = arguments[2],
                                     .b_transposed = 1,
                                     .frobenius = q->exec == MK_EXEC_CUDA ? CHECK_FP8 : 0,
                                     .cut = q->exec == MK_EXEC_CUDA ? CHECK_FP8_CUT : 0};
        status = check_gemm(&g, pace, result);
    }
    free(codes);
    free(scales);
    free(a);
    free(b);
    return status;
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
    if (q->fp8)
        return gemm_check_fp8(d, arguments, launch, pace, result);
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
