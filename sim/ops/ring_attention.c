/* Ring attention on the host: core/roles/ring_attention.h compiled by gcc, behind struct sim_op. */
#include "core/cta/cta.h"
#include "core/roles/ring_attention.h"
#include "core/base/bf16.h"
#include "sim/ops/attention.h"
#include "sim/cta.h"
#include "sim/op.h"
#include "sim/fill.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

MK_ROLES_OF(ring_attention, ring_attention_intra_comm(p, cta), ring_attention_inter_send(p, cta),
            0);
SIM_TILES_OF(ring_attention, 0, (ring_attention_tile(p, t, tile), tile->rows > 0),
             ring_attention_before(p, cta, tile), 0, 0);

static void ring_attention_math(struct sim_cta *cta, const struct mk_tile *t, void (*between)(void))
{
    const struct sim_rank *r = cta->rank;
    const struct ring_attention_plan *p = ring_attention_plan_of(r->plan);
    const uint32_t world = mk_world(&p->topo), own = p->topo.rank;
    struct attention_shard shards[world];
    for (uint32_t rank = 0; rank < world; rank++) {
        const uint8_t *kv[2];
        for (uint32_t part = 0; part < 2; part++)
            kv[part] = rank == own ? r->spaces[MK_SPACE_ARG1 + part]
                                   : r->spaces[MK_SPACE_HEAP] +
                                         ring_attention_gathered(p, rank, part, r->epoch);
        shards[rank] = (struct attention_shard){(const uint16_t *)(const void *)kv[0],
                                                (const uint16_t *)(const void *)kv[1], rank != own};
    }
    uint8_t *state =
        r->spaces[MK_SPACE_HEAP] + p->state + t->id % p->split.ctas[MK_COMPUTE] * p->state_pitch;
    attention_tile(p, t, (const uint16_t *)(const void *)r->spaces[MK_SPACE_ARG0], shards,
                   (float *)(void *)state, (uint16_t *)(void *)r->spaces[MK_SPACE_ARG3],
                   (float *)(void *)r->spaces[MK_SPACE_ARG4], between);
}

/* On a GPU: query tiles in the order in which they are handed out, each with all its steps. */
static int ring_attention_handed(const struct mk_plan *plan, uint32_t i, uint32_t step,
                                 struct mk_tile *t)
{
    const struct ring_attention_plan *p = ring_attention_plan_of(plan);
    if (i >= p->query_tiles || step >= mk_world(&p->topo))
        return 0;
    ring_attention_tile(p, ring_attention_tile_number(p, ring_attention_order(p, i), step), t);
    return 1;
}

/* Blocks of keys that are seen in part are multiplied whole. */
static double ring_attention_flop(const struct mk_plan *plan, const struct mk_tile *t,
                                  uint32_t *head_dim)
{
    const struct ring_attention_plan *p = ring_attention_plan_of(plan);
    uint32_t q_half = ring_attention_half_of(p, t->row), blocks = 0;
    for (uint32_t half = 0; half < p->halves; half++) {
        enum ring_attention_mask mask = ring_attention_mask(p, q_half, t->slab, half);
        uint32_t keys = mask == RING_ATTENTION_NONE  ? 0
                        : mask == RING_ATTENTION_ALL ? ring_attention_half_rows(p, t->slab, half)
                                                     : t->row % p->half + t->rows;
        blocks += (uint32_t)mk_ceil_div(keys, p->block_rows);
    }
    *head_dim = p->head_dim;
    return 4.0 * p->tile_rows * blocks * p->block_rows * p->head_dim;
}

static void ring_attention_fill_rank(const struct mk_plan *plan, uint64_t seed, uint32_t rank,
                                     uint64_t launch, uint32_t argument, uint16_t *to)
{
    uint64_t bytes[MK_SPACES - 1];
    struct mk_problem of_rank = plan->problem;
    of_rank.topo.rank = rank;
    op_extents(&of_rank, bytes);
    sim_fill(to, bytes[argument] / 2, seed, rank, launch, argument);
}

static void ring_attention_fill(const struct sim_launch *l)
{
    for (uint32_t i = 0; i < 3; i++)
        ring_attention_fill_rank(l->plan, l->seed, l->plan->problem.topo.rank, l->launch, i,
                                 l->arguments[i]);
}

