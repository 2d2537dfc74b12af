/* What the plans of MoE operators share: which shapes they take, where tokens lie until they are
 * with their experts. */
#include "core/mkernel.h"
#include "core/ops/moe.h"
#include "core/pipeline.h"
#include "core/roles/moe_halves_plan.h"
#include "core/quantize.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const struct op_limit op_limit_moe = {
    .name = "capacity",
    .about =
        "rows of its experts that a rank has room for, a row for each of the K places of a token; "
        "where more come, the launch ends on all ranks with a sentence. Default: on up to 8 ranks "
        "all that can come; else twice as many as come on the average (of ranks with fewer than "
        "8 experts four times), and six times the root of those",
    .offset = offsetof(struct mk_problem, own) + MOE_CAPACITY * sizeof(uint64_t),
    .drops = offsetof(struct mk_problem, own) + MOE_DROPS * sizeof(uint64_t),
    .counted = offsetof(struct mk_problem, own) + MOE_COUNTED * sizeof(uint64_t),
    .logical = offsetof(struct mk_problem, own) + MOE_LOGICAL * sizeof(uint64_t),
    .halves = offsetof(struct mk_problem, own) + MOE_HALVES * sizeof(uint64_t),
};

#define AT(field) offsetof(struct mk_problem, moe.field)
const struct op_shape op_shape_moe = {
    .option = "moe",
    .letters = "T,H,I,E,K",
    .heading = "T,H,I,experts,k",
    .about =
        "tokens per rank, elements per token, columns of an expert's B (moe_ffn: of its gate), "
        "experts of all ranks together, experts that each token names",
    .defaults = "on the host 128,256,128,4 experts per rank,2; on GPUs 4096,7168,2048,256,8",
    .explored = "16,64,40,2 experts per rank,2, and the seed varies tokens and experts",
    .dimensions =
        {{"T", "tokens", AT(tokens), 1 << 24,
          .why = "a rank that has none leaves its places out, by ids that are no expert's"},
         {"H", "hidden", AT(hidden), 1 << 20, .bytes = 16, .why = "rows must be 16-byte multiples"},
         {"I", "inner", AT(inner), 1 << 24, .multiple = 8, .why = "rows must be 16-byte multiples"},
         {"E", "experts", AT(experts), 1 << 20, .divides = "W"},
         {"K", "experts of a token", AT(k), 32, .divides = NULL}},
};

void op_choose_moe(enum op_size size, uint64_t world, uint64_t *numbers)
{
    static const uint64_t sizes[][5] = {[OP_SIZE_HOST] = {128, 256, 128, 4, 2},
                                        [OP_SIZE_GPU] = {4096, 7168, 2048, 256, 8},
                                        [OP_SIZE_EXPLORE] = {16, 64, 40, 2, 2}};
    memcpy(numbers, sizes[size], sizeof sizes[size]);
    numbers[3] = size == OP_SIZE_GPU ? mk_round_up(numbers[3], world) : numbers[3] * world;
}

/* Of those that move tokens and multiply nothing. */
const struct op_shape op_shape_moe_rows = {
    .option = "moe",
    .letters = "T,H,E,K",
    .heading = "T,H,experts,k",
    .about = "moe_dispatch, moe_combine: tokens per rank, elements per token, experts of all ranks "
             "together, experts that each token names",
    .defaults = "on the host 128,256,4 experts per rank,2; on GPUs 4096,7168,256,8",
    .explored = "16,64,2 experts per rank,2, and the seed varies tokens and experts",
    .dimensions = {{"T", "tokens", AT(tokens), 1 << 24,
                    .why =
                        "a rank that has none leaves its places out, by ids that are no expert's"},
                   {"H", "hidden", AT(hidden), 1 << 20, .bytes = 16,
                    .why = "rows must be 16-byte multiples"},
                   {"E", "experts", AT(experts), 1 << 20, .divides = "W"},
                   {"K", "experts of a token", AT(k), 32, .divides = NULL}},
};

void op_choose_moe_rows(enum op_size size, uint64_t world, uint64_t *numbers)
{
    uint64_t all[5];
    op_choose_moe(size, world, all);
    numbers[0] = all[0];
    numbers[1] = all[1];
    numbers[2] = all[3];
    numbers[3] = all[4];
}

