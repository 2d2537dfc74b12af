/* GEMM+AllReduce: C = the sum over ranks of A_r * B_r, on every rank, in one launch.
 * kernels/gemm_reduce.cuh is the kernel; this file gives it the schedule of core/roles/gemm_ar.h. */
#include "kernels/gemm_ar.h"

#include <errno.h>
#include <stdio.h>

#include "kernels/cta_reduce.cuh"
#include "kernels/tensormap.h"

#include "core/roles/gemm_ar.h"

#define gemm_reduce_plan gemm_ar_plan

MK_PURE const struct gemm_rs_plan *reduce_tiles(const struct gemm_ar_plan *plan)
{
    return &plan->rs;
}

PTX_FN void reduce_role(const struct gemm_ar_plan *plan, struct mk_cta *cta)
{
    if (cta->role == MK_INTER_REDUCE)
        gemm_ar_inter_reduce(plan, cta);
    else
        gemm_ar_intra_comm(plan, cta);
}

#include "kernels/gemm_reduce.cuh"

int gemm_ar_prepare(const struct mk_plan *plan, char *error, size_t error_size)
{
    return reduce_prepare(&plan->u.gemm_ar, plan->problem.b_transposed, error, error_size);
}

int gemm_ar_launch(const struct mk_plan *plan, const struct gpu_launch *launch, cudaStream_t stream)
{
    return reduce_launch(&plan->u.gemm_ar, plan->problem.b_transposed, launch, stream);
}
