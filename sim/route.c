#include "sim/route.h"
#include "core/base/random.h"

#include "core/ops/moe.h"

#include <stdlib.h>
#include <string.h>

enum { ROUTE_MOST_PLACES = 32 }; /* of a token: op_shape_moe's K */

static uint32_t *route_words(uint8_t *heap, uint64_t offset)
{
    return (uint32_t *)(void *)(heap + offset);
}

uint64_t route_keep(const struct mk_route *r, const uint32_t *map, const uint32_t *named,
                    uint32_t *kept)
{
    uint32_t *used = calloc(mk_world(&r->topo), sizeof *used);
    uint64_t dropped = 0;
    for (uint64_t i = 0; i < (uint64_t)r->tokens * r->k; i++) {
        const uint32_t expert = mk_route_expert(r, map, named[i]);
        int is = expert < r->experts, keeps = used && is;
        if (keeps && r->quota)
            keeps = used[expert / r->rank_experts]++ < r->quota;
        dropped += is && !keeps;
        kept[i] = is && !keeps ? UINT32_MAX : named[i];
    }
    dropped = used ? dropped : UINT64_MAX;
    free(used);
    return dropped;
}

uint64_t route_keep_plan(const struct mk_plan *plan, const uint32_t *map, uint32_t *ids)
{
    const struct mk_moe *m = &plan->problem.moe;
    const struct mk_route r = {.topo = plan->problem.topo,
                               .tokens = (uint32_t)m->tokens,
                               .k = (uint32_t)m->k,
                               .experts = (uint32_t)m->experts,
                               .logical = (uint32_t)op_logical(&plan->problem),
                               .rank_experts =
                                   (uint32_t)(m->experts / mk_world(&plan->problem.topo)),
                               .quota = (uint32_t)plan_moe_quota(&plan->problem)};
    return r.quota ? route_keep(&r, map, ids, ids) : 0;
}

uint64_t route_find_experts(const struct mk_plan *plan, const uint32_t *map, uint32_t *ids)
{
    const struct mk_moe *m = &plan->problem.moe;
    const struct mk_route r = {.logical = (uint32_t)op_logical(&plan->problem)};
    const uint64_t dropped = route_keep_plan(plan, map, ids);
    for (uint64_t i = 0; i < m->tokens * m->k; i++) {
        const uint32_t expert = mk_route_expert(&r, map, ids[i]);
        ids[i] = expert < m->experts ? expert : UINT32_MAX;
    }
    return dropped;
}

/* What all steps of making tables share. */
struct route_maker {
    const struct mk_route *r;
    uint8_t *heap;
    const uint32_t *ids;
    const float *weights;
    struct mk_route_head *head;
    uint32_t node, local; /* of this rank */
    /* PLACE: [experts], [W], [nodes]: next numbers */
    uint32_t *rows, *turns, *sent;
    /* LAY_OUT: of each expert; [W][rank_experts]: the rows of ranks before */
    struct mk_route_rows *of;
    uint32_t *base;
};

static struct mk_route_record *route_records(const struct route_maker *m, uint64_t offset)
{
    return (struct mk_route_record *)(void *)(m->heap + offset);
}

/* What is said to local rank `to` of a node's tokens: for this rank, where others would have it. */
static uint32_t *route_say(const struct route_maker *m, uint32_t to, uint32_t node)
{
    const struct mk_route *r = m->r;
    return route_words(m->heap, to == m->local ? r->said : r->say) +
           ((uint64_t)to * r->topo.nodes + node) * r->said_words;
}

/* ---- what this rank says ---- */

/* Whether no place before names an expert of the same `size` ones. */
static int route_is_first(const struct mk_route *r, const uint32_t *named, uint32_t place,
                          uint32_t size)
{
    for (uint32_t i = 0; i < place; i++)
        if (named[i] < r->experts && named[i] / size == named[place] / size)
            return 0;
    return 1;
}

/* A token, number `at` of those for local rank `to` of all nodes' that this rank hands on;
 * `number`: which it is here. */
