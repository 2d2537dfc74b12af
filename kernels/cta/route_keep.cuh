/* Which places of the own rank's tokens are kept, on a GPU (kernels/cta/cta_route.cuh): KEEP of
 * core/cta/cta_route.h. */
#pragma once

#include "kernels/cta/route_walk.cuh"

/* By warps with a run of places each: they count which ranks theirs name, then each knows how many
 * of a rank come before its own. As many warps as there is shared memory for counts. */
PTX_FN void route_keep(const struct mk_cta *cta, const struct mk_route *r)
{
    const uint32_t world = mk_world(&r->topo), places = r->tokens * r->k, lane = threadIdx.x % 32,
                   room = (r->shared ? r->shared : MK_ROUTE_SHARED) / 4 / world,
                   all = cta->lanes / 32, warps = room < all ? room : all,
                   warp = cta_lane(cta) / 32, each = (places + warps - 1) / warps,
                   from = warp * each < places ? warp * each : places,
                   end = warp < warps && places - from > each ? from + each : places;
    const uint32_t *named = (const uint32_t *)cta->launch->arguments[r->named_space];
    uint32_t *kept = (uint32_t *)(cta->launch->heap + r->ids), *used = (uint32_t *)cta->scratch;
    uint32_t dropped = 0;
#pragma unroll 1
    for (uint32_t i = cta_lane(cta); i < warps * world; i += cta->lanes)
        used[i] = 0;
    __syncthreads();
#pragma unroll 1
    for (uint32_t step = 0; step < 2; step++) {
#pragma unroll 1
        for (uint32_t i = from + lane; warp < warps && i - lane < end; i += 32) {
            uint32_t id = i < end ? named[i] : ROUTE_NONE,
                     expert = route_expert(cta->launch->heap, r, id),
                     rank = expert < r->experts ? expert / r->rank_experts : ROUTE_NONE,
                     same = __match_any_sync(0xffffffff, rank), lower = route_lower_lanes(same);
            uint32_t *counter = used + warp * world + (rank == ROUTE_NONE ? 0 : rank);
            const bool is = rank != ROUTE_NONE;
            uint32_t before = is ? *counter : 0;
            __syncwarp();
            if (is && !lower)
                *counter = before + __popc(same);
            __syncwarp();
            const bool drops = step && is && before + lower >= r->quota;
            if (step && i < end)
                kept[i] = drops ? ROUTE_NONE : id;
            dropped += drops;
        }
        __syncthreads();
#pragma unroll 1
        for (uint32_t rank = cta_lane(cta); step == 0 && rank < world; rank += cta->lanes) {
            uint32_t next = 0;
#pragma unroll 1
            for (uint32_t w = 0; w < warps; w++) {
                uint32_t n = used[w * world + rank];
                used[w * world + rank] = next;
                next += n;
            }
        }
        __syncthreads();
    }
    if (dropped)
        atomicAdd((unsigned long long *)(cta->launch->heap + r->dropped),
                  (unsigned long long)dropped);
}
