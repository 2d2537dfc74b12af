/* Opens a trace and learns what it holds: tracks, launches, links, levels. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tracer/live.h"
#include "core/base/scoped.h"
#include "core/base/sorted.h"
#include "tui/cells.h"
#include "tui/source.h"

static int64_t source_one_number(struct source *s, const char *sql)
{
    return query_integer(s->db, -1, sql, "");
}

static int source_read_run(struct source *s)
{
    struct source_info *i = &s->info;
    const char *column[6];
    char text[6][48];
    long long end, uncertainty;
    int nodes, gpus;
    QUERY q = query_ask(s->db,
                        "SELECT op, shape, source, executor || coalesce(' ' || " TRACE_ENGINE
                        ", ''), fabric, nic, nodes, gpus, duration_ns, events, messages, dropped, "
                        "residual_ns FROM run",
                        "");
    long long events, messages, dropped;
    if (!query_row(q, "ttttttnniiiio", &column[0], &column[1], &column[2], &column[3], &column[4],
                   &column[5], &nodes, &gpus, &end, &events, &messages, &dropped, &uncertainty))
        return -EBADMSG;
    for (int c = 0; c < 6; c++) {
        snprintf(text[c], sizeof text[c], "%s", column[c]);
        cells_clean(text[c]);
    }
    int measured = !strcmp(text[2], "measured");
    snprintf(i->title, sizeof i->title, "%s %s", text[0], text[1]);
    snprintf(i->setting, sizeof i->setting, "%d×%d %s%s%s%s%s%s%s", nodes, gpus, text[3],
             measured ? "" : " ", measured ? "" : text[2], text[4][0] ? " " : "", text[4],
             text[5][0] ? "/" : "", text[5]);
    i->end = (double)end;
    i->events = events;
    i->messages = messages;
    i->dropped = dropped;
    i->uncertainty = uncertainty == QUERY_NONE ? -1 : (double)uncertainty;
    i->end = i->end < 1 ? 1 : i->end;
    i->ranks = (int)source_one_number(s, "SELECT max(id) + 1 FROM rank");
    return i->ranks > 0 && i->ranks <= (int)MK_MAX_RANKS ? 0 : -EBADMSG;
}

static int source_read_ranks(struct source *s)
{
    size_t ranks = (size_t)s->info.ranks;
    s->rank_track = calloc(ranks, sizeof *s->rank_track);
    s->role_track = calloc(ranks * MK_ROLES, sizeof *s->role_track);
    s->leaves = calloc(ranks * (MK_ROLES + 1), sizeof *s->leaves);
    s->link = calloc(ranks * 2, sizeof *s->link);
    s->node = calloc(ranks, sizeof *s->node);
    s->uncertainty = calloc(ranks, sizeof *s->uncertainty);
    if (!s->rank_track || !s->role_track || !s->leaves || !s->link || !s->node || !s->uncertainty)
        return -ENOMEM;
    long long rank, id;
    double value;
    const char *kind;
    int node;
    QUERY q = query_ask(s->db, "SELECT id, node FROM rank", "");
    while (query_row(q, "in", &rank, &node))
        if (rank >= 0)
            s->node[rank] = node;
    QUERY clocks = query_ask(s->db, "SELECT rank, sum(residual_ns) FROM clock GROUP BY rank", "");
    for (size_t r = 0; r < ranks; r++)
        s->uncertainty[r] = -1;
    while (query_row(clocks, "id", &rank, &value))
        if (rank >= 0 && rank < s->info.ranks)
            s->uncertainty[rank] = value;
    QUERY links =
        query_ask(s->db,
                  "SELECT id, rank, kind, peak_bytes FROM link WHERE direction = 'out' AND "
                  "transfers > 0",
                  "");
    while (query_row(links, "iitd", &id, &rank, &kind, &value)) {
        if (rank < 0 || rank >= s->info.ranks || !*kind)
            continue;
        int nic = strcmp(kind, "nvlink") != 0;
        s->link[rank * 2 + nic] = (struct source_link_row){id, value};
        s->info.nic |= nic;
        s->info.nvlink |= !nic;
    }
    return 0;
}

static int source_compare_tracks(const void *a, const void *b)
{
    const struct source_track *x = a, *y = b;
    return MK_ORDER(x->rank, y->rank) ?: MK_ORDER(x->role, y->role) ?: MK_ORDER(x->cta, y->cta)
           ?: MK_ORDER(x->warp, y->warp) ?: MK_ORDER(x->id, y->id);
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
    MK_FREED unsigned char *empty = calloc((size_t)ids + 1, 1);
    if (!s->tracks || !s->longest || !s->rate || !empty)
        return -ENOMEM;
    QUERY q = query_ask(s->db,
                        "SELECT id, kind, rank, coalesce(role, -1), coalesce(cta, -1), "
                        "coalesce(warp, -1), leaves, EXISTS (SELECT 1 FROM track c WHERE "
                        "c.parent = t.id), events FROM track t WHERE id >= 0",
                        "");
    struct source_track t;
    const char *kind;
    long long id, events;
    int n = 0, leaves, inner;
    while (n < count && query_row(q, "itnnnnnni", &id, &kind, &t.rank, &t.role, &t.cta, &t.warp,
                                  &leaves, &inner, &events)) {
        t.id = id;
        if (strcmp(kind, "warp"))
            t.warp = -1; /* the CTA has this track alone */
        if (!*kind || t.rank < 0 || t.rank >= s->info.ranks || t.role >= MK_ROLES)
            continue;
        /* rows of a damaged table need not lie in order, so `ids` need not be the largest */
        if (t.id < 0 || t.id > ids)
            continue;
        if (!strcmp(kind, "rank")) {
            s->rank_track[t.rank] = t.id;
            s->leaves[t.rank] = leaves;
        } else if (!strcmp(kind, "role") && t.role >= 0) {
            s->role_track[t.rank * MK_ROLES + t.role] = t.id;
            s->leaves[s->info.ranks + t.rank * MK_ROLES + t.role] = leaves;
        } else if (t.role >= 0 && !inner) {
            s->tracks[n++] = t;
            empty[t.id] = events == 0;
        }
    }
    qsort(s->tracks, (size_t)n, sizeof *s->tracks, source_compare_tracks);
    s->info.tracks = n = source_drop_empty(s->tracks, n, empty);
    QUERY rates =
        query_ask(s->db,
                  "SELECT coalesce(longest_ns, 0), 1.0 * events / (1 + coalesce(end - start, 0)) "
                  "FROM track WHERE id = ?",
                  "");
    for (int i = 0; rates && i < n; i++) {
        query_again(rates, "i", s->tracks[i].id);
        query_row(rates, "dd", &s->longest[i], &s->rate[i]);
    }
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
    QUERY q = query_ask(
        s->db, "SELECT launch, plan, epoch, start, \"end\" FROM launches ORDER BY start, launch",
        "");
    long long id, plan, epoch;
    double start, end, ns;
    int n = 0, leaves;
    for (; n < count && query_row(q, "iiidd", &id, &plan, &epoch, &start, &end); n++) {
        s->launch_id[n] = id;
        s->launch_plan[n] = plan;
        s->launches[n] = (struct source_launch){epoch, start, end};
    }
    s->info.launches = n;
    QUERY zoom = query_ask(s->db, "SELECT ns, leaves FROM zoom ORDER BY level", "");
    while (s->levels < MAX_LEVELS && query_row(zoom, "dn", &ns, &leaves)) {
        if (!leaves)
            s->leaf_from = s->levels + 1;
        s->level_ns[s->levels++] = ns;
    }
    return 0;
}

