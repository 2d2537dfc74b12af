/* A row of `bench --csv` says all that the JSON of the same measurement says; rows can be added to
 * the table that is there, and to no other; what fails leaves a file as it was. */
#include "tests/helpers/command.h"
#include "tests/helpers/json.h"

#include <math.h>
#include <sys/inotify.h>
#include <sys/resource.h>

#include "tests/helpers/folder.h"

#define BENCH                                                                                      \
    "bench gemm_rs --exec host --nic soft --nodes 2 --gpus 1 --shape 64,64,64 --iters 2 --warmup " \
    "1"

static struct command_run r;
static char text[65536];

static const char *in_folder(const char *name)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static const char *read_text(const char *name)
{
    test_read_file(in_folder(name), text, sizeof text);
    return text;
}

static void write_text(const char *name, const char *content)
{
    FILE *f = fopen(in_folder(name), "w");
    assert_non_null(f);
    fputs(content, f);
    assert_int_equal(fclose(f), 0);
}

/* `mkernel FORMAT`, where %s is the folder. */
static void run(const char *format, int status)
{
    char line[1024];
    snprintf(line, sizeof line, format, folder, folder);
    command_start(&r, line, NULL);
    command_finish(&r, 240);
    if (r.status != status)
        fail_msg("mkernel %s: status %d, \"%s\"", line, r.status, r.err_text);
}

/* The cell of column `name` in row `row` (from 1) of a table in `text`, without quotes. NULL: no
 * such column or row. */
static const char *cell(const char *table, int row, const char *name)
{
    static char out[256];
    int column = -1, at = 0;
    const char *line = table, *c = table;
    for (int i = 0; *c && *c != '\n' && column < 0; i++, c += *c == ',') {
        size_t n = strcspn(c, ",\n");
        if (n == strlen(name) && !strncmp(c, name, n))
            column = i;
        c += n;
    }
    for (; row && line; row--)
        line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL;
    if (column < 0 || !line || !*line)
        return NULL;
    size_t used = 0;
    for (int quoted = 0; *line && (quoted || *line != '\n'); line++) {
        quoted ^= *line == '"';
        at += !quoted && *line == ',';
        if (at == column && *line != '"' && (quoted || *line != ',') && used + 1 < sizeof out)
            out[used++] = *line;
    }
    out[used] = 0;
    return out;
}

static int rows_of(const char *table)
{
    return command_lines(table) - 1;
}

static void expect_cell(const char *table, const char *name, const struct json *value)
{
    const char *have = cell(table, 1, name);
    int same = have != NULL;
    if (same && value->type == JSON_STRING)
        same = !strcmp(have, value->string);
    else if (same && value->type == JSON_BOOL)
        same = !strcmp(have, value->number ? "true" : "false");
    else if (same && value->type == JSON_NUMBER) { /* as many digits as the column has */
        double digit = strchr(have, '.') && !strchr(have, 'e')
                           ? pow(10, -(double)strlen(strchr(have, '.') + 1))
                           : 0;
        same = *have && fabs(atof(have) - value->number) <= 1e-3 * fabs(value->number) + digit;
    }
    if (!same)
        fail_msg("column %s is \"%s\", JSON says \"%s\" or %g", name, have ? have : "not there",
                 value->type == JSON_STRING ? value->string : "",
                 value->type == JSON_STRING ? 0 : value->number);
}

/* Every member of the JSON is a column; what has parts there has several here. */
static void compare(const char *line)
{
    char all[1024];
    int members = 0;
    snprintf(all, sizeof all, "%s --csv %%s/both.csv --json %%s/both.json", line);
    run(all, 0);
    struct json *j = json_read(read_text("both.json"));
    assert_non_null(j);
    const char *table = read_text("both.csv");
    assert_int_equal(rows_of(table), 1);
    for (const struct json *m = j->first; m; m = m->next, members++) {
        if (!strcmp(m->key, "shape") || !strcmp(m->key, "attention") || !strcmp(m->key, "moe")) {
            char numbers[128] = "";
            for (const struct json *n = m->first; n; n = n->next)
                snprintf(numbers + strlen(numbers), sizeof numbers - strlen(numbers), "%s%.0f",
                         n == m->first ? "" : ",", n->number);
            if (strncmp(cell(table, 1, "shape"), numbers, strlen(numbers)) != 0)
                fail_msg("column shape is %s, JSON says %s", cell(table, 1, "shape"), numbers);
        } else if (!strcmp(m->key, "date")) { /* the next second may have come in between */
            assert_int_equal(strlen(cell(table, 1, "date")), strlen(m->string));
        } else if (!strcmp(m->key, "causal")) {
            assert_int_equal(strstr(cell(table, 1, "shape"), " causal") != NULL, m->number);
        } else if (!strcmp(m->key, "roles")) {
            for (const struct json *role = m->first; role; role = role->next)
                expect_cell(table, role->key, role);
        } else if (!strcmp(m->key, "tile")) {
            expect_cell(table, "tile_m", m->first);
            expect_cell(table, "tile_n", m->first->next);
        } else {
            expect_cell(table, m->key, m);
        }
    }
    json_free(j);
    assert_true(members > 30);
}

