/* The plan of MoE dispatch+GEMM and its arithmetic. The schedule, and what lies where and why, is
 * core/roles/moe_dispatch_gemm.h. */
#pragma once

#include "core/cta/cta.h"
#include "core/roles/moe_dispatch_plan.h"

struct moe_dispatch_gemm_plan {
    struct moe_dispatch_plan dispatch;
    struct mk_role_split split;
    uint32_t hidden, inner;
    uint32_t tile_n, cluster;
    uint32_t col_tiles;
    uint32_t tiles; /* room for: row_tiles * col_tiles */
};
MK_PLAN_OF(moe_dispatch_gemm);
