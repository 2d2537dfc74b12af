/* MoE dispatch puts every token's row where its experts' rows lie, byte by byte, in every order of its
 * steps and however tokens are routed; links carry what dispatch+GEMM's do, and no more; what it
 * cannot do it refuses with the nearest thing that works; broken variants are caught. (The schedule up
 * to the rows' arrival is that of moe_dispatch_gemm, whose test breaks it.) */
#include "tests/helpers/ops.h"

#include "tests/helpers/broken_ops.h"
#define sim_op_moe_dispatch broken_moe_dispatch
#include "sim/ops/moe_dispatch.c"
#include "tests/helpers/unbroken_ops.h"

#include "core/mkernel.h"

CASE(test_orders)
{
    assert_true(ops_explore(MK_OP_MOE_DISPATCH, 32) >= 768 / OPS_PART);
}

/* Records are moved as they are. */
CASE(test_fp8_orders)
{
    static const uint64_t hidden[] = {16, 144, 272, 128, 656};
    for (size_t form = 0; form < OPS_FORMS; form++)
        for (uint64_t seed = 0; seed < 20 / OPS_PART; seed++) {
            struct sim_world_config c =
                ops_varied(MK_OP_MOE_DISPATCH, form, seed % OPS_SHAPES, seed);
            c.problem.moe.hidden = hidden[seed % 5];
            c.problem.fp8 = 1;
            world_right(&c);
        }
}

/* ---- bytes ---- */

static struct ops_bytes bytes_of(enum mk_op op, size_t form, uint64_t seed)
{
    struct ops_bytes bytes = {{0}, {0}};
    struct sim_costs costs = {.context = &bytes, .copy = ops_count_copy, .put = ops_count_put};
    struct sim_world_config c = ops_config(op, ops_forms[form], ops_shapes[0]);
    struct sim_world_result result;
    c.costs = &costs;
    c.seed = seed;
    assert_int_equal(sim_world_run(&c, &result), 0);
    return bytes;
}

CASE(test_bytes)
{
    for (size_t form = 0; form < OPS_FORMS; form++)
        for (uint64_t seed = 0; seed < 8; seed++) {
            struct ops_bytes bytes = bytes_of(MK_OP_MOE_DISPATCH, form, seed),
                             expected = bytes_of(MK_OP_MOE_DISPATCH_GEMM, form, seed);
            assert_memory_equal(&bytes, &expected, sizeof bytes);
        }
}

/* ---- the plan ---- */

static const char *refusal(struct mk_moe moe, struct mk_problem q)
{
    q.op = MK_OP_MOE_DISPATCH;
    q.topo = (struct mk_topo){.nodes = 2, .gpus = 2};
    q.moe = moe;
    return ops_refusal(q);
}

CASE(test_refusals)
{
    const struct mk_problem plain = {.fp8 = 0}, fp8 = {.fp8 = 1}, bytes = {.bytes = 1};
    assert_non_null(
        strstr(refusal((struct mk_moe){0, 64, 0, 4, 1}, plain), "tokens = 0: must be 1 to"));
    assert_non_null(strstr(refusal((struct mk_moe){13, 100, 0, 4, 1}, plain),
                           "the next hidden that works is 104"));
    assert_non_null(
        strstr(refusal((struct mk_moe){13, 72, 0, 4, 1}, fp8), "the next hidden that works is 80"));
    assert_non_null(
        strstr(refusal((struct mk_moe){16, 64, 0, 6, 1}, plain), "the next that does is 8"));
    assert_non_null(strstr(refusal((struct mk_moe){16, 64, 0, 4, 5}, plain), "1 to 4"));
    assert_non_null(
        strstr(refusal((struct mk_moe){16, 64, 0, 4, 1}, bytes), "dtype=bytes: moe_dispatch"));
    assert_non_null(strstr(refusal((struct mk_moe){1 << 24, 1 << 20, 0, 4, 4}, plain),
                           "more than a command can name"));
}

/* Room for every place of every token on one rank, each expert's rows at a multiple of the tile's. */
CASE(test_rows)
{
    struct mk_plan p;
    char error[300];
    const struct mk_problem q = {
        .op = MK_OP_MOE_DISPATCH, .topo = {.nodes = 1, .gpus = 4}, .moe = {33, 64, 0, 8, 3}};
    assert_int_equal(plan_build(&p, &q, 0, 0, error, sizeof error), 0);
    assert_int_equal(mk_moe_rows(&p), (4 * 33 * 3 / 32 + 2) * 32);
}

