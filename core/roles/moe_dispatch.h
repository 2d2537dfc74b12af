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
 *   count_r uint32_t                    of a plan that is counted (MOE_COUNTED): how many
 *                                       tokens this rank has in this launch, T at most. Those
 *                                       behind are not read, nor are their ids.
 *
 * Roles
 *   intra_comm    makes the tables of where this rank's tokens go, from its own ids, and tells the
 *                 other ranks of the node how many rows and tokens they get and which experts these
 *                 name, of its own tokens and of those that its rail brings (core/cta/cta_route.h);
 *                 from what it is told it makes the tables of what comes here. Counts and offsets
 *                 need no host. Then they push this rank's tokens to the other ranks of the node,
 *                 and forward in the node the tokens that the rail has brought. They also count
 *                 what has come here, by rows of this rank's experts, where a product waits for it.
 *   inter_send    puts what there is to say to another node along the rail; packs the tokens that
 *                 have an expert there and puts them: each once per node, however many experts it
 *                 has there
 *   inter_reduce  of the operator alone: takes tokens, some at a time, to the rows of rows_r that
 *                 they are; this rank's own first, then others' as their chunks come. So a token is
 *                 read once, however many experts it has here, and no rows are counted in: what has
 *                 come is told by the flags of chunks
 *
 * Bytes moved
 *   They depend on the ids. A token enters each other node where it has an expert once, on its own
 *   rail, and each rank where it has one once, from the rank of that node on its rail. It lies
 *   there once: a tile's rows of A are read from wherever their tokens are, and this rank's own
 *   from X (the table `source`).
 *   A token's records, 16 k bytes, go the same way, once to each node and rank where it has an
 *   expert: 8 k / H of what tokens take. To these come counts: 4 (E/W + 2) bytes from each rank to
 *   each other rank, by way of the rank of that node on its rail. Both have to be there before a
 *   tile is known, and so go before any token. No rank sends or has what grows with ranks times
 *   tokens. The rank that has computed a token's rows adds them: weights are in the records.
 *
 * Buffer reuse
 *   What ranks say (counts and records) has two buffers, by epoch & 1; all else has one, and
 *   nothing needs credits. Nothing else moves in a launch before every rank of the node has told
 *   this one, which it does once the ranks of other nodes on its rail have told it; so all ranks
 *   have begun the launch, and ended the one before, in which they read, forwarded and received
 *   everything. What is said of launch e + 2 comes from a rank that has ended e + 1; for that it
 *   needed what this rank said of e + 1, so launch e has ended here. Puts are drained before a
 *   launch ends: where puts have no order (SRD), what the next launch says could else overtake
 *   tokens of this one, which a rank that sends nothing back may still lack.
 *
 * Deadlock freedom
 *   Waits form a chain, and every CTA goes in its order. What a rank says along its rail waits for
 *   nothing. What it tells its node waits for its rail's ranks; tables wait for what the node's
 *   ranks tell, and so do a rank's own tokens. Tokens of the node's other ranks wait for pushes;
 *   tokens of other nodes wait for puts, which wait for tables alone; forwarded tokens wait for
 *   those puts. inter_reduce waits for all of these, and none of them for it.
 *
 * Flags of a rank
 *   kept                  of a plan that drops: this rank's ids are ready
 *   counted, placed, relayed, routed   count intra_comm CTAs that make tables: steps of them are
 *                                      made
 *   railed[node]
 *   told[local rank]      counts the shares of what it tells (moe_told_shares)
 *   relay[node][chunk]
 *   landed[rank][chunk]
 *   rows[tile of rows]    of those that compute: count rows of other ranks' tokens over all
 *                         launches; the table `awaited` says how many there must be by now. For its
 *                         own tokens a rank awaits the tables alone. */
#pragma once

#include "core/roles/moe_dispatch_plan.h"
#include "core/cta/cta_rows.h"
#include "core/roles/roles.h"

