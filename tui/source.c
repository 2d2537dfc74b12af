/* Opens a trace and learns what it holds: tracks, launches, links, levels. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tui/cells.h"
#include "tui/source_private.h"

_Static_assert(ROLES == MK_ROLES, "the viewer's roles are core's");

sqlite3_stmt *source_prepare(struct source *s, const char *sql)
{
    sqlite3_stmt *q = NULL;
    return sqlite3_prepare_v2(s->db, sql, -1, &q, NULL) == SQLITE_OK ? q : NULL;
}

static void source_copy_text(char *out, int size, const unsigned char *text)
{
    snprintf(out, (size_t)size, "%s", text ? (const char *)text : "");
    cells_clean(out);
}

static int64_t source_one_number(struct source *s, const char *sql)
{
    sqlite3_stmt *q = source_prepare(s, sql);
    int64_t value = q && sqlite3_step(q) == SQLITE_ROW ? sqlite3_column_int64(q, 0) : -1;
    sqlite3_finalize(q);
    return value;
}

static int source_read_run(struct source *s)
{
    struct source_info *i = &s->info;
    sqlite3_stmt *q =
        source_prepare(s, "SELECT op, shape, source, executor || coalesce(' ' || " TRACE_ENGINE
                          ", ''), coalesce(fabric, ''), coalesce(nic, ''), nodes, gpus, "
                          "duration_ns, events, messages, dropped, residual_ns FROM run");
    if (!q || sqlite3_step(q) != SQLITE_ROW) {
        sqlite3_finalize(q);
        return -EBADMSG;
    }
    char text[6][48];
    for (int c = 0; c < 6; c++)
        source_copy_text(text[c], sizeof text[c], sqlite3_column_text(q, c));
    snprintf(i->title, sizeof i->title, "%s %s", text[0], text[1]);
    snprintf(i->setting, sizeof i->setting, "%d×%d %s%s%s%s%s%s", sqlite3_column_int(q, 6),
             sqlite3_column_int(q, 7), text[3], strcmp(text[2], "measured") ? " " : "",
             strcmp(text[2], "measured") ? text[2] : "", text[4][0] ? " " : "", text[4],
             text[5][0] ? "/" : "");
    size_t used = strlen(i->setting);
    snprintf(i->setting + used, sizeof i->setting - used, "%s", text[5]);
    i->end = (double)sqlite3_column_int64(q, 8);
    i->events = sqlite3_column_int64(q, 9);
    i->messages = sqlite3_column_int64(q, 10);
    i->dropped = sqlite3_column_int64(q, 11);
    i->uncertainty =
        sqlite3_column_type(q, 12) == SQLITE_NULL ? -1 : (double)sqlite3_column_int64(q, 12);
    i->end = i->end < 1 ? 1 : i->end;
    sqlite3_finalize(q);
    i->ranks = (int)source_one_number(s, "SELECT max(id) + 1 FROM rank");
    return i->ranks > 0 && i->ranks <= (int)MK_MAX_RANKS ? 0 : -EBADMSG;
}

static int source_read_ranks(struct source *s)
{
    size_t ranks = (size_t)s->info.ranks;
    s->rank_track = calloc(ranks, sizeof *s->rank_track);
    s->role_track = calloc(ranks * ROLES, sizeof *s->role_track);
    s->leaves = calloc(ranks * (ROLES + 1), sizeof *s->leaves);
    s->link = calloc(ranks * 2, sizeof *s->link);
    s->node = calloc(ranks, sizeof *s->node);
    s->uncertainty = calloc(ranks, sizeof *s->uncertainty);
    if (!s->rank_track || !s->role_track || !s->leaves || !s->link || !s->node || !s->uncertainty)
        return -ENOMEM;
    sqlite3_stmt *q = source_prepare(s, "SELECT id, node FROM rank");
    while (q && sqlite3_step(q) == SQLITE_ROW)
        if (sqlite3_column_int64(q, 0) >= 0)
            s->node[sqlite3_column_int64(q, 0)] = sqlite3_column_int(q, 1);
    sqlite3_finalize(q);
    q = source_prepare(s, "SELECT rank, sum(residual_ns) FROM clock GROUP BY rank");
    for (size_t r = 0; r < ranks; r++)
        s->uncertainty[r] = -1;
    while (q && sqlite3_step(q) == SQLITE_ROW) {
        int64_t rank = sqlite3_column_int64(q, 0);
        if (rank >= 0 && rank < s->info.ranks)
            s->uncertainty[rank] = sqlite3_column_double(q, 1);
    }
    sqlite3_finalize(q);
    q = source_prepare(
        s, "SELECT id, rank, kind, peak_bytes FROM link WHERE direction = 'out' AND transfers > 0");
    while (q && sqlite3_step(q) == SQLITE_ROW) {
        int64_t rank = sqlite3_column_int64(q, 1);
        const char *kind = (const char *)sqlite3_column_text(q, 2);
        if (rank < 0 || rank >= s->info.ranks || !kind)
            continue;
        int nic = strcmp(kind, "nvlink") != 0;
        s->link[rank * 2 + nic] = (struct source_link_row){sqlite3_column_int64(q, 0),
                                                           (double)sqlite3_column_int64(q, 3)};
        s->info.nic |= nic;
        s->info.nvlink |= !nic;
    }
    sqlite3_finalize(q);
    return 0;
}

static int source_compare_tracks(const void *a, const void *b)
{
    const struct source_track *x = a, *y = b;
    return x->rank != y->rank   ? (x->rank > y->rank) - (x->rank < y->rank)
           : x->role != y->role ? (x->role > y->role) - (x->role < y->role)
           : x->cta != y->cta   ? (x->cta > y->cta) - (x->cta < y->cta)
           : x->warp != y->warp ? (x->warp > y->warp) - (x->warp < y->warp)
                                : (x->id > y->id) - (x->id < y->id);
}

/* A GPU keeps a track for each of a CTA's warps, also for one that its role has no use for: of a
 * CTA only the tracks with events are rows, and where one is left it stands for the CTA. Tracks are
 * sorted; `empty` marks those without events. Returns how many stay. */
