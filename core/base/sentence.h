/* An error's sentence, and what is returned with it; texts that grow. */
#pragma once

#include <stddef.h>

/* Writes the sentence into `error` and returns `code`: `return mk_fail(-EINVAL, error, size, ...)`.
 */
__attribute__((format(printf, 4, 5))) int mk_fail(int code, char *error, size_t size,
                                                  const char *format, ...);

/* Adds to a text of `size` bytes, as far as there is room. Returns text. */
__attribute__((format(printf, 3, 4))) char *mk_append(char *text, size_t size, const char *format,
                                                      ...);