static int source_prepare_all(struct source *s)
{
    s->level = query_ask(s->db,
                         "SELECT bucket, tile, copy, command, reduce, wait_data + wait_credit, "
                         "wait_backpressure, wait_network "
                         /* enum span_class from 1 on */
                         "FROM level WHERE level = ? AND track = ? AND bucket BETWEEN ? AND ?",
                         "");
    s->overlap = query_ask(
        s->db,
        "SELECT bucket, compute_only, comm_only, both FROM overlap_level WHERE level = ? AND "
        "rank = ? AND bucket BETWEEN ? AND ?",
        "");
    s->flow = query_ask(s->db,
                        "SELECT bucket, in_flight FROM flow WHERE level = ? AND link = ? "
                        "AND bucket BETWEEN ? AND ?",
                        "");
    s->events = query_ask(
        s->db,
        "SELECT start, ns, kind, cause FROM event WHERE track = ?1 AND start < ?3 AND start >= "
        "max(?2, coalesce((SELECT start FROM event WHERE track = ?1 AND start <= ?4 ORDER BY start "
        "DESC LIMIT 1 OFFSET 15), ?2))",
        "");
    s->at = query_ask(s->db,
                      "SELECT " EVENT_COLUMNS
                      " FROM event WHERE track = ? AND start <= ? ORDER BY start DESC LIMIT 16",
                      "");
    return s->level && s->overlap && s->flow && s->events && s->at ? 0 : -EBADMSG;
}

