/* The tables of MoE routing (core/cta_route.h) on a GPU, for operators whose rows have no way back.
 *
 * All ranks' tokens are cut into runs, of one rank each; a warp counts those of a run: rows of each
 * expert of this rank, tokens by where they go on to. Its row of counts goes to memory. When all
 * thread blocks have counted, each adds up what is before its own runs; each warp then goes over
 * its tokens again and knows the place of every one. Equal ids among 32 are counted by matching
 * lanes. No atomics on what is placed: the same tables in every run.
 *
 * All threads of a block call, with MK_ROUTE_SHARED bytes of shared memory at cta->scratch. */
#ifndef MK_KERNELS_CTA_ROUTE_CUH
#define MK_KERNELS_CTA_ROUTE_CUH

#include "core/cta_route.h"
#include "kernels/block_scan.cuh"
#include "kernels/cta.cuh"

#define ROUTE_NONE UINT32_MAX
enum { ROUTE_AHEAD = 12 }; /* loads of counts that are under way at once */

MK_ROLE_CALL uint32_t mk_cta_load(struct mk_cta *cta, uint64_t offset)
{
    return *(const uint32_t *)(cta->launch->heap + offset);
}

MK_ROLE_CALL uint64_t mk_cta_load64(struct mk_cta *cta, uint64_t offset)
{
    return *(const uint64_t *)(cta->launch->heap + offset);
}

/* What all functions here want to know. */
struct route_walk {
    const struct mk_route *r;
    char *heap;
    uint32_t node, local;
    uint32_t counters, runs, runs_of_rank; /* runs: of all ranks */
};

PTX_FN struct route_walk route_walk_begin(const struct mk_cta *cta, const struct mk_route *r)
{
    struct route_walk w;
    w.r = r;
    w.heap = cta->launch->heap;
    w.node = mk_node_of(&r->topo, r->topo.rank);
    w.local = mk_local_of(&r->topo, r->topo.rank);
    w.counters = mk_route_counters(&r->topo, r->rank_experts);
    w.runs_of_rank = mk_route_runs_of_rank(&r->topo, r->parts);
    w.runs = w.runs_of_rank * mk_world(&r->topo);
    return w;
}

PTX_FN uint32_t *route_words(const struct route_walk *w, uint64_t offset)
{
    return (uint32_t *)(w->heap + offset);
}

/* Of the runs, those of part `part` begin here. */
PTX_FN uint32_t route_part(const struct route_walk *w, uint32_t part)
{
    uint32_t parts = w->r->parts, each = w->runs / parts, more = w->runs % parts;
    return part * each + (part < more ? part : more);
}

PTX_FN uint32_t route_lower_lanes(uint32_t mask)
{
    return __popc(mask & ((1u << threadIdx.x % 32) - 1));
}

/* A warp, of tokens first .. end - 1 of `rank`, at most 32: counts[] += the rows of each expert of
 * this rank. place: counts[] begins as the next row of each; each place of a token learns its row,
 * and the row where its token lies, which is what the token's lane gives as `source`. */
template <bool place>
PTX_FN void route_rows(const struct route_walk *w, uint32_t rank, uint32_t first, uint32_t end,
                       uint32_t source, uint32_t *counts)
{
    const struct mk_route *r = w->r;
    const uint32_t *ids = route_words(w, r->ids + rank * r->ids_pitch);
    uint32_t *position = route_words(w, r->position) + (uint64_t)rank * r->tokens * r->k;
    uint32_t from = r->topo.rank * r->rank_experts;
    for (uint32_t i = first * r->k; i < end * r->k; i += 32) {
        uint32_t at = i + threadIdx.x % 32, expert = at < end * r->k ? ids[at] : ROUTE_NONE;
        bool mine = expert - from < r->rank_experts && expert < r->experts;
        expert = mine ? expert - from : ROUTE_NONE;
        uint32_t same = __match_any_sync(0xffffffff, expert), lower = route_lower_lanes(same),
                 next = mine ? counts[expert] : 0;
        __syncwarp();
        if (mine && !lower)
            counts[expert] = next + __popc(same);
        if (place && at < end * r->k)
            position[at] = mine ? next + lower : ROUTE_NONE;
        if (place) {
            uint32_t of_token = __shfl_sync(0xffffffff, source, at / r->k - first);
            if (mine)
                route_words(w, r->source)[next + lower] = of_token;
        }
        __syncwarp();
    }
}

