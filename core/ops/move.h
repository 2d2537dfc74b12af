/* What operators that only move rows share (move.c): the problem M,K of rows (bf16, e4m3 or bytes),
 * its defaults and checks, and the plan. Every rank gets a block of each rank's rows; there are as
 * many blocks in all as M divides by. An operator's own plan begins with a struct move_plan. */
#pragma once

#include "core/ops/op.h"
#include "core/roles/move_plan.h"

/* A shape's dimensions; `shares`: the formula that M divides by. */
#define OP_MOVE_DIMENSIONS(shares)                                                                 \
    {"M", "M", offsetof(struct mk_problem, m), OP_MOST, .divides = shares},                        \
    {                                                                                              \
        "K", "K", offsetof(struct mk_problem, k), OP_MOST, .bytes = 16,                            \
                                                           .why = "rows must be 16-byte multiples" \
    }
/* What their shapes and their descriptors have alike. */
#define OP_MOVE_SHAPE .option = "shape", .letters = "M,K", .heading = "M,K"
#define OP_MOVES                                                                                   \
    .shape = &shape,                                                                               \
    .needs = {[MK_INTRA_COMM] = OP_ALWAYS,                                                         \
              [MK_INTER_SEND] = OP_IF_NODES,                                                       \
              [MK_INTER_REDUCE] = OP_ALWAYS},                                                      \
    .knobs = OP_ROLES | OP_CHUNK_ROWS, .mma = 1, .fp16 = 1, .loose_chunks = 1

/* Default numbers, M rounded up to what it divides by: the world, or the world's square. */
void op_choose_move(enum op_size size, uint64_t world, uint64_t *numbers);
void op_choose_move_square(enum op_size size, uint64_t world, uint64_t *numbers);

/* Checks the plan's options, or chooses them, and fills its struct move_plan, but for where
 * anything lies. 0 or -EINVAL with a sentence. */
int plan_fill_move(const struct op_descriptor *op, struct mk_plan *p, char *error, size_t size);

/* Struct op_descriptor's, of a plan that has nothing but its struct move_plan; one that has more
 * adds to the tables. */
int plan_build_move(const struct op_descriptor *op, struct mk_plan *p, char *error, size_t size);
void plan_move_tables(struct mk_plan *p, struct op_tables *t);
void plan_describe_move_chunk(const struct mk_plan *p, uint32_t id, uint32_t *rank,
                              uint32_t *number, uint64_t *bytes);

/* Bytes that a rank gets: `network_blocks` of them over the network, and over NVLink one of each of
 * its node's others for each node. */
void plan_move_work(const struct mk_plan *p, uint32_t network_blocks, double *flop,
                    uint64_t *nvlink_bytes, uint64_t *network_bytes);
