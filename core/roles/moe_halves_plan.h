/* The plans of moe_dispatch and moe_combine for launches in two halves (core/cta/halves.h): those of
 * whole launches with what halves need besides. The schedules, and why:
 * core/roles/moe_dispatch_halves.h, moe_combine_halves.h. */
#pragma once

#include "core/roles/moe_combine_plan.h"

struct moe_halves {
    uint32_t is;        /* 0: the plan's launches are whole, and the rest is not there */
    uint32_t senders;   /* inter_send CTAs */
    uint32_t flag_left; /* counts those whose puts of the launch before have left */
};

struct moe_dispatch_halves_plan {
    /* by epoch & 1: where tokens of such a launch land (`landed` and `relay`); else the same */
    struct moe_dispatch_plan by[2];
    struct moe_halves halves;
};
MK_PLAN_OF(moe_dispatch_halves);

struct moe_combine_halves_plan {
    struct moe_combine_plan combine;
    struct moe_halves halves;
};
MK_PLAN_OF(moe_combine_halves);