CASE(a_row_says_what_the_json_says)
{
    compare(BENCH " --seed 7 --deterministic --b-layout nk --vs blas");
    assert_string_equal(cell(text, 1, "fabric"), "verbs over soft0");
    /* two networks of softnic's are told apart */
    setenv("SOFTNIC", "bw=5GB/s,latency=10us", 1);
    compare(BENCH);
    assert_string_equal(cell(text, 1, "fabric"),
                        "verbs over soft0 (SOFTNIC=bw=5GB/s,latency=10us)");
    assert_non_null(strstr(r.out_text, ", verbs over soft0 (SOFTNIC=bw=5GB/s,latency=10us)\n"));
    run("bench fabric --nic soft --size 64 --iters 20 --csv %s/network.csv", 0);
    assert_string_equal(cell(read_text("network.csv"), 1, "device"),
                        "soft0 (SOFTNIC=bw=5GB/s,latency=10us)");
    assert_non_null(strstr(r.out_text, "soft0"));
    assert_non_null(strstr(r.out_text, " (SOFTNIC=bw=5GB/s,latency=10us); "));
    run("run ag_gemm --exec host --nic soft --nodes 2 --gpus 1 --shape 64,64,64 --iters 1 --trace "
        "%s/network.db",
        0);
    run("trace summary %s/network.db", 0);
    assert_non_null(strstr(r.out_text, ", verbs on soft0 (SOFTNIC=bw=5GB/s,latency=10us)\n"));
    unsetenv("SOFTNIC");
    compare("bench ag_gemm --exec host --gpus 2 --shape 64,64,64 --iters 2 --roles "
            "compute=3,intra_comm=2 "
            "--tile 32,64");
    assert_string_equal(cell(text, 1, "intra_comm"), "2");
    compare("bench ring_attention --exec host --gpus 2 --attention 1,32,2,1,64 --causal --iters 2");
    compare("bench moe_ffn --exec host --gpus 2 --moe 16,64,40,4,2 --routing few --iters 2");
}

/* Rows of several benches in one table can be told apart. */
CASE(rows_are_added)
{
    static const char *const roles[] = {"1", "2", "3"};
    for (int i = 0; i < 3; i++) {
        char line[512];
        snprintf(line, sizeof line,
                 "bench ag_gemm --exec host --gpus 2 --shape 64,64,64 --iters 2 --quiet --csv "
                 "%%s/rows.csv "
                 "--append --roles "
                 "compute=%s,intra_comm=1",
                 roles[i]);
        run(line, 0);
    }
    const char *table = read_text("rows.csv");
    assert_int_equal(rows_of(table), 3);
    for (int i = 0; i < 3; i++)
        assert_string_equal(cell(table, i + 1, "compute"), roles[i]);
    run("bench ag_gemm --exec host --gpus 2 --shape 64,64,64 --iters 2 --csv %s/rows.csv",
        0); /* without it: a new one */
    assert_int_equal(rows_of(read_text("rows.csv")), 1);
    for (int i = 0; i < 2; i++)
        run("bench fabric --nic soft --size 64 --iters 20 --csv %s/fabric.csv --append", 0);
    assert_int_equal(rows_of(read_text("fabric.csv")), 4);
    assert_string_equal(cell(text, 3, "device"), "soft0");
}

