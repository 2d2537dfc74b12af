/* Is what a GEMM operator ended with right? By another path than the executor's: whole matrices,
 * from inputs made anew. */
#include "experiments/ops/check_gemm_gpu.h"
#include "experiments/common/inputs.h"
#include "experiments/job/op.h"
#include "core/plan/epilogue.h"
#include "core/base/quantize.h"
#include "core/base/scoped.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#ifdef MK_HAVE_CUDA
#include <cuda_runtime_api.h>

#include "experiments/job/gpu_tensors.h"
#endif

struct run_source run_gemm_source(const struct run_data *d, uint32_t argument, uint32_t rank,
                                  uint64_t launch)
{
    const struct mk_problem *q = &d->job->problem;
    const uint32_t world = mk_world(&q->topo);
    if (argument < 2)
        return run_data_plain(d, argument, rank, launch);
    if (q->epilogue & MK_EPILOGUE_ROWS) /* the same on every rank */
        return (struct run_source){.key = run_data_key(d, 1 + 2 * world + argument, launch)};
    return (struct run_source){.key = run_data_key(d, 1 + world + rank, launch)};
}

/* Of an rmsnorm: `rows` rows of C, from the new residual. */
static void gemm_check_normed(const struct mk_problem *q, const struct run_checked *it,
                              uint64_t rows)
{
    const uint32_t residual = op_residual_argument(q);
    const int quantized = (q->epilogue & MK_EPILOGUE_QUANTIZE) != 0;
    const struct check_norm n = {.element = plan_element(q),
                                 .m = rows,
                                 .n = q->n,
                                 .rows = it->arguments[op_new_residual_argument(q)],
                                 .weight = it->arguments[residual + 1],
                                 .normed = quantized ? NULL : it->arguments[2],
                                 .codes = quantized ? it->arguments[residual + 2] : NULL,
                                 .scales = quantized ? it->arguments[residual + 3] : NULL,
                                 .eps = (double)q->eps};
    check_norm(&n, it->result);
}

/* What a GPU computed, a GPU checks, from the keys of the inputs (run_data_plain): g, without A and
 * B. first: of C's rows. */
static int gemm_check_gpu(const struct run_data *d, const struct run_checked *it,
                          struct check_gemm g, uint64_t first, int gathers)
{
    const struct mk_problem *q = &d->job->problem;
    uint32_t world = mk_world(&q->topo);
    uint64_t keys[MK_MAX_RANKS];
    for (uint32_t i = 0; i < world; i++)
        keys[i] = run_data_key(d, 1 + (gathers ? d->job->identity.rank : i), it->launch);
    g.k = q->k;
    const struct check_gemm_gpu on_gpu = {.of = g,
                                          .products = gathers ? 1 : world,
                                          .a_key = run_data_key(d, 0, it->launch),
                                          .a_first = first * q->k,
                                          .a_step = q->m * q->k,
                                          .b_keys = keys};
    return check_gemm_gpu(&on_gpu, it->result);
}

/* ---- FP8 ---- */

#ifdef MK_HAVE_CUDA
/* The host would take a second for it. 0 or -errno. */
static int gemm_quantize_on_gpu(const struct run_source *s, uint64_t rows, uint64_t k,
                                enum mk_scaling scaling, uint64_t pitch, uint8_t *to, float *scales)
{
    const uint64_t blocks = mk_ceil_div(k, MK_SCALE_BLOCK),
                   count = scaling == MK_SCALE_128X128 ? mk_ceil_div(rows, MK_SCALE_BLOCK) * pitch
                           : scaling == MK_SCALE_1X128 ? blocks * pitch
                           : scaling == MK_SCALE_ROW   ? rows
                                                       : 0,
                   bytes = rows * (scaling == MK_SCALE_RECORDS ? quantize_record(k) : k);
    char *memory = NULL;
    if (cudaMalloc((void **)&memory, rows * k * 2 + bytes + count * sizeof *scales) != cudaSuccess)
        return -ENOMEM;
    uint16_t *x = (uint16_t *)memory;
    uint8_t *codes = (uint8_t *)(x + rows * k);
    float *of = (float *)(codes + bytes);
    int result = cudaMemsetAsync(codes, 0, bytes + count * sizeof *of, 0) == cudaSuccess ? 0 : -EIO;
    result = result ? result : gpu_fill(x, s->key, s->before, rows * k, 0);
    if (!result)
        result =
            mk_quantize(MK_EXEC_CUDA, scaling, MK_INPUT_BF16, x, rows, k, codes, of, pitch, NULL);
    if (!result &&
        ((to && cudaMemcpy(to, codes, bytes, cudaMemcpyDefault) != cudaSuccess) ||
         (scales && cudaMemcpy(scales, of, count * sizeof *of, cudaMemcpyDefault) != cudaSuccess)))
        result = -EIO;
    cudaFree(memory);
    return result;
}
#else
static int gemm_quantize_on_gpu(const struct run_source *s, uint64_t rows, uint64_t k,
                                enum mk_scaling scaling, uint64_t pitch, uint8_t *to, float *scales)
{
    return -ENODEV;
}
#endif

