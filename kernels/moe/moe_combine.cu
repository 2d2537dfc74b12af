/* MoE combine on a GPU: all threads of a block make tables, or add rows up. */
#define CTA_LANES_AHEAD 4
#define SUMS_PLAIN 1
#define SUMS_STAGED 1
#include "kernels/ops/halves.cuh"

#include "kernels/cta/cta_rows.cuh"
#include "kernels/cta/cta_sums.cuh"

#include "core/roles/moe_combine_halves.h"

GPU_ROUTER_HALVES(moe_combine, true)
