#include "experiments/results/results_diff.h"
#include "experiments/common/csv_row.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SEED 20260102u

static int results_diff_among(const char *const *list, uint32_t count, const char *name)
{
    for (uint32_t i = 0; i < count; i++)
        if (!strcmp(list[i], name))
            return 1;
    return 0;
}

static int results_diff_same(const struct result_point *a, const struct result_point *b,
                             const char *const *without, uint32_t count)
{
    for (uint32_t i = 0; i < a->setting_count; i++)
        if (!results_diff_among(without, count, a->settings[i].name) &&
            strcmp(a->settings[i].value, result_value(b, a->settings[i].name)))
            return 0;
    for (uint32_t i = 0; i < b->setting_count; i++) /* what only b has */
        if (!results_diff_among(without, count, b->settings[i].name) &&
            strcmp(b->settings[i].value, result_value(a, b->settings[i].name)))
            return 0;
    return 1;
}

int result_pair_up(struct result_pair **out, const struct results *a, const struct results *b,
                   const char *const *without, uint32_t count, int together)
{
    uint32_t pairs = 0;
    struct result_pair *list = *out = calloc(a->count ? a->count : 1, sizeof *list);
    if (!list)
        return -ENOMEM;
    for (uint32_t i = 0; i < a->count; i++) {
        list[i].a = &a->points[i];
        list[i].difference.ratio = (struct stat_interval){NAN, NAN, NAN};
        for (uint32_t k = 0; k < b->count && !list[i].b; k++)
            if (results_diff_same(&a->points[i], &b->points[k], without, count))
                list[i].b = &b->points[k];
        pairs += list[i].b != NULL;
    }
    for (uint32_t i = 0; i < a->count; i++) {
        const struct result_point *x = list[i].a, *y = list[i].b;
        if (y && x->good && y->good &&
            stat_compare(&list[i].difference, x->timed, x->good, y->timed, y->good,
                         together ? 0.05 / pairs : 0.05, SEED))
            return -ENOMEM;
    }
    return 0;
}

static void results_diff_ms(FILE *out, const struct result_point *p)
{
    if (p && p->good)
        fprintf(out, "  %10.4g", p->ms.median);
    else
        fprintf(out, "  %10s", "-");
}

void result_print_pairs(FILE *out, const struct results *a, const struct results *b,
                        const struct result_pair *pairs)
{
    size_t width = 5;
    uint32_t faster = 0, slower = 0, alike = 0, lone = 0, measured = 0;
    double sum = 0;
    char text[STAT_TEXT];
    fprintf(out, "A  %s\nB  %s\n\n", a->machine, b->machine);
    for (uint32_t i = 0; i < a->count; i++)
        if (pairs[i].b && strlen(pairs[i].a->label) > width)
            width = strlen(pairs[i].a->label);
    fprintf(out, "%-*s  %10s  %10s  B against A, 95 %% interval\n", (int)width, "point", "A ms",
            "B ms");
    for (uint32_t i = 0; i < a->count; i++) {
        const struct result_pair *p = &pairs[i];
        if (!p->b) {
            lone++;
            continue;
        }
        fprintf(out, "%-*s", (int)width, p->a->label);
        results_diff_ms(out, p->a);
        results_diff_ms(out, p->b);
        fprintf(out, "  %s\n", stat_say(&p->difference, text));
        if (isnan(p->difference.ratio.median))
            continue;
        measured++;
        sum += log(p->difference.ratio.median);
        faster += p->difference.verdict == STAT_FASTER;
        slower += p->difference.verdict == STAT_SLOWER;
        alike += p->difference.verdict == STAT_NO_DIFFERENCE;
    }
    if (!measured)
        fprintf(out, "\nno point has times in both\n");
    else
        fprintf(out,
                "\nB is faster at %u points, slower at %u, and no difference is seen at %u; "
                "geometric mean of B's time by A's: %.3f\n",
                faster, slower, alike, exp(sum / measured));
    if (measured >= 20)
        fprintf(out, "of %u pairs that are alike about %u would be called different by chance\n",
                measured, (measured + 10) / 20);
    if (lone)
        fprintf(out, "%u point%s of A %s no partner in B\n", lone, lone > 1 ? "s" : "",
                lone > 1 ? "have" : "has");
}

int result_write_pairs(const char *path, const struct results *a, const struct result_pair *pairs)
{
    struct csv_row *rows = calloc(a->count, sizeof *rows);
    uint32_t open = 0;
    int rc = rows ? 0 : -ENOMEM;
    for (uint32_t i = 0; i < a->count && !rc; i++) {
        static const char *const words[] = {"no difference seen", "faster", "slower"};
        const struct result_pair *p = &pairs[i];
        if (!p->b)
            continue;
        struct csv_row *row = &rows[open];
        if ((rc = csv_row_open(row)))
            break;
        open++;
        csv_text(row, "point", p->a->key);
        csv_number(row, "a_ms", "%.9g", p->a->ms.median);
        csv_number(row, "b_ms", "%.9g", p->b->ms.median);
        csv_number(row, "ratio", "%.6g", p->difference.ratio.median);
        csv_number(row, "ratio_low", "%.6g", p->difference.ratio.low);
        csv_number(row, "ratio_high", "%.6g", p->difference.ratio.high);
        csv_text(row, "verdict",
                 isnan(p->difference.ratio.median) ? "not measured" : words[p->difference.verdict]);
        rc = csv_row_close(row);
    }
    rc = rc ? rc : open ? csv_write(path, rows, open, 0) : -ENODATA;
    while (open--)
        csv_row_free(&rows[open]);
    free(rows);
    return rc;
}
