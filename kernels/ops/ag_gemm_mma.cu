/* AllGather+GEMM on engine mma, for every GPU of compute capability 8.0 and up. */
#include "kernels/ops/ag_gemm_mma.cuh"

int ag_gemm_mma_prepare(const struct mk_plan *plan, char *error, size_t error_size)
{
    return mma_op_prepare<ag_gemm_on_mma<false>>(&plan->problem, error, error_size);
}

int ag_gemm_mma_launch(const struct mk_plan *plan, const struct gpu_launch *launch,
                       cudaStream_t stream)
{
    return mma_op_launch<ag_gemm_on_mma<false>>(ag_gemm_plan_of(plan), &plan->problem, launch,
                                                stream);
}
