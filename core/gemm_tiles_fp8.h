/* The tiles that kernels of FP8 are built for, as core/gemm_tiles.h has those of bf16. A's scales
 * take room of the stages. */
#ifndef MK_GEMM_TILES_FP8_H
#define MK_GEMM_TILES_FP8_H

#include "core/gemm_tiles.h"

#define MK_FP8_TILES(X)                                                                            \
    X(128, 256, 2, 4, 2) X(128, 128, 2, 5, 2) X(128, 128, 1, 5, 2) X(128, 64, 1, 7, 2)
#define MK_FP8_FEW_ROWS_TILES(X) X(64, 64, 1, 5, 2)

#ifndef __CUDACC__
MK_TILE_TABLE(mk_fp8_tile, MK_FP8_TILES, MK_GEMM_TILE)

static inline int mk_engine_tile(int fp8, uint32_t i, struct mk_gemm_tile *out)
{
    return fp8 ? mk_fp8_tile(i, out) : mk_gemm_tile(i, out);
}
#endif

#endif
