#include "tui/model.h"
#include "core/base/sorted.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void model_say(struct model *m, int failed, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(m->message, sizeof m->message, format, args);
    va_end(args);
    m->failed = failed;
}

struct geometry model_geometry(const struct model *m)
{
    struct geometry g = {0};
    int w = m->width, h = m->height;
    if (w < MIN_WIDTH || h < MIN_HEIGHT) {
        g.too_small = 1;
        return g;
    }
    int longest = 17 + (m->files == 2); /* "inter_reduce", indented, behind the file's letter */
    g.label = w < 60 ? 15 : w / 5 < longest ? longest : w / 5 > 26 ? 26 : w / 5;
    g.columns = w - g.label;
    g.ruler = 1;
    g.ruler_rows = h >= 16 ? 2 : 1;
    g.status = h - 1;
    g.legend_rows = h >= 30 ? 2 : h >= 16 ? 1 : 0;
    g.panel_height = h >= 30 ? h * 2 / 5 : h >= 20 ? 10 : h >= 16 ? 7 : 3;
    g.rows_top = g.ruler + g.ruler_rows;
    if (m->large || m->help) /* the panel takes everything */
        g.panel_height = g.status - g.legend_rows - g.rows_top;
    g.panel = g.status - g.panel_height;
    g.legend = g.panel - g.legend_rows;
    g.rows_height = g.legend - g.rows_top;
    return g;
}

const struct row *model_row(const struct model *m)
{
    return m->row_count ? &m->rows[m->row] : NULL;
}

struct source_group row_group(const struct row *row)
{
    return (struct source_group){row->rank, row->kind == ROW_RANK ? -1 : row->role,
                                 row->kind == ROW_CTA ? row->track : -1};
}

static int model_same_row(const struct row *a, const struct row *b)
{
    return a->kind == b->kind && a->file == b->file && a->rank == b->rank && a->role == b->role &&
           a->cta == b->cta && a->warp == b->warp;
}

static int model_add_row(struct model *m, struct row row)
{
    if (m->row_count == m->row_capacity) {
        int capacity = m->row_capacity ? m->row_capacity * 2 : 256;
        struct row *rows = realloc(m->rows, (size_t)capacity * sizeof *rows);
        if (!rows)
            return -ENOMEM;
        m->rows = rows;
        m->row_capacity = capacity;
    }
    m->rows[m->row_count++] = row;
    return 0;
}

/* Tracks of a role in order: by CTA, and by warp where a CTA has several. */
static int64_t model_track_order(const struct source_track *t)
{
    return (int64_t)t->cta * 64 + t->warp + 1;
}

/* CTAs of a role of a rank that the filter takes: how many, and the first index in order at or
 * after `from`; -1: none. */
static int model_role_tracks(const struct model *m, int file, int rank, int role, int64_t from,
                             int *first)
{
    const struct source *s = m->source[file];
    const struct source_track *t = s->tracks;
    int count = s->info.tracks, n = 0, last = -2;
    int begin = (int)MK_BISECT(i, (uint64_t)count, /* tracks are sorted */
                               t[i].rank < rank || (t[i].rank == rank && t[i].role < role));
    *first = -1;
    for (int i = begin; i < count && t[i].rank == rank && t[i].role == role; i++) {
        if (m->filtering && !query_takes_track(&m->filter, rank, role, t[i].cta))
            continue;
        n += t[i].cta != last; /* warps of one CTA count once */
        last = t[i].cta;
        if (*first < 0 && model_track_order(&t[i]) >= from)
            *first = i;
    }
    return n;
}

/* The CTA rows of a role, the two files' side by side where both have the CTA. */
static int model_add_ctas(struct model *m, int rank, int role)
{
    for (int64_t from = 0;;) {
        int64_t next = -1, order[2] = {-1, -1};
        int track[2];
        for (int file = 0; file < m->files; file++) {
            model_role_tracks(m, file, rank, role, from, &track[file]);
            if (track[file] >= 0)
                order[file] = model_track_order(&m->source[file]->tracks[track[file]]);
            if (order[file] >= 0 && (next < 0 || order[file] < next))
                next = order[file];
        }
        if (next < 0)
            return 0;
        for (int file = 0; file < m->files; file++) {
            if (order[file] != next)
                continue;
            const struct source_track *t = &m->source[file]->tracks[track[file]];
            if (model_add_row(
                    m, (struct row){ROW_CTA, file, rank, role, t->cta, t->warp, track[file], 1, 0}))
                return -ENOMEM;
        }
        from = next + 1;
    }
}

static int model_add_links(struct model *m, int rank)
{
    for (int kind = ROW_NVLINK; kind <= ROW_NIC; kind++)
        for (int file = 0; file < m->files; file++) {
            const struct source_info *info = &m->source[file]->info;
            int has = rank < info->ranks && (kind == ROW_NIC ? info->nic : info->nvlink);
            if (has && !(m->filtering && m->filter.roles) &&
                model_add_row(m,
                              (struct row){(enum row_kind)kind, file, rank, -1, -1, -1, -1, 0, 0}))
                return -ENOMEM;
        }
    return 0;
}

