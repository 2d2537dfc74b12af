#include "sim/route.h"

#include "core/ops/moe.h"

#include <stdlib.h>
#include <string.h>

static uint32_t *route_words(uint8_t *heap, uint64_t offset)
{
    return (uint32_t *)(void *)(heap + offset);
}

uint64_t route_keep(const struct mk_route *r, const uint32_t *named, uint32_t *kept)
{
    uint32_t *used = calloc(mk_world(&r->topo), sizeof *used);
    uint64_t dropped = 0;
    for (uint64_t i = 0; i < (uint64_t)r->tokens * r->k; i++) {
        int is = named[i] < r->experts, keeps = used && is;
        if (keeps && r->quota)
            keeps = used[named[i] / r->rank_experts]++ < r->quota;
        dropped += is && !keeps;
        kept[i] = is && !keeps ? UINT32_MAX : named[i];
    }
    dropped = used ? dropped : UINT64_MAX;
    free(used);
    return dropped;
}

uint64_t route_keep_plan(const struct mk_plan *plan, uint32_t *ids)
{
    const struct mk_moe *m = &plan->problem.moe;
    const struct mk_route r = {.topo = plan->problem.topo,
                               .tokens = (uint32_t)m->tokens,
                               .k = (uint32_t)m->k,
                               .experts = (uint32_t)m->experts,
                               .rank_experts =
                                   (uint32_t)(m->experts / mk_world(&plan->problem.topo)),
                               .quota = (uint32_t)plan_moe_quota(&plan->problem)};
    return r.quota ? route_keep(&r, ids, ids) : 0;
}

/* What all steps of making tables share. */
struct route_maker {
    const struct mk_route *r;
    uint8_t *heap;
    const uint8_t *ids; /* of rank 0 */
    struct mk_route_head *head;
    struct mk_route_rows *of;  /* [rank_experts] */
    uint32_t *next;            /* [rank_experts]: its next row */
    uint32_t node, local, own; /* of this rank; `own`: its first expert */
    /* of each local rank: tokens pushed to it, and landed from it; of each node, see struct
     * mk_route */
    uint32_t pushed[MK_MAX_LOCAL], landed[MK_MAX_LOCAL];
    uint32_t *sent_count, *came_count;
};

static const uint32_t *route_ids_of(const struct route_maker *m, uint32_t rank)
{
    return (const uint32_t *)(const void *)(m->ids + rank * m->r->ids_pitch);
}

/* The first thing that there is too much of is told. */
static void route_overflow(const struct route_maker *m, enum mk_route_over over, uint32_t rank,
                           uint64_t count, uint32_t room)
{
    if (count <= room || m->head->over)
        return;
    m->head->over = over;
    m->head->over_rank = rank;
    m->head->over_count = (uint32_t)count;
    m->head->over_room = room;
}

/* How many rows each expert has and where they come from, then where they begin. */
static void route_lay_out(const struct route_maker *m)
{
    const struct mk_route *r = m->r;
    uint32_t *first = route_words(m->heap, r->first), *rows = route_words(m->heap, r->rows),
             *node_rows = route_words(m->heap, r->node_rows), entries = r->topo.nodes + 1;
    uint64_t places = (uint64_t)r->tokens * r->k, all = 0, at = 0;
    memset(rows, 0, r->rank_experts * sizeof *rows);
    for (uint32_t rank = 0; rank < mk_world(&r->topo); rank++) {
        const uint32_t *ids = route_ids_of(m, rank);
        uint32_t node = mk_node_of(&r->topo, rank);
        for (uint32_t e = 0; e < r->rank_experts && mk_local_of(&r->topo, rank) == 0; e++)
            node_rows[e * entries + node] = rows[e];
        for (uint32_t e = 0; e < r->rank_experts && rank == r->topo.rank; e++)
            m->of[e].rank_begin = rows[e];
        for (uint64_t i = 0; i < places; i++)
            if (ids[i] - m->own < r->rank_experts && ids[i] < r->experts)
                rows[ids[i] - m->own]++;
        for (uint32_t e = 0; e < r->rank_experts && rank == r->topo.rank; e++)
            m->of[e].rank_end = rows[e];
    }
    for (uint32_t e = 0; e < r->rank_experts; e++) {
        node_rows[e * entries + r->topo.nodes] = m->of[e].rows = rows[e];
        m->of[e].node_begin = node_rows[e * entries + m->node];
        m->of[e].node_end = node_rows[e * entries + m->node + 1];
        first[e] = m->next[e] = (uint32_t)at;
        at += mk_round_up(rows[e], r->tile_rows);
        all += rows[e];
    }
    route_overflow(m, MK_OVER_ROWS, r->topo.rank, all, r->capacity);
}

