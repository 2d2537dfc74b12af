/* `mkernel trace why`: where a launch's time goes, in parts that add up to it. */
#include "experiments/common/why_write.h"
#include "core/base/sentence.h"
#include "experiments/trace/trace_cli.h"

#include <errno.h>
#include <string.h>

#define BAR 40

static void trace_why_print_text(sqlite3 *db, const struct trace_why *w, FILE *out)
{
    char time[24], early[24];
    double whole = (double)(w->end - w->start);
    const char *op, *shape, *source;
    QUERY q = query_ask(db, "SELECT op, shape, source FROM run", "");
    if (query_row(q, "ttt", &op, &shape, &source))
        fprintf(out, "%s %s, %s: ", op, shape, source);
    fprintf(out, "launch %lu, rank %u (its slowest) took %s; %u tile%s on %u compute CTA%s\n",
            w->launch, w->rank, trace_time(time, whole), w->tiles, trace_plural(w->tiles), w->ctas,
            trace_plural(w->ctas));
    if (w->early)
        fprintf(out,
                "counted from the end of the launch before: its first block stood ready %s "
                "earlier\n",
                trace_time(early, (double)w->early));
    fprintf(out, "\nmean of the compute CTAs          time       %%\n");
    for (int i = 0; i < TRACE_WHY_PARTS; i++) {
        double share = whole > 0 ? w->ns[i] / whole : 0;
        if (w->ns[i] <= 0)
            continue;
        fprintf(out, "  %-30s %9s  %5.1f  ", trace_why_name(i), trace_time(time, w->ns[i]),
                100 * share);
        for (int j = 0; j < (int)(share * BAR + 0.5) && j < BAR; j++)
            fputc('#', out);
        fputc('\n', out);
    }
    fprintf(out, "  %-30s %9s  %5.1f\n", "the whole", trace_time(time, whole), 100.0);
}

static void trace_why_print_json(const struct trace_why *w, FILE *out)
{
    fputs("{\n", out);
    why_json(out, w);
    fputs("}\n", out);
}

int trace_report_why(sqlite3 *db, uint64_t launch, int json, FILE *out, char *error, size_t size)
{
    struct trace_why w;
    int rc = trace_why(db, launch, &w, error, size);
    if (rc)
        return rc;
    if (json)
        trace_why_print_json(&w, out);
    else
        trace_why_print_text(db, &w, out);
    if (fflush(out) != 0)
        return mk_fail(-EIO, error, size, "cannot write the report: %s", strerror(errno));
    return 0;
}
