/* Functions of the driver without linking libcuda: the program must start where there is none. */
#pragma once

/* Writes the driver's function of this name, as CUDA 12.0 has it, to *function (a pointer to a
 * function pointer). 0, or -EOPNOTSUPP where the driver has none. */
int cuda_driver_find(const char *name, void *function);
