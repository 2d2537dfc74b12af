/* Rows of what comes to a rank, and the order of its tiles, on a GPU (kernels/cta/cta_route.cuh): LAY_OUT of
 * core/cta/cta_route.h. Every part works out where rows and lists begin for itself; places, experts and
 * tiles it takes with the others. */
#pragma once

#include "kernels/cta/route_walk.cuh"

/* Records that a thread loads at once: of own tokens, of others. */
enum { ROUTE_OWN_AHEAD = 4, ROUTE_RECORDS_AHEAD = 2 };

/* An expert of this rank: where its rows come from, and where they begin. */
struct route_expert {
    struct mk_route_rows rows;
    uint32_t first;
};

/* In a block's words. */
struct route_plan {
    struct route_expert *experts; /* [rank_experts] */
    uint32_t *begins;             /* of the order's runs */
    uint32_t *base;               /* [W][rank_experts]: rows of the ranks before */
    /* [gpus][nodes], by distance: where a node's tokens begin among those that a local rank brings, but
     * for this rank's; and for it among those that its rail brings, whose numbers have gaps */
    uint32_t *lists;
    /* [gpus + 2]: where tokens begin, in the order in which they are taken: the own rank's, then those
     * that a local rank, or this one's rail, brings; and all of them */
    uint32_t *tokens;
    uint32_t *pushes; /* [gpus]: what this rank brings them */
};

PTX_FN struct route_plan route_plan_of(const struct route_walk *w)
{
    const struct mk_route *r = w->r;
    struct route_plan p;
    p.experts = (struct route_expert *)w->words;
    p.begins = w->words + 6 * r->rank_experts;
    p.base = p.begins + mk_route_stretches(r) * r->rank_experts;
    p.lists = p.base + r->experts;
    p.tokens = p.lists + w->world;
    p.pushes = p.tokens + r->topo.gpus + 2;
    return p;
}

PTX_FN const uint32_t *route_said(const struct route_walk *w, uint32_t rank)
{
    const struct mk_topo *t = &w->r->topo;
    return route_words(w, w->r->said) +
           (route_local_of(w, rank) * t->nodes + route_node_of(w, rank)) * w->r->said_words;
}

/* This thread's number where the first warp of quarter `quarter` of a block is the first: what others do
 * meanwhile, it does not wait for. */
PTX_FN uint32_t route_lane_from(const struct mk_cta *cta, uint32_t quarter)
{
    const uint32_t first = cta->lanes * quarter / 4 / 32 * 32, lane = cta_lane(cta);
    return lane < first ? lane + cta->lanes - first : lane - first;
}

/* Sums over threads, by words that no other sums of a launch's step need. */
enum { ROUTE_FIRST_SCAN, ROUTE_ORDER_SCAN };
PTX_FN uint32_t *route_scan(const struct route_walk *w, uint32_t of)
{
    return w->scan + of * BLOCK_SCAN_WORDS;
}

/* Where rows of all experts are added up. */
PTX_FN uint32_t *route_sum(const struct route_walk *w)
{
    return w->scan + 2 * BLOCK_SCAN_WORDS;
}

/* What others have said, all of it at once. */
PTX_FN void route_bring_said(const struct mk_cta *cta, const struct route_walk *w,
                             const struct route_plan *p)
{
    const struct mk_route *r = w->r;
    const struct mk_topo *t = &r->topo;
    if (cta_leads(cta))
        *route_sum(w) = 0;
#pragma unroll 4
    for (uint32_t i = cta_lane(cta); i < r->experts; i += cta->lanes) {
        const uint32_t rank = route_rank_of(w, i);
        p->base[i] = route_said(w, rank)[i - rank * r->rank_experts];
    }
#pragma unroll 1
    for (uint32_t i = route_lane_from(cta, 1); i < w->world; i += cta->lanes) {
        const uint32_t local = t->nodes > 1 ? i / t->nodes : i,
                       distance = t->nodes > 1 ? i % t->nodes : 0, node = route_behind(w, distance);
        p->lists[i] =
            local != w->local
                ? route_said(w, mk_rank_at(t, node, local))[r->rank_experts + MK_SAID_TOKENS]
            : distance ? route_words(w, r->came_count)[node]
                       : 0;
    }
#pragma unroll 1
    for (uint32_t to = route_lane_from(cta, 2); to < t->gpus; to += cta->lanes) {
        const uint32_t at = route_behind(w, t->nodes - 1) * t->gpus + to;
        p->pushes[to] = route_words(w, r->push_first)[at] + route_words(w, r->push_count)[at];
    }
    __syncthreads();
}

