/* `mkernel trace export`: the Trace Event Format. A process is a rank; its threads are its
 * launches, its tracks and its messages under way; messages and the waits that they end are joined
 * by flow arrows; bytes under way on each link are counters. Source: "Trace Event Format", the
 * document of chrome://tracing; ui.perfetto.dev reads the same. Times there are us.
 *
 * Queries give what an event's members are, as JSON; this file gives it a thread. */
#include "experiments/trace/trace_cli.h"
#include "core/base/grow.h"
#include "core/base/scoped.h"
#include "core/base/sorted.h"

#include <stdlib.h>

struct export
{
    sqlite3 *db;
    const struct trace_export *what;
    FILE *out;
    int any;          /* an event stands before */
    int64_t next_tid; /* threads from here on are no tracks */
    /* Events that stand on another thread than their track's, by id. */
    struct moved {
        int64_t event, tid;
    } * moved;
    size_t moved_count;
    /* Where each message's slice is, by its id from 0 to message_count - 1. */
    struct message {
        int64_t rank, tid, start, end; /* tid 0: it is not exported */
    } * messages;
    int64_t message_count;
};

/* quote_of(text): a JSON string. Names are ASCII but for what the user wrote, which may be no
 * UTF-8. */
static void trace_export_quote(sqlite3_context *context, int count, sqlite3_value **value)
{
    const unsigned char *text = sqlite3_value_text(value[0]);
    sqlite3_str *s = sqlite3_str_new(NULL);
    sqlite3_str_appendchar(s, 1, '"');
    for (const unsigned char *c = text ? text : (const unsigned char *)""; *c; c++)
        if (*c < 0x20 || *c >= 0x7f) {
            sqlite3_str_appendf(s, "\\u%04x", *c);
        } else {
            sqlite3_str_appendchar(s, *c == '"' || *c == '\\', '\\');
            sqlite3_str_appendchar(s, 1, (char)*c);
        }
    sqlite3_str_appendchar(s, 1, '"');
    sqlite3_result_text(context, sqlite3_str_finish(s), -1, sqlite3_free);
}

/* Every query has the same parameters: from ?1 to ?2 (ns), of rank ?3 and launch ?4, -1 for all. */
static sqlite3_stmt *trace_export_ask(const struct export *x, const char *sql)
{
    const struct trace_export *w = x->what;
    return query_ask(x->db, sql, "iiii", (int64_t)w->from,
                     w->to > INT64_MAX ? INT64_MAX : (int64_t)w->to, w->rank,
                     w->launch ? (int64_t)w->launch : (int64_t)-1);
}

/* Perfetto reads a double, multiplies by 1000 and cuts: where that would lose a ns, a tenth of one
 * is added. */
static void trace_export_us(struct export *x, const char *name, int64_t ns)
{
    double us = (double)ns / 1000;
    fprintf(x->out, ",\"%s\":%s%ld.%03ld%s", name, ns < 0 ? "-" : "", labs(ns / 1000),
            labs(ns % 1000), (int64_t)(us * 1000.0) < ns ? "1" : "");
}

/* One event: its times, where it has them (QUERY_NONE: not), and its other members, each with a
 * comma before it. */
static void trace_export_write(struct export *x, char phase, int64_t rank, int64_t tid, int64_t ts,
                               int64_t dur, const char *members)
{
    fprintf(x->out, "%s\n{\"ph\":\"%c\",\"pid\":%ld,\"tid\":%ld", x->any ? "," : "", phase, rank,
            tid);
    x->any = 1;
    if (ts != QUERY_NONE)
        trace_export_us(x, "ts", ts);
    if (dur != QUERY_NONE)
        trace_export_us(x, "dur", dur);
    fprintf(x->out, "%s}", members);
}

