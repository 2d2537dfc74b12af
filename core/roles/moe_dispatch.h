/* MoE dispatch: tokens to their experts. An operator of its own, and the first part of those that
 * compute on tokens. One schedule for every executor.
 *
 * Operands
 *   X_r [T, H], ids_r [T, k] uint32_t   each rank's tokens and their experts. An id that is no
 *                                       expert leaves its place out, so a rank may have fewer
 *                                       tokens than there is room for, or none.
 *   rows_r [rows, H]                    of the operator alone: the rows of a rank's experts, one
 *                                       expert after the other. Each expert's begin at a multiple
 *                                       of tile_m and are in the order of source rank, token,
 *                                       place. Rows between experts are not written.
 *   counts_r [E/W, 2] uint32_t          first row and number of rows of each
 *
 * Roles
 *   intra_comm    gathers the ids of all ranks (4 k bytes a token), one CTA for each rank. From
 *                 them all of these CTAs make the tables of where everything goes: counts and
 *                 offsets need no second exchange and no host. Then they push this rank's tokens to
 *                 the other ranks of the node, and forward in the node the tokens that the rail has
 *                 brought. They also count what has come here, by rows of this rank's experts.
 *   inter_send    packs the tokens that have an expert on another node and puts them along the
 *                 rail: each once per node, however many experts it has there
 *   inter_reduce  of the operator alone: copies each tile of rows, part by part, from where its
 *                 tokens lie to its place in rows_r; this rank's own tokens' first (mk_route_run)
 *
 * Bytes moved
 *   They depend on the ids. A token enters each other node where it has an expert once, on its own
 *   rail, and each rank where it has one once, from the rank of that node on its rail. It lies
 *   there once: a tile's rows of A are read from wherever their tokens are, and this rank's own
 *   from X (the table `source`).
 *   To these come the ids, rounded up to 16 bytes a rank: each rank receives the ids of (nodes - 1)
 *   ranks over the network and of (gpus - 1) nodes ranks over NVLink, 2 k / H of what tokens take.
 *   That is the price of having neither a host step nor a second exchange. Weights, where an
 *   operator has them, go with the ids and are as large again: the rank that has computed a token's
 *   rows adds them.
 *
 * Buffer reuse
 *   Ids and weights have two buffers, by epoch & 1; all else has one, and nothing needs credits.
 *   Nothing else moves in a launch before every rank's ids are here, and a rank that has sent its
 *   ids of a launch has ended the launch before, in which it read, forwarded and received
 *   everything. Ids of launch e + 2 come from a rank that has ended e + 1; for that it needed this
 *   rank's ids of e + 1, so launch e has ended here. Puts are drained before a launch ends: where
 *   puts have no order (SRD), the next launch's ids could else overtake tokens of this one, which
 *   a rank that sends nothing back may still lack.
 *
 * Deadlock freedom
 *   Waits form no cycle, and every CTA goes in this order: a rank's own tokens wait for nothing;
 *   those of the node's other ranks wait for pushes; those of other nodes wait for puts, which wait
 *   for tables alone; forwarded ones wait for those puts. inter_reduce waits for all of these, and
 *   none of them for it.
 *
 * Flags of a rank
 *   kept                  of a plan that drops: this rank's ids are ready to go
 *   ids[rank]
 *   routed, counted       count intra_comm CTAs
 *   relay[node][chunk]
 *   landed[rank][chunk]
 *   rows[tile of rows]    count rows of other ranks' tokens over all launches; the table `awaited`
 *                         says how many there must be by now. For its own tokens a rank awaits the
 *                         tables alone. */
#ifndef MK_ROLES_MOE_DISPATCH_H
#define MK_ROLES_MOE_DISPATCH_H

#include "core/roles/moe_dispatch_plan.h"
#include "core/cta_rows.h"
#include "core/roles/roles.h"

