/* `mkernel sweep` measures what it was asked for, each job once, whatever ends it in between; what
 * fails is in the results with its sentence; and what cannot be is refused before anything
 * starts. */
/* WAITS */
#include <sys/resource.h>

#include "core/base/sentence.h"
#include "experiments/results/results_file.h"
#include "core/base/clock.h"
#include "experiments/sweep/sweep.h"
#include "tests/helpers/command.h"
#include "tests/helpers/folder.h"
#include "tests/helpers/results_ask.h"
#include "tests/helpers/sanitized.h"

static char script[64];

static int make(void **state)
{
    int rc = folder_make(state);
    snprintf(database, sizeof database, "%s/r.db", folder);
    snprintf(script, sizeof script, "%s/s.yaml", folder);
    return rc;
}

static void start_anew(const char *text)
{
    test_write_file(script, text);
    unlink(database);
}

static int says(const char *sql, char *text, size_t size)
{
    sqlite3 *db = results_open_plainly();
    sqlite3_stmt *q = query_ask(db, sql, "");
    int found = sqlite3_step(q) == SQLITE_ROW;
    snprintf(text, size, "%s", found ? (const char *)sqlite3_column_text(q, 0) : "");
    sqlite3_finalize(q);
    sqlite3_close(db);
    return found;
}

static struct command_run *sweep(int status, const char *options)
{
    static struct command_run r;
    char line[1024];
    snprintf(line, sizeof line, "sweep %s --out %s %s", script, database, options);
    command_start(&r, line, NULL);
    command_finish(&r, 60);
    if (r.status != status)
        print_message("%s: status %d, %s\n", line, r.status, r.err_text);
    assert_int_equal(r.status, status);
    return &r;
}

/* ---- what is refused ---- */

CASE(bad_input_is_one_sentence_and_nothing_starts)
{
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"", "has keys such as `vary`"},
        {"- a\n", "has keys such as `vary`"},
        {"vary: [1\n", "line 2: this is no YAML"},
        {"vary: {op: ag_gemm}\nvary: {op: gemm_rs}\n", "line 2: vary is there twice"},
        {"vry: {op: ag_gemm}\n", "line 1: vry is no key of a sweep (did you mean vary?)"},
        {"name: x\nrepeats: 0\n", "line 2: repeats is a number from 1 to 1000"},
        {"repeats: 3x\n", "repeats is a number"},
        {"limit: soon\n", "limit is a time, such as 90 s or 20 min"},
        {"impossible: maybe\n", "impossible is `refuse` or `skip`"},
        {"set: {iters: [1, 2]}\n", "iters: several values belong under `vary`"},
        {"vary: {op: []}\n", "op has no value"},
        {"vary: {op: {a: b}}\n", "op: one value or a list of values"},
        {"vary: {op: ag_gemm, op: gemm_rs}\n", "op is there twice"},
        {"vary: {op: ag_gemm, nodes: [1, 3..2]}\n", "line 1: 3..2 is no range: FIRST..LAST"},
        {"vary: {op: ag_gemm, exec: host, env.LD_PRELOAD: x.so}\n",
         "env.LD_PRELOAD: a sweep sets variables MKERNEL_"},
        {"vary: {op: ag_gemm, exec: host, host.env.LD_PRELOAD: x.so}\n",
         "host.env.LD_PRELOAD: a sweep sets variables MKERNEL_"},
        {"vary: {op: ag_gemm, exec: host, env.PATH: .}\n", "env.PATH: a sweep sets variables"},
        {"vary: {op: ag_gemm, exec: host, env.NCCL_NET_PLUGIN: x}\n",
         "env.NCCL_NET_PLUGIN: a sweep sets variables"},
        {"vary: {op: ag_gemm, exec: host, env.OMP_TOOL_LIBRARIES: x}\n",
         "env.OMP_TOOL_LIBRARIES: a sweep sets variables"},
        {"vary: {op: ag_gemm, exec: host, env.MKERNEL_LIBRARY: x}\n",
         "env.MKERNEL_LIBRARY: a sweep sets variables"},
        {"vary: {op: ag_gemm, exec: host, env.NCCL_CONF_FILE: x}\n",
         "env.NCCL_CONF_FILE: a sweep sets variables"},
        {"vary: 5\n", "NAME: VALUES, or a list of such, is wanted"},
        {"vary: {exec: host}\n", "`op` is missing"},
        {"vary: {op: ag_gem, exec: host}\n", "no operator ag_gem (did you mean ag_gemm?)"},
        {"vary: {op: ag_gemm, exec: hots}\n", "no executor hots"},
        {"vary: {op: ag_gemm, exec: host, shap: 1}\n", "no option --shap (did you mean --shape?)"},
        {"vary: {op: ag_gemm, exec: host, shape: ['256,128,250', '256,128,256']}\n",
         "rows of A must be 16-byte multiples"},
        {"vary: {op: ag_gemm, exec: host}\nexclude: {op: ag_gemm}\n", "`exclude` leaves none"},
        {"vary: {op: ag_gemm, exec: sim, shape: ['256,128,256'], gpus: [3]}\n",
         "does not divide by 6 ranks"},
        {"vary: {op: [ag_gemm, gemm_rs], exec: host, shape: ['255,128,256']}\n"
         "impossible: skip\n",
         "(and 1 other point)"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        start_anew(cases[i].text);
        struct command_run *r = sweep(2, "");
        if (!strstr(r->err_text, cases[i].says))
            print_message("%s\n%s", cases[i].text, r->err_text);
        assert_non_null(strstr(r->err_text, cases[i].says));
        assert_int_equal(command_lines(r->err_text), 1);
        assert_int_equal(strlen(r->out_text), 0);
        assert_int_equal(access(database, F_OK), -1);
    }
}