/* An event for each row of phase, rank, thread, start, length and members. */
static void trace_export_rows(struct export *x, const char *sql)
{
    QUERY q = trace_export_ask(x, sql);
    const char *phase, *members;
    long long rank, tid, ts, dur;
    while (query_row(q, "tiioot", &phase, &rank, &tid, &ts, &dur, &members) && !ferror(x->out))
        trace_export_write(x, *phase, rank, tid, ts, dur, members);
}

/* Threads of a rank stand in order of their place. A rank's own track has no events: its id is that
 * of the thread of launches. */
static const char names[] =
    "WITH n AS (SELECT id, rank, 0 AS tid, rank AS place, 'process' AS of, name FROM track WHERE "
    "kind = 'rank' UNION ALL SELECT id, rank, id, min(id * 64, 2147483646), 'thread', CASE kind "
    "WHEN 'rank' THEN 'launches' ELSE coalesce((SELECT o.name FROM role o WHERE o.id = role), '') "
    "|| ' ' || name END FROM track WHERE kind = 'rank' OR first_event IS NOT NULL) "
    "SELECT 'M', rank, tid, NULL, NULL, printf(',\"name\":\"%s_name\",\"args\":{\"name\":%s}', of, "
    "quote_of(name)) FROM n WHERE ?3 < 0 OR rank = ?3 UNION ALL SELECT 'M', rank, tid, NULL, NULL, "
    "printf(',\"name\":\"%s_sort_index\",\"args\":{\"sort_index\":%d}', of, place) FROM n WHERE ?3 "
    "< 0 OR rank = ?3";

static const char launches[] =
    "SELECT 'X', r.rank, t.id, r.start, r.end - r.start, printf(',\"cat\":\"launch\",\"name\":"
    "\"launch %d\",\"args\":{\"epoch\":%d,\"plan\":%d,\"compute only ns\":%d,\"both ns\":%d,"
    "\"communication only ns\":%d,\"idle ns\":%d}', r.launch, l.epoch, l.plan, r.compute_only, "
    "r.both, r.comm_only, r.idle) FROM launch_rank r JOIN launch l ON l.id = r.launch JOIN track t "
    "ON t.rank = r.rank AND t.kind = 'rank' WHERE (?4 < 0 OR r.launch = ?4) AND (?3 < 0 OR r.rank "
    "= ?3) AND r.end >= ?1 AND r.start BETWEEN 0 AND ?2 AND r.end >= r.start ORDER BY r.rank, "
    "r.start";

/* Bytes under way per link: the finest level, and a zero where a bucket without a row follows. */
static const char counters[] =
    "WITH c AS (SELECT f.link, l.rank, l.name, f.bucket, f.in_flight, z.ns, lead(f.bucket) OVER "
    "(PARTITION BY f.link ORDER BY f.bucket) AS next FROM flow f JOIN link l ON l.id = f.link JOIN "
    "zoom z ON z.level = 0 WHERE f.level = 0 AND (?3 < 0 OR l.rank = ?3) AND (f.bucket + 1) * z.ns "
    "> ?1 AND f.bucket * z.ns <= ?2) "
    "SELECT 'C', rank, 0, at, NULL, printf(',\"name\":%s,\"args\":{\"bytes in flight\":%d}', "
    "quote_of(name), bytes) FROM (SELECT link, rank, name, bucket * ns AS at, in_flight AS bytes "
    "FROM c UNION ALL SELECT link, rank, name, (bucket + 1) * ns, 0 FROM c WHERE next IS NOT "
    "bucket + 1) ORDER BY link, at";

/* The name is a JSON string. */
static void trace_export_thread(struct export *x, int64_t rank, int64_t tid, int64_t place,
                                const char *name)
{
    char members[96];
    char *named = sqlite3_mprintf(",\"name\":\"thread_name\",\"args\":{\"name\":%s}", name);
    trace_export_write(x, 'M', rank, tid, QUERY_NONE, QUERY_NONE, named ? named : "");
    sqlite3_free(named);
    snprintf(members, sizeof members,
             ",\"name\":\"thread_sort_index\",\"args\":{\"sort_index\":%ld}",
             place < INT32_MAX ? place : INT32_MAX);
    trace_export_write(x, 'M', rank, tid, QUERY_NONE, QUERY_NONE, members);
}