/* Before anything that reads a table. Where there is more than there is room for, there is none. */
MK_ROLE int moe_await_routed(const struct moe_dispatch_plan *p, struct mk_cta *cta)
{
    const uint64_t head = p->route.order_head;
    if (mk_cta_wait(cta, p->flag_routed, cta->epoch * p->layers, MK_CAUSE_DATA))
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

/* How many tokens this rank has in this launch: a plan's, or what the argument says. */
MK_ROLE uint32_t moe_tokens(const struct moe_dispatch_plan *p, struct mk_cta *cta)
{
    return p->count_space == MK_SPACE_HEAP
               ? p->tokens
               : mk_cta_load_argument(cta, (enum mk_space)p->count_space);
}

/* Before anything else of those CTAs that everybody waits for: nobody is told of more tokens than
 * there is room for, so nobody's launch goes on. */
MK_ROLE int moe_check_tokens(const struct moe_dispatch_plan *p, struct mk_cta *cta)
{
    const uint32_t tokens = moe_tokens(p, cta);
    return tokens > p->tokens &&
           mk_cta_overflow(cta, MK_OVER_TOKENS, p->topo.rank, tokens, p->tokens);
}

/* Where a plan drops what does not fit: this rank's ids, but for those of places that are not kept,
 * lie where tables are made from. */
MK_ROLE int moe_keep_ids(const struct moe_dispatch_plan *p, struct mk_cta *cta)
{
    if (!p->route.quota)
        return 0;
    if (cta->index == 0) {
        struct mk_route r = moe_route(p, cta->epoch);
        r.tokens = moe_tokens(p, cta);
        r.step = MK_ROUTE_KEEP;
        r.part = 0;
        r.parts = 1;
        mk_cta_route(cta, &r);
        mk_cta_signal(cta, mk_local_of(&p->topo, p->topo.rank), p->flag_kept, cta->epoch);
    }
    return mk_cta_wait(cta, p->flag_kept, cta->epoch, MK_CAUSE_DATA);
}

/* This CTA's share of a step of the tables, which the first `parts` intra_comm CTAs make; flag:
 * where they say that it is made; 0: nowhere. */
MK_ROLE void moe_make(const struct moe_dispatch_plan *p, struct mk_cta *cta, uint32_t step,
                      uint32_t parts, uint32_t flag)
{
    struct mk_route r = moe_route(p, cta->epoch);
    if (cta->index >= parts)
        return;
    r.tokens = moe_tokens(p, cta);
    r.step = step;
    r.part = cta->index;
    r.parts = parts;
    mk_cta_route(cta, &r);
    if (flag)
        mk_cta_made(cta, mk_local_of(&p->topo, p->topo.rank), flag);
}

/* A step of what this rank has to say, and until it is made; is_private: only they wait for it, and
 * who makes it alone goes on without a word. */
MK_ROLE int moe_make_all(const struct moe_dispatch_plan *p, struct mk_cta *cta, uint32_t step,
                         uint32_t flag, int is_private)
{
    const int told = !is_private || p->routers > 1;
    moe_make(p, cta, step, p->routers, told ? flag : 0);
    return told && mk_cta_wait(cta, flag, cta->epoch * p->routers, MK_CAUSE_DATA);
}

/* Units are taken by CTAs in turn: whether the next one is this CTA's, which lets `others` go by
 * before. */
MK_ROLE int moe_takes(const struct mk_cta *cta, uint32_t *others)
{
    if ((*others)--)
        return 0;
    *others = cta->count - 1;
    return 1;
}

/* Waits for `count` flags that follow each other but for the one at `but`. */
MK_ROLE int moe_await_others(struct mk_cta *cta, uint32_t flag, uint32_t count, uint32_t but,
                             uint64_t target, enum mk_cause cause)
{
    for (uint32_t i = 0; i < count;) {
        uint32_t end = i < but ? but : count, some = end - i < 32 ? end - i : 32;
        if (i == but) {
            i++;
            continue;
        }
        if (mk_cta_wait_all(cta, flag + i, some, target, cause))
            return 1;
        i += some;
    }
    return 0;
}

/* How many tokens this rank hands on to local rank `to`, of all nodes; as many as have room. */
MK_ROLE uint32_t moe_listed(const struct moe_dispatch_plan *p, struct mk_cta *cta, uint32_t to)
{
    const struct mk_route *r = &p->route;
    uint32_t at = (mk_route_behind(&p->topo, p->topo.nodes - 1) * p->topo.gpus + to) * 4,
             all = mk_cta_load(cta, r->push_first + at) + mk_cta_load(cta, r->push_count + at);
    return all < r->landed_room ? all : r->landed_room;
}

/* What the other ranks of the node are told, in shares that CTAs take in turn: of each rank, what
 * is said to it, then its tokens' records. */
MK_ROLE void moe_tell(const struct moe_dispatch_plan *p, struct mk_cta *cta)
{
    const struct mk_topo *t = &p->topo;
    const struct mk_route r = moe_route(p, cta->epoch);
    const uint32_t local = mk_local_of(t, t->rank), shares = moe_told_shares(p);
    struct mk_chunk c;
    c.id = t->rank * p->chunks;
    c.space = MK_SPACE_HEAP;
    for (uint32_t i = cta->index; i < (t->gpus - 1) * shares; i += cta->count) {
        const uint32_t to = (local + t->gpus - 1 - i / shares) % t->gpus, share = i % shares;
        if (share == 0) {
            c.source = r.say + to * p->said_bytes;
            c.destination = r.said + local * p->said_bytes;
            c.bytes = p->said_bytes;
        } else {
            const uint32_t count = moe_listed(p, cta, to);
            const uint64_t list = (uint64_t)to * r.landed_room,
                           landed = (uint64_t)local * r.landed_room,
                           begin = (uint64_t)count * (share - 1) / (shares - 1),
                           end = (uint64_t)count * share / (shares - 1);
            c.source = r.telling + (list + begin) * p->record_bytes;
            c.destination = r.landed_records + (landed + begin) * p->record_bytes;
            c.bytes = (end - begin) * p->record_bytes;
        }
        if (c.bytes)
            mk_cta_copy(cta, to, &c);
        mk_cta_add(cta, to, moe_told_flag(p, local), 1);
    }
}

/* Where this rank's own tokens go. */
MK_ROLE int moe_place_own(const struct moe_dispatch_plan *p, struct mk_cta *cta)
{
    return moe_check_tokens(p, cta) || moe_keep_ids(p, cta) ||
           moe_make_all(p, cta, MK_ROUTE_COUNT, p->flag_counted, 1) ||
           moe_make_all(p, cta, MK_ROUTE_PLACE, p->flag_placed, 0);
}

/* With several nodes: what this rail's ranks say, once all have, is for this rank to tell. */
MK_ROLE int moe_take_railed(const struct moe_dispatch_plan *p, struct mk_cta *cta)
{
    const struct mk_topo *t = &p->topo;
    return t->nodes > 1 &&
           (moe_await_others(cta, moe_railed_flag(p, 0), t->nodes, mk_node_of(t, t->rank),
                             cta->epoch, MK_CAUSE_NETWORK) ||
            moe_make_all(p, cta, MK_ROUTE_RELAY, p->flag_relayed, 0));
}

/* What comes here, once the node's ranks have told it, but for what others make of the last
 * step. */
MK_ROLE int moe_lay_out(const struct moe_dispatch_plan *p, struct mk_cta *cta)
{
    const struct mk_topo *t = &p->topo;
    if (moe_await_others(cta, moe_told_flag(p, 0), t->gpus, mk_local_of(t, t->rank),
                         cta->epoch * moe_told_shares(p), MK_CAUSE_DATA))
        return 1;
    moe_make(p, cta, MK_ROUTE_LAY_OUT, p->layers, p->flag_routed);
    return 0;
}

/* The tables, step by step. Tokens may go to the ranks of the node then. */
MK_ROLE int moe_make_tables(const struct moe_dispatch_plan *p, struct mk_cta *cta)
{
    if (moe_place_own(p, cta) || moe_take_railed(p, cta))
        return 1;
    moe_tell(p, cta);
    return moe_lay_out(p, cta);
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
    if (begin + count > r->landed_room)
        return moe_await_routed(p, cta); /* which says so */
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

/* A chunk that another rank of the node brings here: of which rank's tokens, and how many these
 * are. */
struct moe_landed {
    uint32_t rank, count, chunk, step, some;
};

/* The next of those of node `from`'s ranks, from {0} on: the first chunks of all these ranks, then
 * the second, ...; 0: there are no more. */
MK_ROLE int moe_landed_next(const struct moe_dispatch_plan *p, struct mk_cta *cta, uint32_t from,
                            struct moe_landed *l)
{
    const struct mk_topo *t = &p->topo;
    const uint32_t local = mk_local_of(t, t->rank);
    for (;;) {
        if (++l->step >= t->gpus) {
            if (!l->some)
                return 0;
            l->chunk++;
            l->step = l->some = 0;
            continue;
        }
        l->rank = mk_rank_at(t, from, (local + l->step) % t->gpus);
        l->count = mk_cta_load(cta, p->route.landed_count + l->rank * 4);
        if (l->chunk * p->chunk_rows < l->count)
            return l->some = 1;
    }
}

/* Number of the first token that has come of the rank. */
MK_ROLE uint32_t moe_landed_first(const struct moe_dispatch_plan *p, struct mk_cta *cta,
                                  uint32_t rank)
{
    const struct mk_route *r = &p->route;
    return mk_route_landed(r, rank, mk_cta_load(cta, r->landed_first + rank * 4));
}

/* What other ranks of the node bring here of the tokens of node `from`'s ranks. */
MK_ROLE int moe_take_landed(const struct moe_dispatch_plan *p, struct mk_cta *cta, uint32_t from,
                            uint32_t *others)
{
    struct moe_landed l = {0};
    while (moe_landed_next(p, cta, from, &l)) {
        if (!moe_takes(cta, others))
            continue;
        if (mk_cta_wait(cta, moe_landed_flag(p, l.rank, l.chunk), cta->epoch, MK_CAUSE_DATA))
            return 1;
        moe_tell_rows(p, cta, moe_landed_first(p, cta, l.rank), l.chunk, l.count);
    }
    return 0;
}

/* Tokens of the rail's rank of node `from`: on to the node's others, and for this rank's experts,
 * where that is to be told. */
MK_ROLE int moe_take_relayed(const struct moe_dispatch_plan *p, struct mk_cta *cta, uint32_t from,
                             int tells, uint32_t *others)
{
    const struct mk_topo *t = &p->topo;
    uint32_t local = mk_local_of(t, t->rank);
    uint32_t count = mk_cta_load(cta, p->route.came_count + from * 4);
    for (uint32_t chunk = 0; chunk * p->chunk_rows < count; chunk++) {
        if (!moe_takes(cta, others))
            continue;
        for (uint32_t step = 1; step < t->gpus; step++)
            if (moe_push(p, cta, from, (local + t->gpus - step) % t->gpus, chunk))
                return 1;
        if (!tells)
            continue;
        if (mk_cta_wait(cta, moe_relay_flag(p, from, chunk), cta->epoch, MK_CAUSE_NETWORK))
            return 1;
        moe_tell_rows(p, cta, mk_route_relayed(&p->route, from), chunk, count);
    }
    return 0;
}

/* Tables, and all that goes to other ranks of the node: first from those CTAs that lay nothing out.
 * `tells`: what comes is counted by rows. */
MK_ROLE int moe_move(const struct moe_dispatch_plan *p, struct mk_cta *cta, int tells)
{
    const struct mk_topo *t = &p->topo;
    const uint32_t node = mk_node_of(t, t->rank), local = mk_local_of(t, t->rank);
    uint32_t others = (cta->count - p->layers + cta->index) % cta->count;
    if (moe_make_tables(p, cta))
        return 1;
    for (uint32_t chunk = 0; chunk < p->chunks; chunk++) {
        if (!moe_takes(cta, &others))
            continue;
        for (uint32_t step = 1; step < t->gpus; step++)
            if (moe_push(p, cta, node, (local + t->gpus - step) % t->gpus, chunk))
                return 1;
    }
    if (moe_await_routed(p, cta) || (tells && moe_take_landed(p, cta, node, &others)))
        return 1;
    for (uint32_t distance = 1; distance < t->nodes; distance++)
        if (moe_take_relayed(p, cta, (node + distance) % t->nodes, tells, &others))
            return 1;
    for (uint32_t distance = 1; tells && distance < t->nodes; distance++)
        if (moe_take_landed(p, cta, (node + distance) % t->nodes, &others))
            return 1;
    return 0;
}

MK_ROLE int moe_intra_comm(const struct moe_dispatch_plan *p, struct mk_cta *cta)
{
    return moe_move(p, cta, 1);
}

/* What this rank says to each other node, to its rail's rank there: inter_send CTAs take nodes in
 * turn. More than there is room for is not said, only how many. */
MK_ROLE int moe_say(const struct moe_dispatch_plan *p, struct mk_cta *cta)
{
    const struct mk_topo *t = &p->topo;
    const struct mk_route r = moe_route(p, cta->epoch);
    uint32_t node = mk_node_of(t, t->rank), local = mk_local_of(t, t->rank);
    struct mk_chunk c;
    c.id = t->rank * p->chunks;
    c.space = MK_SPACE_HEAP;
    c.destination = r.railed + node * r.rail_pitch;
    if (mk_cta_wait(cta, p->flag_placed, cta->epoch * p->routers, MK_CAUSE_DATA))
        return 1;
    for (uint32_t distance = 1 + cta->index; distance < t->nodes; distance += cta->count) {
        uint32_t to = (node + t->nodes - distance) % t->nodes,
                 count = mk_cta_load(cta, r.sent_count + to * 4);
        c.source = r.railing + to * r.rail_pitch;
        c.bytes = r.rail_head + (count < r.relay_room ? count : r.relay_room) * p->record_bytes;
        if (mk_cta_put(cta, mk_rank_at(t, to, local), &c, moe_railed_flag(p, node)))
            return 1;
    }
    return 0;
}

/* The tokens that have an expert on another node, to it; as many as have room there, where there
 * are more and the launch is to end. */
MK_ROLE int moe_put_tokens(const struct moe_dispatch_plan *p, struct mk_cta *cta)
{
    const struct mk_topo *t = &p->topo;
    uint32_t node = mk_node_of(t, t->rank), local = mk_local_of(t, t->rank), others = cta->index;
    struct mk_chunk c;
    struct mk_route r = moe_route(p, cta->epoch);
    for (uint32_t distance = 1; distance < t->nodes; distance++) {
        uint32_t to = (node + t->nodes - distance) % t->nodes,
                 all = mk_cta_load(cta, r.sent_count + to * 4),
                 count = all < r.relay_room ? all : r.relay_room;
        for (uint32_t chunk = 0; chunk * p->chunk_rows < count; chunk++) {
            if (!moe_takes(cta, &others))
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
    return 0;
}

MK_ROLE int moe_inter_send(const struct moe_dispatch_plan *p, struct mk_cta *cta)
{
    return moe_say(p, cta) || moe_await_routed(p, cta) || moe_put_tokens(p, cta) ||
           mk_cta_drain(cta);
}

/* Tokens of a rank that lie here, or come. */
struct moe_come {
    uint32_t rank, count;
    uint32_t source; /* number of the first */
    uint32_t flag;   /* of the first chunk; 0: they are here */
    enum mk_cause cause;
};

/* Chunk `chunk`, where there is one, to the rows that its tokens are: some of them at a time, by
 * CTAs in turn. Others' turns are counted and not walked through: with one token a turn, 256 of
 * them took a CTA 5 us of looking. */
MK_ROLE int moe_spread(const struct moe_dispatch_plan *p, struct mk_cta *cta,
                       const struct moe_come *of, uint32_t chunk, uint32_t *others)
{
    const uint32_t begin = chunk * p->chunk_rows, left = of->count > begin ? of->count - begin : 0,
                   count = left < p->chunk_rows ? left : p->chunk_rows,
                   turns = (count + p->take_rows - 1) / p->take_rows;
    uint32_t turn = *others;
    struct mk_spread s;
    *others -= turns;
    if (turn >= turns)
        return 0;
    s.id = moe_spread_id(p, of->rank, chunk);
    s.space = of->flag ? MK_SPACE_HEAP : MK_SPACE_ARG0;
    s.source = of->flag ? p->landed + (of->source - p->room) * p->row_bytes : 0;
    s.row_bytes = p->row_bytes;
    s.places = moe_places(p, of->source);
    s.to = MK_SPACE_ARG2;
    for (; turn < turns; turn += cta->count) {
        const uint32_t at = turn * p->take_rows;
        if (of->flag && mk_cta_wait(cta, of->flag + chunk, cta->epoch, of->cause))
            return 1;
        s.first = begin + at;
        s.count = count - at < p->take_rows ? count - at : p->take_rows;
        mk_cta_spread(cta, mk_local_of(&p->topo, p->topo.rank), &s);
    }
    *others = turn - turns;
    return 0;
}

/* Those that the node's others bring of tokens of node `from`. */
MK_ROLE int moe_spread_landed(const struct moe_dispatch_plan *p, struct mk_cta *cta, uint32_t from,
                              uint32_t *others)
{
    struct moe_landed l = {0};
    while (moe_landed_next(p, cta, from, &l)) {
        struct moe_come of;
        of.rank = l.rank;
        of.count = l.count;
        of.source = moe_landed_first(p, cta, l.rank);
        of.flag = moe_landed_flag(p, l.rank, 0);
        of.cause = MK_CAUSE_DATA;
        if (moe_spread(p, cta, &of, l.chunk, others))
            return 1;
    }
    return 0;
}

/* Tokens to their places in rows_r, in the order in which they come. */
MK_ROLE int moe_deliver(const struct moe_dispatch_plan *p, struct mk_cta *cta)
{
    const struct mk_topo *t = &p->topo;
    uint32_t node = mk_node_of(t, t->rank), others = cta->index;
    struct moe_come of;
    if (moe_await_routed(p, cta))
        return 1;
    of.rank = t->rank;
    of.count = moe_tokens(p, cta);
    of.source = of.flag = 0;
    for (uint32_t chunk = 0; chunk < p->chunks; chunk++)
        moe_spread(p, cta, &of, chunk, &others); /* which waits for nothing */
    if (moe_spread_landed(p, cta, node, &others))
        return 1;
    for (uint32_t distance = 1; distance < t->nodes; distance++) {
        uint32_t from = (node + distance) % t->nodes;
        of.rank = mk_rank_at(t, from, mk_local_of(t, t->rank));
        of.count = mk_cta_load(cta, p->route.came_count + from * 4);
        of.source = mk_route_relayed(&p->route, from);
        of.flag = moe_relay_flag(p, from, 0);
        of.cause = MK_CAUSE_NETWORK;
        for (uint32_t chunk = 0; chunk * p->chunk_rows < of.count; chunk++)
            if (moe_spread(p, cta, &of, chunk, &others))
                return 1;
    }
    for (uint32_t distance = 1; distance < t->nodes; distance++)
        if (moe_spread_landed(p, cta, (node + distance) % t->nodes, &others))
            return 1;
    return 0;
}

MK_ROLES_OF(moe_dispatch, moe_move(p, cta, 0), moe_inter_send(p, cta), moe_deliver(p, cta));
