/* ReduceScatter on a GPU: nothing is multiplied; all threads of a block move, or add. */
#include "kernels/ops/move.cuh"

#define SUMS_FP16 1
#include "kernels/cta/cta_combine.cuh"

#include "core/roles/reduce_scatter.h"

GPU_ADDER(reduce_scatter)