/* Whether a token names one of `count` experts from `from` on. */
PTX_FN bool route_names(const struct route_walk *w, const uint32_t *ids, uint32_t from,
                        uint32_t count)
{
    bool names = false;
    for (uint32_t place = 0; place < w->r->k; place++) {
        uint32_t expert = ids[place];
        names |= expert - from < count && expert < w->r->experts;
    }
    return names;
}

/* Entries of a list for those lanes that have one; *count entries are in it. Returns which it is.
 */
template <bool place>
PTX_FN uint32_t route_list(bool has, uint32_t *count, uint32_t *list, uint32_t value)
{
    uint32_t lanes = __ballot_sync(0xffffffff, has), at = *count + route_lower_lanes(lanes);
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        *count += __popc(lanes);
    __syncwarp();
    if (place && has)
        list[at] = value;
    return at;
}

/* A warp, of tokens first .. end - 1 of `rank`, at most 32: where they go on to. counts[]: by local
 * rank, then by node. Returns where this lane's token lies, if it has an expert here (r->source).
 */
template <bool place>
PTX_FN uint32_t route_lists(const struct route_walk *w, uint32_t rank, uint32_t first, uint32_t end,
                            uint32_t *counts)
{
    const struct mk_route *r = w->r;
    const struct mk_topo *t = &r->topo;
    const uint32_t *ids = route_words(w, r->ids + rank * r->ids_pitch);
    uint32_t from = mk_node_of(t, rank), node_experts = r->rank_experts * t->gpus;
    bool own = rank == t->rank, rail = mk_local_of(t, rank) == w->local;
    uint32_t token = first + threadIdx.x % 32, lies_at = token;
    bool is = token < end;
    const uint32_t *its = ids + (uint64_t)(is ? token : first) * r->k;
    if (!rail) {
        bool here = is && route_names(w, its, t->rank * r->rank_experts, r->rank_experts);
        uint32_t at = route_list<place>(
            here, &counts[w->local], route_words(w, r->landed) + (uint64_t)rank * r->tokens, token);
        return r->landed_source + rank * r->room + at;
    }
    if (!own) {
        bool here = is && route_names(w, its, w->node * node_experts, node_experts);
        lies_at = route_list<place>(here, &counts[t->gpus + w->node],
                                    route_words(w, r->came) + (uint64_t)from * r->tokens, token);
    }
    for (uint32_t to = 0; to < t->gpus; to++) {
        uint32_t other = mk_rank_at(t, w->node, to);
        if (to != w->local)
            route_list<place>(
                is && route_names(w, its, other * r->rank_experts, r->rank_experts), &counts[to],
                route_words(w, r->push) + ((uint64_t)from * t->gpus + to) * r->tokens, lies_at);
    }
    for (uint32_t to = 0; own && to < t->nodes; to++)
        if (to != w->node)
            route_list<place>(is && route_names(w, its, to * node_experts, node_experts),
                              &counts[t->gpus + to],
                              route_words(w, r->sent) + (uint64_t)to * r->tokens, token);
    return own ? token : r->relay_source + from * r->room + lies_at;
}

template <bool place>
PTX_FN void route_walk_run(const struct route_walk *w, uint32_t run, uint32_t *counts)
{
    uint32_t tokens = w->r->tokens, each = (tokens + w->runs_of_rank - 1) / w->runs_of_rank;
    uint32_t rank = run / w->runs_of_rank, begin = run % w->runs_of_rank * each;
    uint32_t end = begin + each < tokens ? begin + each : tokens;
    for (uint32_t first = begin; first < end; first += 32) {
        uint32_t last = end - first < 32 ? end : first + 32;
        uint32_t source = route_lists<place>(w, rank, first, last, counts + w->r->rank_experts);
        route_rows<place>(w, rank, first, last, source, counts);
    }
}

/* ---- the first step ---- */

