/* What sizing a MoE plan (moe_size.c) asks of its choices (moe_choose.c). */
#pragma once

#include "core/ops/moe.h"

uint32_t moe_between(uint32_t least, uint32_t number, uint32_t most);

/* intra_comm CTAs that make the tables of tokens; where nothing is multiplied, those that lay them
 * out, and on a GPU how many make them at least. */
uint32_t plan_moe_routers(const struct mk_problem *q);
uint32_t plan_moe_layers(const struct mk_problem *q);
uint32_t plan_moe_plain(const struct mk_problem *q);

/* Bytes of shared memory that a block which makes tables has on a GPU. */
uint32_t plan_moe_shared(const struct mk_problem *q);

/* Where nothing is multiplied: roles, and tokens of a chunk, `most` at most, on one node's GPUs.
 * moves: tokens move; else rows are added. */
void plan_choose_moe_movers(struct mk_problem *q, int moves);
uint32_t plan_moe_row_chunk(const struct mk_problem *q, uint64_t most);
