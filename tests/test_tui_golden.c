/* Known traces and keys give the screens in tests/golden, cell by cell, in UTF-8 with colours and
 * in ASCII. After a change that is meant to show: MK_GOLDEN=write build/tests/test_tui_golden, and
 * look at git diff. */
#include "tests/helpers/tui_stage.h"

#include <math.h>

struct scene {
    const char *name, *keys;
    int first, second;
};

static const struct scene everywhere[] = {
    {"start", "", 0, -1},
    {"chain", "w\nEnter\nEnter\n", 0, -1},
};

/* Where the size adds nothing: at 120x40. */
static const struct scene once[] = {
    {"overlap", "2\n", 0, -1},
    {"roles", "3\n", 0, -1},
    {"stalls", "4\n", 0, -1},
    {"slowest", "5\n", 0, -1},
    {"critical", "6\nRight*20\n", 0, -1},
    {"why", "8\ne\n", 0, -1},
    {"compare-why", "8\nz\n", 0, 1},
    {"range", "Right*4\n[\nRight*20\n]\n", 0, -1},
    {"ctas", "Down Space\n+ + +\nDown*2\n", 0, -1},
    {"search", "/\ntype tile 9\nEnter\n", 0, -1},
    {"filter", "\\\ntype rank 7\nEnter\n", 0, -1},
    {"links", "Down*5\nRight*6\n", 0, -1},
    {"help", "?\n", 0, -1},
    {"cut", "e\n", 3, -1},
    {"empty", "", 2, -1},
    {"compare", "", 0, 1},
    {"compare-roles", "3\nDown*2\nSpace\n", 0, 1},
};

static int check(const struct scene *scene, int width, int height, int ascii)
{
    char path[160];
    struct stage s;
    snprintf(path, sizeof path, "tests/golden/tui-%s-%dx%d-%s.txt", scene->name, width, height,
             ascii ? "ascii" : "utf8");
    stage_open(&s, scene->first, scene->second, width, height, ascii);
    stage_play(&s, scene->keys);
    char *text = screen_text(&s.cells, !ascii);
    int same = screen_golden(path, text);
    for (const char *c = text; ascii && *c; c++)
        assert_true((unsigned char)*c < 0x80);
    free(text);
    stage_close(&s);
    return same;
}

static void screens_at_every_size(void **state)
{
    static const int size[][2] = {{80, 24}, {120, 40}, {200, 60}, {40, 10}, {30, 6}};
    int wrong = 0;
    for (size_t i = 0; i < sizeof everywhere / sizeof *everywhere; i++)
        for (size_t k = 0; k < sizeof size / sizeof *size; k++)
            for (int ascii = 0; ascii < 2; ascii++)
                wrong += !check(&everywhere[i], size[k][0], size[k][1], ascii);
    assert_int_equal(wrong, 0);
}

static void every_panel_and_state(void **state)
{
    int wrong = 0;
    for (size_t i = 0; i < sizeof once / sizeof *once; i++)
        wrong += !check(&once[i], 120, 40, 0);
    assert_int_equal(wrong, 0);
}

/* What a slow message's time is made of adds up to it, in one unit. */
static void parts_of_a_message_add_up(void **state)
{
    struct stage s;
    int messages = 0;
    stage_open(&s, 0, -1, 200, 60, 0);
    stage_play(&s, "5\n");
    char *text = screen_text(&s.cells, 0);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        char *at = strstr(line, " = "), unit[8];
        double whole, sum = 0;
        int parts = 0;
        if (!at || !strstr(line, "  rank "))
            continue;
        assert_int_equal(sscanf(line, "%lf %7s", &whole, unit), 2);
        for (char *end; (at = strpbrk(at, "=+")); at = end) {
            sum += strtod(at + 1, &end);
            assert_ptr_not_equal(end, at + 1);
            parts++;
        }
        assert_true(parts >= 3);
        if (fabs(sum - whole) > 0.02)
            fail_msg("parts make %.2f: %s", sum, line);
        messages++;
    }
    free(text);
    stage_close(&s);
    assert_true(messages > 8);
}

/* A terminal without colours is sent glyphs and attributes alone: drawn so, every class of cell
 * still differs from every other, and the screen is the golden one. */
static int check_monochrome(const struct scene *scene, int width, int height)
{
    char path[160];
    struct stage s;
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);
    assert_non_null(f);
    stage_open(&s, scene->first, scene->second, width, height, 0);
    stage_play(&s, scene->keys);
    cells_dump_text(&s.cells, f);
    cells_dump_monochrome(&s.cells, f);
    fclose(f);
    snprintf(path, sizeof path, "tests/golden/tui-%s-%dx%d-mono.txt", scene->name, width, height);
    int same = screen_golden(path, text);
    free(text);
    stage_close(&s);
    return same;
}

static void monochrome_says_the_same(void **state)
{
    static const int size[][2] = {{80, 24}, {120, 40}, {200, 60}, {40, 10}, {30, 6}};
    int wrong = 0;
    for (size_t i = 0; i < sizeof everywhere / sizeof *everywhere; i++)
        for (size_t k = 0; k < sizeof size / sizeof *size; k++)
            wrong += !check_monochrome(&everywhere[i], size[k][0], size[k][1]);
    assert_int_equal(wrong, 0);
    for (int a = 0; a < SPAN_CLASSES; a++)
        for (int b = 0; b < a; b++) {
            assert_int_not_equal(span_look[a].glyph, span_look[b].glyph);
            assert_int_not_equal(cells_ascii(span_look[a].glyph), cells_ascii(span_look[b].glyph));
        }
    for (int a = 0; a < OVERLAP_CLASSES; a++)
        for (int b = 0; b < a; b++) {
            assert_int_not_equal(overlap_look[a].glyph, overlap_look[b].glyph);
            assert_int_not_equal(cells_ascii(overlap_look[a].glyph),
                                 cells_ascii(overlap_look[b].glyph));
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(screens_at_every_size),
        cmocka_unit_test(every_panel_and_state),
        cmocka_unit_test(parts_of_a_message_add_up),
        cmocka_unit_test(monochrome_says_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, stage_clean);
}
