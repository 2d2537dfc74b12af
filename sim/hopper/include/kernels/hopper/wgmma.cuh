/* The second body of every function of kernels/hopper/wgmma.cuh: calls of the emulated machine. */
#pragma once

#include "kernels/engine/ptx.cuh"
#include "kernels/hopper/wgmma_descriptor.cuh"

PTX_FN void wgmma_fence(HOPPER_AT)
{
    HOPPER_HERE;
    hopper_wgmma_fence();
}
PTX_FN void wgmma_commit(HOPPER_AT)
{
    HOPPER_HERE;
    hopper_wgmma_commit();
}
template <int pending> PTX_FN void wgmma_wait(HOPPER_AT)
{
    HOPPER_HERE;
    hopper_wgmma_wait(pending);
}
template <class T, int count> PTX_FN void wgmma_settle(T (&)[count]) {}

/* Any N that is a multiple of 8: 64 rows by N take N / 2 registers of each thread. */
template <int b_mn_major, int count>
PTX_FN void wgmma_bf16(float (&d)[count], uint64_t a, uint64_t b, uint32_t accumulate, HOPPER_AT)
{
    HOPPER_HERE;
    const struct hopper_product p = {d, nullptr, a, b, 2 * count, accumulate, 0, b_mn_major, 0};
    hopper_wgmma(&p);
}

template <int b_mn_major, int count>
PTX_FN void wgmma_f16(float (&d)[count], uint64_t a, uint64_t b, uint32_t accumulate, HOPPER_AT)
{
    HOPPER_HERE;
    const struct hopper_product p = {d, nullptr, a, b, 2 * count, accumulate, 0, b_mn_major, 0, 1};
    hopper_wgmma(&p);
}

template <int count>
PTX_FN void wgmma_e4m3(float (&d)[count], uint64_t a, uint64_t b, uint32_t accumulate, HOPPER_AT)
{
    HOPPER_HERE;
    const struct hopper_product p = {d, nullptr, a, b, 2 * count, accumulate, 0, 0, 1};
    hopper_wgmma(&p);
}

template <int b_mn_major, int count>
PTX_FN void wgmma_bf16_registers(float (&d)[count], const uint32_t *a, uint64_t b,
                                 uint32_t accumulate, HOPPER_AT)
{
    HOPPER_HERE;
    const struct hopper_product p = {d, a, 0, b, 2 * count, accumulate, 0, b_mn_major, 0};
    hopper_wgmma(&p);
}
