/* A sweep whose points are spread over tasks of Slurm's: each measures its share into a part of its
 * own, and merges it. */
#include "experiments/sweep/sweep.h"
#include "experiments/common/options.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TASKS 1000000u

/* The value of a variable that has to be there. */
static int64_t spread_number(const char *name, const char *who, char *error, size_t size)
{
    const char *value = getenv(name);
    uint64_t n = 0;
    if (*error)
        return 0;
    if (!value || !*value)
        snprintf(error, size, "--spread %s: %s is not set", who, name);
    else if (options_whole(value, 0, UINT32_MAX, &n))
        snprintf(error, size, "--spread: %s=%.40s in the environment is no number", name, value);
    return (int64_t)n;
}

static void spread_read_array(struct sweep_spread *out, char *error, size_t size)
{
    static const char who[] = "array (a task of `sbatch --array=0-7`)";
    int64_t id = spread_number("SLURM_ARRAY_TASK_ID", who, error, size);
    int64_t count = spread_number("SLURM_ARRAY_TASK_COUNT", who, error, size);
    int64_t first = spread_number("SLURM_ARRAY_TASK_MIN", who, error, size);
    int64_t last = spread_number("SLURM_ARRAY_TASK_MAX", who, error, size);
    int64_t job = spread_number("SLURM_ARRAY_JOB_ID", who, error, size);
    int64_t step = count > 1 ? (last - first) / (count - 1) : 1;
    if (*error)
        return;
    if (count < 1 || count > TASKS || last - first != step * (count - 1) || step < 1 ||
        id < first || id > last || (id - first) % step) {
        snprintf(error, size,
                 "--spread array: task %ld of %ld tasks from %ld to %ld is none of an array "
                 "with even steps; sbatch --array=0-7 (or 0-14:2) makes one",
                 id, count, first, last);
        return;
    }
    out->index = (uint32_t)((id - first) / step);
    out->count = (uint32_t)count;
    snprintf(out->part, sizeof out->part, "%ld-%ld", job, id);
}

static void spread_read_step(struct sweep_spread *out, char *error, size_t size)
{
    static const char who[] = "srun (a task of `srun -n 8`)";
    const char *nodes = getenv("SLURM_STEP_TASKS_PER_NODE");
    int64_t id = spread_number("SLURM_PROCID", who, error, size);
    int64_t count = spread_number("SLURM_STEP_NUM_TASKS", who, error, size);
    int64_t job = spread_number("SLURM_JOB_ID", who, error, size);
    int64_t step = spread_number("SLURM_STEP_ID", who, error, size);
    if (*error)
        return;
    if (count < 1 || count > TASKS || id >= count) {
        snprintf(error, size, "--spread srun: Slurm says that this is task %ld of %ld", id, count);
        return;
    }
    out->index = (uint32_t)id;
    out->count = (uint32_t)count;
    out->crowded = count > 1 && (!nodes || strtoul(nodes, NULL, 10) > 1 || strchr(nodes, ','));
    snprintf(out->part, sizeof out->part, "%ld.%ld-%ld", job, step, id);
    /* its jobs are whole ones: no process of them is a rank of srun's */
    unsetenv("SLURM_STEP_NUM_TASKS");
    unsetenv("SLURM_PROCID");
    unsetenv("PMI_RANK");
}

int sweep_spread_read(struct sweep_spread *out, enum sweep_over over, char *error, size_t size)
{
    memset(out, 0, sizeof *out);
    error[0] = '\0';
    if (over == SWEEP_OVER_ARRAY)
        spread_read_array(out, error, size);
    else
        spread_read_step(out, error, size);
    return *error ? -EINVAL : 0;
}

int sweep_spread_take(struct sweep *s, const struct sweep_spread *spread)
{
    size_t all = (size_t)s->point_count * s->repeats;
    struct sweep_job *jobs = sweep_take(s, all * sizeof *jobs);
    char *mine = sweep_take(s, s->point_count + 1);
    uint32_t kept = 0;
    if (!jobs || !mine)
        return -ENOMEM;
    sweep_order(s, jobs);
    for (uint32_t i = 0; i < s->point_count; i++)
        mine[jobs[i].point] = i % spread->count == spread->index;
    for (uint32_t i = 0; i < s->point_count; i++)
        if (mine[i])
            s->points[kept++] = s->points[i];
    s->point_count = kept;
    return 0;
}
