/*
 * What this GPU's tensor cores make of e4m3 by mma.sync (kernels/mma/mma.cuh): m16n8k32 on many
 * fragments and sums, each result held, bit by bit, against the rules that sim/hopper/e4m3.c has. It
 * names those that hold for all, and how far off sums are.
 *
 * Exit status: 0 some rule holds, 1 none does, 77 no GPU of compute capability 8.9 and up here.
 */

#include "kernels/mma/mma.cuh"
#include "sim/clock.h"
#include "sim/hopper/e4m3.h"

#include <cuda_runtime.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CASES = 4000, MODES = 4, RULES = 4 };

struct product {
    uint8_t a[16][32], b[8][32]; /* K along rows */
    float c[16][8];
};

__global__ void multiply(struct product *all)
{
    struct product *p = &all[blockIdx.x];
    const uint32_t row = threadIdx.x / 4, k = threadIdx.x % 4 * 4, column = threadIdx.x % 4 * 2;
    uint32_t a[4], b[2];
    for (int i = 0; i < 4; i++)
        a[i] = *(const uint32_t *)&p->a[row + i % 2 * 8][k + i / 2 * 16];
    for (int i = 0; i < 2; i++)
        b[i] = *(const uint32_t *)&p->b[row][k + i * 16];
    float d[4] = {p->c[row][column], p->c[row][column + 1], p->c[row + 8][column],
                  p->c[row + 8][column + 1]};
    mma_e4m3(d, a, b);
    for (int i = 0; i < 4; i++)
        p->c[row + i / 2 * 8][column + i % 2] = d[i];
}

static const char *const rules[RULES] = {
    "32 products and the sum before at once, 13 bits behind the point",
    "twice 16 products, 13 bits (compute capability 8.9)", "twice 16 products, 25 bits (9.0, 12.0)",
    "twice 16 products, of K 0, 1, 4, 5, ... and then 2, 3, 6, 7, ..., 25 bits"};

static void expect(uint32_t rule, const struct product *p, float (*d)[256])
{
    static struct e4m3_matrix a, b;
    for (uint32_t k = 0; k < E4M3_K; k++) {
        const uint32_t from = rule == 3 ? k % 16 / 2 * 4 + k / 16 * 2 + k % 2 : k;
        for (uint32_t row = 0; row < 16; row++)
            e4m3_set(&a, k, row, p->a[row][from]);
        for (uint32_t column = 0; column < 8; column++)
            e4m3_set(&b, k, column, p->b[column][from]);
    }
    for (uint32_t row = 0; row < 16; row++)
        memcpy(d[row], p->c[row], sizeof p->c[row]);
    if (rule == 0)
        e4m3_multiply(d, &a, &b, 8);
    else
        e4m3_multiply_halves(d, &a, &b, 8, rule == 1 ? 13 : 25);
}

/* mode 0: codes of any size, and sums; 1: no sums before; 2: subnormal numbers; 3: NaN in some. */
static uint8_t code_of(struct sim_random *r, uint32_t mode)
{
    uint8_t code = (uint8_t)sim_random_below(r, 256);
    if (mode == 2)
        code &= 0x8f;
    if ((code & 0x7f) == 0x7f && (mode != 3 || sim_random_below(r, 4)))
        code ^= 0x11;
    return code;
}

static void fill(struct product *p, uint32_t mode, uint64_t seed)
{
    struct sim_random r = {sim_mix(seed)};
    for (uint32_t i = 0; i < 512; i++)
        p->a[i / 32][i % 32] = code_of(&r, mode);
    for (uint32_t i = 0; i < 256; i++)
        p->b[i / 32][i % 32] = code_of(&r, mode);
    for (uint32_t i = 0; i < 128; i++)
        p->c[i / 8][i % 8] = mode == 1 ? 0
                                       : ldexpf((float)sim_random_below(&r, 1 << 24) - (1 << 23),
                                                (int)sim_random_below(&r, 24) - 30);
}

static double value(uint8_t code)
{
    int exponent = code >> 3 & 15;
    double v = exponent ? ldexp((code & 7) | 8, exponent - 10) : ldexp(code & 7, -9);
    return code & 0x80 ? -v : v;
}

int main(void)
{
    int devices = 0, major = 0, minor = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || !devices ||
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) != cudaSuccess ||
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0) != cudaSuccess ||
        major * 10 + minor < 89) {
        printf("gpu_fp8_mma: skipped, no GPU of compute capability 8.9 and up here\n");
        return 77;
    }
    struct product *in = (struct product *)calloc(CASES, sizeof *in),
                   *out = (struct product *)calloc(CASES, sizeof *out), *there = NULL;
    for (uint32_t i = 0; i < CASES; i++)
        fill(&in[i], i % MODES, i);
    if (!in || !out || cudaMalloc((void **)&there, CASES * sizeof *out) != cudaSuccess ||
        cudaMemcpy(there, in, CASES * sizeof *in, cudaMemcpyHostToDevice) != cudaSuccess)
        return 1;
    multiply<<<CASES, 32>>>(there);
    if (cudaMemcpy(out, there, CASES * sizeof *out, cudaMemcpyDeviceToHost) != cudaSuccess) {
        printf("gpu_fp8_mma: %s\n", cudaGetErrorString(cudaGetLastError()));
        return 1;
    }
    static float d[16][256];
    uint32_t same[RULES] = {0}, any = 0, all = CASES * 128;
    double off = 0, norm = 0;
    for (uint32_t i = 0; i < CASES; i++) {
        for (uint32_t rule = 0; rule < RULES; rule++) {
            expect(rule, &in[i], d);
            for (uint32_t j = 0; j < 128; j++)
                same[rule] += !memcmp(&d[j / 8][j % 8], &out[i].c[j / 8][j % 8], 4);
        }
        for (uint32_t j = 0; j < 128 && i % MODES == 1; j++) {
            double sum = 0;
            for (uint32_t k = 0; k < 32; k++)
                sum += value(in[i].a[j / 8][k]) * value(in[i].b[j % 8][k]);
            off += (out[i].c[j / 8][j % 8] - sum) * (out[i].c[j / 8][j % 8] - sum);
            norm += sum * sum;
        }
    }
    for (uint32_t rule = 0; rule < RULES; rule++) {
        printf("%9u of %u as %s\n", same[rule], all, rules[rule]);
        any |= same[rule] == all;
    }
    printf("compute capability %d.%d, sums without one before: relative error %.2e\n", major, minor,
           sqrt(off / norm));
    if (!any && major == 9) {
        printf("Hopper, which runs the PTX of compute_89, adds by none of these rules\n");
        return 0;
    }
    return !any;
}