enum {
    MOE_MOST_LOGICAL = 1 << 20, /* as many as experts */
    MOE_MANY_PLACES = 8192      /* of a rank's tokens; measured from there on (docs/FIGURES.md) */
};

uint64_t plan_moe_named(const struct mk_problem *q)
{
    return q->own[MOE_LOGICAL] ? q->own[MOE_LOGICAL] : q->moe.experts;
}

uint64_t plan_moe_map(const struct mk_plan *p)
{
    return moe_dispatch_plan_of(p)->route.map; /* with which all plans of MoE begin */
}

static uint32_t moe_between(uint32_t least, uint32_t number, uint32_t most)
{
    return number < least ? least : number > most ? most : number;
}

static void plan_choose_moe_roles(struct mk_problem *q, uint32_t reducers)
{
    uint32_t *ctas = q->tuning.split.ctas;
    int cuda = q->exec == MK_EXEC_CUDA;
    if (mk_total_ctas(&q->tuning.split))
        return;
    /* on a GPU about one SM in eleven: twelve fill a link, and all compute once that is done. Of many
     * tokens of the layer, tables are what it begins with, and twice as many are sooner through. */
    const uint32_t times = reducers && q->topo.nodes == 1 && q->engine != MK_ENGINE_MMA &&
                                   q->moe.tokens * q->moe.k >= MOE_MANY_PLACES
                               ? 2
                               : 1;
    ctas[MK_INTRA_COMM] = cuda ? moe_between(1, q->sms * times / 11, 12 * times) : 1;
    ctas[MK_INTER_SEND] = q->topo.nodes > 1 ? (cuda ? moe_between(1, q->sms / 33, 4) : 1) : 0;
    ctas[MK_INTER_REDUCE] = cuda || !reducers ? reducers : 1;
    uint32_t others = ctas[MK_INTRA_COMM] + ctas[MK_INTER_SEND] + ctas[MK_INTER_REDUCE];
    ctas[MK_COMPUTE] = cuda && q->sms > others ? q->sms - others : 2;
}

void plan_choose_moe(struct mk_problem *q, uint32_t tile_n, uint32_t reducers)
{
    struct mk_tuning *t = &q->tuning;
    int cuda = q->exec == MK_EXEC_CUDA;
    if (!t->cluster)
        t->cluster = 1;
    if (!t->tile_m)
        t->tile_m = cuda ? 128 : 32;
    if (!t->tile_n)
        t->tile_n = cuda ? tile_n : 64;
    if (!t->pieces)
        t->pieces = 1;
    plan_choose_moe_roles(q, reducers);
    if (!t->chunk_rows && cuda) { /* two turns of each intra_comm CTA at least */
        uint64_t rows =
            q->moe.tokens / (2 * (t->split.ctas[MK_INTRA_COMM] ? t->split.ctas[MK_INTRA_COMM] : 1));
        t->chunk_rows = rows > 64 ? 64 : rows < 8 ? 8 : (uint32_t)mk_round_up(rows, 8);
    } else if (!t->chunk_rows) {
        t->chunk_rows = 16;
    }
}

void plan_choose_moe_mma_tile(struct mk_problem *q, uint64_t columns, uint32_t tile_n)
{
    struct mk_tuning *t = &q->tuning;
    uint64_t rows = q->moe.tokens * mk_world(&q->topo) * q->moe.k / q->moe.experts;
    int small = t->tile_m              ? t->tile_m == 64
                : t->tile_n && !tile_n ? t->tile_n == 64
                                       : rows <= 64 || (columns <= 64 && !tile_n);
    if (!t->tile_m)
        t->tile_m = small ? 64 : 128;
    if (!t->tile_n)
        t->tile_n = tile_n ? tile_n : small ? 64 : 128;
}

/* Places of tokens, on one node, that one CTA makes tables of sooner than several meet. */
static uint64_t plan_moe_alone(const struct mk_problem *q)
{
    return q->exec == MK_EXEC_CUDA ? 1024 : 32;
}

static uint32_t plan_moe_routers(const struct mk_problem *q)
{
    const int alone = q->topo.nodes == 1 && q->moe.tokens * q->moe.k <= plan_moe_alone(q);
    return alone ? 1 : q->tuning.split.ctas[MK_INTRA_COMM];
}

/* CTAs that lay tables out where nothing is multiplied: of few tokens a third, while others move
 * them. */
