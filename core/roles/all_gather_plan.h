/* The plan of AllGather: a block is a rank's A. The schedule is core/roles/all_gather.h. */
#pragma once

#include "core/roles/move_plan.h"

struct all_gather_plan {
    struct move_plan move;
};
MK_PLAN_OF(all_gather);
