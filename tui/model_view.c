/* Where the screen looks: zoom, scroll, jumps and the way back. */
#include <math.h>
#include <stddef.h>

#include "tui/model.h"

double model_column(const struct model *m)
{
    int columns = model_geometry(m).columns;
    return (m->t1 - m->t0) / (columns > 0 ? columns : 1);
}

double model_column_of(const struct model *m, int file, double time)
{
    return m->cuts
               ? model_file_time(m, file, time + model_column(m)) - model_file_time(m, file, time)
               : model_column(m);
}

double model_least(const struct model *m)
{
    int columns = model_geometry(m).columns;
    return columns > 0 ? columns : MIN_WIDTH;
}

void model_fit(struct model *m)
{
    m->t0 = m->begin;
    m->t1 = m->end;
}

/* Spans are the whole run halved again and again, and the cursor keeps its share of the window, so
 * that zooming in and out are each other's inverse. The whole run is the largest span, one ns per
 * column the smallest. */
void model_zoom(struct model *m, double factor, double about)
{
    double whole = m->end - m->begin, span = (m->t1 - m->t0) * factor, least = model_least(m);
    if (factor < 1 && span < least) {
        model_say(m, 0, "one column is one ns: no closer");
        return;
    }
    if (span >= whole * 0.999999) {
        model_fit(m);
        return;
    }
    m->t0 = about - (about - m->t0) * factor;
    m->t1 = m->t0 + span;
}

void model_scroll(struct model *m, double columns)
{
    double by = columns * model_column(m);
    if (m->cursor + by < m->begin)
        by = m->begin - m->cursor;
    if (m->cursor + by > m->end)
        by = m->end - m->cursor;
    m->cursor += by;
    m->t0 += by;
    m->t1 += by;
}

void model_go(struct model *m, double time)
{
    m->cursor = time < m->begin ? m->begin : time > m->end ? m->end : time;
}

void model_keep_row_in_view(int *row, int *top, int count, int height)
{
    *row = *row >= count ? count - 1 : *row;
    *row = *row < 0 ? 0 : *row;
    if (*row < *top)
        *top = *row;
    if (height > 0 && *row >= *top + height)
        *top = *row - height + 1;
    if (*top > count - height)
        *top = count - height;
    *top = *top < 0 ? 0 : *top;
}

static void model_view_keep_cursor_in_view(struct model *m)
{
    struct geometry g = model_geometry(m);
    model_keep_row_in_view(&m->row, &m->top, m->row_count, g.rows_height);
    if (g.too_small)
        return;
    double column = model_column(m), span = m->t1 - m->t0;
    if (m->cursor < m->t0 || m->cursor >= m->t1 + column * 1e-9) {
        int left = m->cursor < m->t0;
        double beyond = left ? m->t0 - m->cursor : m->cursor - m->t1;
        if (beyond > span / 2) /* far away: to the middle; near: no further than needed */
            m->t0 = m->cursor - span / 2;
        else
            m->t0 = left ? m->cursor : m->cursor - span + column;
        m->t1 = m->t0 + span;
    }
}

void model_settle(struct model *m)
{
    model_go(m, m->cursor);
    model_view_keep_cursor_in_view(m);
    if (model_align_follow(m)) {
        model_go(m, m->cursor);
        model_view_keep_cursor_in_view(m);
    }
    const struct row *row = model_row(m);
    if (m->on_chain)
        return;
    m->have_event = 0;
    m->chain.count = 0;
    m->step = 0;
    if (!row)
        return;
    struct source *s = m->source[row->file];
    double time = model_file_time(m, row->file, m->cursor);
    if (row->kind == ROW_CTA && m->cursor == m->pin_cursor && m->pin.track == row->track) {
        m->event = m->pin;
        m->have_event = 1;
    } else if (row->kind == ROW_CTA) {
        /* The whole column is under the cursor: what begins inside it counts where nothing covers
         * its left edge. */
        m->have_event = source_event_at(s, row->track, time, &m->event) == 1 && m->event.end > time;
        if (!m->have_event)
            m->have_event =
                source_event_at(s, row->track, time + model_column_of(m, row->file, m->cursor),
                                &m->event) == 1 &&
                m->event.end >= time;
    } else if (row->kind == ROW_NIC) {
        chain_follow_message(s, row->rank, time, &m->chain);
        m->serial++;
    }
    if (m->have_event) {
        chain_follow(s, &m->event, &m->chain);
        m->serial++;
    }
}

static struct place model_view_here(const struct model *m)
{
    const struct row *row = model_row(m);
    struct place p = {.cursor = m->cursor,
                      .t0 = m->t0,
                      .t1 = m->t1,
                      .set = row != NULL,
                      .serial = m->serial,
                      .step = m->step,
                      .pair = {m->pair[0], m->pair[1]}};
    if (row)
        p.row = *row;
    return p;
}

void model_push(struct model *m)
{
    if (m->back_count == MODEL_BACK) {
        for (int i = 1; i < MODEL_BACK; i++)
            m->back[i - 1] = m->back[i];
        m->back_count--;
    }
    m->back[m->back_count++] = model_view_here(m);
}

