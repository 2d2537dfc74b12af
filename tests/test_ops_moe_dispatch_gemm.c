/* MoE dispatch+GEMM gives each expert the right tokens in every order of its steps, however tokens
 * are routed; tokens cross to another node once; what it cannot do it refuses with the nearest
 * thing that works; broken variants are caught. */
#include "tests/helpers/moe_said.h"
#include "tests/helpers/ops.h"

#include "tests/helpers/broken_ops.h"
#define sim_op_moe_dispatch_gemm broken_moe
#include "sim/ops/moe_dispatch_gemm.c"
#include "tests/helpers/unbroken_ops.h"

CASE(test_orders)
{
    assert_true(ops_explore(MK_OP_MOE_DISPATCH_GEMM, 32) >= 768 / OPS_PART);
}

/* ---- FP8 ---- */

/* H with blocks of scales that are short, whole and several; I with short blocks of columns. */
static struct sim_world_config fp8_config(size_t form, uint64_t seed)
{
    static const uint64_t shapes[][2] = {{16, 8}, {144, 200}, {272, 40}, {128, 264}, {656, 136}};
    const uint64_t *s = shapes[seed % 5];
    struct sim_world_config c = ops_varied(MK_OP_MOE_DISPATCH_GEMM, form, seed % OPS_SHAPES, seed);
    c.problem.moe.hidden = s[0];
    c.problem.moe.inner = s[1];
    c.problem.b_transposed = c.problem.fp8 = 1;
    return c;
}

/* Each row of C comes from its token's codes and its own scales, of this launch. */
CASE(test_fp8_orders)
{
    for (size_t form = 0; form < OPS_FORMS; form++)
        for (uint64_t seed = 0; seed < 40 / OPS_PART; seed++) {
            struct sim_world_config c = fp8_config(form, seed);
            world_right(&c);
        }
}

/* ---- bytes: what the ids make necessary ---- */

/* A token of FP8 is a byte an element and four for 128 of them, in whole 16. */
static void expect_bytes(const struct mk_plan *plan, uint64_t seed, uint64_t launch,
                         struct ops_bytes *expected)
{
    const uint64_t hidden = plan->problem.moe.hidden,
                   row_bytes = plan->problem.fp8
                                   ? (hidden + (hidden + 127) / 128 * 4 + 15) / 16 * 16
                                   : hidden * 2;
    const struct moe_dispatch_plan *p = &moe_dispatch_gemm_plan_of(plan)->dispatch;
    const uint64_t each = row_bytes + moe_record(p->k);
    uint32_t world = mk_world(&p->topo), gpus = p->topo.gpus, ids[1024];
    moe_expect_counts(&p->topo, p->experts, expected);
    for (uint32_t rank = 0; rank < world; rank++) {
        exact_moe_ids(plan, seed, launch, rank, ids);
        for (uint32_t token = 0; token < p->tokens; token++) {
            uint8_t node_has[MK_MAX_LOCAL] = {0}, rank_has[MK_MAX_LOCAL * MK_MAX_LOCAL] = {0};
            for (uint32_t place = 0; place < p->k; place++) {
                uint32_t expert = ids[token * p->k + place], to = expert / p->rank_experts;
                if (expert >= p->experts)
                    continue;
                if (to / gpus != rank / gpus && !node_has[to / gpus]++)
                    expected->network[to / gpus * gpus + rank % gpus] += each;
                /* it enters the node on the rail, and goes to each rank once */
                if (to % gpus != rank % gpus && !rank_has[to]++)
                    expected->nvlink[to] += each;
            }
        }
    }
}

CASE(test_bytes)
{
    for (size_t form = 0; form < OPS_FORMS; form++)
        for (uint64_t seed = 0; seed < 8; seed++) {
            struct ops_bytes bytes = {{0}, {0}}, expected = {{0}, {0}};
            struct sim_costs costs = {
                .context = &bytes, .copy = ops_count_copy, .put = ops_count_put};
            struct sim_world_config c =
                ops_config(MK_OP_MOE_DISPATCH_GEMM, ops_forms[form], ops_shapes[0]);
            struct sim_world_result result;
            struct mk_plan plan;
            char error[300];
            if (seed >= 4) {
                c = fp8_config(form, seed);
                c.problem.tuning = (struct mk_tuning){0};
            }
            c.costs = &costs;
            c.seed = seed;
            assert_int_equal(sim_world_run(&c, &result), 0);
            assert_int_equal(plan_build(&plan, &c.problem, 0, 0, error, sizeof error), 0);
            for (uint64_t launch = 1; launch <= c.launches; launch++)
                expect_bytes(&plan, seed, launch, &expected);
            assert_memory_equal(&bytes, &expected, sizeof bytes);
        }
}

