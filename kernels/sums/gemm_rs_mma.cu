/* GEMM+ReduceScatter on engine mma: kernels/sums/gemm_reduce_mma.cuh with the schedule of
 * core/roles/gemm_rs.h. */
#include "kernels/sums/gemm_reduce_mma.cuh"

GPU_OPERATOR_BY(gemm_rs_bf16_mma, gemm_rs, mma_operator<reduce_on_mma<gemm_rs_roles>>)
