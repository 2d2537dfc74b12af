/* From the live model to cells: title, verdict, a strip of CTAs per rank and role, and the chain of
 * what is under the cursor. Pure. */
#include "tui/live.h"

#include <stdio.h>
#include <string.h>

#include "tracer/reader.h"
#include "tui/layout.h"
#include "tui/words.h"

#define STATUS_WIDTH 16

static const struct live_rank *live_layout_first_seen(const struct live_job *job)
{
    for (uint32_t i = 0; i < job->world; i++)
        if (job->ranks[i].plan)
            return &job->ranks[i];
    return NULL;
}

static void live_layout_draw_title(struct cells *c, const struct live_model *m)
{
    const struct live_rank *r = live_layout_first_seen(m->job);
    const struct mk_problem *p = r ? &r->plan->problem : NULL;
    char left[256] = " nothing is seen of this job yet", length[32];
    const char *right = m->job->ended ? "ended " : m->frozen ? "frozen " : "live ";
    int alarm = m->verdict.waiting || m->verdict.halted;
    char waits[64];
    if (m->verdict.waiting && !m->job->ended) {
        snprintf(waits, sizeof waits, "%swaits %s ", m->frozen ? "frozen · " : "",
                 words_length(length, (double)m->verdict.longest));
        right = waits;
    }
    if (p)
        snprintf(left, sizeof left, " %s %lu,%lu,%lu · %u×%u %s · process %d", plan_op_name(p->op),
                 p->m, p->n, p->k, p->topo.nodes, p->topo.gpus,
                 plan_execs[r->header.exec % MK_EXECS],
                 r->header.job_pid ? r->header.job_pid : r->header.pid);
    layout_title(c, m->width, left, right, alarm ? COLOUR_ERROR : COLOUR_TITLE, ATTR_BOLD);
    int end = cells_text(c, 1, 1, m->width, alarm ? COLOUR_ERROR : COLOUR_TEXT, ATTR_BOLD,
                         m->job->ended && !alarm ? "the job has ended" : m->verdict.text);
    if (end > m->width)
        cells_put(c, m->width - 1, 1, 0x2026, COLOUR_FAINT, 0);
}

/* CTAs first .. first + count - 1 of the grid in `cells` cells: what most of a cell's CTAs do. */
static void live_layout_draw_ctas(struct cells *c, const struct live_model *m, int rank, int first,
                                  int count, int x, int y, int cells)
{
    for (int i = 0; i < cells; i++) {
        int from = first + i * count / cells, to = first + (i + 1) * count / cells,
            in[SPAN_CLASSES] = {0}, best = 0;
        for (int cta = from; cta < to; cta++) {
            struct live_doing d = live_describe(m->job, (uint32_t)rank, (uint32_t)cta);
            in[live_class(&d)]++;
        }
        for (int k = 1; k < SPAN_CLASSES; k++)
            if (in[k] > in[best])
                best = k;
        cells_put(c, x + i, y, span_look[best].glyph, span_look[best].colour,
                  2 * in[best] < to - from ? ATTR_DIM : 0);
    }
}

/* The roles of a rank side by side, or one of them; a cell per CTA where they fit. */
static void live_layout_draw_strip(struct cells *c, const struct live_model *m,
                                   const struct live_row *row, int x, int y)
{
    const struct live_rank *r = &m->job->ranks[row->rank];
    const uint32_t *ctas = r->plan->problem.tuning.split.ctas;
    int room = m->width - x, total = 0, roles = 0, first = 0;
    for (int role = 0; role < MK_ROLES; role++)
        if (ctas[role] && (row->role < 0 || role == row->role)) {
            total += (int)ctas[role];
            roles++;
        }
    room -= roles - 1;
    for (int role = 0; role < MK_ROLES; role++) {
        int count = (int)ctas[role],
            shown = total <= room ? count : count * room / (total ? total : 1);
        if (count && (row->role < 0 || role == row->role)) {
            shown = shown < 1 ? 1 : shown;
            live_layout_draw_ctas(c, m, row->rank, first, count, x, y, shown);
            x += shown + 1;
        }
        first += count;
    }
}

