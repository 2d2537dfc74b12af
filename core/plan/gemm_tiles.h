/* The tiles that the GPU's GEMM engines are built for: one table for each, which kernels, plans,
 * the tuner and error texts read. */
#pragma once

#include "core/base.h"

/* X(rows, columns, cluster, stages, boxes). rows, columns: what one CTA computes at a time;
 * `cluster` CTAs along M share a plan's tile, of rows * cluster rows. stages, boxes: of the
 * engine's ring and of C on its way out, which fill an SM's 227 KB (kernels/hopper/gemm.cuh). A
 * plan that is given no tile takes the first of the table with its cluster. */
#define MK_GEMM_TILES(X)                                                                           \
    X(128, 256, 2, 4, 2) X(128, 128, 2, 6, 2) X(128, 128, 1, 6, 2) X(128, 64, 1, 8, 2)

/* Those of kernels whose blocks of K are added in a tree (core/cta/sum_tree.h), by a second set of
 * registers: of more columns there is no room for it. Of 128 columns sums that wait take the memory
 * of two stages. */
#define MK_TREE_TILES(X) X(128, 128, 2, 4, 2) X(128, 128, 1, 4, 2) X(128, 64, 1, 8, 2)

/* What there is besides for few rows. (The two halves of a stage are summed apart: not in the order
 * of K; of a tree, two nodes.) */
#define MK_FEW_ROWS_TILES(X) X(64, 64, 1, 6, 2)

/* One of kernels of their own, where it fills a wave that tiles of 128 columns leave half empty: of
 * 384 rows of 8192 columns and 768 of 4096 there are 129 and 132, and a product takes three
 * quarters of the time. */
#define MK_MIDDLE_TILES(X) X(128, 192, 1, 4, 2)

/* And of a pair of CTAs that split K (kernels/hopper/gemm.cuh), each of which ends with 64 of the
 * 128 rows: for sums in one shot of a long K where tiles of 64x64 do not all fit on the SMs at
 * once, and such pairs do. */
#define MK_SPLIT_TILES(X) X(64, 128, 2, 5, 4)

/* Those of products of several groups of rows, where neighbours may have different B's and rows
 * fall short: no clusters. */
#define MK_GROUPED_TILES(X) X(128, 256, 1, 4, 2) X(128, 128, 1, 6, 2) X(128, 64, 1, 8, 2)

/* Of these, those where a tile's columns may be two runs of 64, or of more, of B (gate and up). */
#define MK_GATED_TILES(X) X(128, 256, 1, 4, 2) X(128, 128, 1, 6, 2)

/* Those of engine mma, X(rows, columns, k, stages, warps): k elements of K in a stage; stages fill
 * the 99 KB of shared memory that any GPU from compute capability 8.0 on has; warps that multiply
 * (kernels/mma/gemm.cuh). */
#define MK_MMA_TILES(X) X(128, 128, 64, 3, 8) X(64, 64, 64, 6, 4)

/* And of FP8, whose lanes have raw sums beside the final ones: elements of K in pairs. Where
 * columns are gated a plan's tile is so many passes of these: 128 columns of the gate and as many
 * of up (kernels/moe/moe_ffn_mma.cuh); lanes of 128 rows have no room for what is kept between
 * passes. */
#define MK_MMA_FP8_GATED_TILES(X) X(64, 64, 64, 6, 4)
#define MK_MMA_FP8_TILES(X) X(128, 64, 64, 4, 8) MK_MMA_FP8_GATED_TILES(X)
#define MK_MMA_FP8_PASSES 4

/* A tile as plans have it: tile_m counts the rows of the whole cluster. */
struct mk_gemm_tile {
    uint32_t tile_m, tile_n, cluster;
};

/* The i-th of a table; 0 where there are fewer, else 1. (In C, so that it is no code of a GPU.)
 */
#ifndef __CUDACC__
#define MK_TILE_TABLE(name, tiles, tile)                                                           \
    static inline int name(uint32_t i, struct mk_gemm_tile *out)                                   \
    {                                                                                              \
        static const struct mk_gemm_tile built[] = {tiles(tile)};                                  \
        if (i >= sizeof built / sizeof *built)                                                     \
            return 0;                                                                              \
        *out = built[i];                                                                           \
        return 1;                                                                                  \
    }
#define MK_GEMM_TILE(rows, columns, cluster_, stages, boxes)                                       \
    {(rows) * (cluster_), columns, cluster_},
#define MK_MMA_TILE(rows, columns, k, stages, warps) {rows, columns, 1},
#define MK_MMA_PASSED_TILE(rows, columns, k, stages, warps)                                        \
    {rows, MK_MMA_FP8_PASSES * (columns), 1},
MK_TILE_TABLE(mk_gemm_tile, MK_GEMM_TILES, MK_GEMM_TILE)
MK_TILE_TABLE(mk_tree_tile, MK_TREE_TILES, MK_GEMM_TILE)
MK_TILE_TABLE(mk_few_rows_tile, MK_FEW_ROWS_TILES, MK_GEMM_TILE)
MK_TILE_TABLE(mk_middle_tile, MK_MIDDLE_TILES, MK_GEMM_TILE)
MK_TILE_TABLE(mk_split_tile, MK_SPLIT_TILES, MK_GEMM_TILE)
MK_TILE_TABLE(mk_grouped_tile, MK_GROUPED_TILES, MK_GEMM_TILE)
MK_TILE_TABLE(mk_gated_tile, MK_GATED_TILES, MK_GEMM_TILE)
MK_TILE_TABLE(mk_mma_tile, MK_MMA_TILES, MK_MMA_TILE)
MK_TILE_TABLE(mk_mma_fp8_tile, MK_MMA_FP8_TILES, MK_MMA_TILE)
MK_TILE_TABLE(mk_mma_fp8_gated_tile, MK_MMA_FP8_GATED_TILES, MK_MMA_PASSED_TILE)
#endif
