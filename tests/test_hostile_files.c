/* A file that a stranger made may say anything, and none of it is run, moves the cursor of who
 * looks at it, or keeps a reader busy for ever. */
#include <sqlite3.h>

#include "experiments/results/results_file.h"
#include "tests/helpers/command.h"
#include "tests/helpers/folder.h"
#include "tests/helpers/sanitized.h"
#include "tracer/reader.h"

static struct command_run r;

/* Ends a text, asks a shell in three ways, then a terminal in five. */
#define ASKS_A_SHELL "x'\n!touch ran\n`touch ran`\"\nsystem('touch ran')\n'"
#define MOVES_A_CURSOR "\033[2J\033]0;title\007\302\2331m\233\r\177"
#define HOSTILE ASKS_A_SHELL MOVES_A_CURSOR

/* In the folder, as one would who was sent the file. */
static void run(const char *const *words)
{
    char path[4096];
    char *argv[16] = {path};
    command_path(path, sizeof path);
    for (int i = 0; words[i]; i++)
        argv[i + 1] = (char *)words[i];
    command_start_program(&r, path, argv);
    command_finish(&r, 20);
}

#define RUN(...) run((const char *const[]){__VA_ARGS__, NULL})

static void is_plain(const char *text)
{
    for (const unsigned char *c = (const unsigned char *)text; *c; c++)
        if ((*c < 0x20 && *c != '\n' && *c != '\t') || *c == 0x7f ||
            (*c == 0xc2 && c[1] >= 0x80 && c[1] < 0xa0) || *c == 0x9b)
            fail_msg("byte %02x at \"%.40s\"", *c, (const char *)c);
}

static void nothing_ran(void)
{
    is_plain(r.out_text);
    is_plain(r.err_text);
    assert_int_equal(access("ran", F_OK), -1);
}

/* Every text of every table becomes `with`. */
static void poison(const char *path, const char *with)
{
    sqlite3 *db;
    sqlite3_stmt *q, *set;
    char sql[512];
    int done = 0;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(
        sqlite3_prepare_v2(db,
                           "SELECT m.name, c.name FROM sqlite_master m, pragma_table_info(m.name) "
                           "c WHERE m.type = 'table' AND c.type = 'TEXT' AND c.name <> 'kind'",
                           -1, &q, NULL),
        SQLITE_OK);
    while (sqlite3_step(q) == SQLITE_ROW) {
        snprintf(sql, sizeof sql, "UPDATE OR IGNORE \"%s\" SET \"%s\" = \"%s\" || ?1",
                 sqlite3_column_text(q, 0), sqlite3_column_text(q, 1), sqlite3_column_text(q, 1));
        assert_int_equal(sqlite3_prepare_v2(db, sql, -1, &set, NULL), SQLITE_OK);
        sqlite3_bind_text(set, 1, with, -1, SQLITE_STATIC);
        done += sqlite3_step(set) == SQLITE_DONE;
        sqlite3_finalize(set);
    }
    sqlite3_finalize(q);
    sqlite3_close(db);
    assert_true(done > 3);
}

CASE(a_trace_is_shown_and_drawn)
{
    if (access("trace.db", F_OK)) {
        RUN("sim", "ag_gemm", "--gpus", "2", "--shape", "2048,2048,2048", "--trace", "trace.db");
        assert_int_equal(r.status, 0);
        poison("trace.db", HOSTILE);
    }
    RUN("trace", "summary", "trace.db");
    if (r.status)
        fail_msg("%s", r.err_text);
    assert_non_null(strstr(r.out_text, "[2J")); /* it is shown, but for what moves the cursor */
    nothing_ran();
    RUN("trace", "diff", "trace.db", "trace.db");
    assert_int_equal(r.status, 0);
    nothing_ran();
    RUN("trace", "sql", "trace.db", "SELECT * FROM run");
    assert_int_equal(r.status, 0);
    assert_non_null(strstr(r.out_text, "[2J"));
    nothing_ran();
    RUN("trace", "sql", "trace.db", "SELECT * FROM \"\033[2J\"");
    assert_int_equal(r.status, 2);
    nothing_ran();
    if (!command_draws())
        return;
    static const char *const kinds[] = {"timeline", "overlap"};
    for (int i = 0; i < 2; i++) {
        RUN("trace", "plot", "trace.db", "--kind", kinds[i], "--out", "trace.svg");
        assert_int_equal(r.status, 0);
        nothing_ran();
    }
    RUN("trace", "plot", "trace.db", "--kind", "overlap", "--data");
    assert_int_equal(r.status, 0);
    nothing_ran();
}

static void put_setting(sqlite3 *db, int64_t point, const char *name, const char *value)
{
    assert_int_equal(
        results_do(db, "INSERT INTO setting VALUES (?1, ?2, ?3)", "itt", point, name, value), 0);
}

