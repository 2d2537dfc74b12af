/* `mkernel bench collective`: the communication alone of the operators that have one, by size, in
 * the columns of nccl-tests: the same kernels on products that are 8 deep, or 8 wide, so that next
 * to nothing is computed. It is a sweep of its own making (sweep.h). */
#include "experiments/common/command_says.h"
#include "experiments/common/commands.h"
#include "core/base/sentence.h"
#include "experiments/common/gpu.h"
#include "experiments/common/options.h"
#include "experiments/job/op.h"
#include "experiments/results/results_points.h"
#include "experiments/results/results_table.h"
#include "experiments/sweep/sweep.h"
#include "experiments/common/ending.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ROW 512u /* elements of a row: 1 KB */

struct arguments {
    uint64_t min, max, factor, nodes, gpus, iters, warmup, repeats, rails;
    int exec, fabric, dtype, quiet;
    const char *nic, *out, *csv;
};

static const char *const execs[] = {"host", "cuda"};
static const char *const fabrics[] = {"verbs", "efa"};

/* as nccl-tests has them */
static const char *const brief[] = {"-b", "--min",   "-e", "--max",    "-f", "--factor",
                                    "-n", "--iters", "-w", "--warmup", NULL};

#define AT(field) .offset = offsetof(struct arguments, field)
static const struct option_spec specs[] = {
    {"min", OPTION_BYTES, AT(min), "BYTES", "smallest size (-b). Default 64KiB", 1024,
     (uint64_t)1 << 40},
    {"max", OPTION_BYTES, AT(max), "BYTES",
     "largest size (-e). Default 4MiB on the host, else 256MiB", 1024, (uint64_t)1 << 40},
    {"factor", OPTION_NUMBERS, AT(factor), "F", "from a size to the next (-f). Default 2", 2, 1024},
    {"iters", OPTION_NUMBERS, AT(iters), "N", "launches of each size and job (-n). Default 20", 1,
     1000000},
    {"warmup", OPTION_NUMBERS, AT(warmup), "N", "launches before them (-w). Default 5", 0, 1000000},
    {"repeats", OPTION_NUMBERS, AT(repeats), "N", "jobs of each size. Default 1", 1, 1000},
    {"nodes", OPTION_NUMBERS, AT(nodes), "N", "nodes. Default 1", 1, MK_MAX_RANKS},
    {"gpus", OPTION_NUMBERS, AT(gpus), "G",
     "ranks per node. Default: every Hopper GPU here, or 2 on the host", 1, MK_MAX_LOCAL},
    {"exec", OPTION_WORD, AT(exec), "host|cuda", "Default: cuda where a Hopper GPU is found",
     .words = execs, .word_count = 2},
    {"dtype", OPTION_WORD, AT(dtype), "bf16|fp16|fp8|bytes",
     "what operators without a product move; fp8 and bytes: none but those. Default bf16",
     .words = plan_dtypes, .word_count = MK_PLAN_DTYPES},
    {"fabric", OPTION_WORD, AT(fabric), "verbs|efa", "between nodes. Default verbs",
     .words = fabrics, .word_count = 2},
    {"nic", OPTION_TEXT, AT(nic), "soft|NAME,...", "NICs that may be used, as `mkernel run`",
     .max = 255},
    {"rails", OPTION_NUMBERS, AT(rails), "N", "NICs of each rank", 1, 64},
    {"out", OPTION_TEXT, AT(out), "FILE", "keep the results, for `mkernel results`", .max = 4000},
    {"csv", OPTION_TEXT, AT(csv), "FILE", "also write a CSV table", .max = 4095},
    {"quiet", OPTION_FLAG, AT(quiet), NULL, "no table"},
};

static const struct option_table table = {
    "bench collective [OP...] [OPTIONS]",
    "The communication alone of an operator, by size, in nccl-tests' columns: size is the whole "
    "tensor that moves, algbw that by\n"
    "the time, busbw what crosses a rank's links by the time. Without OP: those without a "
    "product, and ag_gemm, gemm_rs and gemm_ar, where they run.",
    specs, sizeof specs / sizeof *specs,
    "  mkernel bench collective --exec host --gpus 4 -b 64KB -e 4MB\n"
    "  mkernel bench collective gemm_rs gemm_ar --exec cuda -b 1MB -e 1GB -f 4\n"};

#define collective_usage(...) command_refuse("bench collective", __VA_ARGS__)
#define collective_fail(...) command_say("bench collective", STATUS_FAILED, __VA_ARGS__)

/* The shape whose tensor that moves has at least so many bytes: rows that all ranks share. */
static void sweep_collective_shape(enum mk_op op, int dtype, uint64_t bytes, uint64_t ranks,
                                   char text[80])
{
    uint64_t rows = mk_round_up(mk_ceil_div(bytes, 2 * ROW), ranks);
    struct mk_problem q = {.op = op, .topo = {.nodes = 1, .gpus = (uint32_t)ranks}, .k = ROW};
    plan_set_dtype(&q, dtype);
    q.m = op_unit(&q, 0);
    uint64_t tensor = run_op_tensor(&q);
    if (tensor)
        snprintf(text, 80, "%lu,%u", q.m * mk_ceil_div(bytes, tensor), ROW);
    else if (run_op_of(op)->collective == RUN_ALL_GATHER)
        snprintf(text, 80, "%lu,8,%u", rows, ROW);
    else
        snprintf(text, 80, "%lu,%u,8", rows, ROW);
}