/* ---- lanes ---- */

/* Threads beside each other for slices of which several are under way at once: on one thread
 * readers know slices inside each other, and leave out one that begins inside another and ends
 * after it. */
enum { LANES = 4096 };
struct lanes {
    int64_t end[LANES], tid[LANES];
    int count;
};

/* The first lane in which nothing is under way at `start`; it is taken until `end`. A new one has
 * tid -1. -1: all are taken. */
static int trace_export_lane(struct lanes *l, int64_t start, int64_t end)
{
    int i = 0;
    while (i < l->count && l->end[i] > start)
        i++;
    if (i == LANES)
        return -1;
    if (i == l->count)
        l->tid[l->count++] = -1;
    l->end[i] = end;
    return i;
}

/* ---- events ---- */

/* The thread on which an event stands. */
static int64_t trace_export_tid(const struct export *x, int64_t event, int64_t track)
{
    size_t at = MK_BISECT(i, x->moved_count, x->moved[i].event < event);
    return at < x->moved_count && x->moved[at].event == event ? x->moved[at].tid : track;
}

/* The thread of an event of a track in which some overlap: copies have lanes of their own there.
 * Events are moved in order of their ids, as they are written. */
static int64_t trace_export_lane_of(struct export *x, struct lanes lanes[2], int copy, int64_t id,
                                    int64_t start, int64_t ns, int64_t rank, int64_t track,
                                    const char *name)
{
    int lane = ns > 0 ? trace_export_lane(&lanes[copy], start, start + ns) : -1;
    if (lane < 0)
        return track;
    int64_t *tid = &lanes[copy].tid[lane];
    if (*tid < 0 && !copy && !lane)
        *tid = track;
    if (*tid < 0) {
        *tid = x->next_tid++;
        trace_export_thread(x, rank, *tid, track * 64 + (lane < 62 ? 1 + lane : 63), name);
    }
    if (*tid == track || mk_grow(&x->moved, x->moved_count, sizeof *x->moved))
        return track;
    x->moved[x->moved_count++] = (struct moved){id, *tid};
    return *tid;
}

/* What Perfetto shows in a slice: a tile's shard and its first row and column there, a chunk's
 * owner and number. What began before ?1 may reach in: ?5 is where a track's events begin. */
static const char events[] =
    "SELECT e.id, e.start, e.ns, e.kind, "
    "printf('%s,\"cat\":%s,\"name\":%s,\"args\":{\"%s\":%d%s%s%s,\"event\":%d}', CASE WHEN "
    "e.ns = 0 AND e.kind IN (1, 5) THEN ',\"s\":\"t\"' END, quote_of(k.name), quote_of(CASE WHEN "
    "e.kind = "
    "3 THEN 'wait ' || c.name WHEN i.slab IS NOT NULL THEN printf('tile %d: shard %d, row %d, "
    "column %d', e.argument, i.slab, i.row, i.col) WHEN h.rank IS NOT NULL THEN printf('%s chunk "
    "%d of rank %d', k.name, h.number, h.rank) ELSE coalesce(k.name, '') END), CASE e.kind WHEN "
    "1 THEN 'epoch' WHEN 2 THEN 'tile' WHEN 3 THEN 'flag' WHEN 5 THEN 'flag' WHEN 6 THEN "
    "'command' ELSE 'chunk' END, e.argument, CASE WHEN e.peer IS NOT NULL THEN "
    "printf(',\"peer\":%d', e.peer) END, ',\"rows\":' || i.rows || "
    "',\"columns\":' || i.cols, CASE WHEN f.text <> '' THEN ',\"for\":' || quote_of(f.text) END, "
    "e.id) FROM event e LEFT JOIN kind k ON k.id = e.kind LEFT JOIN cause c ON c.id = e.cause "
    "LEFT JOIN launch l ON l.id = e.launch LEFT JOIN flag f ON e.kind = 3 AND f.plan = l.plan "
    "AND f.id = e.argument AND f.rank = -1 LEFT JOIN tile i ON e.kind = 2 AND i.plan = l.plan "
    "AND i.id = e.argument LEFT JOIN chunk h ON e.kind IN (4, 7) AND h.plan = l.plan AND h.id = "
    "e.argument WHERE e.track = ?6 AND e.start BETWEEN ?5 AND ?2 AND e.start + e.ns >= ?1 AND "
    "(?4 < 0 OR e.launch = ?4) ORDER BY e.start, e.id";

