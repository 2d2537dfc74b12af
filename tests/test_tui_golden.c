/* Known traces and keys give the screens in tests/golden, cell by cell, in UTF-8 with colours and
 * in ASCII. After a change that is meant to show: MK_GOLDEN=write build/tests/test_tui_golden, and
 * look at git diff. */
#include "tests/helpers/tui_stage.h"

#include <math.h>

enum plane { UTF8, ASCII, MONO };

struct scene {
    const char *name, *keys;
    int first, second, width, height;
    enum plane plane;
};

/* Each screen, each size and each plane once. */
static const struct scene scenes[] = {
    {"start", "", 0, -1, 120, 40, UTF8},
    {"chain", "w\nEnter\nEnter\n", 0, -1, 40, 10, MONO},
    {"start", "", 0, -1, 30, 6, ASCII},
    {"overlap", "2\n", 0, -1, 200, 60, UTF8},
    {"roles", "3\n", 0, -1, 120, 40, UTF8},
    {"stalls", "4\n", 0, -1, 120, 40, UTF8},
    {"slowest", "5\n", 0, -1, 120, 40, UTF8},
    {"critical", "6\nRight*20\n", 0, -1, 120, 40, UTF8},
    {"why", "8\ne\n", 0, -1, 120, 40, UTF8},
    {"compare-why", "8\nz\n", 0, 1, 120, 40, UTF8},
    {"range", "Right*4\n[\nRight*20\n]\n", 0, -1, 120, 40, UTF8},
    {"ctas", "Down Space\n+ + +\nDown*2\n", 0, -1, 120, 40, ASCII},
    {"search", "/\ntype tile 9\nEnter\n", 0, -1, 120, 40, UTF8},
    {"filter", "\\\ntype rank 7\nEnter\n", 0, -1, 120, 40, UTF8},
    {"links", "Down*5\nRight*6\n", 0, -1, 120, 40, UTF8},
    {"help", "?\n", 0, -1, 80, 24, UTF8},
    {"cut", "e\n", 3, -1, 120, 40, UTF8},
    {"empty", "", 2, -1, 120, 40, UTF8},
    {"compare", "", 0, 1, 120, 40, UTF8},
    {"compare-roles", "3\nDown*2\nSpace\n", 0, 1, 120, 40, MONO},
};

/* The screen of a scene in the plane, size given. MONO: as a terminal without colours is sent it. */
static char *text_of(const struct scene *scene, int width, int height, enum plane plane)
{
    struct stage s;
    char *text = NULL;
    size_t size = 0;
    stage_open(&s, scene->first, scene->second, width, height, plane == ASCII);
    stage_play(&s, scene->keys);
    if (plane != MONO) {
        text = screen_text(&s.cells, plane == UTF8);
    } else {
        FILE *f = open_memstream(&text, &size);
        assert_non_null(f);
        cells_dump_text(&s.cells, f);
        cells_dump_monochrome(&s.cells, f);
        fclose(f);
    }
    stage_close(&s);
    return text;
}

CASE(screens_are_the_golden_ones)
{
    static const char *const planes[] = {"utf8", "ascii", "mono"};
    char path[160];
    int wrong = 0;
    for (const struct scene *c = scenes; c < scenes + sizeof scenes / sizeof *scenes; c++) {
        char *text = text_of(c, c->width, c->height, c->plane);
        snprintf(path, sizeof path, "tests/golden/tui-%s-%dx%d-%s.txt", c->name, c->width,
                 c->height, planes[c->plane]);
        wrong += !screen_golden(path, text);
        free(text);
    }
    assert_int_equal(wrong, 0);
}

/* At every size the first two screens in ASCII hold nothing else. */
CASE(ascii_is_ascii_at_every_size)
{
    static const int size[][2] = {{80, 24}, {120, 40}, {200, 60}, {40, 10}, {30, 6}};
    for (size_t i = 0; i < 2; i++)
        for (size_t k = 0; k < sizeof size / sizeof *size; k++) {
            char *text = text_of(&scenes[i], size[k][0], size[k][1], ASCII);
            for (const char *c = text; *c; c++)
                assert_true((unsigned char)*c < 0x80);
            free(text);
        }
}

/* What a slow message's time is made of adds up to it, in one unit. */
CASE(parts_of_a_message_add_up)
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
 * still differs from every other. */
CASE(monochrome_says_the_same)
{
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

FIXTURE(NULL, stage_clean)