/* Of `n` rows of a rank, behind `at` others of an expert. */
PTX_FN void route_note_rows(const struct route_walk *w, struct mk_route_rows *rows, uint32_t rank,
                            uint32_t at, uint32_t n)
{
    const struct mk_topo *t = &w->r->topo;
    if (rank == w->node * t->gpus)
        rows->node_begin = at;
    if (rank == (w->node + 1) * t->gpus - 1)
        rows->node_end = at + n;
    if (rank == t->rank) {
        rows->rank_begin = at;
        rows->rank_end = at + n;
    }
}

/* Rows of each expert by source: of few sources a thread for each expert; else a warp, whose lanes take
 * sources. */
PTX_FN void route_find_base(const struct mk_cta *cta, const struct route_walk *w,
                            const struct route_plan *p)
{
    const struct mk_route *r = w->r;
    const bool few = w->world <= 32;
    const uint32_t lanes = few ? 1 : 32, lane = few ? 0 : threadIdx.x % 32;
#pragma unroll 1
    for (uint32_t e = cta_lane(cta) / lanes; e < r->rank_experts; e += cta->lanes / lanes) {
        struct mk_route_rows *rows = &p->experts[e].rows;
        uint32_t before = 0;
#pragma unroll 1
        for (uint32_t rank = lane; rank - lane < w->world; rank += lanes) {
            uint32_t *base = &p->base[rank * r->rank_experts + e];
            const uint32_t n = rank < w->world ? *base : 0, at = before + (few ? 0 : warp_scan(n));
            if (rank < w->world) {
                *base = at;
                route_note_rows(w, rows, rank, at, n);
            }
            before = few ? at + n : __shfl_sync(0xffffffff, at + n, 31);
        }
        if (lane == 0)
            rows->rows = before;
    }
}

/* Experts one after the other. Returns how many rows they have. */
PTX_FN uint32_t route_find_first(const struct mk_cta *cta, const struct route_walk *w,
                                 const struct route_plan *p)
{
    const struct mk_route *r = w->r;
    uint32_t base = 0, all;
#pragma unroll 1
    for (uint32_t before = 0; before < r->rank_experts; before += cta->lanes) {
        const uint32_t e = before + cta_lane(cta),
                       mine = e < r->rank_experts ? p->experts[e].rows.rows : 0,
                       rows = __reduce_add_sync(0xffffffff, mine);
        if (threadIdx.x % 32 == 0)
            atomicAdd(route_sum(w), rows);
        if (before)
            __syncthreads(); /* words of the sum before */
        const uint32_t first = base + block_scan(mk_route_tiles(r, mine) * r->tile_rows, cta->lanes,
                                                 route_scan(w, ROUTE_FIRST_SCAN), &all);
        if (e < r->rank_experts)
            p->experts[e].first = first;
        base += all;
    }
    return *route_sum(w); /* all warps have added theirs, before the last sum */
}

/* Says that there is too much of something, if there is, and nothing else was before. */
PTX_FN void route_over(const struct route_walk *w, enum mk_route_over over, uint32_t rank,
                       uint32_t count, uint32_t room)
{
    struct mk_route_head *head = (struct mk_route_head *)(w->heap + w->r->order_head);
    if (count <= room || head->over)
        return;
    head->over = over;
    head->over_rank = rank;
    head->over_count = count;
    head->over_room = room;
}

