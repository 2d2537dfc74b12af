/* The word that a mistyped one probably stands for. */
#ifndef MK_NEAREST_H
#define MK_NEAREST_H

#include <stddef.h>

/* The closest of `words` to `typed`, by edits and transpositions; a prefix counts as close. Pure.
 * NULL: none is close. */
const char *nearest_word(const char *typed, const char *const *words, size_t count);

#endif
