/* Broken variants of the MoE feed-forward layer's schedule are caught, each by a wrong result or a
 * wait that names what is missing; the whole one lets no stage wait for all experts, and survives
 * or reports faults. */
#include "tests/helpers/ops.h"

#include "tests/helpers/broken_ops.h"
#define sim_op_moe_ffn broken_ffn
#include "sim/ops/moe_ffn.c"
#include "tests/helpers/unbroken_ops.h"

static enum mutation {
    NOTHING,
    DOWN_DOES_NOT_WAIT,
    DOWN_WAITS_FOR_ONE_TILE_TOO_FEW,
    SUM_DOES_NOT_WAIT_FOR_ROWS,
    SUM_WAITS_FOR_ONE_TILE_TOO_FEW,
    SUM_DOES_NOT_WAIT_FOR_RANKS,
    SUM_WAITS_FOR_ONE_PART_TOO_FEW,
    TOTAL_DOES_NOT_WAIT_FOR_SUMS,
    EPOCH_REUSED,
    TILE_TOLD_TWICE,
    PART_TOLD_AHEAD,
    PART_TOLD_BEFORE_ADDED,
    PART_SHORT,
    PART_TO_THE_PLACE_BESIDE,
    ADDED_AFTER_PUT,
    SUM_SHORT,
    SUM_NOT_SENT,
    WEIGHTS_LEFT_OUT,
    TERM_LEFT_OUT,
    RECORDS_ADDED_AS_BF16, /* of FP8 */
    LAST_RUN_COMES_LATE    /* breaks nothing: see test_no_barrier */
} mutation;

static struct held {
    struct mk_cta *cta;
    struct mk_combine combine;
} held[1024];

static int fp8; /* tokens, weights and what comes back */

static uint32_t held_back; /* how often test_no_barrier held rows back */

static const struct moe_ffn_plan *plan_of(const struct mk_cta *cta)
{
    return moe_ffn_plan_of(mutant_plan(cta));
}

static struct held *hold(struct mk_cta *cta)
{
    for (size_t i = 0; i < sizeof held / sizeof *held; i++)
        if (!held[i].cta) {
            held[i].cta = cta;
            return &held[i];
        }
    fail_msg("too much is held back");
    return NULL;
}

static void release(struct mk_cta *cta)
{
    for (size_t i = 0; i < sizeof held / sizeof *held; i++)
        if (held[i].cta == cta) {
            held[i].cta = NULL;
            mk_cta_combine(cta, &held[i].combine);
        }
}

/* Rows of the last tile that is computed, if two groups of tiles or more come before it, are taken
 * up only once results of the first one are made. */
static int await_first_tile(struct mk_cta *cta, const struct moe_ffn_plan *p, uint32_t flag)
{
    const struct moe_dispatch_plan *d = &p->dispatch;
    uint32_t count = mk_cta_load(cta, d->route.order_head + offsetof(struct mk_route_head, count));
    struct mk_tile first = {0}, last = {0};
    if (!count || count <= 3 * d->route.group_rows * (p->up_tiles + p->down_tiles))
        return 0;
    moe_ffn_tile(p, cta, 0, &first);
    moe_ffn_tile(p, cta, count - 1, &last);
    if (flag != moe_rows_flag(d, last.row))
        return 0;
    held_back++;
    return moe_ffn_await(p, cta, moe_ffn_made_flag(p, first.row), first.row, p->down_tiles);
}

int mutant_wait(struct mk_cta *cta, uint32_t flag, uint64_t target, enum mk_cause cause)
{
    const struct moe_ffn_plan *p = plan_of(cta);
    int acted = flag >= p->flag_acted && flag < p->flag_made,
        made = flag >= p->flag_made && flag < p->flag_back,
        back = flag >= p->flag_back && flag < p->flag_sum;
    uint64_t tile = p->dispatch.tile_m * MK_TILE_PARTS;
    if ((mutation == DOWN_DOES_NOT_WAIT && acted) ||
        (mutation == SUM_DOES_NOT_WAIT_FOR_ROWS && made) ||
        (mutation == SUM_DOES_NOT_WAIT_FOR_RANKS && back) ||
        (mutation == TOTAL_DOES_NOT_WAIT_FOR_SUMS && flag >= p->flag_sum))
        return 0;
    if ((mutation == DOWN_WAITS_FOR_ONE_TILE_TOO_FEW && acted) ||
        (mutation == SUM_WAITS_FOR_ONE_TILE_TOO_FEW && made))
        target -= target < tile ? target : tile;
    if (mutation == SUM_WAITS_FOR_ONE_PART_TOO_FEW && back && target)
        target--;
    if (mutation == EPOCH_REUSED && flag >= p->flag_sum)
        target = 1;
    if (mutation == LAST_RUN_COMES_LATE && flag >= p->dispatch.flag_rows && flag < p->flag_acted &&
        await_first_tile(cta, p, flag))
        return 1;
    return mk_cta_wait(cta, flag, target, cause);
}

