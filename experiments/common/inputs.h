/* Random inputs that any rank can make again: a value depends only on (seed, tensor, epoch, index),
 * so a check can regenerate every rank's shard without asking for it. The same arithmetic on host
 * and GPU.
 *
 * Method: the counter is mixed by splitmix64's finalizer (Steele, Lea, Flood 2014), 16 bits a
 * value. Values are uniform in
 * (-1, 1), symmetric about 0, rounded to bf16 or fp16; never NaN, never infinite. */
#pragma once

#include "core/cta/half.h"
#include "core/base/random.h"

/* Four values at once: elements 4 * group .. 4 * group + 3. element: MK_BF16 or MK_FP16. */
MK_PURE void inputs_group(uint32_t element, uint64_t key, uint64_t group, uint16_t out[4])
{
    uint64_t bits = mk_hash(key ^ group);
    for (int i = 0; i < 4; i++)
        out[i] = mk_half_from_float(element, ((float)(bits >> 16 * i & 0xffff) - 32767.5f) *
                                                 (1.0f / 32768.0f));
}

#ifndef __CUDACC__
/* Elements first .. first + count - 1 of the tensor; inputs_fill: in bf16. */
void inputs_fill_half(uint32_t element, uint16_t *out, uint64_t key, uint64_t first,
                      uint64_t count);
void inputs_fill(uint16_t *out, uint64_t key, uint64_t first, uint64_t count);

/* What an output holds before a launch: NaN in every element, so that one never written is seen. */
void inputs_poison(uint16_t *out, uint64_t count);
#endif