/* ---- the plan ---- */

static const char *refusal_of(struct mk_moe moe, int fp8, int transposed)
{
    struct mk_problem q = {.op = MK_OP_MOE_DISPATCH_GEMM,
                           .topo = {.nodes = 2, .gpus = 2},
                           .moe = moe,
                           .fp8 = fp8,
                           .b_transposed = transposed};
    return ops_refusal(q);
}

static const char *refusal(struct mk_moe moe)
{
    return refusal_of(moe, 0, 0);
}

CASE(test_refusals)
{
    assert_non_null(strstr(refusal((struct mk_moe){0, 64, 8, 4, 1}), "tokens = 0: must be 1 to"));
    assert_non_null(
        strstr(refusal((struct mk_moe){13, 100, 8, 4, 1}), "the next hidden that works is 104"));
    assert_non_null(
        strstr(refusal((struct mk_moe){16, 64, 9, 4, 1}), "the next inner that works is 16"));
    assert_non_null(strstr(refusal((struct mk_moe){16, 64, 8, 6, 1}), "the next that does is 8"));
    assert_non_null(strstr(refusal_of((struct mk_moe){16, 72, 8, 4, 1}, 1, 1),
                           "the next hidden that works is 80"));
    assert_non_null(
        strstr(refusal_of((struct mk_moe){16, 64, 8, 4, 1}, 1, 0), "B has to be [N,K]"));
    assert_non_null(strstr(refusal((struct mk_moe){16, 64, 8, 4, 5}), "1 to 4"));
    assert_non_null(strstr(refusal((struct mk_moe){1 << 24, 1 << 20, 8, 4, 4}),
                           "more than a command can name"));
}

/* On a GPU, the narrowest tile that has all columns of an expert's B, else the widest; of FP8 128
 * columns at most where an expert has no more rows than a tile. */
CASE(test_columns_of_tiles)
{
    static const uint32_t cases[][4] = {
        /* tokens, columns; of a tile of bf16, of FP8 */
        {1024, 8, 64, 64},     {1024, 64, 64, 64},     {1024, 72, 128, 128},  {1024, 128, 128, 128},
        {1024, 136, 256, 256}, {1024, 2048, 256, 256}, {256, 2048, 256, 128}, {258, 2048, 256, 256},
        {16, 64, 64, 64},      {16, 136, 256, 128}};
    for (uint32_t i = 0; i < 2 * sizeof cases / sizeof *cases; i++) {
        const uint32_t *of = cases[i / 2];
        char error[300] = "";
        struct mk_problem q = {.op = MK_OP_MOE_DISPATCH_GEMM,
                               .topo = {.nodes = 1, .gpus = 2},
                               .moe = {of[0], 512, of[1], 8, 2},
                               .fp8 = i % 2,
                               .b_transposed = 1,
                               .exec = MK_EXEC_CUDA,
                               .sms = 132};
        struct mk_plan p;
        if (plan_build(&p, &q, 0, 0, error, sizeof error))
            fail_msg("%u tokens, inner %u: %s", of[0], of[1], error);
        assert_int_equal(p.problem.tuning.tile_m, 128);
        assert_int_equal(p.problem.tuning.tile_n, of[2 + i % 2]);
    }
}

/* ---- mutants; tables that were never made hold anything, so those that read too early begin at
 * launch 2 ---- */

static enum mutation {
    NOTHING,
    ROUTED_BEFORE_TOLD,
    COMPUTE_DOES_NOT_WAIT_FOR_TABLES,
    COMPUTE_DOES_NOT_WAIT_FOR_ROWS,
    ONE_ROW_TOO_FEW,
    FORWARDER_DOES_NOT_WAIT,
    LANDED_IS_NOT_AWAITED,
    LANDED_TOLD_EARLY,
    EPOCH_REUSED,
    ONE_BUFFER,
    COPY_SHORT,
    PUT_SHORT,
    PUT_BEFORE_PACKED,
    CHUNK_NOT_SENT,
    TABLES_TOLD_BEFORE_MADE,
    ROW_TOLD_TWICE,
    NO_DRAIN
} mutation;

