/* AllGather+GEMM of FP8 whose B has a scale for each column on engine mma: the kernel of
 * ag_gemm_fp8_mma.cu. */
#include "kernels/ops/ag_gemm.cuh"

#include "kernels/mma/launch_fp8.cuh"

typedef ag_gemm_on<mma_engine, true, true> ag_gemm_columns_fp8_on_mma;

GPU_OPERATOR_BY(
    ag_gemm_columns_fp8_mma, ag_gemm,
    mma_operator<ag_gemm_columns_fp8_on_mma, mma_fp8_kernels<ag_gemm_columns_fp8_on_mma>>)
