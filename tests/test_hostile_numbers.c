/* Whatever numbers stand in a file of somebody else (a trace, results, a machine, a table of
 * measured plans, tuned plans, a sweep), every command ends soon, with a status of its own, without
 * a signal or a sanitizer's word, and what it writes as JSON is JSON. A fuzzer: FUZZ_SECONDS (4) of
 * random changes from FUZZ_SEED. Under sanitizers, for an hour:
 * make BUILD=build/asan SAN=address,undefined CUDA_HOME= NVCC= build/asan/tests/test_hostile_numbers
 * FUZZ_SECONDS=3600 FUZZ_SEED=$(date +%s) build/asan/tests/test_hostile_numbers */
#include <sqlite3.h>

#include "core/base/random.h"
#include "tests/helpers/command.h"
#include "tests/helpers/folder.h"
#include "tests/helpers/sanitized.h"

static uint64_t state_of_random;

static uint32_t below(uint32_t n)
{
    return (uint32_t)(mk_random_unit(&state_of_random) * n) % n;
}

/* ---- running ---- */

enum { MOST_SECONDS = 20 * SLOWDOWN };

/* Runs `mkernel LINE`, both outputs in files. Returns waitpid's status, or -1 after MOST_SECONDS. */
static int play(const char *line)
{
    char copy[512], path[4096], *argv[32] = {path}, *save;
    int argc = 1, status;
    snprintf(copy, sizeof copy, "%s", line);
    command_path(path, sizeof path);
    for (char *word = strtok_r(copy, " ", &save); word; word = strtok_r(NULL, " ", &save))
        argv[argc++] = word;
    pid_t pid = fork();
    if (!pid) {
        int out = open("out", O_WRONLY | O_CREAT | O_TRUNC, 0666),
            err = open("err", O_WRONLY | O_CREAT | O_TRUNC, 0666);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(out, 1);
        dup2(err, 2);
        execv(path, argv);
        _exit(127);
    }
    for (int ms = 0; ms < MOST_SECONDS * 1000; ms += 2) {
        if (waitpid(pid, &status, WNOHANG) == pid)
            return status;
        usleep(2000);
    }
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    return -1;
}

static char *content(const char *path)
{
    FILE *f = fopen(path, "r");
    size_t used = 0;
    char *text = calloc(1, (1u << 24) + 1);
    if (f) {
        used = fread(text, 1, 1u << 24, f);
        fclose(f);
    }
    text[used] = 0;
    return text;
}

static int is_json(const char *path)
{
    sqlite3 *db;
    sqlite3_stmt *q;
    char *text = content(path);
    sqlite3_open(":memory:", &db);
    sqlite3_prepare_v2(db, "SELECT json_valid(?1)", -1, &q, NULL);
    sqlite3_bind_text(q, 1, text, -1, SQLITE_STATIC);
    sqlite3_step(q);
    int valid = sqlite3_column_int(q, 0);
    sqlite3_finalize(q);
    sqlite3_close(db);
    free(text);
    return valid;
}

static void check(const char *line, const char *changes)
{
    unlink("file.json");
    int status = play(line);
    char *said = content("err");
    const char *wrong = NULL;
    if (status == -1)
        wrong = "it does not end";
    else if (!WIFEXITED(status) || WEXITSTATUS(status) > 3)
        wrong = "it crashed";
    else if (strstr(said, "runtime error:") || strstr(said, "Sanitizer"))
        wrong = "a sanitizer found something";
    else if (WEXITSTATUS(status) >= 2 && !*said)
        wrong = "it says nothing";
    else if (!status && strstr(line, "trace export") && !is_json("out"))
        wrong = "its output is no JSON";
    else if (!status && strstr(line, "file.json") && !is_json("file.json"))
        wrong = "its file is no JSON";
    if (wrong)
        fail_msg("%s, status %x: mkernel %s\n%.3000s\nafter:\n%s", wrong, status, line, said,
                 changes);
    free(said);
}

/* ---- databases ---- */

static const char *const numbers[] = {
    "0",
    "-1",
    "1",
    "2",
    "7",
    "63",
    "64",
    "4095",
    "4096",
    "65536",
    "1000000",
    "2147483647",
    "2147483648",
    "4294967295",
    "4294967297",
    "1000000000000",
    "1 << 50",
    "1 << 60",
    "(1 << 61)",
    "-(1 << 61)",
    "(1 << 61) + 1",
    "9223372036854775806",
    "-9223372036854775807",
    "(-9223372036854775807 - 1)",
    "0.5",
    "-0.5",
    "1e18",
    "1e30",
    "1e308",
    "-1e308",
    "9e999",
    "-9e999",
    "1e-300",
    "NULL",
    "'text'",
    "'\",\"ph\":\"X'",
    "x'00ff'",
    "''",
};

