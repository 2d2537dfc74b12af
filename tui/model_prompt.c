/* The bottom line: search, filter, a time to go to, and the letters of bookmarks. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "tui/model.h"

/* To an event: its row unfolded, the cursor on its start. */
static void model_prompt_go_event(struct model *m, int file, const struct source_event *e)
{
    const struct source_track *t = &m->source[file]->tracks[e->track];
    struct row row = {ROW_CTA, file, t->rank, t->role, t->cta, t->warp, e->track, 1, 0};
    model_go_row(m, &row);
    model_go(m, model_screen_time(m, file, e->start));
    m->pin = *e;
    m->pin_cursor = m->cursor;
    m->on_chain = 0;
}

static void model_prompt_find(struct model *m, int file, struct source_group group,
                              const struct query *q, int direction, const char *what)
{
    struct source_event e;
    double reached;
    char time[32];
    const struct row *row = model_row(m);
    /* Where an event is under the cursor, on from that one; else from the cursor's time. */
    const struct source_event *from =
        m->have_event && row && row->kind == ROW_CTA &&
                m->cursor == model_screen_time(m, file, m->event.start) && !m->on_chain
            ? &m->event
            : NULL;
    int rc = source_find(m->source[file], group, q, model_file_time(m, file, m->cursor), from,
                         direction, &e, &reached);
    if (rc == 1) {
        model_prompt_go_event(m, file, &e);
    } else if (rc == -EAGAIN) {
        model_go(m, model_screen_time(m, file, reached));
        model_say(m, 0, "not found up to %s; %c goes on", words_time(time, reached, 1000),
                  direction > 0 ? 'n' : 'N');
    } else if (rc < 0) {
        model_say(m, 1, "the file could not be read: %s", strerror(-rc));
    } else {
        model_say(m, 1, "no %s %s the cursor", what, direction > 0 ? "after" : "before");
    }
}

/* Over all rows, in time. */
void model_search(struct model *m, int direction)
{
    const struct row *row = model_row(m);
    if (!m->searching) {
        model_say(m, 1, "nothing is searched for; / begins, for example /wait network >10us");
        return;
    }
    if (!row)
        return;
    char what[MODEL_TEXT + 16];
    snprintf(what, sizeof what, "\"%s\"", m->search.text);
    struct query q = m->search;
    model_prompt_find(m, row->file, (struct source_group){-1, -1, -1}, &q, direction, what);
}

/* On the row under the cursor; the filter's classes are the only ones that stop. */
void model_next_event(struct model *m, int direction)
{
    const struct row *row = model_row(m);
    if (!row)
        return;
    struct query any;
    char error[96];
    words_parse_query("", &any, error);
    int file = row->file;
    if (row->kind == ROW_CTA) {
        model_prompt_find(m, file, row_group(row), m->filtering ? &m->filter : &any, direction,
                          "event of this row");
        return;
    }
    /* A folded row stays folded: the cursor goes to where anything of it begins. */
    struct source_event e;
    double reached;
    struct source_group group = row_group(row);
    if (row->kind == ROW_NVLINK || row->kind == ROW_NIC)
        group.role = -1;
    if (source_find(m->source[file], group, m->filtering ? &m->filter : &any,
                    model_file_time(m, file, m->cursor), NULL, direction, &e, &reached) == 1)
        model_go(m, model_screen_time(m, file, e.start));
    else
        model_say(m, 1, "no event of this row %s the cursor", direction > 0 ? "after" : "before");
}

void model_worst(struct model *m, int direction)
{
    const struct row *row = model_row(m);
    int file = row ? row->file : 0, next = m->worst + direction;
    struct source_event e;
    char length[32];
    if (next < 0 ||
        source_worst_wait(m->source[file], m->filtering ? &m->filter : NULL, next, &e) != 1) {
        model_say(m, 1,
                  next <= 0 ? "no wait of this trace took time"
                            : "that was the last of the longest waits");
        return;
    }
    model_push(m);
    m->worst = next;
    model_prompt_go_event(m, file, &e);
    model_say(m, 0, "longest wait number %d: %s; Enter follows its cause", next + 1,
              words_length(length, e.end - e.start));
}