/* The host's part in pieces that share no scale. */
int run_quantize(const struct run_data *d, const struct run_source *s, uint64_t rows, uint64_t k,
                 enum mk_scaling scaling, uint64_t pitch, uint8_t *to, float *scales)
{
    const uint64_t bytes = scaling == MK_SCALE_RECORDS ? quantize_record(k) : k,
                   step = scaling == MK_SCALE_128X128 ? pitch : MK_SCALE_BLOCK;
    if (d->cuda && !gemm_quantize_on_gpu(s, rows, k, scaling, pitch, to, scales))
        return 0;
    MK_FREED uint16_t *x = malloc(MK_SCALE_BLOCK * k * sizeof *x);
    MK_FREED uint8_t *codes = to ? NULL : malloc(MK_SCALE_BLOCK * k);
    MK_FREED float *some = scales ? NULL : calloc(k + MK_SCALE_BLOCK, sizeof *some);
    int status = x && (to || codes) && (scales || some) ? 0 : -ENOMEM;
    for (uint64_t row = 0; row < rows && !status; row += MK_SCALE_BLOCK) {
        uint64_t count = rows - row < MK_SCALE_BLOCK ? rows - row : MK_SCALE_BLOCK;
        inputs_fill(x, s->key, s->before + row * k, count * k);
        mk_quantize(MK_EXEC_HOST, scaling, MK_INPUT_BF16, x, count, k,
                    to ? to + row * bytes : codes,
                    scales ? scales + row / MK_SCALE_BLOCK * step : some,
                    !scales && scaling == MK_SCALE_1X128 ? MK_SCALE_BLOCK : pitch, NULL);
        spawn_beat();
    }
    return status;
}

/* Rows of A of `rank`, or of B, and their scales, as struct mk_spec has them; either may be NULL.
 */
static void gemm_quantize(const struct run_data *d, uint32_t argument, uint32_t rank,
                          uint64_t launch, uint8_t *to, float *scales)
{
    const struct mk_problem *q = &d->job->problem;
    const uint64_t rows = d->bytes[argument] / q->k,
                   pitch = mk_round_up(argument ? mk_ceil_div(q->k, MK_SCALE_BLOCK) : rows, 4);
    const struct run_source s = run_data_plain(d, argument, rank, launch);
    run_quantize(d, &s, rows, q->k,
                 !argument      ? MK_SCALE_1X128
                 : q->b_columns ? MK_SCALE_ROW
                                : MK_SCALE_128X128,
                 pitch, to, scales);
}

void run_make_fp8(const struct run_data *d, uint32_t argument, uint64_t launch, void *to)
{
    uint32_t of = argument % 3; /* A, B, C, A's scales, B's */
    memset(to, 0, d->bytes[argument]);
    gemm_quantize(d, of, d->job->identity.rank, launch, argument < 3 ? to : NULL,
                  argument < 3 ? NULL : to);
}

/* Rows [first, first + rows) of `rank`'s A to `a`, and all of its B to `b` where it is not NULL, in
 * fp32; rows lie `depth` floats apart. 0 or -ENOMEM. */
static int gemm_widen_fp8(const struct run_data *d, uint32_t rank, uint64_t launch, uint64_t first,
                          uint64_t rows, uint64_t depth, float *a, float *b)
{
    const struct mk_problem *q = &d->job->problem;
    const uint64_t k = q->k, blocks = mk_ceil_div(k, MK_SCALE_BLOCK), all = d->bytes[0] / k,
                   pitch = mk_round_up(blocks, 4), most = all > q->n ? all : q->n,
                   wide = mk_round_up(all, 4);
    MK_FREED uint8_t *codes = malloc(most * k);
    MK_FREED float *scales =
        malloc((wide * blocks + mk_ceil_div(q->n, MK_SCALE_BLOCK) * pitch + q->n) * sizeof *scales);
    int result = codes && scales ? 0 : -ENOMEM;
    if (!result) {
        gemm_quantize(d, 0, rank, launch, codes, scales);
        for (uint64_t row = 0; row < rows; row++)
            dequantize_rows(codes + (first + row) * k, 1, k, scales + first + row, wide,
                            a + row * depth);
    }
    if (!result && b) {
        gemm_quantize(d, 1, rank, launch, codes, scales);
        for (uint64_t col = 0; col < q->n; col++)
            if (q->b_columns)
                dequantize_columns(codes + col * k, 1, k, scales + col, b + col * depth);
            else
                dequantize_blocks(codes + col * k, 1, k, scales + col / MK_SCALE_BLOCK * pitch,
                                  pitch, b + col * depth);
    }
    return result;
}

