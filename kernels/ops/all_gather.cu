/* AllGather on a GPU: nothing is multiplied, and every block moves. */
#include "kernels/ops/move.cuh"

#include "core/roles/all_gather.h"

GPU_MOVER(all_gather)
