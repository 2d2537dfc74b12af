#include "core/sentence.h"

#include <stdarg.h>
#include <stdio.h>

int mk_fail(int code, char *error, size_t size, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(error, size, format, args);
    va_end(args);
    return code;
}
