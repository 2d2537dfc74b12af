#include "experiments/common/why_write.h"
#include "experiments/common/json_write.h"

#include <math.h>

static double why_write_whole(const struct trace_why *w)
{
    return (double)(w->end - w->start);
}

void why_json(FILE *out, const struct trace_why *w)
{
    char key[TRACE_WHY_KEY], name[TRACE_WHY_KEY + 8];
    json_number(out, "launch", (double)w->launch);
    json_number(out, "rank", w->rank);
    json_number(out, "compute_ctas", w->ctas);
    json_number(out, "tiles", w->tiles);
    json_number(out, "early_ns", (double)w->early);
    for (int i = 0; i < TRACE_WHY_PARTS; i++) {
        snprintf(name, sizeof name, "%s_ns", trace_why_key(i, key));
        json_number(out, name, w->ns[i]);
    }
    fprintf(out, "  \"whole_ns\": %.0f\n", why_write_whole(w));
}

void why_csv(struct csv_table *row, const struct trace_why *w)
{
    char key[TRACE_WHY_KEY], name[TRACE_WHY_KEY + 8];
    for (int i = 0; i < TRACE_WHY_PARTS; i++) {
        snprintf(name, sizeof name, "why_%s_ns", trace_why_key(i, key));
        csv_number(row, name, "%.1f", w ? w->ns[i] : NAN);
    }
    csv_number(row, "why_whole_ns", "%.0f", w ? why_write_whole(w) : NAN);
    csv_number(row, "why_rank", "%.0f", w ? w->rank : NAN);
    csv_number(row, "why_launch", "%.0f", w ? (double)w->launch : NAN);
}

void why_print(FILE *out, const struct trace_why *w, int used, int indent)
{
    double whole = why_write_whole(w);
    int at =
            used + fprintf(out, "launch %lu on rank %u, %.2f us:", w->launch, w->rank, whole / 1e3),
        any = 0;
    for (int i = 0; i < TRACE_WHY_PARTS; i++) {
        char text[64];
        double share = whole > 0 ? w->ns[i] / whole : 0;
        if (share < 0.001)
            continue;
        int n = snprintf(text, sizeof text, "%s %.1f %%", trace_why_name(i), 100 * share);
        at += fprintf(out, any++ ? "," : "");
        if (at + 1 + n > WHY_WIDTH)
            at = fprintf(out, "\n%*s", indent, "") - 1;
        else
            at += fprintf(out, " ");
        at += fprintf(out, "%s", text);
    }
    fprintf(out, "\n");
}