static int source_drop_empty(struct source_track *t, int count, const unsigned char *empty)
{
    int kept = 0;
    for (int i = 0, end; i < count; i = end) {
        int used = 0, first = kept;
        for (end = i; end < count && t[end].rank == t[i].rank && t[end].role == t[i].role &&
                      t[end].cta == t[i].cta;
             end++)
            used += !empty[t[end].id];
        for (int k = i; k < end; k++)
            if (!used || !empty[t[k].id])
                t[kept++] = t[k];
        if (used && kept == first + 1)
            t[first].warp = -1;
    }
    return kept;
}

/* Leaves are numbered as the file numbers them; files number them in display order, but nothing
 * here relies on it. */
static int source_read_tracks(struct source *s)
{
    int64_t count = source_one_number(s, "SELECT count(*) FROM track");
    if (count < 0)
        return -EBADMSG;
    s->tracks = calloc((size_t)count + 1, sizeof *s->tracks);
    s->longest = calloc((size_t)count + 1, sizeof *s->longest);
    s->rate = calloc((size_t)count + 1, sizeof *s->rate);
    int64_t ids = source_one_number(s, "SELECT coalesce(max(id), 0) FROM track");
    if (ids < 0 || ids > 16 * count + 16) /* they are numbered from 1 */
        return -EBADMSG;
    unsigned char *empty = calloc((size_t)ids + 1, 1);
    if (!s->tracks || !s->longest || !s->rate || !empty) {
        free(empty);
        return -ENOMEM;
    }
    sqlite3_stmt *q =
        source_prepare(s, "SELECT id, kind, rank, coalesce(role, -1), coalesce(cta, -1), "
                          "coalesce(warp, -1), leaves, EXISTS (SELECT 1 FROM track c WHERE "
                          "c.parent = t.id), events FROM track t WHERE id >= 0");
    int n = 0;
    while (q && n < count && sqlite3_step(q) == SQLITE_ROW) {
        const char *kind = (const char *)sqlite3_column_text(q, 1);
        struct source_track t = {sqlite3_column_int(q, 2), sqlite3_column_int(q, 3),
                                 sqlite3_column_int(q, 4), sqlite3_column_int(q, 5),
                                 sqlite3_column_int64(q, 0)};
        if (kind && strcmp(kind, "warp"))
            t.warp = -1; /* the CTA has this track alone */
        if (!kind || t.rank < 0 || t.rank >= s->info.ranks || t.role >= ROLES)
            continue;
        /* rows of a damaged table need not lie in order, so `ids` need not be the largest */
        if (t.id < 0 || t.id > ids)
            continue;
        if (!strcmp(kind, "rank")) {
            s->rank_track[t.rank] = t.id;
            s->leaves[t.rank] = sqlite3_column_int(q, 6);
        } else if (!strcmp(kind, "role") && t.role >= 0) {
            s->role_track[t.rank * ROLES + t.role] = t.id;
            s->leaves[s->info.ranks + t.rank * ROLES + t.role] = sqlite3_column_int(q, 6);
        } else if (t.role >= 0 && !sqlite3_column_int(q, 7)) {
            s->tracks[n++] = t;
            empty[t.id] = sqlite3_column_int64(q, 8) == 0;
        }
    }
    sqlite3_finalize(q);
    qsort(s->tracks, (size_t)n, sizeof *s->tracks, source_compare_tracks);
    s->info.tracks = n = source_drop_empty(s->tracks, n, empty);
    free(empty);
    q = source_prepare(
        s, "SELECT longest_ns, events, coalesce(end - start, 0) FROM track WHERE id = ?");
    for (int i = 0; q && i < n; i++) {
        sqlite3_reset(q);
        sqlite3_bind_int64(q, 1, s->tracks[i].id);
        if (sqlite3_step(q) == SQLITE_ROW) {
            s->longest[i] = (double)sqlite3_column_int64(q, 0);
            s->rate[i] =
                (double)sqlite3_column_int64(q, 1) / (1 + (double)sqlite3_column_int64(q, 2));
        }
    }
    sqlite3_finalize(q);
    return 0;
}

