/* AllGather+GEMM of FP8 on engine mma, for every GPU of compute capability 8.9 and up. */
#include "kernels/ops/ag_gemm.cuh"

#include "kernels/mma/launch_fp8.cuh"

GPU_OPERATOR_BY(
    ag_gemm_fp8_mma, ag_gemm,
    mma_operator<ag_gemm_on<mma_engine, true>, mma_fp8_kernels<ag_gemm_on<mma_engine, true>>>)
