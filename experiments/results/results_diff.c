#include "experiments/results/results_diff.h"
#include "core/base/words.h"
#include "experiments/common/csv_table.h"
#include "experiments/results/results_takes.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SEED 20260102u

/* How many settings of `a` stand between the two, and the name of the last of them. */
static uint32_t results_diff_between(const struct result_point *a, const struct result_point *b,
                                     const char *const *without, uint32_t count, const char **which)
{
    uint32_t between = 0;
    const char *exec = result_value(b, "exec");
    for (uint32_t i = 0; i < a->setting_count; i++) {
        const struct result_setting *s = &a->settings[i];
        if (mk_word(s->name, without, count) >= 0 || !result_exec_takes(exec, s->name) ||
            !strcmp(s->value, result_value(b, s->name)))
            continue;
        *which = s->name;
        between++;
    }
    return between;
}

/* The same both ways: what only one has is "default" in the other. */
static uint32_t results_diff_apart(const struct result_point *a, const struct result_point *b,
                                   const char *const *without, uint32_t count, const char **which)
{
    uint32_t one = results_diff_between(a, b, without, count, which);
    return one + results_diff_between(b, a, without, count, which);
}

int result_same(const struct result_point *a, const struct result_point *b,
                const char *const *without, uint32_t count)
{
    const char *which;
    return !results_diff_apart(a, b, without, count, &which);
}

const struct result_point *result_simulation(const struct results *r, const struct result_point *of)
{
    static const char *const exec[] = {"exec"};
    for (uint32_t i = 0; i < r->count && strcmp(result_value(of, "exec"), "sim"); i++) {
        const struct result_point *twin = &r->points[i];
        if (!strcmp(result_value(twin, "exec"), "sim") && twin->good &&
            result_same(of, twin, exec, 1))
            return twin;
    }
    return NULL;
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
        for (uint32_t k = 0; k < b->count && !list[i].several; k++) {
            if (!result_same(&a->points[i], &b->points[k], without, count))
                continue;
            if (list[i].b)
                results_diff_apart(list[i].b, &b->points[k], NULL, 0, &list[i].several);
            else
                list[i].b = &b->points[k];
        }
        if (list[i].several) /* none of them is the one that was meant */
            list[i].b = NULL;
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

/* Why there is no pair: the settings that the two nearest points do not share. */
static void results_diff_print_nearest(FILE *out, const struct results *a, const struct results *b,
                                       const char *const *without, uint32_t count)
{
    const struct result_point *x = NULL, *y = NULL;
    const char *which;
    uint32_t least = UINT32_MAX;
    for (uint32_t i = 0; i < a->count; i++)
        for (uint32_t k = 0; k < b->count; k++) {
            uint32_t apart =
                results_diff_apart(&a->points[i], &b->points[k], without, count, &which);
            if (!apart || apart >= least)
                continue;
            least = apart;
            x = &a->points[i];
            y = &b->points[k];
        }
    if (!x)
        return;
    fprintf(out, "the nearest two are %s and %s, which differ in", x->label, y->label);
    const struct result_point *const both[] = {x, y};
    for (int side = 0, any = 0; side < 2; side++)
        for (uint32_t i = 0; i < both[side]->setting_count; i++) {
            const char *name = both[side]->settings[i].name;
            int there = 0; /* said of the first already */
            for (uint32_t k = 0; side && k < x->setting_count; k++)
                there |= !strcmp(x->settings[k].name, name);
            if (there || mk_word(name, without, count) >= 0 ||
                !result_exec_takes(result_value(both[!side], "exec"), name) ||
                !strcmp(result_value(x, name), result_value(y, name)))
                continue;
            fprintf(out, "%s %s (%s, %s)", any++ ? "," : "", name, result_value(x, name),
                    result_value(y, name));
        }
    fprintf(out, "\n");
}

static void results_diff_ms(FILE *out, const struct result_point *p)
{
    if (p && p->good)
        fprintf(out, "  %10.4g", p->ms.median);
    else
        fprintf(out, "  %10s", "-");
}

void result_print_pairs(FILE *out, const struct results *a, const struct results *b,
                        const struct result_pair *pairs, const char *const *without, uint32_t count)
{
    size_t width = 5;
    uint32_t faster = 0, slower = 0, alike = 0, lone = 0, several = 0, measured = 0, paired = 0;
    const char *differ = NULL;
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
        if (p->several) {
            several++;
            differ = p->several;
            continue;
        }
        if (!p->b) {
            lone++;
            continue;
        }
        paired++;
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
        fprintf(out, "\n%s\n",
                paired ? "no point has times in both" : "no point of A has a partner in B");
    else
        fprintf(out,
                "\nB is faster at %u points, slower at %u, and no difference is seen at %u; "
                "geometric mean of B's time by A's: %.3f\n",
                faster, slower, alike, exp(sum / measured));
    if (measured >= 20)
        fprintf(out, "of %u pairs that are alike about %u would be called different by chance\n",
                measured, (measured + 10) / 20);
    if (!paired && !several)
        results_diff_print_nearest(out, a, b, without, count);
    else if (lone)
        fprintf(out, "%u point%s of A %s no partner in B\n", lone, lone > 1 ? "s" : "",
                lone > 1 ? "have" : "has");
    if (several)
        fprintf(out,
                "%u point%s of A %s several partners in B, which differ in %s: choose one of its "
                "values, NAME=B;%s=VALUE\n",
                several, several > 1 ? "s" : "", several > 1 ? "have" : "has", differ, differ);
}

int result_write_pairs(const char *path, const struct results *a, const struct result_pair *pairs)
{
    static const char *const words[] = {"no difference seen", "faster", "slower"};
    struct csv_table csv = {.count = 0};
    for (uint32_t i = 0; i < a->count; i++) {
        const struct result_pair *p = &pairs[i];
        if (!p->b)
            continue;
        csv_row(&csv);
        csv_text(&csv, "point", p->a->key);
        csv_number(&csv, "a_ms", "%.9g", p->a->ms.median);
        csv_number(&csv, "b_ms", "%.9g", p->b->ms.median);
        csv_number(&csv, "ratio", "%.6g", p->difference.ratio.median);
        csv_number(&csv, "ratio_low", "%.6g", p->difference.ratio.low);
        csv_number(&csv, "ratio_high", "%.6g", p->difference.ratio.high);
        csv_text(&csv, "verdict",
                 isnan(p->difference.ratio.median) ? "not measured" : words[p->difference.verdict]);
    }
    return csv.count ? csv_end(&csv, path, 0) : -ENODATA;
}