CASE(bad_options_are_one_sentence)
{
    static const struct {
        const char *line, *says;
    } cases[] = {
        {"sweep", "a FILE or --vary"},
        {"sweep /nonexistent.yaml", "/nonexistent.yaml cannot be read"},
        {"sweep a b", "b is one argument too many"},
        {"sweep --vary op=", "is not NAME=VALUE:VALUE"},
        {"sweep --vary op=ag_gemm;;exec=sim", "'' is not NAME=VALUE:VALUE"},
        {"sweep --vary op=ag_gemm:;exec=sim", "has an empty value"},
        {"sweep --vary op=ag_gemm;op=gemm_rs", "op is there twice"},
        {"sweep --vary op=ag_gemm;nodes=1..", "1.. is no range"},
        {"sweep --vary op=ag_gemm;nodes=1..8x", "1..8x is no range"},
        {"sweep --vary op=ag_gemm;nodes=0..8*2", "0..8*2 is no range"},
        {"sweep --vary op=ag_gemm;nodes=1..8..0", "1..8..0 is no range"},
        {"sweep --vary op=ag_gemm;nodes=1..5000", "of 1000 numbers at most"},
        {"sweep --vary op=ag_gemm;exec=host:sim --jobs 2", "disturb each other, and 1 of 2 points"},
        {"sweep --vary op=ag_gemm --budget soon", "no number of minutes"},
        {"sweep --vary op=ag_gemm;exec=sim --out /", "/ is not a file"},
        {"sweep --vary op=ag_gemm;exec=sim --out /nonexistent/r.db", "cannot be written"},
        {"sweep --vary op=ag_gemm;exec=sim --out Makefile", "not an SQLite file"},
        {"sweep --vary op=ag_gemm;exec=sim --expect /nonexistent.db", "cannot be opened"},
        {"results", "a FILE is missing"},
        {"results /nonexistent.db", "cannot be opened"},
        {"results Makefile table", "not an SQLite file"},
        {"results Makefile tabel", "did you mean table?"},
        {"results Makefile export", "neither is given"},
        {"bench ag_gemm --exec host --samples", "--samples go into the file of --json"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct command_run r;
        command_expect(&r, cases[i].line, NULL, 2, cases[i].says);
    }
}

/* ---- the points ---- */

static const char three_ways[] = "name: three ways\n"
                                 "set: {iters: 3, warmup: 1, nic: soft}\n"
                                 "vary:\n"
                                 "  op: [ag_gemm, gemm_rs]\n"
                                 "  shape:\n"
                                 "    - 256,128,256\n"
                                 "    - [512, 128, 256]   # a list of numbers is a shape, too\n"
                                 "  exec: [host, sim, emulated]\n"
                                 "  sim.gpus: 4\n"
                                 "  host.deterministic: [no, yes]\n"
                                 "exclude:\n"
                                 "  - {op: ag_gemm, deterministic: yes}\n"
                                 "  - {exec: emulated, shape: '512,128,256'}\n";

CASE(points_are_all_combinations_that_are_not_excluded)
{
    static const char *const wanted[] = {
        "bench gemm_rs --nic soft --warmup 1 --iters 3 --shape 512,128,256 --exec host "
        "--deterministic --seed 1",
        "sim ag_gemm --shape 512,128,256 --gpus 4 --seed 1 --json /dev/null",
        "run gemm_rs --check --shape 256,128,256 --exec emulated --seed 1 --iters 3",
    };
    start_anew(three_ways);
    struct command_run *r = sweep(0, "--list");
    /* host: ag_gemm 2, gemm_rs 4; sim 4, once each as it has no --deterministic here; emulated 2 */
    assert_int_equal(command_lines(r->out_text), 12);
    assert_non_null(strstr(r->err_text, "12 points, 36 jobs"));
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        /* the words of the settings come in the file's order, by which the test does not stand */
        char *copy = strdup(wanted[i]), *save, *lines = strdup(r->out_text), *next;
        int found = 0;
        for (char *line = strtok_r(lines, "\n", &next); line && !found;
             line = strtok_r(NULL, "\n", &next)) {
            char *words = strdup(copy);
            found = 1;
            for (char *w = strtok_r(words, " ", &save); w; w = strtok_r(NULL, " ", &save))
                found &= strstr(line, w) != NULL;
            found &= strstr(wanted[i], "--deterministic") || !strstr(line, "--deterministic");
            free(words);
        }
        if (!found)
            print_message("no line has %s in\n%s", wanted[i], r->out_text);
        assert_true(found);
        free(copy);
        free(lines);
    }
    r = sweep(0, "--list --vary exec=sim;shape=256,128,256"); /* what is typed goes first */
    assert_int_equal(command_lines(r->out_text), 2);
    assert_null(strstr(r->out_text, "--nic"));
}

