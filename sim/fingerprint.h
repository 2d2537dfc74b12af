/* Fingerprints: inputs follow from a seed, and in place of the product each row of C is a function
 * of the bytes of A that it was made from. A row from another launch, from elsewhere, or half of
 * it, shows in every element. */
#ifndef SIM_FINGERPRINT_H
#define SIM_FINGERPRINT_H

#include "core/plan.h"

/* `count` random bf16 values, 1/8 <= |x| < 2, a function of what identifies them. */
void fingerprint_fill(uint16_t *to, uint64_t count, uint64_t seed, uint32_t rank, uint64_t launch,
                      uint32_t argument);

/* The fingerprint of a row of A: `elements` is a multiple of 8. */
uint64_t fingerprint_row(const uint16_t *a, uint64_t elements);

/* The same with the scales of the row, `blocks` of them, `pitch` floats apart. */
uint64_t fingerprint_scaled(uint64_t row, const float *scales, uint64_t blocks, uint64_t pitch);

/* Elements [first, first + count) of the row of C that belongs to a row of A with this
 * fingerprint. */
void fingerprint_expand(uint64_t row, uint32_t first, uint32_t count, uint16_t *c);

/* Verifies C of AllGather+GEMM on one rank after `launch`, given that A was filled by
 * fingerprint_fill(seed, rank, launch, 0), and its scales as argument 3. `rows` is memory for m
 * words, and *rows_launch the launch that it holds (0: none). 0, or non-zero with a sentence in
 * `text`. */
int fingerprint_verify(const struct mk_plan *plan, uint64_t seed, uint64_t launch,
                       const uint16_t *c, uint64_t *rows, uint64_t *rows_launch, char *text,
                       size_t size);

#endif
