/* ReduceScatter has the bits of its sums in their order in every order of its steps, moves what it
 * says and no more, refuses what does not fit with the nearest that does, tells faults, and breaks
 * where a step of its schedule is left out. */
#include "tests/helpers/ops.h"

#include "tests/helpers/broken_ops.h"
#define sim_op_reduce_scatter broken_reduce_scatter
#include "sim/ops/reduce_scatter.c"
#include "tests/helpers/unbroken_ops.h"

#include "tests/helpers/mover.h"

CASE(test_refusals)
{
    struct mk_problem q = {.op = MK_OP_REDUCE_SCATTER, .topo = {33, 1, 0}, .m = 33, .k = 16};
    struct mk_plan p;
    char error[300];
    mover_refusals(72, 69, "the next that does is 72");
    assert_non_null(strstr(ops_refusal(q), "on 33 nodes: it adds up those of 32 at most"));
    q.topo.nodes = q.m = 32;
    assert_int_equal(plan_build(&p, &q, 0, 0, error, sizeof error), 0);
}

/* A launch's flags have names that say what has not come. */
CASE(test_chunks)
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

static void expect_mute(const struct sim_world_result *r)
{
    if (strstr(r->sentence, "node 1's sum of chunk")) /* which rank 2 lacks rank 3's part of */
        assert_in_range(r->failure.producer, 2, 3);
    else
        assert_non_null(strstr(r->sentence, "rank 3 should have produced it"));
}

/* ---- mutants ---- */

enum {
    OWN_SUM_IS_NOT_AWAITED = MOVER_MUTATIONS,
    SUM_SHORT,
    SUM_IN_BF16,
    OTHER_ORDER,
    LAST_RANK_LEFT_OUT,
};

static const struct move_plan *move_of(const struct mk_plan *plan)
{
    return &reduce_scatter_plan_of(plan)->move;
}

static void parities_of(const struct mk_plan *plan, int buffer, uint64_t begin[3])
{
    const struct reduce_scatter_plan *p = reduce_scatter_plan_of(plan);
    memcpy(begin, buffer ? p->sums : p->move.come, 2 * sizeof *begin);
    begin[2] = buffer ? p->leaving : p->sums[0];
}

static int skips(const struct mk_cta *cta, uint32_t flag)
{
    const struct reduce_scatter_plan *p = reduce_scatter_plan_of(mutant_plan(cta));
    uint32_t own = reduce_scatter_sum_flag(p, mk_node_of(&p->move.topo, p->move.topo.rank), 0);
    return mutation == OWN_SUM_IS_NOT_AWAITED && flag - own < p->move.chunks;
}

static const struct mover mover = {.op = MK_OP_REDUCE_SCATTER,
                                   .broken = &broken_reduce_scatter,
                                   .m = 33 * 6,
                                   .m_of_two = 2,
                                   .plan = move_of,
                                   .parities = parities_of,
                                   .mute = expect_mute,
                                   .skips = skips};

void mutant_combine(struct mk_cta *cta, const struct mk_combine *combine)
{
    struct mk_combine c = *combine;
    if (mutation == LAST_CHUNK_NOT_DELIVERED && mover_last(cta, c.id))
        return;
    for (uint32_t i = 0; i < c.count; i++)
        c.terms[i].source =
            mover_fold(cta, combine->terms[mutation == OTHER_ORDER ? (i + 1) % c.count : i].source);
    if (c.space == MK_SPACE_HEAP)
        c.destination = mover_fold(cta, c.destination);
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

CASE(test_mutants)
{
    static const struct mover_mutant own[] = {
        MOVER_MUTANT(OWN_SUM_IS_NOT_AWAITED, -EBADMSG),
        MOVER_MUTANT(ONE_SECOND_BUFFER, -EBADMSG),
        MOVER_MUTANT(SUM_SHORT, -EBADMSG),
        MOVER_MUTANT(SUM_IN_BF16, -EBADMSG),
        MOVER_MUTANT(OTHER_ORDER, -EBADMSG),
        MOVER_MUTANT(LAST_RANK_LEFT_OUT, -EBADMSG),
    };
    mover_mutants(own, sizeof own / sizeof *own);
}
