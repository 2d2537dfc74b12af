/* Inside core: HMAC with SHA-256 (RFC 2104, FIPS 180-4), by which a process shows that it knows a
 * secret without telling it. For messages of a few dozen bytes: it is not fast. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define HMAC_KEY_BYTES 64u
#define HMAC_BYTES 32u

/* The code of `bytes` of `message`, at most 128, by the key, which zeros end where it is shorter. */
void hmac(const char key[HMAC_KEY_BYTES], const void *message, size_t bytes,
          uint8_t out[HMAC_BYTES]);

/* In constant time: its duration tells a stranger nothing about the right code. */
int hmac_same(const uint8_t a[HMAC_BYTES], const uint8_t b[HMAC_BYTES]);
