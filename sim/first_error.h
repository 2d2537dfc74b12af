/* Of what goes wrong in a run the first is told. */
#pragma once

#include <stddef.h>

/* Sets *error, and the sentence, unless it is set. */
void first_error(int *error, char *sentence, size_t size, int what, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