/* Two points whose operator, shape and a setting, name and value, are hostile. */
static void make_results(const char *path, const char *name)
{
    sqlite3 *db;
    char error[256];
    assert_int_equal(results_create(&db, path, error, sizeof error), 0);
    assert_int_equal(results_do(db,
                                "INSERT INTO machine VALUES (1, 'one', '{\"host\": \"here\", "
                                "\"gpus\": []}')",
                                ""),
                     0);
    assert_int_equal(results_do(db,
                                "INSERT INTO sweep VALUES (1, ?1, ?1, '', '', 1, 1, "
                                "'2026-01-01', NULL, NULL)",
                                "t", HOSTILE),
                     0);
    for (int64_t point = 1; point <= 4; point++) {
        char value[256], key[32];
        snprintf(value, sizeof value, "%lld%s", (long long)point / 3, HOSTILE);
        snprintf(key, sizeof key, "%lld", (long long)point);
        assert_int_equal(results_do(db, "INSERT INTO point VALUES (?1, ?2)", "it", point, key), 0);
        put_setting(db, point, "op", "ag_gemm" HOSTILE);
        put_setting(db, point, "exec", point & 1 ? "host" : "sim");
        put_setting(db, point, "shape", "256,128,256");
        put_setting(db, point, name, value);
        assert_int_equal(
            results_do(db,
                       "INSERT INTO job (point, repeat, sweep, begun, seconds, command, status, "
                       "verdict, sentence, result) VALUES (?1, 0, 1, 'now', 1, 'mkernel', 0, "
                       "'right', ?2, '{\"flop\": 2e9, \"nvlink_bytes\": 1e6, \"network_bytes\": "
                       "0, \"ms_median\": 1, \"ms_ideal\": 0.5, \"nodes\": 1, \"gpus\": 2}')",
                       "it", point, HOSTILE),
            0);
        int64_t job = sqlite3_last_insert_rowid(db);
        for (int64_t i = 0; i < 4; i++)
            assert_int_equal(results_do(db, "INSERT INTO sample VALUES (?1, 'fused', 0, ?2, 0, ?3)",
                                        "iid", job, i, 1 + 0.1 * (double)(point + i)),
                             0);
    }
    sqlite3_close(db);
}

CASE(results_are_shown_and_drawn)
{
    static const char name[] = "y'\n!touch ran\n'";
    static const char *const kinds[] = {"time", "speed", "efficiency", "stack", "simulated"};
    make_results("results.db", name);
    RUN("results", "results.db");
    assert_int_equal(r.status, 0);
    nothing_ran();
    RUN("results", "results.db", "diff", "exec=host", "exec=sim");
    nothing_ran();
    if (!command_draws())
        return;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        RUN("results", "results.db", "plot", kinds[i], "results.svg");
        if (r.status)
            fail_msg("%s: %s", kinds[i], r.err_text);
        nothing_ran();
    }
    RUN("results", "results.db", "plot", "roofline", "results.svg", "--roofs", "1,10,0");
    assert_int_equal(r.status, 0);
    nothing_ran();
    RUN("results", "results.db", "plot", "heat", "results.svg", "--x", name, "--y", "exec");
    assert_int_equal(r.status, 0);
    nothing_ran();
}

/* A copy of `good` whose schema was changed by `sql`. */
static const char *changed(const char *good, const char *sql)
{
    sqlite3 *db;
    char command[256], *why = NULL;
    snprintf(command, sizeof command, "cp %s changed.db", good);
    assert_int_equal(system(command), 0);
    assert_int_equal(sqlite3_open("changed.db", &db), SQLITE_OK);
    if (sqlite3_exec(db, sql, NULL, NULL, &why) != SQLITE_OK)
        fail_msg("%s: %s", sql, why);
    sqlite3_close(db);
    return "changed.db";
}

#define ENDLESS                                                                                    \
    " AS WITH RECURSIVE r(id) AS (SELECT 0 UNION ALL SELECT id + 1 FROM r) SELECT id, 0 node, 0 "  \
    "local, '' host, '' device, '' key FROM r;"

static void is_refused(const char *words)
{
    if (r.status != 2 || !strstr(r.err_text, words) || r.seconds > BUSY)
        fail_msg("status %d after %.1f s, without \"%s\": %s", r.status, r.seconds, words,
                 r.err_text);
    nothing_ran();
}