/* The state of a rank's process and loop in a few columns. */
static void live_layout_draw_state(struct cells *c, const struct live_model *m, int rank, int x,
                                   int y)
{
    static const char *const word[LIVE_STATES] = {"not seen", "",     "STOPPED",
                                                  "SILENT",   "GONE", "ended"};
    static const char *const phase[LIVE_PHASES] = {"starts", "inputs", "ready",
                                                   "launch", "checks", "ends"};
    const struct live_rank *r = &m->job->ranks[rank];
    uint32_t p = r->header.phase < LIVE_PHASES ? r->header.phase : LIVE_ENDS;
    unsigned long long all = r->header.launches,
                       launch = r->header.launch < all ? r->header.launch + 1 : all;
    /* several launches may be under way */
    for (uint32_t i = 0; i < r->header.ctas && p == LIVE_LAUNCHES; i++)
        if (r->words[i].word >> 32 > launch)
            launch = r->words[i].word >> 32;
    int whole = snprintf(NULL, 0, "%s %llu/%llu", phase[p], launch, all) < STATUS_WIDTH;
    if (r->state != LIVE_RUNS)
        cells_text(c, x, y, x + STATUS_WIDTH - 1, live_halted(r) ? COLOUR_ERROR : COLOUR_FAINT,
                   live_halted(r) ? ATTR_BOLD : 0, word[r->state]);
    else
        cells_print(c, x, y, x + STATUS_WIDTH - 1, COLOUR_TEXT, 0,
                    whole ? "%s %llu/%llu" : "%s %llu", phase[p], launch, all);
}

static void live_layout_draw_cta(struct cells *c, const struct live_model *m,
                                 const struct live_row *row, int x, int y)
{
    struct live_doing d = live_describe(m->job, (uint32_t)row->rank, (uint32_t)row->cta);
    char length[32];
    const struct class_look *look = &span_look[live_class(&d)];
    /* shorter is less than a look's period can tell */
    if (d.ns >= LIVE_PERIOD_NS && d.kind != MK_EV_NONE)
        cells_text(c, x, y, x + STATUS_WIDTH - 1,
                   d.ns >= LIVE_LONG_NS && d.kind == MK_EV_WAIT ? COLOUR_ERROR : COLOUR_FAINT, 0,
                   words_length(length, (double)d.ns));
    x += STATUS_WIDTH;
    cells_put(c, x, y, look->glyph, look->colour, 0);
    x = cells_print(c, x + 2, y, m->width, look->colour, 0, "%s", look->name);
    if (d.text[0])
        x = cells_print(c, x, y, m->width, COLOUR_TEXT, 0, ": %s", d.text);
    if (d.epoch)
        cells_print(c, x + 1, y, m->width, COLOUR_FAINT, 0, "launch %u", d.epoch);
}

static void live_layout_draw_row(struct cells *c, const struct live_model *m,
                                 const struct live_row *row, int y, int current, int label)
{
    const struct live_rank *r = &m->job->ranks[row->rank];
    int attr = current ? ATTR_REVERSE : 0, x;
    char length[32];
    layout_fill(c, y, 0, label - 1, ' ', COLOUR_TEXT, attr);
    cells_put(c, 0, y, current ? 0x25b6 : ' ', COLOUR_TEXT, attr);
    if (row->kind == ROW_RANK) {
        cells_put(c, 1, y, m->rank_open[row->rank] ? 0x25be : 0x25b8, COLOUR_TEXT, attr);
        x = cells_print(c, 3, y, label - 1, COLOUR_TEXT, attr | ATTR_BOLD, "rank %d", row->rank);
        if (r->plan && r->plan->problem.topo.nodes > 1)
            cells_print(c, x + 1, y, label - 1, COLOUR_FAINT, attr, label < 22 ? "n%u" : "node %u",
                        mk_node_of(&r->plan->problem.topo, (uint32_t)row->rank));
        live_layout_draw_state(c, m, row->rank, label, y);
        if (r->plan && r->state != LIVE_ENDED)
            live_layout_draw_strip(c, m, row, label + STATUS_WIDTH, y);
    } else if (row->kind == ROW_ROLE) {
        uint64_t longest = 0;
        for (uint32_t i = 0; i < r->header.ctas; i++) {
            struct live_doing d = live_describe(m->job, (uint32_t)row->rank, i);
            if (d.role == row->role && d.kind == MK_EV_WAIT && d.ns > longest)
                longest = d.ns;
        }
        cells_put(c, 2, y, m->role_open[row->rank * MK_ROLES + row->role] ? 0x25be : 0x25b8,
                  COLOUR_TEXT, attr);
        x = cells_text(c, 4, y, label - 1, COLOUR_TEXT, attr, plan_role_name(row->role));
        snprintf(length, sizeof length, "×%u", r->plan->problem.tuning.split.ctas[row->role]);
        if (x + 1 + cells_columns(length) < label) /* whole, or not at all */
            cells_text(c, x + 1, y, label - 1, COLOUR_FAINT, attr, length);
        if (longest >= LIVE_LONG_NS)
            cells_print(c, label, y, label + STATUS_WIDTH - 1, COLOUR_ERROR, 0, "waits %s",
                        words_length(length, (double)longest));
        live_layout_draw_strip(c, m, row, label + STATUS_WIDTH, y);
    } else {
        cells_print(c, 5, y, label - 1, COLOUR_TEXT, attr, "CTA %d", row->cta);
        live_layout_draw_cta(c, m, row, label, y);
    }
}

