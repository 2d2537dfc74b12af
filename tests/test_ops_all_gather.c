/* AllGather is right in every order of its steps and with the fewest bytes, refuses what does
 * not fit with the nearest that does, tells faults, and breaks where a step of its schedule is
 * left out. */
#include "tests/helpers/ops.h"

#include "tests/helpers/broken_ops.h"
#define sim_op_all_gather broken_all_gather
#include "sim/ops/all_gather.c"
#include "tests/helpers/unbroken_ops.h"

static const char *refusal(struct mk_problem q)
{
    static char error[300];
    struct mk_plan p;
    assert_int_equal(plan_build(&p, &q, 0, 0, error, sizeof error), -EINVAL);
    return error;
}

static void test_refusals(void **state)
{
    const struct mk_problem ok = {.op = MK_OP_ALL_GATHER, .topo = {2, 3, 0}, .m = 60, .k = 16};
    struct mk_problem q = ok;
    struct mk_plan p;
    char error[300];
    assert_int_equal(plan_build(&p, &q, 0, 0, error, sizeof error), 0);
    q.m = 61;
    assert_non_null(strstr(refusal(q), "the next that does is 66"));
    q = ok, q.k = 12;
    assert_non_null(strstr(refusal(q), "the next K that works is 16"));
    q = ok, q.k = 0;
    assert_non_null(strstr(refusal(q), "K = 0: must be 1 to"));
    q = ok, q.tuning.chunk_rows = 20;
    assert_non_null(strstr(refusal(q), "the next that works is 24"));
    q = ok, q.k = 1 << 28, q.tuning.chunk_rows = 24;
    assert_non_null(strstr(refusal(q), "at most 8 of 268435456 elements"));
    q = ok, q.tuning.split = (struct mk_role_split){.ctas = {1, 1, 1, 1}};
    assert_non_null(
        strstr(refusal(q), "takes no compute, at least 1 intra_comm, at least 1 inter_send"));
}

static void test_orders(void **state)
{
    assert_true(ops_explore(MK_OP_ALL_GATHER, 32) >= 768 / OPS_PART);
}

/* Its own sends, C and the network's share aside: what a rank copies to itself is no link's. */
static void test_bytes(void **state)
{
    ops_bytes_are_minimal(MK_OP_ALL_GATHER, 0);
}

static void expect_mute(const struct sim_world_result *r)
{
    assert_int_equal(r->failure.producer, 3);
    assert_non_null(strstr(r->sentence, "of rank 3's A"));
}

static void test_faults(void **state)
{
    ops_faults(MK_OP_ALL_GATHER, ops_shapes[0], 4, expect_mute);
}

/* ---- mutants ---- */

static enum {
    NOTHING,
    DELIVERY_DOES_NOT_WAIT,
    FORWARDER_DOES_NOT_WAIT,
    SENDER_DOES_NOT_WAIT,
    EPOCH_REUSED,
    ONE_BUFFER,
    FLAG_BEFORE_COPY,
    COPY_SHORT,
    LAST_CHUNK_NOT_SENT,
    LAST_CHUNK_NOT_DELIVERED,
    NO_DRAIN,
} mutation;

static const struct move_plan *plan_of(const struct mk_cta *cta)
{
    return &all_gather_plan_of(((const struct sim_cta *)(const void *)cta)->rank->plan)->move;
}

/* Both parities in one buffer. */
static uint64_t fold(const struct mk_cta *cta, uint64_t offset)
{
    const struct move_plan *p = plan_of(cta);
    return mutation == ONE_BUFFER && offset >= p->come[1] ? offset - (p->come[1] - p->come[0])
                                                          : offset;
}

int mutant_wait(struct mk_cta *cta, uint32_t flag, uint64_t target, enum mk_cause cause)
{
    if ((mutation == DELIVERY_DOES_NOT_WAIT && cta->role == MK_INTER_REDUCE) ||
        (mutation == FORWARDER_DOES_NOT_WAIT && cta->role == MK_INTRA_COMM) ||
        (mutation == SENDER_DOES_NOT_WAIT && cta->role == MK_INTER_SEND))
        return 0;
    return mk_cta_wait(cta, flag, mutation == EPOCH_REUSED ? 1 : target, cause);
}

