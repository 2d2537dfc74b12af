/* The frame: title, legend, panel, status line, and what stands there when the terminal is too
 * small. */
#include "tui/layout.h"

#include <stdio.h>
#include <string.h>

static const char *const panel_name[PANELS] = {"Detail", "Overlap", "Roles",
                                               "Stalls", "Slowest", "Critical path",
                                               "Range",  "Why",     "Difference"};

void layout_fill(struct cells *c, int y, int from, int to, uint32_t glyph, int colour, int attr)
{
    for (int x = from; x < to; x++)
        cells_put(c, x, y, glyph, colour, attr);
}

void layout_title(struct cells *c, int width, const char *left, const char *right, int colour,
                  int attr)
{
    int room = width - cells_columns(right) - 1;
    layout_fill(c, 0, 0, width, ' ', COLOUR_TITLE, ATTR_REVERSE);
    int end = cells_text(c, 0, 0, room, COLOUR_TITLE, ATTR_REVERSE | ATTR_BOLD, left);
    if (end > room && room > 0)
        cells_put(c, room - 1, 0, 0x2026, COLOUR_TITLE, ATTR_REVERSE);
    cells_text(c, room + 1, 0, width, colour, ATTR_REVERSE | attr, right);
}

static void layout_draw_title(struct cells *c, const struct model *m)
{
    const struct source_info *a = &m->source[0]->info;
    char length[32], doubt[32], right[96], left[1024];
    double worst = a->uncertainty;
    int64_t dropped = a->dropped;
    if (m->files == 2) {
        const struct source_info *b = &m->source[1]->info;
        worst = b->uncertainty > worst ? b->uncertainty : worst;
        dropped += b->dropped;
        snprintf(left, sizeof left, " A %s (%s)  B %s (%s)", a->title, a->setting, b->title,
                 b->setting);
    } else {
        snprintf(left, sizeof left, " %s · %s · %d launch%s · %s", a->title, a->setting,
                 a->launches, a->launches == 1 ? "" : "es", words_length(length, a->end));
    }
    if (worst < 0)
        snprintf(right, sizeof right, "clocks not fitted ");
    else
        snprintf(right, sizeof right, "clock ±%s ", words_length(doubt, worst));
    if (dropped) {
        char lost[48];
        snprintf(lost, sizeof lost, "%ld events lost · ", dropped);
        memmove(right + strlen(lost), right, strlen(right) + 1);
        memcpy(right, lost, strlen(lost));
    }
    layout_title(c, m->width, left, right, dropped ? COLOUR_ERROR : COLOUR_TITLE, 0);
}

static int layout_legend_part(struct cells *c, int x, int y, int end, uint32_t glyph, int colour,
                              const char *name)
{
    if (x + 2 + cells_columns(name) > end)
        return x;
    cells_put(c, x, y, glyph, colour, 0);
    return cells_text(c, x + 2, y, end, COLOUR_FAINT, 0, name) + 2;
}

static void layout_draw_legend_ranks(struct cells *c, int y, int width)
{
    static const int order[] = {OVERLAP_BOTH, OVERLAP_COMPUTE, OVERLAP_COMMUNICATION, OVERLAP_IDLE};
    int x = cells_text(c, 1, y, width, COLOUR_FAINT, 0, "ranks ") + 1;
    for (int i = 0; i < 4; i++)
        x = layout_legend_part(c, x, y, width, overlap_look[order[i]].glyph,
                               overlap_look[order[i]].colour, overlap_look[order[i]].name);
}

int layout_spans(struct cells *c, int x, int y, int width)
{
    for (int i = 1; i <= SPAN_CLASSES; i++) {
        const struct class_look *look = &span_look[i % SPAN_CLASSES]; /* idle last */
        x = layout_legend_part(c, x, y, width, look->glyph, look->colour,
                               width < 104 ? look->brief : look->name);
    }
    return x;
}

