/* What a kernel that trapped at a barrier says, in words. */
#pragma once

#include <stdio.h>

#include "kernels/engine/launch.h"

MK_PURE struct gpu_stuck stuck_unpack(uint64_t low, uint64_t high)
{
    struct gpu_stuck s;
    s.barrier = (uint8_t)low;
    s.stage = (uint8_t)(low >> 8);
    s.parity = (uint8_t)(low >> 16);
    s.warp = (uint8_t)(low >> 24);
    s.block = (uint32_t)(low >> 32);
    s.tile = (uint32_t)high;
    return s;
}

/* "block 17, warp 4 stood at ...: " into `text`, nothing where no barrier was reported. */
static inline void stuck_say(const volatile uint64_t packed[2], char *text, size_t size)
{
    static const char *const names[GPU_BARRIERS] = {
        [GPU_BARRIER_EMPTY] = "for stage %u of the engine to be filled and read",
        [GPU_BARRIER_COPY] = "for stage %u of its copies to be filled",
        [GPU_BARRIER_THERE] = "for place %u of the outbox to be emptied and filled",
        [GPU_BARRIER_KEYS] = "for stage %u of K to be filled and read",
        [GPU_BARRIER_VALUES] = "for stage %u of V to be filled and read",
        [GPU_BARRIER_QUERIES] = "for place %u of Q to be filled and read",
    };
    struct gpu_stuck s = stuck_unpack(packed[0], packed[1]);
    char where[64];
    text[0] = '\0';
    if (s.barrier == GPU_BARRIER_NONE || s.barrier >= GPU_BARRIERS)
        return;
    snprintf(where, sizeof where, names[s.barrier], s.stage);
    snprintf(text, size, "block %u, warp %u waited too long %s (parity %u, its %s %u): ", s.block,
             s.warp, where, s.parity, s.barrier == GPU_BARRIER_COPY ? "piece" : "tile", s.tile);
}
