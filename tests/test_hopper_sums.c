/* GPU kernels of GEMM+ReduceScatter and GEMM+AllReduce, on emulated GPUs, add real numbers within
 * the bounds of their arithmetic, in one shot, in two and of tiles that ranks share; what all ranks get has the same bits on
 * each, and what is deterministic the same in every order. */
#include "tests/helpers/hopper_ops.h"
#include "tests/helpers/ops.h"

static struct sim_world_config config_for(enum mk_op op, const uint32_t form[2], uint32_t shots,
                                          int deterministic, uint64_t columns)
{
    const uint64_t shape[3] = {33, columns, 264};
    struct sim_world_config c = hopper_ops_config(op, form[0], form[1], shape, 3);
    c.problem.deterministic = deterministic;
    c.problem.tuning.tile_m = shots != 2 ? 64 : 128;
    c.problem.tuning.tile_n = 64;
    c.problem.tuning.cluster = 1;
    c.problem.tuning.shots = shots;
    c.unwatched = 1;
    c.launches = 2;
    return c;
}

static void sums(enum mk_op op)
{
    static const uint32_t forms[][2] = {{1, 2}, {1, 3}, {2, 2}};
    for (uint32_t i = 0; i < 18; i++) {
        const uint32_t *form = forms[i % 3], shots = 1 + i / 3 % 3;
        int deterministic = i >= 9, whole = op == MK_OP_GEMM_AR;
        uint64_t bits, again;
        if ((shots != 2 && form[0] > 1) || (shots == 3 && !whole))
            continue;
        /* in words, or with flags */
        struct sim_world_config c = config_for(op, form, shots, deterministic, i % 3 ? 392 : 136);
        double error = ops_sum_error(c, whole, &bits);
        print_message("%s %u x %u, %u shot%s, %s: relative error %.2e\n", plan_op_name(op), form[0],
                      form[1], shots, shots > 1 ? "s" : "",
                      deterministic ? "deterministic" : "fast", error);
        assert_true(error > 1e-3 && error <= (deterministic ? 2e-3 : 5e-3));
        c.seed += 20;
        if (deterministic) {
            ops_sum_error(c, whole, &again);
            assert_true(again == bits);
        }
    }
}

CASE(test_sums)
{
    sums(MK_OP_GEMM_RS);
    sums(MK_OP_GEMM_AR);
}
