/* Two sets of points beside each other. */
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

/* Whether the two have the same settings but for `without`. What the executor of one does not take
 * (results_takes.h) sets them not apart. */
int result_same(const struct result_point *a, const struct result_point *b,
                const char *const *without, uint32_t count);

/* Pairs of a's points with b's; `without` (of `count` names) are the settings that may differ. The
 * caller frees *out. `error`: as stat_compare, of all pairs together with `together`, else of each.
 * 0 or -ENOMEM. */
int result_pair_up(struct result_pair **out, const struct results *a, const struct results *b,
                   const char *const *without, uint32_t count, int together);

/* The table of pairs, and in the end how many are faster, slower, and not different; where there is
 * no pair, what sets the nearest two points apart. `without`: as result_pair_up. */
void result_print_pairs(FILE *out, const struct results *a, const struct results *b,
                        const struct result_pair *pairs, const char *const *without,
                        uint32_t count);
int result_write_pairs(const char *path, const struct results *a, const struct result_pair *pairs);