/* How far a GPU's results may be from the host's: weights and results are rounded to bf16 (2^-9
 * each, and a factor of 2; V is less than 2), and a logarithm of a sum is within 1e-3. The host's
 * own are the same. */
static int ring_attention_near_o(const struct mk_plan *plan, uint16_t said, uint16_t reference)
{
    float x = mk_bf16_to_float(said), y = mk_bf16_to_float(reference);
    return plan->problem.exec == MK_EXEC_CUDA ? fabsf(x - y) <= (fabsf(y) + 2) / 256
                                              : said == reference;
}

static int ring_attention_near_lse(const struct mk_plan *plan, float said, float reference)
{
    return plan->problem.exec == MK_EXEC_CUDA ? fabsf(said - reference) <= 1e-3f
                                              : !memcmp(&said, &reference, sizeof said);
}

/* Every step comes in one order, so on the host what is right is so bit by bit: the same tiles over
 * whole copies of all K and V. */
static int ring_attention_verify(const struct sim_launch *l)
{
    const struct ring_attention_plan *p = ring_attention_plan_of(l->plan);
    uint32_t world = mk_world(&p->topo), rank = p->topo.rank;
    uint64_t bytes[MK_SPACES - 1];
    op_extents(&l->plan->problem, bytes);
    bytes[1] =
        (uint64_t)p->batch * p->pitch_rows * p->row_bytes; /* of the rank that has the most */
    uint8_t *memory = malloc(2 * world * bytes[1] + bytes[0] + bytes[3] + bytes[4] +
                             p->split.ctas[MK_COMPUTE] * p->state_pitch);
    if (!memory)
        return sim_no_memory(l);
    uint8_t *q = memory + 2 * world * bytes[1], *o = q + bytes[0], *lse = o + bytes[3],
            *state = lse + bytes[4];
    ring_attention_fill_rank(l->plan, l->seed, rank, l->launch, 0, (uint16_t *)(void *)q);
    for (uint32_t i = 0; i < 2 * world; i++)
        ring_attention_fill_rank(l->plan, l->seed, i / 2, l->launch, 1 + i % 2,
                                 (uint16_t *)(void *)(memory + i * bytes[1]));
    struct attention_shard shards[world]; /* the copies lie as arguments do */
    for (uint32_t i = 0; i < world; i++)
        shards[i] = (struct attention_shard){
            (const uint16_t *)(void *)(memory + 2 * i * bytes[1]),
            (const uint16_t *)(void *)(memory + (2 * i + 1) * bytes[1]), 0};
    for (uint32_t t = 0; t < p->tiles; t++) {
        struct mk_tile one;
        ring_attention_tile(p, t, &one);
        if (one.rows)
            attention_tile(
                p, &one, (const uint16_t *)(void *)q, shards,
                (float *)(void *)(state + t % p->split.ctas[MK_COMPUTE] * p->state_pitch),
                (uint16_t *)(void *)o, (float *)(void *)lse, NULL);
    }
    const uint16_t *wanted_o = (const uint16_t *)(const void *)o, *said_o = l->arguments[3];
    const float *wanted_lse = (const float *)(const void *)lse, *said_lse = l->arguments[4];
    int wrong = 0;
    for (uint64_t i = 0; !wrong && i < bytes[3] / 2; i++)
        if (!ring_attention_near_o(l->plan, said_o[i], wanted_o[i])) {
            uint64_t row = i / ((uint64_t)p->heads * p->head_dim);
            wrong =
                sim_wrong(l, "row %lu of batch %lu, head %lu of O was not made from this launch",
                          row % p->rows, row / p->rows, i / p->head_dim % p->heads);
        }
    for (uint64_t i = 0; !wrong && i < bytes[4] / 4; i++)
        if (!ring_attention_near_lse(l->plan, said_lse[i], wanted_lse[i]))
            wrong = sim_wrong(l, "lse is wrong");
    free(memory);
    return wrong;
}

SIM_OP(ring_attention, SIM_TILES(ring_attention), .math = ring_attention_math,
       .handed = ring_attention_handed, .flop = ring_attention_flop, .fill = ring_attention_fill,
       .verify = ring_attention_verify);
