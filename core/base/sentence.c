#include "core/base/sentence.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int mk_fail(int code, char *error, size_t size, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(error, size, format, args);
    va_end(args);
    return code;
}

char *mk_append(char *text, size_t size, const char *format, ...)
{
    size_t used = strnlen(text, size);
    va_list args;
    va_start(args, format);
    vsnprintf(text + used, size - used, format, args);
    va_end(args);
    return text;
}
