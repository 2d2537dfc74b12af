/* `mkernel calibrate` and `mkernel sim --validate` say what is wrong with a table or a machine
 * before anything starts, count what they leave out, and their figures are those of the rows. */
/* WAITS */
#include "tests/helpers/command.h"
#include <math.h>
#include <sys/stat.h>
#include <time.h>

#include "tests/helpers/folder.h"

#define HEADER "op,m,n,k,nodes,gpus,ms,of_best,default,wrong,made\n"
#define ROW(ms, of_best, formula, made)                                                            \
    "ag_gemm,4096,1024,2048,1,2," ms "," of_best "," formula ",0," made "\n"

static struct command_run r;

static const char *written(const char *name, const char *text)
{
    static char path[1024];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    test_write_file(path, text);
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

CASE(what_is_wrong)
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
             written("none.csv", HEADER ROW("0.1", "1", "1", "pace=some")));
    refused((char *[]){"sim", "--validate", wrong, NULL}, "no plan that this build makes");
    /* times of CPUs are no GPU's, in a table of `bench` and in one of `tune` */
    snprintf(wrong, sizeof wrong, "%s",
             written("host.csv", "exec," HEADER "host," ROW("0.1", "1", "1", "pace=1")));
    refused((char *[]){"sim", "--validate", wrong, NULL}, "it was not measured on GPUs");
    snprintf(wrong, sizeof wrong, "%s",
             written("tune.csv", "device," HEADER "host," ROW("0.1", "1", "1", "pace=1")));
    refused((char *[]){"sim", "--validate", wrong, NULL}, "it was not measured on GPUs");
    refused((char *[]){"calibrate", "--from", wrong, NULL}, "it was not measured on GPUs");
    snprintf(wrong, sizeof wrong, "%s",
             written("other.csv", HEADER "all_gather,4096,1,2048,1,2,0.1,1,1,0,chunk_rows=64\n"));
    refused((char *[]){"calibrate", "--from", wrong, NULL}, "");
}

/* Errors of the rows' own predictions are none, and of times twice as long one half. */
CASE(figures_are_the_rows)
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

/* A line of a simulated launch's --json or table: the number behind `name`. */
static double said(const char *text, const char *name)
{
    const char *at = strstr(text, name);
    if (!at)
        fail_msg("no '%s' in: %s", name, text);
    return strtod(at + strlen(name), NULL);
}

/* A trace says its plan and, but for the first launch's, the time that all ranks were at it: of a
 * simulated one what is predicted event by event. File names may have commas in them. Options that
 * no command said, as the formula chose them, are kept too. */
CASE(traces_are_read)
{
    static const char *const cases[] = {
        "ag_gemm --cluster 1x2 --shape 4096,512,4096 --pace 540 --slices 2",
        "ag_gemm --cluster 1x2 --shape 8192,1024,8192",
        "ag_gemm --cluster 2x2 --shape 4096,512,4096 --b-layout nk",
        "ring_attention --cluster 1x2 --attention 1,8192,16,16,128 --causal"};
    char line[2048], trace[1024], machine[1024];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(trace, sizeof trace, "%s/a,%zu.db", folder, i);
        snprintf(line, sizeof line, "sim %s --launches 3 --tuning none --trace %s", cases[i],
                 trace);
        command_start(&r, line, NULL);
        command_finish(&r, 120);
        assert_int_equal(r.status, 0);
        snprintf(line, sizeof line, "%s/rows.csv", folder);
        run((char *[]){"sim", "--validate", trace, "--by", "events", "--csv", line, NULL});
        if (r.status || !strstr(r.out_text, "1 plans of 1 shapes") ||
            said(r.out_text, "error median ") > 1.5)
            fail_msg("%s: %s%s", cases[i], r.out_text, r.err_text);
    }
    snprintf(trace, sizeof trace, "%s/a,0.db,%s/a,2.db", folder, folder);
    snprintf(machine, sizeof machine, "%s/t.machine", folder);
    run((char *[]){"calibrate", "--from", trace, "--rounds", "2", "--output", machine, NULL});
    if (r.status)
        fail_msg("%s", r.err_text);
    FILE *f = fopen(machine, "r");
    assert_non_null(f);
    assert_non_null(fgets(line, sizeof line, f));
    fclose(f);
    assert_non_null(strstr(line, "to 2 plans of 2 shapes"));
    snprintf(line, sizeof line, "%s", written("no.db", "SQLite format 3 of another kind\n"));
    run((char *[]){"sim", "--validate", line, NULL});
    assert_int_equal(r.status, 2);
    assert_int_equal(command_lines(r.err_text), 1);
}

/* Tables of `bench` and `run` say plans in columns of their own; a wrong result is left out, and so
 * is what no GPU ran. */