static struct mk_chunk held; /* of the CTA whose flag goes first */
static uint32_t held_local;

void mutant_copy(struct mk_cta *cta, uint32_t local, const struct mk_chunk *chunk)
{
    struct mk_chunk c = *chunk;
    c.destination = fold(cta, c.destination);
    c.source = c.space == MK_SPACE_HEAP ? fold(cta, c.source) : c.source;
    held = c;
    held_local = local;
    if (mutation == COPY_SHORT)
        c.bytes -= 16;
    if (mutation != FLAG_BEFORE_COPY)
        mk_cta_copy(cta, local, &c);
}

/* Nothing yields between a copy and its signal, so what is held is this CTA's. */
void mutant_signal(struct mk_cta *cta, uint32_t local, uint32_t flag, uint64_t value)
{
    struct mk_chunk c = held;
    uint32_t to = held_local;
    mk_cta_signal(cta, local, flag, value);
    if (mutation == FLAG_BEFORE_COPY)
        mk_cta_copy(cta, to, &c);
}

int mutant_put(struct mk_cta *cta, uint32_t rank, const struct mk_chunk *chunk, uint32_t flag)
{
    const struct move_plan *p = plan_of(cta);
    struct mk_chunk c = *chunk;
    c.source = fold(cta, c.source);
    c.destination = fold(cta, c.destination);
    if (mutation == LAST_CHUNK_NOT_SENT && c.id % p->chunks == p->chunks - 1)
        return 0;
    return mk_cta_put(cta, rank, &c, flag);
}

int mutant_drain(struct mk_cta *cta)
{
    return mutation == NO_DRAIN ? 0 : mk_cta_drain(cta);
}

void mutant_deliver(struct mk_cta *cta, enum mk_space space, const struct mk_chunk *chunk,
                    uint32_t rows, uint64_t pitch)
{
    const struct move_plan *p = plan_of(cta);
    struct mk_chunk c = *chunk;
    c.source = fold(cta, c.source);
    if (mutation != LAST_CHUNK_NOT_DELIVERED || c.id % p->chunks != p->chunks - 1)
        mk_cta_deliver(cta, space, &c, rows, pitch);
}

static struct sim_world_config config_for(uint64_t seed)
{
    static const uint32_t form[2] = {3, 2};
    struct sim_world_config c = ops_config(MK_OP_ALL_GATHER, form, ops_shapes[1]);
    c.op = &broken_all_gather;
    c.seed = seed;
    c.launches = 4;
    c.problem.tuning.chunk_rows = 16;
    return c;
}

/* Puts of two launches under way at once, in any order: small shards, so that launches follow each
 * other fast. */
static struct sim_world_config srd_config(uint64_t seed)
{
    struct sim_world_config c = config_for(seed);
    c.problem.topo = (struct mk_topo){.nodes = 2, .gpus = 1};
    c.problem.m = 2;
    c.problem.k = 8;
    c.order = SIM_ORDER_SRD;
    c.launches = 12;
    return c;
}

#define MUTANT(name, expected) (mutation = name, ops_hunt(config_for, #name, expected))

static void test_mutants(void **state)
{
    MUTANT(NOTHING, 0);
    MUTANT(DELIVERY_DOES_NOT_WAIT, -EBADMSG);
    MUTANT(FORWARDER_DOES_NOT_WAIT, -EBADMSG);
    MUTANT(SENDER_DOES_NOT_WAIT, -EBADMSG);
    MUTANT(EPOCH_REUSED, -EBADMSG);
    MUTANT(ONE_BUFFER, -EBADMSG);
    MUTANT(FLAG_BEFORE_COPY, -EBADMSG);
    MUTANT(COPY_SHORT, -EBADMSG);
    MUTANT(LAST_CHUNK_NOT_SENT, -EIO);
    MUTANT(LAST_CHUNK_NOT_DELIVERED, -EBADMSG);
    mutation = NOTHING;
    ops_hunt(srd_config, "NOTHING, over SRD", 0);
    mutation = NO_DRAIN;
    ops_hunt(srd_config, "NO_DRAIN", -EBADMSG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals), cmocka_unit_test(test_orders),
        cmocka_unit_test(test_bytes),    cmocka_unit_test(test_faults),
        cmocka_unit_test(test_mutants),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
