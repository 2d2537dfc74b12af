#include "experiments/common/inputs.h"

#include <string.h>

void inputs_fill_half(uint32_t element, uint16_t *out, uint64_t key, uint64_t first, uint64_t count)
{
    uint64_t i = 0;
    uint16_t four[4];
    while (i < count) {
        uint64_t at = first + i;
        if (at % 4 == 0 && count - i >= 4) {
            inputs_group(element, key, at / 4, out + i);
            i += 4;
            continue;
        }
        inputs_group(element, key, at / 4, four);
        out[i++] = four[at % 4];
    }
}

void inputs_fill(uint16_t *out, uint64_t key, uint64_t first, uint64_t count)
{
    inputs_fill_half(MK_BF16, out, key, first, count);
}

void inputs_poison(uint16_t *out, uint64_t count)
{
    memset(out, 0xff, count * sizeof *out);
}
