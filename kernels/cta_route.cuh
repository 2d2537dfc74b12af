/* The tables of MoE routing (core/cta_route.h) on a GPU.
 *
 * A part has a slice of every rank's tokens, and of each slice some runs, which its warps take. In
 * the first step a warp brings the ids of its runs to shared memory, where they stay, and counts:
 * rows of each expert of this rank, tokens by where they go on to. A run's counts stay there, too;
 * those of a slice go to memory. When all parts have counted, each adds up what is before its own
 * slices; each warp then goes over its tokens again and knows the place of every one. Equal ids
 * among 32 are counted by matching lanes. No atomics on what is placed: the same tables in every
 * run.
 *
 * What a launch waits for here are instructions as much as data: all of this runs once, and SMs
 * fetch it as they go. So the steps are loops that are not unrolled, with one copy of each part.
 *
 * All threads of a block call, with r->shared bytes of shared memory at cta->scratch, which
 * nothing else writes between the steps. Counts that do not fit there, of many ranks or experts, lie
 * in the block's part of r->spill: the same steps, at the pace of L2. */
#ifndef MK_KERNELS_CTA_ROUTE_CUH
#define MK_KERNELS_CTA_ROUTE_CUH

#include "core/cta_route.h"
#include "kernels/block_scan.cuh"
#include "kernels/cta.cuh"

#define ROUTE_NONE UINT32_MAX
enum {
    ROUTE_IDS_AHEAD = 8,    /* loads of ids, 16 bytes each, that a lane has under way */
    ROUTE_COUNTS_AHEAD = 12 /* of counts: those of so many parts */
};

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

/* An expert of this rank, in shared memory: where its rows come from, and where they begin. */
struct route_expert {
    struct mk_route_rows rows;
    uint32_t first;
};

/* What all functions here want to know. */
struct route_walk {
    const struct mk_route *r;
    char *heap;
    uint32_t world, node, local, counters;
    uint32_t runs, runs_of_rank;     /* of this part: run i is of rank i / runs_of_rank */
    uint32_t slice, slice_end, each; /* tokens: the slice's first and the one behind, of a run */
    /* In shared memory, if they fit; but `scan`, which always does. */
    uint32_t *counts;             /* [runs][counters] */
    uint32_t *total;              /* [W][counters]: of a rank, all parts' */
    uint32_t *start;              /* [W][counters]: of a rank, the parts' before this */
    struct route_expert *experts; /* [rank_experts] */
    uint32_t *begins;             /* of the order's runs: where counts were */
    uint32_t *scan;               /* BLOCK_SCAN_WORDS */
    uint32_t *ids; /* [runs][each * k]; NULL: there is no room, and they are read from memory */
};

PTX_FN struct route_walk route_walk_begin(const struct mk_cta *cta, const struct mk_route *r)
{
    struct route_walk w;
    w.r = r;
    w.heap = cta->launch->heap;
    w.world = mk_world(&r->topo);
    w.node = mk_node_of(&r->topo, r->topo.rank);
    w.local = mk_local_of(&r->topo, r->topo.rank);
    w.counters = mk_route_counters(&r->topo, r->rank_experts);
    w.runs_of_rank = mk_route_runs_of_rank(w.world);
    w.runs = w.runs_of_rank * w.world;
    /* Runs begin at multiples of 4 tokens: their ids, at 16 bytes. */
    uint32_t of_part = (r->tokens + r->parts - 1) / r->parts;
    w.each = ((of_part + w.runs_of_rank - 1) / w.runs_of_rank + 3) & ~3u;
    of_part = w.each * w.runs_of_rank;
    w.slice = of_part * r->part < r->tokens ? of_part * r->part : r->tokens;
    w.slice_end = r->tokens - w.slice < of_part ? r->tokens : w.slice + of_part;
    uint32_t used = (uint32_t)mk_route_shared_words(w.world, r->rank_experts, w.counters),
             shared = (r->shared ? r->shared : MK_ROUTE_SHARED) / 4;
    w.experts = (struct route_expert *)(r->spill ? w.heap + r->spill + (uint64_t)r->part * used * 4
                                                 : (char *)cta->scratch);
    w.counts = (uint32_t *)(w.experts + r->rank_experts);
    w.total = w.counts + w.runs * w.counters;
    w.start = w.total + w.world * w.counters;
    w.begins = w.counts;
    w.scan = r->spill ? (uint32_t *)cta->scratch : w.start + w.world * w.counters;
    bool fits = !r->spill && (uint64_t)w.runs * w.each * r->k <= shared - used;
    w.ids = fits ? (uint32_t *)cta->scratch + used : NULL;
    return w;
}