PTX_FN void route_count(const struct mk_cta *cta, const struct route_walk *w, uint32_t *shared)
{
    uint32_t warp = cta_lane(cta) / 32, lane = threadIdx.x % 32,
             last = route_part(w, w->r->part + 1);
    uint32_t *counts = shared + warp * w->counters;
    for (uint32_t run = route_part(w, w->r->part) + warp; run < last; run += cta->lanes / 32) {
        for (uint32_t c = lane; c < w->counters; c += 32)
            counts[c] = 0;
        __syncwarp();
        route_walk_run<false>(w, run, counts);
        uint32_t *row = route_words(w, w->r->scratch) + (uint64_t)run * w->counters;
        __syncwarp();
        for (uint32_t c = lane; c < w->counters; c += 32)
            row[c] = counts[c];
    }
}

/* ---- the second ---- */

/* In shared memory. */
struct route_sums {
    uint32_t *of_rank; /* [W][counters] */
    uint32_t *before;  /* [counters]: in runs before this part's first; of lists, of its rank's */
    uint32_t *counts;  /* [warps][counters] */
    uint32_t *first;   /* [rank_experts]: first rows */
    uint32_t *begins;  /* of the order's runs */
    uint32_t *scan;    /* BLOCK_SCAN_WORDS */
};

PTX_FN struct route_sums route_sums_at(const struct route_walk *w, uint32_t *shared)
{
    struct route_sums s;
    s.of_rank = shared;
    s.before = s.of_rank + mk_world(&w->r->topo) * w->counters;
    s.counts = s.before + w->counters;
    s.first = s.counts + MK_ROUTE_WARPS * w->counters;
    s.begins = s.first + w->r->rank_experts;
    s.scan = s.begins + 4 * w->r->rank_experts;
    return s;
}

/* What all parts have counted: threads side by side take counters, and as many groups of them as
 * there are take runs in turn. */
PTX_FN void route_add_up(const struct mk_cta *cta, const struct route_walk *w,
                         const struct route_sums *s)
{
    const uint32_t *rows = route_words(w, w->r->scratch);
    uint32_t here = route_part(w, w->r->part), all = mk_world(&w->r->topo) + 1, me = cta_lane(cta);
    uint32_t width = (w->counters + 31) / 32 * 32, groups = cta->lanes / width;
    if (!groups) {
        groups = 1;
        width = cta->lanes;
    }
    for (uint32_t i = me; i < all * w->counters; i += cta->lanes)
        s->of_rank[i] = 0; /* and `before` behind it */
    __syncthreads();
    for (uint32_t c = me % width; me / width < groups && c < w->counters; c += width)
        for (uint32_t first = me / width; first < w->runs; first += ROUTE_AHEAD * groups) {
            uint32_t n[ROUTE_AHEAD];
#pragma unroll
            for (uint32_t i = 0; i < ROUTE_AHEAD; i++) {
                uint32_t run = first + i * groups;
                n[i] = run < w->runs ? rows[(uint64_t)run * w->counters + c] : 0;
            }
#pragma unroll
            for (uint32_t i = 0; i < ROUTE_AHEAD; i++) {
                uint32_t run = first + i * groups, rank = run / w->runs_of_rank;
                if (n[i])
                    atomicAdd(&s->of_rank[rank * w->counters + c], n[i]);
                if (n[i] && run < here &&
                    (c < w->r->rank_experts || rank == here / w->runs_of_rank))
                    atomicAdd(&s->before[c], n[i]);
            }
        }
    __syncthreads();
}

/* Rows of expert `e` of this rank that come from ranks first .. end - 1. */
PTX_FN uint32_t route_rows_from(const struct route_walk *w, const struct route_sums *s, uint32_t e,
                                uint32_t first, uint32_t end)
{
    uint32_t rows = 0;
    for (uint32_t rank = first; rank < end; rank++)
        rows += s->of_rank[rank * w->counters + e];
    return rows;
}

PTX_FN struct mk_route_rows route_rows_of(const struct route_walk *w, const struct route_sums *s,
                                          uint32_t e)
{
    const struct mk_topo *t = &w->r->topo;
    struct mk_route_rows rows;
    rows.node_begin = route_rows_from(w, s, e, 0, w->node * t->gpus);
    rows.rank_begin = rows.node_begin + route_rows_from(w, s, e, w->node * t->gpus, t->rank);
    rows.rank_end = rows.rank_begin + route_rows_from(w, s, e, t->rank, t->rank + 1);
    rows.node_end = rows.rank_end + route_rows_from(w, s, e, t->rank + 1, (w->node + 1) * t->gpus);
    rows.rows = rows.node_end + route_rows_from(w, s, e, (w->node + 1) * t->gpus, mk_world(t));
    return rows;
}

