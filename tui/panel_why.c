/* The panel that says where the time of the launch under the cursor goes: the parts of `mkernel
 * trace why` (tracer/why.h). */
#include <stdio.h>

#include "tui/cells.h"
#include "tui/picture.h"

/* A part's bar has the glyph and the colour of what CTAs do in it. */
static const enum span_class panel_why_class[TRACE_WHY_PARTS] = {
    [TRACE_WHY_PRODUCTS] = SPAN_COMPUTE,         [TRACE_WHY_SLOWED] = SPAN_COMPUTE,
    [TRACE_WHY_DATA] = SPAN_WAIT_DATA,           [TRACE_WHY_BACKPRESSURE] = SPAN_WAIT_ROOM,
    [TRACE_WHY_NETWORK] = SPAN_WAIT_NETWORK,     [TRACE_WHY_OWN] = SPAN_COPY,
    [TRACE_WHY_EXCHANGE_WAITS] = SPAN_WAIT_DATA, [TRACE_WHY_EXCHANGE_OWN] = SPAN_COPY,
};

/* The launch's parts. Read once while the cursor is in it, as it takes all events of a rank. */
static const struct trace_why *panel_why_read(struct source *s, int launch)
{
    if (s->why_of != s->launch_id[launch]) {
        s->why_of = s->launch_id[launch];
        s->why_not[0] = 0;
        if (trace_why(s->db, (uint64_t)s->why_of, &s->why, s->why_not, sizeof s->why_not) &&
            !s->why_not[0])
            snprintf(s->why_not, sizeof s->why_not, "the file cannot be read");
    }
    return s->why_not[0] ? NULL : &s->why;
}

static void panel_why_parts(struct panel_text *t, const struct trace_why *w, int width)
{
    double whole = (double)(w->end - w->start);
    for (int i = 0; i < TRACE_WHY_PARTS; i++) {
        char bar[512], ns[32];
        double share = whole > 0 ? w->ns[i] / whole : 0;
        if (w->ns[i] <= 0)
            continue;
        int columns = (int)(share * width + 0.5);
        panel_add(t, PLAIN "%-30s %s %5.1f %%  %s", trace_why_name(i),
                  words_length_in(ns, 10, w->ns[i]), 100 * share,
                  panel_bar(bar, sizeof bar, columns, &span_look[panel_why_class[i]],
                            (const double[]){1}, 1));
    }
}

void panel_why(struct panel_text *t, struct model *m, int file)
{
    struct source *s = m->source[file];
    char ns[2][32];
    panel_of_file(t, m, file);
    if (!s->info.launches) {
        panel_add(t, FAINT "no launches in this trace");
        return;
    }
    int launch = source_launch_at(s, model_file_time(m, file, m->cursor));
    const struct trace_why *w = panel_why_read(s, launch);
    if (!w) {
        panel_add(t, FAINT "%s", s->why_not);
        return;
    }
    panel_add(t,
              STRONG "Where the launch of epoch %ld goes: rank %u, its slowest, %s" PLAIN FAINT
                     "  (mean of %u compute CTA%s, %u tile%s)",
              s->launches[launch].epoch, w->rank, words_length(ns[0], (double)(w->end - w->start)),
              w->ctas, w->ctas == 1 ? "" : "s", w->tiles, w->tiles == 1 ? "" : "s");
    if (w->early)
        panel_add(
            t, FAINT "counted from the end of the launch before; its blocks stood ready %s earlier",
            words_length(ns[1], (double)w->early));
    int width = m->width - 54;
    panel_why_parts(t, w, width > 60 ? 60 : width);
}
