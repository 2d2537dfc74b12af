/* `mkernel trace export`: messages and the arrows between slices. */
#include "experiments/trace/trace_json.h"

#include <stdlib.h>

/* ---- messages ---- */

int trace_lane(struct trace_lanes *l, int64_t start, int64_t end)
{
    int i = 0;
    while (i < l->count && l->end[i] > start)
        i++;
    if (i == TRACE_LANES)
        return -1;
    if (i == l->count)
        l->tid[l->count++] = -1;
    l->end[i] = end;
    return i;
}

/* A put; times that are not known are QUERY_NONE. */
struct message {
    long long id, stamps[5]; /* commanded, seen, posted, completed, arrived */
    long long peer, bytes, epoch, flag;
    const char *carries;
};

static void trace_export_flow_write_stage(struct trace_json *j, int64_t rank, int64_t tid,
                                          const char *name, int64_t start, int64_t end)
{
    if (end < start)
        return;
    trace_json_slice(j, rank, tid, start, end);
    fprintf(j->out, ",\"cat\":\"stage\",\"name\":\"%s\"}", name);
}

static void trace_export_flow_write_message(struct trace_json *j, const struct message *m,
                                            int64_t rank, int64_t tid, int64_t start, int64_t end)
{
    char name[160];
    snprintf(name, sizeof name, "%s to rank %lld", *m->carries ? m->carries : "message", m->peer);
    trace_json_slice(j, rank, tid, start, end);
    fputs(",\"cat\":\"message\",\"name\":", j->out);
    trace_json_string(j->out, name);
    fprintf(
        j->out,
        ",\"args\":{\"message\":%lld,\"peer\":%lld,\"bytes\":%lld,\"flag\":%lld,\"epoch\":%lld}}",
        m->id, m->peer, m->bytes, m->flag, m->epoch);
    int64_t seen = m->stamps[1], posted = m->stamps[2];
    int sent = posted != QUERY_NONE;
    if (seen != QUERY_NONE && seen >= start && (!sent || posted >= seen)) {
        if (m->stamps[0] != QUERY_NONE)
            trace_export_flow_write_stage(j, rank, tid, "in the ring", start,
                                          seen < end ? seen : end);
        trace_export_flow_write_stage(j, rank, tid, "in the proxy", seen, sent ? posted : end);
    }
    if (sent && posted >= start)
        trace_export_flow_write_stage(j, rank, tid, "on the network", posted, end);
}

struct trace_json_message *trace_json_messages(struct trace_json *j, sqlite3 *db,
                                               const struct trace_export *what, int64_t *count)
{
    static const char *const sql =
        "SELECT m.id, m.commanded, m.seen, m.posted, m.completed, CASE WHEN m.waited THEN "
        "m.arrived END, "
        "m.peer, m.bytes, m.epoch, m.flag,"
        " coalesce(f.text, g.text) FROM message m LEFT JOIN flag f ON f.plan = m.plan AND f.id = "
        "m.flag AND "
        "f.rank = m.peer"
        " LEFT JOIN flag g ON g.plan = m.plan AND g.id = m.flag AND g.rank = -1"
        " WHERE m.rank = ?1 AND (?2 < 0 OR m.launch = ?2) ORDER BY coalesce(m.commanded, m.seen, "
        "m.posted)";
    *count = query_integer(db, -1, "SELECT max(id) FROM message", "") + 1;
    int64_t ranks = query_integer(db, 0, "SELECT count(*) FROM rank", "");
    struct message m;
    if (*count < 1 || *count > 1 << 28) /* of a damaged file */
        return NULL;
    struct trace_json_message *slices = calloc((size_t)*count, sizeof *slices);
    struct trace_lanes *lanes = malloc(sizeof *lanes);
    for (int64_t rank = 0; slices && lanes && rank < ranks; rank++) {
        if (what->rank >= 0 && rank != what->rank)
            continue;
        int64_t first_tid = j->next_tid;
        lanes->count = 0;
        QUERY q = query_ask(db, sql, "ii", rank, trace_json_launch(what));
        while (query_row(q, "ioooooiiiit", &m.id, &m.stamps[0], &m.stamps[1], &m.stamps[2],
                         &m.stamps[3], &m.stamps[4], &m.peer, &m.bytes, &m.epoch, &m.flag,
                         &m.carries) &&
               !ferror(j->out)) {
            int64_t start = INT64_MAX, end = INT64_MIN;
            for (int i = 0; i < 5; i++) {
                if (m.stamps[i] == QUERY_NONE)
                    continue;
                start = i <= 2 && m.stamps[i] < start ? m.stamps[i] : start;
                end = m.stamps[i] > end ? m.stamps[i] : end;
            }
            if (start > end || start < 0 || end < (int64_t)what->from ||
                start > trace_json_to(what) || m.id < 0 || m.id >= *count)
                continue;
            int lane = trace_lane(lanes, start, end);
            if (lane < 0)
                continue;
            slices[m.id] = (struct trace_json_message){first_tid + lane, start, end, rank};
            trace_export_flow_write_message(j, &m, rank, first_tid + lane, start, end);
        }
        for (int i = 0; i < lanes->count; i++, j->next_tid++)
            trace_json_thread(j, rank, j->next_tid, INT32_MAX, "messages out");
    }
    free(lanes);
    return slices;
}

