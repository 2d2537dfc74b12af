/* Inside the host executors: how a tile's values and a sum reach memory. */
#pragma once

#include "sim/cta.h"

/* Part [first, first + count) (at 2 bytes each, multiples of 16) of a tile's values to where its
 * first element goes. */
void sim_store_part(const struct sim_transfer *t, uint8_t *destination, uint64_t first,
                    uint64_t count);
