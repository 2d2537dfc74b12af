/* Sums over ranks that every order of addition and every rounding to bf16 leaves exact: small
 * integers, no partial sum above 256. So the explorer compares bits, in fast and in deterministic
 * mode alike. */
#ifndef SIM_EXACT_H
#define SIM_EXACT_H

#include "sim/op.h"

/* A [M, K] and B [K, N] ([N, K] where transposed) of this rank: a function of seed, rank and
 * launch. */
void exact_fill(const struct mk_plan *plan, uint64_t seed, uint64_t launch,
                void *const arguments[MK_SPACES - 1]);

/* Rows [first, first + rows) of the sum over ranks, in `c`. 0, or 1 with a sentence. */
int exact_verify(const struct mk_plan *plan, uint64_t seed, uint64_t launch, uint64_t first,
                 uint64_t rows, const uint16_t *c, struct sim_reference *reference, char *text,
                 size_t size);

#endif
