/* splitmix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014), on host
 * and GPU: small, and the same numbers for a seed on every machine. */
#pragma once

#include "core/base.h"

#define MK_RANDOM_STEP 0x9e3779b97f4a7c15ull

/* Every bit of the result depends on every bit of x. */
MK_PURE uint64_t mk_mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

/* ... of a number that may be 0 or small. */
MK_PURE uint64_t mk_hash(uint64_t x)
{
    return mk_mix(x + MK_RANDOM_STEP);
}

/* A tensor of one launch. `tensor` is the caller's number of it; give each rank's own tensor a
 * number of its own. */
MK_PURE uint64_t mk_key(uint64_t seed, uint64_t tensor, uint64_t epoch)
{
    return mk_hash(mk_hash(mk_hash(seed) ^ tensor) ^ epoch);
}

MK_PURE uint64_t mk_random(uint64_t *state)
{
    return mk_mix(*state += MK_RANDOM_STEP);
}

/* 0 <= x < 1. */
MK_PURE double mk_random_unit(uint64_t *state)
{
    return (double)(mk_random(state) >> 11) / 9007199254740992.0;
}
