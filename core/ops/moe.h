/* What the MoE operators share (moe.c, moe_choose.c, moe_size.c, moe_tables.c): the problem
 * T,H,I,E,K, and the plan of how tokens come to their experts. */
#pragma once

#include "core/plan/gemm_tiles.h"
#include "core/ops/op.h"
#include "core/roles/moe_dispatch_plan.h"

/* Experts that ids name. */
uint64_t plan_moe_named(const struct mk_problem *q);
/* Offset in the heap of the map of logical experts (struct mk_route). */
uint64_t plan_moe_map(const struct mk_plan *p);

/* Places of a rank's tokens on experts of one rank that a plan which drops keeps; of a plan's
 * problem. 0: it drops none. */
uint64_t plan_moe_quota(const struct mk_problem *q);

extern const struct op_shape op_shape_moe;
void op_choose_moe(enum op_size size, uint64_t world,
                   uint64_t *numbers);          /* struct op_descriptor's */
extern const struct op_shape op_shape_moe_rows; /* T,H,E,K, of those that multiply nothing */
void op_choose_moe_rows(enum op_size size, uint64_t world, uint64_t *numbers);
#define OP_MOE_KNOBS (OP_TILE | OP_ROLES | OP_CHUNK_ROWS)

/* plan_choose_moe: what tuning leaves open, `tile_n` and `reducers` CTAs (inter_reduce) on a GPU.
 * plan_check_moe_tuning: 0, or -EINVAL. plan_size_moe, once tuning is chosen: numbers of tokens,
 * rows and chunks; which arguments ids are, and weights (the heap: none). plan_check_moe_gpu:
 * whether the operator's kernel takes the problem. */
void plan_choose_moe(struct mk_problem *q, uint32_t tile_n, uint32_t reducers);
/* Before it, of engine mma's tiles the small one where an expert has few rows or `columns`. tile_n:
 * all have these columns; 0: as many as rows. */
void plan_choose_moe_mma_tile(struct mk_problem *q, uint64_t columns, uint32_t tile_n);
int plan_check_moe_tuning(const struct mk_problem *q, char *error, size_t size);
int plan_size_moe(const struct op_descriptor *op, struct moe_dispatch_plan *m, struct mk_plan *p,
                  enum mk_space ids, enum mk_space weights, char *error, size_t size);
int plan_check_moe_gpu(const struct op_descriptor *op, const struct mk_problem *q, char *error,
                       size_t size);

/* The same of an operator that multiplies nothing, tuning and checks included: all blocks that do
 * not send take rows to their places, or add. One column of tiles. */
int plan_size_moe_rows(const struct op_descriptor *op, struct moe_dispatch_plan *m,
                       struct mk_plan *p, enum mk_space ids, enum mk_space weights, char *error,
                       size_t size);

/* Of its plan for launches in two halves: the flag that they need, and how many raise it. */
struct moe_halves;
void plan_moe_halves(struct moe_halves *h, const struct mk_problem *q);
void plan_moe_halves_flags(struct moe_halves *h, struct op_tables *t);

/* How dispatch lies: what must begin as 0 and the order of tiles, which the route's columns and
 * down size; then the rest, and its flags. */
void plan_moe_tables_first(struct moe_dispatch_plan *m, const struct mk_problem *q,
                           struct op_tables *t);
void plan_moe_tables(struct moe_dispatch_plan *m, struct op_tables *t);
uint64_t plan_moe_put_bytes(const struct moe_dispatch_plan *m); /* the largest put of dispatch */
/* How many experts of a rank, which has `own`, some token has chosen, on the average, where tokens
 * choose evenly. */
double plan_moe_touched(const struct mk_problem *q, double own);
void plan_moe_dispatch_work(const struct moe_dispatch_plan *m, uint64_t *nvlink_bytes,
                            uint64_t *network_bytes);

/* How sums go back (core/roles/moe_ffn.h): buffers and flags; bytes that they add to dispatch's;
 * and tokens whose sums a CTA makes at a time: on a GPU one for each warp of a block, or, where
 * there are few, so many that all blocks that add have some: with several nodes, or without a
 * product, inter_reduce's alone; where there are many, several for each warp. */
struct moe_ffn_plan;
void plan_moe_sums_size(struct moe_ffn_plan *m, const struct mk_problem *q);
void plan_moe_sums_tables(struct moe_ffn_plan *m, struct op_tables *t);
void plan_moe_sums_work(const struct moe_ffn_plan *m, uint64_t *nvlink_bytes,
                        uint64_t *network_bytes);
uint32_t plan_moe_part(const struct mk_problem *q);

/* Both operators' pipeline: experts' tiles cost what their rows do, and blocks that move tokens
 * multiply when they are through. */
void plan_moe_pipeline(const struct mk_plan *p, struct mk_pipeline *out);
