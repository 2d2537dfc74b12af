/* Products of e4m3 as tensor cores make them (e4m3.c has the rule). */
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* 32 of K of rows of A, or of columns of B, as they were taken apart */
enum { E4M3_K = 32 };
struct e4m3_matrix {
    int32_t significand[E4M3_K][256], exponent[E4M3_K][256];
    uint8_t nan[256];
};

/* k from 0 on for each row or column; d: 16 rows of n sums */
void e4m3_set(struct e4m3_matrix *m, uint32_t k, uint32_t at, uint8_t code);

void e4m3_multiply(float (*d)[256], const struct e4m3_matrix *a, const struct e4m3_matrix *b,
                   uint32_t n);

/* As mma.sync does; fraction: bits of a sum behind its point, 25 or 13. */
void e4m3_multiply_halves(float (*d)[256], const struct e4m3_matrix *a, const struct e4m3_matrix *b,
                          uint32_t n, int32_t fraction);

#ifdef __cplusplus
}
#endif
