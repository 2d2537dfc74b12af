/* check_moe_ffn.h on a GPU, for problems that would take a CPU minutes: every element, in fp32, by
 * kernels that have nothing of the engine's. */
#pragma once

#include "experiments/ops/check_moe_ffn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Where an expert's B1 and B2 are in the tensors that inputs_fill makes: from which element on (a
 * multiple of 4) of the tensors of which keys. */
struct check_moe_ffn_expert {
    uint64_t key[2], first[2];
};

/* Checks as check_moe_ffn does, by its bounds, with fp32 sums of |x||b| in place of norms, and adds
 * to *result. c->expert is not called: `where` says what to make on the GPU. c's tensors: host
 * memory. Blocks. The current device. 0, -ENOMEM (no memory) or -EIO. Weak: NULL in a build without
 * CUDA. */
int check_moe_ffn_gpu(const struct check_moe_ffn *c,
                      void (*where)(void *context, uint32_t expert,
                                    struct check_moe_ffn_expert *out),
                      struct check_result *result) __attribute__((weak));

#ifdef __cplusplus
}
#endif
