/* A file of results in memory: its points, each with its jobs and their times. */
#pragma once

#include "experiments/results/results_file.h"
#include "experiments/results/statistics.h"

struct result_setting {
    char *name, *value;
};

/* A job. Its times are those of its slowest rank: that with the largest median. */
struct result_job {
    uint32_t repeat, slowest, ranks;
    char verdict[12];
    char *sentence;
    struct stat_job times; /* sorted */
    double *ms;            /* the memory of `times` */
    double *of_rank;       /* [ranks], medians */
    uint32_t worst_number; /* the launch that took longest, and how long */
    double worst;
};

/* Numbers of a result; NaN where it does not have them. */
struct result_figures {
    double flop, nvlink_bytes, network_bytes, ideal_ms;
    uint32_t nodes, gpus;
    char op[32], exec[16], shape[80], fabric[80];
};

/* A result that somebody else has published. */
struct result_published {
    char *who;
    double flops; /* of a rank, per second */
};

struct result_point {
    int64_t id;
    char *key, *label; /* label: the settings that are not the same in all points */
    struct result_setting *settings;
    uint32_t setting_count;
    struct result_job *jobs;
    uint32_t job_count, good; /* good: jobs with times */
    struct stat_job *timed;   /* [good] */
    struct stat_interval ms;
    double p50, p95, p99;                            /* over all launches */
    uint32_t launches, outliers;                     /* beyond stat_outlier_bound */
    uint32_t worst_repeat, worst_rank, worst_number; /* the longest of them */
    double worst;
    double ideal_share, exposed_share; /* of its trace; NaN: it has none */
    struct result_figures figures;
    struct result_published *published;
    uint32_t published_count;
};

struct results {
    struct result_point *points;
    uint32_t count;
    char *varied[40]; /* the names of settings that are not the same in all points */
    uint32_t varied_count;
    char title[256], question[512], machine[512];
};

/* Loads points that match `only` ("op=ag_gemm;nodes=1:2"; NULL: all). 0, or -errno with a
 * sentence; then there is nothing to free. */
int results_load(struct results *r, const char *path, const char *only, char *error, size_t size);
void results_free(struct results *r);

/* What a label says of a setting that varies: "roles=a", or its value alone. 0: nothing, where it
 * is a shape that the point does not have. */
#define RESULT_LABEL 2048
int result_word(const struct results *r, const struct result_point *p, uint32_t varied,
                char text[RESULT_LABEL]);

/* "default" where a point has no such setting. */
const char *result_value(const struct result_point *p, const char *name);

/* Its dtype, a number of plan_dtypes (core/plan/plan.h). */
int result_dtype(const struct result_point *p);

/* Bytes of an element of that. */
uint32_t result_element(const struct result_point *p);

/* nccl-tests' size (the bytes of the whole tensor), algbw and busbw (GB/s of 1e9 bytes, by the
 * median); NaN if nothing moves. */
double result_size(const struct result_point *p);
double result_algbw(const struct result_point *p);
double result_busbw(const struct result_point *p);

/* Floating-point operations per second of a rank, and ideal time over time; NaN where not known. */
double result_flops(const struct result_point *p);
double result_efficiency(const struct result_point *p);
