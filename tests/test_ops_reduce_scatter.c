/* ReduceScatter has the bits of its sums in their order in every order of its steps, moves what it
 * says and no more, refuses what does not fit with the nearest that does, tells faults, and breaks
 * where a step of its schedule is left out. */
#include "tests/helpers/ops.h"

#include "tests/helpers/broken_ops.h"
#define sim_op_reduce_scatter broken_reduce_scatter
#include "sim/ops/reduce_scatter.c"
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
    const struct mk_problem ok = {.op = MK_OP_REDUCE_SCATTER, .topo = {2, 3, 0}, .m = 72, .k = 16};
    struct mk_problem q = ok;
    struct mk_plan p;
    char error[300];
    assert_int_equal(plan_build(&p, &q, 0, 0, error, sizeof error), 0);
    q.m = 69;
    assert_non_null(strstr(refusal(q), "the next that does is 72"));
    q = ok, q.k = 12;
    assert_non_null(strstr(refusal(q), "the next K that works is 16"));
    q = ok, q.m = 0;
    assert_non_null(strstr(refusal(q), "M = 0: must be 1 to"));
    q = ok, q.tuning.chunk_rows = 20;
    assert_non_null(strstr(refusal(q), "the next that works is 24"));
    q = ok, q.tuning.split = (struct mk_role_split){.ctas = {1, 1, 1, 1}};
    assert_non_null(
        strstr(refusal(q), "takes no compute, at least 1 intra_comm, at least 1 inter_send"));
    q = ok, q.topo = (struct mk_topo){33, 1, 0}, q.m = 33;
    assert_non_null(strstr(refusal(q), "on 33 nodes: it adds up those of 32 at most"));
    q.topo.nodes = q.m = 32;
    assert_int_equal(plan_build(&p, &q, 0, 0, error, sizeof error), 0);
}

/* A launch's flags have names that say what has not come. */
static void test_chunks(void **state)
{
    const struct mk_problem q = {.op = MK_OP_REDUCE_SCATTER,
                                 .topo = {2, 3, 4},
                                 .m = 6 * 20,
                                 .k = 16,
                                 .tuning = {.chunk_rows = 16}};
    struct mk_plan p;
    char error[300];
    uint32_t rank, number;
    uint64_t bytes;
    assert_int_equal(plan_build(&p, &q, 0, 0, error, sizeof error), 0);
    assert_int_equal(p.chunks, (6 + 2) * 2);
    plan_describe_chunk(&p, 5, &rank, &number, &bytes); /* what rank 2 has, its last 4 rows */
    assert_int_equal(rank, 2);
    assert_int_equal(number, 1);
    assert_int_equal(bytes, 4 * 32);
    plan_describe_chunk(&p, 12, &rank, &number, &bytes); /* the sum of node 0, in fp32 */
    assert_int_equal(rank, 1);                           /* who puts it to rank 4 */
    assert_int_equal(number, 0);
    assert_int_equal(bytes, 16 * 64);
}

static void test_orders(void **state)
{
    assert_true(ops_explore(MK_OP_REDUCE_SCATTER, 32) >= 768 / OPS_PART);
}

/* Its own sends, C and the network's share aside: what a rank copies to itself is no link's. */
static void test_bytes(void **state)
{
    ops_bytes_are_minimal(MK_OP_REDUCE_SCATTER, 0);
}

static void expect_mute(const struct sim_world_result *r)
{
    if (strstr(r->sentence, "node 1's sum of chunk")) /* which rank 2 lacks rank 3's part of */
        assert_in_range(r->failure.producer, 2, 3);
    else
        assert_non_null(strstr(r->sentence, "rank 3 should have produced it"));
}

static void test_faults(void **state)
{
    ops_faults(MK_OP_REDUCE_SCATTER, ops_shapes[0], 4, expect_mute);
}

/* ---- mutants ---- */

static enum {
    NOTHING,
    REDUCER_DOES_NOT_WAIT,
    SENDER_DOES_NOT_WAIT,
    OWN_SUM_IS_NOT_AWAITED,
    EPOCH_REUSED,
    ONE_BUFFER,
    ONE_BUFFER_OF_SUMS,
    FLAG_BEFORE_COPY,
    COPY_SHORT,
    SUM_SHORT,
    SUM_IN_BF16,
    OTHER_ORDER,
    LAST_RANK_LEFT_OUT,
    LAST_CHUNK_NOT_SENT,
    LAST_CHUNK_NOT_ADDED,
    NO_DRAIN,
} mutation;

static const struct reduce_scatter_plan *plan_of(const struct mk_cta *cta)
{
    return reduce_scatter_plan_of(((const struct sim_cta *)(const void *)cta)->rank->plan);
}

