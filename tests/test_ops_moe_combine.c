/* MoE combine gives each token the sum of its experts' rows by weight, in every order of its steps
 * and however tokens are routed, and reads no row of no token; links carry what the layer's do
 * behind dispatch, and no more; what it cannot do it refuses; broken variants are caught. (How sums
 * are made is the layer's, whose tests break it.) */
#include "tests/helpers/moe_said.h"
#include "tests/helpers/ops.h"

#include "tests/helpers/broken_ops.h"
#define sim_op_moe_combine broken_moe_combine
#include "sim/ops/moe_combine.c"
#include "tests/helpers/unbroken_ops.h"

#include "core/mkernel.h"

CASE(test_orders)
{
    assert_true(ops_explore(MK_OP_MOE_COMBINE, 32) >= 768 / OPS_PART);
}

/* ---- bytes: the layer is dispatch and combine, whose ids cross twice then ---- */

static void add_bytes(enum mk_op op, size_t form, uint64_t seed, uint64_t launches,
                      struct ops_bytes *bytes)
{
    struct sim_costs costs = {.context = bytes, .copy = ops_count_copy, .put = ops_count_put};
    struct sim_world_config c = ops_config(op, ops_forms[form], ops_shapes[0]);
    struct sim_world_result result;
    c.costs = &costs;
    c.seed = seed;
    c.launches = (uint32_t)launches;
    assert_int_equal(sim_world_run(&c, &result), 0);
}

/* What ranks say, once more. */
static void add_said(size_t form, uint64_t seed, uint64_t launches, struct ops_bytes *bytes)
{
    struct sim_world_config c = ops_config(MK_OP_MOE_COMBINE, ops_forms[form], ops_shapes[0]);
    struct ops_bytes with = {{0}, {0}};
    struct mk_plan plan;
    char error[300];
    add_bytes(MK_OP_MOE_DISPATCH, form, seed, launches, &with);
    assert_int_equal(plan_build(&plan, &c.problem, 0, 0, error, sizeof error), 0);
    const struct mk_moe *m = &plan.problem.moe;
    const uint64_t record = moe_record(m->k), row = m->hidden * 2;
    struct ops_bytes counts = {{0}, {0}};
    for (uint64_t launch = 0; launch < launches; launch++)
        moe_expect_counts(&plan.problem.topo, m->experts, &counts);
    for (uint32_t rank = 0; rank < mk_world(&plan.problem.topo); rank++) {
        /* of dispatch's, tokens and their records */
        uint64_t network = with.network[rank] - counts.network[rank],
                 nvlink = with.nvlink[rank] - counts.nvlink[rank];
        assert_true(network % (row + record) == 0 && nvlink % (row + record) == 0);
        bytes->network[rank] += counts.network[rank] + network / (row + record) * record;
        bytes->nvlink[rank] += counts.nvlink[rank] + nvlink / (row + record) * record;
    }
}

CASE(test_bytes)
{
    enum { LAUNCHES = 3 };
    for (size_t form = 0; form < OPS_FORMS; form++)
        for (uint64_t seed = 0; seed < 8; seed++) {
            struct ops_bytes parts = {{0}, {0}}, layer = {{0}, {0}};
            add_bytes(MK_OP_MOE_DISPATCH, form, seed, LAUNCHES, &parts);
            add_bytes(MK_OP_MOE_COMBINE, form, seed, LAUNCHES, &parts);
            add_bytes(MK_OP_MOE_FFN, form, seed, LAUNCHES, &layer);
            add_said(form, seed, LAUNCHES, &layer);
            assert_memory_equal(&parts, &layer, sizeof parts);
        }
}

/* ---- the plan ---- */

static const char *refusal(struct mk_moe moe, int fp8)
{
    struct mk_problem q = {
        .op = MK_OP_MOE_COMBINE, .topo = {.nodes = 2, .gpus = 2}, .moe = moe, .fp8 = fp8};
    return ops_refusal(q);
}

CASE(test_refusals)
{
    assert_non_null(
        strstr(refusal((struct mk_moe){13, 100, 0, 4, 1}, 0), "the next hidden that works is 104"));
    assert_non_null(
        strstr(refusal((struct mk_moe){16, 64, 0, 6, 1}, 0), "the next that does is 8"));
    assert_non_null(strstr(refusal((struct mk_moe){16, 64, 0, 4, 5}, 0), "1 to 4"));
    assert_non_null(strstr(refusal((struct mk_moe){16, 64, 0, 4, 1}, 1),
                           "dtype=fp8: moe_combine takes bf16 alone"));
}

/* Both operators of one shape have the same rows, and no heap for tokens that do not move. */
CASE(test_rows)
{
    struct mk_plan out, back;
    char error[300];
    struct mk_problem q = {
        .op = MK_OP_MOE_DISPATCH, .topo = {.nodes = 2, .gpus = 2}, .moe = {65, 4096, 0, 8, 3}};
    assert_int_equal(plan_build(&out, &q, 0, 0, error, sizeof error), 0);
    q.op = MK_OP_MOE_COMBINE;
    assert_int_equal(plan_build(&back, &q, 0, 0, error, sizeof error), 0);
    assert_true(mk_moe_rows(&out) > 0 && mk_moe_rows(&out) == mk_moe_rows(&back));
    assert_int_equal(out.problem.tuning.tile_m, back.problem.tuning.tile_m);
    assert_true(back.heap_bytes < 11 * 65 * 4096 * 2); /* 4 + 2 + 2 rows of a token, and tables */
}

