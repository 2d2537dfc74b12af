/* The MoE feed-forward layer: each token through its k experts and back, summed by weight. One
 * schedule for every executor.
 *
 * Operands
 *   X_r [T, H], ids_r [T, k] uint32_t, weights_r [T, k] float
 *                               each rank's tokens, their experts (core/roles/moe_dispatch.h) and
 *                               what each expert counts for
 *   B1_r [E/W, H, 2 I]          of the experts of a rank: gate, then up
 *   B2_r [E/W, I, H]            of the experts of a rank
 *   Y_r [T, H]                  the sum over the k experts of weight * (silu(x gate) * (x up)) B2;
 *                               zeros for a token that names no expert
 *
 * Roles
 *   intra_comm, inter_send   move tokens to their experts, as in core/roles/moe_dispatch.h
 *   compute                  has two stages. Up: a tile reads columns of gate and the same columns
 *                            of up, and stores silu(gate) * up. Down: a tile of results, once all
 *                            columns of its rows' activation are stored. Rows of tiles go through
 *                            the stages in groups (struct mk_stages), so that no CTA waits long for
 *                            another stage and no stage waits for all experts. mk_route_run has the
 *                            order.
 *   inter_reduce             each rank adds, by weight, the rows that a token has on it, and gives
 *                            the sum, one row, to the rank of this node on the token's rail. That
 *                            rank adds these sums; for a token of another node it puts the result,
 *                            one row, along the rail. The token's own rank adds the nodes' sums
 *                            to Y.
 *
 * Numbers
 *   Sums are fp32 in one order (core/cta/cta_sums.h), so every run gives the same bits in both modes.
 *   Where they are the same everywhere (MK_EVERYWHERE), a token's experts are added in a tree of
 *   runs of experts, of which each rank and node has a node: one row travels, as in deterministic
 *   mode. Products have all of K on one rank, in one sequence.
 *   In fast mode rows, and the sums of ranks and nodes, are rounded to bf16. With the rounding of
 *   the activation and of Y that makes five independent errors of u = 1.66e-3 in the norm, 3.7e-3
 *   in all; in deterministic mode sqrt(2) u = 2.4e-3. With back=fp8 sums of ranks and nodes are
 *   e4m3 with an fp32 scale for each 128 of a row (core/base/quantize.h), which makes each 2.6e-2 of
 *   what crosses.
 *
 * Bytes moved
 *   They depend on the ids: those of dispatch, and the same way back. Over NVLink a row comes to
 *   the rank that adds from each other rank of its node where a token has an expert, and along the
 *   rail one from each other node where it has one. A row is H numbers, bf16 in fast mode and fp32
 *   in deterministic mode; with back=fp8 a record of H + 4 ceil(H/128) bytes in whole 16.
 *
 * Buffer reuse
 *   As in dispatch: one buffer of everything but what ranks say, and no credits. All that moves in
 *   a launch moves after all ranks have begun it, so each has ended the launch before: it has Y, so
 *   every sum for it has come and all its rows and sums have been read.
 *
 * Deadlock freedom
 *   As in dispatch; down waits for up of its own rank, sums wait for down, and puts of sums for
 *   those.
 *
 * Flags of a rank
 *   dispatch's, and
 *   acted[tile of rows], made[tile of rows]   count rows times parts of tiles: the target is
 *                                             `wanted` times the columns of tiles
 *   back[node][local rank][part], sum[node][chunk]   of the tokens of a list: the parts of its
 *                                             chunks, its chunks */
#pragma once

#include "core/cta/cta_sums.h"
#include "core/roles/moe_dispatch.h"
#include "core/roles/moe_ffn_plan.h"

/* An entry of the table of tiles, as a tile: columns of down are behind those of up. */
MK_ROLE void moe_ffn_tile_of(const struct moe_ffn_plan *p, const struct mk_tile_entry *e,
                             struct mk_tile *tile)
{
    uint32_t stage = e->column < p->up_tiles ? MOE_FFN_UP : MOE_FFN_DOWN,
             col = stage == MOE_FFN_UP ? e->column : e->column - p->up_tiles;
    moe_ffn_columns(p, stage, col, tile);
    tile->slab = e->group;
    tile->row = e->row;
    tile->rows = e->rows;
    tile->id = moe_ffn_tile_id(p, e->row / p->dispatch.tile_m, stage, col);
}

/* Tile number `t` of this rank, in the order of computation; rows is 0 where there is none. */
MK_ROLE void moe_ffn_tile(const struct moe_ffn_plan *p, struct mk_cta *cta, uint32_t t,
                          struct mk_tile *tile)
{
    struct mk_tile_entry e;
    tile->rows = 0;
    if (moe_entry(&p->dispatch, cta, t, &e))
        moe_ffn_tile_of(p, &e, tile);
}

