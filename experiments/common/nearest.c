#include "experiments/common/nearest.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define LONGEST 40

/* Optimal string alignment distance (Damerau 1964): insert, delete, replace, swap neighbours. */
static size_t nearest_edits(const char *a, size_t la, const char *b, size_t lb)
{
    size_t d[LONGEST + 1][LONGEST + 1];
    for (size_t i = 0; i <= la; i++)
        d[i][0] = i;
    for (size_t j = 0; j <= lb; j++)
        d[0][j] = j;
    for (size_t i = 1; i <= la; i++) {
        for (size_t j = 1; j <= lb; j++) {
            size_t best = d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
            if (d[i - 1][j] + 1 < best)
                best = d[i - 1][j] + 1;
            if (d[i][j - 1] + 1 < best)
                best = d[i][j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                d[i - 2][j - 2] + 1 < best)
                best = d[i - 2][j - 2] + 1;
            d[i][j] = best;
        }
    }
    return d[la][lb];
}

const char *nearest_word(const char *typed, const char *const *words, size_t count)
{
    size_t length = strlen(typed), best = SIZE_MAX;
    const char *nearest = NULL;
    if (!length || length > LONGEST)
        return NULL;
    for (size_t i = 0; i < count; i++) {
        size_t other = strlen(words[i]);
        if (other > LONGEST)
            continue;
        size_t d = length >= 2 && !strncmp(typed, words[i], length)
                       ? 1
                       : nearest_edits(typed, length, words[i], other);
        if (d < best && d <= 1 + (length > other ? length : other) / 3) {
            best = d;
            nearest = words[i];
        }
    }
    return nearest;
}

const char *nearest_hint(char text[NEAREST_TEXT], const char *typed, const char *dashes,
                         const char *const *words, size_t count)
{
    const char *near = nearest_word(typed, words, count);
    text[0] = '\0';
    if (near)
        snprintf(text, NEAREST_TEXT, " (did you mean %s%s?)", dashes, near);
    return text;
}