/* Before anything that reads a table. Where there is more than there is room for, there is none. */
MK_ROLE int moe_await_routed(const struct moe_dispatch_plan *p, struct mk_cta *cta)
{
    const uint64_t head = p->route.order_head;
    if (mk_cta_wait(cta, p->flag_routed, cta->epoch * p->routers, MK_CAUSE_DATA))
        return 1;
    uint32_t over = mk_cta_load(cta, head + offsetof(struct mk_route_head, over));
    return over &&
           mk_cta_overflow(cta, (enum mk_route_over)over,
                           mk_cta_load(cta, head + offsetof(struct mk_route_head, over_rank)),
                           mk_cta_load(cta, head + offsetof(struct mk_route_head, over_count)),
                           mk_cta_load(cta, head + offsetof(struct mk_route_head, over_room)));
}

/* Before the loads of the tile of A that row `row` is in: its rows are here. */
MK_ROLE int moe_await_rows(const struct moe_dispatch_plan *p, struct mk_cta *cta, uint32_t row)
{
    uint64_t awaited = mk_cta_load64(cta, p->route.awaited + row / p->tile_m * 8);
    return mk_cta_wait(cta, moe_rows_flag(p, row), awaited, MK_CAUSE_DATA);
}

/* Entry `t` of the table of tiles, in the order of computation (mk_route_run); 1, or 0 where there
 * is none. */
MK_ROLE int moe_entry(const struct moe_dispatch_plan *p, struct mk_cta *cta, uint32_t t,
                      struct mk_tile_entry *e)
{
    const struct mk_route *r = &p->route;
    uint64_t at = r->order + t * (uint64_t)sizeof *e;
    if (t >= mk_cta_load(cta, r->order_head + offsetof(struct mk_route_head, count)))
        return 0;
    e->row = mk_cta_load(cta, at + offsetof(struct mk_tile_entry, row));
    e->rows = mk_cta_load(cta, at + offsetof(struct mk_tile_entry, rows));
    e->group = mk_cta_load(cta, at + offsetof(struct mk_tile_entry, group));
    e->column = mk_cta_load(cta, at + offsetof(struct mk_tile_entry, column));
    return 1;
}

/* This rank's weights, where the operator has some, to behind its ids. */
MK_ROLE void moe_copy_weights(const struct moe_dispatch_plan *p, struct mk_cta *cta, uint32_t local,
                              uint64_t destination)
{
    struct mk_chunk c;
    c.id = p->topo.rank * p->chunks;
    c.space = p->weights_space;
    c.source = 0;
    c.destination = destination;
    c.bytes = p->ids_bytes;
    if (p->weights)
        mk_cta_copy(cta, local, &c);
}

/* Where a plan drops what does not fit: this rank's ids, but for those of places that are not kept,
 * lie where others will have them. */
MK_ROLE int moe_keep_ids(const struct moe_dispatch_plan *p, struct mk_cta *cta)
{
    if (!p->route.quota)
        return 0;
    if (cta->index == 0) {
        struct mk_route r = moe_route(p, cta->epoch);
        r.step = MK_ROUTE_KEEP;
        r.part = 0;
        r.parts = 1;
        mk_cta_route(cta, &r);
        mk_cta_signal(cta, mk_local_of(&p->topo, p->topo.rank), p->flag_kept, cta->epoch);
    }
    return mk_cta_wait(cta, p->flag_kept, cta->epoch, MK_CAUSE_DATA);
}

/* Every rank's ids to every rank of the node: the intra_comm CTAs take ranks in turn. */
MK_ROLE int moe_gather_ids(const struct moe_dispatch_plan *p, struct mk_cta *cta)
{
    const struct mk_topo *t = &p->topo;
    const int kept = p->route.quota != 0;
    if (moe_keep_ids(p, cta))
        return 1;
    uint32_t node = mk_node_of(t, t->rank), local = mk_local_of(t, t->rank), turn = 0;
    for (uint32_t distance = 0; distance < t->nodes; distance++) {
        uint32_t rank = mk_rank_at(t, (node + distance) % t->nodes, local);
        struct mk_chunk c;
        c.id = rank * p->chunks;
        c.space = distance || kept ? MK_SPACE_HEAP : p->ids_space;
        c.destination = p->ids[cta->epoch & 1] + rank * p->ids_pitch;
        c.source = distance || kept ? c.destination : 0;
        c.bytes = distance ? p->ids_moved + p->weights : p->ids_bytes;
        /* the others first: they wait for these ids as long as this rank for theirs */
        for (uint32_t step = 1; step < t->gpus + (distance ? 0 : 1); step++) {
            uint32_t peer = (local + t->gpus - step) % t->gpus;
            if (turn++ % cta->count != cta->index)
                continue;
            if (distance && mk_cta_wait(cta, moe_ids_flag(p, rank), cta->epoch, MK_CAUSE_NETWORK))
                return 1;
            if (peer != local || !kept)
                mk_cta_copy(cta, peer, &c);
            if (!distance)
                moe_copy_weights(p, cta, peer, c.destination + p->weights);
            mk_cta_signal(cta, peer, moe_ids_flag(p, rank), cta->epoch);
        }
    }
    return 0;
}