PTX_FN uint32_t *route_words(const struct route_walk *w, uint64_t offset)
{
    return (uint32_t *)(w->heap + offset);
}

PTX_FN uint32_t route_lower_lanes(uint32_t mask)
{
    return __popc(mask & ((1u << threadIdx.x % 32) - 1));
}

/* ---- a run of tokens, which a warp takes ---- */

struct route_run {
    uint32_t rank, first, end; /* whose, and which */
    const uint32_t *ids;       /* of token `first`, in memory or shared memory */
    uint32_t *counts;          /* shared */
};

PTX_FN struct route_run route_run_of(const struct route_walk *w, uint32_t number)
{
    const struct mk_route *r = w->r;
    struct route_run run;
    run.rank = number / w->runs_of_rank;
    uint32_t from = w->slice + number % w->runs_of_rank * w->each;
    run.first = from < w->slice_end ? from : w->slice_end;
    run.end = w->slice_end - run.first < w->each ? w->slice_end : run.first + w->each;
    run.ids = w->ids
                  ? w->ids + number * w->each * r->k
                  : route_words(w, r->ids + run.rank * r->ids_pitch) + (uint64_t)run.first * r->k;
    run.counts = w->counts + number * w->counters;
    return run;
}

/* Its ids to shared memory. */
PTX_FN void route_bring_ids(const struct route_walk *w, const struct route_run *run)
{
    const struct mk_route *r = w->r;
    const uint32_t *from =
        route_words(w, r->ids + run->rank * r->ids_pitch) + (uint64_t)run->first * r->k;
    uint32_t *to = (uint32_t *)run->ids;
    uint32_t words = (run->end - run->first) * r->k, lane = threadIdx.x % 32, wide = words & ~3u;
#pragma unroll 1
    for (uint32_t i = lane * 4; i < wide; i += 128 * ROUTE_IDS_AHEAD) {
        uint4 v[ROUTE_IDS_AHEAD];
#pragma unroll
        for (uint32_t j = 0; j < ROUTE_IDS_AHEAD; j++)
            if (i + j * 128 < wide)
                v[j] = ptx_load_16_l2(from + i + j * 128);
#pragma unroll
        for (uint32_t j = 0; j < ROUTE_IDS_AHEAD; j++)
            if (i + j * 128 < wide)
                *(uint4 *)(to + i + j * 128) = v[j];
    }
    if (wide + lane < words)
        to[wide + lane] = from[wide + lane];
}

/* Which of up to 32 tokens name one of `count` experts from `from` on: a bit for each. `ids`: of
 * the first of them; `words` there are. */
PTX_FN uint32_t route_names(const struct route_walk *w, const uint32_t *ids, uint32_t words,
                            uint32_t from, uint32_t count)
{
    uint32_t k = w->r->k, lane = threadIdx.x % 32, step = 32 / k, more = 32 % k, names = 0;
    uint32_t token = lane / k, place = lane % k;
#pragma unroll 4
    for (uint32_t i = 0; i < words; i += 32) {
        uint32_t expert = i + lane < words ? ids[i + lane] : ROUTE_NONE;
        bool is = expert - from < count && expert < w->r->experts;
        names |= __reduce_or_sync(0xffffffff, is ? 1u << token : 0);
        token += step;
        place += more;
        if (place >= k) {
            place -= k;
            token++;
        }
    }
    return names;
}

/* How many tokens that this rank sends a node come before a token. */
PTX_FN void route_say_before(const struct route_walk *w, uint32_t node, uint32_t token,
                             uint32_t before)
{
    if (w->r->sent_before)
        route_words(w, w->r->sent_before)[(uint64_t)node * (w->r->tokens + 1) + token] = before;
}

/* A warp, of tokens first .. end - 1 of a run, at most 32, whose ids are at `ids`: where they go on
 * to. The counts behind those of experts: by local rank, then by node. Returns where this lane's
 * token lies, if it has an expert here (r->source). */
