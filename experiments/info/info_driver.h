/* The parts of `mkernel info` about kernels that the installed driver cannot run, and about a
 * command that works here. */
#pragma once

#include "experiments/common/gpu.h"

#include <stddef.h>

/* Why kernels of a build by CUDA `built` (12090 for 12.9; 0: without CUDA) do not run on GPU number
 * `number`, `g`, under a driver of CUDA `driver`: 1 and a sentence, or 0. A driver runs code that a
 * toolkit of its major version has compiled for the GPU, and compiles PTX of its own version or an
 * older one (CUDA Compatibility, NVIDIA). */
int info_driver_lacks(const struct gpu_device *g, unsigned number, int driver, int built,
                      char *text, size_t size);

/* A command that runs there: on `gpus` GPUs that a build by CUDA `built` has kernels for and a
 * driver takes (0: on the host), as two nodes where `soft`, softnic, is there and one GPU or none
 * is. */
void info_command(unsigned gpus, int built, int soft, char *text, size_t size);
