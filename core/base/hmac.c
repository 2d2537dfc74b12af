#include "core/base/hmac.h"

#include <string.h>

#define BLOCK 64u

static uint32_t hmac_rotate(uint32_t x, unsigned by)
{
    return x >> by | x << (32 - by);
}

/* FIPS 180-4, section 6.2.2. */
static void hmac_block(uint32_t state[8], const uint8_t block[BLOCK])
{
    static const uint32_t k[64] = {
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4,
        0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe,
        0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f,
        0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7,
        0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc,
        0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
        0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116,
        0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
        0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7,
        0xc67178f2};
    uint32_t w[64], s[8];
    for (unsigned i = 0; i < 16; i++)
        w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 |
               (uint32_t)block[4 * i + 2] << 8 | block[4 * i + 3];
    for (unsigned i = 16; i < 64; i++) {
        uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + (hmac_rotate(a, 7) ^ hmac_rotate(a, 18) ^ a >> 3) + w[i - 7] +
               (hmac_rotate(b, 17) ^ hmac_rotate(b, 19) ^ b >> 10);
    }
    memcpy(s, state, sizeof s);
    for (unsigned i = 0; i < 64; i++) {
        uint32_t one = s[7] +
                       (hmac_rotate(s[4], 6) ^ hmac_rotate(s[4], 11) ^ hmac_rotate(s[4], 25)) +
                       ((s[4] & s[5]) ^ (~s[4] & s[6])) + k[i] + w[i];
        uint32_t two = (hmac_rotate(s[0], 2) ^ hmac_rotate(s[0], 13) ^ hmac_rotate(s[0], 22)) +
                       ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
        memmove(s + 1, s, 7 * sizeof *s);
        s[4] += one;
        s[0] = one + two;
    }
    for (unsigned i = 0; i < 8; i++)
        state[i] += s[i];
}

/* SHA-256 of a block and of what follows it, at most 128 bytes. */
static void hmac_hash(const uint8_t block[BLOCK], const void *rest, size_t bytes,
                      uint8_t out[HMAC_BYTES])
{
    uint32_t state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    uint8_t padded[3 * BLOCK] = {0};
    const size_t blocks = (bytes + 9 + BLOCK - 1) / BLOCK;
    const uint64_t bits = 8 * (uint64_t)(BLOCK + bytes);
    memcpy(padded, rest, bytes);
    padded[bytes] = 0x80;
    for (unsigned i = 0; i < 8; i++)
        padded[blocks * BLOCK - 1 - i] = (uint8_t)(bits >> 8 * i);
    hmac_block(state, block);
    for (size_t i = 0; i < blocks; i++)
        hmac_block(state, padded + i * BLOCK);
    for (unsigned i = 0; i < HMAC_BYTES; i++)
        out[i] = (uint8_t)(state[i / 4] >> (24 - 8 * (i % 4)));
}

void hmac(const char key[HMAC_KEY_BYTES], const void *message, size_t bytes,
          uint8_t out[HMAC_BYTES])
{
    uint8_t inner[BLOCK], outer[BLOCK];
    for (unsigned i = 0; i < BLOCK; i++) {
        inner[i] = (uint8_t)key[i] ^ 0x36;
        outer[i] = (uint8_t)key[i] ^ 0x5c;
    }
    hmac_hash(inner, message, bytes, out);
    hmac_hash(outer, out, HMAC_BYTES, out);
}

int hmac_same(const uint8_t a[HMAC_BYTES], const uint8_t b[HMAC_BYTES])
{
    volatile uint8_t differ = 0;
    for (unsigned i = 0; i < HMAC_BYTES; i++)
        differ = differ | (uint8_t)(a[i] ^ b[i]);
    return differ == 0;
}
