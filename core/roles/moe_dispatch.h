/* MoE dispatch: tokens to their experts, the first part of both MoE operators, as one schedule for
 * every executor.
 *
 *   X_r [T, H], ids_r [T, k] uint32_t   each rank's tokens and their experts; a number that is no
 *                                       expert leaves a place out, so a rank may have fewer tokens
 *                                       than there is room for, or none
 *
 *   intra_comm   its first CTA gathers all ranks' ids (4 k bytes a token) and makes the tables of
 *                where everything goes, so that counts and offsets need no other exchange and no
 *                host; then all of them move this rank's tokens to the experts of the node, and
 *                those that the rail has brought
 *   inter_send   packs the tokens that have an expert on another node and puts them along the rail:
 *                each once per node, however many experts it has there
 *
 * Minimum bytes, which depend on the ids: a token has to enter each other node where it has an
 * expert, and does so once, on its own rail. To those come ids, rounded up to 16 bytes a rank: each
 * rank receives (nodes - 1) ranks' over the network, (gpus - 1) nodes over NVLink. That is what
 * having no host step and no second exchange costs: 2 k / H of what tokens take. Weights, where an
 * operator has them, go with the ids along the rail and not over NVLink: the rank that adds a
 * token's rows on another node is the rank that received it there. Over NVLink a token moves once
 * for each expert on another rank of the node where it is. The least would be once for each such
 * rank; that would take another step, on the expert's rank, for the tokens that have two experts
 * there (8 of 256 experts on 16 ranks, evenly: 18 % of the rows), and NVLink is not what is short.
 *
 * No credits, and two buffers (epoch & 1) for ids and weights alone. Nothing else moves in a launch
 * before every rank's ids are here, and a rank that has sent its ids of a launch has ended the
 * launch before, in which it read, forwarded and received everything. Ids of launch e + 2 come from
 * a rank that has ended e + 1, for which it needed this rank's ids of e + 1: e has ended here. Puts
 * are drained before a launch ends: where puts have no order (SRD), the next launch's ids would
 * else tell of this one's, which a rank that sends nothing back may still lack.
 *
 * Rows are counted over all launches: the table `wanted` says how many a tile of rows has to have
 * seen by now.
 *
 * Flags of a rank: ids[rank], routed, relay[node][chunk], rows[tile of rows]. */
#ifndef MK_ROLES_MOE_DISPATCH_H
#define MK_ROLES_MOE_DISPATCH_H

#include "core/roles/moe_dispatch_plan.h"

/* Before anything that reads a table. */
MK_ROLE int moe_await_routed(const struct moe_dispatch_plan *p, struct mk_cta *cta)
{
    return mk_cta_wait(cta, p->flag_routed, cta->epoch, MK_CAUSE_DATA);
}

/* Before the loads of the tile of A that row `row` is in: its rows are here. */
MK_ROLE int moe_await_rows(const struct moe_dispatch_plan *p, struct mk_cta *cta, uint32_t row)
{
    uint64_t wanted = mk_cta_load64(cta, p->route.wanted + row / p->tile_m * 8);
    return mk_cta_wait(cta, moe_rows_flag(p, row), wanted, MK_CAUSE_DATA);
}

/* Rows of tiles of one expert that are computed one after the other. Counted not from the expert's
 * first but from where its rows from this node begin: those come first, then the other nodes' in
 * the order in which they arrive; a tile that holds both is theirs. */
struct moe_run {
    uint32_t expert;       /* of this rank's */
    uint32_t rows, tiles;  /* of the expert in all; tiles: rows of tiles */
    uint32_t begin;        /* the row of tiles that counts as 0 */
    uint32_t first, count; /* of this run */
};

/* The order of computation: stretches 0 .. moe_stretches() - 1, in each of which every expert has a
 * run. First rows of this node, which are here soonest; then the other nodes' in slices, each for
 * all experts, so that a slice's tokens need to have come, and are done with, while the next ones
 * are on their way. Where rows go back, half of the experts' own rows are kept for the end, to
 * compute while the last slice crosses: the first half hides tokens' way here, the second their way
 * back. */
MK_ROLE uint32_t moe_stretches(const struct moe_dispatch_plan *p)
{
    return 1 + p->slices + p->late;
}

