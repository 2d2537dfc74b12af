#include "sim/route.h"

#include <stdlib.h>
#include <string.h>

static uint32_t *route_words(uint8_t *heap, uint64_t offset)
{
    return (uint32_t *)(void *)(heap + offset);
}

/* The experts that one place of a token names, or UINT32_MAX. */
static uint32_t route_expert_of(const struct mk_route *r, uint8_t *heap, uint32_t rank,
                                uint64_t place)
{
    uint32_t expert = route_words(heap, r->ids + rank * r->ids_pitch)[place];
    return expert < r->experts ? expert : UINT32_MAX;
}

/* How many rows each expert has, then where they begin. */
static void route_lay_out(const struct mk_route *r, uint8_t *heap)
{
    uint32_t *rows = route_words(heap, r->rows), *first = route_words(heap, r->first);
    uint64_t places = (uint64_t)r->tokens * r->k;
    memset(rows, 0, r->experts * sizeof *rows);
    for (uint32_t rank = 0; rank < mk_world(&r->topo); rank++)
        for (uint64_t i = 0; i < places; i++) {
            uint32_t expert = route_expert_of(r, heap, rank, i);
            if (expert != UINT32_MAX)
                rows[expert]++;
        }
    for (uint32_t expert = 0; expert < r->experts; expert++)
        first[expert] =
            expert % r->rank_experts
                ? first[expert - 1] + (uint32_t)mk_round_up(rows[expert - 1], r->tile_rows)
                : 0;
}

/* Places take the next rows of their experts. */
static void route_assign(const struct mk_route *r, uint8_t *heap)
{
    uint32_t *rows = route_words(heap, r->rows), *first = route_words(heap, r->first);
    uint64_t places = (uint64_t)r->tokens * r->k;
    memset(rows, 0, r->experts * sizeof *rows); /* counted up again on the way */
    for (uint32_t rank = 0; rank < mk_world(&r->topo); rank++) {
        uint32_t *position = route_words(heap, r->position) + rank * places;
        for (uint64_t i = 0; i < places; i++) {
            uint32_t expert = route_expert_of(r, heap, rank, i);
            position[i] = expert == UINT32_MAX ? UINT32_MAX : first[expert] + rows[expert]++;
            if (expert != UINT32_MAX && expert / r->rank_experts != r->topo.rank)
                position[i] = UINT32_MAX; /* for its rank to know */
        }
    }
}

/* Rows of this rank's experts by the node that they come from: counted in the entry behind, then
 * added up. */
static void route_divide(const struct mk_route *r, uint8_t *heap)
{
    uint32_t *node_rows = route_words(heap, r->node_rows), entries = r->topo.nodes + 1;
    uint64_t places = (uint64_t)r->tokens * r->k;
    memset(node_rows, 0, (uint64_t)r->rank_experts * entries * sizeof *node_rows);
    for (uint32_t rank = 0; rank < mk_world(&r->topo); rank++)
        for (uint64_t i = 0; i < places; i++) {
            uint32_t expert = route_expert_of(r, heap, rank, i),
                     first = r->topo.rank * r->rank_experts;
            if (expert >= first && expert < first + r->rank_experts)
                node_rows[(expert - first) * entries + mk_node_of(&r->topo, rank) + 1]++;
        }
    for (uint32_t i = 0; i < r->rank_experts; i++)
        for (uint32_t node = 1; node < entries; node++)
            node_rows[i * entries + node] += node_rows[i * entries + node - 1];
}

/* How often a token of `rank` names one of `count` experts from `first` on. */
static uint32_t route_names(const struct mk_route *r, uint8_t *heap, uint32_t rank, uint32_t token,
                            uint32_t first, uint32_t count)
{
    uint32_t names = 0;
    for (uint32_t place = 0; place < r->k; place++) {
        uint32_t expert = route_expert_of(r, heap, rank, (uint64_t)token * r->k + place);
        names += expert != UINT32_MAX && expert >= first && expert - first < count;
    }
    return names;
}

static uint32_t route_names_node(const struct mk_route *r, uint8_t *heap, uint32_t rank,
                                 uint32_t token, uint32_t node)
{
    uint32_t count = r->rank_experts * r->topo.gpus;
    return route_names(r, heap, rank, token, node * count, count);
}

/* Tokens of `rank` that have an expert on `node` and, unless it is 0, the table of how many come
 * before each; returns how many. */
