/* A damaged trace is never passed off as a whole one: whatever reads it ends in a status of its own
 * and says so, and leaves no file behind. */
#include "tests/helpers/command.h"
#include <sqlite3.h>

#include "tests/helpers/folder.h"

static struct command_run r;

/* A line with the folder's name in it. */
static const char *at(const char *format)
{
    static char line[512];
    snprintf(line, sizeof line, format, folder, folder);
    return line;
}

static void run(const char *line)
{
    command_start(&r, line, NULL);
    command_finish(&r, 60);
}

static int exists(const char *name)
{
    char path[160];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return access(path, F_OK) == 0;
}

static long one_number(sqlite3 *db, const char *sql)
{
    sqlite3_stmt *q;
    assert_int_equal(sqlite3_prepare_v2(db, sql, -1, &q, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(q), SQLITE_ROW);
    long number = (long)sqlite3_column_int64(q, 0);
    sqlite3_finalize(q);
    return number;
}

/* Where a table begins in the file, in pages. */
static long root_of(const char *path, const char *name, long *page_size)
{
    sqlite3 *db;
    char sql[128];
    assert_int_equal(sqlite3_open_v2(path, &db, SQLITE_OPEN_READONLY, NULL), SQLITE_OK);
    snprintf(sql, sizeof sql, "SELECT rootpage FROM sqlite_master WHERE name = '%s'", name);
    long page = one_number(db, sql);
    *page_size = one_number(db, "PRAGMA page_size");
    sqlite3_close(db);
    return page - 1;
}

/* The trace again, but the first page of `table` is zeros. */
static void damage(const char *table)
{
    char path[160], copy[512];
    long size;
    snprintf(path, sizeof path, "%s/whole.db", folder);
    long page = root_of(path, table, &size);
    snprintf(copy, sizeof copy,
             "cp %s/whole.db %s/bad.db && dd if=/dev/zero of=%s/bad.db bs=%ld seek=%ld count=1 "
             "conv=notrunc 2>/dev/null",
             folder, folder, folder, size, page);
    assert_int_equal(system(copy), 0);
}

static void expect_damaged(const char *line)
{
    run(line);
    if ((r.status != 3 && r.status != 2) || !strstr(r.err_text, "damaged") ||
        command_lines(r.err_text) != 1)
        fail_msg("mkernel %s: status %d, \"%s\"", line, r.status, r.err_text);
}

CASE(test_reports)
{
    damage("launch_rank");
    expect_damaged(at("trace summary %s/bad.db"));
    expect_damaged(at("trace diff %s/bad.db %s/whole.db"));
    expect_damaged(at("trace diff %s/whole.db %s/bad.db"));
    expect_damaged(at("trace plot %s/bad.db --kind overlap --data"));
    expect_damaged(at("trace plot %s/bad.db --kind overlap --out %s/bad.png"));
    assert_false(exists("bad.png"));
    expect_damaged(at("tui %s/bad.db --dump-screen"));
    damage("event");
    expect_damaged(at("trace export %s/bad.db"));
    expect_damaged(at("trace export %s/bad.db --out %s/bad.json"));
    assert_false(exists("bad.json"));
    expect_damaged(at("trace summary %s/bad.db"));
    damage("level");
    expect_damaged(at("trace plot %s/bad.db --out %s/bad.png"));
    assert_false(exists("bad.png"));
}

CASE(test_whole)
{
    static const char *const lines[] = {
        "trace summary %s/whole.db", "trace diff %s/whole.db %s/whole.db",
        "trace export %s/whole.db --out %s/whole.json", "trace plot %s/whole.db --data",
        "tui %s/whole.db --dump-screen"};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        run(at(lines[i]));
        if (r.status || r.err_used)
            fail_msg("mkernel %s: status %d, \"%s\"", lines[i], r.status, r.err_text);
    }
}

/* The file that it reads, under another name, is not written over. */
CASE(test_onto_itself)
{
    char other[160], self[256];
    snprintf(other, sizeof other, "%s/link.db", folder);
    snprintf(self, sizeof self, "%s/whole.db", folder);
    assert_int_equal(symlink(self, other), 0);
    run(at("trace export %s/whole.db --out %s/link.db"));
    assert_int_equal(r.status, 2);
    assert_non_null(strstr(r.err_text, "is the trace itself"));
    run(at("trace summary %s/whole.db"));
    assert_int_equal(r.status, 0);
}

static int set_up(void **state)
{
    if (folder_make(state))
        return -1;
    run(at("sim ag_gemm --shape 512,512,512 --launches 4 --trace %s/whole.db"));
    return r.status;
}

FIXTURE(set_up, folder_remove)
