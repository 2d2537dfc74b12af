/* `mkernel bench OP`: on GPUs a GEMM operator beside what others run (bench_gpu.h); else a run
 * whose every launch is timed by itself. */
#include "experiments/bench/bench_gpu.h"
#include "experiments/bench/bench.h"
#include "experiments/job/op.h"
#include "experiments/job/run_options.h"
#include "experiments/run/run_rank.h"
#include "core/ops/op.h"
#include "core/base/sentence.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const peers[] = {"blas", "torch"}; /* of enum run_peer */

/* A table reads by rows. */
/* clang-format off */
#define AT(field) .offset = offsetof(struct run_options, field)
static const struct option_spec specs[] = {
    {"vs", OPTION_WORD, AT(vs), "blas|torch",
     "blas (host, GEMM operators): also times OpenBLAS on the same product; torch (cuda): also "
     "times PyTorch's fused operator (of fp8 by a scale for each row or one, whichever is faster) "
     "or context parallelism, if python3 has it. A cuda bench always times "
     "cuBLAS (attention: cuDNN; MoE: PyTorch's grouped products) and NCCL",
     .words = peers, .word_count = 2, .group = LAUNCHES},
    {"traced", OPTION_FLAG, AT(traced), NULL,
     "turns tracing on to show what it costs; stores nothing (cuda)"},
    {"why", OPTION_FLAG, AT(why), NULL,
     "traces a few launches after the timed ones and splits the median one's time into the parts "
     "of `mkernel trace why`", .group = RESULTS},
    {"csv", OPTION_TEXT, AT(csv), "FILE",
     "writes a CSV row per shape: times, plan, network, seed, date, versions", .max = 4095},
    {"append", OPTION_FLAG, AT(append), NULL,
     "adds the rows to an existing CSV of the same columns"},
    {"c-elsewhere", OPTION_FLAG, AT(c_elsewhere), NULL,
     "C is outside the symmetric heap: peers send tiles, which are then copied to C. Default: "
     "inside, where peers store to it (cuda, one node). For gemm_ar", .group = PROBLEM},
    {"shapes", OPTION_TEXT, AT(shapes), "M,N,K:M,N,K",
     "measures several shapes (ring_attention: B,S,H,G,D:...; MoE: T,H,I,E,K:...) in one job, one "
     "after the other", .max = 1023},
};
/* clang-format on */

static const struct option_table table = {
    "bench OP [OPTIONS]   (or: bench fabric|ring|trace|collective [OPTIONS])",
    "Times an op: a barrier before every launch, new inputs each time, every result checked, "
    "median of each rank, then the\n"
    "slowest rank. A wrong result prints no speed.",
    specs, sizeof specs / sizeof *specs,
    "  mkernel bench ag_gemm --exec host --nodes 2 --gpus 2 --vs blas\n"
    "  mkernel bench ag_gemm --exec cuda --shape 8192,1024,8192 --csv bench.csv\n"
    "  mkernel bench fabric --help\n"};

static int bench_op_compares(const struct run_job *job)
{
    return job->problem.exec == MK_EXEC_CUDA && run_op_is_compared(job->problem.op) &&
           bench_gpu_rank && bench_gpu_check_append;
}

/* Whether the table that is there is one of the same columns. */
static int bench_op_refuse(const struct run_job *job, char *error, size_t size)
{
    const struct run_options *o = &job->options;
    if (o->c_elsewhere && !(bench_op_compares(job) && op_of(job->problem.op)->c_in_heap))
        return mk_fail(
            -EINVAL, error, size,
            "--c-elsewhere: %s does not look whether C lies in the heap, or runs on no GPU",
            plan_op_name(job->problem.op));
    if (o->why && run_op_tensor(&job->problem))
        return mk_fail(-EINVAL, error, size,
                       "--why splits the time of CTAs that compute tiles, and %s has none",
                       plan_op_name(job->problem.op));
    if (job->shape_count > 1 && o->json && !bench_op_compares(job))
        return mk_fail(-EINVAL, error, size,
                       "--json has one shape where no others are compared; --csv has a row each");
    if (!o->append || job->identity.rank)
        return 0;
    if (!o->csv)
        return mk_fail(-EINVAL, error, size,
                       "--append adds to the file of --csv, which is not given");
    return bench_op_compares(job) ? bench_gpu_check_append(job, error, size)
                                  : run_check_append(job, error, size);
}

static int bench_op_rank(const struct run_job *job, char *sentence, size_t size)
{
    return bench_op_compares(job) ? bench_gpu_rank(job, sentence, size)
                                  : run_rank(job, sentence, size);
}

/* The file with PyTorch's times, from before the ranks begin until they have ended; empty: none. */
static char torch_file[32];

static void bench_op_before(const struct run_job *job)
{
    const struct mk_problem *q = &job->problem;
    enum run_product product = run_op_of(q->op)->product;
    int fd = -1;
    strcpy(torch_file, "/tmp/mkernel-torch-XXXXXX");
    if (!bench_op_compares(job) || !bench_torch ||
        (job->options.vs != RUN_VS_TORCH && product == RUN_GEMM) ||
        (fd = mkostemp(torch_file, O_CLOEXEC)) < 0) {
        torch_file[0] = '\0';
        return;
    }
    close(fd);
    char why[300];
    if (bench_torch(job, torch_file, why, sizeof why))
        fprintf(stderr, "mkernel bench: PyTorch's %s did not run here (%s); %s empty\n",
                product == RUN_GEMM        ? "fused operator"
                : product == RUN_ATTENTION ? "attention behind NCCL"
                                           : "grouped product",
                why,
                product == RUN_GEMM ? "its column stays"
                                    : "its columns, and what is measured against them, stay");
    setenv("MKERNEL_BENCH_TORCH", torch_file, 1);
}

static void bench_op_after(void)
{
    if (*torch_file)
        unlink(torch_file);
}

int bench_op(int argc, char **argv)
{
    static const struct run_subcommand bench = {.mode = RUN_BENCH,
                                                .name = "bench",
                                                .table = &table,
                                                .takes_launches = 1,
                                                .iters = 50,
                                                .warmup = 5,
                                                .check = 1,
                                                .refuse = bench_op_refuse,
                                                .before = bench_op_before,
                                                .after = bench_op_after,
                                                .rank = bench_op_rank};
    return run_start(argc, argv, &bench);
}
