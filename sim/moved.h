/* The explorer's inputs and verdict of an operator that only moves rows, by what its descriptor
 * says of them (struct op_descriptor's `moves`). */
#pragma once

#include "sim/op.h"

/* Struct sim_op's fill and verify. */
void moved_fill(const struct mk_plan *plan, uint64_t seed, uint64_t launch,
                void *const arguments[MK_SPACES - 1]);
int moved_verify(const struct mk_plan *plan, uint64_t seed, uint64_t launch,
                 void *const arguments[MK_SPACES - 1], struct sim_reference *reference, char *text,
                 size_t size);