static void text_of(sqlite3 *db, char *to, size_t size, const char *sql, const char *bound)
{
    sqlite3_stmt *q;
    assert_int_equal(sqlite3_prepare_v2(db, sql, -1, &q, NULL), SQLITE_OK);
    if (bound)
        sqlite3_bind_text(q, 1, bound, -1, SQLITE_STATIC);
    assert_int_equal(sqlite3_step(q), SQLITE_ROW);
    snprintf(to, size, "%s", (const char *)sqlite3_column_text(q, 0));
    sqlite3_finalize(q);
}

/* One to three changes of random columns; appends their SQL to `changes`. */
static void change_tables(const char *path, char changes[4096])
{
    sqlite3 *db;
    changes[0] = 0;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    sqlite3_exec(db, "PRAGMA synchronous = 0; PRAGMA ignore_check_constraints = 1", 0, 0, 0);
    for (uint32_t i = 0, count = 1 + below(3); i < count; i++) {
        char table[64], column[64], ask[160], sql[512], where[128] = "";
        const char *value = numbers[below(sizeof numbers / sizeof *numbers)];
        snprintf(ask, sizeof ask,
                 "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY rowid LIMIT 1 "
                 "OFFSET %u %% (SELECT count(*) FROM sqlite_master WHERE type = 'table')",
                 below(1000));
        text_of(db, table, sizeof table, ask, NULL);
        snprintf(ask, sizeof ask,
                 "SELECT name FROM pragma_table_info(?1) LIMIT 1 OFFSET %u %% (SELECT count(*) "
                 "FROM pragma_table_info(?1))",
                 below(1000));
        text_of(db, column, sizeof column, ask, table);
        if (below(2)) /* of about one row */
            snprintf(where, sizeof where,
                     " WHERE (SELECT abs(random()) %% count(*) FROM \"%s\") = 0", table);
        switch (below(8)) {
        case 0:
        case 1: /* one row more, in which a number is another */
            snprintf(
                sql, sizeof sql,
                "CREATE TEMP TABLE one AS SELECT * FROM main.\"%s\" ORDER BY random() LIMIT 1; "
                "UPDATE one SET \"%s\" = %s; INSERT OR REPLACE INTO main.\"%s\" SELECT * FROM "
                "one; DROP TABLE one",
                table, column, value, table);
            break;
        case 2:
            snprintf(sql, sizeof sql, "UPDATE OR IGNORE \"%s\" SET \"%s\" = \"%s\" * (%s)%s", table,
                     column, column, value, where);
            break;
        case 3:
            snprintf(sql, sizeof sql, "DELETE FROM \"%s\"%s", table, where);
            break;
        default:
            snprintf(sql, sizeof sql, "UPDATE OR IGNORE \"%s\" SET \"%s\" = %s%s", table, column,
                     below(4) ? value : "abs(random())", where);
        }
        sqlite3_exec(db, sql, NULL, NULL, NULL);
        snprintf(changes + strlen(changes), 4096 - strlen(changes), "%s;\n", sql);
    }
    sqlite3_close(db);
}

static void keep(const char *changed, const char *good)
{
    char command[160];
    snprintf(command, sizeof command, "cp %s %s", good, changed);
    assert_int_equal(system(command), 0);
}

static void write_keys(void)
{
    static const char *const keys[] = {
        "Down*3",
        "Up",
        "Enter",
        "Backspace",
        "Tab*3",
        "BackTab",
        "+*5",
        "-*5",
        "Z",
        "w",
        "W",
        "f",
        "e",
        "E",
        "[",
        "]",
        "L*3",
        "H",
        "g",
        "G",
        "1",
        "2",
        "3",
        "4",
        "5",
        "6",
        "7",
        "0",
        "n",
        "N",
        "Space",
        "?",
        "End",
        "Home",
        "Right*9",
        "Left*3",
        "PageDown",
        "PageUp",
        "a",
        "/\ntype wait\nEnter",
        "\\\ntype tile\nEnter",
        ":\ntype 1ms\nEnter",
        "m a",
        "' a",
        "y",
    };
    FILE *f = fopen("keys", "w");
    for (uint32_t i = 0, count = 4 + below(24); i < count; i++)
        fprintf(f, "%s\n", keys[below(sizeof keys / sizeof *keys)]);
    fclose(f);
}