template <bool place>
PTX_FN uint32_t route_lists(const struct route_walk *w, const struct route_run *run, uint32_t first,
                            uint32_t end, const uint32_t *ids)
{
    const struct mk_route *r = w->r;
    const struct mk_topo *t = &r->topo;
    uint32_t from = mk_node_of(t, run->rank), lane = threadIdx.x % 32, words = (end - first) * r->k;
    bool own = run->rank == t->rank, rail = mk_local_of(t, run->rank) == w->local;
    uint32_t lies_at = first + lane, source = own && lies_at < end ? lies_at : ROUTE_NONE;
#pragma unroll 1
    for (uint32_t i = 0; i < t->nodes + t->gpus; i++) { /* nodes first: they say where tokens lie */
        bool is_node = i < t->nodes;
        uint32_t to = is_node ? i : i - t->nodes, group = is_node ? to : mk_rank_at(t, w->node, to);
        bool here = is_node ? to == w->node : to == w->local;
        /* own tokens go to others; those that the rail brings are listed, and go to others; those
         * that others bring are listed */
        if (own ? here : is_node ? !(rail && here) : rail == here)
            continue;
        uint32_t count = is_node ? r->rank_experts * t->gpus : r->rank_experts;
        uint32_t names = route_names(w, ids, words, group * count, count);
        uint32_t *counter = run->counts + r->rank_experts + (is_node ? t->gpus + to : to);
        uint32_t at = *counter;
        __syncwarp();
        if (lane == 0)
            *counter = at + __popc(names);
        __syncwarp();
        if (!place)
            continue;
        at += route_lower_lanes(names);
        const bool named = names >> lane & 1;
        if (is_node) {
            uint64_t list =
                (own ? r->sent : r->came) + (uint64_t)(own ? to : from) * r->relay_room * 4;
            if (named)
                route_words(w, list)[at] = first + lane;
            if (own && first + lane < end)
                route_say_before(w, to, first + lane, at);
            if (!own && named) {
                lies_at = at;
                source = mk_route_relayed(r, from) + at;
            }
        } else if (rail) {
            uint32_t behind = own ? lies_at : r->room + from * r->relay_room + lies_at;
            if (named)
                route_words(w, r->push)[(uint64_t)to * r->landed_room + at] = lies_at;
            if (r->push_before && source != ROUTE_NONE)
                route_words(w, r->push_before)[(uint64_t)behind * t->gpus + to] = at;
        } else if (named) {
            source = mk_route_landed(r, run->rank, at);
            route_words(w, r->landed)[source - r->landed_source] = first + lane;
        }
    }
    return source;
}

/* The same of their rows. The counts begin as the next row of each expert; each place of a token
 * learns its row, and the row where its token lies, which is what the token's lane gives as
 * `source`. */
PTX_FN void route_rows(const struct route_walk *w, const struct route_run *run, uint32_t first,
                       uint32_t end, const uint32_t *ids, uint32_t source)
{
    const struct mk_route *r = w->r;
    uint32_t k = r->k, lane = threadIdx.x % 32, step = 32 / k, more = 32 % k;
    uint32_t token = lane / k, in_token = lane % k, words = (end - first) * k;
    uint32_t from = r->topo.rank * r->rank_experts;
    uint32_t *position = route_words(w, r->position);
    uint32_t *sources = route_words(w, r->source);
    uint32_t next_id = lane < words ? ids[lane] : ROUTE_NONE;
#pragma unroll 1
    for (uint32_t i = lane; i - lane < words; i += 32) {
        uint32_t expert = next_id;
        next_id = i + 32 < words ? ids[i + 32] : ROUTE_NONE;
        bool mine = expert - from < r->rank_experts && expert < r->experts;
        expert = mine ? expert - from : ROUTE_NONE;
        uint32_t same = __match_any_sync(0xffffffff, expert), lower = route_lower_lanes(same),
                 row = mine ? run->counts[expert] : 0;
        __syncwarp();
        if (mine && !lower)
            run->counts[expert] = row + __popc(same);
        uint32_t of_token = __shfl_sync(0xffffffff, source, token & 31);
        if (i < words && of_token != ROUTE_NONE)
            position[(uint64_t)of_token * k + in_token] = mine ? row + lower : ROUTE_NONE;
        if (mine)
            sources[row + lower] = of_token;
        __syncwarp();
        token += step;
        in_token += more;
        if (in_token >= k) {
            in_token -= k;
            token++;
        }
    }
}

