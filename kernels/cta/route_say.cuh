/* What a rank has to say to others of where its tokens go, on a GPU (kernels/cta/cta_route.cuh): COUNT,
 * PLACE and RELAY of core/cta/cta_route.h.
 *
 * A part has a slice of the rank's tokens, of which each of its warps takes a run. It goes over its
 * run once, with places in shared memory: these learn their numbers within the run, equal numbers
 * among 32 places being counted by marks of lanes (which is four times as fast as matching them). A
 * run's counts stay in shared memory, those of a part go to memory. When all parts have counted, each
 * adds up what is before its own slice, and every place's number is a sum of three. The same tables in
 * every run: what is marked does not depend on the order of the atomics. */
#pragma once

#include "kernels/cta/route_walk.cuh"

enum {
    ROUTE_IDS_AHEAD = 8,    /* loads of ids, and of weights, that a lane has under way */
    ROUTE_COUNTS_AHEAD = 12 /* of counts: those of so many parts */
};

/* A warp's. */
struct route_run {
    uint32_t first, end; /* tokens */
    uint4 *
        notes; /* of their places, as records: in shared memory where they fit, else where records lie */
    /* of experts, ranks, nodes: how many it has; once the part has counted, how many the part's runs
     * before it have */
    uint32_t *counts;
    uint32_t *marks; /* mk_route_marks; 0 between groups of lanes */
};

PTX_FN struct route_run route_run_of(const struct mk_cta *cta, const struct route_walk *w,
                                     uint32_t warp)
{
    const struct mk_route *r = w->r;
    const uint32_t warps = cta->lanes / 32, of_lanes = r->known.lane_tokens,
                   of_part = (r->tokens + r->parts - 1) / r->parts,
                   of_warp = (of_part + warps - 1) / warps,
                   each = (of_warp + of_lanes - 1) / of_lanes * of_lanes,
                   from = (r->part * warps + warp) * each;
    struct route_run run;
    run.first = from < r->tokens ? from : r->tokens;
    run.end = r->tokens - run.first < each ? r->tokens : run.first + each;
    run.notes = warps * each * r->k <= w->spare
                    ? w->notes + warp * each * r->k
                    : route_records(w, r->records) + (uint64_t)run.first * r->k;
    run.counts = w->words + warp * r->known.counters;
    run.marks = w->words + warps * r->known.counters +
                warp * (uint32_t)mk_route_marks(&r->topo, r->experts);
    return run;
}

/* Its ids and weights. */
PTX_FN void route_bring(const struct mk_cta *cta, const struct mk_route *r,
                        const struct route_run *run)
{
    const uint64_t first = (uint64_t)run->first * r->k;
    const uint32_t *ids = (const uint32_t *)(cta->launch->arguments[r->ids_space] + r->ids) + first;
    const bool weighs = r->weights_space != MK_SPACE_HEAP;
    const float *weights =
        weighs ? (const float *)cta->launch->arguments[r->weights_space] + first : nullptr;
    const uint32_t places = (run->end - run->first) * r->k;
#pragma unroll 1
    for (uint32_t i = threadIdx.x % 32; i < places; i += 32 * ROUTE_IDS_AHEAD) {
        uint32_t id[ROUTE_IDS_AHEAD];
        float weight[ROUTE_IDS_AHEAD];
#pragma unroll
        for (uint32_t j = 0; j < ROUTE_IDS_AHEAD; j++)
            if (i + j * 32 < places) {
                id[j] = ids[i + j * 32];
                weight[j] = weighs ? weights[i + j * 32] : 0;
            }
#pragma unroll
        for (uint32_t j = 0; j < ROUTE_IDS_AHEAD; j++)
            if (i + j * 32 < places) {
                run->notes[i + j * 32].x = id[j];
                run->notes[i + j * 32].w = __float_as_uint(weight[j]);
            }
    }
    __syncwarp();
}

/* ---- counting ---- */