/* Every repeat has every point once, in an order of its own that the seed gives. */
/* What --list prints is what a shell makes those words of, whatever is in them. */
CASE(a_listed_command_is_what_a_shell_reads)
{
    start_anew("set: {op: all_gather, exec: host, tuning: \"x'; touch pwned; '\",\n"
               "      env.SOFTNIC: 'bw=5 x'}\n");
    struct command_run *r = sweep(0, "--list");
    assert_non_null(strstr(r->out_text, "SOFTNIC='bw=5 x' mkernel bench all_gather "));
    assert_non_null(strstr(r->out_text, "--tuning 'x'\\''; touch pwned; '\\''' --seed"));
}

/* A small file takes little memory: before, the square of its blocks. */
CASE(many_blocks_take_little_memory)
{
    static char text[16000];
    struct rusage used;
    text[0] = '\0';
    mk_append(text, sizeof text, "vary: {op: all_gather, exec: host}\nexclude: [");
    for (int i = 0; i < 3000; i++)
        mk_append(text, sizeof text, "{},");
    mk_append(text, sizeof text, "]\n");
    start_anew(text);
    sweep(0, "--list");
    assert_int_equal(getrusage(RUSAGE_CHILDREN, &used), 0);
    assert_in_range(used.ru_maxrss, 0, 1000000); /* KB, with a sanitizer's */
    text[0] = '\0'; /* combinations that are left out, or are there already, are bounded, too */
    mk_append(text, sizeof text, "vary:\n");
    for (int i = 0; i < 101; i++)
        mk_append(text, sizeof text, "  - {op: all_gather, exec: host, seed: [1..100]}\n");
    start_anew(text);
    assert_non_null(strstr(sweep(2, "--list")->err_text, "these are more than 10000 points"));
}

CASE(jobs_are_spread_over_time)
{
    enum { POINTS = 12, REPEATS = 4 };
    struct sweep_job jobs[POINTS * REPEATS], again[POINTS * REPEATS];
    struct sweep s = {.point_count = POINTS, .repeats = REPEATS, .seed = 5};
    int same = 0;
    sweep_order(&s, jobs);
    for (int r = 0; r < REPEATS; r++) {
        uint32_t seen = 0;
        for (int i = 0; i < POINTS; i++) {
            assert_int_equal(jobs[r * POINTS + i].repeat, r);
            seen |= 1u << jobs[r * POINTS + i].point;
            same += r && jobs[r * POINTS + i].point == jobs[i].point;
        }
        assert_int_equal(seen, (1u << POINTS) - 1);
    }
    assert_true(same < 3 * POINTS / 2);
    sweep_order(&s, again);
    assert_memory_equal(jobs, again, sizeof jobs);
    s.seed = 6;
    sweep_order(&s, again);
    assert_memory_not_equal(jobs, again, sizeof jobs);
}

/* ---- the jobs ---- */

#define SIMULATED(repeats)                                                                         \
    "vary: {op: [ag_gemm, gemm_rs, gemm_ar], exec: sim,\n"                                         \
    "       shape: ['256,128,256', '512,128,256']}\n"                                              \
    "repeats: " repeats "\n"
static const char simulated[] = SIMULATED("3");
/* As many jobs as take a second: the signal meets the sweep at work on a busy machine, too. */
static const char long_enough[] = SIMULATED("20");

/* Until `count` jobs are there, at most 30 s. */
static void wait_for_jobs(int count)
{
    for (int i = 0; i < 3000 && ask("SELECT count(*) FROM job") < count; i++)
        usleep(10000);
    assert_true(ask("SELECT count(*) FROM job") >= count);
}

CASE(interrupted_it_goes_on_where_it_was)
{
    for (int by = 0; by < 3; by++) {
        static const int signals[] = {SIGINT, SIGTERM, SIGKILL};
        struct command_run r;
        char line[256], before[4096], after[4096];
        start_anew(long_enough);
        snprintf(line, sizeof line, "sweep %s --out %s", script, database);
        command_start(&r, line, NULL);
        wait_for_jobs(3);
        kill(r.pid, signals[by]);
        command_finish(&r, 30);
        assert_int_equal(r.signal, signals[by]); /* a shell's loop ends, too */
        if (by < 2)
            assert_non_null(strstr(r.err_text, "the same command goes on from there"));
        int64_t done = ask("SELECT count(*) FROM job");
        assert_in_range(done, 3, 119);
        const char times[] =
            "SELECT group_concat(id || ' ' || begun || ' ' || seconds) FROM (SELECT "
            "* FROM job ORDER BY id LIMIT 3)";
        says(times, before, sizeof before);
        struct command_run *rest = sweep(0, "");
        says(times, after, sizeof after);
        assert_string_equal(before, after); /* not done again */
        assert_non_null(strstr(rest->err_text, "120 of 120 jobs of 6 points"));
        assert_int_equal(ask("SELECT count(*) FROM job"), 120);
        assert_int_equal(ask("SELECT count(DISTINCT point * 100 + repeat) FROM job"), 120);
        assert_int_equal(ask("SELECT count(*) FROM sample"), 120);
        rest = sweep(0, ""); /* there is nothing left to do */
        assert_non_null(strstr(rest->err_text, "120 from before"));
        assert_int_equal(ask("SELECT count(*) FROM job"), 120);
    }
}

