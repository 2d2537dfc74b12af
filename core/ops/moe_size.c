/* How much room MoE plans have: a rank's tokens, rows and chunks, and the CTAs' parts of tables. */
#include "core/ops/moe_choose.h"
#include "core/base/quantize.h"

#include <math.h>
#include <string.h>

enum { MOE_ALL_FIT = 8 }; /* ranks, at most, that have room for all that can come */

/* Rows of its experts that a rank has room for. On so many ranks, all that can come. Else so many
 * times as come on the average that experts may differ (a rank with few has the more to fear), and
 * six standard deviations of a fair draw, which few tokens need. */
static uint64_t plan_moe_capacity(const struct mk_problem *q)
{
    uint64_t world = mk_world(&q->topo), mean = q->moe.tokens * q->moe.k, all = world * mean,
             times = q->moe.experts / world >= 8 ? 2 : 4,
             some = times * mean + (uint64_t)ceil(6 * sqrt((double)mean)),
             rows = q->own[MOE_CAPACITY]   ? q->own[MOE_CAPACITY]
                    : world <= MOE_ALL_FIT ? all
                                           : some;
    return rows < all ? rows : all;
}

/* Tokens that have room where one of `parts` brings them: its share of the capacity and six
 * standard deviations; no more than it has. A multiple of 8, so that puts begin at 128 bytes. */
static uint64_t plan_moe_share(uint64_t capacity, uint64_t parts, uint64_t most)
{
    double mean = (double)capacity / (double)parts, share = ceil(mean + 6 * sqrt(mean));
    return parts == 1 ? 0 : mk_round_up(share < (double)most ? (uint64_t)share : most, 8);
}

uint64_t plan_moe_quota(const struct mk_problem *q)
{
    uint64_t places = q->moe.tokens * q->moe.k, share = q->own[MOE_CAPACITY] / mk_world(&q->topo);
    return !q->own[MOE_DROPS] ? 0 : q->own[MOE_CAPACITY] && share < places ? share : places;
}

/* How many tokens, and rows, a rank has room for. */
static int plan_size_moe_room(struct moe_dispatch_plan *m, struct mk_problem *q, char *error,
                              size_t size)
{
    struct mk_route *r = &m->route;
    uint64_t world = mk_world(&q->topo), nodes = q->topo.nodes, gpus = q->topo.gpus,
             tokens = q->moe.tokens, all = world * tokens * q->moe.k,
             capacity = plan_moe_capacity(q), room = mk_round_up(tokens, 8);
    int any = capacity == all; /* can come, and has room */
    uint64_t landed = plan_moe_share(any ? world * all : capacity, gpus, nodes * tokens),
             relayed = plan_moe_share(any ? world * all : capacity, nodes, tokens),
             row_tiles = capacity / m->tile_m + m->rank_experts,
             sources = room + gpus * landed + nodes * relayed,
             most = row_tiles * m->tile_m > all ? row_tiles * m->tile_m : all;
    if ((most > sources ? most : sources) >= UINT32_MAX)
        return plan_refuse(error, size,
                           "%lu tokens of %lu ranks, %lu experts of each, room for %lu rows on a "
                           "rank: numbers of rows and of tokens, which would be up to %lu, have 32 "
                           "bits",
                           tokens, world, q->moe.k, capacity, most > sources ? most : sources);
    q->own[MOE_CAPACITY] = any && world <= MOE_ALL_FIT ? 0 : capacity;
    r->capacity = (uint32_t)capacity;
    r->room = r->landed_source = m->room = (uint32_t)room;
    r->landed_room = (uint32_t)landed;
    r->relay_room = (uint32_t)relayed;
    r->relay_source = (uint32_t)(room + gpus * landed);
    m->row_tiles = (uint32_t)row_tiles;
    if (q->own[MOE_DROPS] && capacity < world)
        return plan_refuse(error, size,
                           "capacity=%lu with overflow=drop: each of %lu ranks has a share of it; "
                           "the next that works is %lu",
                           capacity, world, world);
    r->quota = (uint32_t)plan_moe_quota(q);
    return 0;
}

