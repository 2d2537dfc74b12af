/* `mkernel calibrate` and `mkernel sim --validate` say what is wrong with a table or a machine
 * before anything starts, count what they leave out, and their figures are those of the rows. */
#include "tests/helpers/command.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/helpers/folder.h"

#define HEADER "op,m,n,k,nodes,gpus,ms,of_best,default,wrong,made\n"
#define ROW(ms, of_best, formula, made)                                                            \
    "ag_gemm,4096,1024,2048,1,2," ms "," of_best "," formula ",0," made "\n"

static struct command_run r;

static const char *written(const char *name, const char *text)
{
    static char path[1024];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    return path;
}

static void run(char **argv)
{
    char line[4096] = "";
    for (; *argv; argv++)
        snprintf(line + strlen(line), sizeof line - strlen(line), "%s ", *argv);
    command_start(&r, line, NULL);
    command_finish(&r, 120);
}

static void refused(char **argv, const char *says)
{
    run(argv);
    if (r.status != 2 || !strstr(r.err_text, says) || command_lines(r.err_text) != 1 || *r.out_text)
        fail_msg("status %d: %s%s", r.status, r.out_text, r.err_text);
}

static void what_is_wrong(void **state)
{
    char table[1024];
    snprintf(table, sizeof table, "%s", written("t.csv", HEADER ROW("0.1", "1", "1", "pace=1")));
    refused((char *[]){"sim", "--validate", "/nowhere.csv", NULL}, "/nowhere.csv");
    refused((char *[]){"sim", "--validate", table, "ag_gemm", NULL}, "no operator");
    refused((char *[]){"sim", "--validate", table, "--machine", "9xH300", NULL},
            "machines are 8xH200-cx7");
    refused((char *[]){"sim", "--validate", table, "--by", "magic", NULL}, "model");
    refused((char *[]){"sim", "--validate", table, "--plot", "/nowhere/x.png", NULL}, "--plot");
    refused((char *[]){"calibrate", NULL}, "--from");
    refused((char *[]){"calibrate", "--from", table, "--print", NULL}, "--print");
    refused((char *[]){"calibrate", "--from", "/nowhere.csv", NULL}, "/nowhere.csv");
    char wrong[1024];
    snprintf(wrong, sizeof wrong, "%s", written("w.csv", "op,m,n,k,nodes,gpus,made\n"));
    refused((char *[]){"sim", "--validate", wrong, NULL}, "no column 'ms'");
    snprintf(wrong, sizeof wrong, "%s", written("short.csv", HEADER "ag_gemm,1,2\n"));
    refused((char *[]){"sim", "--validate", wrong, NULL}, "line 2");
    snprintf(wrong, sizeof wrong, "%s", written("empty.csv", ""));
    refused((char *[]){"sim", "--validate", wrong, NULL}, "empty");
    snprintf(wrong, sizeof wrong, "%s",
             written("none.csv", HEADER ROW("0.1", "1", "1", "pace=none")));
    refused((char *[]){"sim", "--validate", wrong, NULL}, "no plan that this build makes");
    snprintf(wrong, sizeof wrong, "%s",
             written("other.csv", HEADER "all_gather,4096,1,2048,1,2,0.1,1,1,0,chunk_rows=64\n"));
    refused((char *[]){"calibrate", "--from", wrong, NULL}, "");
}

/* Errors of the rows' own predictions are none, and of times twice as long one half. */
static void figures_are_the_rows(void **state)
{
    char table[1024], csv[1024], line[1024];
    double predicted = 0;
    snprintf(table, sizeof table, "%s",
             written("t.csv", HEADER ROW("0.1", "1", "1", "tile=256x128")
                                  ROW("0.1", "1", "0", "tile=256x256") "ag_gemm,4096,1024,2048,1,2,"
                                                                       "0.1,1,0,3,pace=1\n"));
    snprintf(csv, sizeof csv, "%s/rows.csv", folder);
    run((char *[]){"sim", "--validate", table, "--csv", csv, NULL});
    assert_int_equal(r.status, 0);
    assert_non_null(strstr(r.out_text, "left out   1 rows"));
    FILE *f = fopen(csv, "r");
    assert_non_null(f);
    char *again = calloc(1, 8192);
    strcpy(again, HEADER);
    for (int i = 0; fgets(line, sizeof line, f); i++) {
        char made[256];
        if (!i) {
            assert_non_null(strstr(line, "measured_ms,predicted_ms"));
            continue;
        }
        assert_int_equal(
            sscanf(line, "ag_gemm,4096,1024,2048,1,2,%*f,%lf,%*d,%255[^\n]", &predicted, made), 2);
        assert_true(predicted > 0.01 && predicted < 1);
        snprintf(again + strlen(again), 8192 - strlen(again),
                 "ag_gemm,4096,1024,2048,1,2,%.6f,%d,%d,0,%s\n", predicted * i, i, i == 1, made);
    }
    fclose(f);
    snprintf(table, sizeof table, "%s", written("again.csv", again));
    free(again);
    run((char *[]){"sim", "--validate", table, NULL});
    assert_int_equal(r.status, 0);
    /* the first is right, the second takes twice what is predicted */
    if (!strstr(r.out_text, "2 plans of 1 shapes: error median 25.0 %, mean 25.0 %, worst 50 %") ||
        !strstr(r.out_text, "default plans: median 0.0 %, worst 0.0 %"))
        fail_msg("%s", r.out_text);
    run((char *[]){"sim", "--validate", table, "--half", "rest", NULL});
    assert_int_equal(r.status, 2); /* one shape has no second */
}

