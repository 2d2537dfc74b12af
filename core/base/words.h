/* Which of some words a word is, and numbers in a text. */
#pragma once

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Its number among `count` words; -1: it is none of them. */
static inline int mk_word(const char *word, const char *const *words, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!strcmp(word, words[i]))
            return (int)i;
    return -1;
}

/* `count` numbers from 0 to `most`, digits alone, with `between` between them and nothing behind. 0
 * or -EINVAL. */
static inline int mk_read_numbers(const char *text, char between, uint32_t count, uint64_t most,
                                  uint64_t *out)
{
    for (uint32_t i = 0; i < count; i++) {
        const char *first = text;
        uint64_t value = 0;
        for (; *text >= '0' && *text <= '9'; text++) {
            const uint64_t digit = (uint64_t)(*text - '0');
            if (digit > most || value > (most - digit) / 10)
                return -EINVAL;
            value = value * 10 + digit;
        }
        if (text == first || *text != (i + 1 < count ? between : '\0'))
            return -EINVAL;
        text++;
        out[i] = value;
    }
    return 0;
}

/* If `text` is "name=...": what is behind the =. Else NULL. */
static inline const char *setting_value(const char *text, const char *name)
{
    size_t n = strlen(name);
    return !strncmp(text, name, n) && text[n] == '=' ? text + n + 1 : NULL;
}