static void route_hand_on(const struct route_maker *m, uint32_t to, uint32_t at, uint32_t number,
                          const struct mk_route_record *records)
{
    const struct mk_route *r = m->r;
    uint64_t place = (uint64_t)to * r->landed_room + at;
    if (at >= r->landed_room)
        return;
    route_words(m->heap, r->push)[place] = number;
    memcpy(route_records(m, r->telling) + place * r->k, records, r->k * sizeof *records);
}

static void route_own_place(const struct route_maker *m, const uint32_t *named, uint32_t token,
                            uint32_t place)
{
    const struct mk_route *r = m->r;
    const uint32_t expert = named[place];
    const uint64_t at = (uint64_t)token * r->k + place;
    struct mk_route_record *record = route_records(m, r->records) + at;
    *record = (struct mk_route_record){UINT32_MAX, 0, UINT32_MAX, 0};
    if (r->topo.nodes > 1)
        route_words(m->heap, r->sent_at)[at] = UINT32_MAX;
    if (expert >= r->experts)
        return;
    const uint32_t rank = expert / r->rank_experts, node = mk_node_of(&r->topo, rank);
    record->expert = expert;
    record->row = m->rows[expert]++;
    record->weight = m->weights ? m->weights[at] : 0;
    if (route_is_first(r, named, place, r->rank_experts)) {
        uint32_t turn = m->turns[rank]++;
        record->turn = rank == r->topo.rank ? UINT32_MAX : turn;
    }
    if (node == m->node || !route_is_first(r, named, place, r->rank_experts * r->topo.gpus))
        return;
    route_words(m->heap, r->sent_at)[at] = m->sent[node]++;
}

/* A token whose records are made, to the ranks of this node that it goes to. */
static void route_own_token(const struct route_maker *m, uint32_t token)
{
    const struct mk_route *r = m->r;
    const struct mk_route_record *records = route_records(m, r->records) + (uint64_t)token * r->k;
    for (uint32_t place = 0; place < r->k; place++) {
        const uint32_t rank = records[place].expert / r->rank_experts;
        if (records[place].expert != UINT32_MAX && records[place].turn != UINT32_MAX &&
            mk_node_of(&r->topo, rank) == m->node)
            route_hand_on(m, mk_local_of(&r->topo, rank), records[place].turn, token, records);
    }
}

/* ... to another node, where it is number `at`. */
static void route_send(const struct route_maker *m, uint32_t token, uint32_t node, uint32_t at)
{
    const struct mk_route *r = m->r;
    if (at >= r->relay_room)
        return;
    route_words(m->heap, r->sent)[(uint64_t)node * r->relay_room + at] = token;
    memcpy(route_records(m, r->railing + node * r->rail_pitch + r->rail_head) + (uint64_t)at * r->k,
           route_records(m, r->records) + (uint64_t)token * r->k,
           r->k * sizeof(struct mk_route_record));
}

/* What a rank of any node is told: words. */
static void route_say_counts(const struct route_maker *m, uint32_t rank)
{
    const struct mk_route *r = m->r;
    const uint32_t node = mk_node_of(&r->topo, rank), to = mk_local_of(&r->topo, rank);
    uint32_t *said = node == m->node ? route_say(m, to, node)
                                     : route_words(m->heap, r->railing + node * r->rail_pitch) +
                                           to * r->said_words;
    memcpy(said, m->rows + (uint64_t)rank * r->rank_experts, r->rank_experts * sizeof *said);
    said[r->rank_experts + MK_SAID_TOKENS] = m->turns[rank];
    said[r->rank_experts + MK_SAID_OF_NODE] = m->sent[node];
}

static void route_place(const struct route_maker *m)
{
    const struct mk_route *r = m->r;
    const struct mk_topo *t = &r->topo;
    const uint32_t each = r->rank_experts * t->gpus;
    for (uint32_t token = 0; token < r->tokens; token++) {
        uint32_t named[ROUTE_MOST_PLACES];
        for (uint32_t place = 0; place < r->k; place++)
            named[place] = mk_route_expert(r, route_words(m->heap, r->map),
                                           m->ids[(uint64_t)token * r->k + place]);
        for (uint32_t place = 0; place < r->k; place++)
            route_own_place(m, named, token, place);
        route_own_token(m, token);
        for (uint32_t place = 0; place < r->k; place++)
            if (named[place] < r->experts && named[place] / each != m->node &&
                route_is_first(r, named, place, each))
                route_send(m, token, named[place] / each, m->sent[named[place] / each] - 1);
    }
    for (uint32_t rank = 0; rank < mk_world(t); rank++)
        route_say_counts(m, rank);
    for (uint32_t to = 0; to < t->gpus; to++) {
        route_words(m->heap, r->push_first)[m->node * t->gpus + to] = 0;
        route_words(m->heap, r->push_count)[m->node * t->gpus + to] =
            m->turns[mk_rank_at(t, m->node, to)];
    }
    memcpy(route_words(m->heap, r->sent_count), m->sent, t->nodes * sizeof *m->sent);
}