/* One thread: the first thing that there is too much of. */
PTX_FN void route_say_over(const struct route_walk *w, const struct route_plan *p, uint32_t rows)
{
    const struct mk_route *r = w->r;
    const struct mk_topo *t = &r->topo;
    route_over(w, MK_OVER_ROWS, t->rank, rows, r->capacity);
#pragma unroll 1
    for (uint32_t local = 0; local < t->gpus; local++) {
        if (local == w->local)
            continue;
        route_over(w, MK_OVER_LANDED, mk_rank_at(t, w->node, local), p->pushes[local],
                   r->landed_room);
        route_over(w, MK_OVER_LANDED, t->rank, p->tokens[local + 2] - p->tokens[local + 1],
                   r->landed_room);
    }
#pragma unroll 1
    for (uint32_t node = 0; node < t->nodes; node++) {
        if (node == w->node)
            continue;
        route_over(w, MK_OVER_RELAYED, mk_rank_at(t, node, w->local),
                   route_words(w, r->sent_count)[node], r->relay_room);
        route_over(w, MK_OVER_RELAYED, t->rank, route_words(w, r->came_count)[node], r->relay_room);
    }
}

/* Lists of tokens that come, by distance of their nodes. Returns, in some thread of each part, whether
 * there is more of them, or of those that go, than there is room for. */
PTX_FN int route_find_lists(const struct mk_cta *cta, const struct route_walk *w,
                            const struct route_plan *p)
{
    const struct mk_route *r = w->r;
    const struct mk_topo *t = &r->topo;
    int over = 0;
#pragma unroll 1
    for (uint32_t local = route_lane_from(cta, 2); local < t->gpus; local += cta->lanes) {
        uint32_t *list = p->lists + local * t->nodes, next = 0;
#pragma unroll 1
        for (uint32_t distance = 0; distance < t->nodes; distance++) {
            const uint32_t n = list[distance], node = route_behind(w, distance),
                           rank = mk_rank_at(t, node, local);
            if (local == w->local && distance)
                over |= n > r->relay_room || route_words(w, r->sent_count)[node] > r->relay_room;
            else if (local != w->local && r->part == 0) {
                route_words(w, r->landed_first)[rank] = next;
                route_words(w, r->landed_count)[rank] = n;
            }
            list[distance] = next;
            next += n;
        }
        p->tokens[local + 2] = next;
        over |= local != w->local && (next > r->landed_room || p->pushes[local] > r->landed_room);
    }
    return over;
}

/* One thread: where tokens begin, in order. */
PTX_FN void route_find_tokens(const struct route_walk *w, const struct route_plan *p)
{
    p->tokens[0] = 0;
    p->tokens[1] = w->r->tokens;
#pragma unroll 1
    for (uint32_t i = 2; i < w->r->topo.gpus + 2; i++)
        p->tokens[i] += p->tokens[i - 1];
}

/* ---- rows ---- */

/* Place `place` of the token here with number `source`, which is of `rank`. */
PTX_FN void route_row(const struct route_walk *w, const struct route_plan *p, uint32_t source,
                      uint32_t place, uint32_t rank, uint4 record)
{
    const struct mk_route *r = w->r;
    const uint32_t e = record.x - r->topo.rank * r->rank_experts;
    const bool mine = record.x != ROUTE_NONE && e < r->rank_experts;
    uint32_t row = ROUTE_NONE;
    if (mine) {
        row = p->experts[e].first + p->base[rank * r->rank_experts + e] + record.y;
        if (r->columns)
            route_words(w, r->source)[row] = source;
    }
    route_words(w, r->position)[(uint64_t)source * r->k + place] = row;
}

/* A token that lies here, number `at` of all of them in order (struct route_plan). */
struct route_token {
    uint32_t source, rank; /* its number, and whose it is */
    uint64_t records;
};

PTX_FN struct route_token route_own_token(const struct route_walk *w, uint32_t at)
{
    return {at, w->r->topo.rank, w->r->records + (uint64_t)at * w->r->k * 16};
}

/* The same of one that has come. */
PTX_FN struct route_token route_find_token(const struct route_walk *w, const struct route_plan *p,
                                           uint32_t at)
{
    const struct mk_route *r = w->r;
    const struct mk_topo *t = &r->topo;
    const uint32_t local = block_find(p->tokens + 1, t->gpus, at);
    const uint32_t number = at - p->tokens[local + 1], *lists = p->lists + local * t->nodes,
                   distance = t->nodes > 1 ? block_find(lists, t->nodes, number) : 0,
                   node = route_behind(w, distance), rank = mk_rank_at(t, node, local);
    if (local != w->local) {
        const uint32_t in_all = local * r->landed_room + number;
        return {r->landed_source + in_all, rank, r->landed_records + (uint64_t)in_all * r->k * 16};
    }
    const uint32_t in_list = number - lists[distance];
    return {mk_route_relayed(r, node) + in_list, rank,
            r->railed + node * r->rail_pitch + r->rail_head + (uint64_t)in_list * r->k * 16};
}

