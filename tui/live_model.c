/* State and keys of the live viewer. */
#include "tui/live.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct live_geometry live_geometry(const struct live_model *m)
{
    struct live_geometry g = {0};
    if (m->width < MIN_WIDTH || m->height < MIN_HEIGHT) {
        g.too_small = 1;
        return g;
    }
    g.label = m->width < 60 ? 16 : m->width / 5 < 18 ? 18 : m->width / 5 > 26 ? 26 : m->width / 5;
    g.rows_top = 2; /* title, verdict */
    g.status = m->height - 1;
    g.panel_height = m->help ? g.status - g.rows_top : m->height >= 20 ? m->height * 2 / 5 : 4;
    g.panel = g.status - g.panel_height;
    g.legend = m->height >= 16 && !m->help ? g.panel - 1 : g.panel;
    g.rows_height = g.legend - g.rows_top;
    return g;
}

int live_model_open(struct live_model *m, const struct live_job *job, int width, int height)
{
    memset(m, 0, sizeof *m);
    m->width = width;
    m->height = height;
    m->ranks = job->world;
    m->rank_open = calloc(job->world, 1);
    m->role_open = calloc(job->world, MK_ROLES);
    m->rows = calloc((size_t)job->world * (1 + MK_ROLES + LIVE_MAX_CTAS), sizeof *m->rows);
    return m->rank_open && m->role_open && m->rows ? live_model_take(m, job) : -ENOMEM;
}

void live_model_close(struct live_model *m)
{
    free(m->rank_open);
    free(m->role_open);
    free(m->rows);
    memset(m, 0, sizeof *m);
}

static int live_model_same_row(const struct live_row *a, const struct live_row *b)
{
    return a->kind == b->kind && a->rank == b->rank && a->role == b->role && a->cta == b->cta;
}

static void live_model_list_rows(struct live_model *m)
{
    struct live_row was = m->row_count ? m->rows[m->row] : (struct live_row){0};
    int had = m->row_count, n = 0;
    for (int rank = 0; rank < (int)m->ranks; rank++) {
        const struct live_rank *r = &m->job->ranks[rank];
        m->rows[n++] = (struct live_row){ROW_RANK, rank, -1, -1};
        if (!m->rank_open[rank] || !r->plan)
            continue;
        int first = 0;
        for (int role = 0; role < MK_ROLES; role++) {
            int count = (int)r->plan->problem.tuning.split.ctas[role];
            if (count)
                m->rows[n++] = (struct live_row){ROW_ROLE, rank, role, -1};
            for (int i = 0; i < count && m->role_open[rank * MK_ROLES + role] &&
                            first + i < (int)r->header.ctas;
                 i++)
                m->rows[n++] = (struct live_row){ROW_CTA, rank, role, first + i};
            first += count;
        }
    }
    m->row_count = n;
    int best = 0; /* the same row, else its rank's */
    for (int i = 0; i < n && had; i++) {
        if (live_model_same_row(&m->rows[i], &was)) {
            best = i;
            break;
        }
        if (m->rows[i].rank == was.rank && m->rows[best].rank != was.rank)
            best = i;
    }
    m->row = best;
}

/* What lies under the cursor, or begins there: the longest wait of a folded row. */
static void live_model_find_chain(struct live_model *m)
{
    const struct live_row *row = &m->rows[m->row];
    const struct live_rank *r = &m->job->ranks[row->rank];
    int best = row->cta;
    uint64_t longest = 0;
    memset(&m->chain, 0, sizeof m->chain);
    m->chain.root = -1;
    if (r->state == LIVE_ABSENT || r->state == LIVE_ENDED || live_halted(r))
        return;
    for (uint32_t i = 0; i < r->header.ctas && row->cta < 0; i++) {
        struct live_doing d = live_describe(m->job, (uint32_t)row->rank, i);
        if ((row->role < 0 || d.role == row->role) && d.kind == MK_EV_WAIT &&
            (best < 0 || d.ns > longest)) {
            best = (int)i;
            longest = d.ns;
        }
    }
    if (best >= 0)
        live_chain(m->job, (uint32_t)row->rank, (uint32_t)best, &m->chain);
}

static void live_model_settle(struct live_model *m)
{
    model_keep_row_in_view(&m->row, &m->top, m->row_count, live_geometry(m).rows_height);
    live_model_find_chain(m);
}

int live_model_take(struct live_model *m, const struct live_job *job)
{
    int repeats = !strcmp(m->message, m->verdict.text);
    m->job = job;
    live_diagnose(job, &m->verdict);
    if (repeats && strcmp(m->message, m->verdict.text)) /* what `w` said no longer holds */
        m->message[0] = 0;
    live_model_list_rows(m);
    live_model_settle(m);
    return 0;
}

