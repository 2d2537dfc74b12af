#include "experiments/job/op.h"

const struct run_op run_op_gemm_ar = {.source = run_gemm_source,
                                      .check = run_check_gemm,
                                      .make = run_make_fp8,
                                      .made_on_gpu = 3,
                                      .collective = RUN_ALL_REDUCE};
