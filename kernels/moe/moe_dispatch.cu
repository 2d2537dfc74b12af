/* MoE dispatch on a GPU: all threads of a block make tables, push rows, or take them to their
 * places. */
#define CTA_LANES_AHEAD 4
#define CTA_SHARE_ROWS 1
#include "kernels/ops/halves.cuh"

#include "kernels/cta/cta_route.cuh"
#include "kernels/cta/cta_rows.cuh"

#include "core/roles/moe_dispatch_halves.h"

GPU_ROUTER_HALVES(moe_dispatch, false)
