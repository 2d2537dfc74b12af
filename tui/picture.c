#include "tui/picture.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int picture_classes_of(enum row_kind kind)
{
    return kind == ROW_RANK                        ? OVERLAP_CLASSES
           : kind == ROW_NVLINK || kind == ROW_NIC ? 1
                                                   : SPAN_CLASSES;
}

static int picture_same(const struct row *a, const struct row *b)
{
    return a->kind == b->kind && a->file == b->file && a->rank == b->rank && a->role == b->role &&
           a->track == b->track;
}

static int picture_read_columns(struct picture *p, struct model *m, struct picture_row *out,
                                double t0, int first, int columns)
{
    const struct row *row = &out->row;
    struct source *s = m->source[row->file];
    float *value = out->value + first * picture_classes_of(row->kind);
    switch (row->kind) {
    case ROW_RANK:
        return source_overlap(s, row->rank, t0, p->step, columns, value);
    case ROW_NVLINK:
    case ROW_NIC:
        return source_bytes(s, row->rank, row->kind == ROW_NIC ? LINK_NIC : LINK_NVLINK, t0,
                            p->step, columns, value, &out->peak);
    default:
        return source_occupancy(s, row_group(row), t0, p->step, columns, value);
    }
}

/* From cut to cut, as between them the file's time goes as the screen's does. A column belongs to
 * where its middle is; of one that is cut out nothing is shown (its time is read as if it were not
 * cut, from where it begins). */
static int picture_read_row(struct picture *p, struct model *m, struct picture_row *out)
{
    int rc = 0;
    for (int first = 0, next; first < p->columns && !rc; first = next) {
        double middle = p->t0 + (first + 0.5) * p->step,
               end = model_next_cut(m, middle, p->t0 + p->step * p->columns);
        for (next = first + 1; next < p->columns && p->t0 + (next + 0.5) * p->step < end;)
            next++;
        /* where the column's middle is, less half a column of it */
        double from = model_file_time(m, out->row.file, middle) - p->step / 2;
        rc = picture_read_columns(p, m, out, from, first, next - first);
    }
    return rc;
}

static int picture_fetch_rows(struct picture *p, struct model *m)
{
    struct geometry g = model_geometry(m);
    int count = m->row_count - m->top < g.rows_height ? m->row_count - m->top : g.rows_height;
    double step = model_column(m);
    int keep = p->t0 == m->t0 && p->end == m->end && p->step == step && p->columns == g.columns;
    struct picture_row *rows = calloc((size_t)(count > 0 ? count : 1), sizeof *rows);
    int rc = rows ? 0 : -ENOMEM;
    p->step = step;
    p->t0 = m->t0;
    p->end = m->end;
    p->columns = g.columns;
    for (int i = 0; i < count && !rc; i++) {
        rows[i].row = m->rows[m->top + i];
        for (int j = 0; keep && j < p->count; j++)
            if (p->rows[j].value && picture_same(&p->rows[j].row, &rows[i].row)) {
                rows[i] = p->rows[j];
                p->rows[j].value = NULL;
                rows[i].row = m->rows[m->top + i];
                break;
            }
        if (rows[i].value)
            continue;
        rows[i].value = malloc(sizeof(float) * (size_t)g.columns *
                               (size_t)picture_classes_of(rows[i].row.kind));
        if (!rows[i].value)
            rc = -ENOMEM;
        else if ((p->failed = picture_read_row(p, m, &rows[i])) != 0)
            model_say(m, 1, "the file could not be read: %s", strerror(-p->failed));
    }
    for (int j = 0; j < p->count; j++)
        free(p->rows[j].value);
    free(p->rows);
    p->rows = rows;
    p->count = rc && !rows ? 0 : count;
    return rc;
}

int picture_fetch(struct picture *p, struct model *m)
{
    struct geometry g = model_geometry(m);
    if (!p->panel.line) {
        p->panel.line = malloc(sizeof *p->panel.line * PANEL_LINES);
        p->panel_of = -1;
        if (!p->panel.line)
            return -ENOMEM;
    }
    if (g.too_small)
        return 0;
    int rc = picture_fetch_rows(p, m);
    if (rc)
        return rc;
    const struct row *row = model_row(m);
    int rank = row ? row->rank : 0, changing = m->panel == PANEL_DETAIL ||
                                               m->panel == PANEL_RANGE ||
                                               m->panel == PANEL_CRITICAL || m->panel == PANEL_WHY;
    if (changing || p->panel_of != (int)m->panel || p->panel_rank != rank ||
        p->panel_width != m->width) {
        p->panel.count = 0;
        p->panel.follow = -1;
        panel_fetch(&p->panel, m);
        p->panel_of = (int)m->panel;
        p->panel_rank = rank;
        p->panel_width = m->width;
    }
    int lines = g.panel_height - 1, last = p->panel.count > lines ? p->panel.count - lines : 0;
    m->scroll = m->help ? m->scroll : m->scroll > last ? last : m->scroll;
    return 0;
}

void picture_free(struct picture *p)
{
    for (int j = 0; j < p->count; j++)
        free(p->rows[j].value);
    free(p->rows);
    free(p->panel.line);
    *p = (struct picture){0};
}
