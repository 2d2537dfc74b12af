/* A file that is not a readable trace (absent, empty, foreign, older, newer, cut, scribbled over)
 * is refused with one sentence that says which, and never crashes a reader; a good one opens. */
#include "tests/helpers/test.h"

#include <sys/stat.h>

#include "experiments/trace/trace_cli.h"
#include "tests/helpers/trace_parts.h"

static struct parts p;

static void make_file(const char *name, const void *bytes, size_t size)
{
    FILE *f = fopen(parts_path(name), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, size, f), size);
    fclose(f);
}

static char *whole;
static size_t whole_size;

static int make_whole(void **state)
{
    char error[512];
    const struct trace_run run = {.executor = "host"};
    parts_make(&p);
    if (store_parts(p.part, PARTS_RANKS, &run, parts_path("good.db"), error, sizeof error))
        return 1;
    FILE *f = fopen(parts_path("good.db"), "rb");
    fseek(f, 0, SEEK_END);
    whole_size = (size_t)ftell(f);
    rewind(f);
    whole = malloc(whole_size);
    size_t n = fread(whole, 1, whole_size, f);
    fclose(f);
    return n != whole_size;
}

static int clean(void **state)
{
    free(whole);
    return parts_clean(state);
}

static void expect(const char *name, int rc, const char *says)
{
    char error[512] = "";
    sqlite3 *db = (sqlite3 *)1;
    int got = trace_open(&db, parts_path(name), error, sizeof error);
    if (got != rc || !strstr(error, says) || strchr(error, '\n'))
        fail_msg("%s: %d (want %d), \"%s\" lacks \"%s\"", name, got, rc, error, says);
    assert_null(db);
}

