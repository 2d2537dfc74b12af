/* `mkernel tune` measures plans in turns, checks them and writes tables: it is run on few shapes,
 * chosen so that each part of a machine is what some of them wait for. */
#include "experiments/sim/calibrate_measure.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Beside the formula's: intra_comm as warps of every block, or as blocks of its own. */
enum split { NO_MORE, TWO_WARPS, FEW_BLOCKS, MANY_BLOCKS, SPLITS };

static const struct job {
    const char *op;
    int alone; /* 1: on one GPU; 0: on all */
    const char *shapes, *space;
    enum split splits[4]; /* to try besides; NO_MORE ends them */
} jobs[] = {
    /* tiles, of a few and of many waves, short and long: nothing moves */
    {"ag_gemm", 1, "2048,4096,512:4096,4096,2048:8192,8192,1024:4096,4096,8192", "tile", {NO_MORE}},
    /* what moves, with next to no products: warps at a pace and without, blocks of their own */
    {"ag_gemm", 0, "4096,8,8192:16384,8,2048", "pieces:pace", {FEW_BLOCKS, MANY_BLOCKS}},
    {"gemm_rs", 0, "2048,8192,8:8192,8192,8", "tile:pace", {NO_MORE}},
    {"gemm_ar", 0, "2048,8192,8:8192,8192,8", "tile:pace", {TWO_WARPS, MANY_BLOCKS}},
    /* both */
    {"ag_gemm", 0, "2048,4096,8192:8192,1024,8192", "pieces:pace:slices", {FEW_BLOCKS}},
    {"gemm_rs", 0, "2048,8192,4096:8192,8192,1024", "tile:pace", {NO_MORE}},
    {"gemm_ar", 0, "2048,8192,4096:8192,8192,1024", "tile:pace", {TWO_WARPS, MANY_BLOCKS}},
};

/* "pieces:pace:roles=124+8+0+0,100+32+0+0" */
static void measure_space(const struct job *j, uint32_t sms, char *text, size_t size)
{
    static const uint32_t blocks[SPLITS] = {[FEW_BLOCKS] = 8, [MANY_BLOCKS] = 32};
    size_t used = (size_t)snprintf(text, size, "%s", j->space);
    uint32_t even = sms - sms % 2;
    for (int i = 0; j->splits[i] != NO_MORE && used < size; i++) {
        uint32_t away = blocks[j->splits[i]];
        if (away + 2 > even)
            continue;
        used += (size_t)snprintf(text + used, size - used, "%s%u+%u+0+0",
                                 i ? "," : ":roles=", even - away, away ? away : 2 * even);
    }
}

/* 0, or -errno with a sentence. */
static int measure_job(const char *program, const struct job *j, uint32_t gpus, uint32_t sms,
                       const char *csv, const char *plans, char *error, size_t size)
{
    char ranks[16], space[160];
    snprintf(ranks, sizeof ranks, "%u", j->alone ? 1 : gpus);
    measure_space(j, sms, space, sizeof space);
    char *const argv[] = {"mkernel",
                          "tune",
                          (char *)(uintptr_t)j->op,
                          "--exec",
                          "cuda",
                          "--gpus",
                          ranks,
                          "--shapes",
                          (char *)(uintptr_t)j->shapes,
                          "--space",
                          space,
                          "--rounds",
                          "1",
                          "--iters",
                          "10",
                          "--quiet",
                          "--tuning",
                          (char *)(uintptr_t)plans,
                          "--csv",
                          (char *)(uintptr_t)csv,
                          NULL};
    fflush(NULL);
    pid_t child = fork();
    if (!child) {
        execv(program ? program : "/proc/self/exe", argv);
        fprintf(stderr, "%s: %s\n", program ? program : "mkernel", strerror(errno));
        _exit(127);
    }
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) < 0) {
        snprintf(error, size, "`mkernel tune` could not be started: %s", strerror(errno));
        return -errno;
    }
    if (WIFEXITED(status) && !WEXITSTATUS(status))
        return 0;
    snprintf(error, size, "the measurement of %s at %s on %s GPU%s failed, as `mkernel tune` says",
             j->op, j->shapes, ranks, j->alone ? "" : "s");
    return -EIO;
}

int calibrate_measure(const char *program, uint32_t gpus, uint32_t sms, const char *folder,
                      char *list, size_t size, char *error, size_t error_size)
{
    char plans[1024];
    size_t used = 0;
    snprintf(plans, sizeof plans, "%s/plans", folder);
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
        char csv[1024];
        if (!jobs[i].alone && gpus < 2)
            continue;
        snprintf(csv, sizeof csv, "%s/%zu_%s.csv", folder, i, jobs[i].op);
        int result = measure_job(program, &jobs[i], gpus, sms, csv, plans, error, error_size);
        if (result)
            return result;
        int more = snprintf(list + used, size - used, "%s%s", used ? "," : "", csv);
        if (more < 0 || (used += (size_t)more) >= size) {
            snprintf(error, error_size, "the folder's name %s is too long", folder);
            return -ENAMETOOLONG;
        }
    }
    return 0;
}