static uint32_t plan_moe_layers(const struct mk_problem *q)
{
    const uint32_t movers = q->tuning.split.ctas[MK_INTRA_COMM], some = movers / 3;
    return plan_moe_routers(q) == movers ? movers : some ? some : 1;
}

/* At least so many blocks make tables on a GPU. */
static uint32_t plan_moe_plain(const struct mk_problem *q)
{
    return moe_between(1, q->sms / 11, 12);
}

/* On a GPU tables, and where a token goes, take as many blocks as beside a product, and of tokens that
 * are moved, up to a fifth of all, one for each 4 of few and for 170 of many; all others take rows to
 * their places, or add. Of two halves each has all SMs, and of combine all that the first has add. */
static void plan_choose_moe_movers(struct mk_problem *q, int moves)
{
    uint32_t *ctas = q->tuning.split.ctas;
    int cuda = q->exec == MK_EXEC_CUDA, nodes = q->topo.nodes > 1, halves = q->own[MOE_HALVES] != 0;
    if (mk_total_ctas(&q->tuning.split))
        return;
    const uint32_t plain = plan_moe_plain(q), fifth = q->sms / 5 < plain ? plain : q->sms / 5,
                   sends = !nodes ? 0
                           : cuda ? moe_between(1, q->sms / 33, 4)
                                  : 1,
                   all = q->sms > sends ? q->sms - sends : 1, most = halves ? all : fifth;
    ctas[MK_INTRA_COMM] = !cuda ? 1
                          : moves
                              ? moe_between(plain,
                                            (uint32_t)(q->moe.tokens * q->moe.k <= plan_moe_alone(q)
                                                           ? q->moe.tokens / 4
                                                           : q->moe.tokens / 170),
                                            most)
                          : halves ? all
                                   : plain;
    ctas[MK_INTER_SEND] = sends;
    uint32_t others = halves ? 0 : ctas[MK_INTRA_COMM] + sends,
             rings = nodes ? MK_MAX_RINGS - sends : UINT32_MAX;
    ctas[MK_INTER_REDUCE] = cuda && q->sms > others ? moe_between(1, q->sms - others, rings) : 1;
}

int plan_check_moe_tuning(const struct mk_problem *q, char *error, size_t size)
{
    uint32_t chunk_rows = q->tuning.chunk_rows; /* of tokens: no multiple of a tile's rows */
    if (q->moe.k > plan_moe_named(q))
        return plan_refuse(error, size, "%lu experts of a token: 1 to %lu", q->moe.k,
                           plan_moe_named(q));
    if (q->own[MOE_LOGICAL] > MOE_MOST_LOGICAL)
        return plan_refuse(error, size, "logical=%lu: 1 to %u experts", q->own[MOE_LOGICAL],
                           MOE_MOST_LOGICAL);
    if (chunk_rows % 8 && (q->topo.nodes > 1 || q->tuning.split.ctas[MK_COMPUTE])) /* of puts */
        return plan_refuse(error, size,
                           "chunks of %u tokens: a multiple of 8; the next that works is %lu",
                           chunk_rows, mk_round_up(chunk_rows, 8));
    if (q->deterministic == MK_EVERYWHERE && q->own[MOE_DROPS])
        return plan_refuse(error, size,
                           "the same bits everywhere with overflow=drop: which of a token's places "
                           "are dropped follows from the other tokens");
    return plan_check_tuning(q, error, size);
}

/* Bytes of shared memory that a block which makes tables has on a GPU. */
static uint32_t plan_moe_shared(const struct mk_problem *q)
{
    return q->engine == MK_ENGINE_MMA ? MK_MMA_ROUTE_SHARED : MK_ROUTE_SHARED;
}

int plan_check_moe_gpu(const struct op_descriptor *op, const struct mk_problem *q, char *error,
                       size_t size)
{
    const struct mk_tuning *t = &q->tuning;
    struct mk_gemm_tile tile;
    char all[100] = "";
    int found = 0;
    for (uint32_t i = 0; op->gpu_tile(q, i, &tile); i++) {
        mk_append(all, sizeof all, "%s%ux%u", i ? ", " : "", tile.tile_m, tile.tile_n);
        found |= t->tile_m == tile.tile_m && t->tile_n == tile.tile_n;
    }
    if (!found)
        return plan_refuse(error, size, "tiles of %u x %u are not built for the GPU; %s are",
                           t->tile_m, t->tile_n, all);
    return 0;
}

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

