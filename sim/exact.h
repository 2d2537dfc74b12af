/* Sums over ranks that every order of addition and every rounding to bf16 or fp16 leaves exact:
 * small integers, no partial sum above 256. So the explorer compares bits, in fast and in
 * deterministic mode alike. */
#pragma once

#include "sim/op.h"

/* A [M, K] and B [K, N] ([N, K] where transposed) of this rank: a function of seed, rank and
 * launch. */
void exact_fill(const struct sim_launch *l);

/* Of an epilogue with one: the bias, small integers, a function of seed, rank, launch and
 * column. */
void exact_fill_bias(const struct mk_problem *q, const struct sim_launch *l);

/* 1: `value` is right for an element of column `col`. *right: its product, in a row of them all; on
 * return what the element should be. After an activation its neighbours in bf16 are right, too: a
 * GPU's e^x is not a CPU's to the bit. */
int exact_is_right(const struct mk_problem *q, const struct sim_launch *l, uint64_t col,
                   uint16_t value, float *right);

/* 1, with a sentence: element [row, col] of `what` is wrong. */
int exact_is_wrong(const struct sim_launch *l, const char *what, uint64_t row, uint64_t col,
                   uint16_t value, float right);

/* C's rows [first, first + rows) of the sum over ranks, and what an epilogue of rows makes of them.
 * 0, or 1 with a sentence. */
int exact_verify(const struct sim_launch *l, uint64_t first, uint64_t rows);