/* Track by track: that is the order in which events lie in the file. */
static void trace_export_events(struct export *x)
{
    QUERY tracks = trace_export_ask(
        x, "SELECT t.id, t.rank, t.longest_ns, quote_of(coalesce(o.name || ' ' || t.name, '')), "
           "quote_of(coalesce(o.name || ' ' || t.name, '') || ', copies') FROM track t "
           "LEFT JOIN role o ON o.id = t.role WHERE t.first_event IS NOT NULL AND (?3 < 0 OR "
           "t.rank = ?3) ORDER BY t.first_event");
    QUERY q = trace_export_ask(x, events);
    MK_FREED struct lanes *lanes = malloc(2 * sizeof *lanes);
    long long track, rank, longest, id, start, ns, kind;
    const char *name[2], *members; /* of other events and of copies */
    while (q && lanes && query_row(tracks, "iiitt", &track, &rank, &longest, &name[0], &name[1])) {
        /* whether two are under way at once: a CTA that waits while its copies are on their way */
        int several = (int)query_integer(
            x->db, 0,
            "SELECT EXISTS (SELECT * FROM (SELECT start, ns, max(start + ns) OVER (ORDER BY start, "
            "id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before FROM event WHERE track "
            "= ?1) WHERE ns > 0 AND start < before)",
            "i", (int64_t)track);
        sqlite3_bind_int64(q, 5, (int64_t)x->what->from - longest);
        sqlite3_bind_int64(q, 6, track);
        lanes[0].count = lanes[1].count = 0;
        while (query_row(q, "iiiit", &id, &start, &ns, &kind, &members) && !ferror(x->out)) {
            int instant = ns == 0 && (kind == 1 || kind == 5);
            int64_t tid = several ? trace_export_lane_of(x, lanes, kind == 4, id, start, ns, rank,
                                                         track, name[kind == 4])
                                  : track;
            trace_export_write(x, instant ? 'i' : 'X', rank, tid, start, instant ? QUERY_NONE : ns,
                               members);
        }
        sqlite3_reset(q);
    }
}

/* ---- messages ---- */

/* Every put as a slice from its command to its arrival, its stages inside it: where the stage is
 * known, from when to when. */
static const char messages[] =
    "SELECT id, rank, start, end, "
    "printf(',\"cat\":\"message\",\"name\":%s,\"args\":{\"message\":%d,"
    "\"peer\":%d,\"bytes\":%d,\"flag\":%d,\"epoch\":%d}', quote_of(coalesce(nullif(text, ''), "
    "'message') || ' to rank ' || peer), id, peer, bytes, flag, epoch), CASE WHEN commanded IS NOT "
    "NULL AND told THEN start END, min(seen, end), CASE WHEN told THEN seen END, coalesce(posted, "
    "end), CASE WHEN posted >= start THEN posted END, end FROM (SELECT *, seen >= start AND "
    "(posted "
    "IS NULL OR posted >= seen) AS told FROM (SELECT m.*, coalesce(f.text, g.text) AS text, "
    "min(coalesce(commanded, 1 << 62), coalesce(seen, 1 << 62), coalesce(posted, 1 << 62)) AS "
    "start, "
    "max(coalesce(commanded, -1), coalesce(seen, -1), coalesce(posted, -1), coalesce(completed, "
    "-1), "
    "CASE WHEN waited THEN coalesce(arrived, -1) ELSE -1 END) AS end FROM message m LEFT JOIN flag "
    "f "
    "ON f.plan = m.plan AND f.id = m.flag AND f.rank = m.peer LEFT JOIN flag g ON g.plan = m.plan "
    "AND g.id = m.flag AND g.rank = -1 WHERE (?3 < 0 OR m.rank = ?3) AND (?4 < 0 OR m.launch = "
    "?4))) "
    "WHERE start BETWEEN 0 AND min(end, ?2) AND end >= ?1 ORDER BY rank, coalesce(commanded, seen, "
    "posted)";