/* A range is its numbers; a sweep of simulations is its simulations one by one, also several at
 * once, and then it takes less than they do: by seconds, which beginning and writing do not take. */
#define LARGE "131072,16384,1024"
CASE(simulations_run_at_once_and_change_nothing)
{
    static const char *const by[] = {" --jobs 1", " --jobs 4"};
    char times[2][4096], alone[512];
    for (int i = 0; i < 2; i++) {
        struct command_run r;
        char line[512];
        unlink(database);
        snprintf(line, sizeof line,
                 "sweep --vary op=gemm_ar;exec=sim;nodes=1..4*2;gpus=2;shape=" LARGE
                 ";pieces=1..3..2 --repeats 1 --out %s%s",
                 database, by[i]);
        uint64_t began = mk_now_ns();
        command_start(&r, line, NULL);
        command_finish(&r, 60);
        double took = (double)(mk_now_ns() - began) / 1e9;
        assert_int_equal(r.status, 0);
        assert_int_equal(ask("SELECT count(*) FROM job"), 6);
        assert_int_equal(ask("SELECT count(*) FROM setting WHERE name = 'nodes' AND value = '4'"),
                         2);
        assert_int_equal(ask("SELECT count(*) FROM setting WHERE name = 'pieces' AND value = '3'"),
                         3);
        says("SELECT group_concat(key || ' ' || ms) FROM (SELECT * FROM jobs ORDER BY key)",
             times[i], sizeof *times);
        double sum = (double)ask("SELECT 1e6 * sum(seconds) FROM job") / 1e6;
        assert_int_equal(sum > took, i);
    }
    assert_string_equal(times[0], times[1]);
    char path[128], ms[64], text[4096];
    says("SELECT ms FROM jobs WHERE nodes = 2 AND key LIKE '%pieces=3%'", ms, sizeof ms);
    snprintf(path, sizeof path, "%s/alone.json", folder);
    snprintf(alone, sizeof alone,
             "sim gemm_ar --cluster 2x2 --shape " LARGE " --pieces 3 --json %s --quiet", path);
    struct command_run r;
    command_start(&r, alone, NULL);
    command_finish(&r, 60);
    assert_int_equal(r.status, 0);
    test_read_file(path, text, sizeof text);
    const char *found = strstr(text, "\"ms\":");
    assert_non_null(found);
    assert_true(atof(found + 5) == atof(ms));
}

CASE(every_time_of_every_rank_is_kept)
{
    start_anew("set: {iters: 6, warmup: 2, gpus: 2, nodes: 2, nic: soft, exec: host,\n"
               "      shape: '64,64,64'}\n"
               "vary: {op: ag_gemm}\nrepeats: 2\n");
    struct command_run *r = sweep(0, "");
    assert_int_equal(ask("SELECT count(*) FROM sample WHERE warmup = 0"), 2 * 4 * 6);
    assert_int_equal(ask("SELECT count(*) FROM sample WHERE warmup = 1"), 2 * 4 * 2);
    assert_int_equal(ask("SELECT min(ms) > 0 FROM sample"), 1);
    /* the median of the slowest rank is the one that bench itself says */
    assert_int_equal(
        ask("SELECT count(*) FROM jobs j WHERE abs(ms - (SELECT max(m) FROM (SELECT avg(ms) AS m "
            "FROM (SELECT rank, ms, row_number() OVER (PARTITION BY rank ORDER BY ms) AS n FROM "
            "sample WHERE job = j.job AND warmup = 0) WHERE n IN (3, 4) GROUP BY rank))) < 1e-6"),
        2);
    assert_int_equal(ask("SELECT count(DISTINCT json_extract(result, '$.seed')) FROM job"), 2);
    assert_int_equal(ask("SELECT json_extract(result, '$.roles.compute') > 0 FROM job"), 1);
    assert_int_equal(ask("SELECT json_extract(facts, '$.cores') > 0 FROM machine"), 1);
    assert_non_null(strstr(r->out_text, "95 % interval")); /* the table comes in the end */
}

/* One that dies, one that is wrong, one that hangs for longer than it may, one that no plan fits,
 * and between them one that is right. */