/* Both parities in one buffer: of what ranks have pushed, or of sums. */
static uint64_t fold(const struct mk_cta *cta, uint64_t offset)
{
    const struct reduce_scatter_plan *p = plan_of(cta);
    if (mutation == ONE_BUFFER && offset >= p->move.come[1] && offset < p->sums[0])
        return offset - (p->move.come[1] - p->move.come[0]);
    if (mutation == ONE_BUFFER_OF_SUMS && offset >= p->sums[1] && offset < p->leaving)
        return offset - (p->sums[1] - p->sums[0]);
    return offset;
}

int mutant_wait(struct mk_cta *cta, uint32_t flag, uint64_t target, enum mk_cause cause)
{
    const struct reduce_scatter_plan *p = plan_of(cta);
    uint32_t own = reduce_scatter_sum_flag(p, mk_node_of(&p->move.topo, p->move.topo.rank), 0);
    if ((mutation == REDUCER_DOES_NOT_WAIT && cta->role == MK_INTER_REDUCE) ||
        (mutation == SENDER_DOES_NOT_WAIT && cta->role == MK_INTER_SEND) ||
        (mutation == OWN_SUM_IS_NOT_AWAITED && flag - own < p->move.chunks))
        return 0;
    return mk_cta_wait(cta, flag, mutation == EPOCH_REUSED ? 1 : target, cause);
}

static struct mk_chunk held; /* of the CTA whose flag goes first */
static uint32_t held_local;

void mutant_copy(struct mk_cta *cta, uint32_t local, const struct mk_chunk *chunk)
{
    struct mk_chunk c = *chunk;
    c.destination = fold(cta, c.destination);
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
    if (mutation == FLAG_BEFORE_COPY && cta->role == MK_INTRA_COMM)
        mk_cta_copy(cta, to, &c);
}

void mutant_combine(struct mk_cta *cta, const struct mk_combine *combine)
{
    const struct move_plan *p = &plan_of(cta)->move;
    struct mk_combine c = *combine;
    if (mutation == LAST_CHUNK_NOT_ADDED && c.id % p->chunks == p->chunks - 1)
        return;
    for (uint32_t i = 0; i < c.count; i++)
        c.terms[i].source =
            fold(cta, combine->terms[mutation == OTHER_ORDER ? (i + 1) % c.count : i].source);
    if (c.space == MK_SPACE_HEAP)
        c.destination = fold(cta, c.destination);
    if (mutation == SUM_SHORT)
        c.elements -= 8;
    if (mutation == LAST_RANK_LEFT_OUT && c.count > 1)
        c.count--;
    if (mutation == SUM_IN_BF16 && c.to == MK_FP32)
        c.to = MK_BF16;
    if (mutation == SUM_IN_BF16 && c.from == MK_FP32)
        c.from = MK_BF16;
    mk_cta_combine(cta, &c);
}

int mutant_put(struct mk_cta *cta, uint32_t rank, const struct mk_chunk *chunk, uint32_t flag)
{
    const struct move_plan *p = &plan_of(cta)->move;
    struct mk_chunk c = *chunk;
    c.destination = fold(cta, c.destination);
    if (mutation == LAST_CHUNK_NOT_SENT && c.id % p->chunks == p->chunks - 1)
        return 0;
    return mk_cta_put(cta, rank, &c, flag);
}

int mutant_drain(struct mk_cta *cta)
{
    return mutation == NO_DRAIN ? 0 : mk_cta_drain(cta);
}

static struct sim_world_config config_for(uint64_t seed)
{
    static const uint32_t form[2] = {3, 2};
    struct sim_world_config c = ops_config(MK_OP_REDUCE_SCATTER, form, ops_shapes[1]);
    c.op = &broken_reduce_scatter;
    c.seed = seed;
    c.launches = 4;
    c.problem.m = 33 * 6;
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
    MUTANT(REDUCER_DOES_NOT_WAIT, -EBADMSG);
    MUTANT(SENDER_DOES_NOT_WAIT, -EBADMSG);
    MUTANT(OWN_SUM_IS_NOT_AWAITED, -EBADMSG);
    MUTANT(EPOCH_REUSED, -EBADMSG);
    MUTANT(ONE_BUFFER, -EBADMSG);
    MUTANT(ONE_BUFFER_OF_SUMS, -EBADMSG);
    MUTANT(FLAG_BEFORE_COPY, -EBADMSG);
    MUTANT(COPY_SHORT, -EBADMSG);
    MUTANT(SUM_SHORT, -EBADMSG);
    MUTANT(SUM_IN_BF16, -EBADMSG);
    MUTANT(OTHER_ORDER, -EBADMSG);
    MUTANT(LAST_RANK_LEFT_OUT, -EBADMSG);
    MUTANT(LAST_CHUNK_NOT_SENT, -EIO);
    MUTANT(LAST_CHUNK_NOT_ADDED, -EBADMSG);
    mutation = NOTHING;
    ops_hunt(srd_config, "NOTHING, over SRD", 0);
    mutation = NO_DRAIN;
    ops_hunt(srd_config, "NO_DRAIN", -EBADMSG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals), cmocka_unit_test(test_chunks),
        cmocka_unit_test(test_orders),   cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_faults),   cmocka_unit_test(test_mutants),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