static int model_add_rank(struct model *m, int rank)
{
    int ctas[2][MK_ROLES] = {{0}}, total = 0, first;
    for (int file = 0; file < m->files; file++) {
        int mine = 0;
        for (int role = 0; role < MK_ROLES; role++)
            mine += ctas[file][role] = model_role_tracks(m, file, rank, role, 0, &first);
        total += mine;
        if (mine && model_add_row(m, (struct row){ROW_RANK, file, rank, -1, -1, -1, -1, mine,
                                                  m->rank_open[rank]}))
            return -ENOMEM;
    }
    if (!total || !m->rank_open[rank])
        return 0;
    for (int role = 0; role < MK_ROLES; role++) {
        int open = m->role_open[rank * MK_ROLES + role];
        for (int file = 0; file < m->files; file++)
            if (ctas[file][role] && model_add_row(m, (struct row){ROW_ROLE, file, rank, role, -1,
                                                                  -1, -1, ctas[file][role], open}))
                return -ENOMEM;
        if (open && model_add_ctas(m, rank, role))
            return -ENOMEM;
    }
    return model_add_links(m, rank);
}

int model_rows(struct model *m)
{
    struct row was = m->row_count ? m->rows[m->row] : (struct row){0};
    int had = m->row_count;
    m->row_count = 0;
    for (int rank = 0; rank < (int)m->ranks; rank++)
        if (!(m->filtering && m->filter.rank_lo >= 0 &&
              (rank < m->filter.rank_lo || rank > m->filter.rank_hi)) &&
            model_add_rank(m, rank))
            return -ENOMEM;
    int best = 0; /* the same row, else its role's, else its rank's */
    for (int i = 0; had && i < m->row_count; i++) {
        const struct row *r = &m->rows[i];
        if (model_same_row(r, &was)) {
            best = i;
            break;
        }
        if (r->rank == was.rank && r->file == was.file &&
            (r->kind == ROW_RANK || (r->kind == ROW_ROLE && r->role == was.role)))
            best = i;
    }
    m->row = best;
    return 0;
}

void model_go_row(struct model *m, const struct row *row)
{
    if (row->kind != ROW_RANK)
        m->rank_open[row->rank] = 1;
    if (row->kind == ROW_CTA)
        m->role_open[row->rank * MK_ROLES + row->role] = 1;
    if (model_rows(m))
        return;
    for (int i = 0; i < m->row_count; i++)
        if (model_same_row(&m->rows[i], row)) {
            m->row = i;
            return;
        }
    model_say(m, 1, "that row is hidden by the filter \"%s\"; \\ and Enter clear it",
              m->filter.text);
}

void model_fold(struct model *m)
{
    const struct row *row = model_row(m);
    if (!row)
        return;
    unsigned char *open = row->kind == ROW_RANK ? &m->rank_open[row->rank]
                          : row->kind == ROW_ROLE || row->kind == ROW_CTA
                              ? &m->role_open[row->rank * MK_ROLES + row->role]
                              : &m->rank_open[row->rank];
    *open = !*open;
    model_rows(m);
}

/* Everything one step further open; from fully open to fully folded. */
void model_fold_all(struct model *m)
{
    int ranks_open = 1, roles_open = 1;
    for (int rank = 0; rank < (int)m->ranks; rank++) {
        ranks_open &= m->rank_open[rank];
        for (int role = 0; role < MK_ROLES; role++)
            roles_open &= m->role_open[rank * MK_ROLES + role];
    }
    int open_ranks = !(ranks_open && roles_open), open_roles = ranks_open && !roles_open;
    memset(m->rank_open, open_ranks, m->ranks);
    memset(m->role_open, open_roles, (size_t)m->ranks * MK_ROLES);
    model_rows(m);
    model_say(m, 0, open_roles ? "all CTAs" : open_ranks ? "all roles" : "ranks only");
}

int model_open(struct model *m, struct source *a, struct source *b, int width, int height)
{
    *m = (struct model){
        .source = {a, b}, .files = b ? 2 : 1, .width = width, .height = height, .worst = -1};
    for (int file = 0; file < m->files; file++)
        if ((unsigned)m->source[file]->info.ranks > m->ranks)
            m->ranks = (unsigned)m->source[file]->info.ranks;
    m->rank_open = calloc((size_t)m->ranks + 1, 1);
    m->role_open = calloc((size_t)m->ranks * MK_ROLES + 1, 1);
    m->range[0] = m->range[1] = m->pin_cursor = NAN;
    if (!m->rank_open || !m->role_open)
        return -ENOMEM;
    model_align(m, 0, 0);
    if (!b)
        model_cut(m, 1);
    model_fit(m);
    m->cursor = m->begin;
    memset(m->rank_open, 1, m->ranks);
    if (model_rows(m))
        return -ENOMEM;
    for (unsigned open = m->ranks; m->row_count > model_geometry(m).rows_height && open > 0;) {
        /* where the roles of all ranks do not fit: those of the first, or none */
        open = open > 1 ? 1 : 0;
        memset(m->rank_open + open, 0, m->ranks - open);
        if (model_rows(m))
            return -ENOMEM;
    }
    if (m->files == 2)
        m->panel = PANEL_DIFFERENCE;
    model_settle(m);
    return 0;
}

void model_close(struct model *m)
{
    free(m->rank_open);
    free(m->role_open);
    free(m->rows);
    *m = (struct model){0};
}
