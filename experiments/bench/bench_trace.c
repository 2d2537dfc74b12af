/* `mkernel bench trace`: how fast a trace is merged, stored and indexed. */
#include "experiments/bench/bench.h"
#include "experiments/common/launched.h"
#include "experiments/common/options.h"
#include "experiments/common/output_file.h"
#include "tracer/generate.h"
#include "tracer/store.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct bench {
    uint64_t events, nodes, gpus;
    const char *file;
};

static const struct option_spec specs[] = {
    {.name = "events",
     .type = OPTION_NUMBERS,
     .offset = offsetof(struct bench, events),
     .value = "N",
     .help = "at least so many events. Default 2000000",
     .min = 1,
     .max = 100000000},
    {.name = "nodes",
     .type = OPTION_NUMBERS,
     .offset = offsetof(struct bench, nodes),
     .value = "N",
     .help = "Default 2",
     .min = 1,
     .max = 512},
    {.name = "gpus",
     .type = OPTION_NUMBERS,
     .offset = offsetof(struct bench, gpus),
     .value = "G",
     .help = "ranks per node. Default 8",
     .min = 1,
     .max = MK_MAX_LOCAL},
    {.name = "file",
     .type = OPTION_TEXT,
     .offset = offsetof(struct bench, file),
     .value = "FILE",
     .help = "keep the trace here (else it is removed)"},
};

static const struct option_table table = {
    .usage = "bench trace [OPTIONS]",
    .about = "Makes up a trace in memory, then measures how long it takes to merge the ranks' "
             "parts, store "
             "them in SQLite and index them.",
    .specs = specs,
    .count = sizeof specs / sizeof *specs,
    .examples = "  mkernel bench trace --events 2000000\n",
};

static double bench_trace_clock_s(clockid_t id)
{
    struct timespec t;
    clock_gettime(id, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

struct timer {
    double wall, cpu;
};

static struct timer bench_trace_timer_now(void)
{
    return (struct timer){bench_trace_clock_s(CLOCK_MONOTONIC),
                          bench_trace_clock_s(CLOCK_PROCESS_CPUTIME_ID)};
}

static void bench_trace_print_phase(const char *name, struct timer from, struct timer to,
                                    uint64_t events)
{
    printf("%-10s %8.2f s  %8.2f s CPU  %8.0f k events/s\n", name, to.wall - from.wall,
           to.cpu - from.cpu, (double)events / (to.wall - from.wall) / 1e3);
}

static int bench_trace_measure(struct trace_part *parts, const struct generate_config *c,
                               const char *path, char *error, size_t size)
{
    const struct trace_run run = {
        .source = "synthetic", .executor = "sim", .command = "mkernel bench trace"};
    struct trace_data d;
    struct stat st = {0};
    struct timer begin = bench_trace_timer_now();
    int rc = data_merge(&d, parts, c->nodes * c->gpus, &run, error, size);
    if (rc)
        return rc;
    rc = data_join(&d);
    if (!rc)
        rc = data_overlap(&d);
    struct timer merged = bench_trace_timer_now();
    if (rc)
        snprintf(error, size, "out of memory");
    else
        rc = store_write(&d, path, error, size);
    struct timer stored = bench_trace_timer_now();
    if (!rc) {
        stat(path, &st);
        printf("%llu events, %llu messages, %u ranks, %.0f MB stored\n",
               (unsigned long long)d.events, (unsigned long long)d.put_count, d.ranks,
               (double)st.st_size / 1e6);
        bench_trace_print_phase("merge", begin, merged, d.events);
        bench_trace_print_phase("store", merged, stored, d.events);
        bench_trace_print_phase("in all", begin, stored, d.events);
    }
    data_free(&d);
    return rc;
}

int bench_trace(int argc, char **argv)
{
    struct bench b = {.events = 2000000, .nodes = 2, .gpus = 8};
    struct options_found found;
    struct trace_part *parts = NULL;
    char error[512], path[64];
    int bad = options_parse(&table, argc, argv, &b, &found, error, sizeof error);
    if (!bad && !found.help && found.word_count)
        bad = snprintf(error, sizeof error, "%s is one argument too many", found.words[0]);
    if (!bad && !found.help && launched_leaves("bench trace"))
        return STATUS_DONE;
    snprintf(path, sizeof path, "mkernel-bench.%ld.trace", (long)getpid());
    if (!bad && !found.help)
        bad = output_check(b.file ? "--file" : "without --file,", b.file ? b.file : path,
                           OUTPUT_REPLACED, error, sizeof error);
    if (bad) {
        fprintf(stderr, "mkernel bench trace: %s; `mkernel bench trace --help` tells more\n",
                error);
        return STATUS_USAGE;
    }
    if (found.help) {
        options_help(&table, stdout);
        return STATUS_DONE;
    }
    struct generate_config c = {
        .events = b.events, .nodes = (uint32_t)b.nodes, .gpus = (uint32_t)b.gpus, .seed = 1};
    int rc = generate_parts(&parts, &c, error, sizeof error);
    if (!rc) {
        rc = bench_trace_measure(parts, &c, b.file ? b.file : path, error, sizeof error);
        generate_free(parts, &c);
    }
    if (!b.file)
        unlink(path);
    if (rc)
        fprintf(stderr, "mkernel bench trace: %s\n", error);
    return rc ? STATUS_FAILED : STATUS_DONE;
}
