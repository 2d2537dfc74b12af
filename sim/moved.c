#include "sim/moved.h"
#include "sim/fill.h"

#include <stdlib.h>
#include <string.h>

/* Of 16 bits, of a row. */
static uint64_t moved_words(const struct mk_problem *q)
{
    return q->k * op_factor_bytes(q) / 2;
}

void moved_fill(const struct sim_launch *l)
{
    const struct mk_problem *q = &l->plan->problem;
    sim_fill(l->arguments[0], q->m / mk_world(&q->topo) * moved_words(q), l->seed, q->topo.rank,
             l->launch, 0);
}

/* C against every rank's A, made anew, row by row. */
int moved_verify(const struct sim_launch *l)
{
    const struct mk_problem *q = &l->plan->problem;
    uint64_t rows = q->m / mk_world(&q->topo), words = moved_words(q), bytes[MK_SPACES - 1],
             made = UINT64_MAX;
    uint16_t *a = malloc(rows * words * sizeof *a);
    int wrong = !a && sim_no_memory(l);
    op_extents(q, bytes);
    for (uint64_t row = 0; !wrong && row < bytes[1] / 2 / words; row++) {
        uint64_t from = op_of(q->op)->moves(q, row);
        if (from / rows != made)
            sim_fill(a, rows * words, l->seed, (uint32_t)(from / rows), l->launch, 0);
        made = from / rows;
        wrong = memcmp((const uint16_t *)l->arguments[1] + row * words, a + from % rows * words,
                       words * sizeof *a) &&
                sim_wrong(l, "row %lu of C is not row %lu of rank %lu's A", row, from % rows, made);
    }
    free(a);
    return wrong;
}
