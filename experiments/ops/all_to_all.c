#include "experiments/job/op.h"

const struct run_op run_op_all_to_all = {.check = run_check_moved};
