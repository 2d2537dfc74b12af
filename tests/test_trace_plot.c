/* The timeline that `trace plot` draws: time from zero, launches marked, what lies between them
 * cut, a row for each NIC's direction, and every box inside its row and inside the launches. */
#include "tests/helpers/command.h"

#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>

#include "experiments/trace/trace_cli.h"
#include "tests/helpers/folder.h"
#include "tests/helpers/tui_trace.h"

static char path[96];

static char *script_of_part(const char *file, const struct trace_plot_part *part)
{
    char *text = NULL, error[512] = "";
    size_t size = 0;
    sqlite3 *db;
    FILE *out = open_memstream(&text, &size);
    assert_int_equal(trace_open(&db, file, error, sizeof error), 0);
    assert_int_equal(
        trace_plot_script(db, TRACE_PLOT_TIMELINE, part, "x.png", out, error, sizeof error), 0);
    sqlite3_close(db);
    assert_int_equal(fclose(out), 0);
    return text;
}

static char *script_of(const char *file, uint64_t launch)
{
    return script_of_part(file, &(struct trace_plot_part){launch, -1, -1, 0, UINT64_MAX});
}

static int times(const char *text, const char *what)
{
    int n = 0;
    for (const char *at = text; (at = strstr(at, what)); at++)
        n++;
    return n;
}

/* The axis' end; it begins at 0. */
static double length_of(const char *text)
{
    double end = 0;
    const char *range = strstr(text, "set xrange [0:");
    assert_non_null(range);
    assert_int_equal(sscanf(range, "set xrange [0:%lf]", &end), 1);
    return end;
}

/* Checks every box, and adds up area by state in us and rows. */
static void check_boxes(const char *text, int rows, double area[16])
{
    double length = length_of(text), filled[64] = {0};
    const char *at = strstr(text, "$data << END\n");
    assert_non_null(at);
    memset(area, 0, 16 * sizeof *area);
    for (at = strchr(at, '\n') + 1; strncmp(at, "END", 3); at = strchr(at, '\n') + 1) {
        int state;
        double begin, end, bottom, top;
        assert_int_equal(sscanf(at, "%d %lf %lf %lf %lf", &state, &begin, &end, &bottom, &top), 5);
        int row = (int)bottom;
        assert_true(state > 0 && state < 16 && begin >= 0 && end > begin && end < length * 1.01);
        if (!(row < rows && bottom <= row + 0.951 && top >= row + 0.049 && top < bottom))
            fail_msg("a box from %g to %g lies in no row", bottom, top);
        area[state] += (end - begin) / 1.3 * (bottom - top) / 0.9;
        filled[row]++;
    }
    for (int i = 0; i < rows; i++)
        if (!filled[i])
            fail_msg("row %d is empty", i);
}

enum { ROWS = 4 * (3 + 2) }; /* of a rank: three roles, NIC out and in */

/* Two launches of 60 us, 60 us apart. */
static void test_two_launches(void **state)
{
    char *text = script_of(path, 0), *two = script_of(path, 2);
    double area[16];
    assert_int_equal(times(text, "set label 'launch 1'") + times(text, "set label 'launch 2'"), 2);
    assert_int_equal(times(text, " nohead "), 2);
    assert_int_equal(times(text, "set object rectangle"), 1);
    assert_int_equal(times(text, "'rank 2 NIC out'") + times(text, "'rank 3 NIC in'"), 2);
    assert_non_null(strstr(text, "time, us in launches"));
    assert_true(fabs(length_of(text) - (59.85 + 60.55) * 1.01) < 0.1);
    check_boxes(text, ROWS, area);
    /* In a launch each of a rank's three computing CTAs has 8 tiles of 7.15 us in the mean, and is
     * a third of a row. */
    assert_true(fabs(area[TRACE_TILE] - 4 * 2 * 8 * 7.15) < 0.02 * 4 * 2 * 8 * 7.15);
    assert_true(area[TRACE_STATES] > 10 && area[TRACE_STATES] < 8 * 120);
    assert_int_equal(times(two, "set label 'launch 1'"), 0);
    assert_int_equal(times(two, "set label 'launch 2' at first 0.0"), 1);
    assert_int_equal(times(two, "set object rectangle"), 0);
    assert_true(fabs(length_of(two) - 60.55) < 0.1);
    check_boxes(two, ROWS, area);
    assert_true(fabs(area[TRACE_TILE] - 4 * 8 * 7.15) < 0.02 * 4 * 8 * 7.15);
    free(text);
    free(two);
}

/* Of a rank, a role, a time: the rows are those, and the axis is that time's part of launches. */
static void test_parts(void **state)
{
    double area[16];
    char *rank = script_of_part(path, &(struct trace_plot_part){2, 3, -1, 0, UINT64_MAX}),
         *role = script_of_part(path, &(struct trace_plot_part){2, -1, MK_COMPUTE, 0, UINT64_MAX}),
         *half = script_of_part(path, &(struct trace_plot_part){0, -1, MK_COMPUTE, 30000, 130000});
    check_boxes(rank, 3 + 2, area);
    assert_true(times(rank, "'rank 3 ") == 5 && !times(rank, "'rank 2 "));
    check_boxes(role, 4, area);
    assert_true(fabs(area[TRACE_TILE] - 4 * 8 * 7.15) < 0.02 * 4 * 8 * 7.15);
    assert_int_equal(times(role, "NIC "), 0);
    check_boxes(half, 4, area);
    /* the first launch from 30 us to its end at 59.85, the second from 119.85 to 130 */
    if (fabs(length_of(half) - (29.85 + 10.15) * 1.01) > 0.3)
        fail_msg("an axis of %g us", length_of(half));
    assert_int_equal(times(half, "set label 'launch 1'"), 0);
    assert_int_equal(times(half, "set label 'launch 2'"), 1);
    free(rank);
    free(role);
    free(half);
}

/* Where a CTA has several copies under way and waits, its row is full, not higher than a row. */
static void test_simulation(void **state)
{
    static struct command_run r;
    char line[256], file[128];
    double area[16];
    snprintf(file, sizeof file, "%s/sim.db", folder);
    snprintf(line, sizeof line, "sim ag_gemm --nodes 2 --gpus 2 --launches 2 --trace %s", file);
    command_start(&r, line, NULL);
    assert_int_equal(command_finish(&r, 60), 0);
    char *text = script_of(file, 0);
    check_boxes(text, ROWS, area);
    free(text);
}

static int set_up(void **state)
{
    if (folder_make(state))
        return -1;
    snprintf(path, sizeof path, "%s/t.db", folder);
    return tui_trace_write(path, 0, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_two_launches),
                                       cmocka_unit_test(test_parts),
                                       cmocka_unit_test(test_simulation)};
    return cmocka_run_group_tests(tests, set_up, folder_remove);
}
