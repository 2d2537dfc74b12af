/* The tiles of kernels whose last ones are cut along K (core/roles/gemm_rs_cut.h), as
 * core/plan/gemm_tiles.h has those of others: what plans of large shapes have. */
#pragma once

#include "core/plan/gemm_tiles.h"

#define MK_CUT_TILES(X) X(128, 256, 2, 4, 2)

#ifndef __CUDACC__
MK_TILE_TABLE(mk_cut_tile, MK_CUT_TILES, MK_GEMM_TILE)
#endif
