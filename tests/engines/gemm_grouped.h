/* Grouped GEMM on one GPU: the engine of kernels/hopper/gemm.cuh alone, over groups of rows, each
 * with a B of its own. */
#pragma once

#include "tests/engines/gemm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Rows of A of all groups lie in one matrix, those of a group one after the other from a multiple
 * of the tile's rows on. Sizes of the groups are known on the device alone. */
struct gemm_grouped {
    const void *a;          /* rows x k, bf16 */
    const void *b;          /* groups x k x n (GEMM_KN), or groups x n x k */
    void *c;                /* rows x n; rows of no group, up to where a tile ends, hold anything */
    const uint32_t *ranges; /* [groups][2]: first row, and how many, which may be 0 */
    void *table; /* gemm_grouped_table_bytes of device memory, for one launch at a time */
    uint32_t groups;
    int64_t rows, n, k; /* rows: room, a multiple of the tile's */
    enum gemm_b b_rows;
    struct gemm_tiling tiling; /* of core/plan/gemm_tiles.h, MK_GROUPED_TILES */
    uint32_t sms;              /* SMs to use at most; 0: all */
};

uint64_t gemm_grouped_table_bytes(const struct gemm_grouped *g);

/*
 * C_g = A_g B_g for every group, bf16 with fp32 accumulation, on the current device. Pointers are
 * device memory of the caller, 16-byte aligned; n and k multiples of 8, at least 8. Two launches,
 * the first of which makes the table of tiles. Any thread; does not block, allocates nothing, can
 * be captured in a graph. Returns 0, -EINVAL (pointers, shape or tiling), -ENOSYS (no driver with
 * tensor maps), -EIO (a launch failed; ask cudaGetLastError).
 */
int gemm_grouped_run(const struct gemm_grouped *g, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
