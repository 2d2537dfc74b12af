/* The explorer's inputs and verification for the operators that move tokens' rows to experts and
 * back: routed as exact_moe.h says. A row that goes out is told apart from every other, byte by
 * byte; of rows that come back every sum is exact in bf16, so that all are compared bit by bit. */
#pragma once

#include "sim/op.h"

void exact_moe_rows_fill_out(const struct sim_launch *l);
int exact_moe_rows_verify_out(const struct sim_launch *l);
void exact_moe_rows_fill_back(const struct sim_launch *l);
int exact_moe_rows_verify_back(const struct sim_launch *l);
