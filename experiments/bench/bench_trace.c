/* `mkernel bench trace`: how fast a trace is merged, stored and indexed. */
#include "experiments/bench/bench.h"
#include "experiments/common/launched.h"
#include "experiments/common/command_says.h"
#include "experiments/common/options.h"
#include "experiments/common/output_file.h"
#include "core/base/clock.h"
#include "core/comm/comm.h"
#include "core/ops/op.h"
#include "sim/timed/timed.h"
#include "tracer/trace.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

struct bench {
    uint64_t events, nodes, gpus;
    const char *file;
    uint64_t recorded; /* events */
    uint32_t longest;  /* of one track */
    const char *path;
    char *error;
    size_t size;
};

/* A table reads by rows. */
/* clang-format off */
#define AT(field) .offset = offsetof(struct bench, field)
static const struct option_spec specs[] = {
    {"events", OPTION_NUMBERS, AT(events), "N", "at least so many events. Default 2000000", 1,
     100000000},
    {"nodes", OPTION_NUMBERS, AT(nodes), "N", "Default 2", 1, 512},
    {"gpus", OPTION_NUMBERS, AT(gpus), "G", "ranks per node. Default 8", 1, MK_MAX_LOCAL},
    {"file", OPTION_TEXT, AT(file), "FILE", "keep the trace here (else it is removed)"},
};
/* clang-format on */

static const struct option_table table = {
    "bench trace [OPTIONS]",
    "Simulates launches (`mkernel sim`), then measures how long it takes to merge the ranks' parts "
    "of the trace, store them in SQLite and index them.",
    specs, sizeof specs / sizeof *specs, "  mkernel bench trace --events 2000000\n"};

/* How many events a launch recorded, and how many of them on one track. */
static int bench_trace_count(void *context, struct mk_comm *const *comms, uint32_t count)
{
    struct bench *b = context;
    b->recorded = 0;
    for (uint32_t r = 0; r < count; r++)
        for (uint32_t t = 0; t < comms[r]->track_count; t++) {
            uint32_t events = comms[r]->tracks[t].count;
            b->recorded += events;
            b->longest = events > b->longest ? events : b->longest;
        }
    return 0;
}

static int bench_trace_measure(void *context, struct mk_comm *const *comms, uint32_t count)
{
    struct bench *b = context;
    struct stat st;
    const struct trace_run run = {
        .source = "simulated", .executor = "sim", .command = "mkernel bench trace"};
    bench_trace_count(b, comms, count);
    uint64_t begin = mk_now_ns(), used = mk_clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    int rc = trace_collect_local(comms, count, &run, b->path, b->error, b->size);
    double seconds = (double)(mk_now_ns() - begin) / 1e9;
    used = mk_clock_ns(CLOCK_PROCESS_CPUTIME_ID) - used;
    if (rc || stat(b->path, &st))
        return rc;
    printf("%lu events, %u ranks, %.0f MB stored\n%.2f s, %.2f s CPU, %.0f k events/s\n",
           b->recorded, count, (double)st.st_size / 1e6, seconds, (double)used / 1e9,
           (double)b->recorded / seconds / 1e3);
    return 0;
}

/* The registry's first operator, at the shape that a run on GPUs has, is as good as any. One launch
 * tells how many there must be. */
static int bench_trace_run(struct bench *b)
{
    const struct mk_machine *machine = machine_default();
    struct mk_problem q = {.exec = MK_EXEC_CUDA,
                           .sms = (uint32_t)machine->sms,
                           .topo = {(uint32_t)b->nodes, (uint32_t)b->gpus, 0}};
    uint64_t numbers[OP_DIMENSIONS];
    struct mk_plan plan;
    struct timed_result result;
    op_of(q.op)->choose_shape(OP_SIZE_GPU, mk_world(&q.topo), numbers);
    op_set_numbers(&q, numbers);
    if (plan_build(&plan, &q, 0, 0, b->error, b->size))
        return -EINVAL;
    struct timed_config config = {.plan = &plan,
                                  .machine = machine,
                                  .launches = 1,
                                  .trace_events = 1 << 16,
                                  .finished = bench_trace_count,
                                  .context = b};
    int rc = timed_run(&config, &result);
    if (!rc) {
        config.launches = (uint32_t)mk_ceil_div(b->events, b->recorded);
        config.trace_events = b->longest * config.launches;
        config.finished = bench_trace_measure;
        rc = timed_run(&config, &result);
    }
    if (rc && *result.sentence)
        snprintf(b->error, b->size, "%s", result.sentence);
    return rc;
}

int bench_trace(int argc, char **argv)
{
    char error[512], path[64];
    struct bench b = {
        .events = 2000000, .nodes = 2, .gpus = 8, .error = error, .size = sizeof error};
    struct options_found found;
    int ends = command_options("bench trace", &table, 0, argc, argv, &b, &found);
    if (ends >= 0)
        return ends;
    if (launched_leaves("bench trace"))
        return STATUS_DONE;
    snprintf(path, sizeof path, "mkernel-bench.%ld.trace", (long)getpid());
    b.path = b.file ? b.file : path;
    if (output_check(b.file ? "--file" : "without --file,", b.path, OUTPUT_REPLACED, error,
                     sizeof error))
        return command_refuse("bench trace", "%s", error);
    int rc = bench_trace_run(&b);
    if (!b.file)
        unlink(path);
    return rc ? command_say("bench trace", STATUS_FAILED, "%s", error) : STATUS_DONE;
}