/* ---- arrows ---- */

struct point {
    int64_t rank, tid, at;
};

static void trace_export_flow_write_point(struct trace_json *j, char phase, const struct point *p,
                                          const char *name, int64_t id)
{
    trace_json_begin(j, phase, p->rank, p->tid);
    trace_json_us(j, "ts", p->at);
    fprintf(j->out, "%s,\"cat\":\"flow\",\"name\":\"%s\",\"id\":%lld}",
            phase == 'f' ? ",\"bp\":\"e\"" : "", name, (long long)id);
}

/* The last moment inside the slice that an event is; of an event without length, inside the slice
 * before it on its track and in its launch. 0 where there is none. */
static int trace_export_flow_inside(const struct trace_json *j, sqlite3_stmt *before, int64_t event,
                                    int64_t start, int64_t ns, struct point *p)
{
    int found = 1;
    p->at = start + ns - 1;
    if (ns <= 0) {
        sqlite3_bind_int64(before, 1, event);
        long long one, end;
        if ((found = query_row(before, "ii", &one, &end))) {
            event = one;
            p->at = end <= start ? end - 1 : start;
        }
        sqlite3_reset(before);
    }
    p->tid = trace_json_tid(j, event, p->tid);
    return found;
}

void trace_json_arrows(struct trace_json *j, sqlite3 *db, const struct trace_export *what,
                       const struct trace_json_message *messages, int64_t count)
{
    QUERY q = query_ask(
        db,
        "SELECT d.event, d.producer, p.start, p.ns, s.rank, p.track, e.start, e.ns, t.rank, "
        "e.track, d.message"
        " FROM edge d JOIN event e ON e.id = d.event JOIN event p ON p.id = d.producer"
        " JOIN track t ON t.id = e.track JOIN track s ON s.id = p.track"
        " WHERE ?1 < 0 OR (e.launch = ?1 AND p.launch = ?1)",
        "i", trace_json_launch(what));
    /* A track's events have ids in order of their starts. Mostly the one before it ended as it
     * began; else, of those near it the one that ended last, or one that had not. (`+` keeps SQLite
     * from reading the whole track by its index.) */
    QUERY before = query_ask(
        db,
        "SELECT b.id, b.start + b.ns FROM event e JOIN event b ON b.id BETWEEN e.id - CASE WHEN "
        "EXISTS (SELECT 1 FROM event a"
        " WHERE a.id = e.id - 1 AND +a.track = e.track AND a.ns > 0 AND a.kind <> 3 AND a.start + "
        "a.ns = e.start) THEN 1 ELSE 64 END"
        " AND e.id - 1 WHERE e.id = ?1 AND +b.track = e.track AND b.ns > 0 AND b.launch IS e.launch"
        " ORDER BY b.start + b.ns <= e.start DESC, b.start + b.ns DESC, b.kind = 3, b.id DESC "
        "LIMIT 1",
        "");
    long long id, producer, start, ns, rank, track, wait, wait_ns, wait_rank, wait_track, message;
    while (before &&
           query_row(q, "iiiiiiiiiio", &id, &producer, &start, &ns, &rank, &track, &wait, &wait_ns,
                     &wait_rank, &wait_track, &message) &&
           !ferror(j->out)) {
        struct point from = {rank, track, 0}, to = {wait_rank, wait_track, wait + wait_ns - 1};
        if (!trace_export_flow_inside(j, before, producer, start, ns, &from) ||
            from.at < (int64_t)what->from || to.at > trace_json_to(what) || from.at > to.at ||
            (what->rank >= 0 && (from.rank != what->rank || to.rank != what->rank)))
            continue;
        int carried = message != QUERY_NONE;
        const char *name = carried ? "message" : "signal";
        to.tid = trace_json_tid(j, id, to.tid);
        trace_export_flow_write_point(j, 's', &from, name, id);
        if (carried && messages && message >= 0 && message < count && messages[message].tid) {
            const struct trace_json_message *m = &messages[message];
            struct point by = {m->rank, m->tid, m->start};
            if (by.at >= from.at && by.at <= to.at && m->end > m->start)
                trace_export_flow_write_point(j, 't', &by, name, id);
        }
        trace_export_flow_write_point(j, 'f', &to, name, id);
    }
}
