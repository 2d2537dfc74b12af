/* AllGather+GEMM of fp16 on engine mma: the kernel of ag_gemm_mma.cu with another type of products. */
#include "kernels/ops/ag_gemm.cuh"

#include "kernels/mma/launch_fp16.cuh"

GPU_OPERATOR_BY(ag_gemm_fp16_mma, ag_gemm,
                mma_operator<ag_gemm_on<mma_engine>, mma_fp16_kernels<ag_gemm_on<mma_engine>>>)
