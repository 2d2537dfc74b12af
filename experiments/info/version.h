/* The version of this program, and what it was built with. */
#pragma once

#include <stdio.h>

/* The commit that it was built from, as `git describe --always --dirty` says; "unknown" where the
 * tree was none of git's. */
const char *version_commit(void);

/* "with CUDA 13.0" or "without CUDA", and so on. */
#define VERSION_TEXT 256
const char *version_build(char text[VERSION_TEXT]);

/* CUDART_VERSION of the build: 12090 for CUDA 12.9; 0: without CUDA. */
int version_cuda(void);

/* `mkernel --version`. */
void version_print(FILE *out);