int source_open(struct source **out, const char *path, char *error, int size)
{
    *out = NULL;
    struct source *s = calloc(1, sizeof *s);
    int rc = s && (s->path = strdup(path)) ? 0 : -ENOMEM;
    if (rc) {
        snprintf(error, (size_t)size, "no memory to open trace '%s'", path);
        free(s);
        return rc;
    }
    rc = trace_open(&s->db, path, error, (size_t)size);
    if (rc) {
        source_close(s);
        return rc;
    }
    if ((rc = source_read_run(s)) || (rc = source_read_ranks(s)) || (rc = source_read_tracks(s)) ||
        (rc = source_read_launches(s)) || (rc = source_prepare_all(s))) {
        snprintf(error, (size_t)size,
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
    return role >= 0 && role < MK_ROLES ? plan_role_name(role) : "?";
}

const double *source_role_shares(struct source *s)
{
    static const char *const sql =
        "SELECT r.rank, o.id, k.id, 0, r.share FROM role_time r JOIN role o ON o.name = r.role "
        "JOIN kind k ON k.name = r.kind WHERE r.kind <> 'wait' UNION ALL SELECT x.rank, o.id, 3, "
        "c.id, x.share FROM stalls x JOIN role o ON o.name = x.role JOIN cause c ON c.name = "
        "x.cause UNION ALL SELECT -1, role_id, kind_id, 0, share FROM role_share WHERE kind_id <> "
        "3 UNION ALL SELECT -1, role_id, 3, cause_id, share FROM stall_share";
    size_t groups = ((size_t)s->info.ranks + 1) * MK_ROLES;
    if (s->role_share || !(s->role_share = calloc(groups * SPAN_CLASSES, sizeof *s->role_share)))
        return s->role_share;
    for (size_t i = 0; i < groups; i++)
        s->role_share[i * SPAN_CLASSES] = -1;
    QUERY q = query_ask(s->db, sql, "");
    int rank, role, kind, cause;
    double part;
    while (query_row(q, "nnnnd", &rank, &role, &kind, &cause, &part)) {
        int state = span_class_of(kind, cause);
        if (rank < -1 || rank >= s->info.ranks || role < 0 || role >= MK_ROLES)
            continue;
        size_t group = (size_t)(rank < 0 ? s->info.ranks : rank) * MK_ROLES + (size_t)role;
        double *share = &s->role_share[group * SPAN_CLASSES];
        share[SPAN_IDLE] = 0;
        if (state != SPAN_IDLE)
            share[state] += part;
    }
    for (size_t i = 0; i < groups; i++) { /* what is left of the whole is idle */
        double *share = &s->role_share[i * SPAN_CLASSES], busy = 0;
        for (int state = 1; state < SPAN_CLASSES; state++)
            busy += share[state];
        if (share[SPAN_IDLE] >= 0)
            share[SPAN_IDLE] = busy < 100 ? 100 - busy : 0;
    }
    return s->role_share;
}