/* The rows of a token, which lies here as `source`, unless that is UINT32_MAX. */
static void route_place_rows(const struct route_maker *m, const uint32_t *named, uint32_t source,
                             int own)
{
    const struct mk_route *r = m->r;
    uint64_t *awaited = (uint64_t *)(void *)(m->heap + r->awaited);
    uint32_t *position = route_words(m->heap, r->position) + (uint64_t)source * r->k;
    for (uint32_t place = 0; place < r->k && source != UINT32_MAX; place++) {
        uint32_t e = named[place] - m->own;
        position[place] = UINT32_MAX;
        if (e >= r->rank_experts || named[place] >= r->experts)
            continue;
        position[place] = m->next[e]++;
        route_words(m->heap, r->source)[position[place]] = source;
        awaited[position[place] / r->tile_rows] += !own;
    }
}

/* A bit for each local rank of this node that has an expert that the token names. */
static uint32_t route_locals(const struct route_maker *m, const uint32_t *named)
{
    const struct mk_route *r = m->r;
    uint32_t first = m->node * r->topo.gpus * r->rank_experts,
             count = r->topo.gpus * r->rank_experts, locals = 0;
    for (uint32_t place = 0; place < r->k; place++)
        if (named[place] - first < count && named[place] < r->experts)
            locals |= 1u << (named[place] - first) / r->rank_experts;
    return locals;
}

/* A token that this rank hands on to local ranks `locals`; `lies_at`: where it lies among those of
 * its rank here, number `behind` of those that push_before tells of. */
static void route_hand_on(struct route_maker *m, uint32_t locals, uint32_t lies_at, uint32_t behind)
{
    const struct mk_route *r = m->r;
    for (uint32_t to = 0; to < r->topo.gpus; to++) {
        if (to == m->local)
            continue;
        if (r->push_before)
            route_words(m->heap, r->push_before)[(uint64_t)behind * r->topo.gpus + to] =
                m->pushed[to];
        if (!(locals >> to & 1))
            continue;
        if (m->pushed[to] < r->landed_room)
            route_words(m->heap, r->push)[(uint64_t)to * r->landed_room + m->pushed[to]] = lies_at;
        m->pushed[to]++;
    }
}

/* Own token `token` to the other nodes where it has experts. */
static void route_send(struct route_maker *m, const uint32_t *named, uint32_t token)
{
    const struct mk_route *r = m->r;
    uint32_t each = r->topo.gpus * r->rank_experts;
    for (uint32_t node = 0; r->sent_before && node < r->topo.nodes && r->topo.nodes > 1; node++)
        route_words(m->heap, r->sent_before)[(uint64_t)node * (r->tokens + 1) + token] =
            m->sent_count[node];
    for (uint32_t place = 0; place < r->k; place++) {
        uint32_t node = named[place] < r->experts ? named[place] / each : m->node, before = 0;
        while (before < place && (named[before] >= r->experts || named[before] / each != node))
            before++;
        if (node == m->node || before < place)
            continue;
        if (m->sent_count[node] < r->relay_room)
            route_words(m->heap, r->sent)[(uint64_t)node * r->relay_room + m->sent_count[node]] =
                token;
        m->sent_count[node]++;
    }
}

