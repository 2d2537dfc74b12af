/* FP8 GEMM on one GPU: the engine of gemm.cuh on e4m3, over the tiles of one matrix. */
#pragma once

#include <cuda_runtime_api.h>
#include <stdint.h>

#include "tests/engines/tiling.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * A: m x k, B: n x k (a PyTorch weight), e4m3, C: m x n, bf16; all dense, device memory of the
 * caller, 16-byte aligned. m at least 1; n a multiple of 8, k of 16.
 *
 * Scales, fp32, by which elements are multiplied, of 1 x 128 of A and 128 x 128 of B; a block behind K's last multiple
 * of 128 is short. Strides in floats. Of row r and block b of K: a_scales[b * a_stride + r], a_stride at least m and a
 * multiple of 4, a_scales 16-byte aligned; of columns [128 c, 128 c + 128): b_scales[c * b_stride + b], b_stride at least
 * ceil(k / 128).
 */
struct gemm_fp8 {
    const void *a, *b;
    void *c;
    int64_t m, n, k;
    const float *a_scales, *b_scales;
    int64_t a_stride, b_stride;
};

/*
 * C = (A scaled) (B scaled)^T on the current device. tiling: from gemm_fp8_choose_tiling, or any
 * that the kernels are built for. sms: SMs to use at most; 0 means all. Any thread; does not block,
 * allocates nothing, can be captured in a graph; results are there when the stream gets past it.
 * Returns 0, -EINVAL (pointers, shape, strides or tiling), -ENOSYS (no driver with tensor maps),
 * -EIO (the launch failed; ask cudaGetLastError).
 */
int gemm_fp8_run(const struct gemm_fp8 *g, struct gemm_tiling tiling, uint32_t sms,
                 cudaStream_t stream);

struct gemm_tiling gemm_fp8_choose_tiling(int64_t m, int64_t n, int64_t k, uint32_t sms);

#ifdef __cplusplus
}
#endif