CASE(tables_of_bench_are_read)
{
#define PLAN_COLUMNS                                                                               \
    "b_layout,compute,intra_comm,inter_send,inter_reduce,tile_m,tile_n,chunk_rows,slices,pieces,"  \
    "fanout,pace_ns\n"
#define PLAN_OF(exec, wrong, pace)                                                                 \
    "4096,512,4096,0.0788," wrong ",ag_gemm,1,2," exec ",kn,132,264,0,0,256,128,256,4,32,1," pace  \
    "\n"
    char table[1024], tuned[1024], first[64];
    snprintf(table, sizeof table, "%s",
             written("bench.csv",
                     "m,n,k,fused_ms,wrong,op,nodes,gpus,exec," PLAN_COLUMNS PLAN_OF(
                         "cuda", "0", "360") PLAN_OF("cuda", "3", "1") PLAN_OF("host", "0", "1")));
    run((char *[]){"sim", "--validate", table, NULL});
    if (r.status || !strstr(r.out_text, "left out   2 rows") ||
        !strstr(r.out_text, "1 plans of 1 shapes"))
        fail_msg("%s%s", r.out_text, r.err_text);
    snprintf(first, sizeof first, "%.60s", strstr(r.out_text, "error median"));
    snprintf(tuned, sizeof tuned, "%s",
             written("tuned.csv", "op,m,n,k,nodes,gpus,ms,made\nag_gemm,4096,512,4096,1,2,0.0788,"
                                  "tile=256x128 roles=132+264+0+0 chunk_rows=256 slices=4 "
                                  "pieces=32 pace=360\n"));
    run((char *[]){"sim", "--validate", tuned, NULL});
    assert_non_null(strstr(r.out_text, first));   /* the same plan, said another way */
    for (int warps = 0; warps <= 2; warps += 2) { /* a table that says which CTAs share blocks */
        char now[1024];
        snprintf(
            now, sizeof now,
            "m,n,k,fused_ms,wrong,op,nodes,gpus,exec,intra_comm_warps," PLAN_COLUMNS
            "4096,512,4096,0.0788,0,ag_gemm,1,2,cuda,%d,kn,132,264,0,0,256,128,256,4,32,1,360\n",
            warps);
        snprintf(table, sizeof table, "%s", written("now.csv", now));
        run((char *[]){"sim", "--validate", table, NULL});
        assert_non_null(strstr(warps ? r.out_text : r.err_text, warps ? first : "intra_comm=2w"));
    }
    snprintf(table, sizeof table, "%s",
             written("run.csv", "op,m,n,k,nodes,gpus,exec,ms,wrong,shape," PLAN_COLUMNS
                                "ring_attention,,,,1,2,cuda,0.5,0,\"1,1024,4,2,128 causal\",,124,"
                                "8,0,0,128,128,2048,0,1,0,0\n"));
    run((char *[]){"sim", "--validate", table, "--by", "events", NULL});
    if (r.status || !strstr(r.out_text, "1 plans of 1 shapes"))
        fail_msg("%s%s", r.out_text, r.err_text);
    snprintf(table, sizeof table, "%s",
             written("moe.csv", "tokens,hidden,inner,experts,experts_per_token,fused_ms,wrong,op,"
                                "nodes,gpus,exec," PLAN_COLUMNS
                                "512,7168,2048,32,8,0.3146,0,moe_dispatch_gemm,1,2,cuda,kn,120,12,"
                                "0,0,128,256,24,0,1,0,0\n"));
    run((char *[]){"sim", "--validate", table, NULL});
    if (r.status || !strstr(r.out_text, "1 plans of 1 shapes"))
        fail_msg("%s%s", r.out_text, r.err_text);
    /* a launch of a graph begins before the one before has left, and what peers store in C is not
     * delivered there */
    double said_of[3];
    static const char *const how[] = {"false,1", "false,12", "true,1"};
    for (int i = 0; i < 3; i++) {
        char text[512];
        snprintf(text, sizeof text,
                 "op,m,n,k,nodes,gpus,ms,made,c_in_heap,burst,command\n"
                 "gemm_ar,2048,8192,4096,1,2,0.01,tile=256x256 roles=132+132+0+0 "
                 "chunk_rows=1024,%s,bench\n",
                 how[i]);
        snprintf(table, sizeof table, "%s", written("how.csv", text));
        run((char *[]){"sim", "--validate", table, NULL});
        said_of[i] = said(r.out_text, "%, mean "); /* of 10 us, per cent */
    }
    assert_true(said_of[1] < said_of[0] - 20 && said_of[1] > said_of[0] - 50);
    assert_true(said_of[2] < said_of[0] - 100);
    /* e4m3 is multiplied in little more than half of bf16's time */
    static const char *const dtypes[] = {"bf16", "fp8"};
    for (int i = 0; i < 2; i++) {
        char text[512];
        snprintf(text, sizeof text,
                 "op,m,n,k,nodes,gpus,ms,made,b_layout,dtype\n"
                 "ag_gemm,8192,8192,8192,1,2,0.01,tile=256x256,nk,%s\n",
                 dtypes[i]);
        snprintf(table, sizeof table, "%s", written("dtype.csv", text));
        run((char *[]){"sim", "--validate", table, NULL});
        said_of[i] = said(r.out_text, "%, mean ") / 100 + 1; /* of 10 us */
    }
    assert_true(said_of[1] < .75 * said_of[0] && said_of[1] > .5 * said_of[0]);
    /* ... and tables of tune say it */
    snprintf(table, sizeof table, "%s", written("tuned.csv", ""));
    run((char *[]){"tune",       "ag_gemm",  "--exec",      "sim",       "--cluster",
                   "1x2",        "--shape",  "512,512,512", "--dtype",   "fp8",
                   "--b-layout", "nk",       "--space",     "pace=none", "--rounds",
                   "1",          "--verify", "--csv",       table,       NULL});
    run((char *[]){"sim", "--validate", table, NULL});
    assert_non_null(strstr(r.out_text, "512,512,512 fp8 "));
    snprintf(table, sizeof table, "%s", written("old.csv", "m,n,k,fused_ms,wrong\n1,2,3,4,0\n"));
    refused((char *[]){"sim", "--validate", table, NULL}, "no column 'op'");
}

