/* What GEMM operators share: the problem M,N,K, and the plan of a product that is
 * added over ranks. */
#pragma once

#include "core/ops/op.h"
#include "core/roles/gemm_rs_plan.h"

extern const struct op_shape op_shape_gemm;       /* the ranks share M rows of A or C */
extern const struct op_shape op_shape_gemm_whole; /* each has all of both: any M */

/* What all GEMM plans look at beside slices, fanout and shots. */
#define OP_GEMM_KNOBS (OP_TILE | OP_ROLES | OP_CHUNK_ROWS | OP_PIECES | OP_PACE)

/* The i-th tile of the problem's engine and type; 0 where there are fewer, else 1. Of operators
 * that add over ranks there are others. */
typedef int plan_tiles(const struct mk_problem *q, uint32_t i, struct mk_gemm_tile *out);
plan_tiles plan_gemm_tile, plan_gemm_sum_tile;

/* One shot, where it is left open: for so many rows on a GPU, where all ranks are of one node
 * (docs/FIGURES.md has the measurement); and what tile, of large ones that of a pair of CTAs where
 * `pairs`. most: shots that the operator has (struct op_descriptor). -EINVAL where it is asked for
 * and there is no such plan. */
int plan_choose_shots(struct mk_problem *q, plan_tiles *tiles, uint32_t most, uint64_t most_rows,
                      int pairs, char *error, size_t size);

/* Whether tiles of 192 columns, *tile, are one wave of a plan of one shot, and tiles of 128 more
 * than one: a product of 384,8192,4096 then takes 41 us in place of 52, one of 768,4096,8192 76 in
 * place of 93 (one H200, docs/FIGURES.md). Two waves take as long as three of 128. */
int plan_in_the_middle(const struct mk_problem *q, struct mk_gemm_tile *tile);

/* struct op_descriptor's: `shared_k`: on GPUs the default K is what the ranks share in parts,
 * else N is. */
void op_choose_gemm(enum op_size size, uint64_t world, int shared_k, uint64_t *numbers);

/* What is left open of tile_m, tile_n and cluster, on a GPU from the tiles that its kernels are
 * built for (core/plan/gemm_tiles.h). pair: two CTAs share a tile where nothing says otherwise; narrow:
 * a CTA's part has no more columns than rows. */
void plan_choose_gemm_tile(struct mk_problem *q, plan_tiles *tiles, int pair, int narrow);

/* Whether a GPU's kernels are built for the tile; tiles: the operator's. 0, or -EINVAL with those
 * that they are built for. */
int plan_check_gemm_tile(const struct mk_problem *q, plan_tiles *tiles, char *error, size_t size);

/* How long an H200 takes to multiply M,N,K, in ns. Defaults on a GPU weigh it against what moves (core/ops/op.h, rates); that
 * both are about right is enough (docs/FIGURES.md). */
double plan_multiply_ns(const struct mk_problem *q);

/* What gemm_rs and gemm_ar choose where it is left open (core/ops/gemm_rs_choose.c); `gathers`: the
 * sum goes to all ranks. In this order: shots, and the tile of one shot (0, or -EINVAL as
 * plan_choose_shots); tile, chunks and roles; ns as mk_tuning.pace has them. */
int plan_choose_gemm_rs_shots(struct mk_problem *q, uint32_t most, int gathers, char *error,
                              size_t size);
void plan_choose_gemm_rs(struct mk_problem *q, int gathers);
uint32_t plan_choose_gemm_rs_pace(const struct mk_problem *q, int gathers);

/* What both operators take and have, in their descriptors. rows: of C on a rank. */
#define GEMM_SUM_ARGUMENTS(rows)                                                                   \
    {                                                                                              \
        {"A", OP_FACTOR, "M,K"}, {"B", OP_FACTOR, "K,N"}, {"C", OP_BF16, rows ",N", .output = 1},  \
            {"A_scales", OP_SCALES, "K:128,M:4*4"},                                                \
            {"B_scales", OP_BLOCK_SCALES, "N:128,K:128:4*4"}, {"B_scales", OP_COLUMN_SCALES, "N"}, \
            {"residual", OP_RESIDUAL, rows ",N"}, {"norm_weight", OP_NORM, "N"},                   \
            {"new_residual", OP_NORMED, rows ",N", .output = 1, .in_place = 1},                    \
            {"normed", OP_CODES, rows ",N", .output = 1},                                          \
            {"normed_scales", OP_CODE_SCALES, "N:128," rows, .output = 1},                         \
    }
#define GEMM_SUM_HAS                                                                               \
    .tuned = 1, .well_known = 1, .b_layout = 1, .sums = 1, .gpu_tile = plan_gemm_sum_tile,         \
    .fp16 = 1, .fp8 = 1, .b_columns = 1, .mma = 1,                                                 \
    .epilogue = MK_EPILOGUE_ROWS | MK_EPILOGUE_QUANTIZE

/* Blocks of columns: how many columns one has with tiles of `tile_n`, 0: N cannot be cut so; and of
 * what that is a multiple. Bytes of an element of partial sums. */
uint32_t plan_gemm_rs_columns(const struct mk_problem *q, uint32_t tile_n);
uint32_t plan_gemm_rs_columns_unit(const struct mk_problem *q);
uint32_t plan_gemm_rs_element_bytes(const struct mk_problem *q);

/* The parts of gemm_rs's plan that gemm_ar shares (core/ops/gemm_rs.c): fills *r, chooses
 * tuning. `gathers`: the sum goes to all ranks. The caller has it laid out. 0, or -EINVAL. */
int plan_build_gemm_rs(const struct op_descriptor *op, struct mk_plan *p, struct gemm_rs_plan *r,
                       int gathers, char *error, size_t size);
void plan_gemm_rs_tables(const struct mk_problem *q, struct gemm_rs_plan *r, struct op_tables *t);
void plan_gemm_rs_pipeline(const struct mk_problem *q, const struct gemm_rs_plan *r,
                           struct mk_pipeline *out);
uint64_t plan_gemm_rs_put_bytes(const struct gemm_rs_plan *r);   /* the largest */
uint64_t plan_gemm_rs_joint_bytes(const struct gemm_rs_plan *r); /* one shot: from each peer */
void plan_describe_gemm_rs_tile(const struct gemm_rs_plan *r, uint32_t id, struct mk_tile *out);