CASE(what_fails_is_recorded_and_the_others_go_on)
{
    char text[1024];
    start_anew("set: {iters: 2, warmup: 0, gpus: 2, exec: host, op: ag_gemm}\n"
               "vary:\n"
               "  - {shape: '64,64,64'}\n"
               "  - {shape: '64,64,72', env.MKERNEL_TEST_DIE: '1,2'}\n"
               "  - {shape: '64,64,80', env.MKERNEL_TEST_SPOIL: '1,2'}\n"
               "  - {shape: '64,64,88', env.MKERNEL_TEST_STOP: '0,1', timeout: '60'}\n"
               "  - {shape: '64,64,71'}\n"
               "repeats: 1\nimpossible: skip\nlimit: 3 s\n");
    struct command_run *r = sweep(1, "");
    assert_int_equal(ask("SELECT count(*) FROM job"), 5);
    assert_int_equal(ask("SELECT count(*) FROM job WHERE verdict = 'right'"), 1);
    assert_true(says("SELECT sentence FROM job JOIN setting USING (point) WHERE value = '64,64,72' "
                     "AND verdict = 'failed'",
                     text, sizeof text));
    assert_non_null(strstr(text, "rank 1 was killed by signal 9"));
    assert_true(says("SELECT sentence FROM job JOIN setting USING (point) WHERE value = '64,64,80' "
                     "AND verdict = 'wrong'",
                     text, sizeof text));
    assert_non_null(strstr(text, "first in launch 2 of rank 1"));
    assert_true(says("SELECT sentence FROM job JOIN setting USING (point) WHERE value = '64,64,88' "
                     "AND verdict = 'failed'",
                     text, sizeof text));
    assert_non_null(strstr(text, "it took longer than 3 s"));
    assert_true(says("SELECT sentence FROM job JOIN setting USING (point) WHERE value = '64,64,71' "
                     "AND verdict = 'impossible'",
                     text, sizeof text));
    assert_non_null(strstr(text, "16-byte multiples"));
    assert_int_equal(ask("SELECT count(DISTINCT job) FROM sample"), 1); /* wrong: it has no time */
    assert_non_null(strstr(r->err_text, "5 of 5 jobs of 5 points"));
    assert_non_null(strstr(r->err_text, "1 wrong; 2 failed"));
    assert_non_null(strstr(r->out_text, "rank 1 was killed by signal 9")); /* in the table, too */
    /* failed jobs are left alone, but where they are asked for: without the fault they go well */
    sweep(1, "");
    assert_int_equal(ask("SELECT count(*) FROM job WHERE verdict = 'failed'"), 2);
    start_anew("set: {iters: 2, warmup: 0, gpus: 2, exec: host, op: ag_gemm}\n"
               "vary: {shape: '64,64,72', env.MKERNEL_TEST_DIE: '1,3'}\nrepeats: 1\n");
    sweep(3, "");
    sqlite3 *db;
    assert_int_equal(sqlite3_open(database, &db), SQLITE_OK);
    assert_int_equal(results_do(db, "UPDATE job SET sentence = 'of the first time'", ""), 0);
    sqlite3_close(db);
    static const char old[] = "SELECT count(*) FROM job WHERE sentence = 'of the first time'";
    sweep(3, "");
    assert_int_equal(ask(old), 1);
    sweep(3, "--retry");
    assert_int_equal(ask(old), 0);
    assert_int_equal(ask("SELECT count(*) FROM job"), 1);
}

CASE(the_budget_ends_it_between_two_jobs)
{
    start_anew(simulated);
    struct command_run *r = sweep(0, "--budget 0.0001");
    assert_non_null(strstr(r->err_text, "the budget of time is spent"));
    int64_t done = ask("SELECT count(*) FROM job");
    assert_true(done >= 1 && done < 18);
    sweep(0, "");
    assert_int_equal(ask("SELECT count(*) FROM job"), 18);
}

CASE(other_builds_are_not_mixed_in_by_chance)
{
    sqlite3 *db;
    start_anew("vary: {op: ag_gemm, exec: sim}\nrepeats: 1\n");
    sweep(0, "");
    assert_int_equal(sqlite3_open(database, &db), SQLITE_OK);
    assert_int_equal(results_do(db, "UPDATE machine SET identity = 'another one'", ""), 0);
    sqlite3_close(db);
    struct command_run *r = sweep(2, "--repeats 2");
    assert_non_null(strstr(r->err_text, "was measured with another one"));
    assert_int_equal(ask("SELECT count(*) FROM job"), 1);
    sweep(0, "--repeats 2 --mix");
    assert_int_equal(ask("SELECT count(*) FROM job"), 2);
    assert_int_equal(ask("SELECT count(*) FROM machine"), 2);
}

CASE(traces_are_kept_for_the_points_asked_for)
{
    char path[256];
    start_anew("set: {exec: host, gpus: 2, shape: '64,64,64', iters: 2}\n"
               "vary: {op: [ag_gemm, gemm_rs]}\nrepeats: 1\ntrace: {op: gemm_rs}\n");
    sweep(0, "");
    assert_int_equal(ask("SELECT count(*) FROM trace"), 1);
    assert_true(
        says("SELECT path FROM trace JOIN setting USING (point) WHERE value = 'gemm_rs' AND "
             "(ideal > 0 OR ideal IS NULL) AND exposed >= 0", /* NULL: it would be noise */
             path, sizeof path));
    assert_int_equal(access(path, R_OK), 0);
}

