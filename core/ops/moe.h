/* What the MoE operators share (moe.c): the problem T,H,I,E,K and its checks, and the plan of
 * how tokens come to their experts. */
#ifndef MK_OPS_MOE_H
#define MK_OPS_MOE_H

#include "core/gemm_tiles.h"
#include "core/ops/op.h"
#include "core/roles/moe_dispatch_plan.h"

extern const struct op_shape op_shape_moe;
void op_choose_moe(enum op_size size, uint64_t world,
                   uint64_t *numbers); /* struct op_descriptor's */
#define OP_MOE_KNOBS (OP_TILE | OP_ROLES | OP_CHUNK_ROWS)

/* plan_choose_moe: what tuning leaves open, `tile_n` and `reducers` CTAs (inter_reduce) on a
 * GPU. plan_check_moe, plan_check_moe_tuning: 0, or -EINVAL. plan_size_moe, once tuning is
 * chosen: numbers of tokens, rows and chunks; returns the flags that dispatch takes, and how
 * many tiles of rows there must be room for; the caller refuses what does not fit and sets
 * row_tiles, then in the heap from *next on: plan_lay_out_moe_counts, which must begin as 0,
 * plan_lay_out_moe_order, once the route's columns, down and so on are set, and plan_lay_out_moe.
 * plan_take_moe: `bytes` more there. plan_check_moe_gpu: whether the operator's kernel
 * takes the problem. */
void plan_choose_moe(struct mk_problem *q, uint32_t tile_n, uint32_t reducers);
int plan_check_moe_tuning(const struct mk_problem *q, char *error, size_t size);
int plan_check_moe(const struct mk_problem *q, char *error, size_t size);
uint64_t plan_size_moe(struct moe_dispatch_plan *m, const struct mk_problem *q,
                       uint64_t *row_tiles);
int plan_check_moe_gpu(const struct mk_problem *q, char *error, size_t size);
void plan_lay_out_moe_counts(struct moe_dispatch_plan *m, uint64_t *next);
void plan_lay_out_moe_order(struct moe_dispatch_plan *m, const struct mk_problem *q,
                            uint64_t *next);
uint64_t plan_take_moe(uint64_t *next, uint64_t bytes);
void plan_lay_out_moe(struct moe_dispatch_plan *m, uint32_t flag_base, int weights, uint64_t *next);
uint64_t plan_moe_put_bytes(const struct moe_dispatch_plan *m); /* the largest put of dispatch */
/* Names the flags of dispatch; returns how many runs. */
uint32_t plan_moe_flags(const struct moe_dispatch_plan *m, struct op_flag_range *ranges);
void plan_moe_dispatch_work(const struct moe_dispatch_plan *m, uint64_t *nvlink_bytes,
                            uint64_t *network_bytes);

#endif
