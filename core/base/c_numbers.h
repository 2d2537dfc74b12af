/* Numbers are read and printed with a point, whatever locale the program has set. Each function of
 * the library that a program enters by, and that reads or prints a number with a fraction, declares
 * MK_C_NUMBERS first: this thread then has the C locale until the function returns. */
#pragma once

#include <locale.h>

#define MK_C_NUMBERS                                                                               \
    __attribute__((cleanup(mk_c_numbers_end), unused)) locale_t numbers_before = mk_c_numbers()

/* Sets this thread's locale; returns the one before. */
locale_t mk_c_numbers(void);
void mk_c_numbers_end(const locale_t *before);