/* Benches that end at the same time: one header, every row. */
CASE(rows_of_several_at_once)
{
    static struct command_run many[4];
    char line[512];
    snprintf(line, sizeof line,
             "bench ag_gemm --exec host --gpus 1 --shape 64,64,64 --iters 2 --csv %s --append",
             in_folder("many.csv"));
    for (int i = 0; i < 4; i++)
        command_start(&many[i], line, NULL);
    for (int i = 0; i < 4; i++) {
        command_finish(&many[i], 240);
        if (many[i].status)
            fail_msg("mkernel %s: status %d, \"%s\"", line, many[i].status, many[i].err_text);
    }
    const char *table = read_text("many.csv");
    assert_int_equal(rows_of(table), 4);
    for (int i = 1; i <= 4; i++)
        assert_string_equal(cell(table, i, "verdict"), "right");
}

/* Whether the table can be written is asked without making it: a bench that ends meanwhile may
 * already have put its rows there, and they would be removed with the trial. */
CASE(the_table_is_made_once)
{
    char events[16384] __attribute__((aligned(__alignof__(struct inotify_event))));
    int fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC), made = 0, removed = 0;
    assert_true(fd >= 0 && inotify_add_watch(fd, folder, IN_CREATE | IN_DELETE) >= 0);
    run(BENCH " --csv %s/once.csv --append", 0);
    for (ssize_t n; (n = read(fd, events, sizeof events)) > 0;)
        for (char *at = events; at < events + n;) {
            const struct inotify_event *e = (const struct inotify_event *)at;
            if (e->len && !strcmp(e->name, "once.csv")) {
                made += (e->mask & IN_CREATE) != 0;
                removed += (e->mask & IN_DELETE) != 0;
            }
            at += sizeof *e + e->len;
        }
    close(fd);
    assert_int_equal(made, 1);
    assert_int_equal(removed, 0);
}

CASE(another_table_is_refused)
{
    write_text("other.csv", "op,m,n,knights\nag_gemm,1,2,3\n");
    run(BENCH " --csv %s/other.csv --append", 2);
    assert_non_null(
        strstr(r.err_text,
               "other.csv is another table: its column 4 is knights, and this bench writes k; "));
    assert_string_equal(read_text("other.csv"), "op,m,n,knights\nag_gemm,1,2,3\n");
    run("bench fabric --nic soft --csv %s/other.csv --append", 2);
    assert_non_null(strstr(r.err_text, "its column 1 is op, and this bench writes test; "));
    run(BENCH " --append", 2);
    assert_non_null(strstr(r.err_text, "--append adds to the file of --csv, which is not given"));
    run(BENCH " --append --csv /dev/stdout", 2);
    assert_non_null(strstr(r.err_text, "--append adds to a file, and /dev/stdout is none"));
}

/* As on a full disk: no file grows beyond `bytes`. */
static void expect_disk_full(const char *line, const char *name, size_t bytes)
{
    char all[1024], before[16384];
    struct rlimit old, limit;
    snprintf(before, sizeof before, "%s", read_text(name));
    snprintf(all, sizeof all, "%s %s", line, in_folder(name));
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    limit = (struct rlimit){bytes, old.rlim_max};
    signal(SIGXFSZ, SIG_IGN); /* for the command: a limit is an error of write */
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    command_start(&r, all, NULL);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    signal(SIGXFSZ, SIG_DFL);
    command_finish(&r, 240);
    if (r.status != 3 || !strstr(r.err_text, "could not be written") || !strstr(r.err_text, name))
        fail_msg("%s: status %d, \"%s\"", line, r.status, r.err_text);
    assert_string_equal(read_text(name), before);
}

CASE(a_full_disk_leaves_what_was_there)
{
#define FABRIC "bench fabric --nic soft --size 64 --iters 20 --test bw"
    run(FABRIC " --csv %s/full.csv --json %s/full.json", 0);
    expect_disk_full(FABRIC " --json", "full.json", 100);
    expect_disk_full(FABRIC " --csv", "full.csv", 100);
    expect_disk_full(FABRIC " --append --csv", "full.csv",
                     strlen(read_text("full.csv")) + 50); /* half a row fits */
}

/* The number behind `"name": ` from `at` on. */
static double number_after(const char *at, const char *name)
{
    char key[96];
    snprintf(key, sizeof key, "\"%s\": ", name);
    const char *found = strstr(at, key);
    if (!found)
        fail_msg("no %s", name);
    return strtod(found + strlen(key), NULL);
}