/* Bytes and codes are of what only moves. */
static int sweep_collective_moves(enum mk_op op, int dtype)
{
    struct mk_problem q = {.op = op};
    plan_set_dtype(&q, dtype);
    return !dtype || (q.fp16 ? op_has_fp16(op) : op_has_bytes(op));
}

/* Of a product it is what remains where that is thin; attention and MoE have no such shape. */
static int sweep_collective_has(enum mk_op op)
{
    return !strcmp(op_of(op)->shape->option, "shape") &&
           (run_op_of(op)->collective != RUN_NO_COLLECTIVE || !op_of(op)->describe_tile);
}

static int sweep_collective_set(struct sweep *s, const char *name, const char *format,
                                unsigned long long value)
{
    char text[32];
    struct sweep_axis *a = sweep_add_axis(&s->set, name);
    snprintf(text, sizeof text, format, value);
    const char *kept = sweep_keep(s, text, strlen(text));
    return a && kept ? sweep_add_value(s, a, kept) : -ENOMEM;
}

static int sweep_collective_add(struct sweep *s, enum mk_op op, const struct arguments *a)
{
    struct sweep_block *b = sweep_add_block(s, &s->vary);
    struct sweep_axis *ops = b ? sweep_add_axis(b, "op") : NULL;
    struct sweep_axis *shapes = b ? sweep_add_axis(b, "shape") : NULL;
    int rc = shapes ? sweep_add_value(s, ops, plan_op_name(op)) : -ENOMEM;
    for (uint64_t bytes = a->min; bytes <= a->max && !rc; bytes *= a->factor) {
        char text[80];
        sweep_collective_shape(op, a->dtype, bytes, a->nodes * a->gpus, text);
        const char *kept = sweep_keep(s, text, strlen(text));
        rc = kept ? sweep_add_value(s, shapes, kept) : -ENOMEM;
    }
    return rc;
}

static int sweep_collective_plan(struct sweep *s, const struct arguments *a,
                                 const struct options_found *found, char *error, size_t size)
{
    int rc = sweep_collective_set(s, "nodes", "%llu", a->nodes);
    rc = rc ? rc : sweep_collective_set(s, "gpus", "%llu", a->gpus);
    rc = rc ? rc : sweep_collective_set(s, "iters", "%llu", a->iters);
    rc = rc ? rc : sweep_collective_set(s, "warmup", "%llu", a->warmup);
    rc = rc ? rc : sweep_collective_set(s, "exec", a->exec ? "cuda" : "host", 0);
    if (a->dtype)
        rc = rc ? rc : sweep_collective_set(s, "dtype", plan_dtypes[a->dtype], 0);
    if (a->rails)
        rc = rc ? rc : sweep_collective_set(s, "rails", "%llu", a->rails);
    if (a->fabric)
        rc = rc ? rc : sweep_collective_set(s, "fabric", "efa", 0);
    if (a->nic && !rc) {
        struct sweep_axis *nic = sweep_add_axis(&s->set, "nic");
        rc = sweep_add_value(s, nic, a->nic);
    }
    snprintf(error, size, "no memory for the sizes");
    for (int op = 0; op < MK_OPS && !rc; op++) {
        int wanted = !found->word_count && sweep_collective_has(op) &&
                     sweep_collective_moves(op, a->dtype) && (!a->exec || op_on_gpu(op));
        for (int i = 0; i < found->word_count; i++)
            wanted |= !strcmp(found->words[i], plan_op_name(op));
        if (wanted)
            rc = sweep_collective_add(s, op, a);
    }
    s->repeats = a->repeats;
    return rc ? rc : sweep_make_points(s, error, size);
}