int plan_size_moe(const struct op_descriptor *op, struct moe_dispatch_plan *m, struct mk_plan *p,
                  enum mk_space ids, enum mk_space weights, char *error, size_t size)
{
    struct mk_problem *q = &p->problem;
    struct mk_route *r = &m->route;
    uint64_t world = mk_world(&q->topo);
    m->topo = q->topo;
    m->tokens = (uint32_t)q->moe.tokens;
    m->experts = (uint32_t)q->moe.experts;
    m->k = (uint32_t)q->moe.k;
    m->rank_experts = (uint32_t)(m->experts / world);
    m->slices = q->topo.nodes > 1 ? 2 : 0;
    m->tile_m = q->tuning.tile_m;
    m->chunk_rows = q->tuning.chunk_rows;
    m->chunks = (uint32_t)mk_ceil_div(m->tokens, m->chunk_rows);
    m->row_bytes = q->fp8 ? quantize_record(q->moe.hidden) : q->moe.hidden * 2;
    m->record_bytes = m->k * (uint64_t)sizeof(struct mk_route_record);
    m->routers = plan_moe_routers(q);
    m->layers = q->tuning.split.ctas[MK_INTRA_COMM];
    m->b_once = 2 * m->tokens * world * m->k <= (uint64_t)m->experts * m->tile_m;
    /* the last argument */
    m->count_space = op_counted_of(op, q) ? op_arguments_of(op, q) : MK_SPACE_HEAP;
    r->topo = m->topo;
    r->tokens = m->tokens;
    r->k = m->k;
    r->experts = m->experts;
    r->logical = (uint32_t)q->own[MOE_LOGICAL];
    r->rank_experts = m->rank_experts;
    r->tile_rows = m->tile_m;
    r->said_words = mk_route_said_words(m->rank_experts);
    m->said_bytes = (uint64_t)q->topo.nodes * r->said_words * 4;
    r->slices = m->slices;
    r->shared = plan_moe_shared(q);
    r->running = q->exec == MK_EXEC_CUDA || !q->tuning.split.ctas[MK_COMPUTE]
                     ? mk_total_ctas(&q->tuning.split)
                     : q->tuning.split.ctas[MK_COMPUTE];
    r->named_space = r->ids_space = ids;
    r->weights_space = weights;
    int result = plan_size_moe_room(m, q, error, size);
    r->known = mk_route_know(r);
    r->rail_head = mk_round_up((uint64_t)q->topo.gpus * r->said_words * 4, MK_HEAP_UNIT);
    r->rail_pitch = r->rail_head + mk_round_up(r->relay_room * m->record_bytes, MK_HEAP_UNIT);
    return result;
}

/* Of two halves: steps of tables have parts, which of dispatch either half makes, of combine the
 * first, whose blocks are too many. */
static void plan_size_moe_parts(struct moe_dispatch_plan *m, const struct mk_problem *q, int moves)
{
    const uint32_t *ctas = q->tuning.split.ctas;
    const uint32_t most = !moves && q->exec == MK_EXEC_CUDA ? plan_moe_plain(q) : UINT32_MAX,
                   first = ctas[MK_INTRA_COMM] < most ? ctas[MK_INTRA_COMM] : most,
                   parts = moves && ctas[MK_INTER_REDUCE] < first ? ctas[MK_INTER_REDUCE] : first;
    m->routers = m->routers < parts ? m->routers : parts;
    m->layers = m->layers < parts ? m->layers : parts;
}

int plan_size_moe_rows(const struct op_descriptor *op, struct moe_dispatch_plan *m,
                       struct mk_plan *p, enum mk_space ids, enum mk_space weights, char *error,
                       size_t size)
{
    struct mk_problem *q = &p->problem;
    const int cuda = q->exec == MK_EXEC_CUDA,
              moves = weights == MK_SPACE_HEAP; /* which of those that add move none */
    const uint32_t *reducers = &q->tuning.split.ctas[MK_INTER_REDUCE];
    plan_choose_moe_movers(q, moves);
    /* small chunks, in close succession: rows of one are taken while others arrive */
    if (cuda && q->topo.nodes == 1 && !q->tuning.chunk_rows && q->tuning.split.ctas[MK_INTRA_COMM])
        q->tuning.chunk_rows = plan_moe_row_chunk(q, moves ? 2 * MK_ROUTE_WARPS : 64);
    plan_choose_moe(q, 64, 0);
    int result = plan_check_moe_tuning(q, error, size);
    result = result ? result : plan_size_moe(op, m, p, ids, weights, error, size);
    if (result)
        return result;
    if (moves)
        m->layers = plan_moe_layers(q);
    if (q->own[MOE_HALVES])
        plan_size_moe_parts(m, q, moves);
    /* On a GPU a warp takes a token. Up to 16 tokens a block, each turn is of one or two, by all
     * warps of a block: 64 to 1024 tokens took 8 to 14 % longer by twelve a turn, 4096 3 % less
     * (two H200s). */
    const uint64_t takers = *reducers ? *reducers : 1;
    m->take_rows = !cuda ? 8
                   : m->tokens >= 16 * takers
                       ? MK_ROUTE_WARPS
                       : moe_between(1, (uint32_t)mk_ceil_div(m->tokens, takers), 2);
    q->m = (uint64_t)m->row_tiles * m->tile_m;
    q->n = q->k = q->moe.hidden;
    return 0;
}
