/* FNV-1a (Fowler, Noll, Vo): what ranks compare in place of texts and structures. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define MK_DIGEST 0xcbf29ce484222325ull /* of nothing */

static inline uint64_t mk_digest(uint64_t digest, const void *from, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        digest = (digest ^ ((const uint8_t *)from)[i]) * 0x100000001b3ull;
    return digest;
}