/* Marks of a counter: which lanes of a group have it, and, of ranks and nodes, which of its tokens. */
struct route_mark {
    uint32_t lanes, tokens;
};

PTX_FN uint32_t route_below(uint32_t bit)
{
    return (1u << bit) - 1;
}

PTX_FN void route_mark(uint32_t *lanes, uint32_t *tokens, uint32_t counter, uint32_t token)
{
    atomicOr(&lanes[counter], 1u << threadIdx.x % 32);
    atomicOr(&tokens[counter], 1u << token);
}

/* The next number of this lane's token, where this is the token's first place of the counter; else
 * ROUTE_NONE. */
PTX_FN uint32_t route_turn(const struct mk_route *r, const struct route_lane *l,
                           const struct route_mark *mark, uint32_t count)
{
    const uint32_t before = route_below(threadIdx.x % 32) & ~route_below(l->token * r->k);
    return mark->lanes & before ? ROUTE_NONE : count + __popc(mark->tokens & route_below(l->token));
}

/* The first lane that has the counter counts all that do, and takes the marks away. */
PTX_FN void route_count_marked(uint32_t *lanes, uint32_t *tokens, uint32_t *counts,
                               uint32_t counter, const struct route_mark *mark)
{
    if (mark->lanes & route_below(threadIdx.x % 32))
        return;
    counts[counter] += __popc(mark->tokens);
    lanes[counter] = tokens[counter] = 0;
}

/* counts, marks: the run's. */
PTX_FN void route_count_run(const struct route_walk *w, const struct route_run *run,
                            uint32_t *counts, uint32_t *marks)
{
    const struct mk_route *r = w->r;
    const struct route_lane l = route_lane_of(r);
    uint32_t *ranks = counts + r->experts, *nodes = ranks + w->world,
             *of_ranks = marks + r->experts, *rank_tokens = of_ranks + w->world,
             *of_nodes = rank_tokens + w->world, *node_tokens = of_nodes + r->topo.nodes;
#pragma unroll 1
    for (uint32_t first = run->first; first < run->end; first += l.tokens) {
        const uint32_t token = first + l.token, in_run = (token - run->first) * r->k + l.place;
        const bool there = l.token < l.tokens && token < run->end;
        uint4 note = there ? run->notes[in_run] : make_uint4(ROUTE_NONE, 0, 0, 0);
        const uint32_t expert = route_expert(w->heap, r, note.x);
        const bool is = expert < r->experts;
        const uint32_t rank = is ? route_rank_of(w, expert) : 0, node = route_node_of(w, rank);
        const bool away = is && node != w->node;
        struct route_mark of_expert = {}, of_rank = {}, of_node = {};
        uint32_t sent_at = ROUTE_NONE;
        if (is) {
            atomicOr(&marks[expert], 1u << threadIdx.x % 32);
            route_mark(of_ranks, rank_tokens, rank, l.token);
        }
        if (away)
            route_mark(of_nodes, node_tokens, node, l.token);
        __syncwarp();
        note.x = note.z = ROUTE_NONE;
        note.y = 0;
        if (is) {
            of_expert.lanes = of_expert.tokens = marks[expert];
            of_rank = {of_ranks[rank], rank_tokens[rank]};
            note.x = expert;
            note.y = counts[expert] + __popc(of_expert.lanes & route_below(threadIdx.x % 32));
            if (rank != r->topo.rank)
                note.z = route_turn(r, &l, &of_rank, ranks[rank]);
        }
        if (away) {
            of_node = {of_nodes[node], node_tokens[node]};
            sent_at = route_turn(r, &l, &of_node, nodes[node]);
        }
        if (there)
            run->notes[in_run] = note;
        if (there && r->topo.nodes > 1)
            route_words(w, r->sent_at)[(uint64_t)token * r->k + l.place] = sent_at;
        __syncwarp();
        if (is) {
            route_count_marked(marks, marks, counts, expert, &of_expert);
            route_count_marked(of_ranks, rank_tokens, ranks, rank, &of_rank);
        }
        if (away)
            route_count_marked(of_nodes, node_tokens, nodes, node, &of_node);
        __syncwarp();
    }
}