/* Waits until all `columns` of tiles of the rows that row `row` is of are stored. */
MK_ROLE int moe_ffn_await(const struct moe_ffn_plan *p, struct mk_cta *cta, uint32_t flag,
                          uint32_t row, uint32_t columns)
{
    uint64_t wanted =
        mk_cta_load64(cta, p->dispatch.route.wanted + row / p->dispatch.tile_m * 8ull);
    return mk_cta_wait(cta, flag, wanted * columns * MK_TILE_PARTS, MK_CAUSE_DATA);
}

/* Before the loads of the A of a tile that begins with row `row`; up: of the first product. */
MK_ROLE int moe_ffn_before(const struct moe_ffn_plan *p, struct mk_cta *cta, int up, uint32_t row)
{
    return up ? moe_await_rows(&p->dispatch, cta, row)
              : moe_ffn_await(p, cta, moe_ffn_acted_flag(p, row), row, p->up_tiles);
}

/* `parts` of MK_TILE_PARTS of the tile are stored. */
MK_ROLE void moe_ffn_after(const struct moe_ffn_plan *p, struct mk_cta *cta,
                           const struct mk_tile *tile, uint32_t parts)
{
    uint32_t flag = tile->stage == MOE_FFN_UP ? moe_ffn_acted_flag(p, tile->row)
                                              : moe_ffn_made_flag(p, tile->row);
    mk_cta_add(cta, tile->c_local, flag, (uint64_t)tile->rows * parts);
}

/* A run of a list of tokens of one rank. */
struct moe_ffn_list {
    uint32_t source;       /* number of the list's first token on this rank */
    uint32_t first, count; /* those of the run */
};

/* Chunk `chunk` of `all` tokens; of it part `part`, or all where that is UINT32_MAX. No tokens:
 * there is none. */
MK_ROLE void moe_ffn_cut(const struct moe_ffn_plan *p, struct moe_ffn_list *l, uint32_t all,
                         uint32_t chunk, uint32_t part)
{
    const struct moe_dispatch_plan *d = &p->dispatch;
    uint32_t end = all > chunk * d->chunk_rows ? all - chunk * d->chunk_rows : 0, begin = 0;
    if (end > d->chunk_rows)
        end = d->chunk_rows;
    if (part != UINT32_MAX) {
        begin = part * p->part_rows < end ? part * p->part_rows : end;
        end = end - begin < p->part_rows ? end : begin + p->part_rows;
    }
    l->first = chunk * d->chunk_rows + begin;
    l->count = end - begin;
}

/* Waits until the rows of this rank that tokens are have been made. */
MK_ROLE int moe_ffn_await_made(const struct moe_ffn_plan *p, struct mk_cta *cta,
                               const struct moe_ffn_list *l)
{
    const struct moe_dispatch_plan *d = &p->dispatch;
    struct mk_places places = moe_places(d, l->source);
    places.flag = p->flag_made;
    if (p->made_space != MK_SPACE_HEAP)
        return 0;
    return mk_cta_wait_rows(cta, &places, d->route.wanted, p->down_tiles * MK_TILE_PARTS, l->first,
                            l->count, MK_CAUSE_DATA);
}

/* Sums that a CTA makes at a time: of chunk `chunk` of the tokens of a rank, all or part `part`. As
 * they reach:
 *   rank    this rank's, for the rank of this node that is on the other's rail
 *   node    this node's, on their way to the rank, which is on this rail
 *   all     Y, of this rank's own */
struct moe_ffn_job {
    enum mk_reach reach;
    uint32_t rank, chunk, part;
};

/* The run of a list that it is of, where there are any such tokens. begin: of the list, in what
 * this rank has of all of its node's. */
MK_ROLE struct moe_ffn_list moe_ffn_list_of(const struct moe_ffn_plan *p, struct mk_cta *cta,
                                            const struct moe_ffn_job *job, uint32_t *begin)
{
    const struct moe_dispatch_plan *d = &p->dispatch;
    const struct mk_route *r = &d->route;
    const uint32_t node = mk_node_of(&d->topo, job->rank);
    struct moe_ffn_list l;
    *begin = 0;
    moe_ffn_cut(p, &l,
                job->reach == MK_REACH_ALL ? moe_tokens(d, cta)
                : job->reach == MK_REACH_NODE
                    ? mk_cta_load(cta, r->came_count + node * 4ull)
                    : mk_cta_load(cta, r->landed_count + job->rank * 4ull),
                job->chunk, job->part);
    if (l.count && job->reach == MK_REACH_RANK)
        *begin = mk_cta_load(cta, r->landed_first + job->rank * 4ull);
    l.source = job->reach == MK_REACH_ALL    ? 0
               : job->reach == MK_REACH_NODE ? mk_route_relayed(r, node)
                                             : mk_route_landed(r, job->rank, *begin);
    return l;
}

