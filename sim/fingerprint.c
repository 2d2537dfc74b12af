#include "sim/fingerprint.h"

#include "core/ops/op.h"
#include "core/quantize.h"
#include "sim/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void fingerprint_fill(uint16_t *to, uint64_t count, uint64_t seed, uint32_t rank, uint64_t launch,
                      uint32_t argument)
{
    struct sim_random random = {sim_mix(seed) ^
                                sim_mix(launch << 20 ^ (uint64_t)rank << 4 ^ argument)};
    for (uint64_t i = 0; i < count; i += 4) {
        /* Sign, two bits of exponent and the mantissa are random. */
        uint64_t bits = (sim_random(&random) & 0x81ff81ff81ff81ffull) | 0x3e003e003e003e00ull;
        memcpy(to + i, &bits, count - i < 4 ? (count - i) * 2 : 8);
    }
}

static inline uint64_t fingerprint_stir(uint64_t lane, uint64_t word)
{
    lane = (lane ^ word) * 0x9e3779b97f4a7c15ull; /* for a given word a bijection */
    return lane ^ lane >> 31;
}

uint64_t fingerprint_row(const uint16_t *a, uint64_t elements)
{
    uint64_t one = 1, two = 2, three = 3, four = 4,
             words[4]; /* four chains, so that the multiplications overlap */
    uint64_t i = 0;
    for (; i + 16 <= elements; i += 16) {
        memcpy(words, a + i, 32);
        one = fingerprint_stir(one, words[0]);
        two = fingerprint_stir(two, words[1]);
        three = fingerprint_stir(three, words[2]);
        four = fingerprint_stir(four, words[3]);
    }
    if (i < elements) {
        memcpy(words, a + i, 16);
        one = fingerprint_stir(one, words[0]);
        two = fingerprint_stir(two, words[1]);
    }
    return sim_mix(one + sim_mix(two + sim_mix(three + sim_mix(four))));
}

uint64_t fingerprint_scaled(uint64_t row, const float *scales, uint64_t blocks, uint64_t pitch)
{
    for (uint64_t b = 0; b < blocks; b++) {
        uint32_t word;
        memcpy(&word, scales + b * pitch, sizeof word);
        row = sim_mix(row + word);
    }
    return row;
}

void fingerprint_expand(uint64_t row, uint32_t first, uint32_t count, uint16_t *c)
{
    uint32_t low = (uint32_t)row, high = (uint32_t)(row >> 32) | 1;
    for (uint32_t i = 0; i < count; i++)
        c[i] = (uint16_t)((low + (first + i) * high) >> 16);
}

int fingerprint_verify(const struct mk_plan *plan, uint64_t seed, uint64_t launch,
                       const uint16_t *c, uint64_t *rows, uint64_t *rows_launch, char *text,
                       size_t size)
{
    uint32_t world = mk_world(&plan->problem.topo);
    uint64_t words = plan->problem.k * op_factor_bytes(&plan->problem) / 2; /* of a row of A */
    uint64_t m = plan->problem.m, n = plan->problem.n, k = plan->problem.k, shard = m / world;
    uint64_t blocks = plan->problem.fp8 ? mk_ceil_div(k, MK_SCALE_BLOCK) : 0;
    uint16_t *memory = malloc((shard * k > n ? shard * k : n) * sizeof *memory);
    float *scales = malloc((shard * blocks + 1) * sizeof *scales);
    if (!memory || !scales) {
        free(memory);
        free(scales);
        snprintf(text, size, "no memory to check launch %llu", (unsigned long long)launch);
        return 1;
    }
    for (uint32_t rank = 0; *rows_launch != launch && rank < world; rank++) {
        fingerprint_fill(memory, shard * words, seed, rank, launch, 0);
        fingerprint_fill((uint16_t *)(void *)scales, shard * blocks * 2, seed, rank, launch, 3);
        for (uint64_t row = 0; row < shard; row++)
            rows[rank * shard + row] = fingerprint_scaled(
                fingerprint_row(memory + row * words, words), scales + row, blocks, shard);
    }
    *rows_launch = launch;
    int result = 0;
    for (uint64_t row = 0; row < m && !result; row++) {
        fingerprint_expand(rows[row], 0, (uint32_t)n, memory);
        if (!memcmp(c + row * n, memory, n * 2))
            continue;
        uint64_t col = 0;
        while (c[row * n + col] == memory[col])
            col++;
        snprintf(text, size,
                 "launch %llu, rank %u: C[%llu][%llu] was not made from row %llu of rank %llu's A "
                 "of this "
                 "launch%s",
                 (unsigned long long)launch, plan->problem.topo.rank, (unsigned long long)row,
                 (unsigned long long)col, (unsigned long long)(row % shard),
                 (unsigned long long)(row / shard),
                 c[row * n + col] == 0xffff ? " (never written)" : "");
        result = 1;
    }
    free(memory);
    free(scales);
    return result;
}