/* What each counter of the runs before is, and of all of them. */
PTX_FN void route_add_runs(const struct mk_cta *cta, const struct route_walk *w, uint32_t counters)
{
    const uint32_t warps = cta->lanes / 32;
    uint32_t *scratch = route_words(w, w->r->scratch) + w->r->part * counters;
#pragma unroll 1
    for (uint32_t c = cta_lane(cta); c < counters; c += cta->lanes) {
        uint32_t n[MK_ROUTE_WARPS], sum = 0;
#pragma unroll
        for (uint32_t i = 0; i < MK_ROUTE_WARPS; i++)
            n[i] = i < warps ? w->words[i * counters + c] : 0;
#pragma unroll
        for (uint32_t i = 0; i < MK_ROUTE_WARPS; i++) {
            if (i < warps)
                w->words[i * counters + c] = sum;
            sum += n[i];
        }
        scratch[c] = sum;
    }
}

PTX_FN void route_count(const struct mk_cta *cta, const struct route_walk *w)
{
    const struct mk_route *r = w->r;
    const uint32_t counters = r->known.counters;
    const struct route_run run = route_run_of(cta, w, cta_lane(cta) / 32);
    route_bring(cta, r, &run);
#pragma unroll 1
    for (uint32_t c = threadIdx.x % 32; c < counters; c += 32)
        run.counts[c] = 0;
#pragma unroll 1
    for (uint32_t m = threadIdx.x % 32; m < mk_route_marks(&r->topo, r->experts); m += 32)
        run.marks[m] = 0;
    __syncwarp();
    if (r->spill) {
        route_count_run(w, &run, run.counts, run.marks);
    } else { /* where the compiler sees that they are in shared memory: other atomics are slow there */
        uint32_t *words = w->scan + MK_ROUTE_SCAN_WORDS;
        route_count_run(w, &run, words + (run.counts - w->words), words + (run.marks - w->words));
    }
    __syncthreads();
    route_add_runs(cta, w, counters);
}

/* ---- placing ---- */

/* What is said of a counter, of which all parts have `count`. */
PTX_FN void route_say_count(const struct route_walk *w, uint32_t c, uint32_t count)
{
    const struct mk_route *r = w->r;
    const struct mk_topo *t = &r->topo;
    const uint32_t tokens = r->rank_experts + MK_SAID_TOKENS,
                   of_node = r->rank_experts + MK_SAID_OF_NODE;
    if (c >= r->experts + w->world) {
        const uint32_t node = c - r->experts - w->world;
        if (node == w->node)
            return;
        route_words(w, r->sent_count)[node] = count;
#pragma unroll 1
        for (uint32_t to = 0; to < t->gpus; to++)
            route_words(w, r->railing + node * r->rail_pitch)[to * r->said_words + of_node] = count;
        return;
    }
    const uint32_t rank = c < r->experts ? route_rank_of(w, c) : c - r->experts,
                   node = route_node_of(w, rank), to = route_local_of(w, rank);
    uint32_t *said = node == w->node
                         ? route_say(w, to, node)
                         : route_words(w, r->railing + node * r->rail_pitch) + to * r->said_words;
    said[c < r->experts ? c - rank * r->rank_experts : tokens] = count;
    if (c >= r->experts && node == w->node) {
        route_words(w, r->push_first)[node * t->gpus + to] = 0;
        route_words(w, r->push_count)[node * t->gpus + to] = count;
    }
}

/* Behind the counts of a part's runs: those of the parts before. */
PTX_FN uint32_t *route_before(const struct route_walk *w)
{
    const struct mk_route *r = w->r;
    return w->words +
           MK_ROUTE_WARPS * (r->known.counters + (uint32_t)mk_route_marks(&r->topo, r->experts));
}