/* What is added, and where the sums go. */
MK_ROLE struct mk_sums moe_ffn_sums(const struct moe_ffn_plan *p, struct mk_cta *cta,
                                    const struct moe_ffn_job *job, const struct moe_ffn_list *l,
                                    uint32_t begin)
{
    const struct moe_dispatch_plan *d = &p->dispatch;
    const struct mk_route r = moe_route(d, cta->epoch);
    const uint32_t node = mk_node_of(&d->topo, job->rank),
                   own = mk_local_of(&d->topo, d->topo.rank);
    struct mk_sums s;
    s.id = moe_ffn_back_id(p, job->rank, job->chunk);
    s.topo = d->topo;
    s.reach = job->reach;
    s.first = l->first;
    s.count = l->count;
    s.k = d->k;
    s.rank_experts = d->rank_experts;
    s.tree_experts = p->tree ? d->experts : 0;
    s.records = mk_route_records(&r, l->source);
    s.position = r.position + (uint64_t)l->source * d->k * 4;
    s.rows = p->made;
    s.rows_space = p->made_space;
    s.parts = p->back;
    s.parts_room = r.landed_room;
    s.parts_first = r.push_first + (uint64_t)node * d->topo.gpus * 4;
    s.whole = p->whole;
    s.whole_room = r.relay_room;
    s.whole_at = r.sent_at;
    s.elements = p->hidden;
    s.from = p->number;
    s.carried = s.to = p->carried;
    s.staged = p->staged;
    s.space = MK_SPACE_HEAP;
    s.local = own;
    if (job->reach == MK_REACH_RANK) {
        s.local = mk_local_of(&d->topo, job->rank);
        s.destination =
            p->back + ((uint64_t)own * r.landed_room + begin + l->first) * p->carried_bytes;
    } else if (job->reach == MK_REACH_NODE) {
        s.destination = p->sums + ((uint64_t)node * r.relay_room + l->first) * p->carried_bytes;
    } else {
        s.to = MK_BF16;
        s.space = p->y_space;
        s.destination = l->first * (p->hidden * 2ull);
    }
    return s;
}

/* The rank's rows of the tokens are here, and what others have added of them, as far as `s`
 * reaches. */
MK_ROLE int moe_ffn_await_sums(const struct moe_ffn_plan *p, struct mk_cta *cta, uint32_t node,
                               const struct moe_ffn_list *l, const struct mk_sums *s)
{
    struct mk_sums_flags f;
    f.parts = moe_ffn_back_flag(p, node, 0, 0);
    f.parts_pitch = p->list_chunks * p->chunk_parts;
    f.part_rows = p->part_rows;
    f.chunk_parts = p->chunk_parts;
    f.whole = moe_ffn_sum_flag(p, 0, 0);
    f.whole_pitch = p->dispatch.chunks;
    f.chunk_rows = p->dispatch.chunk_rows;
    return moe_ffn_await_made(p, cta, l) ||
           (s->reach != MK_REACH_RANK && mk_cta_wait_sums(cta, s, &f));
}

/* Makes the sums of a job, where it has tokens, and sends or announces them. */
MK_ROLE int moe_ffn_add(const struct moe_ffn_plan *p, struct mk_cta *cta,
                        const struct moe_ffn_job *job)
{
    const struct moe_dispatch_plan *d = &p->dispatch;
    const uint32_t node = mk_node_of(&d->topo, job->rank),
                   own_node = mk_node_of(&d->topo, d->topo.rank);
    uint32_t begin;
    struct moe_ffn_list l = moe_ffn_list_of(p, cta, job, &begin);
    if (!l.count)
        return 0;
    struct mk_sums s = moe_ffn_sums(p, cta, job, &l, begin);
    if (moe_ffn_await_sums(p, cta, node, &l, &s))
        return 1;
    mk_cta_add_up(cta, &s);
    if (job->reach == MK_REACH_RANK)
        mk_cta_signal(cta, s.local,
                      moe_ffn_back_flag(p, node, mk_local_of(&d->topo, d->topo.rank),
                                        moe_ffn_part_of(p, l.first)),
                      cta->epoch);
    if (job->reach != MK_REACH_NODE)
        return 0;
    struct mk_chunk c;
    c.id = s.id;
    c.space = MK_SPACE_HEAP;
    c.source = s.destination;
    c.destination =
        p->whole + ((uint64_t)own_node * d->route.relay_room + l.first) * p->carried_bytes;
    c.bytes = l.count * p->carried_bytes;
    return mk_cta_put(cta, job->rank, &c, moe_ffn_sum_flag(p, own_node, job->chunk));
}