static struct mk_route route_held[16];
static struct mk_cta *route_held_by[16];

static const struct moe_dispatch_plan *plan_of(const struct mk_cta *cta)
{
    return &moe_dispatch_gemm_plan_of(mutant_plan(cta))->dispatch;
}

int mutant_wait(struct mk_cta *cta, uint32_t flag, uint64_t target, enum mk_cause cause)
{
    const struct moe_dispatch_plan *p = plan_of(cta);
    if ((mutation == ROUTED_BEFORE_TOLD && flag < p->flag_routed && cause == MK_CAUSE_DATA) ||
        (mutation == COMPUTE_DOES_NOT_WAIT_FOR_TABLES && flag == p->flag_routed &&
         cta->role == MK_COMPUTE && cta->epoch > 1) ||
        (mutation == LANDED_IS_NOT_AWAITED && flag >= p->flag_landed && flag < p->flag_rows) ||
        (mutation == COMPUTE_DOES_NOT_WAIT_FOR_ROWS && flag >= p->flag_rows) ||
        (mutation == FORWARDER_DOES_NOT_WAIT && flag >= p->flag_relay && flag < p->flag_landed))
        return 0;
    if (mutation == ONE_ROW_TOO_FEW && flag >= p->flag_rows && target)
        target--;
    if (mutation == EPOCH_REUSED && flag >= p->flag_relay && flag < p->flag_rows)
        target = 1;
    return mk_cta_wait(cta, flag, target, cause);
}

void mutant_copy(struct mk_cta *cta, uint32_t local, const struct mk_chunk *chunk)
{
    struct mk_chunk c = *chunk;
    int row = c.destination >= plan_of(cta)->packed;
    int here = local == mk_local_of(&plan_of(cta)->topo, plan_of(cta)->topo.rank);
    if ((mutation == LANDED_TOLD_EARLY && cta->role == MK_INTRA_COMM && row && !here) ||
        (mutation == PUT_BEFORE_PACKED && cta->role == MK_INTER_SEND)) {
        mutant_hold((struct mutant_held){cta, local, 1, 0, c, 0, 0});
        return;
    }
    if (mutation == COPY_SHORT && row)
        c.bytes -= 16;
    mk_cta_copy(cta, local, &c);
}

void mutant_route(struct mk_cta *cta, const struct mk_route *route)
{
    if (mutation == TABLES_TOLD_BEFORE_MADE && cta->epoch > 1 && route->step == MK_ROUTE_LAY_OUT &&
        !route->part) {
        route_held[plan_of(cta)->topo.rank] = *route;
        route_held_by[plan_of(cta)->topo.rank] = cta;
        return;
    }
    mk_cta_route(cta, route);
}

void mutant_signal(struct mk_cta *cta, uint32_t local, uint32_t flag, uint64_t value)
{
    const struct moe_dispatch_plan *p = plan_of(cta);
    int landed = flag >= p->flag_landed && flag < p->flag_rows;
    mk_cta_signal(cta, local, flag, value);
    if (mutation == LANDED_TOLD_EARLY && landed)
        mutant_release(cta);
}

void mutant_add(struct mk_cta *cta, uint32_t local, uint32_t flag, uint64_t count)
{
    uint32_t rank = plan_of(cta)->topo.rank;
    int row = flag >= plan_of(cta)->flag_rows;
    mk_cta_add(cta, local, flag, mutation == ROW_TOLD_TWICE && row ? 2 * count : count);
    if (flag == plan_of(cta)->flag_routed && route_held_by[rank] == cta) {
        route_held_by[rank] = NULL;
        mk_cta_route(cta, &route_held[rank]);
    }
}

int mutant_drain(struct mk_cta *cta)
{
    return mutation == NO_DRAIN ? 0 : mk_cta_drain(cta);
}

