/* All-to-all on a GPU: nothing is multiplied, and every block moves. */
#include "kernels/ops/move.cuh"

#include "core/roles/all_to_all.h"

GPU_MOVER(all_to_all)