/* Rank `i` of those of other nodes, from gpus on, in the order in which their sums are made: of
 * each node the one on this rank's rail comes last. */
MK_PURE uint32_t moe_ffn_away(const struct mk_topo *t, uint32_t i)
{
    uint32_t own = mk_local_of(t, t->rank), at = i % t->gpus;
    return mk_rank_at(t, (mk_node_of(t, t->rank) + i / t->gpus) % t->nodes,
                      at + 1 == t->gpus ? own
                      : at < own        ? at
                                        : at + 1);
}

/* Where a CTA is among the sums of tokens of other nodes: {.others = its index} before the
 * first. */
struct moe_ffn_walk {
    uint32_t ranks, chunk, part, others;
};

/* The CTA's next job of tokens of other nodes, node by node: first parts for the other ranks of
 * this node, in the order of the rows, then what goes along this rank's rail, for which these do
 * the same. So who waits for another rank's part waits for one that waits for none but of nodes
 * before; and no rank's parts wait for its own sums, or each rank would wait for the one before.
 * False: that was the last. */
MK_ROLE int moe_ffn_job_away(const struct moe_ffn_plan *p, struct mk_cta *cta,
                             struct moe_ffn_walk *at, struct moe_ffn_job *job)
{
    const struct mk_topo *t = &p->dispatch.topo;
    const struct mk_route *r = &p->dispatch.route;
    for (; t->gpus + at->ranks < mk_world(t); at->ranks++, at->chunk = 0) {
        const uint32_t rank = moe_ffn_away(t, t->gpus + at->ranks), node = mk_node_of(t, rank);
        const int rail = mk_local_of(t, rank) == mk_local_of(t, t->rank);
        const uint32_t parts = rail ? 1 : moe_ffn_parts(p, 0),
                       count = mk_cta_load(cta, rail ? r->came_count + node * 4ull
                                                     : r->landed_count + rank * 4ull);
        while (at->chunk * p->dispatch.chunk_rows < count) {
            job->reach = rail ? MK_REACH_NODE : MK_REACH_RANK;
            job->rank = rank;
            job->chunk = at->chunk;
            job->part = rail ? UINT32_MAX : at->part;
            if (++at->part == parts) {
                at->part = 0;
                at->chunk++;
            }
            if (moe_takes(cta, &at->others))
                return 1;
        }
    }
    return 0;
}

/* Unit `unit` of moe_ffn_units(p), of this node's tokens: first parts for other ranks, then this
 * rank's own. False: it has no part. */
MK_ROLE int moe_ffn_job_here(const struct moe_ffn_plan *p, uint32_t unit, struct moe_ffn_job *job)
{
    const struct mk_topo *t = &p->dispatch.topo;
    const uint32_t each = moe_ffn_parts(p, 0), others = t->gpus - 1, of_all = each * others;
    if (unit < p->dispatch.chunks * of_all) {
        job->reach = MK_REACH_RANK;
        job->rank = mk_rank_at(t, mk_node_of(t, t->rank),
                               (mk_local_of(t, t->rank) + 1 + unit % others) % t->gpus);
        job->chunk = unit / of_all;
        job->part = unit % of_all / others;
    } else {
        unit -= p->dispatch.chunks * of_all;
        job->reach = MK_REACH_ALL;
        job->rank = t->rank;
        job->chunk = unit / each;
        job->part = unit % each;
    }
    return job->part < moe_ffn_parts(p, job->chunk);
}

MK_ROLE int moe_ffn_inter_reduce(const struct moe_ffn_plan *p, struct mk_cta *cta)
{
    struct moe_ffn_walk at = {0, 0, 0, cta->index};
    struct moe_ffn_job job;
    uint32_t unit = cta->index;
    if (moe_await_routed(&p->dispatch, cta))
        return 1;
    for (;;) {
        if (!moe_ffn_job_away(p, cta, &at, &job)) {
            for (; unit < moe_ffn_units(p) && !moe_ffn_job_here(p, unit, &job);)
                unit += cta->count;
            if (unit >= moe_ffn_units(p))
                return 0;
            unit += cta->count;
        }
        if (moe_ffn_add(p, cta, &job))
            return 1;
    }
}