/* What this rail's rank of `node` says to this node. */
static void route_relay_node(const struct route_maker *m, uint32_t node, uint32_t before)
{
    const struct mk_route *r = m->r;
    const struct mk_topo *t = &r->topo;
    const uint32_t *railed = route_words(m->heap, r->railed + node * r->rail_pitch);
    uint32_t *first = route_words(m->heap, r->push_first), came = 0;
    for (uint32_t to = 0; to < t->gpus; to++) {
        const uint32_t *said = railed + to * r->said_words, at = node * t->gpus + to;
        memcpy(route_say(m, to, node), said, r->said_words * sizeof *said);
        first[at] = first[before * t->gpus + to] +
                    route_words(m->heap, r->push_count)[before * t->gpus + to];
        route_words(m->heap, r->push_count)[at] = said[r->rank_experts + MK_SAID_TOKENS];
        came = said[r->rank_experts + MK_SAID_OF_NODE];
    }
    route_words(m->heap, r->came_count)[node] = came;
    for (uint32_t i = 0; i < came && i < r->relay_room; i++) {
        const struct mk_route_record *records =
            route_records(m, r->railed + node * r->rail_pitch + r->rail_head) + (uint64_t)i * r->k;
        for (uint32_t place = 0; place < r->k; place++) {
            const uint32_t rank = records[place].expert / r->rank_experts,
                           to = mk_local_of(t, rank);
            if (records[place].expert != UINT32_MAX && records[place].turn != UINT32_MAX &&
                mk_node_of(t, rank) == m->node && to != m->local)
                route_hand_on(m, to, first[node * t->gpus + to] + records[place].turn, i, records);
        }
    }
}

static void route_relay(const struct route_maker *m)
{
    for (uint32_t distance = 1; distance < m->r->topo.nodes; distance++)
        route_relay_node(m, mk_route_behind(&m->r->topo, distance),
                         mk_route_behind(&m->r->topo, distance - 1));
}

/* ---- what comes here ---- */