/* ---- the first step ---- */

PTX_FN void route_count(const struct mk_cta *cta, const struct route_walk *w)
{
    const struct mk_route *r = w->r;
    uint32_t lane = threadIdx.x % 32, own = r->topo.rank * r->rank_experts;
#pragma unroll 1
    for (uint32_t number = cta_lane(cta) / 32; number < w->runs; number += cta->lanes / 32) {
        struct route_run run = route_run_of(w, number);
        if (w->ids)
            route_bring_ids(w, &run);
#pragma unroll 1
        for (uint32_t c = lane; c < w->counters; c += 32)
            run.counts[c] = 0;
        __syncwarp();
        uint32_t words = (run.end - run.first) * r->k;
#pragma unroll 4
        for (uint32_t i = lane; i < words; i += 32) {
            uint32_t expert = run.ids[i];
            if (expert - own < r->rank_experts && expert < r->experts)
                atomicAdd(&run.counts[expert - own], 1u);
        }
#pragma unroll 1
        for (uint32_t first = run.first; first < run.end; first += 32)
            route_lists<false>(w, &run, first, run.end - first < 32 ? run.end : first + 32,
                               run.ids + (first - run.first) * r->k);
    }
    __syncthreads();
    uint32_t *rows = route_words(w, r->scratch);
#pragma unroll 1
    for (uint32_t i = cta_lane(cta); i < w->world * w->counters; i += cta->lanes) {
        uint32_t rank = i / w->counters, c = i % w->counters, sum = 0;
#pragma unroll 4
        for (uint32_t j = 0; j < w->runs_of_rank; j++)
            sum += w->counts[(rank * w->runs_of_rank + j) * w->counters + c];
        rows[(rank * r->parts + r->part) * w->counters + c] = sum;
    }
}

/* ---- the second ---- */

/* What all parts have counted: a thread adds up one counter of one rank. */
PTX_FN void route_add_up(const struct mk_cta *cta, const struct route_walk *w)
{
    const struct mk_route *r = w->r;
#pragma unroll 1
    for (uint32_t i = cta_lane(cta); i < w->world * w->counters; i += cta->lanes) {
        const uint32_t *rows = route_words(w, r->scratch);
        uint32_t sum = 0, before = 0,
                 at = i / w->counters * r->parts * w->counters + i % w->counters;
#pragma unroll 1
        for (uint32_t first = 0; first < r->parts; first += ROUTE_COUNTS_AHEAD) {
            uint32_t n[ROUTE_COUNTS_AHEAD];
#pragma unroll
            for (uint32_t j = 0; j < ROUTE_COUNTS_AHEAD; j++)
                n[j] = first + j < r->parts ? rows[at + j * w->counters] : 0;
#pragma unroll
            for (uint32_t j = 0; j < ROUTE_COUNTS_AHEAD; j++) {
                before += first + j < r->part ? n[j] : 0;
                sum += n[j];
            }
            at += ROUTE_COUNTS_AHEAD * w->counters;
        }
        w->total[i] = sum;
        w->start[i] = before;
    }
    __syncthreads();
}

