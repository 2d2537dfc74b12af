#include "sim/moved.h"
#include "sim/fill.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of 16 bits, of a row. */
static uint64_t moved_words(const struct mk_problem *q)
{
    return q->k * op_factor_bytes(q) / 2;
}

void moved_fill(const struct mk_plan *plan, uint64_t seed, uint64_t launch,
                void *const arguments[MK_SPACES - 1])
{
    const struct mk_problem *q = &plan->problem;
    sim_fill(arguments[0], q->m / mk_world(&q->topo) * moved_words(q), seed, q->topo.rank, launch,
             0);
}

/* C against every rank's A, made anew, row by row. */
int moved_verify(const struct mk_plan *plan, uint64_t seed, uint64_t launch,
                 void *const arguments[MK_SPACES - 1], struct sim_reference *reference, char *text,
                 size_t size)
{
    const struct mk_problem *q = &plan->problem;
    uint64_t rows = q->m / mk_world(&q->topo), words = moved_words(q), bytes[MK_SPACES - 1],
             made = UINT64_MAX;
    uint16_t *a = malloc(rows * words * sizeof *a);
    int wrong = !a;
    if (!a)
        snprintf(text, size, "no memory to check launch %lu", launch);
    op_extents(q, bytes);
    for (uint64_t row = 0; !wrong && row < bytes[1] / 2 / words; row++) {
        uint64_t from = op_of(q->op)->moves(q, row);
        if (from / rows != made)
            sim_fill(a, rows * words, seed, (uint32_t)(from / rows), launch, 0);
        made = from / rows;
        wrong = memcmp((const uint16_t *)arguments[1] + row * words, a + from % rows * words,
                       words * sizeof *a) != 0;
        if (wrong)
            snprintf(text, size, "launch %lu, rank %u: row %lu of C is not row %lu of rank %lu's A",
                     launch, q->topo.rank, row, from % rows, made);
    }
    free(a);
    return wrong;
}
