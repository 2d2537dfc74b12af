#include "tests/engines/gemm.h"

#include "tests/engines/matrix.cuh"

template <class shape>
__global__ void __launch_bounds__(GEMM_THREADS, 1)
    matrix_kernel(const __grid_constant__ struct gemm_a a,
                  const __grid_constant__ struct gemm_operands op, const struct gemm_order order)
{
    PTX_SHARED_DYNAMIC(memory);
    struct matrix_source source;
    source.begin_at<shape>(&a, &order);
    gemm_compute<shape>(&op, &source, memory);
}

template <class shape>
static int matrix_run(const void *a, const void *b, void *c, int64_t m, int64_t n, int64_t k,
                      uint32_t sms, cudaStream_t stream)
{
    struct gemm_a map_a;
    struct gemm_operands op;
    struct gemm_order order;
    int err = matrix_order<shape>(&order, m, n, sms);
    if (!err)
        err = matrix_describe<shape>(&map_a, &op, a, b, c, m, n, k);
    if (!err)
        err = gpu_allow_shared(matrix_kernel<shape>, shape::shared_bytes);
    return err ? err
               : gpu_launch_grid(matrix_kernel<shape>,
                                 {matrix_blocks<shape>(&order, sms), GEMM_THREADS,
                                  shape::shared_bytes, shape::cluster},
                                 stream, map_a, op, order);
}

/* Those of the operators, and one that only this has. */
#define MATRIX_TILES(X)                                                                            \
    MK_GEMM_TILES(X) MK_FEW_ROWS_TILES(X) MK_MIDDLE_TILES(X) X(256, 128, 2, 4, 2)

int gemm_run(const void *a, const void *b, void *c, int64_t m, int64_t n, int64_t k,
             enum gemm_b b_rows, struct gemm_tiling tiling, uint32_t sms, cudaStream_t stream)
{
    if (m < 1 || n < 8 || k < 8 || n % 8 || k % 8 || m > INT32_MAX - 512 || n > INT32_MAX - 512 ||
        k > INT32_MAX - 512)
        return -EINVAL;
    if (((uintptr_t)a | (uintptr_t)b | (uintptr_t)c) % 16)
        return -EINVAL;
    int err = matrix_sms(sms, &sms);
    if (err)
        return err;
    if (sms < tiling.cluster)
        return -EINVAL;
#define MATRIX_TRY(tm, tn, cl, st, boxes)                                                          \
    if (tiling.tile_m == tm && tiling.tile_n == tn && tiling.cluster == cl)                        \
        return b_rows == GEMM_KN                                                                   \
                   ? matrix_run<gemm_shape<tm, tn, cl, 1, st, boxes>>(a, b, c, m, n, k, sms,       \
                                                                      stream)                      \
                   : matrix_run<gemm_shape<tm, tn, cl, 0, st, boxes>>(a, b, c, m, n, k, sms,       \
                                                                      stream);
    MATRIX_TILES(MATRIX_TRY)
#undef MATRIX_TRY
    return -EINVAL;
}
