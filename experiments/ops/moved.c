/* Is what an operator that only moves rows ended with right? Bit by bit, from inputs made anew. */
#include "experiments/job/op.h"
#include "core/cta/half.h"
#include "core/base/scoped.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* An element as a sentence says it: codes and bytes as what they are. */
static double moved_number(const struct mk_problem *q, const uint8_t *at)
{
    uint16_t v;
    if (op_factor_bytes(q) == 1)
        return *at;
    memcpy(&v, at, sizeof v);
    return mk_half_to_float(plan_element(q), v);
}

int run_check_moved(const struct run_data *d, const struct run_checked *it)
{
    const struct mk_problem *q = &d->job->problem;
    const uint64_t rows = q->m / mk_world(&q->topo), each = op_factor_bytes(q),
                   row_bytes = q->k * each;
    uint64_t made = UINT64_MAX;
    MK_FREED uint8_t *a = malloc(rows * row_bytes);
    if (!a)
        return -ENOMEM;
    for (uint64_t row = 0; row < d->bytes[1] / row_bytes; row++) {
        uint64_t from = op_of(q->op)->moves(q, row);
        const uint8_t *c = (const uint8_t *)it->arguments[1] + row * row_bytes,
                      *wanted = a + from % rows * row_bytes;
        if (from / rows != made)
            run_data_input(d, 0, (uint32_t)(from / rows), it->launch, 0, rows * row_bytes / 2,
                           (uint16_t *)(void *)a);
        made = from / rows;
        for (uint64_t i = 0; i < q->k; i++)
            check_add(it->result, row, i, moved_number(q, c + i * each),
                      moved_number(q, wanted + i * each),
                      memcmp(c + i * each, wanted + i * each, each) ? INFINITY : 0);
    }
    return 0;
}
