/* The plan of MoE dispatch: where tokens lie and go until they are with their experts. The plans of
 * all MoE operators begin with it. The schedule, and what lies where and why, is
 * core/roles/moe_dispatch.h. */
#pragma once

#include "core/cta/cta_rows.h"
#include "core/cta/cta.h"

struct moe_dispatch_plan {
    struct mk_topo topo;
    uint32_t tokens, k, experts; /* tokens: room for as many per rank; experts: of all ranks */
    uint32_t room;               /* the route's */
    uint32_t rank_experts;       /* experts / W: rank r has those from r * rank_experts on */
    uint32_t tile_m;             /* rows of a tile: each expert's rows begin a new one */
    uint32_t row_tiles;          /* room for rows of A, in tiles */
    /* of the rows from other nodes, each computed for all experts before the next */
    uint32_t slices;
    uint32_t chunk_rows; /* tokens that are moved before their arrival is told */
    uint32_t chunks;     /* of a rank's tokens */
    /* The first intra_comm CTAs make the tables together: of so many tokens that one is through
     * before several have met, one, of what there is to say to others; and some of what comes,
     * while others move tokens. */
    uint32_t routers, layers;
    uint32_t take_rows; /* tokens of a chunk that moe_deliver takes at a time */
    uint32_t b_once;    /* 1: an expert has half a tile of rows, as a mean, so its B is read once */
    /* enum mk_space: the argument that says how many tokens this rank has; the heap: it has
     * `tokens` */
    uint32_t count_space;
    uint32_t flag_kept, flag_counted, flag_placed, flag_railed, flag_relayed, flag_told,
        flag_routed, flag_relay, flag_landed, flag_rows;
    uint64_t row_bytes;    /* of a token; 0: none is moved */
    uint64_t record_bytes; /* of a token's k records (struct mk_route_record) */
    uint64_t said_bytes;   /* of what is said to a rank, of all nodes */
    /* Offsets in the heap. */
    /* the route's, by epoch & 1 */
    uint64_t said[2], landed_records[2], railed[2];
    /* [nodes][relay_room] of row_bytes: tokens that leave for another node, each once */
    uint64_t packed;
    /* [gpus][landed_room] of row_bytes: tokens that another rank of this node has brought */
    uint64_t landed;
    /* Behind it: [nodes][relay_room] of row_bytes: tokens that have come from this rail's rank of a
     * node */
    uint64_t relay;
    struct mk_route route; /* but for what other ranks write */
};
MK_PLAN_OF(moe_dispatch);

/* What this rail's rank of `node` says to this node is here. */
MK_PURE uint32_t moe_railed_flag(const struct moe_dispatch_plan *p, uint32_t node)
{
    return p->flag_railed + node;
}

/* What a rank of the node is told is cut in so many, the first of which has the counts, others
 * records: of few tokens two, which two CTAs tell at the same time. */
MK_PURE uint32_t moe_told_shares(const struct moe_dispatch_plan *p)
{
    return p->routers > 1 ? p->routers : 2;
}

/* Counts the shares that a rank of this node has told. */
MK_PURE uint32_t moe_told_flag(const struct moe_dispatch_plan *p, uint32_t local)
{
    return p->flag_told + local;
}

/* Chunk `chunk` of the tokens that this rail's rank of `node` has sent here. */
MK_PURE uint32_t moe_relay_flag(const struct moe_dispatch_plan *p, uint32_t node, uint32_t chunk)
{
    return p->flag_relay + node * p->chunks + chunk;
}

/* Chunk `chunk` of rank `rank`'s tokens that have an expert here has come from another rank of the
 * node. */
MK_PURE uint32_t moe_landed_flag(const struct moe_dispatch_plan *p, uint32_t rank, uint32_t chunk)
{
    return p->flag_landed + rank * p->chunks + chunk;
}

/* Counts the rows of a tile of A that have come, over all launches. */
MK_PURE uint32_t moe_rows_flag(const struct moe_dispatch_plan *p, uint32_t row)
{
    return p->flag_rows + row / p->tile_m;
}

/* Number of a chunk of `rank`'s tokens on its way to rows, for traces; those below are of tokens on
 * their way here. */
MK_PURE uint32_t moe_spread_id(const struct moe_dispatch_plan *p, uint32_t rank, uint32_t chunk)
{
    return (mk_world(&p->topo) + rank) * p->chunks + chunk;
}

/* Rows that cross NVLink on a token's way to its experts, on the average of the ranks and at most:
 * it enters a rank once. */
MK_PURE uint64_t moe_crossings(const struct moe_dispatch_plan *p)
{
    uint64_t ranks = (uint64_t)p->topo.nodes * (p->topo.gpus - 1);
    return p->tokens * (ranks < p->k ? ranks : p->k);
}

/* Which rows tokens are, from number `source` on; the flag is the caller's. */
MK_PURE struct mk_places moe_places(const struct moe_dispatch_plan *p, uint32_t source)
{
    struct mk_places places;
    places.position = p->route.position + (uint64_t)source * p->k * 4;
    places.k = p->k;
    places.tile_rows = p->tile_m;
    places.flag = 0;
    return places;
}

MK_PURE struct mk_route moe_route(const struct moe_dispatch_plan *p, uint64_t epoch)
{
    struct mk_route r = p->route;
    r.said = p->said[epoch & 1];
    r.landed_records = p->landed_records[epoch & 1];
    r.railed = p->railed[epoch & 1];
    return r;
}