/* Groups of tokens that lie here, from number `first` to `end` of all, of which warps of all parts take
 * each one, `lane`'s warp; `own`: these are this rank's own, which are found at once. `ahead` records are
 * on their way to a lane. */
template <uint32_t ahead, bool own>
PTX_FN void route_rows(const struct mk_cta *cta, const struct route_walk *w,
                       const struct route_plan *p, uint32_t lane, uint32_t first, uint32_t end)
{
    const struct mk_route *r = w->r;
    const struct route_lane l = route_lane_of(r);
    const uint32_t warps = cta->lanes / 32, step = r->parts * warps * l.tokens,
                   last = l.token < l.tokens ? end : 0;
#pragma unroll 1
    for (uint32_t at = first + (lane / 32 * r->parts + r->part) * l.tokens + l.token; at < last;
         at += step * ahead) {
        uint4 records[ahead];
        struct route_token tokens[ahead];
#pragma unroll
        for (uint32_t j = 0; j < ahead; j++)
            if (at + j * step < last) {
                tokens[j] =
                    own ? route_own_token(w, at + j * step) : route_find_token(w, p, at + j * step);
                records[j] = ptx_load_16_l2(route_records(w, tokens[j].records) + l.place);
            }
#pragma unroll
        for (uint32_t j = 0; j < ahead; j++)
            if (at + j * step < last)
                route_row(w, p, tokens[j].source, l.place, tokens[j].rank, records[j]);
    }
}

/* What there is to say of each expert of this rank: a warp for each, of all parts. Nobody waits for
 * what is added. */
PTX_FN void route_say_experts(const struct mk_cta *cta, const struct route_walk *w,
                              const struct route_plan *p)
{
    const struct mk_route *r = w->r;
    uint32_t warps = cta->lanes / 32, lane = threadIdx.x % 32;
    unsigned long long *wanted = (unsigned long long *)(w->heap + r->wanted),
                       *awaited = (unsigned long long *)(w->heap + r->awaited);
    uint32_t *said = (uint32_t *)(cta->launch->arguments[r->summary_space] + r->summary);
#pragma unroll 1
    for (uint32_t e = route_lane_from(cta, 3) / 32 * r->parts + r->part; e < r->rank_experts;
         e += r->parts * warps) {
        const struct route_expert of = p->experts[e];
        uint32_t rows = of.rows.rows, tile = of.first / r->tile_rows;
#pragma unroll 1
        for (uint32_t i = lane; r->columns && i * r->tile_rows < rows; i += 32) {
            uint32_t begin = i * r->tile_rows, end = begin + r->tile_rows;
            end = end < rows ? end : rows;
            uint32_t own_begin = begin > of.rows.rank_begin ? begin : of.rows.rank_begin,
                     own_end = end < of.rows.rank_end ? end : of.rows.rank_end,
                     own = own_end > own_begin ? own_end - own_begin : 0;
            atomicAdd(&wanted[tile + i], (unsigned long long)(end - begin));
            atomicAdd(&awaited[tile + i], (unsigned long long)(end - begin - own));
        }
        if (lane)
            continue;
        route_words(w, r->first)[e] = of.first;
        route_words(w, r->rows)[e] = rows;
        if (r->summary_space != MK_SPACE_HEAP) {
            said[2 * e] = of.first;
            said[2 * e + 1] = rows;
        }
    }
}

PTX_FN struct mk_tile_run route_run_at(const struct route_walk *w, const struct route_plan *p,
                                       uint32_t i)
{
    const uint32_t stretch = route_rank_of(w, i), /* which divides by as many */
        e = i - stretch * w->r->rank_experts;
    struct mk_tile_run run = mk_route_run(w->r, &p->experts[e].rows, e, stretch);
    run.row = p->experts[e].first;
    return run;
}

