/* The timeline that `trace plot` draws: time from zero, launches marked, what lies between them
 * cut, a row for each NIC's direction, and every share inside its row. */
#define OWN_MAIN
#include "tests/helpers/command.h"
#include <math.h>
#include <sqlite3.h>

#include "tests/helpers/folder.h"
#include "tests/helpers/tui_trace.h"

enum { ROWS = 4 * (3 + 2) }; /* of a rank: three roles, NIC out and in */

static char path[96];
static sqlite3 *memory;

/* What is drawn of a trace with these options, as JSON. */
static char *drawn(const char *file, const char *options)
{
    static char text[1 << 20];
    char mkernel[1024], line[2048];
    command_path(mkernel, sizeof mkernel);
    snprintf(line, sizeof line, "%s trace plot %s --data %s", mkernel, file, options);
    FILE *out = popen(line, "r");
    assert_non_null(out);
    text[fread(text, 1, sizeof text - 1, out)] = '\0';
    if (pclose(out))
        fail_msg("%s fails", line);
    return text;
}

/* The number that an expression of SQL says of it, which is ?1. */
static double says(const char *text, const char *sql)
{
    sqlite3_stmt *q;
    assert_int_equal(sqlite3_prepare_v2(memory, sql, -1, &q, NULL), SQLITE_OK);
    sqlite3_bind_text(q, 1, text, -1, SQLITE_STATIC);
    assert_int_equal(sqlite3_step(q), SQLITE_ROW);
    double number = sqlite3_column_double(q, 0);
    sqlite3_finalize(q);
    return number;
}

static double length_of(const char *text)
{
    return says(text, "SELECT json_extract(?1, '$.length')");
}

/* So many rows, none of them empty, and no column of a row higher than the row. */
static void check_rows(const char *text, int rows)
{
    static const char columns[] =
        "SELECT %s FROM (SELECT sum(c.value) AS height, r.key AS row FROM json_each(?1, '$.rows') "
        "r, json_each(r.value, '$.shares') s, json_each(s.value) c GROUP BY r.key, c.key)";
    char sql[512];
    assert_true(says(text, "SELECT json_array_length(?1, '$.rows')") == rows);
    snprintf(sql, sizeof sql, columns, "max(height)");
    assert_true(says(text, sql) <= 1.0001);
    snprintf(sql, sizeof sql, columns, "count(DISTINCT row) FILTER (WHERE height > 0)");
    assert_true(says(text, sql) == rows);
}

/* Of a state, in us and rows. */
static double area(const char *text, const char *state)
{
    char sql[512];
    snprintf(sql, sizeof sql,
             "SELECT sum(c.value) FROM json_each(?1, '$.rows') r, json_each(r.value, "
             "'$.shares.\"%s\"') c",
             state);
    return says(text, sql) * length_of(text) / 600;
}

/* Two launches of 60 us, 60 us apart. */
CASE(test_two_launches)
{
    char *text = drawn(path, "");
    assert_non_null(strstr(text, "\"launch 1\""));
    assert_non_null(strstr(text, "\"launch 2\""));
    assert_true(says(text, "SELECT json_array_length(?1, '$.marks')") == 2);
    assert_true(says(text, "SELECT json_array_length(?1, '$.cuts')") == 1);
    assert_non_null(strstr(text, "\"rank 2 NIC out\""));
    assert_non_null(strstr(text, "\"rank 3 NIC in\""));
    assert_non_null(strstr(text, "\"unit\": \"us\""));
    assert_true(fabs(length_of(text) - (59.85 + 60.55) * 1.01) < 0.1);
    check_rows(text, ROWS);
    /* In a launch each of a rank's three computing CTAs has 8 tiles of 7.15 us in the mean, and is
     * a third of a row. */
    assert_true(fabs(area(text, "tile") - 4 * 2 * 8 * 7.15) < 0.02 * 4 * 2 * 8 * 7.15);
    double nic = area(text, "NIC: bytes under way");
    assert_true(nic > 10 && nic < 8 * 120);
    text = drawn(path, "--launch 2");
    assert_null(strstr(text, "\"launch 1\""));
    assert_non_null(strstr(text, "[0.0, \"launch 2\"]"));
    assert_true(says(text, "SELECT json_array_length(?1, '$.cuts')") == 0);
    assert_true(fabs(length_of(text) - 60.55) < 0.1);
    check_rows(text, ROWS);
    assert_true(fabs(area(text, "tile") - 4 * 8 * 7.15) < 0.02 * 4 * 8 * 7.15);
}

/* Of a rank, a role, a time: the rows are those, and the axis is that time's part of launches. */
CASE(test_parts)
{
    char *text = drawn(path, "--launch 2 --rank 3");
    check_rows(text, 3 + 2);
    assert_non_null(strstr(text, "\"rank 3 "));
    assert_null(strstr(text, "\"rank 2 "));
    text = drawn(path, "--launch 2 --role compute");
    check_rows(text, 4);
    assert_true(fabs(area(text, "tile") - 4 * 8 * 7.15) < 0.02 * 4 * 8 * 7.15);
    assert_null(strstr(text, "NIC "));
    text = drawn(path, "--role compute --from 30us --to 130us");
    check_rows(text, 4);
    /* the first launch from 30 us to its end at 59.85, the second from 119.85 to 130 */
    if (fabs(length_of(text) - (29.85 + 10.15) * 1.01) > 0.3)
        fail_msg("an axis of %g us", length_of(text));
    assert_null(strstr(text, "\"launch 1\""));
    assert_non_null(strstr(text, "\"launch 2\""));
}

/* Where a CTA has several copies under way and waits, its row is full, not higher than a row. */
CASE(test_simulation)
{
    static struct command_run r;
    char line[256], file[128];
    snprintf(file, sizeof file, "%s/sim.db", folder);
    snprintf(line, sizeof line, "sim ag_gemm --nodes 2 --gpus 2 --launches 2 --trace %s", file);
    command_start(&r, line, NULL);
    assert_int_equal(command_finish(&r, 60), 0);
    check_rows(drawn(file, ""), ROWS);
}

static int set_up(void **state)
{
    if (folder_make(state) || sqlite3_open(":memory:", &memory))
        return -1;
    snprintf(path, sizeof path, "%s/t.db", folder);
    return tui_trace_write(path, 0, 1);
}

int main(void)
{
    if (!command_draws()) {
        print_message("skipped: python3-matplotlib is not installed\n");
        return 0;
    }
    return cmocka_run_group_tests(test_cases, set_up, folder_remove);
}