/* ---- mutants; tables that were never made hold anything, so those that read too early begin at
 * launch 2 ---- */

static enum {
    NOTHING,
    DELIVERY_DOES_NOT_WAIT_FOR_TABLES,
    DELIVERY_DOES_NOT_WAIT_FOR_TOKENS,
    LAUNCH_BEFORE_WILL_DO,
    ROW_NOT_DELIVERED,
    ROW_SHORT,
    ROW_TO_THE_PLACE_BESIDE,
    NEVER_FROM_THE_HEAP,
    COPY_SHORT,
} mutation;

static const struct moe_dispatch_plan *plan_of(const struct mk_cta *cta)
{
    return moe_dispatch_plan_of(mutant_plan(cta));
}

int mutant_wait(struct mk_cta *cta, uint32_t flag, uint64_t target, enum mk_cause cause)
{
    const struct moe_dispatch_plan *p = plan_of(cta);
    int rows = cta->role == MK_INTER_REDUCE && flag >= p->flag_relay;
    if ((mutation == DELIVERY_DOES_NOT_WAIT_FOR_TABLES && flag == p->flag_routed &&
         cta->role == MK_INTER_REDUCE && cta->epoch > 1) ||
        (mutation == DELIVERY_DOES_NOT_WAIT_FOR_TOKENS && rows))
        return 0;
    return mk_cta_wait(cta, flag, target - (mutation == LAUNCH_BEFORE_WILL_DO && rows && target),
                       cause);
}

void mutant_copy(struct mk_cta *cta, uint32_t local, const struct mk_chunk *chunk)
{
    struct mk_chunk c = *chunk;
    if (mutation == COPY_SHORT && c.bytes == plan_of(cta)->row_bytes)
        c.bytes -= 16;
    mk_cta_copy(cta, local, &c);
}

void mutant_deliver(struct mk_cta *cta, enum mk_space space, const struct mk_chunk *chunk,
                    uint32_t rows, uint64_t pitch)
{
    const struct moe_dispatch_plan *p = plan_of(cta);
    struct mk_chunk c = *chunk;
    if (mutation == ROW_NOT_DELIVERED && c.destination / p->row_bytes % 4 == 3)
        return;
    if (mutation == ROW_SHORT)
        c.bytes -= 16;
    if (mutation == ROW_TO_THE_PLACE_BESIDE && c.destination)
        c.destination -= p->row_bytes;
    if (mutation == NEVER_FROM_THE_HEAP && c.space == MK_SPACE_HEAP) {
        c.space = MK_SPACE_ARG0;
        c.source = 0;
    }
    mk_cta_deliver(cta, space, &c, rows, pitch);
}

static struct sim_world_config config_for(uint64_t seed)
{
    static const uint32_t form[2] = {3, 2};
    struct sim_world_config c = ops_config(MK_OP_MOE_DISPATCH, form, ops_shapes[1]);
    c.op = &broken_moe_dispatch;
    c.seed = seed;
    c.problem.moe = (struct mk_moe){24, 64, 0, 12, 4};
    c.problem.tuning.tile_m = c.problem.tuning.chunk_rows = 8;
    return c;
}

CASE(test_mutants)
{
    MUTANT(NOTHING, 0);
    MUTANT(DELIVERY_DOES_NOT_WAIT_FOR_TABLES, -EBADMSG);
    MUTANT(DELIVERY_DOES_NOT_WAIT_FOR_TOKENS, -EBADMSG);
    MUTANT(LAUNCH_BEFORE_WILL_DO, -EBADMSG);
    MUTANT(ROW_NOT_DELIVERED, -EBADMSG);
    MUTANT(ROW_SHORT, -EBADMSG);
    MUTANT(ROW_TO_THE_PLACE_BESIDE, -EBADMSG);
    MUTANT(NEVER_FROM_THE_HEAP, -EBADMSG);
    MUTANT(COPY_SHORT, -EBADMSG);
}

CASE(test_faults)
{
    ops_moe_faults(MK_OP_MOE_DISPATCH);
}
