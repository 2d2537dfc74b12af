/* What all steps of making the tables of MoE routing on a GPU share (kernels/cta/cta_route.cuh): a block's
 * shared memory, and groups of tokens whose places a warp's lanes take. */
#pragma once

#include "core/cta/cta_route.h"
#include "kernels/cta/block_scan.cuh"
#include "kernels/cta/cta.cuh"

#define ROUTE_NONE UINT32_MAX

struct route_walk {
    const struct mk_route *r;
    char *heap;
    uint32_t world, node, local;
    uint32_t *scan;  /* shared memory: MK_ROUTE_SCAN_WORDS */
    uint32_t *words; /* mk_route_shared_words, in shared memory if they fit */
    /* of shared memory, behind them: for `spare` places */
    uint4 *notes;
    uint32_t spare;
};

PTX_FN struct route_walk route_walk_begin(const struct mk_cta *cta, const struct mk_route *r)
{
    struct route_walk w;
    w.r = r;
    w.heap = cta->launch->heap;
    w.world = mk_world(&r->topo);
    w.node = r->known.node;
    w.local = r->known.local;
    const uint32_t used = r->known.words, shared = (r->shared ? r->shared : MK_ROUTE_SHARED) / 4;
    w.scan = (uint32_t *)cta->scratch;
    w.words = r->spill ? (uint32_t *)(w.heap + r->spill) + (uint64_t)r->part * used
                       : w.scan + MK_ROUTE_SCAN_WORDS;
    const uint32_t behind = r->spill ? MK_ROUTE_SCAN_WORDS : used;
    w.notes = (uint4 *)(w.scan + behind);
    w.spare = (shared - behind) / 4;
    return w;
}

/* The expert that a place of this rank's tokens names. */
PTX_FN uint32_t route_expert(const char *heap, const struct mk_route *r, uint32_t id)
{
    return mk_route_expert(r, (const uint32_t *)(heap + r->map), id);
}

/* The rank of an expert. A division takes dozens of steps: by a product, where its upper half is as
 * exact. */
PTX_FN uint32_t route_rank_of(const struct route_walk *w, uint32_t expert)
{
    const uint32_t by = w->r->known.by_rank;
    return by ? (uint32_t)((uint64_t)expert * by >> 32) : expert / w->r->rank_experts;
}

PTX_FN uint32_t route_node_of(const struct route_walk *w, uint32_t rank)
{
    return w->r->topo.nodes > 1 ? mk_node_of(&w->r->topo, rank) : 0;
}

/* mk_route_behind, which divides. */
PTX_FN uint32_t route_behind(const struct route_walk *w, uint32_t distance)
{
    return w->r->topo.nodes > 1 ? mk_route_behind(&w->r->topo, distance) : 0;
}

PTX_FN uint32_t route_local_of(const struct route_walk *w, uint32_t rank)
{
    return w->r->topo.nodes > 1 ? mk_local_of(&w->r->topo, rank) : rank;
}

PTX_FN uint32_t *route_words(const struct route_walk *w, uint64_t offset)
{
    return (uint32_t *)(w->heap + offset);
}

PTX_FN uint4 *route_records(const struct route_walk *w, uint64_t offset)
{
    return (uint4 *)(w->heap + offset);
}

PTX_FN uint32_t route_lower_lanes(uint32_t mask)
{
    return __popc(mask & ((1u << threadIdx.x % 32) - 1));
}

/* A warp takes so many tokens at a time that no two lanes have the same place: this lane's. */
struct route_lane {
    uint32_t token, place, tokens;
};

PTX_FN struct route_lane route_lane_of(const struct mk_route *r)
{
    const uint32_t lane = threadIdx.x % 32, token = lane * r->known.by_k >> 16;
    return {token, lane - token * r->k, r->known.lane_tokens};
}

/* Of a group of lanes' tokens: `record` of this lane's place to where the lanes of its token's places
 * say that the token goes; NULL: nowhere. */
PTX_FN void route_hand_on(const struct mk_route *r, const struct route_lane *l, bool is,
                          uint4 record, uint4 *to)
{
    const uint32_t first = l->token * r->k, all = __ballot_sync(0xffffffff, to != nullptr);
    uint32_t left = is ? all >> first & (uint32_t)((1ull << r->k) - 1) : 0;
#pragma unroll 1
    while (__any_sync(0xffffffff, left)) {
        const uint32_t from = left ? first + __ffs(left) - 1 : 0;
        uint4 *there = (uint4 *)__shfl_sync(0xffffffff, (unsigned long long)to, from);
        if (left)
            there[l->place] = record;
        left &= left - 1;
    }
}

/* A token, number `at` of those that local rank `to` gets; `number`: which it is here. Returns where
 * its records go; NULL: there is no room. */
PTX_FN uint4 *route_push(const struct route_walk *w, uint32_t to, uint32_t at, uint32_t number)
{
    const struct mk_route *r = w->r;
    const uint64_t place = (uint64_t)to * r->landed_room + at;
    if (at >= r->landed_room)
        return nullptr;
    route_words(w, r->push)[place] = number;
    return route_records(w, r->telling) + place * r->k;
}

/* What is said to local rank `to` of a node's tokens: for this rank, where others would have it. */
PTX_FN uint32_t *route_say(const struct route_walk *w, uint32_t to, uint32_t node)
{
    const struct mk_route *r = w->r;
    return route_words(w, to == w->local ? r->said : r->say) +
           (to * r->topo.nodes + node) * r->said_words;
}
