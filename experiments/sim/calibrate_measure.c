/* `mkernel tune` measures plans in turns, checks them and writes tables: it is run on few shapes,
 * chosen so that each part of a machine is what some of them wait for. */
#include "experiments/sim/calibrate_measure.h"
#include "core/base/clock.h"
#include "core/base/sentence.h"
#include "experiments/common/process.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Beside the formula's: intra_comm as warps of every block, or as blocks of its own. */
enum split { NO_MORE, TWO_WARPS, FEW_BLOCKS, MANY_BLOCKS, SPLITS };

enum { ALONE = 1, OF_FP8 = 2 }; /* on one GPU, not on all; where FP8 is asked for, in it */

static const struct job {
    const char *op;
    uint32_t way;
    const char *shapes, *space;
    enum split splits[4]; /* to try besides; NO_MORE ends them */
} jobs[] = {
    /* tiles, of a few and of many waves, short and long: nothing moves */
    {"ag_gemm",
     ALONE,
     "2048,4096,512:4096,4096,2048:8192,8192,1024:4096,4096,8192",
     "tile",
     {NO_MORE}},
    /* what moves, with next to no products: warps at a pace and without, blocks of their own */
    {"ag_gemm", 0, "4096,8,8192:16384,8,2048", "pieces;pace", {FEW_BLOCKS, MANY_BLOCKS}},
    {"gemm_rs", 0, "2048,8192,8:8192,8192,8", "tile;pace", {NO_MORE}},
    {"gemm_ar", 0, "2048,8192,8:8192,8192,8", "tile;pace", {TWO_WARPS, MANY_BLOCKS}},
    /* both */
    {"ag_gemm",
     0,
     "2048,4096,8192:8192,1024,8192:16384,4096,4096",
     "pieces;pace;slices",
     {FEW_BLOCKS}},
    {"gemm_rs", 0, "2048,8192,4096:8192,8192,1024:16384,16384,2048", "tile;pace", {NO_MORE}},
    {"gemm_ar", 0, "2048,8192,4096:8192,8192,1024", "tile;pace", {TWO_WARPS, MANY_BLOCKS}},
    {"ag_gemm", ALONE | OF_FP8, "4096,4096,2048:8192,8192,1024:4096,4096,8192", "tile", {NO_MORE}},
    {"gemm_rs", OF_FP8, "2048,8192,4096:8192,8192,3584", "tile", {NO_MORE}},
};

/* "pieces;pace;roles=compute=124,intra_comm=8:compute=132,intra_comm=2w" */
static void measure_space(const struct job *j, uint32_t sms, char *text, size_t size)
{
    static const uint32_t blocks[SPLITS] = {[FEW_BLOCKS] = 8, [MANY_BLOCKS] = 32};
    snprintf(text, size, "%s", j->space);
    uint32_t even = sms - sms % 2;
    for (int i = 0; j->splits[i] != NO_MORE; i++) {
        uint32_t away = blocks[j->splits[i]];
        if (away + 2 > even)
            continue;
        mk_append(text, size, "%scompute=%u,intra_comm=%u%s", i ? ":" : ";roles=", even - away,
                  away ? away : 2, away ? "" : "w");
    }
}

struct words {
    char *argv[40];
    int count;
};

static void measure_say(struct words *w, const char *option, const char *value)
{
    w->argv[w->count++] = (char *)(uintptr_t)option;
    if (value)
        w->argv[w->count++] = (char *)(uintptr_t)value;
    w->argv[w->count] = NULL;
}

/* 0, or -errno with a sentence; -ETIMEDOUT: it was not through at m->deadline. */
static int measure_job(const struct calibrate_measure *m, const struct job *j, uint64_t deadline,
                       const char *csv, const char *plans, char *error, size_t size)
{
    char ranks[16], cluster[16], space[160];
    struct words w = {.count = 0};
    uint64_t now = mk_now_ns();
    struct process_ended ended;
    measure_say(&w, m->program ? m->program : "mkernel", NULL);
    snprintf(ranks, sizeof ranks, "%u", j->way & ALONE ? 1 : m->gpus);
    snprintf(cluster, sizeof cluster, "1x%u", j->way & ALONE ? 1 : m->gpus);
    measure_space(j, m->sms, space, sizeof space);
    measure_say(&w, "tune", j->op);
    measure_say(&w, "--exec", m->simulated ? "sim" : "cuda");
    if (m->simulated) {
        measure_say(&w, "--machine", m->simulated);
        measure_say(&w, "--cluster", cluster);
    } else {
        measure_say(&w, "--gpus", ranks);
        measure_say(&w, "--iters", "10");
    }
    measure_say(&w, "--shapes", j->shapes);
    if (j->way & OF_FP8) {
        measure_say(&w, "--dtype", "fp8");
        measure_say(&w, "--b-layout", "nk");
    }
    measure_say(&w, "--space", space);
    measure_say(&w, "--rounds", "1");
    measure_say(&w, "--quiet", NULL);
    measure_say(&w, "--tuning", plans);
    measure_say(&w, "--csv", csv);
    fflush(NULL);
    const struct process_how how = {.program = m->program,
                                    .words = w.argv,
                                    .in = -1,
                                    .out = STDOUT_FILENO,
                                    .err = STDERR_FILENO,
                                    .death = SIGTERM}; /* no longer than who waits for it */
    pid_t child = process_start(&how);
    if (child < 0)
        return mk_fail(child, error, size, "`mkernel tune` could not be started: %s",
                       strerror(-child));
    process_wait(&ended, &child, 1, now < deadline ? deadline - now : 0, -1);
    if (!ended.status && !ended.over)
        return 0;
    snprintf(error, size, "the measurement of %s at %s on %s GPU%s %s", j->op, j->shapes, ranks,
             j->way & ALONE ? "" : "s",
             ended.over            ? "was not through when its time was up (--budget)"
             : ended.status == 127 ? "could not be started: there is no such program"
                                   : "failed, as `mkernel tune` says");
    return ended.over ? -ETIMEDOUT : -EIO;
}

/* Tables without which a fit would say nothing: tiles, and of several GPUs what moves. */
static size_t measure_least(const struct calibrate_measure *m)
{
    return m->gpus < 2 ? 1 : 4;
}

static int measure_wants(const struct calibrate_measure *m, const struct job *j)
{
    return (j->way & ALONE || m->gpus > 1) && (!(j->way & OF_FP8) || m->fp8);
}

int calibrate_measure(struct calibrate_measure *m, char *error, size_t size)
{
    char plans[1024];
    size_t used = 0;
    uint64_t deadline = mk_now_ns() + m->budget_ns;
    snprintf(plans, sizeof plans, "%s/plans", m->folder);
    m->left_out = 0;
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
        char csv[1024];
        if (!measure_wants(m, &jobs[i]))
            continue;
        snprintf(csv, sizeof csv, "%s/%zu_%s.csv", m->folder, i, jobs[i].op);
        int result = measure_job(m, &jobs[i], deadline, csv, plans, error, size);
        if (result == -ETIMEDOUT && i >= measure_least(m)) {
            for (; i < sizeof jobs / sizeof *jobs; i++)
                m->left_out += (uint32_t)measure_wants(m, &jobs[i]);
            return 0;
        }
        if (result)
            return result;
        int more = snprintf(m->list + used, sizeof m->list - used, "%s%s", used ? "," : "", csv);
        if (more < 0 || (used += (size_t)more) >= sizeof m->list)
            return mk_fail(-ENAMETOOLONG, error, size, "the folder's name %s is too long",
                           m->folder);
    }
    return 0;
}