/* What a file's schema would run inside mkernel's queries may have no end. */
CASE(a_schema_runs_nothing)
{
    static const struct {
        const char *sql, *words;
    } traces[] =
        {
            {"DROP TABLE rank; CREATE VIEW rank" ENDLESS, "is damaged"},
            {"DROP TABLE rank; CREATE VIEW \"RANK\"" ENDLESS, "is damaged"},
            {"DROP TABLE \"drop\"; CREATE VIEW \"drop\"" ENDLESS, "is damaged"},
            {"ALTER TABLE run ADD COLUMN slow AS (hex(zeroblob(500000000)) LIKE '%a%a%a%b')",
             "a computed column"},
            {"CREATE INDEX slow ON rank (hex(node))", "an index of an expression"},
            /* SQLite reads this text; a reader that looks for words in it does not find them */
            {"DROP TABLE rank; PRAGMA writable_schema = 1; INSERT INTO sqlite_master VALUES "
             "('table', 'rank', 'rank', 0, 'CREATE /**/ VIRTUAL TABLE rank USING fts5(id)')",
             "is damaged"},
        },
      results[] = {
          {"DROP TABLE point; CREATE VIEW point" ENDLESS, "is damaged"},
      };
    for (size_t i = 0; i < sizeof traces / sizeof *traces; i++) {
        RUN("trace", "summary", changed("trace.db", traces[i].sql));
        is_refused(traces[i].words);
    }
    test_write_file("sweep.yaml", "name: s\nset: {exec: sim}\nvary:\n  op: [ag_gemm]\n");
    for (size_t i = 0; i < sizeof results / sizeof *results; i++) {
        RUN("results", changed("results.db", results[i].sql));
        is_refused(results[i].words);
        RUN("sweep", "sweep.yaml", "--out", "changed.db");
        is_refused(results[i].words);
    }
}

CASE(a_trigger_does_not_run)
{
    test_write_file("one.yaml", "name: s\nset: {exec: sim, gpus: 2}\nvary:\n  op: [ag_gemm]\n");
    RUN("sweep", "one.yaml", "--out", "one.db");
    assert_int_equal(r.status, 0);
    RUN("sweep", "one.yaml", "--repeats", "2", "--out",
        changed("one.db", "CREATE VIEW endless" ENDLESS
                          "CREATE TRIGGER t AFTER INSERT ON sweep BEGIN INSERT INTO point SELECT "
                          "NULL, count(*) FROM endless; END"));
    if (r.status || r.seconds > 2 * BUSY)
        fail_msg("status %d after %.1f s: %s", r.status, r.seconds, r.err_text);
}

/* Whatever else a file makes of mkernel's queries, they have an allowance of steps; a person's own
 * query has none and ends at Ctrl-C. */
CASE(queries_end)
{
    static const char endless[] =
        "WITH RECURSIVE r(id) AS (SELECT 0 UNION ALL SELECT id + 1 FROM r) SELECT max(id) FROM r";
    sqlite3 *db;
    sqlite3_stmt *q;
    char error[256], path[4096];
    assert_int_equal(trace_open(&db,
                                changed("trace.db", "DELETE FROM flow; DELETE FROM level; VACUUM"),
                                error, sizeof error),
                     0);
    assert_null(trace_damage());
    assert_int_equal(sqlite3_prepare_v2(db, endless, -1, &q, NULL), SQLITE_OK);
    struct timespec from, to;
    clock_gettime(CLOCK_MONOTONIC, &from);
    assert_int_equal(sqlite3_step(q), SQLITE_INTERRUPT);
    clock_gettime(CLOCK_MONOTONIC, &to);
    assert_true(to.tv_sec - from.tv_sec < 2 * BUSY);
    sqlite3_finalize(q);
    sqlite3_close(db);
    assert_non_null(strstr(trace_damage(), "far more steps"));
    command_path(path, sizeof path);
    command_start_program(&r, path,
                          (char *[]){path, "trace", "sql", "changed.db", (char *)endless, NULL});
    usleep(900000); /* the allowance would have been spent */
    kill(r.pid, SIGINT);
    command_finish(&r, 60);
    assert_int_equal(r.status, -1);
    assert_int_equal(r.signal, SIGINT);
}

/* A table of measured plans, drawn into a file whose name is a command. */
CASE(a_path_is_no_command)
{
    static const char path[] = "z'\n!touch ran\n'.svg";
    FILE *f = fopen("tune.csv", "w");
    fputs("op,m,n,k,nodes,gpus,ms,of_best,default,wrong,made\n"
          "ag_gemm,4096,1024,2048,1,2,0.1,1,1,0,pace=1\n",
          f);
    fclose(f);
    if (!command_draws())
        skip();
    RUN("sim", "--validate", "tune.csv", "--plot", path);
    if (r.status)
        fail_msg("%s%s", r.out_text, r.err_text);
    nothing_ran();
    assert_int_equal(access(path, F_OK), 0);
}

static int set_up(void **state)
{
    return folder_make(state) || chdir(folder);
}

static int tear_down(void **state)
{
    return chdir("/") || folder_remove(state);
}

FIXTURE(set_up, tear_down)
