/* The tables of MoE routing that thread blocks make together (tests/gpu_route.cu, on the emulated
 * Hopper) are those that the host makes, of every rank, on one node and on several, however tokens
 * are routed, by however many blocks, and with a map of logical experts (odd seeds); and no thread reads what nobody says is there, in any
 * order that is tried. */
#include "tests/helpers/test.h"
#include "core/plan/plan.h"
#include "sim/hopper/hopper.h"

int emulated_route_check(const struct mk_topo *topo, const struct mk_moe *moe, int routing,
                         uint32_t parts, uint64_t seed);

enum { ROUTINGS = 6 };

static void right(struct mk_topo topo, struct mk_moe moe, int routing, uint32_t parts,
                  uint64_t seed)
{
    struct hopper *h;
    const struct hopper_config config = {.ranks = 1, .sms = parts, .seed = seed, .races = 1};
    assert_int_equal(hopper_create(&h, &config), 0);
    int wrong = emulated_route_check(&topo, &moe, routing, parts, seed);
    if (hopper_error(h))
        print_error("%s\n", hopper_error(h));
    hopper_destroy(h);
    assert_int_equal(wrong, 0);
}

/* Runs of no, some and more than 32 tokens; warps with none, one and several runs; k that divides
 * 32, and not; more ranks, and experts, than a block's shared memory has room for counts of. */
CASE(test_forms)
{
    static const struct {
        uint32_t nodes, gpus, parts;
        struct mk_moe moe;
    } cases[] = {{1, 1, 1, {1, 8, 8, 1, 1}},     {1, 2, 3, {333, 8, 520, 32, 8}},
                 {1, 5, 2, {65, 8, 264, 25, 3}}, {2, 2, 2, {77, 8, 72, 16, 6}},
                 {3, 1, 1, {40, 8, 8, 12, 5}},   {2, 4, 3, {129, 8, 8, 64, 8}},
                 {1, 8, 2, {50, 8, 256, 64, 7}}, {1, 1, 2, {90, 8, 8, 2400, 17}},
                 {40, 8, 2, {5, 8, 8, 320, 2}},  {1, 1, 2, {40, 8, 8, 5200, 4}}};
    for (uint32_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (uint32_t n = 0; n < 3; n++) {
            uint32_t world = cases[i].nodes * cases[i].gpus;
            struct mk_topo topo = {cases[i].nodes, cases[i].gpus, (i + n * 3) % world};
            right(topo, cases[i].moe, (int)((i + n * 2) % ROUTINGS), cases[i].parts, 10 * i + n);
        }
}

CASE(test_routings)
{
    for (int routing = 0; routing < ROUTINGS; routing++)
        for (uint32_t rank = 0; rank < 2; rank++)
            right((struct mk_topo){1, 2, rank}, (struct mk_moe){150, 8, 520, 6, 2}, routing, 2,
                  (uint64_t)routing);
}