MK_ROLE void moe_run_of(const struct moe_dispatch_plan *p, struct mk_cta *cta, uint32_t stretch,
                        uint32_t expert, struct moe_run *run)
{
    uint32_t node = mk_node_of(&p->topo, p->topo.rank);
    uint64_t table = p->route.node_rows + (uint64_t)expert * (p->topo.nodes + 1) * 4;
    uint32_t before = mk_cta_load(cta, table + node * 4),
             end = mk_cta_load(cta, table + node * 4 + 4);
    run->expert = expert;
    run->rows = mk_cta_load(cta, table + p->topo.nodes * 4);
    run->tiles = (uint32_t)mk_ceil_div(run->rows, p->tile_m);
    run->begin = (uint32_t)mk_ceil_div(before, p->tile_m);
    uint32_t own_end = end == run->rows ? run->tiles : end / p->tile_m;
    uint32_t own = own_end > run->begin ? own_end - run->begin : 0, others = run->tiles - own,
             early = own;
    if (p->late) { /* of the first half of the experts; of the one in the middle, half of them */
        uint32_t left = p->rank_experts > 2 * expert ? p->rank_experts - 2 * expert : 0;
        early = left > 1 ? own : left ? own / 2 : 0;
    }
    if (!stretch) {
        run->first = 0;
        run->count = early;
    } else if (stretch <= p->slices) {
        uint64_t from = (uint64_t)others * (stretch - 1) / p->slices,
                 to = (uint64_t)others * stretch / p->slices;
        run->first = own + (uint32_t)from;
        run->count = (uint32_t)(to - from);
    } else {
        run->first = early;
        run->count = own - early;
    }
}

/* The first row, on this rank, of row of tiles number `i` of a run; *rows: how many it has. */
MK_ROLE uint32_t moe_run_row(const struct moe_dispatch_plan *p, struct mk_cta *cta,
                             const struct moe_run *run, uint32_t i, uint32_t *rows)
{
    uint32_t tile = run->begin + run->first + i,
             row = (tile < run->tiles ? tile : tile - run->tiles) * p->tile_m;
    uint64_t entry = ((uint64_t)p->topo.rank * p->rank_experts + run->expert) * 4;
    *rows = run->rows - row < p->tile_m ? run->rows - row : p->tile_m;
    return mk_cta_load(cta, p->route.first + entry) + row;
}

/* This rank's weights to behind its ids: they go along the rail together. */
MK_ROLE void moe_keep_weights(const struct moe_dispatch_plan *p, struct mk_cta *cta,
                              uint64_t destination)
{
    struct mk_chunk c;
    c.id = p->topo.rank * p->chunks;
    c.space = MK_SPACE_ARG3;
    c.source = 0;
    c.destination = destination;
    c.bytes = p->ids_bytes;
    mk_cta_copy(cta, mk_local_of(&p->topo, p->topo.rank), &c);
}

/* Every rank's ids to every rank of the node; then the tables. */
MK_ROLE int moe_gather_ids(const struct moe_dispatch_plan *p, struct mk_cta *cta)
{
    const struct mk_topo *t = &p->topo;
    uint32_t node = mk_node_of(t, t->rank), local = mk_local_of(t, t->rank);
    for (uint32_t distance = 0; distance < t->nodes; distance++) {
        uint32_t rank = mk_rank_at(t, (node + distance) % t->nodes, local);
        struct mk_chunk c;
        c.id = rank * p->chunks;
        c.space = distance ? MK_SPACE_HEAP : MK_SPACE_ARG2;
        c.destination = p->ids[cta->epoch & 1] + rank * p->ids_pitch;
        c.source = distance ? c.destination : 0;
        c.bytes = distance ? p->ids_moved : p->ids_bytes;
        if (distance && mk_cta_wait(cta, moe_ids_flag(p, rank), cta->epoch, MK_CAUSE_NETWORK))
            return 1;
        for (uint32_t step = distance ? 1 : 0; step < t->gpus; step++) {
            uint32_t peer = (local + t->gpus - step) % t->gpus;
            mk_cta_copy(cta, peer, &c);
            if (!distance && !step && p->weights)
                moe_keep_weights(p, cta, c.destination + p->weights);
            mk_cta_signal(cta, peer, moe_ids_flag(p, rank), cta->epoch);
        }
    }
    for (uint32_t rank = 0; rank < mk_world(t); rank++)
        if (mk_cta_wait(cta, moe_ids_flag(p, rank), cta->epoch, MK_CAUSE_DATA))
            return 1;
    struct mk_route r = moe_route(p, cta->epoch);
    mk_cta_route(cta, &r);
    mk_cta_signal(cta, local, p->flag_routed, cta->epoch);
    return 0;
}

/* Token `token` of `rank`, which lies at `source` of `space`, to its experts on this node (tell 0),
 * then its arrival (tell 1). */
MK_ROLE void moe_scatter_token(const struct moe_dispatch_plan *p, struct mk_cta *cta,
                               const struct mk_route *r, uint32_t rank, uint32_t token,
                               uint32_t space, uint64_t source, int tell)
{
    uint32_t node = mk_node_of(&p->topo, p->topo.rank);
    for (uint32_t place = 0; place < p->k; place++) {
        uint64_t at = ((uint64_t)token * p->k + place) * 4;
        uint32_t expert = mk_cta_load(cta, r->ids + rank * p->ids_pitch + at);
        if (expert >= p->experts || moe_node_of_expert(p, expert) != node)
            continue;
        uint32_t row = mk_cta_load(cta, r->position + rank * p->ids_bytes + at);
        struct mk_chunk c;
        c.id = rank * p->chunks + token / p->chunk_rows;
        c.space = space;
        c.source = source;
        c.destination = p->gathered + row * p->row_bytes;
        c.bytes = p->row_bytes;
        if (tell)
            mk_cta_add(cta, moe_local_of_expert(p, expert), moe_rows_flag(p, row), 1);
        else
            mk_cta_copy(cta, moe_local_of_expert(p, expert), &c);
    }
}