/* Experts one after the other; ranks within each. Returns how many rows they have. */
PTX_FN uint32_t route_find_first(const struct mk_cta *cta, const struct route_walk *w)
{
    const struct mk_route *r = w->r;
    const struct mk_topo *t = &r->topo;
    uint32_t base = 0, mine = 0, all;
#pragma unroll 1
    for (uint32_t before = 0; before < r->rank_experts; before += cta->lanes) {
        uint32_t e = before + cta_lane(cta), tiles = 0;
        struct mk_route_rows rows = {0, 0, 0, 0, 0};
        if (e < r->rank_experts) {
            uint32_t *node_rows = route_words(w, r->node_rows) + (uint64_t)e * (t->nodes + 1);
            bool says = e % r->parts == r->part;
#pragma unroll 1
            for (uint32_t rank = 0; rank < w->world; rank++) {
                uint32_t at = rank * w->counters + e, n = w->total[at];
                if (says && mk_local_of(t, rank) == 0)
                    node_rows[mk_node_of(t, rank)] = rows.rows;
                if (rank == w->node * t->gpus)
                    rows.node_begin = rows.rows;
                if (rank == t->rank) {
                    rows.rank_begin = rows.rows;
                    rows.rank_end = rows.rows + n;
                }
                w->start[at] += rows.rows;
                rows.rows += n;
                if (rank == (w->node + 1) * t->gpus - 1)
                    rows.node_end = rows.rows;
            }
            if (says)
                node_rows[t->nodes] = rows.rows;
            w->experts[e].rows = rows;
            tiles = mk_route_tiles(r, rows.rows);
            mine += rows.rows;
        }
        uint32_t first = base + block_scan(tiles * r->tile_rows, cta->lanes, w->scan, &all);
        if (e < r->rank_experts)
            w->experts[e].first = first;
        base += all;
        __syncthreads();
    }
    block_scan(mine, cta->lanes, w->scan, &all); /* nobody scans before lists have been begun */
    return all;
}

/* How many tokens a rank sends another node; and local rank `local` brings local rank `to`, of all
 * nodes. */
PTX_FN uint32_t route_sends(const struct route_walk *w, uint32_t rank, uint32_t node)
{
    return w->total[rank * w->counters + w->r->rank_experts + w->r->topo.gpus + node];
}