/* Where each run of tiles begins, in rows of tiles, of which there are so many. */
PTX_FN uint32_t route_find_runs(const struct mk_cta *cta, const struct route_walk *w,
                                const struct route_plan *p)
{
    const struct mk_route *r = w->r;
    uint32_t runs = mk_route_stretches(r) * r->rank_experts, rows = 0, all;
#pragma unroll 1
    for (uint32_t first = 0; first < runs; first += cta->lanes) {
        const uint32_t i = first + cta_lane(cta),
                       tiles = i < runs ? route_run_at(w, p, i).count : 0;
        if (first)
            __syncthreads();
        const uint32_t before =
            block_scan(tiles, cta->lanes, route_scan(w, ROUTE_ORDER_SCAN), &all);
        if (i < runs)
            p->begins[i] = rows + before;
        rows += all;
    }
    __syncthreads();
    return rows;
}

/* The tiles: a thread for each, of all parts. */
PTX_FN void route_make_order(const struct mk_cta *cta, const struct route_walk *w,
                             const struct route_plan *p, uint32_t rows)
{
    const struct mk_route *r = w->r;
    const struct mk_stages stages = {rows, r->columns, r->down, r->group_rows};
    const uint32_t runs = mk_route_stretches(r) * r->rank_experts,
                   count = rows * (r->columns + r->down);
    uint4 *order = (uint4 *)(w->heap + r->order);
#pragma unroll 1
    for (uint32_t i = route_lane_from(cta, 2) * r->parts + r->part; i < count;
         i += r->parts * cta->lanes) {
        struct mk_stage at = mk_stage_at(&stages, i);
        uint32_t n = block_find(p->begins, runs, mk_stage_row(&stages, &at));
        struct mk_tile_run run = route_run_at(w, p, n);
        struct mk_tile_entry e = mk_tile_of_stage(&stages, &at, &run, p->begins[n], r->tile_rows,
                                                  r->tile_columns, r->running);
        order[i] = make_uint4(e.row, e.rows, e.group, e.column);
    }
}

/* One thread: from where tiles, and units of another kind, are counted in this launch. Nobody has
 * asked for one before the tables are there. */
PTX_FN void route_say_head(const struct mk_cta *cta, const struct route_walk *w,
                           const struct route_plan *p, uint32_t rows)
{
    struct mk_route_head *head = (struct mk_route_head *)(w->heap + w->r->order_head);
    const struct mk_stages stages = {rows, w->r->columns, w->r->down, w->r->group_rows};
    uint32_t last = mk_route_last(w->r);
    head->begin = *(volatile uint64_t *)cta->launch->taken;
    head->added = *(volatile uint64_t *)&head->adding;
    head->count = rows * (stages.up + stages.down);
    head->apart = last < mk_route_stretches(w->r)
                      ? mk_stage_behind(&stages, p->begins[last * w->r->rank_experts])
                      : head->count;
}

/* Who does not make rows meanwhile makes the order, so that of few tokens neither waits for the other. */
PTX_FN void route_lay_out(const struct mk_cta *cta, const struct route_walk *w)
{
    const struct mk_route *r = w->r;
    const struct route_plan p = route_plan_of(w);
    route_bring_said(cta, w, &p);
    route_find_base(cta, w, &p);
    int over = route_find_lists(cta, w, &p);
    __syncthreads();
    if (cta_lane(cta) == cta->lanes - 1)
        route_find_tokens(w, &p);
    const uint32_t rows = route_find_first(cta, w, &p);
    over = __syncthreads_or(over || rows > r->capacity);
    if (over && r->part == 0 && cta_leads(cta))
        route_say_over(w, &p, rows);
    if (over)
        return; /* moe_await_routed says why */
    if (r->columns) {
        const uint32_t tiles = route_find_runs(cta, w, &p); /* rows of them */
        route_make_order(cta, w, &p, tiles);
        if (r->part == 0 && cta_lane(cta) == cta->lanes - 1)
            route_say_head(cta, w, &p, tiles);
    }
    route_rows<ROUTE_OWN_AHEAD, true>(cta, w, &p, cta_lane(cta), 0, r->tokens);
    route_rows<ROUTE_RECORDS_AHEAD, false>(cta, w, &p, route_lane_from(cta, 1), r->tokens,
                                           p.tokens[r->topo.gpus + 1]);
    route_say_experts(cta, w, &p);
}