PTX_FN void route_find_first(const struct mk_cta *cta, const struct route_walk *w,
                             const struct route_sums *s)
{
    uint32_t base = 0, all;
    for (uint32_t first = 0; first < w->r->rank_experts; first += cta->lanes) {
        uint32_t e = first + cta_lane(cta);
        uint32_t rows =
            e < w->r->rank_experts ? route_rows_from(w, s, e, 0, mk_world(&w->r->topo)) : 0;
        uint32_t before =
            block_scan(mk_route_tiles(w->r, rows) * w->r->tile_rows, cta->lanes, s->scan, &all);
        if (e < w->r->rank_experts)
            s->first[e] = base + before;
        base += all;
        __syncthreads();
    }
}

PTX_FN void route_place(const struct mk_cta *cta, const struct route_walk *w,
                        const struct route_sums *s)
{
    const struct mk_route *r = w->r;
    const uint32_t *rows = route_words(w, r->scratch);
    uint32_t begin = route_part(w, r->part), last = route_part(w, r->part + 1);
    uint32_t warp = cta_lane(cta) / 32;
    uint32_t *counts = s->counts + warp * w->counters;
    for (uint32_t run = begin + warp; run < last; run += cta->lanes / 32) {
        uint32_t of_rank = run / w->runs_of_rank * w->runs_of_rank; /* its rank's first run */
        for (uint32_t c = threadIdx.x % 32; c < w->counters; c += 32) {
            bool expert = c < r->rank_experts;
            uint32_t n = expert ? s->first[c] : 0,
                     from = expert || of_rank < begin ? begin : of_rank;
            if (expert || of_rank < begin)
                n += s->before[c];
            for (; from < run; from += ROUTE_AHEAD) {
                uint32_t of[ROUTE_AHEAD];
#pragma unroll
                for (uint32_t i = 0; i < ROUTE_AHEAD; i++)
                    of[i] = from + i < run ? rows[(uint64_t)(from + i) * w->counters + c] : 0;
#pragma unroll
                for (uint32_t i = 0; i < ROUTE_AHEAD; i++)
                    n += of[i];
            }
            counts[c] = n;
        }
        __syncwarp();
        route_walk_run<true>(w, run, counts);
        __syncwarp();
    }
}

/* How long lists are: the last part. */
PTX_FN void route_say_counts(const struct mk_cta *cta, const struct route_walk *w,
                             const struct route_sums *s)
{
    const struct mk_route *r = w->r;
    const struct mk_topo *t = &r->topo;
    for (uint32_t rank = cta_lane(cta); rank < mk_world(t); rank += cta->lanes) {
        const uint32_t *n = s->of_rank + rank * w->counters + r->rank_experts;
        uint32_t from = mk_node_of(t, rank);
        if (mk_local_of(t, rank) != w->local) {
            route_words(w, r->landed_count)[rank] = n[w->local];
            continue;
        }
        for (uint32_t to = 0; to < t->gpus; to++)
            if (to != w->local)
                route_words(w, r->push_count)[from * t->gpus + to] = n[to];
        if (rank != t->rank)
            route_words(w, r->came_count)[from] = n[t->gpus + w->node];
        for (uint32_t to = 0; rank == t->rank && to < t->nodes; to++)
            if (to != w->node)
                route_words(w, r->sent_count)[to] = n[t->gpus + to];
    }
}