static void traces(void)
{
    static const char *const lines[] = {
        "trace summary t.db",
        "trace summary t.db --json",
        "trace why t.db",
        "trace why t.db --json",
        "trace diff t.db sim.db",
        "trace diff host.db t.db",
        "trace export t.db",
        "trace export t.db --rank 1",
        "trace export t.db --launch 1",
        "trace export t.db --from 1us --to 90us",
        "trace plot t.db --data",
        "trace plot t.db --data --launch 1",
        "trace plot t.db --data --kind overlap",
        "trace plot t.db --data --from 10us --to 20us",
        "trace sql t.db",
        "tui t.db --dump-screen --script keys",
        "tui t.db --dump-screen --script keys --size 200x60",
        "tui t.db sim.db --dump-screen --script keys",
        "tui t.db --dump-screen --script keys",
        "sim --validate t.db --json file.json",
    };
    char changes[4096];
    keep("t.db", below(2) ? "sim.db" : "host.db");
    change_tables("t.db", changes);
    write_keys();
    for (int i = 0; i < 4; i++)
        check(lines[below(sizeof lines / sizeof *lines)], changes);
}

static void results(void)
{
    static const char *const lines[] = {
        "results r.db",
        "results r.db table --ranks",
        "results r.db diff exec=host exec=sim",
        "results r.db diff good.db",
        "results good.db diff r.db --json file.json",
        "results r.db plot time --data",
        "results r.db plot speed --data",
        "results r.db plot efficiency --data",
        "results r.db plot stack --data",
        "results r.db plot simulated --data",
        "results r.db plot roofline --data",
        "results r.db plot heat --data --x exec --y shape",
        "results r.db export --csv /dev/null --json file.json",
        "results r.db table --expect good.db",
        "results m.db merge r.db",
        "sweep s.yaml --out r.db --list",
    };
    char changes[4096];
    keep("r.db", "good.db");
    keep("m.db", "good.db");
    change_tables("r.db", changes);
    for (int i = 0; i < 4; i++)
        check(lines[below(sizeof lines / sizeof *lines)], changes);
}

/* ---- texts ---- */

/* A copy of `good` in which some numbers are others. */
static void change_text(const char *changed, const char *good, char changes[4096])
{
    static const char *const words[] = {
        "0",
        "-1",
        "1",
        "3",
        "64",
        "65536",
        "1000000",
        "2147483648",
        "4294967296",
        "4294967297",
        "1000000000000",
        "18446744073709551615",
        "18446744073709551616",
        "99999999999999999999999",
        "1e-300",
        "1e-30",
        "1e-9",
        "1e11",
        "1e300",
        "1e999",
        "-1e300",
        "nan",
        "inf",
        "0x10",
        "",
        "x",
    };
    char *text = content(good);
    uint32_t every = 1 + below(60), left = 1 + below(3);
    FILE *f = fopen(changed, "w");
    for (char *c = text; *c;) {
        size_t length = strspn(c, "0123456789.");
        int inside = c > text && strspn(c - 1, "0123456789.abcdefghijklmnopqrstuvwxyz");
        if (length && !inside && left && !below(every)) {
            fputs(words[below(sizeof words / sizeof *words)], f);
            left--;
            c += length;
        } else {
            fputc(*c++, f);
        }
    }
    fclose(f);
    free(text);
    char command[160];
    snprintf(command, sizeof command, "diff %s %s >changes", good, changed);
    (void)!system(command);
    text = content("changes");
    snprintf(changes, 4096, "%.4000s", text);
    free(text);
}

static void texts(void)
{
    static const struct {
        const char *good, *line;
    } files[] = {
        {"machine", "sim ag_gemm --nodes 2 --gpus 2 --shape 1024,512,512 --machine x"},
        {"machine", "sim moe_dispatch_gemm --nodes 2 --gpus 2 --moe 64,256,256,8,2 --machine x"},
        {"machine", "sim ring_attention --gpus 2 --attention 1,512,4,2,64 --machine x"},
        {"measured.csv", "sim --validate x --json file.json"},
        {"bench.csv", "sim --validate x --json file.json"},
        {"plans", "sim ag_gemm --gpus 2 --shape 4096,512,4096 --tuning x"},
        {"s.yaml", "sweep x --list"},
    };
    char changes[4096];
    uint32_t i = below(sizeof files / sizeof *files);
    change_text("x", files[i].good, changes);
    check(files[i].line, changes);
}