/* The tables: all intra_comm CTAs count, then all place. */
MK_ROLE int moe_make_tables(const struct moe_dispatch_plan *p, struct mk_cta *cta)
{
    uint32_t local = mk_local_of(&p->topo, p->topo.rank);
    struct mk_route r = moe_route(p, cta->epoch);
    r.part = cta->index;
    r.parts = cta->count;
    for (uint32_t rank = 0; rank < mk_world(&p->topo); rank++)
        if (mk_cta_wait(cta, moe_ids_flag(p, rank), cta->epoch, MK_CAUSE_DATA))
            return 1;
    r.step = MK_ROUTE_COUNT;
    mk_cta_route(cta, &r);
    mk_cta_add(cta, local, p->flag_counted, 1);
    if (mk_cta_wait(cta, p->flag_counted, cta->epoch * p->routers, MK_CAUSE_DATA))
        return 1;
    r.step = MK_ROUTE_PLACE;
    mk_cta_route(cta, &r);
    mk_cta_add(cta, local, p->flag_routed, 1);
    return moe_await_routed(p, cta);
}

/* Chunk `chunk` of `count` rows of `rank`'s tokens, which begin at `source` of `space`. */
MK_ROLE struct mk_rows moe_rows(const struct moe_dispatch_plan *p, uint32_t rank, uint32_t chunk,
                                uint32_t count, uint32_t space, uint64_t source, uint64_t list)
{
    struct mk_rows rows;
    rows.id = rank * p->chunks + chunk;
    rows.space = space;
    rows.source = source;
    rows.row_bytes = p->row_bytes;
    rows.list = list;
    rows.first = chunk * p->chunk_rows;
    rows.count = count - rows.first < p->chunk_rows ? count - rows.first : p->chunk_rows;
    rows.destination = 0;
    return rows;
}

/* Chunk `chunk` of `count` of a rank's tokens, of which the first has number `source`, is here. */
MK_ROLE void moe_tell_rows(const struct moe_dispatch_plan *p, struct mk_cta *cta, uint32_t source,
                           uint32_t chunk, uint32_t count)
{
    uint32_t first = chunk * p->chunk_rows;
    struct mk_places places = moe_places(p, source);
    places.flag = p->flag_rows;
    mk_cta_tell_rows(cta, mk_local_of(&p->topo, p->topo.rank), first,
                     count - first < p->chunk_rows ? count - first : p->chunk_rows, &places);
}

/* Chunk `chunk`, where there is one, of the tokens of this rail's rank of node `from` (this rank's
 * own, where that is this node) that have an expert on local rank `to`, to that rank. */
MK_ROLE int moe_push(const struct moe_dispatch_plan *p, struct mk_cta *cta, uint32_t from,
                     uint32_t to, uint32_t chunk)
{
    const struct mk_topo *t = &p->topo;
    const struct mk_route *r = &p->route;
    uint32_t local = mk_local_of(t, t->rank), rank = mk_rank_at(t, from, local);
    uint32_t begin = mk_cta_load(cta, r->push_first + (from * t->gpus + to) * 4),
             count = mk_cta_load(cta, r->push_count + (from * t->gpus + to) * 4);
    uint64_t list = r->push + ((uint64_t)to * r->landed_room + begin) * 4;
    int own = rank == t->rank;
    if (chunk * p->chunk_rows >= count)
        return 0;
    struct mk_rows rows =
        moe_rows(p, rank, chunk, count, own ? MK_SPACE_ARG0 : MK_SPACE_HEAP,
                 own ? 0 : p->relay + (uint64_t)from * r->relay_room * p->row_bytes, list);
    if (!own) { /* they lie among those that the rail brings, which come chunk by chunk */
        uint32_t last = rows.first + rows.count - 1,
                 end = mk_cta_load(cta, list + last * 4ull) / p->chunk_rows;
        for (uint32_t c = mk_cta_load(cta, list + rows.first * 4ull) / p->chunk_rows; c <= end; c++)
            if (mk_cta_wait(cta, moe_relay_flag(p, from, c), cta->epoch, MK_CAUSE_NETWORK))
                return 1;
    }
    rows.destination =
        p->landed + ((uint64_t)local * r->landed_room + begin + rows.first) * p->row_bytes;
    mk_cta_copy_listed(cta, to, &rows);
    mk_cta_signal(cta, to, moe_landed_flag(p, rank, chunk), cta->epoch);
    return 0;
}