/* Text from x on, broken at words; returns the line after it. */
static int live_layout_draw_wrapped(struct cells *c, int x, int y, int bottom, int width,
                                    int colour, int attr, const char *text)
{
    while (*text && y < bottom) {
        size_t take = strlen(text), room = width > x ? (size_t)(width - x) : 1;
        if (take > room) {
            take = room;
            while (take > 1 && text[take] != ' ')
                take--;
            take = take > 1 ? take : room;
        }
        cells_print(c, x, y++, width, colour, attr, "%.*s", (int)take, text);
        text += take;
        text += *text == ' ';
    }
    return y;
}

static void live_layout_draw_panel(struct cells *c, const struct live_model *m,
                                   const struct live_geometry *g)
{
    const struct live_row *row = &m->rows[m->row];
    int y = g->panel + 1, bottom = g->panel + g->panel_height;
    char state[96];
    layout_fill(c, g->panel, 0, m->width, 0x2500, COLOUR_FAINT, 0);
    cells_text(c, 1, g->panel, m->width, COLOUR_TEXT, ATTR_BOLD,
               m->help ? "[Keys]" : "[Chain of waits]");
    if (m->help) {
        layout_help(c, HELP_LIVE, m->width, 0, y, g->panel_height - 1);
        return;
    }
    if (!m->chain.count) {
        int alarm = live_halted(&m->job->ranks[row->rank]);
        cells_print(c, 1, y, m->width, alarm ? COLOUR_ERROR : COLOUR_TEXT, 0, "rank %d %s%s",
                    row->rank, live_state_text(m->job, (uint32_t)row->rank, state, sizeof state),
                    alarm || m->job->ranks[row->rank].state != LIVE_RUNS ? ""
                                                                         : "; nothing here waits");
        return;
    }
    for (int i = 0; i < m->chain.count && y < bottom; i++) {
        const struct live_step *s = &m->chain.step[i];
        cells_text(c, 1, y, m->width, COLOUR_FAINT, 0, i ? "└" : " ");
        y = live_layout_draw_wrapped(c, 3, y, bottom, m->width,
                                     s->alarm ? COLOUR_ERROR : COLOUR_TEXT,
                                     s->alarm ? ATTR_BOLD : 0, s->text);
    }
}

int live_draw(struct cells *c, const struct live_model *m)
{
    struct live_geometry g = live_geometry(m);
    int rc = cells_reset(c, m->width, m->height, m->ascii);
    if (rc)
        return rc;
    if (g.too_small) {
        layout_too_small(c);
        return 0;
    }
    live_layout_draw_title(c, m);
    for (int i = 0; i < g.rows_height && m->top + i < m->row_count; i++)
        live_layout_draw_row(c, m, &m->rows[m->top + i], g.rows_top + i, m->top + i == m->row,
                             g.label);
    if (g.legend < g.panel)
        layout_spans(c, 1, g.legend, m->width);
    live_layout_draw_panel(c, m, &g);
    if (m->message[0])
        cells_text(c, 1, g.status, m->width, COLOUR_TEXT, ATTR_BOLD, m->message);
    else
        cells_text(c, 1, g.status, m->width, COLOUR_FAINT, 0,
                   "? keys  q quit  Space fold  w worst wait  Enter along the chain  p freeze");
    return 0;
}