/* What the line of `sim --validate` says of all plans: the mean error, per cent. */
static double mean_error(const char *table, const char *machine)
{
    run((char *[]){"sim", "--validate", (char *)(uintptr_t)table, "--machine",
                   (char *)(uintptr_t)machine, NULL});
    if (r.status)
        fail_msg("%s", r.err_text);
    const char *all = strstr(r.out_text, "\nall "), *mean = all ? strstr(all, "mean ") : NULL;
    assert_non_null(mean);
    return strtod(mean + 5, NULL);
}

/* GPUs do not rest where attention takes turns with another's attention. */
CASE(turns_of_attention_are_hot)
{
    char table[2][1024];
    for (int bench = 0; bench < 2; bench++) {
        char text[512];
        snprintf(text, sizeof text,
                 "op,shape,nodes,gpus,ms,made,command\n"
                 "ring_attention,\"4,24576,16,16,128\",1,2,16.3,pieces=32 roles=132+264+0+0 "
                 "pace=387,%s\n",
                 bench ? "bench" : "tune");
        snprintf(table[bench], sizeof table[bench], "%s",
                 written(bench ? "bench_attention.csv" : "tune_attention.csv", text));
    }
    double hot = mean_error(table[0], "8xH200-cx7");
    assert_true(hot < 4 && mean_error(table[1], "8xH200-cx7") == hot);
}

CASE(calibrate_writes_a_machine)
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
CASE(calibrate_measures)
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

/* What a 2xH200 host's GPUs measured within 9 s makes a machine that is right about other shapes
 * and about `bench`, whose turns rest: 33 shapes within 5 % in the mean. What such short
 * measurements do not say, watts and joules, stays. */
CASE(calibrate_is_right_about_others)
{
    char program[1024], output[1024], text[2048];
    char *here = realpath("tests/golden/calibrate_2xH200", NULL);
    assert_non_null(here);
    snprintf(output, sizeof output, "%s/measured.machine", folder);
    snprintf(text, sizeof text,
             "#!/bin/sh\nwhile [ \"$1\" != --csv ]; do shift; done\n"
             "cp '%s'/\"${2##*/}\" \"$2\"\n",
             here);
    snprintf(program, sizeof program, "%s", written("measured", text));
    assert_int_equal(chmod(program, 0755), 0);
    run((char *[]){"calibrate", "--exec", "cuda", "--gpus", "2", "--program", program, "--output",
                   output, NULL});
    if (r.status)
        fail_msg("%s", r.err_text);
    double bench = mean_error("tests/golden/measured_2xH200_bench.csv", output),
           held_out = mean_error("tests/golden/measured_2xH200_held_out.csv", output);
    if (bench > 4.5 || held_out > 8)
        fail_msg("mean errors: %.1f %% of bench, %.1f of what was held out", bench, held_out);
    run((char *[]){"calibrate", "--print", "--machine", output, NULL});
    assert_non_null(strstr(r.out_text, "\njoule_link = 361.3 pJ\n"));
    free(here);
}

