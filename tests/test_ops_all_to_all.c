/* All-to-all is right in every order of its steps and with the fewest bytes, refuses what does not
 * fit with the nearest that does, tells faults, and breaks where a step of its schedule is left
 * out. */
#include "tests/helpers/ops.h"

#include "tests/helpers/broken_ops.h"
#define sim_op_all_to_all broken_all_to_all
#include "sim/ops/all_to_all.c"
#include "tests/helpers/unbroken_ops.h"

#include "tests/helpers/mover.h"

CASE(test_refusals)
{
    mover_refusals(72, 66,
                   "M = 66 does not divide by 36, 6 for each of 6 ranks; the next that does is 72");
}

/* What stands in each row of C, by hand: of 2 ranks' 4 rows, rank 1 gets the second halves. */
CASE(test_reference)
{
    const struct mk_problem q = {.op = MK_OP_ALL_TO_ALL, .topo = {1, 2, 1}, .m = 8, .k = 8};
    static const uint64_t from[] = {2, 3, 6, 7};
    for (uint64_t row = 0; row < 4; row++)
        assert_int_equal(op_of(q.op)->moves(&q, row), from[row]);
}

static void expect_mute(const struct sim_world_result *r)
{
    assert_int_equal(r->failure.producer, 3); /* who has sent nothing, or not passed it on */
    assert_non_null(strstr(r->sentence, "'s A"));
}

static const struct move_plan *move_of(const struct mk_plan *plan)
{
    return &all_to_all_plan_of(plan)->move;
}

static void parities_of(const struct mk_plan *plan, int buffer, uint64_t begin[3])
{
    const struct all_to_all_plan *p = all_to_all_plan_of(plan);
    memcpy(begin, buffer ? p->staged : p->move.come, 2 * sizeof *begin);
    begin[2] = buffer ? UINT64_MAX : p->staged[0];
}

static const struct mover mover = {.op = MK_OP_ALL_TO_ALL,
                                   .broken = &broken_all_to_all,
                                   .m = 33 * 36,
                                   .m_of_two = 4,
                                   .plan = move_of,
                                   .parities = parities_of,
                                   .mute = expect_mute};

CASE(test_mutants)
{
    static const struct mover_mutant own[] = {MOVER_MUTANT(ONE_SECOND_BUFFER, -EBADMSG)};
    mover_mutants(own, sizeof own / sizeof *own);
}
