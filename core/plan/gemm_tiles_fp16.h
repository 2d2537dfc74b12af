/* The tiles that kernels of fp16 are built for, as core/plan/gemm_tiles.h has those of bf16: the large
 * ones and one for few rows, since each costs as much to compile as bf16's; of engine mma one. Of
 * kernels whose products are added, that for few rows is narrower, and the only one with MK_FP24
 * parts. */
#pragma once

#include "core/plan/gemm_tiles.h"

#define MK_FP16_TILES(X) X(128, 256, 2, 4, 2) X(128, 128, 1, 6, 2)
#define MK_FP16_PART_TILES(X) X(128, 64, 1, 8, 2)
#define MK_FP16_SUM_TILES(X) X(128, 256, 2, 4, 2) MK_FP16_PART_TILES(X)

#define MK_MMA_FP16_TILES(X) X(128, 128, 64, 3, 8)

#ifndef __CUDACC__
MK_TILE_TABLE(mk_fp16_tile, MK_FP16_TILES, MK_GEMM_TILE)
MK_TILE_TABLE(mk_fp16_part_tile, MK_FP16_PART_TILES, MK_GEMM_TILE)
MK_TILE_TABLE(mk_fp16_sum_tile, MK_FP16_SUM_TILES, MK_GEMM_TILE)
MK_TILE_TABLE(mk_mma_fp16_tile, MK_MMA_FP16_TILES, MK_MMA_TILE)
#endif
