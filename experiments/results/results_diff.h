/* Compares two sets of points. */
#pragma once

#include "experiments/results/results_points.h"

#include <stdio.h>

/* A pair: the same settings, but for those that make the difference. b NULL: there is none. */
struct result_pair {
    const struct result_point *a, *b;
    const char
        *several; /* a setting in which several partners differ; none is taken. NULL: not so */
    struct stat_difference difference;
};

/* Whether both have the same settings, except for `without` and for settings that the executor of
 * one of them does not take (results_takes.h). */
int result_same(const struct result_point *a, const struct result_point *b,
                const char *const *without, uint32_t count);

/* The simulation of a measured point: the point with a time that is the same but for the executor.
 * NULL: there is none. */
const struct result_point *result_simulation(const struct results *r,
                                             const struct result_point *of);

/* Pairs of a's points with b's; `without` (of `count` names) are the settings that may differ. The
 * caller frees *out. `error`: as stat_compare, of all pairs together with `together`, else of each.
 * 0 or -ENOMEM. */
int result_pair_up(struct result_pair **out, const struct results *a, const struct results *b,
                   const char *const *without, uint32_t count, int together);

/* Prints the table of pairs, then how many are faster, slower, and not different; if there is no
 * pair, the settings in which the two nearest points differ. `without`: as in result_pair_up. */
void result_print_pairs(FILE *out, const struct results *a, const struct results *b,
                        const struct result_pair *pairs, const char *const *without,
                        uint32_t count);
int result_write_pairs(const char *path, const struct results *a, const struct result_pair *pairs);
