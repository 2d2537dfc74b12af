/* What thread blocks of the MoE feed-forward layer do on both engines when no tile is left: they
 * add up what experts have made of tokens. */
#pragma once

#include "kernels/cta/cta_rows.cuh"
#include "kernels/cta/cta_sums.cuh"

#include "core/roles/moe_ffn.h"

PTX_SHARED(uint32_t, moe_ffn_unit, 1);

/* All threads of a block, of which there are so many, when there is nothing left to compute. */
PTX_FN void moe_ffn_add_up(const struct moe_ffn_plan *plan, const struct gpu_launch *launch,
                           uint8_t *memory, uint32_t threads)
{
    struct mk_cta cta;
    cta_resume(&cta, launch, blockIdx.x, threads);
    cta.scratch = memory;
    struct moe_ffn_walk at = {0, 0, 0, cta.index};
    struct moe_ffn_job job;
    struct mk_route_head *head =
        (struct mk_route_head *)(launch->heap + plan->dispatch.route.order_head);
    bool away = cta.role == MK_INTER_REDUCE && plan->dispatch.topo.nodes > 1;
    int ending = moe_await_routed(&plan->dispatch, &cta) || (away && cta_begin_commands(&cta));
    while (!ending) {
        away = away && moe_ffn_job_away(plan, &cta, &at, &job);
        if (!away) {
            if (cta_leads(&cta))
                *moe_ffn_unit =
                    (uint32_t)(atomicAdd((unsigned long long *)&head->adding, 1ull) - head->added);
            __syncthreads();
            uint32_t unit = *moe_ffn_unit;
            __syncthreads();
            if (unit >= moe_ffn_units(plan))
                break;
            if (!moe_ffn_job_here(plan, unit, &job))
                continue;
        }
        ending = moe_ffn_add(plan, &cta, &job);
    }
    cta_end(&cta);
}