static void trace_export_messages(struct export *x)
{
    static const char *const stages[] = {"in the ring", "in the proxy", "on the network"};
    int64_t count = query_integer(x->db, -1, "SELECT max(id) FROM message", "") + 1;
    if (count < 1 || count > 1 << 28) /* of a damaged file */
        return;
    x->messages = calloc((size_t)count, sizeof *x->messages);
    MK_FREED struct lanes *lanes = calloc(1, sizeof *lanes);
    QUERY q = trace_export_ask(x, messages);
    long long id, rank, start, end, from[3], to[3], last = -1;
    int64_t first_tid = x->next_tid;
    const char *members;
    for (int more = x->messages && lanes; more;) {
        more = query_row(q, "iiiitoooooo", &id, &rank, &start, &end, &members, &from[0], &to[0],
                         &from[1], &to[1], &from[2], &to[2]) &&
               !ferror(x->out);
        if (!more || rank != last) { /* a rank is whole */
            for (int i = 0; i < lanes->count; i++, x->next_tid++)
                trace_export_thread(x, last, x->next_tid, INT32_MAX, "\"messages out\"");
            lanes->count = 0;
            first_tid = x->next_tid;
        }
        last = rank;
        int lane = more && id >= 0 && id < count ? trace_export_lane(lanes, start, end) : -1;
        if (lane < 0)
            continue;
        int64_t tid = first_tid + lane;
        x->messages[id] = (struct message){rank, tid, start, end};
        trace_export_write(x, 'X', rank, tid, start, end - start, members);
        for (int i = 0; i < 3; i++) {
            char stage[64];
            snprintf(stage, sizeof stage, ",\"cat\":\"stage\",\"name\":\"%s\"", stages[i]);
            if (from[i] != QUERY_NONE && to[i] >= from[i])
                trace_export_write(x, 'X', rank, tid, from[i], to[i] - from[i], stage);
        }
    }
    x->message_count = count;
}

/* ---- arrows ---- */

struct point {
    int64_t rank, tid, at;
};

static void trace_export_point(struct export *x, char phase, const struct point *p,
                               const char *name, int64_t id)
{
    char members[96];
    snprintf(members, sizeof members, "%s,\"cat\":\"flow\",\"name\":\"%s\",\"id\":%ld",
             phase == 'f' ? ",\"bp\":\"e\"" : "", name, id);
    trace_export_write(x, phase, p->rank, p->tid, p->at, QUERY_NONE, members);
}

/* The last moment inside the slice that an event is; of an event without length, inside the slice
 * before it on its track and in its launch. 0 where there is none. */
static int trace_export_inside(const struct export *x, sqlite3_stmt *before, int64_t event,
                               int64_t start, int64_t ns, struct point *p)
{
    int found = 1;
    p->at = start + ns - 1;
    if (ns <= 0) {
        query_again(before, "i", event);
        long long one, end;
        if ((found = query_row(before, "ii", &one, &end))) {
            event = one;
            p->at = end <= start ? end - 1 : start;
        }
    }
    p->tid = trace_export_tid(x, event, p->tid);
    return found;
}

/* An arrow from what raised a flag (a command, or the work before a signal) to the wait that it
 * ended, by way of the message that carried it. Each point lies inside a slice, not on its end:
 * there the next slice begins, and a reader would take that one. */
