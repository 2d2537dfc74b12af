/* GEMM+AllReduce gives every rank the same right sum in every order of its steps, within the bounds
 * of its arithmetic and with the fewest bytes; deterministic results have the same bits in every
 * order; broken variants are caught. */
#include "tests/helpers/ops.h"

#define SIM_OP_BROKEN_CTA "tests/helpers/broken_ops.h"
#define SIM_OP_NAME broken_gemm_ar
#include "sim/ops/gemm_ar.c"
#include "tests/helpers/unbroken_ops.h"

static void test_orders(void **state)
{
    assert_true(ops_explore(MK_OP_GEMM_AR, 32) >= 768 / OPS_PART);
}

static void test_errors(void **state)
{
    ops_sum_errors(MK_OP_GEMM_AR, 1);
}

static void test_bits(void **state)
{
    ops_sum_bits(MK_OP_GEMM_AR, 1);
}

static void test_bytes(void **state)
{
    ops_bytes_are_minimal(MK_OP_GEMM_AR);
}

static void test_refusals(void **state)
{
    struct mk_problem q = {
        .op = MK_OP_GEMM_AR, .topo = {.nodes = 2, .gpus = 2}, .m = 66, .n = 40, .k = 72};
    struct mk_plan p;
    char error[300];
    assert_int_equal(plan_build(&p, &q, 0, 0, error, sizeof error), -EINVAL);
    assert_non_null(strstr(error, "the next that does is 68"));
    q.m = 68;
    q.tuning.split = (struct mk_role_split){{2, 0, 0, 1}};
    assert_int_equal(plan_build(&p, &q, 0, 0, error, sizeof error), -EINVAL);
    assert_non_null(
        strstr(error, "at least 1 intra_comm, no inter_send and at least 1 inter_reduce"));
    q.topo.gpus = 1;
    assert_int_equal(plan_build(&p, &q, 0, 0, error, sizeof error), 0);
}

/* ---- mutants; those of the reduction are in test_ops_gemm_rs.c ---- */

static enum mutation {
    NOTHING,
    PUSHER_DOES_NOT_WAIT,
    FORWARDER_DOES_NOT_WAIT,
    DELIVERER_DOES_NOT_WAIT,
    EPOCH_REUSED,
    FLAG_BEFORE_COPY,
    ANNOUNCED_BEFORE_SUMMED,
    COPY_SHORT,
    LAST_UNIT_NOT_PUSHED,
    LAST_UNIT_NOT_DELIVERED,
    PUT_BEFORE_SUM
} mutation;

static struct held {
    struct mk_cta *cta;
    uint32_t local;
    struct mk_chunk chunk;
    struct mk_sum sum;
} held[64];

static struct held *held_by(const struct mk_cta *cta)
{
    for (size_t i = 0; i < sizeof held / sizeof *held; i++)
        if (held[i].cta == cta)
            return &held[i];
    return NULL;
}

int mutant_wait(struct mk_cta *cta, uint32_t flag, uint64_t target, enum mk_cause cause)
{
    const struct mk_plan *plan = ((const struct sim_cta *)(const void *)cta)->rank->plan;
    int whole = flag >= gemm_ar_plan_of(plan)->flag_whole;
    if ((mutation == PUSHER_DOES_NOT_WAIT && cta->role == MK_INTRA_COMM &&
         cause == MK_CAUSE_DATA) ||
        (mutation == FORWARDER_DOES_NOT_WAIT && cta->role == MK_INTRA_COMM &&
         cause == MK_CAUSE_NETWORK) ||
        (mutation == DELIVERER_DOES_NOT_WAIT && cta->role == MK_INTER_REDUCE && whole))
        return 0;
    if (mutation == EPOCH_REUSED && whole)
        target = 1;
    return mk_cta_wait(cta, flag, target, cause);
}

void mutant_copy(struct mk_cta *cta, uint32_t local, const struct mk_chunk *chunk)
{
    struct mk_chunk c = *chunk;
    if (mutation == FLAG_BEFORE_COPY) {
        *held_by(NULL) = (struct held){.cta = cta, .local = local, .chunk = c};
        return;
    }
    if (mutation == COPY_SHORT)
        c.bytes -= 16;
    mk_cta_copy(cta, local, &c);
}