/* What all parts have counted: a thread adds up a counter. */
PTX_FN void route_add_up(const struct mk_cta *cta, const struct route_walk *w)
{
    const struct mk_route *r = w->r;
    const uint32_t counters = r->known.counters;
    uint32_t *before = route_before(w);
#pragma unroll 1
    for (uint32_t c = cta_lane(cta); c < counters; c += cta->lanes) {
        const uint32_t *scratch = route_words(w, r->scratch) + c;
        uint32_t sum = 0, next = 0;
#pragma unroll 1
        for (uint32_t first = 0; first < r->parts; first += ROUTE_COUNTS_AHEAD) {
            uint32_t n[ROUTE_COUNTS_AHEAD];
#pragma unroll
            for (uint32_t j = 0; j < ROUTE_COUNTS_AHEAD; j++)
                n[j] = first + j < r->parts ? scratch[(first + j) * counters] : 0;
#pragma unroll
            for (uint32_t j = 0; j < ROUTE_COUNTS_AHEAD; j++) {
                next += first + j < r->part ? n[j] : 0;
                sum += n[j];
            }
        }
        before[c] = next;
        if (c % r->parts == r->part)
            route_say_count(w, c, sum);
    }
    __syncthreads();
}

/* Places, noted with numbers within their run, which those of the part's runs before and of the parts
 * before add to. */
PTX_FN void route_place_run(const struct route_walk *w, const struct route_run *run)
{
    const struct mk_route *r = w->r;
    const struct mk_topo *t = &r->topo;
    const struct route_lane l = route_lane_of(r);
    const uint32_t *before = route_before(w), ranks = r->experts, nodes = ranks + w->world;
#pragma unroll 1
    for (uint32_t first = run->first; first < run->end; first += l.tokens) {
        const uint32_t token = first + l.token, in_run = (token - run->first) * r->k + l.place;
        const uint64_t at = (uint64_t)token * r->k + l.place;
        const bool there = l.token < l.tokens && token < run->end;
        uint4 record = there ? run->notes[in_run] : make_uint4(ROUTE_NONE, 0, ROUTE_NONE, 0);
        const bool is = record.x != ROUTE_NONE;
        const uint32_t rank = is ? route_rank_of(w, record.x) : 0, node = route_node_of(w, rank);
        uint4 *to = nullptr;
        record.y = is ? record.y + before[record.x] + run->counts[record.x] : 0;
        record.w = is ? record.w : 0;
        if (record.z != ROUTE_NONE) {
            record.z += before[ranks + rank] + run->counts[ranks + rank];
            if (node == w->node)
                to = route_push(w, route_local_of(w, rank), record.z, token);
        }
        if (t->nodes > 1 && is && route_words(w, r->sent_at)[at] != ROUTE_NONE) {
            uint32_t *sent_at = &route_words(w, r->sent_at)[at];
            const uint32_t number = *sent_at + before[nodes + node] + run->counts[nodes + node];
            *sent_at = number;
            if (number < r->relay_room) {
                route_words(w, r->sent)[(uint64_t)node * r->relay_room + number] = token;
                to = route_records(w, r->railing + node * r->rail_pitch + r->rail_head) +
                     (uint64_t)number * r->k;
            }
        }
        if (there)
            route_records(w, r->records)[at] = record;
        route_hand_on(r, &l, there, record, to);
    }
}

PTX_FN void route_place(const struct mk_cta *cta, const struct route_walk *w)
{
    const struct route_run run = route_run_of(cta, w, cta_lane(cta) / 32);
    route_add_up(cta, w);
    route_place_run(w, &run);
}

/* ---- handing on what the rail brings ---- */

PTX_FN const uint32_t *route_railed(const struct route_walk *w, uint32_t node)
{
    return route_words(w, w->r->railed + node * w->r->rail_pitch);
}

/* By distance of nodes: first[gpus][nodes], where each node's tokens begin among those for a local
 * rank; groups[nodes], of lanes' tokens, and all of them. */
struct route_rails {
    uint32_t *first, *groups, all;
};

