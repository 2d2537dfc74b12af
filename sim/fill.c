#include "sim/fill.h"

#include "sim/clock.h"

#include <string.h>

void sim_fill(uint16_t *to, uint64_t count, uint64_t seed, uint32_t rank, uint64_t launch,
              uint32_t argument)
{
    struct sim_random random = sim_stream(seed, launch, rank, argument);
    for (uint64_t i = 0; i < count; i += 4) {
        /* Sign, two bits of exponent and the mantissa are random. */
        uint64_t bits = (sim_random(&random) & 0x81ff81ff81ff81ffull) | 0x3e003e003e003e00ull;
        memcpy(to + i, &bits, count - i < 4 ? (count - i) * 2 : 8);
    }
}
