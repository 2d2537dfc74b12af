/* Numbers in their order, and the middle of them. */
#pragma once

#include <stdint.h>
#include <stdlib.h>

/* Which of two comes first, for qsort: below, above or 0. Several keys:
 * MK_ORDER(...) ?: MK_ORDER(...). */
#define MK_ORDER(a, b) (((a) > (b)) - ((a) < (b)))

/* Of a sorted array of `count` the first index of which `before`, an expression of `i`, does not
 * hold; count: it holds of all. */
#define MK_BISECT(i, count, before)                                                                \
    ({                                                                                             \
        uint64_t low_ = 0, high_ = (count);                                                        \
        while (low_ < high_) {                                                                     \
            uint64_t i = low_ + (high_ - low_) / 2;                                                \
            if (before)                                                                            \
                low_ = i + 1;                                                                      \
            else                                                                                   \
                high_ = i;                                                                         \
        }                                                                                          \
        low_;                                                                                      \
    })

static inline int mk_order_numbers(const void *a, const void *b)
{
    return MK_ORDER(*(const double *)a, *(const double *)b);
}

/* ... of int64_t, or of structures that begin with one. */
static inline int mk_order_times(const void *a, const void *b)
{
    return MK_ORDER(*(const int64_t *)a, *(const int64_t *)b);
}

static inline void mk_sort(double *values, size_t count)
{
    qsort(values, count, sizeof *values, mk_order_numbers);
}

/* Of at least one, sorted. */
static inline double mk_median(const double *sorted, size_t count)
{
    return (sorted[(count - 1) / 2] + sorted[count / 2]) / 2;
}
