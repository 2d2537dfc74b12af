/* A rank that stops is named by the explorer's sentence, in every operator and at every step; where
 * the others needed nothing more of it, they end right. */
#include "tests/helpers/ops.h"

static const uint32_t form[2] = {2, 2};
static struct sim_world_result result;

static struct sim_world_config stopping(enum mk_op op, uint64_t seed, uint32_t rank, uint64_t step)
{
    struct sim_world_config c = ops_config(op, form, ops_shapes[0]);
    c.seed = seed;
    c.launches = 2;
    c.order = seed & 1 ? SIM_ORDER_SRD : SIM_ORDER_RC;
    c.fault = (struct sim_fault){SIM_FAULT_DROP, rank, step};
    return c;
}

static void expect_kept(const struct sim_world_config *c)
{
    int rc = sim_world_promised(c, sim_world_run(c, &result), &result);
    if (rc)
        fail_msg("%s, seed %d, rank %u stops at step %d: %d, %s", plan_op_name(c->problem.op),
                 (int)c->seed, c->fault.rank, (int)c->fault.number, rc, result.sentence);
}

static uint64_t steps_of(enum mk_op op, uint64_t seed)
{
    struct sim_world_config c = stopping(op, seed, 0, UINT64_MAX);
    expect_kept(&c);
    assert_int_equal(result.failure.kind, MK_FAIL_NONE);
    return result.steps;
}

CASE(test_whenever)
{
    for (int op = 0; op < MK_OPS; op++)
        for (uint64_t seed = 1; seed <= 8; seed++) {
            uint64_t steps = steps_of((enum mk_op)op, seed);
            for (uint32_t part = 0; part < 12 / (OPS_PART > 1 ? 6 : 1); part++) {
                struct sim_world_config c =
                    stopping((enum mk_op)op, seed, (uint32_t)(seed + part) % 4, steps * part / 12);
                expect_kept(&c);
                if (!part && result.failure.kind == MK_FAIL_NONE)
                    fail_msg("%s, seed %d: ended without rank %u", plan_op_name(op), (int)seed,
                             c.fault.rank);
            }
        }
}

CASE(test_at_the_end)
{
    for (int op = 0; op < MK_OPS; op++)
        for (uint64_t seed = 1; seed <= 4; seed++) {
            uint64_t steps = steps_of((enum mk_op)op, seed);
            for (uint64_t before = 0; before < 24; before++) {
                struct sim_world_config c =
                    stopping((enum mk_op)op, seed, (uint32_t)before % 4, steps - before);
                expect_kept(&c);
            }
        }
}
