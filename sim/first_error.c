#include "sim/first_error.h"

#include <stdarg.h>
#include <stdio.h>

void first_error(int *error, char *sentence, size_t size, int what, const char *format, ...)
{
    va_list args;
    if (*error)
        return;
    *error = what;
    va_start(args, format);
    vsnprintf(sentence, size, format, args);
    va_end(args);
}
