#include "sim/route.h"

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

/* `count` places of `rank`, from first_place on, take the next rows of their experts. */
static void route_assign(const struct mk_route *r, uint8_t *heap, uint32_t rank,
                         uint64_t first_place, uint64_t count)
{
    uint32_t *rows = route_words(heap, r->rows), *first = route_words(heap, r->first),
             *position = route_words(heap, r->position) + rank * (uint64_t)r->tokens * r->k;
    for (uint64_t i = first_place; i < first_place + count; i++) {
        uint32_t expert = route_expert_of(r, heap, rank, i);
        position[i] = expert == UINT32_MAX ? UINT32_MAX : first[expert] + rows[expert]++;
    }
}

static void route_assign_all(const struct mk_route *r, uint8_t *heap)
{
    uint32_t chunk_rows = r->chunk_rows ? r->chunk_rows : r->tokens;
    /* counted up again on the way */
    memset(route_words(heap, r->rows), 0, r->experts * sizeof(uint32_t));
    for (uint32_t node = 0; node < r->topo.nodes; node++)
        for (uint32_t token = 0; token < r->tokens; token += chunk_rows)
            for (uint32_t local = 0; local < r->topo.gpus; local++) {
                uint32_t tokens = r->tokens - token < chunk_rows ? r->tokens - token : chunk_rows;
                route_assign(r, heap, mk_rank_at(&r->topo, node, local), (uint64_t)token * r->k,
                             (uint64_t)tokens * r->k);
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

/* How often a token of `rank` names an expert on `node`. */
static uint32_t route_names(const struct mk_route *r, uint8_t *heap, uint32_t rank, uint32_t token,
                            uint32_t node)
{
    uint32_t count = 0;
    for (uint32_t place = 0; place < r->k; place++) {
        uint32_t expert = route_expert_of(r, heap, rank, (uint64_t)token * r->k + place);
        count += expert != UINT32_MAX && expert / (r->rank_experts * r->topo.gpus) == node;
    }
    return count;
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
        if (route_names(r, heap, rank, token, node))
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

/* What the way back needs: where rows of this rank came from, and how many come for each chunk of
 * the rail's tokens. */
static void route_trace_back(const struct mk_route *r, uint8_t *heap)
{
    uint32_t world = mk_world(&r->topo), node = mk_node_of(&r->topo, r->topo.rank);
    uint32_t *position = route_words(heap, r->position), *origin = route_words(heap, r->origin);
    uint64_t places = (uint64_t)r->tokens * r->k, chunks = mk_ceil_div(r->tokens, r->chunk_rows);
    uint64_t *due = (uint64_t *)(void *)(heap + r->due);
    for (uint32_t rank = 0; rank < world; rank++)
        for (uint64_t i = 0; i < places; i++) {
            uint32_t expert = route_expert_of(r, heap, rank, i);
            if (expert != UINT32_MAX && expert / r->rank_experts == r->topo.rank)
                origin[position[rank * places + i]] = (uint32_t)(rank * places + i);
        }
    for (uint32_t from = 0; from < r->topo.nodes; from++)
        for (uint32_t token = 0; token < r->tokens; token++)
            due[from * chunks + token / r->chunk_rows] += route_names(
                r, heap, mk_rank_at(&r->topo, from, mk_local_of(&r->topo, r->topo.rank)), token,
                node);
}

void route_make(const struct mk_route *r, uint8_t *heap, uint8_t *summary)
{
    uint32_t node = mk_node_of(&r->topo, r->topo.rank), local = mk_local_of(&r->topo, r->topo.rank);
    uint32_t *rows = route_words(heap, r->rows), *first = route_words(heap, r->first),
             *said = route_words(summary, r->summary);
    uint64_t *wanted = (uint64_t *)(void *)(heap + r->wanted);
    route_lay_out(r, heap);
    route_assign_all(r, heap);
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
    if (r->origin)
        route_trace_back(r, heap);
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
