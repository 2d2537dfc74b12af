/* The plan of MoE combine: of the layer's (core/roles/moe_ffn_plan.h) it has what comes
 * behind the last product. The schedule is core/roles/moe_combine.h. */
#pragma once

#include "core/roles/moe_ffn_plan.h"

struct moe_combine_plan {
    struct moe_ffn_plan layer;
};
MK_PLAN_OF(moe_combine);