static void trace_export_arrows(struct export *x)
{
    QUERY q = trace_export_ask(
        x,
        "SELECT d.event, d.producer, p.start, p.ns, s.rank, p.track, e.start + e.ns - 1, t.rank, "
        "e.track, d.message FROM edge d JOIN event e ON e.id = d.event JOIN event p ON p.id = "
        "d.producer JOIN track t ON t.id = e.track JOIN track s ON s.id = p.track WHERE (?4 < 0 "
        "OR (e.launch = ?4 AND p.launch = ?4)) AND (?3 < 0 OR (s.rank = ?3 AND t.rank = ?3)) AND "
        "e.start + e.ns - 1 <= ?2");
    /* A track's events have ids in order of their starts. Mostly the one before it ended as it
     * began; else, of those near it the one that ended last, or one that had not. (`+` keeps SQLite
     * from reading the whole track by its index.) */
    QUERY before = query_ask(
        x->db,
        "SELECT b.id, b.start + b.ns FROM event e JOIN event b ON b.id BETWEEN e.id - CASE WHEN "
        "EXISTS (SELECT 1 FROM event a WHERE a.id = e.id - 1 AND +a.track = e.track AND a.ns > 0 "
        "AND "
        "a.kind <> 3 AND a.start + a.ns = e.start) THEN 1 ELSE 64 END AND e.id - 1 WHERE e.id = ?1 "
        "AND +b.track = e.track AND b.ns > 0 AND b.launch IS e.launch ORDER BY b.start + b.ns <= "
        "e.start DESC, b.start + b.ns DESC, b.kind = 3, b.id DESC LIMIT 1",
        "");
    long long id, producer, start, ns, rank, track, at, wait_rank, wait_track, message;
    while (before &&
           query_row(q, "iiiiiiiiio", &id, &producer, &start, &ns, &rank, &track, &at, &wait_rank,
                     &wait_track, &message) &&
           !ferror(x->out)) {
        struct point from = {rank, track, 0},
                     to = {wait_rank, trace_export_tid(x, id, wait_track), at};
        if (!trace_export_inside(x, before, producer, start, ns, &from) ||
            from.at < (int64_t)x->what->from || from.at > to.at)
            continue;
        const char *name = message != QUERY_NONE ? "message" : "signal";
        trace_export_point(x, 's', &from, name, id);
        if (message >= 0 && message < x->message_count && x->messages[message].tid) {
            const struct message *m = &x->messages[message];
            struct point by = {m->rank, m->tid, m->start};
            if (by.at >= from.at && by.at <= to.at && m->end > m->start)
                trace_export_point(x, 't', &by, name, id);
        }
        trace_export_point(x, 'f', &to, name, id);
    }
}

void trace_export_chrome(sqlite3 *db, const struct trace_export *what, FILE *out)
{
    struct export x = {.db = db,
                       .what = what,
                       .out = out,
                       .next_tid = query_integer(db, 0, "SELECT max(id) FROM track", "") + 1};
    const char *run = "";
    sqlite3_create_function(db, "quote_of", 1, SQLITE_UTF8, NULL, trace_export_quote, NULL, NULL);
    {
        QUERY q = query_ask(
            db,
            "SELECT printf('\"op\":%s,\"shape\":%s,\"source\":%s,\"executor\":%s,\"dropped\":%d,"
            "\"clock residual ns\":%d', quote_of(op), quote_of(shape), quote_of(source), "
            "quote_of(executor), dropped, residual_ns) FROM run",
            "");
        query_row(q, "t", &run);
        fprintf(out, "{\"displayTimeUnit\":\"ns\",\"otherData\":{%s},\"traceEvents\":[", run);
    }
    trace_export_rows(&x, names);
    trace_export_rows(&x, launches);
    trace_export_events(&x);
    trace_export_messages(&x);
    trace_export_arrows(&x);
    trace_export_rows(&x, counters);
    free(x.messages);
    free(x.moved);
    fputs("\n]}\n", out);
}
