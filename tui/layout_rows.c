/* The timeline: the ruler and the rows. */
#include <math.h>
#include <stdio.h>

#include "tui/layout.h"

#define LITTLE 0.125f /* of a cell: from here on work shows where idle is more */

int layout_column(const struct model *m, const struct geometry *g, double time)
{
    double column = model_column(m), at = floor((time - m->t0) / column + 1e-9);
    return at < 0 || at >= g->columns ? -1 : g->label + (int)at;
}

/* A step of 1, 2 or 5 times a power of ten ns whose labels do not touch. */
static double layout_rows_tick_step(double column, int columns_per_label)
{
    static const double series[] = {1, 2, 5};
    for (double power = 1; power < 1e15; power *= 10)
        for (int i = 0; i < 3; i++)
            if (series[i] * power >= column * columns_per_label)
                return series[i] * power;
    return 1e15;
}

static void layout_rows_draw_ticks(struct cells *c, const struct model *m, const struct geometry *g)
{
    double step = layout_rows_tick_step(model_column(m), 13);
    int marks = g->ruler + g->ruler_rows - 1;
    char text[32];
    if (g->ruler_rows > 1)
        for (int x = g->label; x < m->width; x++)
            cells_put(c, x, marks, 0x2500, COLOUR_FAINT, 0);
    int last = g->label - 1; /* labels never touch what stands before them */
    for (double t = ceil(model_clock(m, m->t0) / step) * step; t < model_clock(m, m->t1);
         t += step) {
        double shown = model_screen_time(m, 0, t);
        if (model_is_cut(m, shown, 0)) { /* on to the first behind the cut */
            t = floor(model_clock(m, model_next_cut(m, shown, m->t1)) / step) * step;
            continue;
        }
        int x = layout_column(m, g, shown);
        words_time(text, fabs(t) < step / 2 ? 0 : t, step);
        int width = cells_columns(text) + 1;
        if (x < 0 || x + width > m->width)
            continue;
        if (g->ruler_rows > 1)
            cells_put(c, x, marks, 0x2534, COLOUR_FAINT, 0);
        if (x <= last)
            continue;
        cells_put(c, x, g->ruler, 0x2502, COLOUR_FAINT, 0);
        last = cells_text(c, x + 1, g->ruler, m->width, COLOUR_FAINT, 0, text);
    }
}

static void layout_rows_draw_marks(struct cells *c, const struct model *m, const struct geometry *g)
{
    int y = g->ruler + g->ruler_rows - 1, taken = -1;
    for (int file = 0; file < m->files; file++) {
        const struct source_launch *l = m->source[file]->launches;
        for (int i = 0; i < m->source[file]->info.launches; i++) {
            int x = layout_column(m, g, model_screen_time(m, file, l[i].start));
            /* where they lie closer than their labels, the first stands for all */
            if (x < 0 || x <= taken)
                continue;
            if (g->ruler_rows == 1 && c->cell[y * c->width + x].glyph != ' ')
                continue; /* on one line the times come first */
            cells_put(c, x, y, 0x25bc, COLOUR_MARK, ATTR_BOLD);
            taken = x;
            if (g->ruler_rows > 1)
                taken = cells_print(c, x + 1, y, m->width, COLOUR_MARK, 0, "%ld", l[i].epoch);
        }
    }
    for (int i = 0; i < 26; i++) {
        int x = m->mark[i].set ? layout_column(m, g, m->mark[i].cursor) : -1;
        if (x >= 0)
            cells_put(c, x, y, (uint32_t)('a' + i), COLOUR_MARK, ATTR_REVERSE);
    }
    for (int i = 0; i < 2; i++) {
        int x = isnan(m->range[i]) ? -1 : layout_column(m, g, m->range[i]);
        if (x >= 0)
            cells_put(c, x, y, i ? ']' : '[', COLOUR_MARK, ATTR_BOLD);
    }
}

