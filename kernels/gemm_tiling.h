/*
 * How a GEMM is cut into tiles: which tile shape suits a problem, and in which order the CTAs take the tiles.
 * Plain C for the host and the device; pure functions.
 */
#ifndef MK_KERNELS_GEMM_TILING_H
#define MK_KERNELS_GEMM_TILING_H

#include <stdint.h>

#ifdef __CUDACC__
#define GEMM_BOTH static __host__ __device__ inline
#else
#define GEMM_BOTH static inline
#endif

/* What one CTA computes at a time, in rows and columns of C, and how many neighbours along M form a cluster
 * that loads the columns of B together. `group`: see gemm_order. */
struct gemm_tiling {
    int tile_m, tile_n, cluster, group;
};

/* K elements per pipeline stage: one 128-byte row of bf16, the widest swizzle. */
enum { GEMM_TILE_K = 64 };

GEMM_BOTH int64_t gemm_div_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/*
 * Estimated SM cycles for C (m x n) with depth k under a tiling, on `sms` SMs. A wave of tiles costs what its
 * slower side costs per 64 elements of K: the tensor cores do 2048 multiply-adds a cycle; loads come from L2
 * at about 40 bytes a cycle and SM when all SMs load. Filling the pipeline and storing the tile come on top.
 */
GEMM_BOTH double gemm_cost(struct gemm_tiling t, int64_t m, int64_t n, int64_t k, int sms)
{
    int64_t tiles = gemm_div_up(m, (int64_t)t.tile_m * t.cluster) * gemm_div_up(n, t.tile_n);
    int64_t waves = gemm_div_up(tiles, sms / t.cluster);
    double multiply = t.tile_m * (double)t.tile_n * GEMM_TILE_K / 2048;
    double load = (t.tile_m + (double)t.tile_n / t.cluster) * GEMM_TILE_K * 2 / 40;
    return waves * (gemm_div_up(k, GEMM_TILE_K) * (multiply > load ? multiply : load) + 1500 +
                    t.tile_m * t.tile_n / 32);
}

/* The tiling with the least estimated cost among those that the kernels are built for. */
GEMM_BOTH struct gemm_tiling gemm_choose_tiling(int64_t m, int64_t n, int64_t k, int sms)
{
    const struct gemm_tiling built[] = {
        {128, 256, 2, 8}, {256, 128, 2, 4}, {128, 128, 2, 8}, {128, 128, 1, 8}, {128, 64, 1, 8},
    };
    struct gemm_tiling best = built[0];
    for (unsigned i = 1; i < sizeof(built) / sizeof(built[0]); i++) {
        if (gemm_cost(built[i], m, n, k, sms) < gemm_cost(best, m, n, k, sms))
            best = built[i];
    }
    return best;
}

/*
 * Order of the tiles of a grid of rows x columns: bands of `group` rows, walked column by column. CTAs that
 * run together then work on a block of the grid that is about square, so that A and B come from L2 for all
 * but one of them.
 */
struct gemm_order {
    uint32_t rows, columns, group;
};

GEMM_BOTH void gemm_order_at(const struct gemm_order *o, uint32_t index, uint32_t *row, uint32_t *column)
{
    uint32_t band = index / (o->group * o->columns);
    uint32_t first = band * o->group;
    uint32_t height = o->rows - first < o->group ? o->rows - first : o->group;
    uint32_t within = index - first * o->columns;
    *row = first + within % height;
    *column = within / height;
}

#endif