int mutant_wait_all(struct mk_cta *cta, uint32_t flag, uint32_t count, uint64_t target,
                    enum mk_cause cause)
{
    for (uint32_t i = 0; i < count; i++)
        if (mutant_wait(cta, flag + i, target, cause))
            return 1;
    return 0;
}

void mutant_reduce(struct mk_cta *cta, const struct mk_sum *sum)
{
    if (mutation == LAST_UNIT_NOT_DELIVERED && sum->space == MK_SPACE_ARG2 && sum->id % 3 == 2)
        return;
    if ((mutation == ANNOUNCED_BEFORE_SUMMED || mutation == PUT_BEFORE_SUM) &&
        sum->space == MK_SPACE_HEAP) {
        *held_by(NULL) = (struct held){.cta = cta, .sum = *sum};
        return;
    }
    mk_cta_reduce(cta, sum);
}

static void release(struct mk_cta *cta)
{
    struct held *h = held_by(cta), copy;
    if (!h)
        return;
    copy = *h;
    h->cta = NULL;
    if (copy.chunk.bytes)
        mk_cta_copy(cta, copy.local, &copy.chunk);
    else
        mk_cta_reduce(cta, &copy.sum);
}

void mutant_signal(struct mk_cta *cta, uint32_t local, uint32_t flag, uint64_t value)
{
    if (mutation == LAST_UNIT_NOT_PUSHED && cta->role == MK_INTRA_COMM && flag % 3 == 2)
        return;
    mk_cta_signal(cta, local, flag, value);
    release(cta);
}

void mutant_add(struct mk_cta *cta, uint32_t local, uint32_t flag, uint64_t count)
{
    mk_cta_add(cta, local, flag, count);
}

int mutant_put(struct mk_cta *cta, uint32_t rank, const struct mk_chunk *chunk, uint32_t flag)
{
    int result = mk_cta_put(cta, rank, chunk, flag);
    if (mutation == PUT_BEFORE_SUM)
        release(cta);
    return result;
}

int mutant_drain(struct mk_cta *cta)
{
    return mk_cta_drain(cta);
}

static struct sim_world_config config_for(uint64_t seed)
{
    uint32_t form[2] = {3, 2};
    if (mutation == ANNOUNCED_BEFORE_SUMMED) /* between nodes the put comes first */
        form[0] = 1;
    struct sim_world_config c = ops_config(MK_OP_GEMM_AR, form, ops_shapes[0]);
    memset(held, 0, sizeof held);
    c.op = &broken_gemm_ar;
    c.seed = seed;
    c.launches = 5;
    /* three chunks, the last of one row */
    c.problem.tuning.tile_m = c.problem.tuning.chunk_rows = 16;
    c.problem.deterministic = (int)(seed & 1);
    return c;
}

#define MUTANT(name, expected) (mutation = name, ops_hunt(config_for, #name, expected))

static void test_mutants(void **state)
{
    MUTANT(NOTHING, 0);
    MUTANT(PUSHER_DOES_NOT_WAIT, -EBADMSG);
    MUTANT(FORWARDER_DOES_NOT_WAIT, -EBADMSG);
    MUTANT(DELIVERER_DOES_NOT_WAIT, -EBADMSG);
    MUTANT(EPOCH_REUSED, -EBADMSG);
    MUTANT(FLAG_BEFORE_COPY, -EBADMSG);
    MUTANT(ANNOUNCED_BEFORE_SUMMED, -EBADMSG);
    MUTANT(COPY_SHORT, -EBADMSG);
    MUTANT(LAST_UNIT_NOT_PUSHED, -EIO);
    MUTANT(LAST_UNIT_NOT_DELIVERED, -EBADMSG);
    MUTANT(PUT_BEFORE_SUM, -EBADMSG);
}

static void expect_mute(const struct sim_world_result *r)
{
    assert_true(r->failure.chunk != UINT32_MAX); /* it names a chunk, and who owes it */
}

static void test_faults(void **state)
{
    ops_faults(MK_OP_GEMM_AR, ops_shapes[0], 6, expect_mute);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals), cmocka_unit_test(test_orders),
        cmocka_unit_test(test_errors),   cmocka_unit_test(test_bits),
        cmocka_unit_test(test_bytes),    cmocka_unit_test(test_mutants),
        cmocka_unit_test(test_faults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