/* Longer files take longer in proportion, and what is no sweep is refused at once. */
CASE(a_long_file_is_read_in_its_length)
{
    static char text[400000];
    static struct command_run r;
    for (int kind = 0; kind < 2; kind++) {
        size_t used = (size_t)snprintf(text, sizeof text, kind ? "vary: " : "vary: {seed: [0");
        for (int i = 1; i < 60000; i++)
            used += (size_t)snprintf(text + used, sizeof text - used, kind ? "[" : ",%d", i);
        snprintf(text + used, sizeof text - used, kind ? "\n" : "], op: ag_gemm, exec: sim}\n");
        start_anew(text);
        r = *sweep(2, "--list");
        assert_non_null(strstr(r.err_text, kind ? "line 1: 101 brackets" : "more than 10000"));
        assert_true(r.seconds < BUSY); /* 0.1 s, where it was 30 */
    }
}

/* The second of two is told at once, and the first one's points are its own. */
CASE(one_sweep_writes_a_file)
{
    static struct command_run first, second;
    char line[256];
    snprintf(line, sizeof line,
             "sweep --vary op=ag_gemm;exec=host;shape=64,64,64;iters=3 --repeats 200 --out %s",
             database);
    unlink(database);
    command_start(&first, line, NULL);
    for (int i = 0; i < 3000 && ask("SELECT count(*) FROM job") < 1; i++)
        usleep(10000);
    command_start(&second, line, NULL);
    command_finish(&second, 60);
    assert_int_equal(second.status, 2);
    assert_non_null(strstr(second.err_text, "another sweep is writing"));
    assert_int_equal(command_lines(second.err_text), 1);
    kill(first.pid, SIGINT);
    command_finish(&first, 60);
    assert_non_null(strstr(first.err_text, "interrupted by signal 2"));
    assert_int_equal(ask("SELECT count(*) FROM sweep"), 1);
}

/* ---- spread over tasks ---- */

/* Starts task `task` of `count` of job `job` as sbatch --array would. */
static void start_task(struct command_run *r, int job, int task, int count, const char *options)
{
    char line[512], text[5][40];
    snprintf(line, sizeof line, "sweep %s --out %s --quiet --spread array %s", script, database,
             options);
    snprintf(text[0], 40, "SLURM_ARRAY_JOB_ID=%d", job);
    snprintf(text[1], 40, "SLURM_ARRAY_TASK_ID=%d", 10 + 2 * task);
    snprintf(text[2], 40, "SLURM_ARRAY_TASK_COUNT=%d", count);
    snprintf(text[3], 40, "SLURM_ARRAY_TASK_MAX=%d", 10 + 2 * (count - 1));
    command_start(r, line, text[0], text[1], text[2], text[3], "SLURM_ARRAY_TASK_MIN=10", NULL);
}

static int parts(void)
{
    char command[128];
    snprintf(command, sizeof command, "exit $(ls %s.part.*[0-9] 2>/dev/null | wc -l)", database);
    return WEXITSTATUS(system(command));
}

static int merge(const char *options, const char *says)
{
    static struct command_run r;
    char line[256];
    snprintf(line, sizeof line, "results %s merge %s", database, options);
    command_start(&r, line, NULL);
    command_finish(&r, 60);
    if (!strstr(r.err_text, says))
        print_message("%s: status %d: %s\n", line, r.status, r.err_text);
    assert_non_null(strstr(r.err_text, says));
    return r.status;
}

CASE(tasks_of_an_array_share_the_points)
{
    struct command_run tasks[3];
    start_anew(
        "vary: {op: [ag_gemm, gemm_rs], exec: sim, gpus: [2, 4], nodes: [1, 2]}\nrepeats: 2\n");
    for (int i = 0; i < 3; i++)
        start_task(&tasks[i], 7, i, 3, "");
    for (int i = 0; i < 3; i++) {
        command_finish(&tasks[i], 60);
        if (tasks[i].status)
            print_message("task %d: %s\n", i, tasks[i].err_text);
        assert_int_equal(tasks[i].status, 0);
        assert_non_null(strstr(tasks[i].err_text,
                               i < 2 ? "6 of 6 jobs of 3 points" : "4 of 4 jobs of 2 points"));
    }
    assert_int_equal(parts(), 0);
    assert_int_equal(ask("SELECT count(*) FROM job"), 16);
    assert_int_equal(ask("SELECT count(*) FROM sample"), 16);
    assert_int_equal(ask("SELECT count(*) FROM point"), 8);
    assert_int_equal(ask("SELECT count(*) FROM setting"), 32);
    assert_int_equal(ask("SELECT count(DISTINCT sweep) FROM job"), 3);
    /* every job is where it belongs: its command has its point's settings */
    assert_int_equal(ask("SELECT count(*) FROM jobs j JOIN setting s ON s.point = j.point AND "
                         "s.name = 'op' WHERE s.value = j.op"),
                     16);
    /* the same again: all is there, by whatever share */
    start_task(&tasks[0], 8, 0, 1, "--repeats 3");
    command_finish(&tasks[0], 60);
    assert_int_equal(tasks[0].status, 0);
    assert_non_null(strstr(tasks[0].err_text, "24 of 24 jobs of 8 points"));
    assert_non_null(strstr(tasks[0].err_text, ", 16 from before"));
    assert_int_equal(ask("SELECT count(*) FROM job WHERE repeat = 2"), 8);
    assert_int_equal(ask("SELECT count(*) FROM job"), 24);
    start_task(&tasks[0], 9, 39, 40, ""); /* more tasks than points */
    assert_int_equal(command_finish(&tasks[0], 60), 0);
    assert_non_null(strstr(tasks[0].err_text, "task 40 of 40 has nothing to do"));
}

