/* The network's part of the MoE operators is hidden behind tiles: on a virtual clock, what the
 * feed-forward layer sends back to other nodes leaves, summed, while experts are still computed,
 * and a launch takes little longer than its tiles alone. */
#include "tests/helpers/ops.h"

#include "tests/helpers/broken_ops.h"
#define sim_op_moe_ffn traced_ffn
#include "sim/ops/moe_ffn.c"
#include "tests/helpers/unbroken_ops.h"

/* One way over the network takes a third of what tiles take, about as on 2 x 8 H200 at 50 GB/s each
 * (8192 tokens of 7168, each to 8 of 256 experts, I 2048). One after the other, there, tiles and
 * back would take 1.67. */
#define COMPUTE_NS 1000000.0
#define CROSSING_NS 333333.0
#define COMPUTE_CTAS 4
#define LATENCY 2000 /* ns, of the network */
#define RANKS 8

static enum mutation { NOTHING, SUMS_WAIT_FOR_ALL_TILES } mutation;

/* What one launch did, by rank. */
static struct trace {
    uint64_t last_tile; /* when it ended */
    uint64_t link;      /* when all that it has posted will have left */
    double nic;         /* bytes/ns */
    uint32_t count;
    struct {
        uint64_t at, bytes;
    } sums[512]; /* for other nodes, when posted */
} trace[RANKS];

static double flop_per_ns; /* of a compute CTA */

/* ---- costs ---- */

static uint64_t tile_ends(void *context, uint64_t now, const struct mk_plan *plan,
                          const struct mk_tile *tile)
{
    struct trace *t = &trace[plan->problem.topo.rank];
    const struct mk_moe *m = &plan->problem.moe;
    int ffn = plan->problem.op == MK_OP_MOE_FFN;
    uint64_t k = !ffn ? m->hidden : tile->stage == MOE_FFN_UP ? 2 * m->hidden : m->inner;
    uint64_t end = now + (uint64_t)(2.0 * tile->rows * tile->cols * (double)k / flop_per_ns);
    t->last_tile = end > t->last_tile ? end : t->last_tile;
    return end;
}

static uint64_t copy_ends(void *context, uint64_t now, uint32_t from, uint32_t to, uint64_t bytes)
{
    return now + 500 + bytes / 400;
}

static uint64_t put_ends(void *context, uint64_t now, uint32_t from, uint32_t to, uint64_t bytes)
{
    struct trace *t = &trace[from];
    t->link = (t->link > now ? t->link : now) + (uint64_t)((double)bytes / t->nic);
    return t->link + LATENCY;
}

/* ---- between the roles and the CTA interface ---- */

static const struct sim_rank *rank_of_cta(const struct mk_cta *cta)
{
    return ((const struct sim_cta *)(const void *)cta)->rank;
}

int mutant_put(struct mk_cta *cta, uint32_t rank, const struct mk_chunk *chunk, uint32_t flag)
{
    const struct sim_rank *r = rank_of_cta(cta);
    struct trace *t = &trace[r->plan->problem.topo.rank];
    if (flag >= moe_ffn_plan_of(r->plan)->flag_sum) {
        assert_true(t->count < sizeof t->sums / sizeof *t->sums);
        t->sums[t->count].at = r->now(r->context);
        t->sums[t->count++].bytes = chunk->bytes;
    }
    return mk_cta_put(cta, rank, chunk, flag);
}

/* A barrier: no sum before all results of this rank are made. */
static int await_all_tiles(struct mk_cta *cta, const struct moe_ffn_plan *p)
{
    const struct moe_dispatch_plan *d = &p->dispatch;
    for (uint32_t expert = 0; expert < d->rank_experts; expert++) {
        uint64_t entry = expert * 4ull;
        uint32_t rows = mk_cta_load(cta, d->route.rows + entry),
                 first = mk_cta_load(cta, d->route.first + entry);
        for (uint32_t row = first; row < first + rows; row += d->tile_m)
            if (mk_cta_wait(cta, moe_ffn_made_flag(p, row),
                            mk_cta_load64(cta, d->route.wanted + row / d->tile_m * 8ull) *
                                p->down_tiles * MK_TILE_PARTS,
                            MK_CAUSE_DATA))
                return 1;
    }
    return 0;
}

int mutant_wait(struct mk_cta *cta, uint32_t flag, uint64_t target, enum mk_cause cause)
{
    const struct moe_ffn_plan *p = moe_ffn_plan_of(rank_of_cta(cta)->plan);
    if (mutation == SUMS_WAIT_FOR_ALL_TILES && flag >= p->flag_made && flag < p->flag_sum &&
        await_all_tiles(cta, p))
        return 1;
    return mk_cta_wait(cta, flag, target, cause);
}

/* ---- launches ---- */

/* Every token names k different experts at random: even, as far as chance is. (Other tests verify
 * results.) */
static void fill(const struct sim_launch *l)
{
    const struct mk_moe *m = &l->plan->problem.moe;
    uint32_t *ids = l->arguments[2], deck[64];
    struct sim_random r = {sim_mix(l->seed) ^ l->plan->problem.topo.rank};
    for (uint32_t i = 0; i < m->experts; i++)
        deck[i] = i;
    for (uint64_t token = 0; token < m->tokens; token++)
        for (uint32_t place = 0; place < m->k; place++) {
            uint32_t other = place + sim_random_below(&r, (uint32_t)m->experts - place),
                     id = deck[other];
            deck[other] = deck[place];
            deck[place] = ids[token * m->k + place] = id;
        }
    sim_fill(l->arguments[0], m->tokens * m->hidden, l->seed, l->plan->problem.topo.rank, l->launch,
             0);
    if (l->plan->problem.op == MK_OP_MOE_FFN)
        memset(l->arguments[3], 0, m->tokens * m->k * 4);
}

