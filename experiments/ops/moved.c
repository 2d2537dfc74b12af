/* Is what an operator that only moves rows ended with right? Bit by bit, from inputs made anew. */
#include "experiments/job/op.h"
#include "core/bf16.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

int run_check_moved(const struct run_data *d, const void *const arguments[RUN_ARGUMENTS],
                    uint64_t launch, const struct check_pace *pace, struct check_result *result)
{
    const struct mk_problem *q = &d->job->problem;
    uint64_t rows = q->m / mk_world(&q->topo), made = UINT64_MAX;
    uint16_t *a = malloc(rows * q->k * 2);
    if (!a)
        return -ENOMEM;
    for (uint64_t row = 0; row < d->bytes[1] / 2 / q->k; row++) {
        uint64_t from = op_of(q->op)->moves(q, row);
        const uint16_t *c = (const uint16_t *)arguments[1] + row * q->k,
                       *wanted = a + from % rows * q->k;
        if (from / rows != made)
            run_data_input(d, 0, (uint32_t)(from / rows), launch, 0, rows * q->k, a);
        made = from / rows;
        for (uint64_t i = 0; i < q->k; i++)
            check_add(result, row, i, mk_bf16_to_float(c[i]), mk_bf16_to_float(wanted[i]),
                      c[i] == wanted[i] ? 0 : INFINITY);
    }
    free(a);
    return 0;
}