/* Tokens that have room where one of `parts` brings them: its share of the capacity and six standard
 * deviations; no more than it has. A multiple of 8, so that puts begin at 128 bytes. */
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

/* Tokens of a chunk on the GPUs of one node, where nothing is put: each intra_comm block that has time
 * for it has as many chunks, two where there are 8 tokens for it, of `most` at most. */
static uint32_t plan_moe_row_chunk(const struct mk_problem *q, uint64_t most)
{
    const uint64_t all = q->tuning.split.ctas[MK_INTRA_COMM], layers = plan_moe_layers(q),
                   movers = layers < all ? all - layers : all,
                   full = mk_ceil_div(q->moe.tokens, most * movers),
                   turns = full > 1 || q->moe.tokens < 8 * movers || layers < all ? full : 2;
    return (uint32_t)mk_ceil_div(q->moe.tokens, turns * movers);
}

/* Of two halves: steps of tables have parts, which of dispatch either half makes, of combine the first,
 * whose blocks are too many. */
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
    if (cuda && q->topo.nodes == 1 && !q->tuning.chunk_rows && q->tuning.split.ctas[MK_INTRA_COMM])
        q->tuning
            .chunk_rows = /* small ones follow each other so closely that rows are taken while others come */
            plan_moe_row_chunk(q, moves ? 2 * MK_ROUTE_WARPS : 64);
    plan_choose_moe(q, 64, 0);
    int result = plan_check_moe_tuning(q, error, size);
    result = result ? result : plan_size_moe(op, m, p, ids, weights, error, size);
    if (result)
        return result;
    if (moves)
        m->layers = plan_moe_layers(q);
    if (q->own[MOE_HALVES])
        plan_size_moe_parts(m, q, moves);
    /* On a GPU a warp takes a token. Up to 16 tokens a block, each turn is of one or two, by all warps of
     * a block: 64 to 1024 tokens took 8 to 14 % longer by twelve a turn, 4096 3 % less (2 H200s). */
    const uint64_t takers = *reducers ? *reducers : 1;
    m->take_rows = !cuda ? 8
                   : m->tokens >= 16 * takers
                       ? MK_ROUTE_WARPS
                       : moe_between(1, (uint32_t)mk_ceil_div(m->tokens, takers), 2);
    q->m = (uint64_t)m->row_tiles * m->tile_m;
    q->n = q->k = q->moe.hidden;
    return 0;
}

void plan_moe_halves(struct moe_halves *h, const struct mk_problem *q)
{
    h->is = q->own[MOE_HALVES] != 0;
    h->senders = q->tuning.split.ctas[MK_INTER_SEND];
}

void plan_moe_halves_flags(struct moe_halves *h, struct op_tables *t)
{
    if (h->is)
        OP_FLAGS(t, {"left",
                     &h->flag_left,
                     {{'x', 1, 1}},
                     "what it put in the launch before to leave",
                     .producer = 'm'});
}

void plan_moe_tables_first(struct moe_dispatch_plan *m, const struct mk_problem *q,
                           struct op_tables *t)
{
    struct mk_route *r = &m->route;
    const uint64_t tiles = r->columns ? m->row_tiles : 0; /* that a product waits for */
    OP_BUFFERS(t, {"wanted", &r->wanted, 1, tiles, 8}, {"awaited", &r->awaited, 1, tiles, 8},
               {"order_head", &r->order_head, 1, 1, sizeof(struct mk_route_head)},
               {"dropped", &r->dropped, 1, 1, 8}, {"map", &r->map, 1, r->logical, 4},
               {"order", &r->order, 1, (uint64_t)m->row_tiles * (r->columns + r->down),
                sizeof(struct mk_tile_entry)});
    t->zero_buffers = 5;
    const uint64_t words = mk_route_shared_words(&q->topo, m->experts, mk_route_stretches(r));
    if (q->exec == MK_EXEC_CUDA)
        OP_BUFFERS(t, {"scratch", &r->scratch, 1,
                       mk_route_scratch_words(&q->topo, m->experts, m->routers), 4});
    if (q->exec == MK_EXEC_CUDA && words * 4 > r->shared)
        OP_BUFFERS(t, {"spill", &r->spill, 1,
                       (m->layers > m->routers ? m->layers : m->routers) * words, 4});
}

