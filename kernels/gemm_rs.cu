/* GEMM+ReduceScatter: C_r = rows r of the sum over ranks of A_r * B_r, in one launch.
 * kernels/gemm_reduce.cuh is the kernel; this file gives it the schedule of core/roles/gemm_rs.h. */
#include "kernels/gemm_rs.h"

#include <errno.h>
#include <stdio.h>

#include "kernels/cta_reduce.cuh"
#include "kernels/tensormap.h"

#include "core/roles/gemm_rs.h"

#define gemm_reduce_plan gemm_rs_plan

MK_PURE const struct gemm_rs_plan *reduce_tiles(const struct gemm_rs_plan *plan)
{
    return plan;
}

PTX_FN void reduce_role(const struct gemm_rs_plan *plan, struct mk_cta *cta)
{
    gemm_rs_inter_reduce(plan, cta);
}

#include "kernels/gemm_reduce.cuh"

int gemm_rs_prepare(const struct mk_plan *plan, char *error, size_t error_size)
{
    return reduce_prepare(&plan->u.gemm_rs, plan->problem.b_transposed, error, error_size);
}

int gemm_rs_launch(const struct mk_plan *plan, const struct gpu_launch *launch, cudaStream_t stream)
{
    return reduce_launch(&plan->u.gemm_rs, plan->problem.b_transposed, launch, stream);
}
