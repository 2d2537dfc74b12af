/* The GEMM engine's own device code multiplies groups of rows, each with a B of its own, on the
 * emulated Hopper, in every order that is tried: groups of no row, of one, of more than a tile, all
 * rows in one group; both layouts of B, shapes that no tile divides. Rows of no group are not
 * looked at. A mistake would be a wrong element or a sentence. */
#include "tests/helpers/test.h"
#include "core/plan/gemm_tiles.h"
#include "tests/helpers/hopper.h"

/* tests/engines/gemm_grouped.h, as the emulation has it. */
struct gemm_grouped {
    const void *a, *b;
    void *c;
    const uint32_t *ranges;
    void *table;
    uint32_t groups;
    int64_t rows, n, k;
    int b_rows;
    struct gemm_tiling tiling;
    uint32_t sms;
};
int emulated_gemm_grouped_run(const struct gemm_grouped *g, void *stream);
uint64_t emulated_gemm_grouped_table_bytes(const struct gemm_grouped *g);

enum { GROUPS = 6, TILE_M = 128 };

struct grouped_case {
    uint32_t rows[GROUPS];
    int64_t n, k;
    int kn;
    struct mk_gemm_tile tile;
};

/* Every group is one product of its own. */
static int judge(const struct gemm_grouped *g, char *text, size_t size)
{
    for (uint32_t i = 0; i < g->groups; i++) {
        const struct hopper_gemm one = {g->ranges[2 * i + 1], g->n, g->k, g->b_rows, g->tiling, 0};
        int64_t first = g->ranges[2 * i];
        char what[160];
        if (one.m && hopper_gemm_judge(&one, (const uint16_t *)g->a + first * g->k,
                                       (const uint16_t *)g->b + i * g->n * g->k,
                                       (const uint16_t *)g->c + first * g->n, what, sizeof what)) {
            snprintf(text, size, "group %u: %s", i, what);
            return 1;
        }
    }
    return 0;
}

/* Rows that lie behind a tile's last are not written. */
static int judge_outside(const struct gemm_grouped *g, char *text, size_t size)
{
    uint32_t end = 0;
    for (uint32_t i = 0; i < g->groups; i++)
        end = g->ranges[2 * i] + (uint32_t)mk_round_up(g->ranges[2 * i + 1], TILE_M);
    for (int64_t i = end * g->n; i < g->rows * g->n; i++)
        if (((const uint16_t *)g->c)[i] != 0xffff) {
            snprintf(text, size, "element %lld behind the last tile is written", (long long)i);
            return 1;
        }
    return 0;
}

static int run(const struct grouped_case *c, uint64_t seed, char *text, size_t size)
{
    struct hopper *h;
    const struct hopper_config config = {.ranks = 1,
                                         .sms = 2 + (uint32_t)(seed % 2),
                                         .seed = seed,
                                         .races = 1,
                                         .memory = (size_t)1 << 30,
                                         .max_steps = 3000000};
    struct gemm_grouped g = {.groups = GROUPS,
                             .n = c->n,
                             .k = c->k,
                             .b_rows = c->kn,
                             .tiling = {c->tile.tile_m, c->tile.tile_n, c->tile.cluster}};
    assert_int_equal(hopper_create(&h, &config), 0);
    uint32_t *ranges = hopper_memory(h, sizeof *ranges * 2 * GROUPS), next = 0;
    for (uint32_t i = 0; i < GROUPS; i++) {
        ranges[2 * i] = next;
        ranges[2 * i + 1] = c->rows[i];
        next += (uint32_t)mk_round_up(c->rows[i], TILE_M);
    }
    g.rows = next + TILE_M;
    size_t a_count = (size_t)(g.rows * g.k), b_count = (size_t)(GROUPS * g.n * g.k),
           c_count = (size_t)(g.rows * g.n);
    uint16_t *a = hopper_memory(h, a_count * 2), *b = hopper_memory(h, b_count * 2);
    g.a = a;
    g.b = b;
    g.c = hopper_memory(h, c_count * 2);
    g.ranges = ranges;
    g.table = hopper_memory(h, emulated_gemm_grouped_table_bytes(&g));
    hopper_fill(a, (int64_t)a_count, seed * 2);
    hopper_fill(b, (int64_t)b_count, seed * 2 + 1);
    memset(g.c, 0xff, c_count * 2);
    memset(g.table, 0xff, emulated_gemm_grouped_table_bytes(&g));
    int result = emulated_gemm_grouped_run(&g, NULL);
    snprintf(text, size, "gemm_grouped_run says %d", result);
    if (!result && (result = hopper_run(h)))
        snprintf(text, size, "%s", hopper_error(h));
    if (!result)
        result = judge(&g, text, size) || judge_outside(&g, text, size);
    hopper_destroy(h);
    return result;
}

