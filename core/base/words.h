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

/* If `text` is "name=...": what is behind the =. Else NULL. */
static inline const char *setting_value(const char *text, const char *name)
{
    size_t n = strlen(name);
    return !strncmp(text, name, n) && text[n] == '=' ? text + n + 1 : NULL;
}