static void layout_draw_legend_spans(struct cells *c, int y, int width)
{
    int brief = width < 104;
    int x = cells_text(c, 1, y, width, COLOUR_FAINT, 0, brief ? "" : "CTAs ") + !brief;
    x = layout_spans(c, x, y, width);
    x = layout_legend_part(c, x, y, width, SPAN_LITTLE_COMPUTE, COLOUR_COMPUTE,
                           width < 140 ? "some" : "some compute");
    layout_legend_part(c, x, y, width, SPAN_LITTLE_COPY, COLOUR_COPY,
                       width < 140 ? "some" : "some copy");
}

static void layout_draw_legend_links(struct cells *c, const struct model *m,
                                     const struct picture *p, int y, int width)
{
    char bytes[32] = "nothing";
    const struct row *row = model_row(m);
    for (int i = 0; i < p->count; i++)
        if (p->rows[i].row.kind == row->kind && p->rows[i].row.rank == row->rank &&
            p->rows[i].row.file == row->file)
            words_bytes(bytes, p->rows[i].peak);
    int colour = row->kind == ROW_NIC ? COLOUR_NIC : COLOUR_NVLINK;
    int x = cells_text(c, 1, y, width, colour, 0, "▁▂▃▄▅▆▇█");
    cells_print(c, x + 1, y, width, COLOUR_FAINT, 0,
                "bytes in flight out of rank %d, a full cell is its peak: %s", row->rank, bytes);
}

static void layout_draw_legend(struct cells *c, const struct model *m, const struct picture *p,
                               const struct geometry *g)
{
    const struct row *row = model_row(m);
    if (g->legend_rows == 2) {
        layout_draw_legend_ranks(c, g->legend, m->width);
        if (row && (row->kind == ROW_NIC || row->kind == ROW_NVLINK))
            layout_draw_legend_links(c, m, p, g->legend + 1, m->width);
        else
            layout_draw_legend_spans(c, g->legend + 1, m->width);
    } else if (g->legend_rows == 1 && row) {
        if (row->kind == ROW_RANK)
            layout_draw_legend_ranks(c, g->legend, m->width);
        else if (row->kind == ROW_NIC || row->kind == ROW_NVLINK)
            layout_draw_legend_links(c, m, p, g->legend, m->width);
        else
            layout_draw_legend_spans(c, g->legend, m->width);
    }
}

/* The panel's bar: names of all panels, the shown one in brackets; where they do not fit, that one
 * alone. */
static void layout_draw_panel_bar(struct cells *c, const struct model *m, const struct geometry *g)
{
    int panels = m->files == 2 ? PANELS : PANEL_DIFFERENCE, x = 1, all = 2;
    layout_fill(c, g->panel, 0, m->width, 0x2500, COLOUR_FAINT, 0);
    if (m->help) {
        cells_text(c, x, g->panel, m->width, COLOUR_TEXT, ATTR_BOLD, "[Keys]");
        return;
    }
    for (int i = 0; i < panels; i++)
        all += (int)strlen(panel_name[i]) + 5;
    for (int i = 0; i < panels; i++) {
        int shown = i == (int)m->panel;
        if (all > m->width && !shown)
            continue;
        x = cells_print(c, x, g->panel, m->width, shown ? COLOUR_TEXT : COLOUR_FAINT,
                        shown ? ATTR_BOLD : 0, shown ? "[%d %s]" : " %d %s ", i + 1,
                        panel_name[i]) +
            1;
    }
    if (all > m->width)
        cells_print(c, x, g->panel, m->width, COLOUR_FAINT, 0, " 1–%d others ", panels);
}

static void layout_draw_line(struct cells *c, int y, int width, const char *text)
{
    int colour = COLOUR_TEXT, attr = 0, x = 1;
    char piece[PANEL_WIDTH];
    while (*text) {
        if (*text == 1 && text[1]) {
            colour = text[1] - 'A';
            text += 2;
        } else if (*text == 2 && text[1]) {
            attr = text[1] - 'A';
            text += 2;
        } else {
            size_t n = strcspn(text, "\001\002");
            n = n < sizeof piece - 1 ? n : sizeof piece - 1;
            memcpy(piece, text, n);
            piece[n] = 0;
            x = cells_text(c, x, y, width, colour, attr, piece);
            text += n;
        }
    }
    if (x > width)
        cells_put(c, width - 1, y, 0x2026, COLOUR_FAINT, 0);
}