static uint32_t route_list(const struct mk_route *r, uint8_t *heap, uint32_t rank, uint32_t node,
                           uint32_t *out, uint32_t *before)
{
    uint32_t count = 0;
    for (uint32_t token = 0; token < r->tokens; token++) {
        if (before)
            before[token] = count;
        if (route_names_node(r, heap, rank, token, node))
            out[count++] = token;
    }
    if (before)
        before[r->tokens] = count;
    return count;
}

static uint32_t *route_before_of(const struct mk_route *r, uint8_t *heap, uint64_t table,
                                 uint32_t node)
{
    return table ? route_words(heap, table) + (uint64_t)node * (r->tokens + 1) : NULL;
}

/* Tokens of `rank` that have an expert on rank `to`, those of `listed` (NULL: of all of them), by
 * their places there; returns how many. */
static uint32_t route_push(const struct mk_route *r, uint8_t *heap, uint32_t rank, uint32_t to,
                           const uint32_t *listed, uint32_t count, uint32_t *out)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < count; i++)
        if (route_names(r, heap, rank, listed ? listed[i] : i, to * r->rank_experts,
                        r->rank_experts))
            out[n++] = i;
    return n;
}

/* What this rank hands on in its node, and what others hand on to it. */
static void route_hand_on(const struct mk_route *r, uint8_t *heap)
{
    uint32_t own_node = mk_node_of(&r->topo, r->topo.rank),
             local = mk_local_of(&r->topo, r->topo.rank), gpus = r->topo.gpus;
    for (uint32_t node = 0; node < r->topo.nodes; node++) {
        uint32_t rank = mk_rank_at(&r->topo, node, local);
        const uint32_t *came =
            node == own_node ? NULL : route_words(heap, r->came) + (uint64_t)node * r->tokens;
        uint32_t count = came ? route_words(heap, r->came_count)[node] : r->tokens;
        for (uint32_t to = 0; to < gpus; to++) {
            uint32_t other = mk_rank_at(&r->topo, node, to);
            if (to == local)
                continue;
            route_words(heap, r->push_count)[node * gpus + to] =
                route_push(r, heap, rank, mk_rank_at(&r->topo, own_node, to), came, count,
                           route_words(heap, r->push) + ((uint64_t)node * gpus + to) * r->tokens);
            route_words(heap, r->landed_count)[other] =
                route_push(r, heap, other, r->topo.rank, NULL, r->tokens,
                           route_words(heap, r->landed) + (uint64_t)other * r->tokens);
        }
    }
}

/* Token `token` of `rank` lies here as `source`. */
static void route_say_source(const struct mk_route *r, uint8_t *heap, uint32_t rank, uint32_t token,
                             uint32_t source)
{
    const uint32_t *position =
        route_words(heap, r->position) + ((uint64_t)rank * r->tokens + token) * r->k;
    uint64_t *awaited = (uint64_t *)(void *)(heap + r->awaited);
    for (uint32_t place = 0; place < r->k; place++)
        if (position[place] != UINT32_MAX) {
            route_words(heap, r->source)[position[place]] = source;
            awaited[position[place] / r->tile_rows] += rank != r->topo.rank;
        }
}

/* Where the tokens of rows lie. */
static void route_find_sources(const struct mk_route *r, uint8_t *heap)
{
    uint32_t local = mk_local_of(&r->topo, r->topo.rank);
    for (uint32_t rank = 0; rank < mk_world(&r->topo); rank++) {
        uint32_t node = mk_node_of(&r->topo, rank);
        int own = rank == r->topo.rank, rail = mk_local_of(&r->topo, rank) == local;
        const uint32_t *list = own    ? NULL
                               : rail ? route_words(heap, r->came) + (uint64_t)node * r->tokens
                                      : route_words(heap, r->landed) + (uint64_t)rank * r->tokens;
        uint32_t count = own    ? r->tokens
                         : rail ? route_words(heap, r->came_count)[node]
                                : route_words(heap, r->landed_count)[rank];
        uint32_t base = own    ? 0
                        : rail ? r->relay_source + node * r->room
                               : r->landed_source + rank * r->room;
        for (uint32_t i = 0; i < count; i++)
            route_say_source(r, heap, rank, list ? list[i] : i, base + i);
    }
}

/* Where rows of this rank's expert `expert` come from. */
static struct mk_route_rows route_rows_of(const struct mk_route *r, uint8_t *heap, uint32_t expert)
{
    const uint32_t *from = route_words(heap, r->node_rows) + (uint64_t)expert * (r->topo.nodes + 1);
    uint32_t node = mk_node_of(&r->topo, r->topo.rank);
    struct mk_route_rows e = {from[r->topo.nodes], from[node], from[node + 1], from[node],
                              from[node]};
    for (uint32_t rank = node * r->topo.gpus; rank <= r->topo.rank; rank++) {
        uint64_t places = (uint64_t)r->tokens * r->k;
        e.rank_begin = e.rank_end;
        for (uint64_t i = 0; i < places; i++)
            e.rank_end +=
                route_expert_of(r, heap, rank, i) == r->topo.rank * r->rank_experts + expert;
    }
    return e;
}