void layout_ruler(struct cells *c, const struct model *m, const struct geometry *g)
{
    char time[32];
    const struct row *row = model_row(m);
    double column = model_column(m);
    int y = g->ruler + g->ruler_rows - 1, x = layout_column(m, g, m->cursor);
    layout_rows_draw_ticks(c, m, g);
    layout_rows_draw_marks(c, m, g);
    cells_print(c, 1, g->ruler, g->label - 1, COLOUR_TEXT, ATTR_BOLD, "@ %s",
                words_time(time, model_clock(m, m->cursor), column / 10));
    if (g->ruler_rows > 1)
        cells_print(c, 1, y, g->label - 1, COLOUR_FAINT, 0, "%s/col", words_length(time, column));
    /* Around the cursor: what another rank did inside this band may have been before or after. */
    double doubt = row ? source_uncertainty(m->source[row->file], row->rank) : -1;
    if (x >= 0 && doubt >= column) {
        int reach = (int)(doubt / column);
        for (int i = x - reach; i <= x + reach; i++)
            if (i >= g->label && i < m->width)
                cells_put(c, i, y, 0x2248, COLOUR_MARK, 0);
    }
    if (x >= 0)
        cells_put(c, x, y, 0x25b2, COLOUR_TEXT, ATTR_BOLD);
}

/* The class that fills most of a cell, of those that `shown` has a bit for, and its share. Idle
 * counts. */
static int layout_rows_most_of(const float *share, int classes, uint32_t shown, float *most)
{
    int best = 0;
    float hidden = 0, seen = 0;
    for (int i = 1; i < classes; i++)
        if (shown >> i & 1)
            seen += share[i];
        else
            hidden += share[i];
    *most = share[0] + hidden; /* what is filtered away counts as idle */
    for (int i = 1; i < classes; i++)
        if ((shown >> i & 1) && share[i] > *most) {
            best = i;
            *most = share[i];
        }
    return best;
}

static void layout_rows_draw_label(struct cells *c, const struct model *m, const struct row *row,
                                   int y, int end, int current)
{
    int attr = current ? ATTR_REVERSE : 0, x = 1;
    char count[16];
    uint32_t fold = row->open ? 0x25be : 0x25b8;
    for (int i = 0; i < end - 1; i++)
        cells_put(c, i, y, ' ', COLOUR_TEXT, attr);
    cells_put(c, 0, y, current ? 0x25b6 : ' ', COLOUR_TEXT, attr);
    if (m->files == 2)
        cells_put(c, x++, y, row->file ? 'B' : 'A', row->file ? COLOUR_MARK : COLOUR_TEXT,
                  attr | ATTR_BOLD);
    switch (row->kind) {
    case ROW_RANK:
        cells_put(c, x, y, fold, COLOUR_TEXT, attr);
        x = cells_print(c, x + 2, y, end - 1, COLOUR_TEXT, attr | ATTR_BOLD, "rank %d", row->rank);
        if (m->source[row->file]->info.nic)
            cells_print(c, x + 1, y, end - 1, COLOUR_FAINT, attr, end < 22 ? "n%d" : "node %d",
                        m->source[row->file]->node[row->rank]);
        break;
    case ROW_ROLE:
        cells_put(c, x + 1, y, fold, COLOUR_TEXT, attr);
        x = cells_text(c, x + 3, y, end - 1, COLOUR_TEXT, attr, source_role_name(row->role));
        snprintf(count, sizeof count, "×%d", row->ctas);
        if (x + 1 + cells_columns(count) < end) /* whole, or not at all */
            cells_text(c, x + 1, y, end - 1, COLOUR_FAINT, attr, count);
        break;
    case ROW_CTA:
        if (row->warp >= 0)
            cells_print(c, x + 4, y, end - 1, COLOUR_TEXT, attr, "CTA %d.%d", row->cta, row->warp);
        else
            cells_print(c, x + 4, y, end - 1, COLOUR_TEXT, attr, "CTA %d", row->cta);
        break;
    case ROW_NVLINK:
        cells_text(c, x + 3, y, end - 1, COLOUR_NVLINK, attr, "NVLink out");
        break;
    case ROW_NIC:
        cells_text(c, x + 3, y, end - 1, COLOUR_NIC, attr, "NIC out");
        break;
    }
}