int mutant_put(struct mk_cta *cta, uint32_t rank, const struct mk_chunk *chunk, uint32_t flag)
{
    const struct moe_dispatch_plan *p = plan_of(cta);
    struct mk_chunk c = *chunk;
    int tokens = flag >= p->flag_relay;
    if (mutation == CHUNK_NOT_SENT && tokens && c.id % p->chunks == 1)
        return 0;
    if (mutation == PUT_SHORT && tokens)
        c.bytes -= 16;
    int result = mk_cta_put(cta, rank, &c, flag);
    mutant_release(cta);
    return result;
}

static struct sim_world_config config_for(uint64_t seed)
{
    static const uint32_t form[2] = {3, 2};
    struct sim_world_config c = ops_config(MK_OP_MOE_DISPATCH_GEMM, form, ops_shapes[1]);
    memset(mutant_held, 0, sizeof mutant_held);
    memset(route_held_by, 0, sizeof route_held_by);
    c.op = &broken_moe;
    c.seed = seed;
    c.problem.moe = (struct mk_moe){24, 64, 24, 12, 4};
    c.problem.tuning.tile_m = c.problem.tuning.tile_n = c.problem.tuning.chunk_rows = 8;
    return c;
}

/* What ranks say, of both parities, in one buffer: what of launch e is being routed, a rank that is
 * ahead overwrites. */
static int one_buffer_run(const struct mk_plan *plan, struct mk_cta *cta)
{
    struct moe_dispatch_gemm_plan p = *moe_dispatch_gemm_plan_of(plan);
    p.dispatch.said[1] = p.dispatch.said[0];
    p.dispatch.landed_records[1] = p.dispatch.landed_records[0];
    p.dispatch.railed[1] = p.dispatch.railed[0];
    return moe_dispatch_gemm_run(&p, cta);
}

static struct sim_world_config one_buffer_config(uint64_t seed)
{
    static struct sim_op op;
    struct sim_world_config c = config_for(seed);
    op = broken_moe;
    op.run = one_buffer_run;
    c.op = &op;
    c.launches = 8;
    return c;
}

/* Puts of two launches under way at once, in any order; a rank that gets no tokens waits for
 * none. */
static struct sim_world_config srd_config(uint64_t seed)
{
    struct sim_world_config c = config_for(seed);
    c.problem.topo = (struct mk_topo){.nodes = 4, .gpus = 1};
    c.problem.moe = (struct mk_moe){8, 64, 8, 4, 1};
    c.order = SIM_ORDER_SRD;
    c.launches = 16;
    c.delay_ns = 5000;
    return c;
}

CASE(test_mutants)
{
    MUTANT(NOTHING, 0);
    MUTANT(ROUTED_BEFORE_TOLD, OPS_ANY);
    MUTANT(COMPUTE_DOES_NOT_WAIT_FOR_TABLES, -EBADMSG);
    MUTANT(COMPUTE_DOES_NOT_WAIT_FOR_ROWS, -EBADMSG);
    MUTANT(ONE_ROW_TOO_FEW, -EBADMSG);
    MUTANT(FORWARDER_DOES_NOT_WAIT, -EBADMSG);
    MUTANT(LANDED_IS_NOT_AWAITED, -EBADMSG);
    MUTANT(LANDED_TOLD_EARLY, -EBADMSG);
    MUTANT(EPOCH_REUSED, OPS_ANY);
    MUTANT(COPY_SHORT, -EBADMSG);
    MUTANT(PUT_SHORT, -EBADMSG);
    MUTANT(PUT_BEFORE_PACKED, -EBADMSG);
    MUTANT(CHUNK_NOT_SENT, -EIO);
    MUTANT(TABLES_TOLD_BEFORE_MADE, OPS_ANY);
    MUTANT(ROW_TOLD_TWICE, -EBADMSG);
    mutation = NOTHING;
    ops_hunt(srd_config, "NOTHING, over SRD", 0);
    mutation = NO_DRAIN;
    ops_hunt(srd_config, "NO_DRAIN", OPS_ANY);
    mutation = ONE_BUFFER;
    ops_hunt(one_buffer_config, "ONE_BUFFER", OPS_ANY);
}

CASE(test_faults)
{
    ops_moe_faults(MK_OP_MOE_DISPATCH_GEMM);
}