/* The runs of the order, and where each begins, in rows of tiles; how many these are in all. */
static uint32_t route_runs(const struct mk_route *r, uint8_t *heap, struct mk_tile_run *runs,
                           uint32_t *begins)
{
    const uint32_t *first = route_words(heap, r->first) + r->topo.rank * r->rank_experts;
    uint32_t row_tiles = 0;
    for (uint32_t expert = 0; expert < r->rank_experts; expert++) {
        struct mk_route_rows rows = route_rows_of(r, heap, expert);
        for (uint32_t stretch = 0; stretch < mk_route_stretches(r); stretch++) {
            struct mk_tile_run *run = &runs[stretch * r->rank_experts + expert];
            *run = mk_route_run(r, &rows, expert, stretch);
            run->row = first[expert];
        }
    }
    for (uint32_t i = 0; i < mk_route_stretches(r) * r->rank_experts; i++) {
        begins[i] = row_tiles;
        row_tiles += runs[i].count;
    }
    return row_tiles;
}

static void route_order(const struct mk_route *r, uint8_t *heap)
{
    struct mk_route_head *head = (struct mk_route_head *)(void *)(heap + r->order_head);
    struct mk_tile_entry *order = (struct mk_tile_entry *)(void *)(heap + r->order);
    uint32_t count = mk_route_stretches(r) * r->rank_experts;
    struct mk_tile_run *runs = calloc(count, sizeof *runs);
    uint32_t *begins = calloc(count, sizeof *begins);
    head->count = 0; /* without memory: none, and results are wrong */
    if (runs && begins) {
        struct mk_stages stages = {route_runs(r, heap, runs, begins), r->columns, r->down,
                                   r->group_rows};
        head->count = stages.rows * (r->columns + r->down);
        for (uint32_t t = 0; t < head->count; t++) {
            struct mk_stage at = mk_stage_at(&stages, t);
            uint32_t row = mk_stage_row(&stages, &at), low = 0, high = count - 1;
            while (low < high) { /* the last run that begins at it or before */
                uint32_t middle = (low + high + 1) / 2;
                if (begins[middle] <= row)
                    low = middle;
                else
                    high = middle - 1;
            }
            order[t] = mk_tile_of_stage(&stages, &at, &runs[low], begins[low], r->tile_rows,
                                        r->tile_columns, r->running);
        }
    }
    free(runs);
    free(begins);
}

void route_make(const struct mk_route *r, uint8_t *heap, uint8_t *summary)
{
    if (r->step == MK_ROUTE_COUNT || r->part) /* the first of them makes all, once all are there */
        return;
    uint32_t node = mk_node_of(&r->topo, r->topo.rank), local = mk_local_of(&r->topo, r->topo.rank);
    uint32_t *rows = route_words(heap, r->rows), *first = route_words(heap, r->first),
             *said = route_words(summary, r->summary);
    uint64_t *wanted = (uint64_t *)(void *)(heap + r->wanted);
    route_lay_out(r, heap);
    route_assign(r, heap);
    route_divide(r, heap);
    for (uint32_t other = 0; other < r->topo.nodes; other++) {
        if (other == node)
            continue;
        route_words(heap, r->sent_count)[other] = route_list(
            r, heap, r->topo.rank, other, route_words(heap, r->sent) + (uint64_t)other * r->tokens,
            route_before_of(r, heap, r->sent_before, other));
        route_words(heap, r->came_count)[other] =
            route_list(r, heap, mk_rank_at(&r->topo, other, local), node,
                       route_words(heap, r->came) + (uint64_t)other * r->tokens,
                       route_before_of(r, heap, r->came_before, other));
    }
    route_hand_on(r, heap);
    route_find_sources(r, heap);
    route_order(r, heap);
    for (uint32_t i = 0; i < r->rank_experts; i++) {
        uint32_t expert = r->topo.rank * r->rank_experts + i;
        if (r->summary_space != MK_SPACE_HEAP) {
            said[2 * i] = first[expert];
            said[2 * i + 1] = rows[expert];
        }
        for (uint32_t row = 0; row < rows[expert]; row += r->tile_rows)
            wanted[(first[expert] + row) / r->tile_rows] +=
                rows[expert] - row < r->tile_rows ? rows[expert] - row : r->tile_rows;
    }
}