static void layout_draw_panel(struct cells *c, const struct model *m, const struct picture *p,
                              const struct geometry *g)
{
    int height = g->panel_height - 1, first = m->scroll;
    layout_draw_panel_bar(c, m, g);
    if (m->help) {
        int more =
            layout_help(c, HELP_TRACE, m->width, m->scroll, g->panel + 1, height) - first - height;
        if (more > 0)
            cells_print(c, m->width - 13, g->panel, m->width, COLOUR_FAINT, 0, " J: %d more ",
                        more);
        return;
    }
    if (p->panel.follow >= 0 && (p->panel.follow >= first + height || p->panel.follow < first))
        first = p->panel.follow - height + 1 < 0 ? 0 : p->panel.follow - height + 1;
    for (int i = 0; i < height && first + i < p->panel.count; i++)
        layout_draw_line(c, g->panel + 1 + i, m->width, p->panel.line[first + i]);
    if (first + height < p->panel.count)
        cells_print(c, m->width - 13, g->panel, m->width, COLOUR_FAINT, 0, " J: %d more ",
                    p->panel.count - first - height);
}

static void layout_draw_status(struct cells *c, const struct model *m, const struct geometry *g)
{
    static const char *const ask[] = {
        "", "/", "\\", ":", "bookmark letter (a–z): ", "to bookmark (a–z): "};
    int y = g->status;
    if (m->prompt != PROMPT_NONE) {
        static const char *const hint[] = {"",
                                           "wait network rank 2 >10us",
                                           "rank 0-3 role compute wait",
                                           "1.5ms, +20us, epoch 2",
                                           "",
                                           ""};
        int x = cells_text(c, 0, y, m->width, COLOUR_TEXT, ATTR_BOLD, ask[m->prompt]);
        x = cells_text(c, x, y, m->width, COLOUR_TEXT, 0, m->text);
        cells_put(c, x, y, ' ', COLOUR_TEXT, ATTR_REVERSE);
        if (!m->length && hint[m->prompt][0])
            cells_print(c, x + 2, y, m->width, COLOUR_FAINT, 0, "for example %s", hint[m->prompt]);
    } else if (m->message[0]) {
        cells_text(c, 1, y, m->width, m->failed ? COLOUR_ERROR : COLOUR_TEXT, ATTR_BOLD,
                   m->message);
    } else {
        char text[256];
        snprintf(
            text, sizeof text,
            "%s%s%s? keys  q quit  + - zoom  Space fold  Enter cause  w worst wait  1–%d panels",
            m->filtering ? "filter: " : "", m->filtering ? m->filter.text : "",
            m->filtering ? "  " : "", m->files == 2 ? PANELS : PANEL_DIFFERENCE);
        cells_text(c, 1, y, m->width, COLOUR_FAINT, 0, text);
    }
}

void layout_too_small(struct cells *c)
{
    char text[64];
    snprintf(text, sizeof text, "%d×%d is too small: %d×%d at least", c->width, c->height,
             MIN_WIDTH, MIN_HEIGHT);
    if (c->width >= cells_columns(text)) {
        cells_text(c, 0, 0, c->width, COLOUR_ERROR, ATTR_BOLD, text);
    } else { /* as many words as fit */
        cells_text(c, 0, 0, c->width, COLOUR_ERROR, ATTR_BOLD, "too small");
        cells_print(c, 0, 1, c->width, COLOUR_ERROR, 0, "%d×%d at least", MIN_WIDTH, MIN_HEIGHT);
    }
}

int layout_draw(struct cells *c, const struct model *m, const struct picture *p)
{
    struct geometry g = model_geometry(m);
    int rc = cells_reset(c, m->width, m->height, m->ascii);
    if (rc)
        return rc;
    if (g.too_small) {
        layout_too_small(c);
        return 0;
    }
    layout_draw_title(c, m);
    layout_ruler(c, m, &g);
    layout_rows(c, m, p, &g);
    layout_draw_legend(c, m, p, &g);
    layout_draw_panel(c, m, p, &g);
    layout_draw_status(c, m, &g);
    return 0;
}