PTX_FN uint32_t route_brings(const struct route_walk *w, uint32_t local, uint32_t to)
{
    uint32_t sum = 0;
#pragma unroll 1
    for (uint32_t node = 0; node < w->r->topo.nodes; node++)
        sum +=
            w->total[mk_rank_at(&w->r->topo, node, local) * w->counters + w->r->rank_experts + to];
    return sum;
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
PTX_FN void route_say_over(const struct route_walk *w, uint32_t rows)
{
    const struct mk_route *r = w->r;
    const struct mk_topo *t = &r->topo;
    route_over(w, MK_OVER_ROWS, t->rank, rows, r->capacity);
#pragma unroll 1
    for (uint32_t local = 0; local < t->gpus; local++) {
        if (local == w->local)
            continue;
        route_over(w, MK_OVER_LANDED, mk_rank_at(t, w->node, local),
                   route_brings(w, w->local, local), r->landed_room);
        route_over(w, MK_OVER_LANDED, t->rank, route_brings(w, local, w->local), r->landed_room);
    }
#pragma unroll 1
    for (uint32_t node = 0; node < t->nodes; node++) {
        uint32_t rail = mk_rank_at(t, node, w->local);
        if (node == w->node)
            continue;
        route_over(w, MK_OVER_RELAYED, rail, route_sends(w, t->rank, node), r->relay_room);
        route_over(w, MK_OVER_RELAYED, t->rank, route_sends(w, rail, w->node), r->relay_room);
    }
}

/* Tokens that a rank brings another local rank lie one behind the other, node by node: where they
 * begin, which the first part says. Returns, in all threads of all parts, whether there is more of
 * them, of tokens from or for another node, or of `rows`, than there is room for. */
PTX_FN int route_start_lists(const struct mk_cta *cta, const struct route_walk *w, uint32_t rows)
{
    const struct mk_route *r = w->r;
    const struct mk_topo *t = &r->topo;
    int over = rows > r->capacity;
#pragma unroll 1
    for (uint32_t i = cta_lane(cta); i < t->gpus * t->gpus; i += cta->lanes) {
        uint32_t local = i / t->gpus, to = i % t->gpus, next = 0;
        if (local == to || (local != w->local && to != w->local))
            continue;
#pragma unroll 1
        for (uint32_t node = 0; node < t->nodes; node++) {
            uint32_t rank = mk_rank_at(t, node, local),
                     at = rank * w->counters + r->rank_experts + to;
            if (r->part == 0 && local == w->local)
                route_words(w, r->push_first)[node * t->gpus + to] = next;
            else if (r->part == 0)
                route_words(w, r->landed_first)[rank] = next;
            w->start[at] += next;
            next += w->total[at];
        }
        over |= next > r->landed_room;
    }
#pragma unroll 1
    for (uint32_t node = cta_lane(cta); node < t->nodes; node += cta->lanes)
        if (node != w->node)
            over |= route_sends(w, t->rank, node) > r->relay_room ||
                    route_sends(w, mk_rank_at(t, node, w->local), w->node) > r->relay_room;
    over = __syncthreads_or(over);
    if (over && r->part == 0 && cta_leads(cta))
        route_say_over(w, rows);
    return over;
}

/* Where the rows of each run begin, and its places in lists. */
PTX_FN void route_start_runs(const struct mk_cta *cta, const struct route_walk *w)
{
#pragma unroll 1
    for (uint32_t i = cta_lane(cta); i < w->world * w->counters; i += cta->lanes) {
        uint32_t rank = i / w->counters, c = i % w->counters, next = w->start[i];
        uint32_t *counts = w->counts + rank * w->runs_of_rank * w->counters + c;
        if (c < w->r->rank_experts)
            next += w->experts[c].first;
#pragma unroll 1
        for (uint32_t j = 0; j < w->runs_of_rank; j++) {
            uint32_t n = counts[j * w->counters];
            counts[j * w->counters] = next;
            next += n;
        }
    }
    __syncthreads();
}

PTX_FN void route_place(const struct mk_cta *cta, const struct route_walk *w)
{
#pragma unroll 1
    for (uint32_t number = cta_lane(cta) / 32; number < w->runs; number += cta->lanes / 32) {
        struct route_run run = route_run_of(w, number);
#pragma unroll 1
        for (uint32_t first = run.first; first < run.end; first += 32) {
            uint32_t end = run.end - first < 32 ? run.end : first + 32;
            const uint32_t *ids = run.ids + (first - run.first) * w->r->k;
            uint32_t source = route_lists<true>(w, &run, first, end, ids);
            route_rows(w, &run, first, end, ids, source);
        }
    }
}

/* How long lists are: the last part. */
PTX_FN void route_say_counts(const struct mk_cta *cta, const struct route_walk *w)
{
    const struct mk_route *r = w->r;
    const struct mk_topo *t = &r->topo;
#pragma unroll 1
    for (uint32_t rank = cta_lane(cta); rank < w->world; rank += cta->lanes) {
        const uint32_t *n = w->total + rank * w->counters + r->rank_experts;
        uint32_t from = mk_node_of(t, rank);
        if (mk_local_of(t, rank) != w->local) {
            route_words(w, r->landed_count)[rank] = n[w->local];
            continue;
        }
#pragma unroll 1
        for (uint32_t to = 0; to < t->gpus; to++)
            if (to != w->local)
                route_words(w, r->push_count)[from * t->gpus + to] = n[to];
        if (rank != t->rank)
            route_words(w, r->came_count)[from] = n[t->gpus + w->node];
#pragma unroll 1
        for (uint32_t to = 0; rank == t->rank && to < t->nodes; to++)
            if (to != w->node) {
                route_words(w, r->sent_count)[to] = n[t->gpus + to];
                route_say_before(w, to, r->tokens, n[t->gpus + to]);
            }
    }
}

/* What there is to say of each expert of this rank: a warp for each, of all parts. Nobody waits for
 * what is added. */
PTX_FN void route_say_experts(const struct mk_cta *cta, const struct route_walk *w)
{
    const struct mk_route *r = w->r;
    uint32_t warps = cta->lanes / 32, lane = threadIdx.x % 32;
    unsigned long long *wanted = (unsigned long long *)(w->heap + r->wanted),
                       *awaited = (unsigned long long *)(w->heap + r->awaited);
    uint32_t *said = (uint32_t *)(cta->launch->arguments[r->summary_space] + r->summary);
#pragma unroll 1
    for (uint32_t e = r->part * warps + cta_lane(cta) / 32; e < r->rank_experts;
         e += r->parts * warps) {
        const struct route_expert of = w->experts[e];
        uint32_t rows = of.rows.rows, tile = of.first / r->tile_rows;
#pragma unroll 1
        for (uint32_t i = lane; i * r->tile_rows < rows; i += 32) {
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

PTX_FN struct mk_tile_run route_run_at(const struct route_walk *w, uint32_t i)
{
    uint32_t e = i % w->r->rank_experts;
    struct mk_tile_run run = mk_route_run(w->r, &w->experts[e].rows, e, i / w->r->rank_experts);
    run.row = w->experts[e].first;
    return run;
}

/* The tiles: where each run of them begins, in rows of tiles, every part by itself; then a thread
 * for each tile, of all parts. Returns how many rows of tiles there are. */
PTX_FN struct mk_stages route_make_order(const struct mk_cta *cta, const struct route_walk *w)
{
    const struct mk_route *r = w->r;
    uint32_t runs = mk_route_stretches(r) * r->rank_experts, all;
    struct mk_stages stages = {0, r->columns, r->down, r->group_rows};
#pragma unroll 1
    for (uint32_t first = 0; first < runs; first += cta->lanes) {
        uint32_t i = first + cta_lane(cta), tiles = 0;
        if (i < runs)
            tiles = route_run_at(w, i).count;
        uint32_t before = block_scan(tiles, cta->lanes, w->scan, &all); /* all have placed */
        if (i < runs)
            w->begins[i] = stages.rows + before;
        stages.rows += all;
        __syncthreads();
    }
    uint4 *order = (uint4 *)(w->heap + r->order);
    uint32_t count = stages.rows * (r->columns + r->down);
#pragma unroll 1
    for (uint32_t i = cta_lane(cta) * r->parts + r->part; i < count; i += r->parts * cta->lanes) {
        struct mk_stage at = mk_stage_at(&stages, i);
        uint32_t n = block_find(w->begins, runs, mk_stage_row(&stages, &at));
        struct mk_tile_run run = route_run_at(w, n);
        struct mk_tile_entry e = mk_tile_of_stage(&stages, &at, &run, w->begins[n], r->tile_rows,
                                                  r->tile_columns, r->running);
        order[i] = make_uint4(e.row, e.rows, e.group, e.column);
    }
    return stages;
}

/* One thread: from where tiles, and units of another kind, are counted in this launch. Nobody has
 * asked for one before the tables are there. */
PTX_FN void route_say_head(const struct mk_cta *cta, const struct route_walk *w,
                           const struct mk_stages *stages)
{
    struct mk_route_head *head = (struct mk_route_head *)(w->heap + w->r->order_head);
    uint32_t last = mk_route_last(w->r);
    head->begin = *(volatile uint64_t *)cta->launch->taken;
    head->added = *(volatile uint64_t *)&head->adding;
    head->count = stages->rows * (stages->up + stages->down);
    head->apart = last < mk_route_stretches(w->r)
                      ? mk_stage_begin(stages, w->begins[last * w->r->rank_experts])
                      : head->count;
}

/* ---- what is kept ---- */

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
    uint32_t *kept = (uint32_t *)(cta->launch->heap + r->ids + r->topo.rank * r->ids_pitch),
             *used = (uint32_t *)cta->scratch;
    uint32_t dropped = 0;
#pragma unroll 1
    for (uint32_t i = cta_lane(cta); i < warps * world; i += cta->lanes)
        used[i] = 0;
    __syncthreads();
#pragma unroll 1
    for (uint32_t step = 0; step < 2; step++) {
#pragma unroll 1
        for (uint32_t i = from + lane; warp < warps && i - lane < end; i += 32) {
            uint32_t expert = i < end ? named[i] : ROUTE_NONE,
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
                kept[i] = drops ? ROUTE_NONE : expert;
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

MK_ROLE_CALL void mk_cta_route(struct mk_cta *cta, const struct mk_route *r)
{
    if (r->step == MK_ROUTE_KEEP) {
        route_keep(cta, r);
        return;
    }
    const struct route_walk w = route_walk_begin(cta, r);
    if (r->step == MK_ROUTE_COUNT) {
        route_count(cta, &w);
        return;
    }
    route_add_up(cta, &w);
    if (route_start_lists(cta, &w, route_find_first(cta, &w)))
        return; /* moe_await_routed says why */
    route_start_runs(cta, &w);
    route_place(cta, &w);
    if (r->part + 1 == r->parts)
        route_say_counts(cta, &w);
    route_say_experts(cta, &w);
    const struct mk_stages stages = route_make_order(cta, &w);
    if (r->part == 0 && cta_leads(cta))
        route_say_head(cta, &w, &stages);
    __syncthreads(); /* shared memory is the next one's */
}

#endif
