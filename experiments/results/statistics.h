/* Statistics of repeated measurements: medians with confidence intervals, and whether two of them
 * differ. Pure: no files, and random numbers from a seed alone.
 *
 * Launches of one job are correlated (the same process, the same pages, the same clocks), so this
 * is a bootstrap of two levels: jobs are drawn first, then launches inside each (Efron and
 * Tibshirani, An Introduction to the Bootstrap, 1993, chapters 8 and 13). With one job only
 * launches can be drawn, and the interval does not cover the variation between jobs. */
#pragma once

#include <stdint.h>

/* The times of one job, sorted. */
struct stat_job {
    const double *ms;
    uint32_t count;
};

/* A median of medians, one a job, and its 95 % interval. */
struct stat_interval {
    double median, low, high;
};

/* By linear interpolation, of sorted values; count at least 1, q from 0 to 1. */
double stat_quantile(const double *sorted, uint32_t count, double q);

/* 0 or -ENOMEM. No jobs, or none with a time: NaN. */
int stat_interval(struct stat_interval *out, const struct stat_job *jobs, uint32_t count,
                  uint64_t seed);

/* The spread of the times of one point: the largest upper quartile of a job over the smallest lower
 * one; 1 if there are none. */
double stat_spread(const struct stat_job *jobs, uint32_t count);
#define STAT_WIDE 2 /* a spread that is worth a warning */

enum stat_verdict { STAT_NO_DIFFERENCE, STAT_FASTER, STAT_SLOWER };

/* What b's time is by a's: 0.96 is 4 % less. A difference is one where the whole interval lies on
 * one side of 1. */
struct stat_difference {
    struct stat_interval ratio;
    enum stat_verdict verdict;
};

/* `error`: the probability that two equal distributions are called different: 0.05 for an interval
 * of 95 %; for N pairs without a false alarm among them 0.05 / N (Bonferroni). */
int stat_compare(struct stat_difference *out, const struct stat_job *a, uint32_t a_count,
                 const struct stat_job *b, uint32_t b_count, double error, uint64_t seed);

/* "faster by 4.1 % +- 0.9" or "no difference seen (-0.4 %, +- 1.2)"; where the interval is
 * uneven by more than a tenth, "slower by 40.0 %, 5.0 to 130.0". Returns text. */
#define STAT_TEXT 80
const char *stat_say(const struct stat_difference *d, char text[STAT_TEXT]);

/* Larger times are outliers: three interquartile ranges above the upper quartile (Tukey,
 * Exploratory Data Analysis, 1977). */
double stat_outlier_bound(const double *sorted, uint32_t count);
