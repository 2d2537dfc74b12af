#include "experiments/job/op.h"
#include "core/base/scoped.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

/* Against sums in float64 of inputs made anew, some rows at a time. The bound is that of a product
 * (experiments/common/check.h): the result's rounding to bf16, 2^-8 of it (check_unit), and twice
 * the error of W additions in fp32 in any order. */
static int reduce_scatter_check(const struct run_data *d, const struct run_checked *it)
{
    enum { ELEMENTS = 1 << 20 };
    const struct mk_problem *q = &d->job->problem;
    const uint32_t world = mk_world(&q->topo), element = plan_element(q);
    const uint64_t count = d->bytes[1] / 2, some = count < ELEMENTS ? count : ELEMENTS;
    const uint16_t *c = it->arguments[1];
    MK_FREED uint16_t *a = malloc(some * sizeof *a);
    MK_FREED double *sum = malloc(some * 2 * sizeof *sum);
    double *magnitude = sum + some;
    for (uint64_t first = 0, n; a && sum && first < count; first += n) {
        n = count - first < some ? count - first : some;
        for (uint64_t i = 0; i < n; i++)
            sum[i] = magnitude[i] = 0;
        for (uint32_t rank = 0; rank < world; rank++) {
            run_data_input(d, 0, rank, it->launch, d->job->identity.rank * count + first, n, a);
            for (uint64_t i = 0; i < n; i++) {
                sum[i] += (double)mk_half_to_float(element, a[i]);
                magnitude[i] += fabs((double)mk_half_to_float(element, a[i]));
            }
        }
        for (uint64_t i = 0; i < n; i++) {
            double value = (double)mk_half_to_float(element, c[first + i]),
                   bound = check_unit(element) * fabs(sum[i]) + check_step(element) +
                           world * 0x1p-23 * magnitude[i];
            check_within(it->result, (first + i) / q->k, (first + i) % q->k, value, sum[i], bound);
        }
    }
    it->result->frobenius = CHECK_FROBENIUS * check_share(element);
    return a && sum ? 0 : -ENOMEM;
}

const struct run_op run_op_reduce_scatter = {.check = reduce_scatter_check};
