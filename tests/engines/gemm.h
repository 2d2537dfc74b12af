/* GEMM on one GPU: the engine of kernels/hopper/gemm.cuh alone, over the tiles of one matrix. */
#pragma once

#include <cuda_runtime_api.h>
#include <stdint.h>

#include "tests/engines/tiling.h"

#ifdef __cplusplus
extern "C" {
#endif

/* rows of B are N (a PyTorch weight: C = A B^T) or K (C = A B) */
enum gemm_b { GEMM_NK, GEMM_KN };

/*
 * C (m x n) = A (m x k) B on the current device, bf16 with fp32 accumulation; all row-major and
 * dense.
 *
 * a, b, c: device memory of the caller, 16-byte aligned. m at least 1; n and k multiples of 8, at
 * least 8. tiling: from gemm_choose_tiling, or any that the kernels are built for. sms: SMs to use
 * at most; 0 means all. Any thread; does not block, allocates nothing, can be captured in a graph;
 * results are there when the stream gets past it. Returns 0, -EINVAL (pointers, shape or tiling),
 * -ENOSYS (no driver with tensor maps), -EIO (the launch failed; ask cudaGetLastError).
 */
int gemm_run(const void *a, const void *b, void *c, int64_t m, int64_t n, int64_t k,
             enum gemm_b b_rows, struct gemm_tiling tiling, uint32_t sms, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