static void model_view_return_to(struct model *m, const struct place *p)
{
    int file = p->pair[0] < p->pair[1]; /* the one that has more launches says which these were */
    if (m->files == 2)
        model_align(m, file, p->pair[file]);
    m->t0 = p->t0;
    m->t1 = p->t1;
    m->cursor = p->cursor;
    model_go_row(m, &p->row);
    m->on_chain = m->chain.count > 0 && p->serial == m->serial;
    m->step = p->step;
}

void model_pop(struct model *m)
{
    if (m->back_count == 0) {
        model_say(m, 0, "this is where you began");
        return;
    }
    struct place p = m->back[--m->back_count];
    if (p.set)
        model_view_return_to(m, &p);
}

void model_bookmark(struct model *m, int letter, int set)
{
    struct place *p = &m->mark[letter - 'a'];
    if (set) {
        *p = model_view_here(m);
        model_say(m, 0, "bookmark %c set; ' %c comes back", letter, letter);
    } else if (p->set) {
        model_push(m);
        model_view_return_to(m, p);
        m->on_chain = 0;
    } else {
        model_say(m, 1, "there is no bookmark %c; m %c sets it here", letter, letter);
    }
}

static void model_view_go_step(struct model *m, int file, const struct chain_step *s)
{
    struct row row = {
        .file = file, .rank = s->rank, .role = -1, .cta = -1, .warp = -1, .track = -1};
    row.kind = s->where == CHAIN_NIC ? ROW_NIC : s->where == CHAIN_NVLINK ? ROW_NVLINK : ROW_CTA;
    if (row.kind == ROW_CTA) {
        const struct source_track *t = &m->source[file]->tracks[s->track];
        row.rank = t->rank;
        row.role = t->role;
        row.cta = t->cta;
        row.warp = t->warp;
        row.track = s->track;
    }
    model_go_row(m, &row);
    if (isnan(s->time))
        return;
    model_go(m, model_screen_time(m, file, s->time));
    if (s->where == CHAIN_TRACK && s->event.id) {
        m->pin = s->event;
        m->pin_cursor = m->cursor;
    }
}

/* Along the chain; on a folded row to its longest wait in view. */
void model_enter(struct model *m)
{
    const struct row *row = model_row(m);
    if (!row)
        return;
    int file = row->file;
    if (row->kind == ROW_RANK || (row->kind == ROW_ROLE && !m->on_chain)) {
        struct source_event wait;
        if (source_longest_wait(m->source[file], row_group(row), model_file_time(m, file, m->t0),
                                model_file_time(m, file, m->t1), &wait) != 1) {
            model_say(m, 0, "no wait of this row in view");
            return;
        }
        model_push(m);
        struct chain_step to = {
            .where = CHAIN_TRACK, .track = wait.track, .time = wait.start, .event = wait};
        model_view_go_step(m, file, &to);
        m->on_chain = 0;
        model_say(m, 0, "the longest wait in view; Enter follows its cause, Backspace returns");
        return;
    }
    for (int step = m->step + 1; step < m->chain.count; step++) {
        const struct chain_step *s = &m->chain.step[step];
        if (s->where == CHAIN_NOWHERE)
            continue;
        model_push(m);
        model_view_go_step(m, file, s);
        m->step = step;
        m->on_chain = 1;
        return;
    }
    if (m->on_chain) {
        m->on_chain = 0; /* settling follows from the event here */
        model_say(m, 0, "the chain ends here; this is what the event here followed from");
    } else {
        model_say(m, 0,
                  row->kind == ROW_CTA || row->kind == ROW_NIC
                      ? "nothing to follow from here"
                      : "this row has no events; try a CTA or NIC row");
    }
}

/* Times that the model keeps are the screen's; they stay where they are in the file. */
void model_cut_key(struct model *m)
{
    static struct model was;
    if (m->files == 2) {
        model_say(m, 1, "two files lie launch by launch; nothing is cut out");
        return;
    }
    was = *m;
    model_cut(m, !was.cuts);
    if (!was.cuts && !m->cuts) {
        model_say(m, 0, "launches are most of this run, or more than %d: nothing to cut out",
                  MODEL_CUTS - 1);
        return;
    }
#define MOVE(time) ((time) = model_screen_time(m, 0, model_file_time(&was, 0, time)))
    MOVE(m->cursor);
    MOVE(m->pin_cursor);
    MOVE(m->range[0]);
    MOVE(m->range[1]);
    for (int i = 0; i < 26; i++) {
        MOVE(m->mark[i].cursor);
        MOVE(m->mark[i].t0);
        MOVE(m->mark[i].t1);
    }
    for (int i = 0; i < m->back_count; i++) {
        MOVE(m->back[i].cursor);
        MOVE(m->back[i].t0);
        MOVE(m->back[i].t1);
    }
#undef MOVE
    model_fit(m);
    model_say(m, 0,
              m->cuts ? "what lies between launches is cut out (/)"
                      : "the run as long as it is; c cuts out what lies between launches");
}