/* What other ranks of the node bring here of the tokens of node `from`'s ranks: the first chunks of
 * all these ranks, then the second, ... */
MK_ROLE int moe_take_landed(const struct moe_dispatch_plan *p, struct mk_cta *cta, uint32_t from,
                            uint32_t *turn)
{
    const struct mk_topo *t = &p->topo;
    const struct mk_route *r = &p->route;
    uint32_t local = mk_local_of(t, t->rank), some = 1;
    for (uint32_t chunk = 0; some; chunk++) {
        some = 0;
        for (uint32_t step = 1; step < t->gpus; step++) {
            uint32_t rank = mk_rank_at(t, from, (local + step) % t->gpus);
            uint32_t count = mk_cta_load(cta, r->landed_count + rank * 4);
            if (chunk * p->chunk_rows >= count)
                continue;
            some = 1;
            if ((*turn)++ % cta->count != cta->index)
                continue;
            if (mk_cta_wait(cta, moe_landed_flag(p, rank, chunk), cta->epoch, MK_CAUSE_DATA))
                return 1;
            uint32_t first = mk_cta_load(cta, r->landed_first + rank * 4);
            moe_tell_rows(p, cta, mk_route_landed(r, rank, first), chunk, count);
        }
    }
    return 0;
}

/* Tokens of the rail's rank of node `from`: for this rank's experts, and on to the node's others.
 */
MK_ROLE int moe_take_relayed(const struct moe_dispatch_plan *p, struct mk_cta *cta, uint32_t from,
                             uint32_t *turn)
{
    const struct mk_topo *t = &p->topo;
    uint32_t local = mk_local_of(t, t->rank);
    uint32_t count = mk_cta_load(cta, p->route.came_count + from * 4);
    for (uint32_t chunk = 0; chunk * p->chunk_rows < count; chunk++) {
        if ((*turn)++ % cta->count != cta->index)
            continue;
        for (uint32_t step = 1; step < t->gpus; step++)
            if (moe_push(p, cta, from, (local + t->gpus - step) % t->gpus, chunk))
                return 1;
        if (mk_cta_wait(cta, moe_relay_flag(p, from, chunk), cta->epoch, MK_CAUSE_NETWORK))
            return 1;
        moe_tell_rows(p, cta, mk_route_relayed(&p->route, from), chunk, count);
    }
    return 0;
}

MK_ROLE int moe_intra_comm(const struct moe_dispatch_plan *p, struct mk_cta *cta)
{
    const struct mk_topo *t = &p->topo;
    uint32_t node = mk_node_of(t, t->rank), local = mk_local_of(t, t->rank), turn = 0;
    if (moe_gather_ids(p, cta) || moe_make_tables(p, cta))
        return 1;
    for (uint32_t chunk = 0; chunk < p->chunks; chunk++) {
        if (turn++ % cta->count != cta->index)
            continue;
        for (uint32_t step = 1; step < t->gpus; step++)
            if (moe_push(p, cta, node, (local + t->gpus - step) % t->gpus, chunk))
                return 1;
    }
    if (moe_take_landed(p, cta, node, &turn))
        return 1;
    for (uint32_t distance = 1; distance < t->nodes; distance++)
        if (moe_take_relayed(p, cta, (node + distance) % t->nodes, &turn))
            return 1;
    for (uint32_t distance = 1; distance < t->nodes; distance++)
        if (moe_take_landed(p, cta, (node + distance) % t->nodes, &turn))
            return 1;
    return 0;
}

