/* What the pictures of results share. */
#include "experiments/results/results_plot.h"
#include "core/words.h"
#include "experiments/common/picture.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const plot_kinds[] = {"time", "speed",     "efficiency", "stack",
                                  "heat", "simulated", "roofline"};

void plot_head(const struct plot *p, FILE *out, const char *what, int height)
{
    char title[900];
    const struct results *r = p->results;
    snprintf(title, sizeof title, "%s%s%s", *r->title ? r->title : "", *r->title ? ": " : "", what);
    picture_head(out, p->path, p->named, title, 1000, height);
    fprintf(out, "set key below Left reverse noenhanced\nset grid lt 1 lw 1 lc rgb '#dddddd'\nset "
                 "tics nomirror\n"
                 "set border 3\nset xtics noenhanced\nset ytics noenhanced\n");
}

void plot_cell(FILE *out, const char *text)
{
    fputc('"', out);
    for (; *text; text++)
        fputc(*text == '"' || *text == '\\'                  ? '\''
              : (unsigned char)*text < 0x20 || *text == 0x7f ? '?'
                                                             : *text,
              out);
    fputc('"', out);
}

int plot_is_number(const char *text, double *value)
{
    char *end;
    *value = strtod(text, &end);
    return end != text && !*end && isfinite(*value);
}

uint32_t plot_words(const struct plot *p, const char *name, const char **words, uint32_t most)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < p->results->count; i++) {
        const char *value = result_value(&p->results->points[i], name);
        if (mk_word(value, words, count) < 0 && count < most)
            words[count++] = value;
    }
    /* numbers in their order, words as the sweep had them */
    for (uint32_t i = 1; i < count; i++)
        for (uint32_t k = i; k > 0; k--) {
            double a, b;
            if (!plot_is_number(words[k - 1], &a) || !plot_is_number(words[k], &b) || a <= b)
                break;
            const char *other = words[k];
            words[k] = words[k - 1];
            words[k - 1] = other;
        }
    return count;
}
