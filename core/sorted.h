/* Numbers in their order, and the middle of them. */
#pragma once

#include <stdint.h>
#include <stdlib.h>

static inline int mk_order_numbers(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* ... of int64_t, or of structures that begin with one. */
static inline int mk_order_times(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
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
