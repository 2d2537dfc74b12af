/* Which of some words a word is. */
#pragma once

#include <stddef.h>
#include <string.h>

/* Its number among `count` words; -1: it is none of them. */
static inline int mk_word(const char *word, const char *const *words, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!strcmp(word, words[i]))
            return (int)i;
    return -1;
}