static void right(const struct grouped_case *c, uint64_t seed)
{
    char text[1024];
    int rc = run(c, seed, text, sizeof text);
    if (rc)
        print_error("%d,%d,%d,... rows, n %d k %d %s, tile %dx%d, seed %d: %s\n", c->rows[0],
                    c->rows[1], c->rows[2], (int)c->n, (int)c->k, c->kn ? "kn" : "nk",
                    c->tile.tile_m, c->tile.tile_n, (int)seed, text);
    assert_int_equal(rc, 0);
}

/* None, one, half a tile and one more, a tile, some; one for all, first and last; none at all. */
static const uint32_t rows[][GROUPS] = {
    {0, 1, 65, 128, 64, 7}, {0, 0, 300, 0, 0, 0}, {129, 0, 0, 0, 0, 140},
    {0, 0, 0, 0, 0, 0},     {3, 2, 1, 1, 2, 3},
};
enum { ROWS = sizeof rows / sizeof *rows };
static const int64_t shapes[][2] = {{72, 136}, {8, 8}, {264, 72}, {136, 584}};

static void every(uint32_t first_tile)
{
    struct grouped_case c;
    uint64_t seed = 0;
    for (uint32_t t = first_tile; mk_grouped_tile(t, &c.tile); t += 2)
        for (uint32_t i = 0; i < ROWS; i++)
            for (uint32_t kn = 0; kn < 2; kn++, seed++) {
                c.n = shapes[seed % 4][0];
                c.k = shapes[seed % 4][1];
                c.kn = (int)kn;
                memcpy(c.rows, rows[i], sizeof c.rows);
                right(&c, seed + 1000 * t);
            }
}

CASE(test_every_width)
{
    every(0);
    every(1);
}

/* More tiles of a block than there are places for them, one and two stages of K each: the producer
 * is ahead of the consumers by more than one tile. */
CASE(test_orders)
{
    struct grouped_case c = {{1, 200, 0, 70, 130, 3}, 200, 64, 0, {128, 64, 1}};
    for (uint64_t seed = 0; seed < 16; seed++) {
        c.kn = (int)(seed & 1);
        c.k = seed % 4 ? 64 : 72;
        right(&c, seed + 77);
    }
}

CASE(test_refusals)
{
    struct hopper *h;
    const struct hopper_config config = {.ranks = 1, .sms = 2, .memory = (size_t)1 << 28};
    assert_int_equal(hopper_create(&h, &config), 0);
    void *m = hopper_memory(h, 1 << 20);
    const struct gemm_grouped good = {m, m, m, m, m, 2, 256, 64, 64, 0, {128, 64, 1}, 0};
    struct gemm_grouped g = good;
    assert_int_equal(emulated_gemm_grouped_run(&g, NULL), 0);
    g.n = 60;
    assert_int_equal(emulated_gemm_grouped_run(&g, NULL), -22);
    g = good;
    g.k = 12;
    assert_int_equal(emulated_gemm_grouped_run(&g, NULL), -22);
    g = good;
    g.rows = 200;
    assert_int_equal(emulated_gemm_grouped_run(&g, NULL), -22);
    g = good;
    g.groups = 0;
    assert_int_equal(emulated_gemm_grouped_run(&g, NULL), -22);
    g = good;
    g.tiling.tile_n = 192;
    assert_int_equal(emulated_gemm_grouped_run(&g, NULL), -22);
    g = good;
    g.c = (uint16_t *)m + 1;
    assert_int_equal(emulated_gemm_grouped_run(&g, NULL), -22);
    hopper_destroy(h);
}
