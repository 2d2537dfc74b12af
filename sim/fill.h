/* Inputs that follow from a seed. */
#pragma once

#include <stdint.h>

/* `count` random bf16 values, 1/8 <= |x| < 2, a function of what identifies them. */
void sim_fill(uint16_t *to, uint64_t count, uint64_t seed, uint32_t rank, uint64_t launch,
              uint32_t argument);
