/* MoE dispatch on a GPU: all threads of a block make tables, push rows, or take them to their
 * places. */
#define CTA_LANES_AHEAD 4
#define CTA_SHARE_ROWS 1
#include "kernels/ops/move.cuh"

#include "kernels/cta_route.cuh"
#include "kernels/cta_rows.cuh"

#include "core/roles/moe_dispatch.h"

GPU_ROUTER(moe_dispatch, false)