static void calibrate_writes_a_machine(void **state)
{
    char output[1024];
    snprintf(output, sizeof output, "%s/m.machine", folder);
    run((char *[]){"calibrate", "--from", "tests/golden/measured_2xH200.csv", "--rounds", "2",
                   "--keep", "launch", "--output", output, NULL});
    assert_int_equal(r.status, 0);
    assert_non_null(strstr(r.err_text, "round 1"));
    run((char *[]){"calibrate", "--print", "--machine", output, NULL});
    assert_int_equal(r.status, 0);
    assert_non_null(strstr(r.out_text, "device = NVIDIA_H200\n"));
    char *kept = strstr(r.out_text, "\nlaunch = ");
    assert_non_null(kept);
    char launch[64];
    snprintf(launch, sizeof launch, "%.*s", (int)strcspn(kept + 1, "\n"), kept + 1);
    run((char *[]){"calibrate", "--print", NULL});
    assert_non_null(strstr(r.out_text, launch));
}

/* --exec cuda runs tune for one GPU and for several, and fits to what it wrote; a failure of it
 * ends in a sentence. The program that measures is one that copies a table. */
static void calibrate_measures(void **state)
{
    char program[1024], output[1024], tables[512], text[2048], table[1024];
    snprintf(output, sizeof output, "%s/here.machine", folder);
    snprintf(tables, sizeof tables, "%s/tables", folder);
    char *here = realpath("tests/golden/measured_2xH200.csv", NULL);
    assert_non_null(here);
    snprintf(text, sizeof text,
             "#!/bin/sh\necho \"$@\" >> '%s/calls'\nwhile [ \"$1\" != --csv ]; do shift; done\n"
             "head -40 '%s' > \"$2\"\n",
             folder, here);
    snprintf(program, sizeof program, "%s", written("fake", text));
    assert_int_equal(chmod(program, 0755), 0);
    run((char *[]){"calibrate", "--exec", "cuda", "--gpus", "4", "--program", program, "--tables",
                   tables, "--rounds", "1", "--output", output, NULL});
    if (r.status)
        fail_msg("%s", r.err_text);
    snprintf(table, sizeof table, "%s/calls", folder);
    FILE *f = fopen(table, "r");
    assert_non_null(f);
    int calls = 0, alone = 0, space = 0;
    while (fgets(text, sizeof text, f)) {
        calls++;
        alone += strstr(text, "--gpus 1 ") != NULL;
        space += !strncmp(text, "tune ag_gemm --exec cuda", 24);
    }
    fclose(f);
    assert_true(calls >= 4 && alone == 1 && space >= 2);
    snprintf(table, sizeof table, "%s/0_ag_gemm.csv", tables);
    run((char *[]){"sim", "--validate", table, "--machine", output, NULL});
    assert_int_equal(r.status, 0);
    written("fake", "#!/bin/sh\necho no GPU >&2\nexit 2\n");
    run((char *[]){"calibrate", "--exec", "cuda", "--program", program, NULL});
    assert_int_equal(r.status, 3);
    assert_non_null(strstr(r.err_text, "no GPU\n"));
    assert_non_null(strstr(r.err_text, "the measurement of ag_gemm at"));
    refused((char *[]){"calibrate", "--exec", "cuda", "--print", NULL}, "one of");
    free(here);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_wrong),
        cmocka_unit_test(figures_are_the_rows),
        cmocka_unit_test(calibrate_writes_a_machine),
        cmocka_unit_test(calibrate_measures),
    };
    return cmocka_run_group_tests(tests, folder_make, folder_remove);
}