static int source_read_launches(struct source *s)
{
    int64_t count = source_one_number(s, "SELECT count(*) FROM launch");
    s->launches = calloc((size_t)(count < 0 ? 0 : count) + 1, sizeof *s->launches);
    s->launch_id = calloc((size_t)(count < 0 ? 0 : count) + 1, sizeof *s->launch_id);
    s->launch_plan = calloc((size_t)(count < 0 ? 0 : count) + 1, sizeof *s->launch_plan);
    if (!s->launches || !s->launch_id || !s->launch_plan)
        return -ENOMEM;
    sqlite3_stmt *q = source_prepare(
        s, "SELECT launch, plan, epoch, start, \"end\" FROM launches ORDER BY start, launch");
    int n = 0;
    while (q && n < count && sqlite3_step(q) == SQLITE_ROW) {
        s->launch_id[n] = sqlite3_column_int64(q, 0);
        s->launch_plan[n] = sqlite3_column_int64(q, 1);
        s->launches[n] =
            (struct source_launch){sqlite3_column_int64(q, 2), (double)sqlite3_column_int64(q, 3),
                                   (double)sqlite3_column_int64(q, 4)};
        n++;
    }
    sqlite3_finalize(q);
    s->info.launches = n;
    q = source_prepare(s, "SELECT ns, leaves FROM zoom ORDER BY level");
    while (q && s->levels < MAX_LEVELS && sqlite3_step(q) == SQLITE_ROW) {
        if (!sqlite3_column_int(q, 1))
            s->leaf_from = s->levels + 1;
        s->level_ns[s->levels++] = (double)sqlite3_column_int64(q, 0);
    }
    sqlite3_finalize(q);
    return 0;
}

static int source_prepare_all(struct source *s)
{
    s->level =
        source_prepare(s, "SELECT bucket, tile, copy, command, reduce, wait_data + wait_credit, "
                          "wait_backpressure, wait_network "
                          /* enum span_class from 1 on */
                          "FROM level WHERE level = ? AND track = ? AND bucket BETWEEN ? AND ?");
    s->overlap = source_prepare(
        s, "SELECT bucket, compute_only, comm_only, both FROM overlap_level WHERE level = ? AND "
           "rank = ? AND bucket BETWEEN ? AND ?");
    s->flow = source_prepare(s, "SELECT bucket, in_flight FROM flow WHERE level = ? AND link = ? "
                                "AND bucket BETWEEN ? AND ?");
    s->events = source_prepare(
        s,
        "SELECT start, ns, kind, cause FROM event WHERE track = ?1 AND start < ?3 AND start >= "
        "max(?2, coalesce((SELECT start FROM event WHERE track = ?1 AND start <= ?4 ORDER BY start "
        "DESC LIMIT 1 OFFSET 15), ?2))");
    s->at = source_prepare(
        s, "SELECT " EVENT_COLUMNS
           " FROM event WHERE track = ? AND start <= ? ORDER BY start DESC LIMIT 16");
    return s->level && s->overlap && s->flow && s->events && s->at ? 0 : -EBADMSG;
}

