/* The explorer's inputs and verification for the MoE feed-forward layer. Tokens and experts are
 * small integers and weights powers of two, gates so large that silu(g) is g, so that every sum is
 * exact in whatever order it is made, and what is rounded to bf16 on the way (activation; in fast
 * mode rows and nodes' sums) is rounded alike in the reference: bits are compared. Tokens are
 * routed as in sim/ops/exact_moe.h. */
#pragma once

#include "sim/op.h"

void exact_moe_ffn_fill(const struct sim_launch *l);
int exact_moe_ffn_verify(const struct sim_launch *l);
