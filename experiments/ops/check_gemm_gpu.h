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
    uint32_t element; /* MK_BF16 or MK_FP16, of all that has 16 bits */
    uint64_t m, n, k; /* of one product */
    uint32_t products;
    uint64_t a_key, a_first, a_step;
    const uint64_t *b_keys; /* [products] */
    /* of one product, in host memory, instead of those made by keys; or both NULL */
    const uint16_t *a, *b;
    const float *a_wide, *b_wide; /* in place of both; B is [n, k] */
    const uint16_t *c;            /* [m, n], host memory */
    const uint16_t *bias;         /* [n], host memory, where the epilogue has one */
    uint32_t epilogue;            /* bits of enum mk_epilogue */
    int b_transposed;
    uint32_t roundings;    /* as in struct check_gemm */
    double frobenius, cut; /* ... too */
};

/* Checks every element by the bounds of check.h, with fp32 sums of |a||b| and, as there, adds to
 * *result. The current device; blocks. 0, -ENOMEM (no GPU memory) or -EIO. Weak: NULL in a build
 * without CUDA. */
int check_gemm_gpu(const struct check_gemm_gpu *g, struct check_result *result)
    __attribute__((weak));

#ifdef __cplusplus
}
#endif
