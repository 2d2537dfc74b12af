/* AllGather is right in every order of its steps and with the fewest bytes, refuses what does
 * not fit with the nearest that does, tells faults, and breaks where a step of its schedule is
 * left out. */
#include "tests/helpers/ops.h"

#include "tests/helpers/broken_ops.h"
#define sim_op_all_gather broken_all_gather
#include "sim/ops/all_gather.c"
#include "tests/helpers/unbroken_ops.h"

#include "tests/helpers/mover.h"

CASE(test_refusals)
{
    struct mk_problem q = {.op = MK_OP_ALL_GATHER, .topo = {2, 3, 0}, .m = 60, .k = 1 << 28};
    mover_refusals(60, 61, "the next that does is 66");
    q.tuning.chunk_rows = 24;
    assert_non_null(strstr(ops_refusal(q), "at most 8 of 268435456 elements"));
}

static void expect_mute(const struct sim_world_result *r)
{
    assert_int_equal(r->failure.producer, 3);
    assert_non_null(strstr(r->sentence, "of rank 3's A"));
}

static const struct move_plan *move_of(const struct mk_plan *plan)
{
    return &all_gather_plan_of(plan)->move;
}

static void parities_of(const struct mk_plan *plan, int buffer, uint64_t begin[3])
{
    memcpy(begin, move_of(plan)->come, 2 * sizeof *begin);
    begin[2] = UINT64_MAX;
}

static const struct mover mover = {.op = MK_OP_ALL_GATHER,
                                   .broken = &broken_all_gather,
                                   .m = 65 * 6,
                                   .m_of_two = 2,
                                   .plan = move_of,
                                   .parities = parities_of,
                                   .mute = expect_mute};

CASE(test_mutants)
{
    static const struct mover_mutant own[] = {MOVER_MUTANT(FORWARDER_DOES_NOT_WAIT, -EBADMSG)};
    mover_mutants(own, sizeof own / sizeof *own);
}
