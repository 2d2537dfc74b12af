/* Baselines in Python: where they lie, and what they said when they failed. */
#pragma once

#include <stddef.h>

/* The path of experiments/baselines/<name> beside the build folder that this program lies in. 0, or
 * -errno where it is not there. */
int script_find(char *path, size_t size, const char *name);

/* A file without a name for a script's standard error; the caller closes it. -1: none. */
int script_said_open(void);

/* The line of it that says what went wrong, for a sentence: the last that names an error, else the
 * last of all; "it said nothing" where there is none. */
void script_said(int said, char *line, size_t size);