/* What run_check_gemm checks, of rows of C from `first` on; g has all but A and B. */
static int gemm_check_fp8(const struct run_data *d, const struct run_checked *it,
                          struct check_gemm g, uint64_t first, int gathers)
{
    const struct mk_problem *q = &d->job->problem;
    const uint32_t world = mk_world(&q->topo), me = d->job->identity.rank;
    const uint64_t shard = q->m / world, depth = g.k;
    MK_FREED float *a = malloc(g.m * depth * sizeof *a), *b = malloc(q->n * depth * sizeof *b);
    int status = a && b ? 0 : -ENOMEM, cuda = q->exec == MK_EXEC_CUDA;
    for (uint32_t rank = 0; rank < world && !status; rank++, spawn_beat())
        status = gathers ? gemm_widen_fp8(d, rank, it->launch, 0, shard, depth,
                                          a + rank * shard * depth, rank == me ? b : NULL)
                         : gemm_widen_fp8(d, rank, it->launch, first, g.m, depth, a + rank * q->k,
                                          b + rank * q->k);
    g.a_wide = a;
    g.b_wide = b;
    if (cuda && !g.roundings)
        g.frobenius = CHECK_FP8;
    g.cut = cuda ? CHECK_FP8_CUT : 0;
    return status ? status : check_gemm(&g, it->pace, it->result);
}

/* One product is the reference: where ranks are summed over, every rank's A stands side by side,
 * and every rank's B below one another. */
int run_check_gemm(const struct run_data *d, const struct run_checked *it)
{
    const struct mk_problem *q = &d->job->problem;
    const enum run_collective collective = run_op_of(q->op)->collective;
    const int gathers = collective == RUN_ALL_GATHER, scatters = collective == RUN_REDUCE_SCATTER;
    uint32_t world = mk_world(&q->topo), me = d->job->identity.rank;
    uint64_t shard = q->m / world, rows = scatters ? shard : q->m,
             depth = gathers ? q->k : world * q->k;
    uint64_t first = scatters ? me * shard : 0;
    /* Fast: each rank's product is rounded (one rounding of the whole, as they add up), then each
     * of the world - 1 sums in any order, and a node's sum perhaps once more on its way out. */
    uint32_t roundings = !gathers && !q->deterministic ? world + 1 : 0;
    struct check_gemm g = {
        .element = plan_element(q),
        .m = rows,
        .n = q->n,
        .k = depth,
        .c = it->arguments[op_new_residual_argument(q)], /* where the sum is */
        .bias = q->epilogue & MK_EPILOGUE_BIAS ? it->arguments[op_bias_argument(q)] : NULL,
        .residual = q->epilogue & MK_EPILOGUE_ROWS ? it->arguments[op_residual_argument(q)] : NULL,
        .epilogue = q->epilogue,
        .b_transposed = q->b_transposed,
        .roundings = roundings,
        .frobenius = roundings ? CHECK_FAST : 0};
    if (q->epilogue & MK_EPILOGUE_RMSNORM)
        gemm_check_normed(q, it, rows);
    if (q->fp8)
        return gemm_check_fp8(d, it, g, first, gathers);
    if (d->cuda && check_gemm_gpu && !g.residual)
        return gemm_check_gpu(d, it, g, first, gathers);
    MK_FREED uint16_t *a = malloc(rows * depth * 2), *b = gathers ? NULL : malloc(depth * q->n * 2);
    if (!a || (!b && !gathers))
        return -ENOMEM;
    for (uint32_t rank = 0; rank < world; rank++) {
        if (gathers) {
            run_data_input(d, 0, rank, it->launch, 0, shard * q->k, a + rank * shard * q->k);
            continue;
        }
        for (uint64_t row = 0; row < rows; row++)
            run_data_input(d, 0, rank, it->launch, (first + row) * q->k, q->k,
                           a + row * depth + rank * q->k);
        if (!q->b_transposed)
            run_data_input(d, 1, rank, it->launch, 0, q->k * q->n, b + rank * q->k * q->n);
        for (uint64_t col = 0; q->b_transposed && col < q->n; col++)
            run_data_input(d, 1, rank, it->launch, col * q->k, q->k, b + col * depth + rank * q->k);
    }
    g.a = a;
    g.b = gathers ? it->arguments[1] : b;
    return check_gemm(&g, it->pace, it->result);
}
