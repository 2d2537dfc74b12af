/* The panels that follow the cursor: what lies under it and why, and the figures of a range. */
#include <math.h>
#include <stdio.h>

#include "tui/cells.h"
#include "core/base/sentence.h"
#include "tui/picture.h"

/* A range is summed over so many parts: its ends are right to 1 / 256 of it. */
#define RANGE_PARTS 256

static void panel_cursor_detail_chain(struct panel_text *t, const struct model *m)
{
    const struct row *row = model_row(m);
    char time[32], ns[32];
    for (int i = 0; i < m->chain.count; i++) {
        const struct chain_step *s = &m->chain.step[i];
        int here = i == m->step;
        if (isnan(s->ns))
            ns[0] = 0;
        else if (s->uncertain)
            snprintf(ns, sizeof ns, "within ±");
        else
            words_length_in(ns, 9, s->ns);
        if (isnan(s->time))
            time[0] = 0;
        else
            words_time_in(time, 11, model_clock(m, model_screen_time(m, row->file, s->time)), 10);
        if (here)
            t->follow = t->count;
        panel_add(t, "%s%s %-9s %11s %9s  %s", here ? STRONG : PLAIN, here ? "▶" : " ", s->name,
                  time, ns, s->text);
    }
}

/* A folded row: what its CTAs were doing in the column under the cursor. */
static void panel_cursor_detail_group(struct panel_text *t, struct model *m, const struct row *row)
{
    struct source *s = m->source[row->file];
    float share[SPAN_CLASSES];
    double wide[SPAN_CLASSES], column = model_column_of(m, row->file, m->cursor);
    char bar[640], length[32], name[48];
    int width = m->width < 100 ? m->width / 3 : m->width / 2;
    if (row->kind == ROW_RANK)
        snprintf(name, sizeof name, "rank %d", row->rank);
    else
        snprintf(name, sizeof name, "rank %d %s", row->rank, source_role_name(row->role));
    panel_add(t, STRONG "%s" PLAIN ", %d CTA%s, in the %s under the cursor", name, row->ctas,
              row->ctas > 1 ? "s" : "", words_length(length, column));
    int shown = 0;
    if (row->kind == ROW_RANK) {
        float overlap[OVERLAP_CLASSES];
        if (source_overlap(s, row->rank, model_file_time(m, row->file, m->cursor), column, 1,
                           overlap))
            return;
        for (int i = 0; i < OVERLAP_CLASSES; i++)
            wide[i] = overlap[i];
        panel_add(t, "%-13s%s  compute only %.0f %%, both %.0f %%, communication only %.0f %%",
                  "overlap",
                  panel_bar(bar, sizeof bar, width / 2, overlap_look, wide, OVERLAP_CLASSES),
                  100 * overlap[OVERLAP_COMPUTE], 100 * overlap[OVERLAP_BOTH],
                  100 * overlap[OVERLAP_COMMUNICATION]);
    }
    for (int role = row->kind == ROW_RANK ? 0 : row->role;
         role < (row->kind == ROW_RANK ? MK_ROLES : row->role + 1); role++) {
        char parts[256] = "";
        struct source_group g = {row->rank, role, -1};
        if (m->filtering && m->filter.roles && !(m->filter.roles >> role & 1))
            continue;
        if (source_occupancy(s, g, model_file_time(m, row->file, m->cursor), column, 1, share))
            return;
        for (int i = 0; i < SPAN_CLASSES; i++) {
            wide[i] = share[i];
            if (share[i] >= 0.005f)
                mk_append(parts, sizeof parts, "  %s %.0f %%", span_look[i].name, 100 * share[i]);
        }
        if (wide[0] >= 0.9999 && row->kind != ROW_ROLE)
            continue;
        panel_add(t, "%-13s%s%s", source_role_name(role),
                  panel_bar(bar, sizeof bar, width / 2, span_look, wide, SPAN_CLASSES), parts);
        shown++;
    }
    if (!shown)
        panel_add(t, "all of its CTAs are idle here");
    panel_add(t, FAINT "Enter: to the longest wait of this row in view.  Space: %s",
              row->open ? "fold" : "unfold");
}

static void panel_cursor_detail_link(struct panel_text *t, struct model *m, const struct row *row)
{
    float now, peak;
    char bytes[2][32];
    enum source_link link = row->kind == ROW_NIC ? LINK_NIC : LINK_NVLINK;
    if (source_bytes(m->source[row->file], row->rank, link,
                     model_file_time(m, row->file, m->cursor),
                     model_column_of(m, row->file, m->cursor), 1, &now, &peak))
        return;
    panel_add(t,
              STRONG "%s out of rank %d" PLAIN
                     ": %s in flight under the cursor, %s at most in the run",
              link == LINK_NIC ? "NIC" : "NVLink", row->rank, words_bytes(bytes[0], now),
              words_bytes(bytes[1], peak));
    if (m->chain.count)
        panel_cursor_detail_chain(t, m);
    else if (link == LINK_NIC)
        panel_add(t, FAINT "no message was posted before this");
}