/* This rank's ids, and weights, to its rail's rank of every other node: the first inter_send
 * CTA. */
MK_ROLE int moe_send_ids(const struct moe_dispatch_plan *p, struct mk_cta *cta)
{
    const struct mk_topo *t = &p->topo;
    uint32_t node = mk_node_of(t, t->rank), local = mk_local_of(t, t->rank);
    struct mk_chunk c;
    c.id = t->rank * p->chunks;
    c.space = MK_SPACE_HEAP;
    c.source = c.destination = p->ids[cta->epoch & 1] + t->rank * p->ids_pitch;
    c.bytes = p->ids_moved + p->weights;
    if (cta->index)
        return 0;
    if (mk_cta_wait(cta, moe_ids_flag(p, t->rank), cta->epoch, MK_CAUSE_DATA))
        return 1;
    for (uint32_t distance = 1; distance < t->nodes; distance++)
        if (mk_cta_put(cta, mk_rank_at(t, (node + t->nodes - distance) % t->nodes, local), &c,
                       moe_ids_flag(p, t->rank)))
            return 1;
    return 0;
}

MK_ROLE int moe_inter_send(const struct moe_dispatch_plan *p, struct mk_cta *cta)
{
    const struct mk_topo *t = &p->topo;
    uint32_t node = mk_node_of(t, t->rank), local = mk_local_of(t, t->rank), turn = 0;
    struct mk_chunk c;
    if (moe_send_ids(p, cta) || moe_await_routed(p, cta))
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
            uint64_t packed = p->packed + ((uint64_t)to * r.relay_room + first) * p->row_bytes;
            c.id = t->rank * p->chunks + chunk;
            struct mk_rows listed = moe_rows(p, t->rank, chunk, count, MK_SPACE_ARG0, 0,
                                             r.sent + (uint64_t)to * r.relay_room * 4);
            listed.destination = packed;
            mk_cta_copy_listed(cta, local, &listed);
            c.space = MK_SPACE_HEAP;
            c.source = packed;
            c.destination = p->relay + ((uint64_t)node * r.relay_room + first) * p->row_bytes;
            c.bytes = rows * p->row_bytes;
            if (mk_cta_put(cta, mk_rank_at(t, to, local), &c, moe_relay_flag(p, node, chunk)))
                return 1;
        }
    }
    return mk_cta_drain(cta);
}

/* Part `part` of a tile of rows, which are here, to its place. */
MK_ROLE void moe_take_part(const struct moe_dispatch_plan *p, struct mk_cta *cta,
                           const struct mk_tile_entry *e, uint32_t part)
{
    struct mk_gather g;
    g.id = moe_take_id(p, e->row, part);
    g.list = p->route.source;
    g.first = e->row + part * p->take_rows;
    g.count = e->rows - part * p->take_rows;
    g.count = g.count < p->take_rows ? g.count : p->take_rows;
    g.space = MK_SPACE_ARG0;
    g.near = p->room;
    g.far = p->landed;
    g.row_bytes = p->row_bytes;
    g.to = MK_SPACE_ARG2;
    g.destination = g.first * p->row_bytes;
    mk_cta_gather(cta, mk_local_of(&p->topo, p->topo.rank), &g);
}

/* Rows of experts to their places in rows_r: tiles in their order, each in parts of take_rows. */
MK_ROLE int moe_deliver(const struct moe_dispatch_plan *p, struct mk_cta *cta)
{
    uint32_t parts = moe_parts_of_tile(p);
    struct mk_tile_entry e;
    if (moe_await_routed(p, cta))
        return 1;
    for (uint32_t turn = cta->index; moe_entry(p, cta, turn / parts, &e); turn += cta->count) {
        if (turn % parts * p->take_rows >= e.rows)
            continue;
        if (moe_await_rows(p, cta, e.row))
            return 1;
        moe_take_part(p, cta, &e, turn % parts);
    }
    return 0;
}

MK_ROLES_OF(moe_dispatch, moe_intra_comm(p, cta), moe_inter_send(p, cta), moe_deliver(p, cta));

#endif