/* Between making its part and locking it a task may find that another one, which merges, has locked it, and takes it away. */
CASE(a_part_that_is_merged_as_it_is_made)
{
    struct command_run r;
    char part[128], error[256];
    start_anew("vary: {op: ag_gemm, exec: sim, gpus: [2, 4]}\nrepeats: 1\n");
    snprintf(part, sizeof part, "%s.part.6-10", database);
    struct results_hold hold;
    assert_int_equal(results_hold(&hold, part, error, sizeof error), 0);
    start_task(&r, 6, 0, 1, "");
    usleep(700000);
    unlink(part);
    results_release(&hold);
    command_finish(&r, 60);
    if (r.status)
        print_message("%s\n", r.err_text);
    assert_int_equal(r.status, 0);
    assert_int_equal(parts(), 0);
    assert_int_equal(ask("SELECT count(*) FROM job"), 2);
}

CASE(a_task_that_dies_loses_nothing)
{
    struct command_run r;
    char part[128], whole[64];
    sqlite3 *db;
    start_anew(
        "vary: {op: ag_gemm, exec: host, nic: soft, shape: '64,64,64', iters: 3}\nrepeats: 200\n");
    snprintf(whole, sizeof whole, "%s", database);
    snprintf(part, sizeof part, "%s.part.5-10", whole);
    start_task(&r, 5, 0, 1, "");
    memcpy(database, part, sizeof database);
    for (int i = 0; i < 3000 && ask("SELECT count(*) FROM job") < 3; i++)
        usleep(10000);
    memcpy(database, whole, sizeof database);
    /* who writes a part keeps it */
    assert_int_equal(merge("", "another sweep is writing"), 2);
    kill(r.pid, SIGKILL);
    command_finish(&r, 60);
    assert_int_equal(parts(), 1);
    assert_int_equal(ask("SELECT count(*) FROM job"), -1); /* no file yet */
    /* the next sweep takes in what it left, and does what is missing; its host may be another */
    assert_int_equal(sqlite3_open(part, &db), SQLITE_OK);
    assert_int_equal(results_do(db, "UPDATE machine SET identity = 'else' || identity", ""), 0);
    assert_int_equal(results_do(db, "DELETE FROM sample WHERE job = 1", ""), 0);
    assert_int_equal(results_do(db, "UPDATE job SET verdict = 'failed' WHERE id = 1", ""), 0);
    int64_t before = query_integer(db, 0, "SELECT count(*) FROM job", "");
    sqlite3_close(db);
    assert_true(before >= 3);
    start_task(&r, 6, 0, 1, "--repeats 4 --retry");
    command_finish(&r, 60);
    if (r.status)
        print_message("%s\n", r.err_text);
    assert_int_equal(r.status, 0);
    assert_int_equal(parts(), 0);
    assert_int_equal(ask("SELECT count(*) FROM job WHERE repeat < 4 AND verdict = 'right'"), 4);
    assert_int_equal(ask("SELECT count(*) FROM job"), before > 4 ? before : 4);
    assert_int_equal(ask("SELECT count(*) FROM machine"), 2);
    assert_int_equal(ask("SELECT count(*) FROM sample s WHERE job NOT IN (SELECT id FROM job)"), 0);
}

CASE(parts_of_other_builds_are_not_merged_by_chance)
{
    struct command_run r;
    char part[128], copy[256];
    sqlite3 *db;
    start_anew("vary: {op: ag_gemm, exec: sim}\nrepeats: 1\n");
    sweep(0, "");
    snprintf(part, sizeof part, "%s.part.1-2", database);
    snprintf(copy, sizeof copy, "cp %s %s", database, part);
    assert_int_equal(system(copy), 0);
    assert_int_equal(sqlite3_open(part, &db), SQLITE_OK);
    assert_int_equal(results_do(db, "UPDATE job SET repeat = 1", ""), 0);
    assert_int_equal(results_do(db, "UPDATE machine SET identity = 'a, mkernel 0.0 at b'", ""), 0);
    sqlite3_close(db);
    start_task(&r, 3, 0, 1, ""); /* says so, and does its own */
    assert_int_equal(command_finish(&r, 60), 0);
    assert_non_null(strstr(r.err_text, "with a, mkernel 0.0 at b: --mix puts both into one file"));
    assert_int_equal(merge("", "--mix puts"), 2);
    assert_int_equal(parts(), 1);
    assert_int_equal(ask("SELECT count(*) FROM job"), 1);
    assert_int_equal(merge("--mix", "1 jobs of 1 file are now in"), 0);
    assert_int_equal(parts(), 0);
    assert_int_equal(ask("SELECT count(*) FROM job"), 2);
    assert_int_equal(merge("", "there is no part of"), 2);
    /* other files stay, and twice is once */
    assert_int_equal(system(copy), 0);
    unlink(database);
    assert_int_equal(merge(part, "2 jobs of 1 file"), 0);
    assert_int_equal(merge(part, "0 jobs of 1 file"), 0);
    assert_int_equal(parts(), 1);
    assert_int_equal(ask("SELECT count(*) FROM job"), 2);
    assert_int_equal(ask("SELECT count(*) FROM sweep"),
                     ask("SELECT count(DISTINCT sweep) FROM job"));
    unlink(part);
}

