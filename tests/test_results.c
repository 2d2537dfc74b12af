/* `mkernel results` says of a file of results what is in it: figures as nccl-tests would count
 * them, differences that are there, nothing of those that are not; and draws it. The results are
 * made here, so that what must come out is known. */
#include <math.h>
#include <sys/file.h>
#include <sys/syscall.h>

#include "experiments/results/results_file.h"
#include "tests/helpers/command.h"
#include "tests/helpers/folder.h"
#include "tests/helpers/json.h"

enum { JOBS = 5, LAUNCHES = 20 };

static struct command_run r;

static int results(const char *format, ...)
{
    char line[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    char text[2200];
    snprintf(text, sizeof text, "results %s", line);
    command_start(&r, text, NULL);
    return command_finish(&r, 60);
}

/* One that says what it says else where it fails. */
static void works(int status)
{
    if (r.status != status)
        print_message("status %d, not %d: %s%s\n", r.status, status, r.out_text, r.err_text);
    assert_int_equal(r.status, status);
}

static uint64_t chance = 1;

static double unit(void)
{
    chance = chance * 6364136223846793005ull + 1442695040888963407ull;
    return (double)(chance >> 11) * 0x1p-53;
}

/* A point whose launches take `ms` on rank 0 and 10 % more on rank 1, up to 2 % more by chance. */
static void add(sqlite3 *db, const char *op, const char *shape, const char *roles, const char *exec,
                double bytes, double ms)
{
    char key[256], result[512];
    snprintf(key, sizeof key, "exec=%s op=%s roles=%s shape=%s", exec, op, roles, shape);
    snprintf(
        result, sizeof result,
        "{\"op\": \"%s\", \"exec\": \"%s\", \"shape\": [%s], \"nodes\": 1, \"gpus\": 2, \"flop\": "
        "2e9, \"nvlink_bytes\": %.0f, \"network_bytes\": 0, \"ms_median\": %g, \"ms_ideal\": "
        "%g}",
        op, exec, shape, bytes, ms * 1.1, ms / 2);
    assert_int_equal(results_do(db, "INSERT INTO point (key) VALUES (?1)", "t", key), 0);
    int64_t point = sqlite3_last_insert_rowid(db);
    const char *const settings[][2] = {
        {"op", op}, {"shape", shape}, {"roles", roles}, {"exec", exec}};
    for (int i = 0; i < 4; i++)
        assert_int_equal(results_do(db, "INSERT INTO setting VALUES (?1, ?2, ?3)", "itt", point,
                                    settings[i][0], settings[i][1]),
                         0);
    for (int64_t job = 0; job < JOBS; job++) {
        assert_int_equal(results_do(db,
                                    "INSERT INTO job (point, repeat, sweep, begun, seconds, "
                                    "command, status, verdict, sentence, result) VALUES (?1, ?2, "
                                    "1, 'now', 1, 'mkernel', 0, 'right', '', ?3)",
                                    "iit", point, job, result),
                         0);
        int64_t id = sqlite3_last_insert_rowid(db);
        for (int64_t rank = 0; rank < 2; rank++)
            for (int64_t i = 0; i < LAUNCHES; i++) {
                double took = ms * (rank ? 1.1 : 1) * (1 + 0.02 * unit());
                if (rank && job == 2 && i == 7 && !strcmp(op, "gemm_rs"))
                    took *= 9; /* one of them hung in something */
                assert_int_equal(results_do(db,
                                            "INSERT INTO sample VALUES (?1, 'fused', ?2, ?3, 0, "
                                            "?4)",
                                            "iiid", id, rank, i, took),
                                 0);
            }
    }
}

/* ag_gemm, gemm_rs and gemm_ar at two shapes and two splits; b's are faster by `less`. */
static void make(const char *path, double less)
{
    static const char *const ops[] = {"ag_gemm", "gemm_rs", "gemm_ar"};
    static const char *const shapes[] = {"256,128,256", "512,128,256"};
    char error[512];
    sqlite3 *db;
    unlink(path);
    assert_int_equal(results_create(&db, path, error, sizeof error), 0);
    sqlite3_exec(db, "BEGIN", NULL, NULL, NULL);
    assert_int_equal(results_do(db,
                                "INSERT INTO machine VALUES (1, 'one', '{\"host\": \"here\", "
                                "\"commit\": \"abc\", \"cpu\": \"a CPU\", \"gpus\": []}')",
                                ""),
                     0);
    assert_int_equal(results_do(db,
                                "INSERT INTO sweep VALUES (1, 'made', 'What is it?', '', '', 1, 1, "
                                "'2026-01-01', NULL, NULL)",
                                ""),
                     0);
    for (int op = 0; op < 3; op++)
        for (int s = 0; s < 2; s++) {
            add(db, ops[op], shapes[s], "a", "host", 1e6 * (s + 1), (1 + op + s) * less);
            add(db, ops[op], shapes[s], "b", "host", 1e6 * (s + 1), (1 + op + s) * 0.9);
        }
    add(db, "ag_gemm", shapes[0], "a", "sim", 1e6, 0.5);
    assert_int_equal(sqlite3_exec(db, "COMMIT", NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
}

static char one[64], other[64];

static int make_both(void **state)
{
    int rc = folder_make(state);
    snprintf(one, sizeof one, "%s/one.db", folder);
    snprintf(other, sizeof other, "%s/other.db", folder);
    make(one, 1);
    make(other, 0.8);
    return rc;
}

CASE(figures_are_counted_as_nccl_tests_does)
{
    char path[128], text[65536];
    snprintf(path, sizeof path, "%s/out.json", folder);
    results("%s export --json %s", one, path);
    works(0);
    test_read_file(path, text, sizeof text);
    struct json *j = json_read(text);
    assert_non_null(j);
    int seen = 0;
    for (const struct json *p = json_get(j, "points")->first; p; p = p->next) {
        const char *op = json_get(json_get(p, "settings"), "op")->string;
        const char *shape = json_get(json_get(p, "settings"), "shape")->string;
        if (strcmp(json_get(json_get(p, "settings"), "roles")->string, "b") ||
            strcmp(shape, "256,128,256"))
            continue;
        /* two ranks: a gather's size is twice what moves into one, an all-reduce's is that */
        int all_reduce = !strcmp(op, "gemm_ar");
        double ms = json_get(p, "ms")->number, busbw = json_get(p, "busbw_gb_s")->number;
        assert_true(json_get(p, "size_bytes")->number == (all_reduce ? 1e6 : 2e6));
        assert_true(fabs(busbw * ms / 1 - 1) < 1e-4); /* 1e6 bytes in ms: 1 / ms GB/s */
        assert_true(fabs(json_get(p, "algbw_gb_s")->number / busbw - (all_reduce ? 1 : 2)) < 1e-4);
        assert_true(fabs(json_get(p, "gflops_per_rank")->number * ms - 2000) < 0.1);
        /* the slowest rank's, which takes 10 % more */
        double typical = (!strcmp(op, "ag_gemm") ? 1 : all_reduce ? 3 : 2) * 0.9 * 1.1;
        assert_true(ms > typical && ms < typical * 1.02);
        assert_true(json_get(p, "ms_low")->number <= ms && json_get(p, "ms_high")->number >= ms);
        assert_true(json_get(p, "p99_ms")->number > json_get(p, "p50_ms")->number);
        seen++;
    }
    assert_int_equal(seen, 3);
    json_free(j);
}

CASE(the_table_names_what_lies_far_out)
{
    results("%s table --ranks --only op=gemm_rs;roles=b;shape=256,128,256", one);
    works(0);
    assert_non_null(strstr(r.out_text, "1 of 100 launches took much longer"));
    assert_non_null(strstr(r.out_text, "launch 7 of rank 1 in repeat 2"));
    assert_non_null(strstr(r.out_text, "repeat 4, medians of ranks 0 to 1: "));
    assert_null(strstr(r.out_text, "ag_gemm"));
    results("%s table --only op=ag_gemm", one);
    assert_null(strstr(r.out_text, "took much longer"));
}

CASE(differences_are_told_with_their_doubt)
{
    results("%s diff %s", one, other);
    works(0);
    assert_non_null(strstr(r.out_text, "faster by 2"));        /* a: 1 before, 0.8 now */
    assert_non_null(strstr(r.out_text, "no difference seen")); /* b: as before */
    assert_non_null(strstr(r.out_text, "B is faster at 6 points, slower at 0"));
    results("%s diff roles=a roles=b", one);
    works(0);
    assert_non_null(strstr(r.out_text, "B is faster at 6 points, slower at 0, and no difference is "
                                       "seen at 0; geometric mean of B's time by A's: 0.9"));
    results("%s diff %s", one, one);
    works(0);
    assert_non_null(strstr(r.out_text, "B is faster at 0 points, slower at 0"));
    results("%s diff roles=a roles=c", one);
    works(2);
    assert_non_null(strstr(r.err_text, "no point with roles=c"));
}

static void setting(sqlite3 *db, const char *exec, const char *name, const char *value)
{
    assert_int_equal(results_do(db,
                                "INSERT INTO setting SELECT point, ?2, ?3 FROM setting WHERE name "
                                "= 'exec' AND value = ?1",
                                "ttt", exec, name, value),
                     0);
}

/* What the simulator does not take (--iters, the NIC, softnic's network) keeps no measured point
 * from its simulation, nor --launches the other way. Where several points fit, or none, it is said
 * which setting makes that. */
CASE(measured_points_meet_their_simulation)
{
    char third[80];
    sqlite3 *db;
    snprintf(third, sizeof third, "%s/third.db", folder);
    make(third, 1);
    assert_int_equal(sqlite3_open(third, &db), SQLITE_OK);
    setting(db, "host", "iters", "20");
    setting(db, "host", "nic", "soft");
    setting(db, "host", "env.SOFTNIC", "bw=5GB/s");
    setting(db, "sim", "launches", "4");
    results("%s diff exec=host exec=sim", third);
    works(0);
    assert_non_null(strstr(r.out_text, "B is faster at 1 points"));
    assert_non_null(strstr(r.out_text, "11 points of A have no partner in B"));
    results("%s plot simulated --data", third);
    works(0);
    assert_non_null(strstr(r.out_text, "measured beside simulated"));
    results("%s diff exec=sim exec=host;roles=a:b", third);
    works(0);
    assert_non_null(strstr(r.out_text, "1 point of A has several partners in B, which differ in "
                                       "roles: choose one of its values, NAME=B;roles=VALUE"));
    setting(db, "sim", "nodes", "8"); /* this one both take */
    results("%s diff exec=host exec=sim", third);
    works(0);
    assert_non_null(strstr(r.out_text, "no point of A has a partner in B"));
    assert_non_null(strstr(r.out_text, "which differ in nodes (default, 8)\n"));
    /* the roofs are those of a simulated cluster: no point of the host executor stands under them
     */
    assert_int_equal(results_do(db,
                                "UPDATE job SET result = json_set(result, '$.cluster', "
                                "json('{\"flop_per_s\":8e14,\"nvlink_bytes_per_s\":3e11}'))",
                                ""),
                     0);
    results("%s plot roofline --data --only exec=host", third);
    works(2);
    assert_non_null(
        strstr(r.err_text, "no point computes and moves bytes, too, under a GPU's roofs"));
    results("%s plot roofline --data --only exec=host --roofs 1,10,0", third);
    works(0);
    sqlite3_close(db);
}

/* A setting that changes no simulated time is told as one that is not looked at; one that changes
 * some is not. */
CASE(what_the_simulator_ignores_is_told)
{
    char path[80];
    sqlite3 *db;
    snprintf(path, sizeof path, "%s/ignored.db", folder);
    make(path, 1);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    add(db, "ag_gemm", "256,128,256", "b", "sim", 1e6, 0.5);
    assert_int_equal(results_do(db,
                                "UPDATE sample SET ms = 0.5 WHERE job IN (SELECT j.id FROM job j "
                                "JOIN setting s USING (point) WHERE value = 'sim')",
                                ""),
                     0);
    results("%s table", path);
    works(0);
    assert_non_null(
        strstr(r.out_text, "ignored    roles: simulated times of ag_gemm are the same"));
    assert_null(strstr(strstr(r.out_text, "ignored") + 1, "ignored"));
    add(db, "ag_gemm", "256,128,256", "c", "sim", 1e6, 0.7);
    sqlite3_close(db);
    results("%s table", path);
    works(0);
    assert_null(strstr(r.out_text, "ignored"));
}

CASE(what_got_slower_is_status_1)
{
    results("%s table --expect %s", one, other); /* a took 0.8 of it there */
    works(1);
    assert_non_null(strstr(r.err_text, "slower by 2"));
    assert_non_null(strstr(r.err_text, "6 of 13 points are slower than expected"));
    results("%s table --expect %s", other, one);
    works(0);
    assert_non_null(strstr(r.err_text, "0 of 13 points"));
    results("%s table --expect %s", one, one);
    works(0);
    /* a point that has no time any more is no faster one */
    sqlite3 *db;
    make(other, 1);
    assert_int_equal(sqlite3_open(other, &db), SQLITE_OK);
    assert_int_equal(results_do(db,
                                "DELETE FROM sample WHERE job IN (SELECT j.id FROM job j JOIN "
                                "setting s USING (point) WHERE value = 'gemm_ar')",
                                ""),
                     0);
    assert_int_equal(results_do(db, "UPDATE job SET sentence = 'its rank 1 died'", ""), 0);
    sqlite3_close(db);
    results("%s table --expect %s", other, one);
    works(1);
    assert_non_null(strstr(r.err_text, "gemm_ar 256,128,256 host roles=a has no time any more: its "
                                       "rank 1 died"));
    assert_non_null(strstr(r.err_text, "4 of 13 points"));
    make(other, 0.8);
}

CASE(pictures_are_drawn)
{
    static const struct {
        const char *kind, *options, *says; /* says: in the data */
    } cases[] = {
        {"time", "", "\"kind\": \"time\""},
        {"time", "--x roles", "\"label\": \"gemm_ar 256,128,256 host\", \"points\": [[1, "},
        {"speed", "", "\"kind\": \"speed\""},
        {"efficiency", "--only exec=host", "\"kind\": \"efficiency\""},
        {"stack", "--only exec=host", "[\"ag_gemm 256,128,256 roles=a\", "},
        {"heat", "--x shape --y op --only roles=a;exec=host", "\"cells\": [["},
        {"simulated", "", "measured beside simulated"},
        {"roofline", "--roofs 1,10,0", "\"slopes\": {\"NVLink\": 10.0}"},
    };
    if (!command_draws())
        skip();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char path[128];
        results("%s plot %s --data %s", one, cases[i].kind, cases[i].options);
        works(0);
        if (!strstr(r.out_text, cases[i].says))
            fail_msg("%s: %s", cases[i].kind, r.out_text);
        for (int svg = 0; svg < 2; svg++) {
            snprintf(path, sizeof path, "%s/%zu.%s", folder, i, svg ? "svg" : "png");
            results("%s plot %s %s %s", one, cases[i].kind, path, cases[i].options);
            works(0);
            char head[16] = "";
            FILE *f = fopen(path, "r");
            assert_non_null(f);
            assert_int_equal(fread(head, 1, 8, f), 8);
            fclose(f);
            assert_int_equal(strncmp(head, svg ? "<?xml" : "\x89PNG", svg ? 5 : 4), 0);
        }
    }
}

/* The numbers that are drawn are the table's: median and interval of each point, and ideal time. */
CASE(pictures_show_the_tables_numbers)
{
    char path[128], text[65536];
    int seen = 0;
    if (!command_draws())
        skip();
    snprintf(path, sizeof path, "%s/out.json", folder);
    results("%s export --json %s --only exec=host;shape=256,128,256", one, path);
    works(0);
    test_read_file(path, text, sizeof text);
    struct json *table = json_read(text);
    assert_non_null(table);
    results("%s plot time --data --x roles --only exec=host;shape=256,128,256", one);
    works(0);
    struct json *drawn = json_read(r.out_text);
    assert_non_null(drawn);
    for (const struct json *p = json_get(table, "points")->first; p; p = p->next)
        for (const struct json *c = json_get(drawn, "curves")->first; c; c = c->next) {
            if (strcmp(json_get(json_get(p, "settings"), "op")->string,
                       json_get(c, "label")->string))
                continue;
            const char *roles = json_get(json_get(p, "settings"), "roles")->string;
            for (const struct json *at = json_get(c, "points")->first; at; at = at->next) {
                const struct json *x = at->first;
                if ((int)x->number != 1 + (roles[0] - 'a'))
                    continue;
                seen++;
                assert_true(x->next->number == json_get(p, "ms")->number);
                assert_true(x->next->next->number == json_get(p, "ms_low")->number);
                assert_true(x->next->next->next->number == json_get(p, "ms_high")->number);
            }
        }
    assert_int_equal(seen, 6);
    json_free(table);
    json_free(drawn);
}

/* A heat map with a hole: a cell without a point has no number, and the others are in their places.
 */
CASE(a_heat_map_may_have_holes)
{
    char path[80];
    if (!command_draws())
        skip();
    snprintf(path, sizeof path, "%s/holes.db", folder);
    make(path, 1);
    sqlite3 *db;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(results_do(db,
                                "DELETE FROM sample WHERE job IN (SELECT j.id FROM job j JOIN "
                                "point p ON p.id = j.point WHERE key LIKE '%gemm_rs%roles=a%')",
                                ""),
                     0);
    sqlite3_close(db);
    results("%s plot heat --data --x op --y roles --only exec=host;shape=256,128,256", path);
    works(0);
    struct json *drawn = json_read(r.out_text);
    assert_non_null(drawn);
    int row = 0, holes = 0;
    for (const struct json *y = json_get(drawn, "cells")->first; y; y = y->next, row++) {
        const struct json *op = json_get(drawn, "columns")->first;
        for (const struct json *x = y->first; x; x = x->next, op = op->next) {
            int hole = row == 0 && !strcmp(op->string, "gemm_rs");
            assert_int_equal(x->type, hole ? JSON_NULL : JSON_NUMBER);
            holes += hole;
        }
    }
    assert_int_equal(holes, 1);
    assert_int_equal(row, 2);
    json_free(drawn);
}

/* A file whose jobs call their time as they did when it was made, and whose view knows no newer
 * name: jobs of today come in beside them, and its view names the time of all. */
CASE(older_files_keep_their_times)
{
    char path[128];
    sqlite3 *db;
    snprintf(path, sizeof path, "%s/older.db", folder);
    make(path, 1);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db,
                                  "DROP VIEW jobs; CREATE VIEW jobs AS SELECT "
                                  "json_extract(result, '$.ms_median') AS ms FROM job; UPDATE job "
                                  "SET result = replace(result, 'ms_median', 'ms') WHERE id % 2",
                                  NULL, NULL, NULL),
                     SQLITE_OK);
    results("%s merge %s", path, other);
    works(0);
    assert_int_equal(query_integer(db, -1, "SELECT count(ms) FROM jobs", ""),
                     query_integer(db, -2, "SELECT count(*) FROM job", ""));
    sqlite3_close(db);
}

