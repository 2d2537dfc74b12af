/* The GEMM engines' own device code computes C = A B on the emulated Hopper, in every order that is
 * tried: each tile shape that is built, both layouts of B, shapes that no tile divides; a mistake
 * would be a wrong element or a sentence. */
#include "tests/helpers/test.h"
#include "tests/helpers/hopper.h"

static const struct gemm_tiling tilings[] = {{128, 256, 2}, {256, 128, 2}, {128, 128, 2},
                                             {128, 192, 1}, {128, 128, 1}, {128, 64, 1},
                                             {64, 64, 1}};
enum { TILINGS = sizeof tilings / sizeof *tilings };

static void right(const struct hopper_gemm *g, uint64_t seed)
{
    char text[1024];
    if (!hopper_gemm_run(g, seed, text, sizeof text, NULL))
        return;
    print_error("%lld,%lld,%lld %s tiles %ux%ux%u seed %d: %s\n", (long long)g->m, (long long)g->n,
                (long long)g->k, g->kn ? "kn" : "nk", g->tiling.tile_m, g->tiling.tile_n,
                g->tiling.cluster, (int)seed, text);
    fail();
}

static void every_tile(int kn)
{
    static const int64_t shapes[][3] = {{390, 200, 328}, {1, 8, 8}, {129, 264, 72}, {257, 72, 520}};
    for (uint32_t i = 0; i < 4; i++)
        for (uint32_t t = 0; t < TILINGS; t++) {
            const struct hopper_gemm g = {shapes[i][0], shapes[i][1], shapes[i][2],
                                          kn,           tilings[t],   2 + 2 * (i % 2)};
            right(&g, i * TILINGS + t);
        }
}

CASE(test_both_layouts)
{
    every_tile(0);
    every_tile(1);
}

/* More stages of K than the ring has, and more tiles than CTAs: laps, and stores under the next
 * tile. */
CASE(test_orders)
{
    for (uint64_t seed = 0; seed < 24; seed++) {
        const struct hopper_gemm g = {260, 136, 392, (int)(seed & 1), tilings[seed % TILINGS], 2};
        right(&g, seed + 100);
    }
}

CASE(test_an_order_is_had_again)
{
    const struct hopper_gemm g = {130, 72, 136, 0, tilings[3], 2};
    char text[1024];
    uint64_t first, again, other;
    assert_int_equal(hopper_gemm_run(&g, 7, text, sizeof text, &first), 0);
    assert_int_equal(hopper_gemm_run(&g, 7, text, sizeof text, &again), 0);
    assert_int_equal(hopper_gemm_run(&g, 8, text, sizeof text, &other), 0);
    assert_true(first == again && first != other);
}

/* The second engine (kernels/mma/, in tests/gpu_mma.cu). */
int emulated_mma_products_run(uint32_t number, int kn, const void *a, const void *b, void *c,
                              int64_t m, int64_t n, int64_t k);

static int mma_run(uint32_t number, int kn, const int64_t *shape, uint64_t seed,
                   const struct hopper_mutation *mutation, struct hopper_site *sites,
                   uint32_t *count)
{
    const struct hopper_gemm g = {shape[0], shape[1], shape[2], kn, {0}, 2};
    const struct hopper_config config = {.ranks = 1,
                                         .sms = g.sms,
                                         .seed = seed,
                                         .races = 1,
                                         .memory = (size_t)1 << 28,
                                         .mutations = mutation,
                                         .mutation_count = mutation != NULL,
                                         .max_steps = 2000000};
    char text[1024] = "";
    struct hopper *h;
    assert_int_equal(hopper_create(&h, &config), 0);
    uint16_t *a = hopper_memory(h, (size_t)(g.m * g.k) * 2),
             *b = hopper_memory(h, (size_t)(g.n * g.k) * 2),
             *c = hopper_memory(h, (size_t)(g.m * g.n) * 2);
    hopper_fill(a, g.m * g.k, seed * 2);
    hopper_fill(b, g.n * g.k, seed * 2 + 1);
    memset(c, 0xff, (size_t)(g.m * g.n) * 2);
    int result = emulated_mma_products_run(number, kn, a, b, c, g.m, g.n, g.k);
    if (!result && (result = hopper_run(h)))
        snprintf(text, sizeof text, "%s", hopper_error(h) ? hopper_error(h) : "no sentence");
    if (!result)
        result = hopper_gemm_judge(&g, a, b, c, text, sizeof text);
    if (sites) {
        uint32_t all;
        const struct hopper_site *found = hopper_sites(h, &all);
        for (uint32_t i = 0; i < all && *count < 16; i++)
            if (found[i].what == HOPPER_P_ARRIVE || found[i].what == HOPPER_P_SYNCWARP ||
                found[i].what == HOPPER_P_EXPECT || found[i].what == HOPPER_P_MBAR_WAIT ||
                found[i].what == HOPPER_P_INIT)
                sites[(*count)++] = found[i];
    }
    hopper_destroy(h);
    if (result && result != -ENOENT && !mutation)
        print_error("%lld,%lld,%lld %s tiles %u seed %d: %d %s\n", (long long)g.m, (long long)g.n,
                    (long long)g.k, kn ? "kn" : "nk", number, (int)seed, result, text);
    return result;
}

CASE(test_mma_engine)
{
    static const int64_t shapes[][3] = {{390, 200, 200}, {1, 8, 8}, {257, 136, 264}};
    uint32_t tiles = 0;
    for (int result = 0; !result; tiles += !result)
        for (uint32_t i = 0; !result && i < 6; i++) {
            result = mma_run(tiles, i & 1, shapes[i / 2], tiles * 6 + i, NULL, NULL, NULL);
            assert_true(!result || (result == -ENOENT && i == 0));
        }
    assert_true(tiles >= 2);
}

/* What keeps its ring in step is needed: without an arrival, or with one arrival more or less, C is
 * wrong or there is a sentence, in one of a few orders. A few waits and meetings of lanes may be left
 * out unseen: a lane's second look at a barrier (ring_wait), since the lane then meets one whose
 * first look came late enough, and meetings that compilers of PTX want and the emulation does not. */
CASE(test_mma_mutants)
{
    static const int64_t shape[3] = {40, 72, 200};
    for (uint32_t number = 0; number < 2; number++) { /* by cp.async, and by TMA */
        struct hopper_site sites[16];
        uint32_t count = 0, made = 0, survive = 0;
        assert_int_equal(mma_run(number, 0, shape, 0, NULL, sites, &count), 0);
        for (uint32_t i = 0; i < count; i++)
            for (uint32_t variant = 1; hopper_variant(sites[i].what, variant); variant++, made++) {
                const struct hopper_mutation m = {sites[i], variant};
                int caught = 0;
                for (uint64_t seed = 0; seed < 6 && !caught; seed++)
                    caught = mma_run(number, 0, shape, seed, &m, NULL, NULL) != 0;
                if (!caught)
                    print_error("nobody saw %s:%d, variant %u\n", sites[i].file, sites[i].line,
                                variant);
                assert_true(caught || sites[i].what == HOPPER_P_MBAR_WAIT ||
                            sites[i].what == HOPPER_P_SYNCWARP);
                survive += !caught;
            }
        assert_true(survive <= 5);
        assert_true(made >= 8);
    }
}