/* The same of a machine that is simulated: what its file says differently is found by measuring it.
 */
CASE(calibrate_finds_a_machine)
{
    static const struct {
        const char *line;
        const char *name;
        double value, near;
    } differs[] = {{"nvlink_out = 250 GB/s", "\nnvlink_out = ", 250, 0.05},
                   {"tile.256x256.stage = 800 ns", "\ntile.256x256.stage = ", 800, 0.07},
                   {"settle = 4.5 us", "\nsettle = ", 4500, 0.3}};
    char of[1024], output[1024], text[512] = "";
    for (int i = 0; i < 3; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s\n", differs[i].line);
    snprintf(of, sizeof of, "%s", written("of.machine", text));
    snprintf(output, sizeof output, "%s/again.machine", folder);
    run((char *[]){"calibrate", "--exec", "sim", "--of", of, "--gpus", "4", "--output", output,
                   NULL});
    if (r.status)
        fail_msg("%s", r.err_text);
    run((char *[]){"calibrate", "--print", "--machine", output, NULL});
    for (int i = 0; i < 3; i++) {
        const char *at = strstr(r.out_text, differs[i].name);
        assert_non_null(at);
        double found = strtod(at + strlen(differs[i].name), NULL);
        if (found < differs[i].value * (1 - differs[i].near) ||
            found > differs[i].value * (1 + differs[i].near))
            fail_msg("%s was found as %g", differs[i].line, found);
    }
    /* what FP8 takes, too, if it is asked to */
    snprintf(of, sizeof of, "%s",
             written("fp8.machine", "stage_fp8 = 1.1\nstage_fp8_sums = 1.9\n"));
    run((char *[]){"calibrate", "--exec", "sim", "--of", of, "--fp8", "--output", output, NULL});
    if (r.status)
        fail_msg("%s", r.err_text);
    run((char *[]){"calibrate", "--print", "--machine", output, NULL});
    const char *tiles = strstr(r.out_text, "\nstage_fp8 = "),
               *sums = strstr(r.out_text, "\nstage_fp8_sums = ");
    assert_true(tiles && sums);
    if (fabs(strtod(tiles + 13, NULL) / 1.1 - 1) > 0.05 ||
        fabs(strtod(sums + 18, NULL) / 1.9 - 1) > 0.1)
        fail_msg("%s", r.out_text);
    refused((char *[]){"calibrate", "--fp8", "--from", "table", NULL}, "--fp8 is for --exec");
    refused((char *[]){"calibrate", "--exec", "sim", NULL}, "--of");
    refused((char *[]){"calibrate", "--exec", "cuda", "--of", of, NULL}, "--exec sim");
    refused((char *[]){"calibrate", "--exec", "sim", "--of", "/nowhere", NULL}, "/nowhere");
}

/* Measurements end when their time is up, whatever they do, and all that they started with them;
 * what there is by then is fitted to where it is enough. */
CASE(calibrate_ends_in_time)
{
    char program[1024], text[2048], output[1024];
    char *here = realpath("tests/golden/measured_2xH200.csv", NULL);
    assert_non_null(here);
    snprintf(output, sizeof output, "%s/part.machine", folder);
    for (int enough = 0; enough < 2; enough++) {
        snprintf(text, sizeof text,
                 "#!/bin/sh\ntrap '' TERM\necho x >> '%s/jobs%d'\n"
                 "[ $(wc -l < '%s/jobs%d') -gt %d ] && exec sleep 600\n"
                 "while [ \"$1\" != --csv ]; do shift; done\nhead -40 '%s' > \"$2\"\n",
                 folder, enough, folder, enough, enough ? 5 : 2, here);
        snprintf(program, sizeof program, "%s", written(enough ? "late" : "later", text));
        assert_int_equal(chmod(program, 0755), 0);
        double began = test_seconds();
        run((char *[]){"calibrate", "--exec", "cuda", "--program", program, "--budget", "3",
                       "--rounds", "1", "--output", output, NULL});
        if (test_seconds() - began > 60)
            fail_msg("it took %.0f s", test_seconds() - began);
        if (enough && (r.status || !strstr(r.err_text, "no time was left for 2 of")))
            fail_msg("status %d: %s", r.status, r.err_text);
        if (!enough && (r.status != 3 || !strstr(r.err_text, "its time was up")))
            fail_msg("status %d: %s", r.status, r.err_text);
    }
    free(here);
    run((char *[]){"calibrate", "--exec", "cuda", "--program", "/nowhere/mkernel", "--output",
                   output, NULL});
    assert_int_equal(r.status, 3);
    assert_non_null(strstr(r.err_text, "could not be started: there is no such program"));
}

FIXTURE(folder_make, folder_remove)