static int verify(const struct sim_launch *l)
{
    return 0;
}

/* Returns how long one launch takes, in units of what its tiles take. */
static double run(const struct sim_op *whole, enum mk_op id, const uint32_t form[2], uint64_t seed)
{
    struct sim_op op = *whole;
    struct sim_costs costs = {.tile = tile_ends, .copy = copy_ends, .put = put_ends};
    struct sim_world_config c = ops_config(id, form, ops_shapes[0]);
    struct sim_world_result result;
    struct mk_moe m = {512, 256, 64, 64, 4}; /* an eighth of a token are its records */
    uint32_t world = form[0] * form[1];
    uint64_t flop = (id == MK_OP_MOE_FFN ? 6 : 2) * m.tokens * m.k * m.hidden * m.inner;
    op.fill = fill;
    op.verify = verify;
    c.op = &op;
    c.costs = &costs;
    c.launches = 1;
    c.seed = seed;
    m.experts = 64 / world * world;
    c.problem.moe = m;
    c.problem.tuning.tile_m = c.problem.tuning.chunk_rows = 16;
    c.problem.tuning.tile_n = 32;
    c.problem.tuning.split =
        (struct mk_role_split){.ctas = {COMPUTE_CTAS, 4, 2, id == MK_OP_MOE_FFN ? 4 : 0}};
    flop_per_ns = (double)flop / COMPUTE_CTAS / COMPUTE_NS;
    memset(trace, 0, sizeof trace);
    for (uint32_t rank = 0; rank < world; rank++)
        trace[rank].nic = (double)((form[0] - 1) * m.tokens * m.hidden * 2) / CROSSING_NS;
    int rc = sim_world_run(&c, &result);
    if (rc)
        print_error("%s\n", result.sentence);
    assert_int_equal(rc, 0);
    return (double)result.ns / COMPUTE_NS;
}

/* Of what a rank sends back, the share that was posted before its last tile ended. */
static double share_before_last_tile(uint32_t rank)
{
    const struct trace *t = &trace[rank];
    uint64_t early = 0, all = 0;
    for (uint32_t i = 0; i < t->count; i++) {
        all += t->sums[i].bytes;
        early += t->sums[i].at < t->last_tile ? t->sums[i].bytes : 0;
    }
    assert_true(all > 0);
    return (double)early / (double)all;
}

#if OPS_PART > 1 /* sanitizers */
static const uint32_t forms[][2] = {{2, 2}};
#else
static const uint32_t forms[][2] = {{2, 1}, {2, 2}, {3, 2}, {4, 1}, {4, 2}};
#endif
#define FORMS (sizeof forms / sizeof *forms)
#define SEEDS 2

CASE(test_way_back)
{
    for (size_t form = 0; form < FORMS; form++)
        for (uint64_t seed = 0; seed < SEEDS; seed++) {
            double share = 1, first = 0, time = run(&traced_ffn, MK_OP_MOE_FFN, forms[form], seed);
            for (uint32_t rank = 0; rank < forms[form][0] * forms[form][1]; rank++) {
                double s = share_before_last_tile(rank),
                       f = (double)trace[rank].sums[0].at / (double)trace[rank].last_tile;
                share = s < share ? s : share;
                first = f > first ? f : first;
            }
            print_message("moe_ffn %u x %u, seed %d: %.2f of its tiles' time; on the worst rank "
                          "%.0f %% of sums "
                          "left before the last tile ended, the first at %.0f %% of the time\n",
                          forms[form][0], forms[form][1], (int)seed, time, 100 * share,
                          100 * first);
            /* Rows of other nodes are rank by rank, and what other ranks of a node add comes before
             * a rank's own: of two ranks, those of one fill the last slice. Of one, a chunk may
             * leave first, if no row of its tokens is in a tile that also has rows of this node. */
            assert_true(share > 0.95 && first < 0.9 && time < 1.4);
        }
}

CASE(test_way_there)
{
    for (size_t form = 0; form < FORMS; form++)
        for (uint64_t seed = 0; seed < SEEDS; seed++) {
            double time =
                run(&sim_op_moe_dispatch_gemm, MK_OP_MOE_DISPATCH_GEMM, forms[form], seed);
            print_message("moe_dispatch_gemm %u x %u, seed %d: %.2f of its tiles' time\n",
                          forms[form][0], forms[form][1], (int)seed, time);
            assert_true(time < 1.25); /* one after the other 1.33 */
        }
}

/* What the measure would say of a barrier between the stages. */
CASE(test_barrier_is_seen)
{
    static const uint32_t form[2] = {2, 2};
    mutation = SUMS_WAIT_FOR_ALL_TILES;
    double time = run(&traced_ffn, MK_OP_MOE_FFN, form, 0);
    mutation = NOTHING;
    print_message("moe_ffn 2 x 2 with a barrier before its sums: %.2f of its tiles' time\n", time);
    assert_true(time > 1.4);
    for (uint32_t rank = 0; rank < 4; rank++)
        assert_true(share_before_last_tile(rank) < 0.05);
}
