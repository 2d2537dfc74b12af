/* check_attention.h on a GPU, for problems that would take a CPU half a minute. Checks some rows
 * instead of all, in fp32, by a kernel that shares no code with the engine. */
#pragma once

#include "experiments/ops/check_attention.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Checks at most `rows` rows of heads, evenly spread from `start` on (any number: it is taken
 * modulo their distance) and always the last, by the bounds of check_attention, and adds to
 * *result. Ignores c->k and c->v: K and V are made on the GPU, as inputs_fill makes the tensors of
 * `keys`, of which rank r has the r-th part. c->q, c->o, c->lse: host memory. Uses the current
 * device, and blocks. 0, -ENOMEM (no GPU memory) or -EIO. Weak: NULL in a build without CUDA. */
int check_attention_gpu(const struct check_attention *c, const uint64_t keys[2], uint64_t rows,
                        uint64_t start, struct check_result *result) __attribute__((weak));

#ifdef __cplusplus
}
#endif
