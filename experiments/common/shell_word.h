/* A word as a shell takes it. */
#pragma once

#include <stdio.h>
#include <string.h>

/* In quotes where it needs them. */
static inline void shell_word(FILE *f, const char *word)
{
    if (*word && strspn(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                              "0123456789_-+=,./:%@") == strlen(word)) {
        fputs(word, f);
        return;
    }
    fputc('\'', f);
    for (; *word; word++)
        *word == '\'' ? fputs("'\\''", f) : fputc(*word, f);
    fputc('\'', f);
}
