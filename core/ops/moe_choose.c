/* What MoE plans choose where tuning leaves it open, and what they refuse. */
#include "core/ops/moe_choose.h"

enum {
    MOE_MOST_LOGICAL = 1 << 20, /* as many as experts */
    MOE_MANY_PLACES = 8192      /* of a rank's tokens; measured from there on (docs/FIGURES.md) */
};

uint32_t moe_between(uint32_t least, uint32_t number, uint32_t most)
{
    return number < least ? least : number > most ? most : number;
}

static void plan_choose_moe_roles(struct mk_problem *q, uint32_t reducers)
{
    uint32_t *ctas = q->tuning.split.ctas;
    int cuda = q->exec == MK_EXEC_CUDA;
    if (mk_total_ctas(&q->tuning.split))
        return;
    /* on a GPU about one SM in eleven: twelve fill a link, and all compute once that is done. Of
     * many tokens of the layer, tables are what it begins with, and twice as many are sooner
     * through. */
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

uint32_t plan_moe_routers(const struct mk_problem *q)
{
    const int alone = q->topo.nodes == 1 && q->moe.tokens * q->moe.k <= plan_moe_alone(q);
    return alone ? 1 : q->tuning.split.ctas[MK_INTRA_COMM];
}

/* CTAs that lay tables out where nothing is multiplied: of few tokens a third, while others move
 * them. */
uint32_t plan_moe_layers(const struct mk_problem *q)
{
    const uint32_t movers = q->tuning.split.ctas[MK_INTRA_COMM], some = movers / 3;
    return plan_moe_routers(q) == movers ? movers : some ? some : 1;
}

uint32_t plan_moe_plain(const struct mk_problem *q)
{
    return moe_between(1, q->sms / 11, 12);
}

/* On a GPU tables, and where a token goes, take as many blocks as beside a product, and of tokens
 * that are moved, up to a fifth of all, one for each 4 of few and for 170 of many; all others take
 * rows to their places, or add. Of two halves each has all SMs, and of combine all that the first
 * has add. */
void plan_choose_moe_movers(struct mk_problem *q, int moves)
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

uint32_t plan_moe_shared(const struct mk_problem *q)
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

/* Tokens of a chunk on the GPUs of one node, where nothing is put: each intra_comm block that has
 * time for it has as many chunks, two where there are 8 tokens for it, of `most` at most. */
uint32_t plan_moe_row_chunk(const struct mk_problem *q, uint64_t most)
{
    const uint64_t all = q->tuning.split.ctas[MK_INTRA_COMM], layers = plan_moe_layers(q),
                   movers = layers < all ? all - layers : all,
                   full = mk_ceil_div(q->moe.tokens, most * movers),
                   turns = full > 1 || q->moe.tokens < 8 * movers || layers < all ? full : 2;
    return (uint32_t)mk_ceil_div(q->moe.tokens, turns * movers);
}