static const uint32_t *route_said(const struct route_maker *m, uint32_t rank)
{
    const struct mk_route *r = m->r;
    const struct mk_topo *t = &r->topo;
    return route_words(m->heap, r->said) +
           ((uint64_t)mk_local_of(t, rank) * t->nodes + mk_node_of(t, rank)) * r->said_words;
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
static void route_lay_out_rows(const struct route_maker *m)
{
    const struct mk_route *r = m->r;
    const uint32_t own = r->topo.rank;
    uint32_t *first = route_words(m->heap, r->first), *rows = route_words(m->heap, r->rows);
    uint64_t all = 0, at = 0;
    memset(rows, 0, r->rank_experts * sizeof *rows);
    for (uint32_t rank = 0; rank < mk_world(&r->topo); rank++)
        for (uint32_t e = 0; e < r->rank_experts; e++) {
            struct mk_route_rows *of = &m->of[e];
            m->base[(uint64_t)rank * r->rank_experts + e] = rows[e];
            if (rank == m->node * r->topo.gpus)
                of->node_begin = rows[e];
            if (rank == own)
                of->rank_begin = rows[e];
            rows[e] += route_said(m, rank)[e];
            if (rank == own)
                of->rank_end = rows[e];
            if (rank == (m->node + 1) * r->topo.gpus - 1)
                of->node_end = rows[e];
        }
    for (uint32_t e = 0; e < r->rank_experts; e++) {
        m->of[e].rows = rows[e];
        first[e] = (uint32_t)at;
        at += mk_round_up(rows[e], r->tile_rows);
        all += rows[e];
    }
    route_overflow(m, MK_OVER_ROWS, own, all, r->capacity);
}

/* Where the tokens begin that the node's others bring; and whether all lists have room. */
static void route_lay_out_lists(const struct route_maker *m)
{
    const struct mk_route *r = m->r;
    const struct mk_topo *t = &r->topo;
    const uint32_t last = mk_route_behind(t, t->nodes - 1) * t->gpus;
    for (uint32_t local = 0; local < t->gpus; local++) {
        uint64_t at = 0, pushed = (uint64_t)route_words(m->heap, r->push_first)[last + local] +
                                  route_words(m->heap, r->push_count)[last + local];
        if (local == m->local)
            continue;
        for (uint32_t distance = 0; distance < t->nodes; distance++) {
            uint32_t rank = mk_rank_at(t, mk_route_behind(t, distance), local),
                     count = route_said(m, rank)[r->rank_experts + MK_SAID_TOKENS];
            route_words(m->heap, r->landed_first)[rank] = (uint32_t)at;
            route_words(m->heap, r->landed_count)[rank] = count;
            at += count;
        }
        route_overflow(m, MK_OVER_LANDED, mk_rank_at(t, m->node, local), pushed, r->landed_room);
        route_overflow(m, MK_OVER_LANDED, t->rank, at, r->landed_room);
    }
    for (uint32_t node = 0; node < t->nodes; node++) {
        if (node == m->node)
            continue;
        route_overflow(m, MK_OVER_RELAYED, mk_rank_at(t, node, m->local),
                       route_words(m->heap, r->sent_count)[node], r->relay_room);
        route_overflow(m, MK_OVER_RELAYED, t->rank, route_words(m->heap, r->came_count)[node],
                       r->relay_room);
    }
}

/* The rows of a list of tokens of one rank, of which the first lies here as `source`. */
static void route_lay_out_list(const struct route_maker *m, uint32_t rank, uint32_t source,
                               const struct mk_route_record *records, uint32_t count)
{
    const struct mk_route *r = m->r;
    uint64_t *awaited = (uint64_t *)(void *)(m->heap + r->awaited);
    uint32_t *position = route_words(m->heap, r->position) + (uint64_t)source * r->k;
    for (uint64_t i = 0; i < (uint64_t)count * r->k; i++) {
        const uint32_t e = records[i].expert - r->topo.rank * r->rank_experts;
        position[i] = UINT32_MAX;
        if (records[i].expert == UINT32_MAX || e >= r->rank_experts)
            continue;
        position[i] = route_words(m->heap, r->first)[e] +
                      m->base[(uint64_t)rank * r->rank_experts + e] + records[i].row;
        if (!r->columns)
            continue;
        route_words(m->heap, r->source)[position[i]] = source + (uint32_t)(i / r->k);
        awaited[position[i] / r->tile_rows] += rank != r->topo.rank;
    }
}

static void route_lay_out_tokens(const struct route_maker *m)
{
    const struct mk_route *r = m->r;
    const struct mk_topo *t = &r->topo;
    for (uint32_t rank = 0; rank < mk_world(t); rank++) {
        const uint32_t node = mk_node_of(t, rank);
        uint32_t source, first = 0, count;
        if (rank == t->rank) {
            source = 0;
            count = r->tokens;
        } else if (mk_local_of(t, rank) == m->local) {
            source = mk_route_relayed(r, node);
            count = route_words(m->heap, r->came_count)[node];
        } else {
            first = route_words(m->heap, r->landed_first)[rank];
            source = mk_route_landed(r, rank, first);
            count = route_words(m->heap, r->landed_count)[rank];
        }
        route_lay_out_list(m, rank, source, route_records(m, mk_route_records(r, source)), count);
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
        const uint32_t last = mk_route_last(r);
        head->count = stages.rows * (r->columns + r->down);
        head->apart = last < mk_route_stretches(r)
                          ? mk_stage_behind(&stages, begins[last * r->rank_experts])
                          : head->count;
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
        for (uint32_t row = 0; r->columns && row < rows[e]; row += r->tile_rows)
            wanted[(first[e] + row) / r->tile_rows] +=
                rows[e] - row < r->tile_rows ? rows[e] - row : r->tile_rows;
    }
}

static void route_lay_out(const struct route_maker *m, uint8_t *summary)
{
    m->head->over = MK_OVER_NOTHING;
    route_lay_out_rows(m);
    if (!m->head->over)
        route_lay_out_lists(m);
    if (m->head->over)
        return;
    route_lay_out_tokens(m);
    if (m->r->columns)
        route_order(m);
    route_say_experts(m, summary);
}

void route_make(const struct mk_route *r, uint8_t *heap, const uint32_t *ids, const float *weights,
                uint8_t *summary)
{
    if (r->step == MK_ROUTE_COUNT || r->part) /* the first of them makes all, once all are there */
        return;
    const uint32_t world = mk_world(&r->topo);
    const int places = r->step == MK_ROUTE_PLACE, lays_out = r->step == MK_ROUTE_LAY_OUT;
    struct route_maker m = {
        .r = r,
        .heap = heap,
        .ids = ids,
        .weights = weights,
        .head = (struct mk_route_head *)(void *)(heap + r->order_head),
        .node = mk_node_of(&r->topo, r->topo.rank),
        .local = mk_local_of(&r->topo, r->topo.rank),
        .rows = calloc(places ? r->experts : 1, sizeof *m.rows),
        .turns = calloc(places ? world : 1, sizeof *m.turns),
        .sent = calloc(places ? r->topo.nodes : 1, sizeof *m.sent),
        .of = calloc(lays_out ? r->rank_experts : 1, sizeof *m.of),
        .base = calloc(lays_out ? (size_t)world * r->rank_experts : 1, sizeof *m.base),
    };
    m.head->count = 0; /* without memory: none, and results are wrong */
    if (m.rows && m.turns && m.sent && m.of && m.base) {
        if (places)
            route_place(&m);
        else if (lays_out)
            route_lay_out(&m, summary);
        else
            route_relay(&m);
    }
    free(m.rows);
    free(m.turns);
    free(m.sent);
    free(m.of);
    free(m.base);
}

void route_draw_token(uint64_t key, uint64_t token, uint32_t k, uint32_t used, uint32_t *ids)
{
    const uint64_t bits = mk_hash(key ^ token);
    uint64_t step = 1 + (bits >> 32) % 7;
    if (used % step == 0 || k * step > used) /* a token names an expert once */
        step = 1;
    for (uint32_t place = 0; place < k; place++)
        ids[place] = (uint32_t)((bits % used + place * step) % used);
}

void route_hand_over(const struct mk_route *r, uint8_t *(*heap_of)(void *context, uint32_t rank),
                     void *context)
{
    const struct mk_topo *t = &r->topo;
    const uint32_t node = mk_node_of(t, t->rank), local = mk_local_of(t, t->rank);
    const uint64_t record = r->k * sizeof(struct mk_route_record),
                   said = (uint64_t)t->nodes * r->said_words * 4;
    uint8_t *own = heap_of(context, t->rank);
    for (uint32_t to = 0; to < t->nodes && r->step == MK_ROUTE_PLACE; to++) {
        uint32_t count = route_words(own, r->sent_count)[to];
        if (to != node)
            memcpy(heap_of(context, mk_rank_at(t, to, local)) + r->railed + node * r->rail_pitch,
                   own + r->railing + to * r->rail_pitch,
                   r->rail_head + (count < r->relay_room ? count : r->relay_room) * record);
    }
    if (r->step == MK_ROUTE_PLACE && t->nodes > 1)
        return;
    for (uint32_t to = 0; to < t->gpus; to++) {
        uint32_t at = mk_route_behind(t, t->nodes - 1) * t->gpus + to,
                 count = route_words(own, r->push_first)[at] + route_words(own, r->push_count)[at];
        uint8_t *heap = heap_of(context, mk_rank_at(t, node, to));
        if (to == local)
            continue;
        memcpy(heap + r->landed_records + (uint64_t)local * r->landed_room * record,
               own + r->telling + (uint64_t)to * r->landed_room * record,
               (count < r->landed_room ? count : r->landed_room) * record);
        memcpy(heap + r->said + local * said, own + r->say + to * said, said);
    }
}
