/* AllGather+GEMM of fp16: the kernel of ag_gemm.cu with another type of products. */
#include "kernels/ops/ag_gemm.cuh"

#include "kernels/hopper/gemm_launch_fp16.cuh"
#include "kernels/hopper/gemm_track.cuh"

GPU_OPERATOR_BY(ag_gemm_fp16, ag_gemm,
                gemm_operator<ag_gemm_on<gemm_engine>, gemm_fp16_kernels<ag_gemm_on<gemm_engine>>>)