void mutant_combine(struct mk_cta *cta, const struct mk_combine *combine)
{
    const struct moe_ffn_plan *p = plan_of(cta);
    struct mk_combine c = *combine;
    int part = c.space == MK_SPACE_HEAP && c.destination >= p->back && c.destination < p->sums;
    if ((mutation == ADDED_AFTER_PUT && c.space == MK_SPACE_HEAP && !part) ||
        (mutation == PART_TOLD_BEFORE_ADDED && part)) {
        hold(cta)->combine = c;
        return;
    }
    if (mutation == PART_SHORT && part)
        c.elements -= 8;
    if (mutation == PART_TO_THE_PLACE_BESIDE && part && c.destination > p->back)
        c.destination -= p->carried_bytes;
    if (mutation == TERM_LEFT_OUT && c.count > 1)
        c.count--;
    if (mutation == RECORDS_ADDED_AS_BF16)
        c.records = 0;
    mk_cta_combine(cta, &c);
}

void mutant_route(struct mk_cta *cta, const struct mk_route *route)
{
    struct mk_route r = *route;
    if (mutation == WEIGHTS_LEFT_OUT)
        r.weights_space = MK_SPACE_HEAP;
    mk_cta_route(cta, &r);
}

void mutant_signal(struct mk_cta *cta, uint32_t local, uint32_t flag, uint64_t value)
{
    int ahead = mutation == PART_TOLD_AHEAD && flag >= plan_of(cta)->flag_back;
    mk_cta_signal(cta, local, flag, value + (uint64_t)ahead);
    release(cta);
}

void mutant_add(struct mk_cta *cta, uint32_t local, uint32_t flag, uint64_t count)
{
    const struct moe_ffn_plan *p = plan_of(cta);
    int twice = mutation == TILE_TOLD_TWICE && flag >= p->flag_acted && flag < p->flag_made;
    mk_cta_add(cta, local, flag, twice ? 2 * count : count);
    release(cta);
}

int mutant_put(struct mk_cta *cta, uint32_t rank, const struct mk_chunk *chunk, uint32_t flag)
{
    const struct moe_ffn_plan *p = plan_of(cta);
    struct mk_chunk c = *chunk;
    if (mutation == SUM_NOT_SENT && flag >= p->flag_sum)
        return 0;
    if (mutation == SUM_SHORT && flag >= p->flag_sum)
        c.bytes -= 16;
    int result = mk_cta_put(cta, rank, &c, flag);
    release(cta);
    return result;
}

static struct sim_world_config config_for(uint64_t seed)
{
    static const uint32_t form[2] = {3, 2};
    struct sim_world_config c = ops_config(MK_OP_MOE_FFN, form, ops_shapes[1]);
    memset(held, 0, sizeof held);
    c.op = &broken_ffn;
    c.seed = seed;
    c.problem.deterministic = (int)(seed >> 2 & 1);
    c.problem.moe = (struct mk_moe){24, 64, 24, 12, 4};
    c.problem.tuning.tile_m = c.problem.tuning.chunk_rows = 8;
    c.problem.tuning.tile_n = 16;
    if (fp8) {
        c.problem.fp8 = c.problem.b_transposed = c.problem.back_fp8 = 1;
        c.problem.deterministic = 0;
        c.problem.moe = (struct mk_moe){24, 144, 144, 12, 4};
        c.problem.tuning.tile_n = 256;
    }
    return c;
}

/* What ranks say, of both parities, in one buffer: weights of launch e, which are being added, a
 * rank that is ahead overwrites. */
