/* The word that a mistyped one probably stands for. */
#pragma once

#include <stddef.h>

/* The closest of `words` to `typed`, by edits and transpositions; a prefix counts as close. Pure.
 * NULL: none is close. */
const char *nearest_word(const char *typed, const char *const *words, size_t count);

/* " (did you mean DASHESword?)" into `text`, or nothing where none is close. Returns text. */
#define NEAREST_TEXT 80
const char *nearest_hint(char text[NEAREST_TEXT], const char *typed, const char *dashes,
                         const char *const *words, size_t count);