void plan_moe_tables(struct moe_dispatch_plan *m, struct op_tables *t)
{
    struct mk_route *r = &m->route;
    uint64_t world = mk_world(&m->topo), nodes = m->topo.nodes, gpus = m->topo.gpus,
             away = nodes * r->relay_room, near = gpus * r->landed_room;
    const uint64_t said = gpus * nodes * r->said_words, record = sizeof(struct mk_route_record);
    if (r->quota) {
        OP_BUFFERS(t, {"kept", &r->ids, 1, (uint64_t)m->tokens * m->k, 4});
        r->ids_space = MK_SPACE_HEAP;
    }
    OP_BUFFERS(t, {"records", &r->records, 1, (uint64_t)m->tokens * m->k, record},
               {"say", &r->say, 1, said, 4}, {"said", m->said, 2, said, 4},
               {"telling", &r->telling, 1, near * m->k, record},
               {"landed records", m->landed_records, 2, near * m->k, record},
               {"railing", &r->railing, 1, nodes > 1 ? nodes * r->rail_pitch / 16 : 0, 16},
               {"railed", m->railed, 2, nodes > 1 ? nodes * r->rail_pitch / 16 : 0, 16},
               {"position", &r->position, 1, mk_route_sources(r), m->k * 4ull},
               {"source", &r->source, 1, r->columns ? (uint64_t)m->row_tiles * m->tile_m : 0, 4},
               {"first", &r->first, 1, m->rank_experts, 4},
               {"rows", &r->rows, 1, m->rank_experts, 4}, {"sent", &r->sent, 1, away, 4},
               {"sent_count", &r->sent_count, 1, nodes, 4},
               {"sent_at", &r->sent_at, 1, nodes > 1 ? (uint64_t)m->tokens * m->k : 0, 4},
               {"came_count", &r->came_count, 1, nodes, 4}, {"push", &r->push, 1, near, 4},
               {"push_first", &r->push_first, 1, nodes * gpus, 4},
               {"push_count", &r->push_count, 1, nodes * gpus, 4},
               {"landed_first", &r->landed_first, 1, world, 4},
               {"landed_count", &r->landed_count, 1, world, 4},
               {"packed", &m->packed, 1, away, m->row_bytes},
               {"landed rows", &m->landed, 1, near, m->row_bytes},
               {"relay", &m->relay, 1, away, m->row_bytes});
    OP_FLAGS(t,
             {"kept",
              &m->flag_kept,
              {{'x', 1, 1}},
              "which of its tokens' places it keeps",
              .producer = 'm'},
             {"counted",
              &m->flag_counted,
              {{'x', 1, 1}},
              "its counts of where tokens go",
              .producer = 'm'},
             {"placed",
              &m->flag_placed,
              {{'x', 1, 1}},
              "its tables of where its tokens go",
              .producer = 'm'},
             {"railed",
              &m->flag_railed,
              {{'n', nodes, 1}, {'c', 1, 1}},
              "what rank %R says of its tokens' experts",
              .producer = 'R'},
             {"relayed",
              &m->flag_relayed,
              {{'x', 1, 1}},
              "its tables of where its rail's tokens go",
              .producer = 'm'},
             {"told",
              &m->flag_told,
              {{'l', gpus, 1}},
              "what rank %l tells of tokens' experts",
              .producer = 'l'},
             {"routed",
              &m->flag_routed,
              {{'x', 1, 1}},
              "its tables of what comes to its experts",
              .producer = 'm'},
             {"relay",
              &m->flag_relay,
              {{'n', nodes, 1}, {'c', m->chunks, 1}},
              "chunk %c of rank %R's tokens",
              .producer = 'R'},
             {"landed", /* who brings them here: the rank of this node that is on their rail */
              &m->flag_landed,
              {{'r', world, 1}, {'c', m->chunks, 1}},
              "chunk %c of rank %r's tokens, with experts here",
              .producer = 'p'});
    if (r->columns)
        OP_FLAGS(t, {"rows", /* many ranks': none can be named */
                     &m->flag_rows,
                     {{'i', m->row_tiles, m->tile_m}},
                     "rows %i to %I of the tokens of its experts",
                     .producer = 'm'});
}