static struct moe_ffn_plan one_buffer(const struct mk_plan *plan)
{
    struct moe_ffn_plan p = *moe_ffn_plan_of(plan);
    p.dispatch.said[1] = p.dispatch.said[0];
    p.dispatch.landed_records[1] = p.dispatch.landed_records[0];
    p.dispatch.railed[1] = p.dispatch.railed[0];
    return p;
}

static int one_buffer_run(const struct mk_plan *plan, struct mk_cta *cta)
{
    const struct moe_ffn_plan p = one_buffer(plan);
    return moe_ffn_run(&p, cta);
}

static struct sim_world_config one_buffer_config(uint64_t seed)
{
    static struct sim_op op;
    struct sim_world_config c = config_for(seed);
    op = broken_ffn;
    op.run = one_buffer_run;
    c.op = &op;
    c.launches = 8;
    return c;
}

static void all_mutants(void)
{
    MUTANT(NOTHING, 0);
    MUTANT(DOWN_DOES_NOT_WAIT, -EBADMSG);
    MUTANT(DOWN_WAITS_FOR_ONE_TILE_TOO_FEW, -EBADMSG);
    MUTANT(SUM_DOES_NOT_WAIT_FOR_ROWS, -EBADMSG);
    MUTANT(SUM_WAITS_FOR_ONE_TILE_TOO_FEW, -EBADMSG);
    MUTANT(SUM_DOES_NOT_WAIT_FOR_RANKS, -EBADMSG);
    MUTANT(SUM_WAITS_FOR_ONE_PART_TOO_FEW, -EBADMSG);
    MUTANT(TOTAL_DOES_NOT_WAIT_FOR_SUMS, -EBADMSG);
    MUTANT(EPOCH_REUSED, -EBADMSG);
    MUTANT(TILE_TOLD_TWICE, -EBADMSG);
    MUTANT(PART_TOLD_AHEAD, -EBADMSG);
    MUTANT(PART_TOLD_BEFORE_ADDED, -EBADMSG);
    MUTANT(PART_SHORT, -EBADMSG);
    MUTANT(PART_TO_THE_PLACE_BESIDE, -EBADMSG);
    MUTANT(ADDED_AFTER_PUT, -EBADMSG);
    MUTANT(SUM_SHORT, -EBADMSG);
    MUTANT(SUM_NOT_SENT, -EIO);
    MUTANT(WEIGHTS_LEFT_OUT, -EBADMSG);
    MUTANT(TERM_LEFT_OUT, -EBADMSG);
    mutation = NOTHING;
    ops_hunt(one_buffer_config, "ONE_BUFFER", OPS_ANY);
}

CASE(test_mutants)
{
    all_mutants();
}

/* The same of FP8, where rows, the activation and sums have scales, which are read too early where
 * the codes are, or not brought. */
CASE(test_fp8_mutants)
{
    fp8 = 1;
    all_mutants();
    MUTANT(RECORDS_ADDED_AS_BF16, -EBADMSG);
    mutation = NOTHING;
    fp8 = 0;
}

static struct sim_world_config four_experts_config(uint64_t seed)
{
    struct sim_world_config c = config_for(seed);
    c.problem.topo = (struct mk_topo){.nodes = 2, .gpus = 2};
    c.problem.moe = (struct mk_moe){24, 64, 24, 16, 4};
    return c;
}

/* With the last experts' rows held back until the first ones' results are made, every launch still
 * ends: no stage waits for all experts. */
CASE(test_no_barrier)
{
    mutation = LAST_RUN_COMES_LATE;
    held_back = 0;
    ops_hunt(four_experts_config, "LAST_RUN_COMES_LATE", 0);
    assert_true(held_back > 100 / OPS_PART);
    mutation = NOTHING;
}

/* For what rank 3 says, or passes on, of tokens' experts; or for a rank's own tables that come of it,
 * which are waited for from the beginning. */
static void expect_mute(const struct sim_world_result *r)
{
    assert_true(strstr(r->sentence, "its tables of what comes to its experts") ||
                (r->failure.producer % 2 && strstr(r->sentence, "tokens' experts")));
}

CASE(test_faults)
{
    ops_faults(MK_OP_MOE_FFN, ops_shapes[3], 3, expect_mute);
}