PTX_FN struct route_rails route_find_rails(const struct mk_cta *cta, const struct route_walk *w)
{
    const struct mk_route *r = w->r;
    const struct mk_topo *t = &r->topo;
    const struct route_lane l = route_lane_of(r);
    struct route_rails rails = {w->words, w->words + w->world, 0};
#pragma unroll 1
    for (uint32_t i = cta_lane(cta); i < w->world; i += cta->lanes) {
        const uint32_t to = i / t->nodes, distance = i % t->nodes, node = route_behind(w, distance);
        const uint32_t *said = route_railed(w, node) + to * r->said_words + r->rank_experts;
        rails.first[i] =
            distance ? said[MK_SAID_TOKENS] : route_words(w, r->push_count)[w->node * t->gpus + to];
        if (to != w->local)
            continue;
        const uint32_t came = distance ? said[MK_SAID_OF_NODE] : 0,
                       room = came < r->relay_room ? came : r->relay_room;
        rails.groups[distance] = (room + l.tokens - 1) / l.tokens;
        if (distance && r->part == 0)
            route_words(w, r->came_count)[node] = came;
    }
    __syncthreads();
#pragma unroll 1
    for (uint32_t to = cta_lane(cta); to <= t->gpus; to += cta->lanes) {
        uint32_t *list = to < t->gpus ? rails.first + to * t->nodes : rails.groups, next = 0;
#pragma unroll 1
        for (uint32_t distance = 0; distance < t->nodes; distance++) {
            const uint32_t n = list[distance], at = route_behind(w, distance) * t->gpus + to;
            if (distance && to < t->gpus && r->part == 0) {
                route_words(w, r->push_first)[at] = next;
                route_words(w, r->push_count)[at] = n;
            }
            list[distance] = next;
            next += n;
        }
        if (to == t->gpus)
            w->scan[0] = next;
    }
    __syncthreads();
    rails.all = w->scan[0];
    return rails;
}

PTX_FN void route_relay(const struct mk_cta *cta, const struct route_walk *w)
{
    const struct mk_route *r = w->r;
    const struct mk_topo *t = &r->topo;
    const struct route_lane l = route_lane_of(r);
    const struct route_rails rails = route_find_rails(cta, w);
    const uint32_t warps = cta->lanes / 32, words = r->said_words;
#pragma unroll 1
    for (uint32_t group = r->part * warps + cta_lane(cta) / 32; group < rails.all;
         group += r->parts * warps) {
        const uint32_t distance = block_find(rails.groups, t->nodes, group),
                       node = route_behind(w, distance),
                       number = (group - rails.groups[distance]) * l.tokens + l.token,
                       came = route_railed(w, node)[r->rank_experts + MK_SAID_OF_NODE];
        const bool there = l.token < l.tokens && number < came && number < r->relay_room;
        const uint4 record =
            there
                ? ptx_load_16_l2(route_records(w, r->railed + node * r->rail_pitch + r->rail_head) +
                                 (uint64_t)number * r->k + l.place)
                : make_uint4(ROUTE_NONE, 0, ROUTE_NONE, 0);
        const uint32_t rank = record.x == ROUTE_NONE ? 0 : record.x / r->rank_experts,
                       local = mk_local_of(t, rank);
        uint4 *to = nullptr;
        if (record.x != ROUTE_NONE && record.z != ROUTE_NONE && mk_node_of(t, rank) == w->node &&
            local != w->local)
            to = route_push(w, local, rails.first[local * t->nodes + distance] + record.z, number);
        route_hand_on(r, &l, there, record, to);
    }
#pragma unroll 1
    for (uint32_t i = r->part * cta->lanes + cta_lane(cta); i < w->world * words;
         i += r->parts * cta->lanes) {
        const uint32_t rank = i / words, to = mk_local_of(t, rank), node = mk_node_of(t, rank);
        if (node != w->node)
            route_say(w, to, node)[i % words] = route_railed(w, node)[to * words + i % words];
    }
}
