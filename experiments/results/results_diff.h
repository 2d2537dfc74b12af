/* Two sets of points beside each other. */
#ifndef MK_RESULTS_DIFF_H
#define MK_RESULTS_DIFF_H

#include "experiments/results/results_points.h"

#include <stdio.h>

/* A pair: the same settings, but for those that make the difference. b NULL: there is none. */
struct result_pair {
    const struct result_point *a, *b;
    struct stat_difference difference;
};

/* Pairs of a's points with b's; `without` (of `count` names) are the settings that may differ. The
 * caller frees *out. `error`: as stat_compare, of all pairs together with `together`, else of each.
 * 0 or -ENOMEM. */
int result_pair_up(struct result_pair **out, const struct results *a, const struct results *b,
                   const char *const *without, uint32_t count, int together);

/* The table of pairs, and in the end how many are faster, slower, and not different. */
void result_print_pairs(FILE *out, const struct results *a, const struct results *b,
                        const struct result_pair *pairs);
int result_write_pairs(const char *path, const struct results *a, const struct result_pair *pairs);

#endif
