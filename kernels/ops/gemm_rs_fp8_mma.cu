/* GEMM+ReduceScatter of FP8 on engine mma, for every GPU of compute capability 8.9 and up: the kernel of
 * gemm_rs_mma.cu over rows of e4m3, with scales of blocks. */
#include "kernels/ops/gemm_reduce_mma.cuh"

#include "kernels/mma/launch_fp8.cuh"

typedef reduce_of_fp8<gemm_rs_roles> gemm_rs_fp8_roles;

int gemm_rs_fp8_mma_prepare(const struct mk_plan *plan, char *error, size_t error_size)
{
    return reduce_mma_prepare<gemm_rs_fp8_roles, mma_fp8_kernels>(
        gemm_rs_plan_of(plan), &plan->problem, error, error_size);
}

int gemm_rs_fp8_mma_launch(const struct mk_plan *plan, const struct gpu_launch *launch,
                           cudaStream_t stream)
{
    return reduce_mma_launch<gemm_rs_fp8_roles, mma_fp8_kernels>(gemm_rs_plan_of(plan),
                                                                 &plan->problem, launch, stream);
}
