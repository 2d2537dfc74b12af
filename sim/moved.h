/* The explorer's inputs and verdict of an operator that only moves rows, by what its descriptor
 * says of them (struct op_descriptor's `moves`). */
#pragma once

#include "sim/op.h"

/* Struct sim_op's fill and verify. */
void moved_fill(const struct sim_launch *l);
int moved_verify(const struct sim_launch *l);
