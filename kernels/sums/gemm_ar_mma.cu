/* GEMM+AllReduce on engine mma: kernels/sums/gemm_reduce_mma.cuh with the schedule of
 * core/roles/gemm_ar.h. */
#include "kernels/sums/gemm_reduce_mma.cuh"

GPU_OPERATOR_BY(gemm_ar_bf16_mma, gemm_ar, mma_operator<reduce_on_mma<gemm_ar_roles>>)
