/* The second body of every function of kernels/mma/mma.cuh, where their contracts stand: calls of
 * the emulated machine. */
#pragma once

#include "kernels/engine/barrier.cuh"

PTX_FN void mma_bf16(float *d, const uint32_t *a, const uint32_t *b, HOPPER_AT)
{
    HOPPER_HERE;
    hopper_mma(d, a, b, 0);
}
PTX_FN void mma_f16(float *d, const uint32_t *a, const uint32_t *b, HOPPER_AT)
{
    HOPPER_HERE;
    hopper_mma(d, a, b, 1);
}
PTX_FN void mma_e4m3(float *d, const uint32_t *a, const uint32_t *b, HOPPER_AT)
{
    HOPPER_HERE;
    hopper_mma_e4m3(d, a, b);
}
PTX_FN float mma_load_l2(const float *src, HOPPER_AT)
{
    HOPPER_HERE;
    float v;
    hopper_global_load(src, &v, 4);
    return v;
}
PTX_FN void mma_copy_16(uint32_t dst, const void *src, uint32_t bytes, HOPPER_AT)
{
    HOPPER_HERE;
    hopper_copy_async(dst, src, 16, bytes);
}
PTX_FN void mma_copies_arrive(uint32_t bar, HOPPER_AT)
{
    HOPPER_HERE;
    hopper_copy_arrive(bar);
}
/* A thread that waits is no thread that looks: a phase that never comes is told as a deadlock. */
PTX_FN bool mma_mbar_try(uint32_t bar, struct mbar_phase phase, HOPPER_AT)
{
    HOPPER_HERE;
    return hopper_mbar_try(bar, phase.parity) != 0;
}

template <uint32_t bits> PTX_FN void mma_turn(uint32_t *at) { *at ^= bits; }