void panel_detail(struct panel_text *t, struct model *m)
{
    const struct row *row = model_row(m);
    char time[32];
    if (!row) {
        panel_add(t, FAINT "nothing is under the cursor: there are no rows");
    } else if (m->on_chain || row->kind == ROW_CTA) {
        if (!m->chain.count) {
            panel_add(t, FAINT "rank %d %s CTA %d does nothing at %s; Tab goes to its next event",
                      row->rank, source_role_name(row->role), row->cta,
                      words_time(time, model_clock(m, m->cursor), model_column(m) / 10));
            return;
        }
        if (m->chain.verdict[0])
            panel_add(t, STRONG "%s" PLAIN, m->chain.verdict);
        panel_cursor_detail_chain(t, m);
    } else if (row->kind == ROW_NIC || row->kind == ROW_NVLINK) {
        panel_cursor_detail_link(t, m, row);
    } else {
        panel_cursor_detail_group(t, m, row);
    }
}

static void panel_cursor_range_ranks(struct panel_text *t, struct model *m, int file, double a,
                                     double step)
{
    float overlap[RANGE_PARTS * OVERLAP_CLASSES];
    char bar[640];
    int width = m->width < 100 ? m->width / 4 : m->width / 3;
    for (int rank = 0; rank < m->source[file]->info.ranks; rank++) {
        double sum[OVERLAP_CLASSES] = {0};
        if (source_overlap(m->source[file], rank, a, step, RANGE_PARTS, overlap))
            return;
        for (int i = 0; i < RANGE_PARTS * OVERLAP_CLASSES; i++)
            sum[i % OVERLAP_CLASSES] += overlap[i] / RANGE_PARTS;
        panel_add(t,
                  "rank %-8d%s  compute only %.1f %%  both %.1f %%  communication only %.1f %%  "
                  "neither %.1f %%",
                  rank, panel_bar(bar, sizeof bar, width, overlap_look, sum, OVERLAP_CLASSES),
                  100 * sum[OVERLAP_COMPUTE], 100 * sum[OVERLAP_BOTH],
                  100 * sum[OVERLAP_COMMUNICATION], 100 * sum[OVERLAP_IDLE]);
    }
}

static void panel_cursor_range_roles(struct panel_text *t, struct model *m, int file, int rank,
                                     double a, double step)
{
    float share[RANGE_PARTS * SPAN_CLASSES];
    char bar[640];
    int width = m->width < 100 ? m->width / 4 : m->width / 3;
    panel_add(t, STRONG "roles of rank %d" PLAIN, rank);
    for (int role = 0; role < MK_ROLES; role++) {
        double sum[SPAN_CLASSES] = {0};
        char parts[256] = "";
        if (source_occupancy(m->source[file], (struct source_group){rank, role, -1}, a, step,
                             RANGE_PARTS, share))
            return;
        for (int i = 0; i < RANGE_PARTS * SPAN_CLASSES; i++)
            sum[i % SPAN_CLASSES] += share[i] / RANGE_PARTS;
        for (int i = 1; i < SPAN_CLASSES; i++)
            if (sum[i] >= 0.0005)
                mk_append(parts, sizeof parts, "  %s %.1f %%", span_look[i].name, 100 * sum[i]);
        if (*parts)
            panel_add(t, "%-13s%s%s", source_role_name(role),
                      panel_bar(bar, sizeof bar, width, span_look, sum, SPAN_CLASSES), parts);
    }
}

void panel_range(struct panel_text *t, struct model *m)
{
    const struct row *row = model_row(m);
    int file = row ? row->file : 0;
    char text[3][32];
    if (isnan(m->range[0]) || isnan(m->range[1])) {
        panel_add(t, FAINT "[ sets where a range starts, ] where it ends; its figures come here");
        return;
    }
    double a = model_file_time(m, file, m->range[0]), b = model_file_time(m, file, m->range[1]);
    panel_add(t,
              STRONG "%s" PLAIN " from %s to %s" FAINT
                     "  (right to 1/%d of the range; f fits it, Escape clears it)",
              words_length(text[0], b - a), words_time(text[1], model_clock(m, m->range[0]), 10),
              words_time(text[2], model_clock(m, m->range[1]), 10), RANGE_PARTS);
    if (b <= a) {
        panel_add(t, FAINT "the range is empty");
        return;
    }
    panel_cursor_range_ranks(t, m, file, a, (b - a) / RANGE_PARTS);
    if (row)
        panel_cursor_range_roles(t, m, file, row->rank, a, (b - a) / RANGE_PARTS);
}
