/* The part of `mkernel info` that says which NICs ranks take, and how far they are. */
#pragma once

#include "backends/nic.h"

#include <stdio.h>

/* A line for each GPU (or, without any, one for the two ranks that the host executor would start):
 * the NICs that its rank takes by default, with their distance, and how many others are how far.
 * For the verbs fabric, or for EFA, or both, as there are kernel devices of them. `buses`: PCI bus
 * ids. `sysfs`: "/sys". Opens devices for a moment. */
void info_rails(FILE *out, const char *sysfs, const struct nic_survey *survey,
                const char *const *buses, uint32_t gpus);