/* What there is to say of each expert of this rank: a warp for each, of all parts. */
PTX_FN void route_say_experts(const struct mk_cta *cta, const struct route_walk *w,
                              const struct route_sums *s)
{
    const struct mk_route *r = w->r;
    const struct mk_topo *t = &r->topo;
    uint32_t warps = cta->lanes / 32, lane = threadIdx.x % 32;
    uint64_t *wanted = (uint64_t *)(w->heap + r->wanted),
             *awaited = (uint64_t *)(w->heap + r->awaited);
    uint32_t *said = (uint32_t *)(cta->launch->arguments[r->summary_space] + r->summary);
    for (uint32_t e = r->part * warps + cta_lane(cta) / 32; e < r->rank_experts;
         e += r->parts * warps) {
        struct mk_route_rows of = route_rows_of(w, s, e);
        uint32_t rows = of.rows, tiles = mk_route_tiles(r, rows);
        for (uint32_t i = lane; i < tiles; i += 32) {
            uint32_t begin = i * r->tile_rows, end = begin + r->tile_rows;
            end = end < rows ? end : rows;
            uint32_t own_begin = begin > of.rank_begin ? begin : of.rank_begin,
                     own_end = end < of.rank_end ? end : of.rank_end;
            wanted[s->first[e] / r->tile_rows + i] += end - begin;
            awaited[s->first[e] / r->tile_rows + i] +=
                end - begin - (own_end > own_begin ? own_end - own_begin : 0);
        }
        for (uint32_t node = lane; node <= t->nodes; node += 32)
            route_words(w, r->node_rows)[e * (t->nodes + 1) + node] =
                route_rows_from(w, s, e, 0, node * t->gpus);
        if (lane)
            continue;
        route_words(w, r->first)[t->rank * r->rank_experts + e] = s->first[e];
        route_words(w, r->rows)[t->rank * r->rank_experts + e] = rows;
        if (r->summary_space != MK_SPACE_HEAP) {
            said[2 * e] = s->first[e];
            said[2 * e + 1] = rows;
        }
    }
}

PTX_FN struct mk_tile_run route_run_at(const struct route_walk *w, const struct route_sums *s,
                                       uint32_t i)
{
    uint32_t e = i % w->r->rank_experts;
    struct mk_route_rows rows = route_rows_of(w, s, e);
    struct mk_tile_run run = mk_route_run(w->r, &rows, i / w->r->rank_experts);
    run.group = e;
    run.row = s->first[e];
    return run;
}

/* The tiles: where each run begins, every part by itself; then a thread for each tile, of all
 * parts. */
PTX_FN void route_make_order(const struct mk_cta *cta, const struct route_walk *w,
                             const struct route_sums *s)
{
    const struct mk_route *r = w->r;
    uint32_t runs = (2 + r->slices) * r->rank_experts, base = 0, all;
    for (uint32_t first = 0; first < runs; first += cta->lanes) {
        uint32_t i = first + cta_lane(cta), tiles = 0;
        if (i < runs)
            tiles = route_run_at(w, s, i).count * r->columns;
        uint32_t before = block_scan(tiles, cta->lanes, s->scan, &all);
        if (i < runs)
            s->begins[i] = base + before;
        base += all;
        __syncthreads();
    }
    uint4 *order = (uint4 *)(w->heap + r->order);
    for (uint32_t i = cta_lane(cta) * r->parts + r->part; i < base; i += r->parts * cta->lanes) {
        uint32_t n = block_find(s->begins, runs, i);
        struct mk_tile_run run = route_run_at(w, s, n);
        struct mk_tile_entry e = mk_tile_of_run(&run, i - s->begins[n], r->columns, r->tile_rows,
                                                r->tile_columns, r->running);
        order[i] = make_uint4(e.row, e.rows, e.group, e.column);
    }
    if (r->part == 0 && cta_leads(cta)) { /* every block has asked for one more than there were */
        struct mk_route_head *head = (struct mk_route_head *)(w->heap + r->order_head);
        head->begin = cta->epoch == 1 ? 0 : head->begin + head->count + gridDim.x;
        head->count = base;
    }
}

MK_ROLE_CALL void mk_cta_route(struct mk_cta *cta, const struct mk_route *r)
{
    struct route_walk w = route_walk_begin(cta, r);
    uint32_t *shared = (uint32_t *)cta->scratch;
    if (r->step == MK_ROUTE_COUNT) {
        route_count(cta, &w, shared);
        return;
    }
    struct route_sums s = route_sums_at(&w, shared);
    __syncthreads(); /* its own counts are in memory, and shared memory is free again */
    route_add_up(cta, &w, &s);
    route_find_first(cta, &w, &s);
    route_place(cta, &w, &s);
    if (r->part + 1 == r->parts) /* the first says where tiles are taken from */
        route_say_counts(cta, &w, &s);
    route_say_experts(cta, &w, &s);
    route_make_order(cta, &w, &s);
    __syncthreads(); /* shared memory is the next one's */
}

#endif
