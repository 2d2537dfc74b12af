/* AllGather+GEMM on engine mma, for every GPU of compute capability 8.0 and up. */
#include "kernels/ops/ag_gemm.cuh"

#include "kernels/mma/launch.cuh"

GPU_OPERATOR_BY(ag_gemm_bf16_mma, ag_gemm, mma_operator<ag_gemm_on<mma_engine>>)