static void live_model_go_to(struct live_model *m, struct live_row to)
{
    m->rank_open[to.rank] |= to.kind != ROW_RANK;
    if (to.kind == ROW_CTA)
        m->role_open[to.rank * MK_ROLES + to.role] = 1;
    live_model_list_rows(m);
    for (int i = 0; i < m->row_count; i++)
        if (live_model_same_row(&m->rows[i], &to))
            m->row = i;
}

static void live_model_go_to_cta(struct live_model *m, int rank, int cta)
{
    if (cta < 0)
        live_model_go_to(m, (struct live_row){ROW_RANK, rank, -1, -1});
    else
        live_model_go_to(
            m, (struct live_row){ROW_CTA, rank,
                                 live_describe(m->job, (uint32_t)rank, (uint32_t)cta).role, cta});
}

static void live_model_push(struct live_model *m)
{
    if (m->back_count == MODEL_BACK) {
        memmove(m->back, m->back + 1, (MODEL_BACK - 1) * sizeof *m->back);
        m->back_count--;
    }
    m->back[m->back_count++] = m->rows[m->row];
}

/* To the next step of the chain that is another place. */
static void live_model_enter(struct live_model *m)
{
    const struct live_row *row = &m->rows[m->row];
    for (int i = 0; i < m->chain.count; i++) {
        const struct live_step *s = &m->chain.step[i];
        if (s->rank == row->rank && (s->cta == row->cta || (i == m->chain.count - 1 && i > 0)))
            continue;
        live_model_push(m);
        live_model_go_to_cta(m, s->rank, s->cta);
        return;
    }
    snprintf(m->message, sizeof m->message, "nothing waits here");
}

static void live_model_fold(struct live_model *m)
{
    const struct live_row *row = &m->rows[m->row];
    if (row->kind == ROW_RANK)
        m->rank_open[row->rank] ^= 1;
    else
        m->role_open[row->rank * MK_ROLES + row->role] ^= 1;
    if (row->kind == ROW_CTA)
        live_model_go_to(m, (struct live_row){ROW_ROLE, row->rank, row->role, -1});
    live_model_list_rows(m);
}

static void live_model_fold_all(struct live_model *m)
{
    int open = 0;
    for (uint32_t i = 0; i < m->ranks; i++)
        open |= m->rank_open[i];
    memset(m->rank_open, !open, m->ranks);
    memset(m->role_open, 0, (size_t)m->ranks * MK_ROLES);
    live_model_list_rows(m);
}

static void live_model_click(struct live_model *m, int y, int x)
{
    struct live_geometry g = live_geometry(m);
    if (y < g.rows_top || y >= g.rows_top + g.rows_height ||
        m->top + y - g.rows_top >= m->row_count)
        return;
    m->row = m->top + y - g.rows_top;
    if (x < g.label)
        live_model_fold(m);
}

static void live_model_move_key(struct live_model *m, struct key key)
{
    int page = live_geometry(m).rows_height;
    switch (key.code) {
    case TUI_UP:
    case 'k':
        m->row--;
        break;
    case TUI_DOWN:
    case 'j':
        m->row++;
        break;
    case TUI_PAGE_UP:
    case TUI_WHEEL_UP:
        m->row -= key.code == TUI_PAGE_UP ? page : 3;
        break;
    case TUI_PAGE_DOWN:
    case TUI_WHEEL_DOWN:
        m->row += key.code == TUI_PAGE_DOWN ? page : 3;
        break;
    case 'g':
    case TUI_HOME:
        m->row = 0;
        break;
    case 'G':
    case TUI_END:
        m->row = m->row_count - 1;
        break;
    case TUI_CLICK:
        live_model_click(m, key.y, key.x);
        break;
    }
}

void live_model_key(struct live_model *m, struct key key)
{
    m->message[0] = 0;
    if (key.code == TUI_RESIZE) {
        m->width = key.x;
        m->height = key.y;
        m->redraw = 1;
    } else if (key.code == 'q') {
        m->quit = 1;
    } else if (key.code == '?' || (m->help && key.code == TUI_ESCAPE)) {
        m->help = !m->help;
    } else if (key.code == 'r' || key.code == ('L' & 31)) {
        m->redraw = 1;
    } else if (key.code == ('Z' & 31)) {
        m->suspend = 1;
    } else if (key.code == 'p') {
        m->frozen = !m->frozen;
    } else if (key.code == ' ') {
        live_model_fold(m);
    } else if (key.code == 'Z') {
        live_model_fold_all(m);
    } else if (key.code == 'w') {
        if (m->verdict.rank >= 0) {
            live_model_push(m);
            live_model_go_to_cta(m, m->verdict.rank, m->verdict.cta);
        } else {
            snprintf(m->message, sizeof m->message, "%s", m->verdict.text);
        }
    } else if (key.code == TUI_ENTER) {
        live_model_enter(m);
    } else if (key.code == TUI_BACKSPACE && m->back_count) {
        live_model_go_to(m, m->back[--m->back_count]);
    } else {
        live_model_move_key(m, key);
    }
    live_model_settle(m);
}