/* --why: of launches behind the timed ones, which leave no events; the parts add up to the whole,
 * and table, JSON and CSV have the same. */
CASE(why_has_parts_that_add_up)
{
    static char table[65536];
    static const char *const parts[] = {"launch",
                                        "prologue",
                                        "products_at_full_rate",
                                        "products_slowed",
                                        "waits_for_data",
                                        "waits_for_back_pressure",
                                        "waits_for_the_network",
                                        "own_copies_and_sums",
                                        "between_products",
                                        "tail_of_the_last_wave",
                                        "after_the_last_waits",
                                        "after_the_last_copies_sums",
                                        "after_the_last_nothing_to_do"};
    /* so many products that they are no part of less than 1 %, which is left out, on a busy
     * machine */
    run("bench gemm_rs --exec host --gpus 2 --shape 256,256,512 --iters 2 --warmup 1 --why "
        "--json %s/why.json --csv %s/why.csv",
        0);
    assert_non_null(strstr(r.out_text, "why       launch "));
    assert_non_null(strstr(r.out_text, "products at full rate "));
    strcpy(table, read_text("why.csv"));
    const char *why = strstr(read_text("why.json"), "\"why\": {");
    assert_non_null(why);
    double sum = 0, whole = number_after(why, "whole_ns");
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        char name[64], column[64];
        snprintf(name, sizeof name, "%s_ns", parts[i]);
        snprintf(column, sizeof column, "why_%s_ns", parts[i]);
        const char *in = cell(table, 1, column);
        double ns = number_after(why, name);
        assert_non_null(in);
        assert_true(fabs(strtod(in, NULL) - ns) <= 0.1 + 1e-8 * ns);
        sum += ns;
    }
    assert_true(whole > 0 && fabs(sum - whole) < 1e-6 * whole);
    assert_true(number_after(why, "tiles") >= 1);
    assert_true(number_after(why, "launch") <= 8); /* of those that were traced */
    run("bench all_gather --exec host --why", 2);
    assert_non_null(strstr(r.err_text, "--why splits the time of CTAs that compute tiles, and "
                                       "all_gather has none"));
    run(BENCH " --csv %s/why.csv --append", 2);
}

/* A row for each shape, of operators that GPUs set others beside and of those that are timed alone. */
CASE(test_shapes)
{
    run("bench moe_dispatch --exec host --gpus 2 --shapes 8,64,8,2:16,64,8,2 --iters 2 --csv "
        "%s/shapes.csv",
        0);
    assert_non_null(strstr(r.err_text, "2 shapes measured, 0 wrong"));
    run("bench moe_dispatch --exec host --gpus 2 --shapes 24,64,8,2:8,128,8,2 --iters 2 --append "
        "--csv %s/shapes.csv",
        0);
    static const char *const shapes[] = {"8,64,8,2", "16,64,8,2", "24,64,8,2", "8,128,8,2"};
    const char *table = read_text("shapes.csv");
    for (int i = 0; i < 4; i++) {
        assert_string_equal(cell(table, i + 1, "shape"), shapes[i]);
        assert_string_equal(cell(table, i + 1, "verdict"), "right");
    }
    assert_null(cell(table, 5, "shape"));
    run("bench gemm_ar --exec host --gpus 2 --shapes 64,64,64:256,192,512 --iters 2 --csv "
        "%s/shapes.csv",
        0);
    table = read_text("shapes.csv");
    assert_string_equal(cell(table, 2, "n"), "192");
    assert_null(cell(table, 3, "n"));
    setenv("MKERNEL_TEST_SPOIL", "0,1", 1);
    run("bench gemm_ar --exec host --gpus 2 --shapes 64,64,64:256,192,512 --iters 2", 1);
    unsetenv("MKERNEL_TEST_SPOIL");
    assert_non_null(strstr(r.err_text, "2 shapes measured, 2 wrong"));
    run("bench gemm_ar --exec host --gpus 2 --shapes 64,64,64:64,64,128 --iters 2 --csv /dev/full",
        3);
    assert_non_null(strstr(r.err_text, "/dev/full could not be written"));
    run("bench gemm_ar --exec host --gpus 2 --shapes 64,64,64:64,64,128 --iters 2 --csv "
        "/dev/stdout",
        0);
    assert_string_equal(cell(r.out_text, 2, "k"), "128");
}

FIXTURE(folder_make, folder_remove)
