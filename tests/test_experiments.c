/* The experiments that ship run, here at toy size: every point of theirs is one that some machine
 * can measure, and what docs/EXPERIMENTS.md does with their results can be done. */
#define OWN_MAIN
#include "experiments/results/results_file.h"
#include "tests/helpers/command.h"
#include "tests/helpers/folder.h"
#include "tests/helpers/results_ask.h"

static struct command_run *mkernel(int status, const char *line)
{
    static struct command_run r;
    command_start(&r, line, NULL);
    command_finish(&r, 100);
    if (r.status != status)
        print_message("mkernel %s: status %d: %s\n", line, r.status, r.err_text);
    assert_int_equal(r.status, status);
    return &r;
}

/* Runs an experiment at toy size, into a file of its own. */
static void toy(const char *name, const char *vary)
{
    char line[1024];
    snprintf(database, sizeof database, "%s/%s.db", folder, name);
    snprintf(line, sizeof line,
             "sweep docs/experiments/%s.yaml --vary %s --repeats 1 --out %s --quiet", name, vary,
             database);
    mkernel(0, line);
}

static struct command_run *results(const char *words)
{
    char line[512];
    snprintf(line, sizeof line, "results %s %s", database, words);
    return mkernel(0, line);
}

CASE(mkernel_paper)
{
    toy("mkernel-paper",
        "shape=512,128,128;moe=32,64,32,16,2;attention=1,512,4,2,64;nodes=2;gpus=2");
    assert_int_equal(ask("SELECT count(DISTINCT job) FROM sample"), 5);
    assert_int_equal(ask("SELECT count(*) FROM job WHERE verdict <> 'right'"), 0);
    assert_int_equal(ask("SELECT count(*) FROM published"), 0); /* of other shapes */
    if (command_draws())
        assert_non_null(strstr(results("plot speed --data")->out_text, "ring_attention"));
    /* at its own size each published figure has its point */
    struct command_run *r = mkernel(0, "sweep docs/experiments/mkernel-paper.yaml --list");
    assert_non_null(strstr(r->err_text, "15 points"));
}

CASE(published_figures_stand_beside_their_points)
{
    snprintf(database, sizeof database, "%s/published.db", folder);
    char path[64], line[256];
    snprintf(path, sizeof path, "%s/p.yaml", folder);
    FILE *f = fopen(path, "w");
    fputs("vary: {op: [ag_gemm, gemm_rs], exec: sim, shape: '128,64,64'}\nrepeats: 1\n"
          "published:\n"
          "  - {op: ag_gemm, who: one, tflops: 2}\n"
          "  - {op: ag_gemm, shape: '128,64,64', who: another, tflops: 3.5}\n"
          "  - {op: gemm_ar, who: none, tflops: 1}\n",
          f);
    fclose(f);
    snprintf(line, sizeof line, "sweep %s --out %s --quiet", path, database);
    mkernel(0, line);
    assert_int_equal(ask("SELECT count(*) FROM published"), 2);
    struct command_run *r = results("table");
    assert_non_null(strstr(r->out_text, "ag_gemm: 3.5 TFLOP/s by another; here "));
    if (command_draws())
        assert_non_null(strstr(results("plot speed --data")->out_text, "[\"another\", "));
}

CASE(role_split)
{
    toy("role-split", "shape=2048,256,256;gpus=2");
    /* one node has its own splits; those with inter_send are not tried there */
    assert_int_equal(ask("SELECT count(*) FROM job WHERE verdict <> 'right'"), 0);
    if (command_draws()) {
        assert_non_null(strstr(results("plot time --x nodes --data")->out_text,
                               "\"label\": \"roles=compute=122,intra_comm=8,inter_send=2\""));
        assert_non_null(strstr(results("plot heat --x nodes --y roles --data")->out_text,
                               "\"columns\": [\"1\", \"2\", "));
    }
    assert_non_null(
        strstr(results("diff roles=default roles=compute=100,intra_comm=24,inter_send=8")->out_text,
               "geometric mean"));
}

CASE(one_host)
{
    toy("one-host",
        "exec=host;shape=128,64,64;attention=1,64,2,2,64;iters=2;warmup=1;cuda.vs=default");
    /* three operators on one node and on two, and attention with and without causal */
    assert_int_equal(ask("SELECT count(*) FROM job"), 8);
    assert_int_equal(ask("SELECT count(*) FROM job WHERE verdict <> 'right'"), 0);
    assert_int_equal(ask("SELECT count(*) FROM setting WHERE name = 'env.SOFTNIC'"), 3);
}

CASE(chunks)
{
    toy("chunks", "shape=256,64,64;iters=2;chunk-rows=64:128");
    assert_int_equal(ask("SELECT count(*) FROM job"), 8);
    assert_int_equal(ask("SELECT count(*) FROM job WHERE verdict <> 'right'"), 0);
    assert_non_null(
        strstr(results("diff chunk-rows=64 chunk-rows=128")->out_text, "geometric mean"));
}

int main(void)
{
    if (access("docs/experiments", R_OK)) {
        fprintf(stderr, "test_experiments: not at the tree's root\n");
        return 1;
    }
    return cmocka_run_group_tests(test_cases, folder_make, folder_remove);
}