CASE(tasks_that_slurm_does_not_say_are_refused)
{
    static const struct {
        const char *options, *environment[5], *says;
    } cases[] = {
        {"array", {"A=1", "A=1", "A=1", "A=1", "A=1"}, "SLURM_ARRAY_TASK_ID is not set"},
        {"srun", {"A=1", "A=1", "A=1", "A=1", "A=1"}, "SLURM_PROCID is not set"},
        {"both", {"A=1", "A=1", "A=1", "A=1", "A=1"}, "it takes array|srun"},
        {"array --hosts /dev/null", {"A=1", "A=1", "A=1", "A=1", "A=1"}, "both say who measures"},
        {"array --expect x.db", {"A=1", "A=1", "A=1", "A=1", "A=1"}, "--expect looks at all"},
        {"array",
         {"SLURM_ARRAY_TASK_ID=x", "SLURM_ARRAY_TASK_COUNT=2", "SLURM_ARRAY_TASK_MIN=0",
          "SLURM_ARRAY_TASK_MAX=1", "SLURM_ARRAY_JOB_ID=1"},
         "SLURM_ARRAY_TASK_ID=x in the environment is no number"},
        {"array",
         {"SLURM_ARRAY_TASK_ID=2", "SLURM_ARRAY_TASK_COUNT=3", "SLURM_ARRAY_TASK_MIN=1",
          "SLURM_ARRAY_TASK_MAX=7", "SLURM_ARRAY_JOB_ID=1"},
         "task 2 of 3 tasks from 1 to 7 is none of an array with even steps"},
        {"array",
         {"SLURM_ARRAY_TASK_ID=5", "SLURM_ARRAY_TASK_COUNT=0", "SLURM_ARRAY_TASK_MIN=5",
          "SLURM_ARRAY_TASK_MAX=5", "SLURM_ARRAY_JOB_ID=1"},
         "task 5 of 0 tasks"},
        {"srun",
         {"SLURM_PROCID=2", "SLURM_STEP_NUM_TASKS=2", "SLURM_JOB_ID=1", "SLURM_STEP_ID=0",
          "SLURM_STEP_TASKS_PER_NODE=1(x2)"},
         "this is task 2 of 2"},
        {"srun --vary exec=host",
         {"SLURM_PROCID=1", "SLURM_STEP_NUM_TASKS=2", "SLURM_JOB_ID=1", "SLURM_STEP_ID=0",
          "SLURM_STEP_TASKS_PER_NODE=2"},
         "srun --ntasks-per-node=1"},
    };
    start_anew("vary: {op: [ag_gemm, gemm_rs], exec: sim}\nrepeats: 1\n");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct command_run r;
        char line[512];
        const char *const *e = cases[i].environment;
        snprintf(line, sizeof line, "sweep %s --out %s --spread %s", script, database,
                 cases[i].options);
        command_start(&r, line, e[0], e[1], e[2], e[3], e[4], NULL);
        command_finish(&r, 30);
        if (r.status != 2 || !strstr(r.err_text, cases[i].says))
            print_message("%s: status %d: %s\n", line, r.status, r.err_text);
        assert_int_equal(r.status, 2);
        assert_non_null(strstr(r.err_text, cases[i].says));
        assert_int_equal(command_lines(r.err_text), 1);
    }
    assert_int_equal(ask("SELECT 1"), -1);
}

/* A file that could not be begun is not left behind; one that was there before is. */
CASE(a_full_disk_leaves_no_empty_file)
{
    static struct command_run r;
    char mkernel[4096], line[8192];
    command_path(mkernel, sizeof mkernel);
    for (int there = 0; there < 2; there++) {
        unlink(database);
        snprintf(line, sizeof line,
                 "%s %s; ulimit -f 1; exec %s sweep --vary 'op=ag_gemm;exec=sim' --repeats 1 --out "
                 "%s",
                 there ? ": >" : ": ", there ? database : "", mkernel, database);
        command_start_program(&r, "/bin/sh", (char *[]){"sh", "-c", line, NULL});
        command_finish(&r, 60);
        assert_int_not_equal(r.status, 0);
        assert_int_equal(command_lines(r.err_text), 1);
        assert_int_equal(access(database, F_OK), there ? 0 : -1);
    }
}

FIXTURE(make, folder_remove)
