/* Inside `mkernel tune OP`: which plans are tried, how they are measured, which one is kept.
 *
 *   tune.c          one rank: rounds over the space, the last comparison, what is kept
 *   tune_space.c    the options and values that are tried, and a plan's neighbours among them
 *   tune_measure.c  a communicator with many plans, measured in turns; on the host
 *   tune_gpu.c      the same on a GPU
 *   tune_sim.c      --exec sim: plans are simulated, and there is one process
 *   tune_report.c   the table and the CSV */
#pragma once

#include "core/plan/tuning.h"
#include "experiments/common/csv_table.h"
#include "experiments/job/run.h"

#define TUNE_PLANS 512u  /* of a shape, at most */
#define TUNE_WITHIN 1.05 /* of the best found: what a default has to be */
#define TUNE_KEEPS 1.02  /* a default that is within this of the best stays: less is noise */
#define TUNE_VALUES 32u  /* of an option */

/* What --space says. */
struct tune_space {
    struct tune_option {
        int tried;
        uint32_t count;                            /* 0: values that suit the operator */
        char words[TUNE_VALUES][TUNING_WORD_TEXT]; /* "tile=256,128" */
    } options[PLAN_KNOBS];
};

/* A plan that is tried. */
struct tune_plan {
    struct mk_tuning asked; /* 0: the formula chooses */
    struct mk_tuning made;  /* with what it chose */
    double ms, min, max;    /* of a launch, of the slowest rank, as last measured; 0: not yet */
    double low, high;       /* half of its launches took times between these */
    uint64_t launches;      /* they are of */
    double ratio;           /* ms over that of the formula's plan in the same turns */
    int wrong;              /* a result was: it has no speed */
    int last;               /* was in the last comparison */
};

/* One shape on one rank; all ranks go through the same. */
struct tune {
    const struct run_job *job;
    struct tune_space space;
    struct tuning_table table; /* as it was before the first shape */
    struct run_job shape; /* the job as if it were of this shape alone; its plan is the formula's */
    struct tune_plan *plans;  /* [TUNE_PLANS]; 0 is the formula's */
    uint32_t count, standing; /* standing: the default so far */
    uint32_t unfit;           /* neighbours that do not fit the shape */
    char unfit_why[256];
    char standing_words[768];        /* where it comes from; empty: the formula */
    const struct tune_plan *running; /* while it is measured */
    uint64_t launches;               /* so far */
    struct tune_gpu *gpu;
    uint16_t port;        /* of the next communicator; 0: the job's own */
    int listen_fd;        /* rank 0: its socket */
    struct csv_table csv; /* of --csv, of the shapes so far */
    char *error;
    size_t size;
};

/* What one rank found of a plan. */
struct tune_result {
    double ms, min, max, low, high; /* low, high: quartiles */
    uint32_t launches;
    int32_t wrong;
};

/* Whether `fast` is faster than `slow` beyond what launches of one plan differ: their medians'
 * notches, 1.57 times the distance of the quartiles by the root of how many launches (McGill,
 * Tukey, Larsen: Variations of Box Plots, 1978), do not overlap. On a machine that is shared with
 * other work less cannot be told from chance. */
int tune_is_apart(const struct tune_plan *fast, const struct tune_plan *slow);

/* `text`: NAME=V,V:NAME, NULL for all options. 0, or -EINVAL with a sentence. */
int tune_space_parse(struct tune_space *s, enum mk_op op, const char *text, char *error,
                     size_t size);

/* Adds plan `center` with one option changed, in all ways of the space that fit the shape and are
 * not there yet. */
void tune_space_extend(struct tune *t, uint32_t center);

/* Adds the plan of `asked` where it fits and is not there yet. Returns its number, or -EINVAL. */
int tune_add(struct tune *t, const struct mk_tuning *asked);

/* What is measured of a plan: all its options are given, so that nobody who builds it fills in
 * defaults of his own. (A plan that asks for nothing is the closed formula's here, and the model's
 * in a communicator.) */
struct mk_problem tune_problem(const struct tune *t, uint32_t plan);

/* Measures plan 0 and `count` others, `iters` launches each, in turns with each other, in as few
 * communicators as their heaps allow. Collective. 0, or -errno with a sentence in t->error. */
int tune_measure(struct tune *t, const uint32_t *which, uint32_t count, uint64_t iters);

/* Of plans of one shape, the one whose arguments are the largest: a MoE's result has room for rows
 * that no tile divides. */
const struct mk_plan *tune_largest(struct mk_plan *const *plans, uint32_t count);

/* The same by simulation, on several cores; a plan that has a time keeps it. */
int tune_sim_measure(struct tune *t, const uint32_t *which, uint32_t count);

/* `mkernel tune OP --exec sim`: the whole of it. Returns an exit status; the sentence is on
 * stderr. */
int tune_sim(int argc, char **argv, const struct option_spec *specs, size_t count);

/* Measures these in an open communicator that has room; results[count] of this rank. tune_gpu_close
 * ends what it holds on to. */
int tune_gpu_measure(struct tune *t, struct mk_comm *comm, const uint32_t *which, uint32_t count,
                     uint64_t iters, struct tune_result *results) __attribute__((weak));
void tune_gpu_close(struct tune *t) __attribute__((weak));

/* Shape by shape; rank 0 reports and keeps. Returns an exit status and its sentence. */
int tune_rank(const struct run_job *job, char *sentence, size_t sentence_size);

/* Prints the table of a shape, `best` among the plans of the last comparison; adds to the CSV of
 * --csv. 0 or -errno. */
int tune_report(struct tune *t, uint32_t best, int first);