/* nccl-tests' columns. */
static void sweep_collective_print(const struct results *r, int host, FILE *out)
{
    double sum = 0, widest = 0;
    uint32_t count = 0, wide = 0;
    fprintf(out,
            "# %s\n#%13s %13s %6s  %-14s %10s %8s %8s  %s\n#%13s %13s %6s  %-14s %10s %8s %8s\n",
            r->machine, "size", "count", "type", "operator", "time", "algbw", "busbw",
            "95 % of time", "(B)", "(elements)", "", "", "(us)", "(GB/s)", "(GB/s)");
    for (uint32_t i = 0; i < r->count; i++) {
        const struct result_point *p = &r->points[i];
        if (!p->good) {
            fprintf(out, "# %s: %s\n", p->label,
                    p->job_count ? p->jobs[0].sentence : "not measured");
            continue;
        }
        double spread = stat_spread(p->timed, p->good);
        fprintf(out, "%14.0f %13.0f %6s  %-14s %10.2f %8.3f %8.3f  %.1f .. %.1f%s\n",
                result_size(p), result_size(p) / result_element(p), plan_dtypes[result_dtype(p)],
                p->figures.op, p->ms.median * 1e3, result_algbw(p), result_busbw(p),
                p->ms.low * 1e3, p->ms.high * 1e3, spread > STAT_WIDE ? " *" : "");
        wide += spread > STAT_WIDE;
        widest = spread > widest ? spread : widest;
        sum += result_busbw(p);
        count++;
    }
    if (count)
        fprintf(out, "# Avg bus bandwidth    : %g\n", sum / count);
    if (wide)
        fprintf(out,
                "# * %u of %u sizes: the quartiles of the times lie apart by up to %.1f times, so "
                "a median says little.%s\n",
                wide, count, widest,
                host ? " On the host a rank that waits gives its core away, and gets it back "
                       "after a time slice of whatever else runs there: have a core free for each "
                       "rank"
                     : "");
}

static int sweep_collective_measure(struct sweep *s, const struct arguments *a, const char *out,
                                    int *stopped)
{
    char error[2400];
    struct results r;
    const struct sweep_how how = {.out = out,
                                  .command = "mkernel bench collective",
                                  .quiet = 1,
                                  .silent = 1,
                                  .stopped = stopped};
    if (ending_watch())
        return STATUS_FAILED;
    int rc = sweep_ask(s, error, sizeof error);
    if (rc == -EINVAL)
        return collective_usage("%s", error);
    if (rc)
        return collective_fail("%s", error);
    int status = sweep_run(s, &how);
    if (*stopped || status == STATUS_USAGE)
        return status;
    if (results_load(&r, out, NULL, error, sizeof error))
        return collective_fail("%s", error);
    if (!a->quiet)
        sweep_collective_print(&r, !a->exec, stdout);
    rc = a->csv ? results_table_csv(&r, a->csv) : 0;
    results_free(&r);
    if (rc)
        return collective_fail("%s could not be written: %s", a->csv, strerror(-rc));
    return command_say("bench collective", status, "%u sizes measured%s", s->point_count,
                       status ? ", and not all went well" : "");
}

static int sweep_collective_check(struct arguments *a, const struct options_found *found,
                                  char *error, size_t size)
{
    static struct gpu_list gpus;
    for (int i = 0; i < found->word_count; i++) {
        int op = plan_op_by_name(found->words[i]);
        char list[OP_LIST_TEXT];
        if (op < 0 || !sweep_collective_has(op))
            return mk_fail(-EINVAL, error, size,
                           "%s has no communication of its own to measure; %s do", found->words[i],
                           op_list(list, sizeof list, sweep_collective_has, ", ", " and "));
        if (!sweep_collective_moves(op, a->dtype))
            return mk_fail(-EINVAL, error, size, "--dtype %s and %s: here it is for %s",
                           plan_dtypes[a->dtype], found->words[i],
                           op_list(list, sizeof list, op_has_bytes, ", ", " and "));
    }
    gpu_probe(&gpus);
    if (a->exec < 0)
        a->exec = gpu_hoppers(&gpus) > 0;
    if (!a->gpus)
        a->gpus = a->exec && gpu_hoppers(&gpus) >= a->nodes ? gpu_hoppers(&gpus) / a->nodes : 2;
    if (!a->max)
        a->max = a->exec ? 256 << 20 : 4 << 20;
    if (a->min > a->max)
        return mk_fail(-EINVAL, error, size, "--min %lu is more than --max %lu", a->min, a->max);
    if (a->nodes * a->gpus < 2)
        return mk_fail(-EINVAL, error, size, "one rank has nobody to communicate with");
    return 0;
}

int bench_collective(int argc, char **argv)
{
    struct arguments a = {.min = 64 << 10,
                          .factor = 2,
                          .nodes = 1,
                          .iters = 20,
                          .warmup = 5,
                          .repeats = 1,
                          .exec = -1};
    struct options_found found;
    char error[2400], folder[] = "/tmp/mkernel-collective-XXXXXX", path[64] = "";
    options_expand(argc, argv, brief);
    int ends = command_options("bench collective", &table, 8, argc, argv, &a, &found);
    if (ends >= 0)
        return ends;
    static struct sweep s;
    int stopped = 0, status;
    sweep_begin(&s);
    if (sweep_collective_check(&a, &found, error, sizeof error) ||
        sweep_collective_plan(&s, &a, &found, error, sizeof error)) {
        status = collective_usage("%s", error);
    } else if (!a.out && !mkdtemp(folder)) {
        status = collective_fail("no folder in /tmp: %s", strerror(errno));
    } else {
        snprintf(path, sizeof path, "%s/r.db", folder);
        status = sweep_collective_measure(&s, &a, a.out ? a.out : path, &stopped);
        if (!a.out) {
            unlink(path);
            rmdir(folder);
        }
    }
    sweep_end(&s);
    ending_die(stopped);
    return status;
}
