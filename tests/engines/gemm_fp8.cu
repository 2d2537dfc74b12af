#include "tests/engines/gemm_fp8.h"

#include "kernels/hopper/gemm_promote.cuh"
#include "tests/engines/matrix.cuh"

/* Where the scales of a whole matrix lie. */
struct scaled_matrix {
    const float *a, *b;
    uint32_t a_stride, b_stride, m, n, blocks;
};

template <class shape> struct scaled_source : matrix_source {
    static constexpr int producer_registers = shape::tight ? 40 : 104;
    static constexpr int consumer_registers = shape::tight ? 232 : 200;
    const struct scaled_matrix *of;

    ENGINE_MEMBER struct engine_scales scales(uint32_t, const struct mk_tile *tile,
                                              uint32_t row) const
    {
        uint32_t r = tile->row + row, rows;
        r = r < of->m ? r : of->m - 1; /* what lies outside C has the last row's, and is dropped */
        rows = of->m - r;
        return {of->a + r,    of->b + (uint64_t)(tile->col / 128) * of->b_stride,
                of->a_stride, of->b_stride,
                rows,         of->n - tile->col,
                of->blocks};
    }
};

template <class shape>
__global__ void __launch_bounds__(GEMM_THREADS, 1)
    fp8_kernel(const __grid_constant__ struct gemm_a a,
               const __grid_constant__ struct gemm_operands op,
               const __grid_constant__ struct scaled_matrix of,
               const __grid_constant__ struct gemm_order order)
{
    PTX_SHARED_DYNAMIC_ALIGNED(memory, 1024);
    ptx_launch_next();
    struct scaled_source<shape> source;
    source.template begin_at<shape>(&a, &order);
    source.of = &of;
    gemm_compute<shape>(&op, &source, memory);
}

template <class shape>
static int fp8_run(const struct gemm_fp8 *g, uint32_t sms, cudaStream_t stream)
{
    struct gemm_a map_a;
    struct gemm_operands op;
    struct gemm_order order;
    const struct scaled_matrix of = {
        g->a_scales,    g->b_scales,    (uint32_t)g->a_stride,           (uint32_t)g->b_stride,
        (uint32_t)g->m, (uint32_t)g->n, (uint32_t)mk_ceil_div(g->k, 128)};
    int err = matrix_order<shape>(&order, g->m, g->n, sms);
    if (!err)
        err = matrix_describe<shape>(&map_a, &op, g->a, g->b, g->c, g->m, g->n, g->k);
    if (!err)
        err = gpu_allow_shared(fp8_kernel<shape>, shape::shared_bytes);
    return err ? err
               : gpu_launch_grid(fp8_kernel<shape>,
                                 {matrix_blocks<shape>(&order, sms), GEMM_THREADS,
                                  shape::shared_bytes, shape::cluster, true},
                                 stream, map_a, op, of, order);
}

/* As core/plan/gemm_tiles.h has them for bf16: rows, columns, cluster, stages, boxes. */
#define FP8_TILES(X)                                                                               \
    X(128, 256, 2, 4, 2)                                                                           \
    X(128, 256, 1, 4, 2)                                                                           \
    X(128, 128, 2, 5, 2)                                                                           \
    X(128, 128, 1, 5, 2)                                                                           \
    X(128, 64, 1, 7, 2)                                                                            \
    X(64, 64, 1, 5, 2)

static int fp8_refused(const struct gemm_fp8 *g)
{
    const int64_t most = INT32_MAX - 512;
    int64_t blocks = (g->k + 127) / 128;
    if (g->m < 1 || g->n < 8 || g->k < 16 || g->n % 8 || g->k % 16 || g->m > most || g->n > most ||
        g->k > most)
        return 1;
    if (((uintptr_t)g->a | (uintptr_t)g->b | (uintptr_t)g->c) % 16 || !g->a_scales || !g->b_scales)
        return 1;
    return (uintptr_t)g->a_scales % 16 || g->a_stride % 4 || g->a_stride < g->m ||
           g->b_stride < blocks || g->a_stride > most || g->b_stride > most;
}

int gemm_fp8_run(const struct gemm_fp8 *g, struct gemm_tiling tiling, uint32_t sms,
                 cudaStream_t stream)
{
    if (fp8_refused(g))
        return -EINVAL;
    int err = matrix_sms(sms, &sms);
    if (err)
        return err;
    if (sms < tiling.cluster)
        return -EINVAL;
#define FP8_TRY(tm, tn, cl, st, boxes)                                                             \
    if (tiling.tile_m == tm && tiling.tile_n == tn && tiling.cluster == cl)                        \
        return fp8_run<gemm_shape<tm, tn, cl, 0, st, boxes, MK_BF16, GEMM_E4M3>>(g, sms, stream);
    FP8_TILES(FP8_TRY)
#undef FP8_TRY
    return -EINVAL;
}

struct gemm_tiling gemm_fp8_choose_tiling(int64_t m, int64_t n, int64_t k, uint32_t sms)
{
    if (m <= 64)
        return {64, 64, 1};
    return {128, 256, 2};
}
