/* The tables of MoE routing (core/cta/cta_route.h) on a GPU.
 *
 * What a launch waits for here are instructions as much as data: all of this runs once, and SMs
 * fetch it as they go. So the steps are loops that are not unrolled, with one copy of each part.
 *
 * All threads of a block call, with r->shared bytes of shared memory at cta->scratch, which
 * nothing else writes between COUNT and PLACE. Words that do not fit there, of many ranks or experts,
 * lie in the block's part of r->spill: the same steps, at the pace of L2. */
#pragma once

#include "kernels/cta/cta_made.cuh"
#include "kernels/cta/route_keep.cuh"
#include "kernels/cta/route_order.cuh"
#include "kernels/cta/route_say.cuh"

MK_ROLE_CALL int mk_cta_overflow(struct mk_cta *cta, enum mk_route_over over, uint32_t rank,
                                 uint32_t count, uint32_t room)
{
    if (cta_leads(cta)) /* of a wait, it would be for how long */
        cta_report(cta, UINT32_MAX, GPU_CAUSE_OVERFLOW + over, count, room, rank);
    return 1;
}

MK_ROLE_CALL uint32_t mk_cta_load(struct mk_cta *cta, uint64_t offset)
{
    return *(const uint32_t *)(cta->launch->heap + offset);
}

MK_ROLE_CALL uint64_t mk_cta_load64(struct mk_cta *cta, uint64_t offset)
{
    return *(const uint64_t *)(cta->launch->heap + offset);
}

MK_ROLE_CALL uint32_t mk_cta_load_argument(struct mk_cta *cta, enum mk_space space)
{
    return *(const uint32_t *)cta->launch->arguments[space];
}

MK_ROLE_CALL void mk_cta_route(struct mk_cta *cta, const struct mk_route *r)
{
    if (r->step == MK_ROUTE_KEEP) {
        route_keep(cta, r);
        return;
    }
    const struct route_walk w = route_walk_begin(cta, r);
    if (r->step == MK_ROUTE_COUNT)
        route_count(cta, &w);
    else if (r->step == MK_ROUTE_PLACE)
        route_place(cta, &w);
    else if (r->step == MK_ROUTE_RELAY)
        route_relay(cta, &w);
    else
        route_lay_out(cta, &w);
    __syncthreads(); /* shared memory is the next one's */
}