static void layout_rows_draw_cell(struct cells *c, const struct model *m,
                                  const struct picture_row *row, int i, int x, int y, int attr)
{
    float most;
    if (row->row.kind == ROW_NVLINK || row->row.kind == ROW_NIC) {
        double part = row->peak > 0 ? row->value[i] / row->peak : 0;
        int eighth = part <= 0 ? 0 : part >= 1 ? 8 : 1 + (int)(part * 8 > 7 ? 7 : part * 8);
        cells_put(c, x, y, eighth ? 0x2580u + (uint32_t)eighth : 0x00b7,
                  eighth == 0                ? COLOUR_IDLE
                  : row->row.kind == ROW_NIC ? COLOUR_NIC
                                             : COLOUR_NVLINK,
                  attr);
        return;
    }
    int rank = row->row.kind == ROW_RANK, classes = rank ? OVERLAP_CLASSES : SPAN_CLASSES;
    uint32_t shown = !rank && m->filtering && m->filter.classes ? m->filter.classes : ~0u;
    const struct class_look *look = rank ? overlap_look : span_look;
    const float *share = row->value + (size_t)i * (size_t)classes;
    int state = layout_rows_most_of(share, classes, shown, &most);
    cells_put(c, x, y, look[state].glyph, look[state].colour,
              attr | (most < 0.5f && state ? ATTR_DIM : 0));
    if (state || rank)
        return;
    /* Mostly idle, but not nothing: a folded row where a part of the CTAs works has glyphs of its
     * own. */
    if ((shown >> SPAN_COMPUTE & 1) && share[SPAN_COMPUTE] >= LITTLE &&
        share[SPAN_COMPUTE] >= share[SPAN_COPY])
        cells_put(c, x, y, SPAN_LITTLE_COMPUTE, COLOUR_COMPUTE, attr | ATTR_DIM);
    else if ((shown >> SPAN_COPY & 1) && share[SPAN_COPY] >= LITTLE)
        cells_put(c, x, y, SPAN_LITTLE_COPY, COLOUR_COPY, attr | ATTR_DIM);
}

void layout_rows(struct cells *c, const struct model *m, const struct picture *p,
                 const struct geometry *g)
{
    int cursor = layout_column(m, g, m->cursor);
    for (int i = 0; i < p->count && i < g->rows_height; i++) {
        const struct picture_row *row = &p->rows[i];
        int y = g->rows_top + i, current = m->top + i == m->row;
        int file = row->row.file;
        double begin = m->shift[file], end = model_screen_time(m, file, m->source[file]->info.end);
        layout_rows_draw_label(c, m, &row->row, y, g->label, current);
        for (int k = 0; k < p->columns && k < g->columns; k++) {
            double t = p->t0 + k * p->step;
            int x = g->label + k, attr = x == cursor ? ATTR_REVERSE : 0;
            if (t + p->step <= begin || t >= end)
                cells_put(c, x, y, ' ', COLOUR_TEXT, attr);
            else if (model_is_cut(m, t, p->step))
                cells_put(c, x, y, '/', COLOUR_FAINT, attr);
            else
                layout_rows_draw_cell(c, m, row, k, x, y, attr);
        }
    }
    const char *why = NULL;
    if (m->row_count == 0)
        why = m->filtering ? "No row fits this filter:" : "This trace has no tracks.";
    else if (m->source[0]->info.events == 0)
        why = "This trace has no events: the run recorded nothing.";
    if (!why)
        return;
    int y = m->row_count ? g->rows_top + g->rows_height / 2 : g->rows_top;
    cells_text(c, m->row_count ? g->label + 1 : 2, y, m->width, COLOUR_ERROR, ATTR_BOLD, why);
    if (m->row_count == 0 && m->filtering && g->rows_height > 1)
        cells_print(c, 4, g->rows_top + 1, m->width, COLOUR_TEXT, 0,
                    "%s    (\\ and Enter clear it)", m->filter.text);
}