static void model_prompt_do_search(struct model *m)
{
    struct query q;
    char error[96];
    if (!m->text[0] && m->searching) { /* as before, once more */
        model_search(m, 1);
        return;
    }
    if (words_parse_query(m->text, &q, error)) {
        model_say(m, 1, "%s", error);
        return;
    }
    m->search = q;
    m->searching = q.text[0] != 0;
    if (m->searching) {
        model_push(m);
        model_search(m, 1);
    }
}

static void model_prompt_do_filter(struct model *m)
{
    struct query q;
    char error[96];
    if (words_parse_query(m->text, &q, error)) {
        model_say(m, 1, "%s", error);
        return;
    }
    if (query_needs_events(&q)) {
        model_say(
            m, 1,
            "a filter takes ranks, CTAs, roles and what they do; search with / for single events");
        return;
    }
    m->filter = q;
    m->filtering = q.text[0] != 0;
    if (model_rows(m))
        model_say(m, 1, "no memory for the rows");
    else if (!m->filtering)
        model_say(m, 0, "no filter");
}

static void model_prompt_do_goto(struct model *m)
{
    const struct row *row = model_row(m);
    int file = row ? row->file : 0;
    char error[96];
    long long epoch;
    double time;
    int relative;
    if (sscanf(m->text, " epoch %lld", &epoch) == 1 || sscanf(m->text, " e%lld", &epoch) == 1) {
        const struct source_launch *l = m->source[file]->launches;
        for (int i = 0; i < m->source[file]->info.launches; i++)
            if (l[i].epoch == epoch) {
                model_push(m);
                model_go(m, model_screen_time(m, file, l[i].start));
                return;
            }
        model_say(m, 1, "epoch %lld is not in this trace", epoch);
        return;
    }
    if (words_parse_time(m->text, &time, &relative, error)) {
        model_say(m, 1, "%s", error);
        return;
    }
    if (relative)
        time += model_file_time(m, file, m->cursor);
    time = model_screen_time(m, file, time);
    if (time < m->begin || time > m->end) {
        char end[32];
        model_say(m, 1, "the run ends at %s", words_time(end, model_clock(m, m->end), 1000));
        return;
    }
    model_push(m);
    model_go(m, time);
}

void model_prompt_key(struct model *m, int code)
{
    if (m->prompt == PROMPT_MARK || m->prompt == PROMPT_JUMP) {
        int set = m->prompt == PROMPT_MARK;
        m->prompt = PROMPT_NONE;
        if (code >= 'a' && code <= 'z')
            model_bookmark(m, code, set);
        else if (code != TUI_ESCAPE)
            model_say(m, 1, "bookmarks are the letters a to z");
        return;
    }
    enum prompt was = m->prompt;
    switch (code) {
    case TUI_ESCAPE:
        m->prompt = PROMPT_NONE;
        return;
    case TUI_ENTER:
        m->prompt = PROMPT_NONE;
        if (was == PROMPT_SEARCH)
            model_prompt_do_search(m);
        else if (was == PROMPT_FILTER)
            model_prompt_do_filter(m);
        else if (m->text[0])
            model_prompt_do_goto(m);
        return;
    case TUI_BACKSPACE:
        if (m->length == 0)
            m->prompt = PROMPT_NONE;
        else
            m->text[--m->length] = 0;
        return;
    case 'U' & 31:
        m->text[m->length = 0] = 0;
        return;
    default:
        if (code >= ' ' && code < 127 && m->length < MODEL_TEXT - 1) {
            m->text[m->length++] = (char)code;
            m->text[m->length] = 0;
        }
    }
}
