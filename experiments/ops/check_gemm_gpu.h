/* check_gemm (experiments/common/check.h) on a GPU, for products that would take a CPU half a
 * minute. Checks every element, by a kernel that shares no code with the engine. */
#pragma once

#include "experiments/common/check.h"

#ifdef __cplusplus
extern "C" {
#endif

/* C as the sum of `products` products of tensors that the GPU makes as inputs_fill_half does: the
 * r-th A is m * k elements of the tensor of a_key from a_first + r * a_step on, the r-th B all of
 * the tensor of b_keys[r]. These numbers are multiples of 4. */
struct check_gemm_gpu {
    /* of one product, in host memory. Without A and B they are made by keys; without a residual */
    struct check_gemm of;
    uint32_t products; /* 1 where A and B are there; wide ones have B as [n, k] */
    uint64_t a_key, a_first, a_step;
    const uint64_t *b_keys; /* [products] */
};

/* Checks every element by the bounds of check.h, with fp32 sums of |a||b| and, as there, adds to
 * *result. The current device; blocks. 0, -ENOMEM (no GPU memory) or -EIO. Weak: NULL in a build
 * without CUDA. */
int check_gemm_gpu(const struct check_gemm_gpu *g, struct check_result *result)
    __attribute__((weak));

#ifdef __cplusplus
}
#endif