/* Runs statements on a copy of the good trace. */
static void altered(const char *name, const char *sql)
{
    sqlite3 *db;
    make_file(name, whole, whole_size);
    assert_int_equal(sqlite3_open(parts_path(name), &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
}

CASE(test_good)
{
    char error[512];
    sqlite3 *db;
    assert_int_equal(trace_open(&db, parts_path("good.db"), error, sizeof error), 0);
    assert_int_equal(query_integer(db, 0, "SELECT events FROM run", ""), 26);
    assert_int_not_equal(sqlite3_exec(db, "DELETE FROM event", NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
}

CASE(test_not_a_trace)
{
    expect("absent.db", -ENOENT, "No such file");
    make_file("empty.db", "", 0);
    expect("empty.db", -ENODATA, "is empty");
    make_file("text.db", "hello, world: this is text of a kind", 36);
    expect("text.db", -EINVAL, "not an SQLite file");
    make_file("short.db", "SQLite format 3", 16);
    expect("short.db", -EBADMSG, "ends after 16 bytes");
    assert_int_equal(mkdir(parts_path("directory"), 0700), 0);
    expect("directory", -EISDIR, "not a file");
    altered("foreign.db", "PRAGMA application_id = 7");
    expect("foreign.db", -EINVAL, "not a trace of mkernel");
}

CASE(test_versions)
{
    altered("older.db", "PRAGMA user_version = 0");
    expect("older.db", -EPROTO, "schema version 0");
    altered("newer.db", "PRAGMA user_version = 99");
    expect("newer.db", -EPROTO, "newer mkernel");
    altered("hollow.db", "DELETE FROM run");
    expect("hollow.db", -EBADMSG, "damaged");
    altered("missing.db", "DROP TABLE level");
    expect("missing.db", -EBADMSG, "damaged");
}

/* A trace of another version of the views shows the figures as this program defines them. */
CASE(test_views_of_another_version)
{
    struct trace_figure good[64], other[64];
    char error[512];
    sqlite3 *db;
    assert_int_equal(trace_open(&db, parts_path("good.db"), error, sizeof error), 0);
    int count = trace_figures(db, NULL, good, 64);
    sqlite3_close(db);
    altered("views.db", "DROP VIEW figures; DROP VIEW launches; CREATE VIEW launches AS SELECT 1 "
                        "AS launch; DROP VIEW overlap");
    assert_int_equal(trace_open(&db, parts_path("views.db"), error, sizeof error), 0);
    assert_true(count > 10);
    assert_int_equal(trace_figures(db, NULL, other, 64), count);
    for (int i = 0; i < count; i++)
        assert_true(!strcmp(good[i].name, other[i].name) && good[i].value[0] == other[i].value[0]);
    assert_int_equal(query_integer(db, 0, "SELECT count(*) FROM overlap", ""), 4);
    sqlite3_close(db);
}

static int64_t ideal_of(const char *name)
{
    char error[512];
    sqlite3 *db;
    assert_int_equal(trace_open(&db, parts_path(name), error, sizeof error), 0);
    int64_t ns = query_integer(db, -1, "SELECT max(ideal_ns) FROM efficiency", "");
    sqlite3_close(db);
    return ns;
}

/* The ideal has memory's time in it, but in a file that was written before it said so. */
CASE(test_memory)
{
#define PEAKS "UPDATE run SET peak_flops = 1e18, nvlink_bytes_per_s = 1e18; "
    altered("peaks.db", PEAKS "UPDATE work SET memory_bytes = 7e9");
    assert_true(ideal_of("peaks.db") < 1000);
    altered("memory.db", PEAKS "UPDATE work SET memory_bytes = 7e9; "
                               "UPDATE run SET memory_bytes_per_s = 2e9");
    assert_int_equal(ideal_of("memory.db"), 3500000000);
    altered("before.db", PEAKS "PRAGMA writable_schema = 1; UPDATE sqlite_master SET "
                               "sql = replace(replace(sql, 'memory_bytes REAL,', ''), "
                               "'network_bytes_per_s REAL,', 'network_bytes_per_s REAL --')");
    assert_int_equal(ideal_of("before.db"), ideal_of("peaks.db"));
}

CASE(test_cut)
{
    for (size_t n = 100; n < whole_size; n += 1 + whole_size / 40) {
        char error[512];
        sqlite3 *db;
        make_file("cut.db", whole, n);
        int rc = trace_open(&db, parts_path("cut.db"), error, sizeof error);
        if (!rc)
            fail_msg("cut to %zu of %zu bytes, it opens", n, whole_size);
        assert_int_equal(rc, -EBADMSG);
    }
}

/* What opens although pages inside are scribbled over must end in a report or a sentence, not in a
 * crash. */
CASE(test_scribbled)
{
    char *copy = malloc(whole_size);
    FILE *out = fopen("/dev/null", "w");
    uint64_t random = 1;
    int opened = 0;
    for (int round = 0; round < 150; round++) {
        char error[512] = "";
        sqlite3 *db;
        memcpy(copy, whole, whole_size);
        for (int i = 0; i < 200; i++) {
            random = random * 6364136223846793005ull + 1442695040888963407ull;
            copy[100 + (random >> 16) % (whole_size - 100)] = (char)(random >> 56);
        }
        make_file("scribbled.db", copy, whole_size);
        if (trace_open(&db, parts_path("scribbled.db"), error, sizeof error)) {
            assert_true(*error);
            continue;
        }
        opened++;
        const struct trace_export everything = {0, UINT64_MAX, -1, 0};
        trace_report_summary(db, out, error, sizeof error);
        trace_report_diff(db, db, out, error, sizeof error);
        trace_export_chrome(db, &everything, out);
        trace_plot_write(out, db, TRACE_PLOT_TIMELINE,
                         &(struct trace_plot_part){0, -1, -1, 0, UINT64_MAX}, error, sizeof error);
        sqlite3_close(db);
    }
    assert_true(opened > 0);
    fclose(out);
    free(copy);
}

FIXTURE(make_whole, clean)