static void route_own_token(struct route_maker *m, const uint32_t *named, uint32_t token)
{
    route_hand_on(m, route_locals(m, named), token, token);
    route_send(m, named, token);
    route_place_rows(m, named, token, 1);
}

/* A token of this rail's rank of node `from`. */
static void route_railed_token(struct route_maker *m, const uint32_t *named, uint32_t from,
                               uint32_t token)
{
    const struct mk_route *r = m->r;
    uint32_t locals = route_locals(m, named), at = m->came_count[from];
    if (!locals)
        return;
    m->came_count[from]++;
    if (at >= r->relay_room)
        return;
    route_words(m->heap, r->came)[(uint64_t)from * r->relay_room + at] = token;
    route_hand_on(m, locals, at, r->room + from * r->relay_room + at);
    route_place_rows(m, named, mk_route_relayed(r, from) + at, 0);
}

/* A token of a rank of another rail. */
static void route_landed_token(struct route_maker *m, const uint32_t *named, uint32_t local,
                               uint32_t token)
{
    const struct mk_route *r = m->r;
    int here = 0;
    for (uint32_t place = 0; place < r->k; place++)
        here |= named[place] - m->own < r->rank_experts && named[place] < r->experts;
    if (!here)
        return;
    uint32_t at = m->landed[local]++;
    if (at >= r->landed_room)
        return;
    route_words(m->heap, r->landed)[(uint64_t)local * r->landed_room + at] = token;
    route_place_rows(m, named, r->landed_source + local * r->landed_room + at, 0);
}

/* All of one rank's tokens. */
static void route_place_rank(struct route_maker *m, uint32_t rank)
{
    const struct mk_route *r = m->r;
    const uint32_t *ids = route_ids_of(m, rank);
    uint32_t node = mk_node_of(&r->topo, rank), local = mk_local_of(&r->topo, rank),
             before = m->landed[local], *push_first = route_words(m->heap, r->push_first),
             *push_count = route_words(m->heap, r->push_count);
    int own = rank == r->topo.rank, rail = local == m->local;
    for (uint32_t to = 0; to < r->topo.gpus && rail; to++)
        push_first[node * r->topo.gpus + to] = m->pushed[to];
    for (uint32_t token = 0; token < r->tokens; token++) {
        const uint32_t *named = ids + (uint64_t)token * r->k;
        if (own)
            route_own_token(m, named, token);
        else if (rail)
            route_railed_token(m, named, node, token);
        else
            route_landed_token(m, named, local, token);
    }
    for (uint32_t to = 0; to < r->topo.gpus && rail; to++)
        push_count[node * r->topo.gpus + to] = m->pushed[to] - push_first[node * r->topo.gpus + to];
    if (!rail) {
        route_words(m->heap, r->landed_first)[rank] = before;
        route_words(m->heap, r->landed_count)[rank] = m->landed[local] - before;
    }
}

/* Lists, rows and where their tokens lie, rank by rank. */
static void route_place(struct route_maker *m)
{
    const struct mk_route *r = m->r;
    const struct mk_topo *t = &r->topo;
    memset(m->sent_count, 0, t->nodes * sizeof *m->sent_count);
    memset(m->came_count, 0, t->nodes * sizeof *m->came_count);
    for (uint32_t rank = 0; rank < mk_world(t); rank++)
        route_place_rank(m, rank);
    for (uint32_t node = 0; node < t->nodes && r->sent_before && t->nodes > 1; node++)
        route_words(m->heap, r->sent_before)[node * (r->tokens + 1ull) + r->tokens] =
            m->sent_count[node];
    for (uint32_t local = 0; local < t->gpus; local++) {
        route_overflow(m, MK_OVER_LANDED, mk_rank_at(t, m->node, local), m->pushed[local],
                       r->landed_room);
        route_overflow(m, MK_OVER_LANDED, t->rank, m->landed[local], r->landed_room);
    }
    for (uint32_t node = 0; node < t->nodes; node++) {
        route_overflow(m, MK_OVER_RELAYED, mk_rank_at(t, node, m->local), m->sent_count[node],
                       r->relay_room);
        route_overflow(m, MK_OVER_RELAYED, t->rank, m->came_count[node], r->relay_room);
    }
}