/* ---- mutants; tables that were never made hold anything, so those that read too early begin at
 * launch 2 ---- */

static enum {
    NOTHING,
    DOES_NOT_WAIT_FOR_TABLES,
    ROUTED_BEFORE_TOLD,
    PART_IS_NOT_AWAITED,
    SUM_IS_NOT_AWAITED,
    RECORDS_SHORT,
    PART_SHORT,
    TERM_LEFT_OUT,
    ROW_BESIDE,
    WEIGHTS_FORGOTTEN,
    SUM_NOT_SENT,
    SUM_SHORT,
} mutation;

static const struct moe_ffn_plan *plan_of(const struct mk_cta *cta)
{
    return &moe_combine_plan_of(mutant_plan(cta))->layer;
}

int mutant_wait(struct mk_cta *cta, uint32_t flag, uint64_t target, enum mk_cause cause)
{
    const struct moe_ffn_plan *p = plan_of(cta);
    if ((mutation == DOES_NOT_WAIT_FOR_TABLES && flag == p->dispatch.flag_routed &&
         cta->role == MK_INTER_REDUCE && cta->epoch > 1) ||
        (mutation == ROUTED_BEFORE_TOLD && flag < p->dispatch.flag_routed &&
         cause == MK_CAUSE_DATA) ||
        (mutation == PART_IS_NOT_AWAITED && flag >= p->flag_back && flag < p->flag_sum) ||
        (mutation == SUM_IS_NOT_AWAITED && flag >= p->flag_sum))
        return 0;
    return mk_cta_wait(cta, flag, target, cause);
}

void mutant_copy(struct mk_cta *cta, uint32_t local, const struct mk_chunk *chunk)
{
    struct mk_chunk c = *chunk;
    if (mutation == RECORDS_SHORT && cta->epoch > 1)
        c.bytes -= 16;
    mk_cta_copy(cta, local, &c);
}

void mutant_combine(struct mk_cta *cta, const struct mk_combine *combine)
{
    struct mk_combine c = *combine;
    if (mutation == PART_SHORT && c.space == MK_SPACE_HEAP)
        c.elements -= 8;
    if (mutation == TERM_LEFT_OUT && c.count > 1)
        c.count--;
    for (uint32_t i = 0; i < c.count; i++)
        if (c.terms[i].space == MK_SPACE_ARG0) {
            if (mutation == ROW_BESIDE)
                c.terms[i].source += plan_of(cta)->result_bytes;
            if (mutation == WEIGHTS_FORGOTTEN)
                c.terms[i].weight = 1;
        }
    mk_cta_combine(cta, &c);
}

int mutant_put(struct mk_cta *cta, uint32_t rank, const struct mk_chunk *chunk, uint32_t flag)
{
    const struct moe_ffn_plan *p = plan_of(cta);
    struct mk_chunk c = *chunk;
    if (mutation == SUM_NOT_SENT && flag >= p->flag_sum)
        return 0;
    if (mutation == SUM_SHORT && flag >= p->flag_sum)
        c.bytes -= 16;
    return mk_cta_put(cta, rank, &c, flag);
}

static struct sim_world_config config_for(uint64_t seed)
{
    static const uint32_t form[2] = {3, 2};
    struct sim_world_config c = ops_config(MK_OP_MOE_COMBINE, form, ops_shapes[1]);
    c.op = &broken_moe_combine;
    c.seed = seed;
    c.problem.moe = (struct mk_moe){24, 64, 0, 12, 4};
    c.problem.tuning.tile_m = c.problem.tuning.chunk_rows = 8;
    return c;
}

CASE(test_mutants)
{
    MUTANT(NOTHING, 0);
    MUTANT(DOES_NOT_WAIT_FOR_TABLES, OPS_ANY); /* or adds what lies outside */
    MUTANT(ROUTED_BEFORE_TOLD, OPS_ANY);
    MUTANT(PART_IS_NOT_AWAITED, -EBADMSG);
    MUTANT(SUM_IS_NOT_AWAITED, -EBADMSG);
    MUTANT(RECORDS_SHORT, OPS_ANY);
    MUTANT(PART_SHORT, -EBADMSG);
    MUTANT(TERM_LEFT_OUT, -EBADMSG);
    MUTANT(ROW_BESIDE, OPS_ANY); /* or to outside the argument */
    MUTANT(WEIGHTS_FORGOTTEN, -EBADMSG);
    MUTANT(SUM_NOT_SENT, -EIO);
    MUTANT(SUM_SHORT, -EBADMSG);
}

CASE(test_faults)
{
    ops_moe_faults(MK_OP_MOE_COMBINE);
}
