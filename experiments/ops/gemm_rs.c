#include "experiments/job/op.h"

static int gemm_rs_check(const struct run_data *d, const void *const arguments[RUN_ARGUMENTS],
                         uint64_t launch, const struct check_pace *pace,
                         struct check_result *result)
{
    return run_check_gemm(d, arguments, launch, pace, result, 0, 1);
}

const struct run_op run_op_gemm_rs = {.source = run_gemm_source,
                                      .check = gemm_rs_check,
                                      .make = run_make_fp8,
                                      .made_on_gpu = 3,
                                      .collective = RUN_REDUCE_SCATTER};
