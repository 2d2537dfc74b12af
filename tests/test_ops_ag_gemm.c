/* AllGather+GEMM is right in every order of its steps and with the fewest bytes, and faults are
 * told. (Its broken variants: test_mutants.c; its plan: test_plan.c.) */
#include "tests/helpers/ops.h"

static void test_orders(void **state)
{
    assert_true(ops_explore(MK_OP_AG_GEMM, 32) >= 768 / OPS_PART);
}

static void test_bytes(void **state)
{
    ops_bytes_are_minimal(MK_OP_AG_GEMM, 0);
}

static void expect_mute(const struct sim_world_result *r)
{
    assert_int_equal(r->failure.producer, 3);
    assert_non_null(strstr(r->sentence, "of rank 3's A"));
}

static void test_faults(void **state)
{
    ops_faults(MK_OP_AG_GEMM, ops_shapes[0], 4, expect_mute);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_orders), cmocka_unit_test(test_bytes),
                                       cmocka_unit_test(test_faults)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
