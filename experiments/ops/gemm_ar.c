#include "core/epilogue.h"
#include "experiments/job/op.h"

static int gemm_ar_check(const struct run_data *d, const void *const arguments[RUN_ARGUMENTS],
                         uint64_t launch, const struct check_pace *pace,
                         struct check_result *result)
{
    const struct mk_problem *q = &d->job->problem;
    int status = run_check_gemm(d, arguments, launch, pace, result, 0, 0);
    if (!status && q->epilogue & MK_EPILOGUE_RMSNORM) {
        const uint32_t residual = op_residual_argument(q);
        const struct check_norm n = {.m = q->m,
                                     .n = q->n,
                                     .rows = arguments[residual + 2],
                                     .weight = arguments[residual + 1],
                                     .normed = arguments[2],
                                     .eps = (double)q->eps};
        check_norm(&n, result);
    }
    return status;
}

const struct run_op run_op_gemm_ar = {.source = run_gemm_source,
                                      .check = gemm_ar_check,
                                      .make = run_make_fp8,
                                      .made_on_gpu = 3,
                                      .collective = RUN_ALL_REDUCE};