CASE(what_cannot_be_drawn_is_one_sentence)
{
    static const struct {
        const char *words, *says;
    } cases[] = {
        {"plot", "plot takes a KIND"},
        {"plot tiem x.png", "did you mean time?"},
        {"plot time /nonexistent/x.png", "/nonexistent/x.png"},
        {"plot time x.png --x shpe", "it is the same in all points"},
        {"plot heat x.png --x op", "heat has two axes"},
        {"plot heat x.png --x op --y shape", "choose with --only"},
        {"plot time x.pdf", "PICTURE must end in .png or .svg"},
        {"plot roofline x.png", "--roofs is missing"},
        {"plot roofline x.png --roofs 1,2", "not TFLOP/s,GB/s,GB/s"},
        {"plot simulated x.png --only roles=b", "no point was measured and simulated"},
        {"plot time x.png --only op=foo", "no point with op=foo"},
        {"plot time x.png --only op", "'op' is not NAME=VALUE"},
        {"plot time x.png --ranks", "`results plot` does not take --ranks"},
        {"diff", "diff takes another file"},
        {"diff a b", "two selections are NAME=VALUE"},
        {"diff /nonexistent.db", "cannot be opened"},
        {"table now", "one argument too many"},
        {"export --csv /nonexistent/x.csv", "/nonexistent/x.csv"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        unlink("x.png");
        results("%s %s", one, cases[i].words);
        if (r.status != 2 || !strstr(r.err_text, cases[i].says))
            print_message("%s: status %d: %s\n", cases[i].words, r.status, r.err_text);
        assert_int_equal(r.status, 2);
        assert_non_null(strstr(r.err_text, cases[i].says));
        assert_int_equal(command_lines(r.err_text), 1);
        assert_int_equal(strlen(r.out_text), 0);
        assert_int_equal(access("x.png", F_OK), -1);
    }
}

CASE(tables_for_programs_have_a_row_a_point)
{
    char path[128], line[4096];
    int lines = 0, commas = -1;
    snprintf(path, sizeof path, "%s/out.csv", folder);
    results("%s export --csv %s", one, path);
    works(0);
    FILE *f = fopen(path, "r");
    while (fgets(line, sizeof line, f)) {
        int count = 0, quoted = 0;
        for (char *c = line; *c; c++) {
            quoted ^= *c == '"';
            count += *c == ',' && !quoted;
        }
        assert_true(commas < 0 || commas == count);
        commas = count;
        lines++;
    }
    fclose(f);
    assert_int_equal(lines, 1 + 13);
    results("%s diff %s --csv %s", one, other, path);
    works(0);
}

static int flock_error;

/* In place of libc's: the file system of a home may know no locks. */
int flock(int fd, int operation)
{
    if (!flock_error)
        return (int)syscall(SYS_flock, fd, operation);
    errno = flock_error;
    return -1;
}

/* Of two that write one is told so; a lock that cannot be had is none; and the file itself is not
 * locked, which on NFS would shut SQLite out. */
CASE(a_file_has_one_writer)
{
    struct results_hold first, second;
    char path[128], error[512];
    snprintf(path, sizeof path, "%s/held.db", folder);
    sqlite3 *db;
    flock_error = ENOLCK;
    assert_int_equal(results_hold(&first, path, error, sizeof error), -ENOLCK);
    assert_non_null(strstr(error, "No locks available"));
    flock_error = 0;
    assert_int_equal(results_hold(&first, path, error, sizeof error), 0);
    assert_int_equal(results_create(&db, path, error, sizeof error), 0);
    sqlite3_close(db);
    int fd = open(path, O_RDWR);
    assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), 0);
    close(fd);
    assert_int_equal(results_hold(&second, path, error, sizeof error), -EBUSY);
    results_release(&first);
    assert_int_equal(results_hold(&second, path, error, sizeof error), 0);
    results_release(&second);
    strcat(path, ".lock");
    assert_int_equal(access(path, F_OK), -1);
}

FIXTURE(make_both, folder_remove)