int source_open(struct source **out, const char *path, char *error, int error_size)
{
    *out = NULL;
    struct source *s = calloc(1, sizeof *s);
    int rc = s && (s->path = strdup(path)) ? 0 : -ENOMEM;
    if (rc) {
        snprintf(error, (size_t)error_size, "no memory to open trace '%s'", path);
        free(s);
        return rc;
    }
    rc = trace_open(&s->db, path, error, (size_t)error_size);
    if (rc) {
        source_close(s);
        return rc;
    }
    if ((rc = source_read_run(s)) || (rc = source_read_ranks(s)) || (rc = source_read_tracks(s)) ||
        (rc = source_read_launches(s)) || (rc = source_prepare_all(s))) {
        snprintf(error, (size_t)error_size,
                 rc == -ENOMEM
                     ? "no memory for the tracks of trace '%s'"
                     : "trace '%s' is damaged: a table that the viewer reads does not fit",
                 path);
        source_close(s);
        return rc;
    }
    *out = s;
    return 0;
}

void source_close(struct source *s)
{
    if (!s)
        return;
    sqlite3_finalize(s->level);
    sqlite3_finalize(s->overlap);
    sqlite3_finalize(s->flow);
    sqlite3_finalize(s->events);
    sqlite3_finalize(s->at);
    sqlite3_close(s->db);
    free(s->path);
    free(s->tracks);
    free(s->longest);
    free(s->rate);
    free(s->rank_track);
    free(s->role_track);
    free(s->leaves);
    free(s->link);
    free(s->node);
    free(s->uncertainty);
    free(s->launches);
    free(s->launch_id);
    free(s->launch_plan);
    free(s->role_share);
    free(s);
}

void source_allow(struct source *s)
{
    trace_allow(s->db);
}

const char *source_path(const struct source *s)
{
    return s->path;
}

const struct source_info *source_info(const struct source *s)
{
    return &s->info;
}

const struct source_track *source_tracks(const struct source *s)
{
    return s->tracks;
}

const struct source_launch *source_launches(const struct source *s)
{
    return s->launches;
}

int source_rank_node(const struct source *s, int rank)
{
    return rank >= 0 && rank < s->info.ranks ? s->node[rank] : 0;
}

double source_uncertainty(const struct source *s, int rank)
{
    return rank >= 0 && rank < s->info.ranks ? s->uncertainty[rank] : -1;
}

int source_launch_at(const struct source *s, double time)
{
    int best = 0;
    for (int i = 0; i < s->info.launches; i++)
        if (s->launches[i].start <= time)
            best = i;
    return best;
}

const char *source_role_name(int role)
{
    static const char *const name[ROLES] = {"compute", "intra_comm", "inter_send", "inter_reduce"};
    return role >= 0 && role < ROLES ? name[role] : "?";
}

const double *source_role_shares(struct source *s)
{
    static const char *const sql =
        "SELECT r.rank, o.id, k.id, 0, r.share FROM role_time r JOIN role o ON o.name = r.role "
        "JOIN kind k ON k.name = r.kind WHERE r.kind <> 'wait' UNION ALL SELECT x.rank, o.id, 3, "
        "c.id, x.share FROM stalls x JOIN role o ON o.name = x.role JOIN cause c ON c.name = "
        "x.cause UNION ALL SELECT -1, role_id, kind_id, 0, share FROM role_share WHERE kind_id <> "
        "3 UNION ALL SELECT -1, role_id, 3, cause_id, share FROM stall_share";
    size_t groups = ((size_t)s->info.ranks + 1) * ROLES;
    if (s->role_share || !(s->role_share = calloc(groups * SPAN_CLASSES, sizeof *s->role_share)))
        return s->role_share;
    for (size_t i = 0; i < groups; i++)
        s->role_share[i * SPAN_CLASSES] = -1;
    sqlite3_stmt *q = source_prepare(s, sql);
    while (q && sqlite3_step(q) == SQLITE_ROW) {
        int rank = sqlite3_column_int(q, 0), role = sqlite3_column_int(q, 1);
        int state = span_class_of(sqlite3_column_int(q, 2), sqlite3_column_int(q, 3));
        if (rank < -1 || rank >= s->info.ranks || role < 0 || role >= ROLES)
            continue;
        size_t group = (size_t)(rank < 0 ? s->info.ranks : rank) * ROLES + (size_t)role;
        double *share = &s->role_share[group * SPAN_CLASSES];
        share[SPAN_IDLE] = 0;
        if (state != SPAN_IDLE)
            share[state] += sqlite3_column_double(q, 4);
    }
    sqlite3_finalize(q);
    for (size_t i = 0; i < groups; i++) { /* what is left of the whole is idle */
        double *share = &s->role_share[i * SPAN_CLASSES], busy = 0;
        for (int state = 1; state < SPAN_CLASSES; state++)
            busy += share[state];
        if (share[SPAN_IDLE] >= 0)
            share[SPAN_IDLE] = busy < 100 ? 100 - busy : 0;
    }
    return s->role_share;
}