MK_ROLE int moe_intra_comm(const struct moe_dispatch_plan *p, struct mk_cta *cta)
{
    const struct mk_topo *t = &p->topo;
    uint32_t node = mk_node_of(t, t->rank), local = mk_local_of(t, t->rank), turn = 0;
    if ((cta->index == 0 && moe_gather_ids(p, cta)) || moe_await_routed(p, cta))
        return 1;
    struct mk_route r = moe_route(p, cta->epoch);
    for (uint32_t distance = 0; distance < t->nodes; distance++) {
        uint32_t from = (node + distance) % t->nodes, rank = mk_rank_at(t, from, local);
        uint32_t count = distance ? mk_cta_load(cta, r.came_count + from * 4) : p->tokens;
        for (uint32_t chunk = 0; chunk * p->chunk_rows < count; chunk++) {
            if (turn++ % cta->count != cta->index)
                continue;
            if (distance &&
                mk_cta_wait(cta, moe_relay_flag(p, from, chunk), cta->epoch, MK_CAUSE_NETWORK))
                return 1;
            uint32_t first = chunk * p->chunk_rows,
                     end = first + p->chunk_rows < count ? first + p->chunk_rows : count;
            for (int tell = 0; tell < 2;
                 tell++) /* all are moved before any is told: one settling of copies */
                for (uint32_t i = first; i < end; i++) {
                    uint32_t token =
                        distance ? mk_cta_load(cta, r.came + ((uint64_t)from * p->tokens + i) * 4)
                                 : i;
                    uint64_t source = distance
                                          ? p->relay + ((uint64_t)from * p->room + i) * p->row_bytes
                                          : i * p->row_bytes;
                    moe_scatter_token(p, cta, &r, rank, token,
                                      distance ? MK_SPACE_HEAP : MK_SPACE_ARG0, source, tell);
                }
        }
    }
    return 0;
}

MK_ROLE int moe_inter_send(const struct moe_dispatch_plan *p, struct mk_cta *cta)
{
    const struct mk_topo *t = &p->topo;
    uint32_t node = mk_node_of(t, t->rank), local = mk_local_of(t, t->rank), turn = 0;
    struct mk_chunk c;
    c.id = t->rank * p->chunks;
    c.space = MK_SPACE_HEAP;
    c.source = c.destination = p->ids[cta->epoch & 1] + t->rank * p->ids_pitch;
    c.bytes = p->ids_moved + p->weights;
    if (cta->index == 0) {
        if (mk_cta_wait(cta, moe_ids_flag(p, t->rank), cta->epoch, MK_CAUSE_DATA))
            return 1;
        for (uint32_t distance = 1; distance < t->nodes; distance++)
            if (mk_cta_put(cta, mk_rank_at(t, (node + t->nodes - distance) % t->nodes, local), &c,
                           moe_ids_flag(p, t->rank)))
                return 1;
    }
    if (moe_await_routed(p, cta))
        return 1;
    struct mk_route r = moe_route(p, cta->epoch);
    for (uint32_t distance = 1; distance < t->nodes; distance++) {
        uint32_t to = (node + t->nodes - distance) % t->nodes,
                 count = mk_cta_load(cta, r.sent_count + to * 4);
        for (uint32_t chunk = 0; chunk * p->chunk_rows < count; chunk++) {
            if (turn++ % cta->count != cta->index)
                continue;
            uint32_t first = chunk * p->chunk_rows,
                     rows = count - first < p->chunk_rows ? count - first : p->chunk_rows;
            uint64_t packed = p->packed + ((uint64_t)to * p->room + first) * p->row_bytes;
            c.id = t->rank * p->chunks + chunk;
            for (uint32_t i = 0; i < rows; i++) {
                c.space = MK_SPACE_ARG0;
                c.source = mk_cta_load(cta, r.sent + ((uint64_t)to * p->tokens + first + i) * 4) *
                           p->row_bytes;
                c.destination = packed + i * p->row_bytes;
                c.bytes = p->row_bytes;
                mk_cta_copy(cta, local, &c);
            }
            c.space = MK_SPACE_HEAP;
            c.source = packed;
            c.destination = p->relay + ((uint64_t)node * p->room + first) * p->row_bytes;
            c.bytes = rows * p->row_bytes;
            if (mk_cta_put(cta, mk_rank_at(t, to, local), &c, moe_relay_flag(p, node, chunk)))
                return 1;
        }
    }
    return mk_cta_drain(cta);
}

#endif