/* ---- */

/* What was once a write outside the heap, a crash, a loop, or no JSON. */
CASE(what_was_found_stays_mended)
{
    static const struct {
        const char *sql, *line;
        int status;
    } found[] = {
        {"INSERT INTO rank(id, node, local) VALUES (4294967297, 0, 0), (5000000, 1094795585, 0)",
         "tui t.db --dump-screen", 2},
        {"UPDATE launch_rank SET start = -9223372036854775807, \"end\" = 9223372036854775806",
         "trace plot t.db --data", 2},
        {"UPDATE launch_rank SET \"end\" = 1e308", "tui t.db --dump-screen", 2},
        {"UPDATE event SET start = 9223372036854775806, ns = 9223372036854775806",
         "trace export t.db", 3},
        {"UPDATE role SET name = 'x\",\"ph\":\"X'", "trace export t.db", 0},
        {"UPDATE kind SET name = 'x\",\"ph\":\"X'", "trace export t.db", 0},
        {"UPDATE event SET peer = 'x\"'", "trace export t.db", 0},
        {"UPDATE event SET start = -1500, ns = 90000 WHERE id = 1", "trace export t.db", 0},
    };
    for (size_t i = 0; i < sizeof found / sizeof *found; i++) {
        sqlite3 *db;
        keep("t.db", "sim.db");
        assert_int_equal(sqlite3_open("t.db", &db), SQLITE_OK);
        assert_int_equal(sqlite3_exec(db, found[i].sql, NULL, NULL, NULL), SQLITE_OK);
        sqlite3_close(db);
        check(found[i].line, found[i].sql);
        int status = play(found[i].line);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != found[i].status)
            fail_msg("status %x of mkernel %s after %s", status, found[i].line, found[i].sql);
    }
    test_write_file("x", "like = 8xH200-cx7\nnvlink_in = 1e-300 GB/s\n");
    check("sim ag_gemm --gpus 2 --shape 1024,512,512 --machine x", "nvlink_in = 1e-300 GB/s");
}

CASE(numbers_do_no_harm)
{
    const char *asked = getenv("FUZZ_SECONDS"), *seed = getenv("FUZZ_SEED");
    double end = test_seconds() + (asked ? atof(asked) : 4);
    uint64_t first = seed ? strtoull(seed, NULL, 10) : 1, n = 0;
    /* a case for each seed, so that one can be played again: FUZZ_SECONDS=0 FUZZ_SEED=N */
    do {
        printf("seed %lu\r", state_of_random = first + n);
        fflush(stdout);
        mk_random_unit(&state_of_random);
        (void (*[])(void)){traces, results, texts}[(first + n++) % 3]();
    } while (test_seconds() < end);
    printf("%lu cases from seed %lu\n", n, first);
}

static int set_up(void **state)
{
    static const char *const made[] = {
        "sim ag_gemm --nodes 2 --gpus 2 --shape 2048,1024,1024 --launches 3 --trace sim.db",
        "run gemm_rs --exec host --nodes 2 --gpus 1 --shape 256,128,256 --iters 3 --trace host.db",
        "sweep s.yaml --out good.db",
    };
    char here[1024], command[9000];
    if (!getcwd(here, sizeof here) || folder_make(state))
        return -1;
    snprintf(
        command, sizeof command,
        "cp %s/experiments/machines/8xH200-cx7 %s/machine && cp %s/core/plan/tuning.plans %s/plans "
        "&& head -20 %s/tests/golden/measured_2xH200.csv >%s/measured.csv && head -20 "
        "%s/tests/golden/measured_2xH200_bench.csv >%s/bench.csv",
        here, folder, here, folder, here, folder, here, folder);
    if (system(command) || chdir(folder))
        return -1;
    FILE *f = fopen("s.yaml", "w");
    fputs("name: s\nrepeats: 2\nseed: 3\nset: {nodes: 1, gpus: 2}\nvary:\n  op: [ag_gemm]\n"
          "  shape: [\"256,128,256\", \"512,128,256\"]\n  exec: [host, sim]\n",
          f);
    fclose(f);
    for (size_t i = 0; i < sizeof made / sizeof *made; i++)
        if (play(made[i])) {
            char *said = content("err");
            print_error("mkernel %s: %s", made[i], said);
            free(said);
            return -1;
        }
    return 0;
}

static int tear_down(void **state)
{
    return chdir("/") || folder_remove(state);
}

FIXTURE(set_up, tear_down)
