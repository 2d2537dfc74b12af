/*
 * How a GEMM is cut into tiles: which tile shape suits a problem (core/cta/gemm_order.h: in which order
 * the CTAs take the tiles). Plain C for the host and the device; pure functions.
 */
#pragma once

#include "core/cta/gemm_order.h"

/* What one CTA computes at a time, in rows and columns of C, and how many neighbours along M form a
 * cluster that loads the columns of B together. */
struct gemm_tiling {
    uint32_t tile_m, tile_n, cluster;
};

/* Of a stage: GEMM_TILE_K of the kernels, which a host compiler does not read. */
enum { TILING_K = 64 };

/*
 * Estimated SM cycles for C (m x n) with depth k under a tiling, on `sms` SMs. A wave of tiles
 * costs what its slower side costs per 64 elements of K: the tensor cores do 2048 multiply-adds a
 * cycle and lose about 32 cycles a stage; loads bring about 60 bytes a cycle to each SM when all
 * SMs load. Filling the pipeline and storing the tile come on top. (Fitted to tests/gpu_gemm.cu's
 * shapes on an H200: it picks the fastest of the built tilings or one within 3 %.)
 */
MK_PURE double gemm_cost(struct gemm_tiling t, uint64_t m, uint64_t n, uint64_t k, uint32_t sms)
{
    if (sms < t.cluster)
        return 1e300;
    uint64_t tiles = mk_ceil_div(m, (uint64_t)t.tile_m * t.cluster) * mk_ceil_div(n, t.tile_n);
    uint64_t waves = mk_ceil_div(tiles, sms / t.cluster);
    double multiply = t.tile_m * (double)t.tile_n * TILING_K / 2048 + 32;
    double load = (t.tile_m + (double)t.tile_n / t.cluster) * TILING_K * 2 / 60;
    return waves * (mk_ceil_div(k, TILING_K) * (multiply > load ? multiply : load) + 1500 +
                    t.tile_m * t.tile_n / 32);
}

/* The tiling with the least estimated cost among those that the kernels are built for; for few rows
 * the one that is made for them. */
MK_PURE struct gemm_tiling gemm_choose_tiling(uint64_t m, uint64_t n, uint64_t k, uint32_t sms)
{
    const struct gemm_tiling built[] = {
        {128, 256, 2}, {256, 128, 2}, {128, 128, 2}, {128, 128, 1}, {128, 64, 1},
    };
    const struct gemm_tiling few_rows = {64, 64, 1};
    struct gemm_tiling best = built[0];
    if (m <= few_rows.tile_m)
        return few_rows;
    for (unsigned i = 1; i < sizeof(built) / sizeof(built[0]); i++) {
        if (gemm_cost(built[i], m, n, k, sms) < gemm_cost(best, m, n, k, sms))
            best = built[i];
    }
    return best;
}
