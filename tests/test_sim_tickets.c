/* Tiles of a MoE in virtual time: a block holds the number of its next tile, so that blocks that join
 * late get none of the last; few tiles have the memory for themselves. Tokens are drawn as in a run,
 * and name no expert twice. */
#include "core/model/machine.h"
#include "core/mkernel.h"
#include "core/plan/plan.h"
#include "core/base/random.h"
#include "sim/route.h"
#include "sim/timed/timed.h"
#include "tests/helpers/test.h"

enum { EXPERTS = 16, TOKENS = 16 };

/* ns of dispatch+GEMM on one GPU, where each token names one expert, of `used` in turn: 8 tiles of
 * columns for each. */
static double of_experts(uint32_t used)
{
    struct mk_problem q = {
        .op = MK_OP_MOE_DISPATCH_GEMM,
        .exec = MK_EXEC_CUDA,
        .sms = 132,
        .topo = {.nodes = 1, .gpus = 1},
        .timeout_ns = MK_TIMEOUT_NS,
        .moe = {TOKENS, 7168, 2048, EXPERTS, 1},
        .tuning = {.tile_m = 128,
                   .tile_n = 256,
                   .split = {.ctas = {[MK_COMPUTE] = 120, [MK_INTRA_COMM] = 12}}}};
    struct mk_plan p;
    struct timed_result r;
    char error[256];
    uint32_t ids[TOKENS];
    for (uint32_t i = 0; i < TOKENS; i++)
        ids[i] = i % used;
    assert_int_equal(plan_build(&p, &q, 0, 0, error, sizeof error), 0);
    struct timed_config c = {
        .plan = &p, .machine = machine_default(), .launches = 1, .seed = 1, .ids = ids};
    assert_int_equal(timed_run(&c, &r), 0);
    return (double)r.ns;
}

/* 120 tiles are one of each block; 8 more are the second ones of those that asked first, though 12
 * blocks join and have none. They are alone with the memory. */
CASE(blocks_hold_their_next_tile)
{
    const double begin = of_experts(1), one = of_experts(15), more = of_experts(16);
    if (more < one * 1.25 || more > one * 1.7)
        fail_msg("8 tiles more than blocks: %.0f ns, without them %.0f", more, one);
    if (begin > one * 0.75)
        fail_msg("8 tiles of 120 take %.0f ns, all %.0f", begin, one);
}

CASE(tokens_name_different_experts)
{
    static const uint32_t experts[] = {8, 9, 16, 48, 60, 64, 256};
    for (size_t i = 0; i < sizeof experts / sizeof *experts; i++)
        for (uint64_t token = 0; token < 200; token++) {
            uint32_t ids[8];
            route_draw_token(mk_key(1, ROUTE_IDS, 1), token, 8, experts[i], ids);
            for (uint32_t a = 0; a < 8; a++) {
                assert_true(ids[a] < experts[i]);
                for (uint32_t b = 0; b < a; b++)
                    assert_true(ids[a] != ids[b]);
            }
        }
}
