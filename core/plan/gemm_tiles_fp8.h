/* The tiles that kernels of FP8 are built for, as core/plan/gemm_tiles.h has those of bf16. A's scales
 * take room of the stages. Operators that add over ranks have the second list: of 256 columns there
 * is one box of C for each consumer, and so room for what they know of their tiles. The last two
 * are of products of several groups of rows (MK_GROUPED_TILES), and of such with two runs of
 * columns of B, each of which is 128: a block of scales of what is made of both. */
#pragma once

#include "core/plan/gemm_tiles.h"

#define MK_FP8_NARROW_TILES(X) X(128, 128, 2, 5, 2) X(128, 128, 1, 5, 2) X(128, 64, 1, 7, 2)
#define MK_FP8_TILES(X) X(128, 256, 2, 4, 2) MK_FP8_NARROW_TILES(X)
#define MK_FP8_SUM_TILES(X) X(128, 256, 2, 4, 1) MK_FP8_NARROW_TILES(X)
#define MK_FP8_FEW_ROWS_TILES(X) X(64, 64, 1, 5, 2)
#define MK_FP8_GROUPED_TILES(X) X(128, 256, 1, 4, 2) X(128, 128, 1, 5, 2) X(128, 64, 1, 7, 2)
#define MK_FP8_GATED_TILES(X) X(128, 256, 1, 4, 2)

#ifndef __CUDACC__
MK_TILE_TABLE(mk_fp8_tile, MK_FP8_TILES, MK_GEMM_TILE)
MK_TILE_TABLE(mk_fp8_sum_tile, MK_FP8_SUM_TILES, MK_GEMM_TILE)
MK_TILE_TABLE(mk_fp8_narrow_tile, MK_FP8_NARROW_TILES, MK_GEMM_TILE)
MK_TILE_TABLE(mk_fp8_grouped_tile, MK_FP8_GROUPED_TILES, MK_GEMM_TILE)
MK_TILE_TABLE(mk_fp8_gated_tile, MK_FP8_GATED_TILES, MK_GEMM_TILE)
#endif