/* The runs of the order, and where each begins, in rows of tiles; how many these are in all. */
static uint32_t route_runs(const struct route_maker *m, struct mk_tile_run *runs, uint32_t *begins)
{
    const struct mk_route *r = m->r;
    const uint32_t *first = route_words(m->heap, r->first);
    uint32_t row_tiles = 0;
    for (uint32_t i = 0; i < mk_route_stretches(r) * r->rank_experts; i++) {
        uint32_t expert = i % r->rank_experts;
        runs[i] = mk_route_run(r, &m->of[expert], expert, i / r->rank_experts);
        runs[i].row = first[expert];
        begins[i] = row_tiles;
        row_tiles += runs[i].count;
    }
    return row_tiles;
}

static void route_order(const struct route_maker *m)
{
    const struct mk_route *r = m->r;
    struct mk_route_head *head = m->head;
    struct mk_tile_entry *order = (struct mk_tile_entry *)(void *)(m->heap + r->order);
    uint32_t count = mk_route_stretches(r) * r->rank_experts;
    struct mk_tile_run *runs = calloc(count, sizeof *runs);
    uint32_t *begins = calloc(count, sizeof *begins);
    if (runs && begins) {
        struct mk_stages stages = {route_runs(m, runs, begins), r->columns, r->down, r->group_rows};
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

/* What there is to say of each expert. */
static void route_say_experts(const struct route_maker *m, uint8_t *summary)
{
    const struct mk_route *r = m->r;
    uint32_t *rows = route_words(m->heap, r->rows), *first = route_words(m->heap, r->first),
             *said = route_words(summary, r->summary);
    uint64_t *wanted = (uint64_t *)(void *)(m->heap + r->wanted);
    for (uint32_t e = 0; e < r->rank_experts; e++) {
        if (r->summary_space != MK_SPACE_HEAP) {
            said[2 * e] = first[e];
            said[2 * e + 1] = rows[e];
        }
        for (uint32_t row = 0; row < rows[e]; row += r->tile_rows)
            wanted[(first[e] + row) / r->tile_rows] +=
                rows[e] - row < r->tile_rows ? rows[e] - row : r->tile_rows;
    }
}

void route_make(const struct mk_route *r, uint8_t *heap, const uint8_t *ids, uint8_t *summary)
{
    if (r->step == MK_ROUTE_COUNT || r->part) /* the first of them makes all, once all are there */
        return;
    struct route_maker m = {.r = r,
                            .heap = heap,
                            .ids = ids,
                            .head = (struct mk_route_head *)(void *)(heap + r->order_head),
                            .of = calloc(r->rank_experts, sizeof *m.of),
                            .next = calloc(r->rank_experts, sizeof *m.next),
                            .node = mk_node_of(&r->topo, r->topo.rank),
                            .local = mk_local_of(&r->topo, r->topo.rank),
                            .own = r->topo.rank * r->rank_experts,
                            .sent_count = route_words(heap, r->sent_count),
                            .came_count = route_words(heap, r->came_count)};
    m.head->over = MK_OVER_NOTHING;
    m.head->count = 0; /* without memory: none, and results are wrong */
    if (m.of && m.next) {
        route_lay_out(&m);
        if (!m.head->over)
            route_place(&m);
        if (!m.head->over) {
            route_order(&m);
            route_say_experts(&m, summary);
        }
    }
    free(m.of);
    free(m.next);
}