void plan_moe_sums_size(struct moe_ffn_plan *m, const struct mk_problem *q)
{
    const struct moe_dispatch_plan *d = &m->dispatch;
    uint32_t list = d->tokens < d->route.landed_room ? d->tokens : d->route.landed_room;
    m->part_rows = plan_moe_part(q);
    m->list_chunks = (uint32_t)mk_ceil_div(list, d->chunk_rows);
    m->chunk_parts = (uint32_t)mk_ceil_div(d->chunk_rows, m->part_rows);
}

void plan_moe_sums_tables(struct moe_ffn_plan *m, struct op_tables *t)
{
    struct moe_dispatch_plan *d = &m->dispatch;
    const struct mk_route *r = &d->route;
    uint64_t nodes = d->topo.nodes, gpus = d->topo.gpus, away = nodes * r->relay_room;
    OP_BUFFERS(t, {"back", &m->back, 1, gpus * r->landed_room, m->carried_bytes},
               {"sums", &m->sums, 1, away, m->carried_bytes},
               {"whole", &m->whole, 1, away, m->carried_bytes});
    OP_FLAGS(t,
             {"back",
              &m->flag_back,
              {{'n', nodes, 1}, {'l', gpus, 1}, {'c', m->list_chunks, 1}, {'i', m->chunk_parts, 1}},
              "rank %l's sums for chunk %c of rank %R's tokens",
              .producer = 'l',
              .chunk_base = d->chunks},
             {"sum",
              &m->flag_sum,
              {{'n', nodes, 1}, {'c', d->chunks, 1}},
              "node %n's sums for chunk %c of its tokens",
              .producer = 'R',
              .chunk_base = d->chunks});
}

uint32_t plan_moe_part(const struct mk_problem *q)
{
    const struct mk_role_split *s = &q->tuning.split;
    const int multiplies = s->ctas[MK_COMPUTE] > 0, mma = multiplies && q->engine == MK_ENGINE_MMA;
    uint32_t blocks =
        q->topo.nodes > 1 || !multiplies ? s->ctas[MK_INTER_REDUCE] : mk_total_ctas(s);
    uint64_t each = mk_ceil_div(q->moe.tokens * mk_world(&q->topo), blocks ? blocks : 1);
    uint32_t warps = mma ? q->tuning.tile_m / 16 + 2 : 12;
    if (q->exec != MK_EXEC_CUDA)
        return 8;
    if (each < warps)
        return (uint32_t)each;
    /* A unit takes as long beside its rows as with a token of each warp: where a block has two units
     * even so, a warp takes several tokens. Parts of a chunk are about equal. */
    const uint64_t turns = multiplies && !mma ? each / (2 * warps) : 0;
    return turns < 2 ? warps
                     : (uint32_t)mk_ceil_div(q->tuning.chunk_rows,
                                             mk_ceil_div(q->tuning.chunk_rows, turns * warps));
}

void plan_moe_sums_work(const struct moe_ffn_plan *m, uint64_t *nvlink_bytes,
                        uint64_t *network_bytes)
{
    const struct moe_dispatch_plan *d = &m->dispatch;
    uint64_t others = d->topo.nodes - 1;
    *network_bytes += (others < d->k ? others : d->k) * d->tokens * m->carried_bytes;
    *nvlink_bytes += moe_crossings(d) * m->carried_bytes;
}

uint64_t plan_moe_put_bytes(const struct moe_dispatch_plan *m)
{
    uint64_t chunk = m->chunk_rows * m->row_bytes;
    return chunk > m->route.rail_pitch ? chunk : m->route.rail_pitch;
}

void plan_moe_dispatch_work(const struct moe_dispatch_plan *m, uint64_t *nvlink_bytes,
                            uint64_t *network_bytes)
{
    uint64_t others = m->topo.nodes - 1, crossings = m->tokens * (others < m->k ? others : m->k),
             each = m->row_bytes + m->record_bytes;
    *network_bytes = others * m->route.rail_head + crossings * each;
    *nvlink_bytes = (m->topo.gpus - 1) * m->said_bytes + moe_crossings(m) * each;
}

double plan_moe_touched(const struct mk_problem *q, double own)
{
    const double tokens = (double)q->moe.tokens * mk_world(&q->topo);
    return own * (1 - pow(1 - (double)q->moe.k / (double)q->moe.experts, tokens));
}

void plan_moe_pipeline(const struct mk_plan *p, struct mk_pipeline *out)
{
    out->tickets = p->problem.exec == MK_EXEC_CUDA;
}
