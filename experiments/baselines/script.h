/* Baselines in Python: where they lie. */
#pragma once

#include <stddef.h>

/* The path of experiments/baselines/<name> beside the build folder that this program lies in. 0, or
 * -errno where it is not there. */
int script_find(char *path, size_t size, const char *name);
