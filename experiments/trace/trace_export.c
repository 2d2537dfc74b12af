/* `mkernel trace export`: the Trace Event Format. A process is a rank; its threads are its
 * launches, its tracks and its messages under way; messages and the waits that they end are joined
 * by flow arrows; bytes under way on each link are counters. Source: "Trace Event Format", the
 * document of chrome://tracing; ui.perfetto.dev reads the same. Times there are us. */
#include "experiments/trace/trace_json.h"
#include "core/grow.h"

#include <stdlib.h>
#include <string.h>

void trace_json_string(FILE *out, const char *text)
{
    fputc('"', out);
    for (const unsigned char *c = (const unsigned char *)(text ? text : ""); *c; c++) {
        if (*c == '"' || *c == '\\')
            fprintf(out, "\\%c", *c);
        else if (*c < 0x20 ||
                 /* names are ASCII but for what the user wrote, which may be no UTF-8 */
                 *c >= 0x7f)
            fprintf(out, "\\u%04x", *c);
        else
            fputc(*c, out);
    }
    fputc('"', out);
}

void trace_json_begin(struct trace_json *j, char phase, int64_t rank, int64_t tid)
{
    fprintf(j->out, "%s\n{\"ph\":\"%c\",\"pid\":%lld,\"tid\":%lld", j->any ? "," : "", phase,
            (long long)rank, (long long)tid);
    j->any = 1;
}

/* Perfetto reads a double, multiplies by 1000 and cuts: where that would lose a ns, a tenth of one
 * is added. */
void trace_json_us(struct trace_json *j, const char *name, int64_t ns)
{
    double us = (double)ns / 1000;
    fprintf(j->out, ",\"%s\":%lld.%03lld%s", name, (long long)(ns / 1000), (long long)(ns % 1000),
            (int64_t)(us * 1000.0) < ns ? "1" : "");
}

void trace_json_slice(struct trace_json *j, int64_t rank, int64_t tid, int64_t start, int64_t end)
{
    trace_json_begin(j, 'X', rank, tid);
    trace_json_us(j, "ts", start);
    trace_json_us(j, "dur", end - start);
}

static void trace_export_name_it(struct trace_json *j, int64_t rank, int64_t tid, const char *of,
                                 const char *name, int64_t place)
{
    trace_json_begin(j, 'M', rank, tid);
    fprintf(j->out, ",\"name\":\"%s_name\",\"args\":{\"name\":", of);
    trace_json_string(j->out, name);
    fputs("}}", j->out);
    trace_json_begin(j, 'M', rank, tid);
    fprintf(j->out, ",\"name\":\"%s_sort_index\",\"args\":{\"sort_index\":%lld}}", of,
            (long long)place);
}

void trace_json_thread(struct trace_json *j, int64_t rank, int64_t tid, int64_t place,
                       const char *name)
{
    trace_export_name_it(j, rank, tid, "thread", name, place);
}

static int64_t trace_export_place_of(int64_t track, int lane)
{
    int64_t place = track * 64 + (lane < 63 ? lane : 63);
    return place < INT32_MAX ? place : INT32_MAX - 1;
}

/* A rank's own track has no events: its id is that of the thread of launches. */
static void trace_export_write_names(struct trace_json *j, sqlite3 *db,
                                     const struct trace_export *what)
{
    QUERY q = query_ask(db,
                        "SELECT kind, id, rank, name, first_event IS NOT NULL, (SELECT "
                        "o.name FROM role o WHERE o.id = role) FROM track ORDER BY id",
                        "");
    long long id, rank, has_events;
    const char *kind, *text, *role;
    while (query_row(q, "tiitit", &kind, &id, &rank, &text, &has_events, &role)) {
        char name[128] = "launches";
        int is_rank = !strcmp(kind, "rank");
        if ((what->rank >= 0 && rank != what->rank) || (!is_rank && !has_events))
            continue;
        if (is_rank)
            trace_export_name_it(j, rank, 0, "process", text, rank);
        else
            snprintf(name, sizeof name, "%s %s", role, text);
        trace_json_thread(j, rank, id, trace_export_place_of(id, 0), name);
    }
}

static void trace_export_write_launches(struct trace_json *j, sqlite3 *db,
                                        const struct trace_export *what)
{
    static const char *const names[] = {
        "epoch", "plan", "compute only ns", "both ns", "communication only ns", "idle ns"};
    QUERY q = query_ask(db,
                        "SELECT r.launch, r.rank, t.id, r.start, r.end, l.epoch, l.plan, "
                        "r.compute_only, r.both, r.comm_only, r.idle FROM launch_rank r"
                        " JOIN launch l ON l.id = r.launch JOIN track t ON t.rank = r.rank AND "
                        "t.kind = 'rank' WHERE ?1 < 0 OR r.launch = ?1 ORDER BY r.rank, r.start",
                        "i", trace_json_launch(what));
    long long launch, rank, tid, start, end, v[6];
    while (query_row(q, "iiiiiiiiiii", &launch, &rank, &tid, &start, &end, &v[0], &v[1], &v[2],
                     &v[3], &v[4], &v[5])) {
        if ((what->rank >= 0 && rank != what->rank) || end < (int64_t)what->from ||
            start > trace_json_to(what) || start < 0 || end < start)
            continue;
        trace_json_slice(j, rank, tid, start, end);
        fprintf(j->out, ",\"cat\":\"launch\",\"name\":\"launch %lld\",\"args\":{", launch);
        for (int i = 0; i < 6; i++)
            fprintf(j->out, "%s\"%s\":%lld", i ? "," : "", names[i], v[i]);
        fputs("}}", j->out);
    }
}

/* An event, and what its argument is: of a tile its place, of a chunk whose it is. */
struct event {
    long long start, ns, kind, argument, peer, id, slab, row, col, rows, cols, owner, number;
    const char *cause, *flag;
};

static int trace_export_next(sqlite3_stmt *q, struct event *e)
{
    return query_row(q, "iiitiotioiiiioi", &e->start, &e->ns, &e->kind, &e->cause, &e->argument,
                     &e->peer, &e->flag, &e->id, &e->slab, &e->row, &e->col, &e->rows, &e->cols,
                     &e->owner, &e->number);
}

/* What Perfetto shows in a slice: a tile's shard and its first row and column there, a chunk's
 * owner and number. */
static void trace_export_event_name(char name[96], const struct event *e, const char *kind)
{
    if (!strcmp(kind, "wait"))
        snprintf(name, 96, "wait %.80s", e->cause);
    else if (e->slab != QUERY_NONE)
        snprintf(name, 96, "tile %lld: shard %lld, row %lld, column %lld", e->argument, e->slab,
                 e->row, e->col);
    else if (e->owner != QUERY_NONE)
        snprintf(name, 96, "%s chunk %lld of rank %lld", kind, e->number, e->owner);
    else
        snprintf(name, 96, "%s", kind);
}

static void trace_export_write_event(struct trace_json *j, const struct event *e, int64_t rank,
                                     int64_t track)
{
    static const char *const kinds[] = {"none", "launch", "tile",    "wait",
                                        "copy", "signal", "command", "reduce"};
    static const char *const arguments[] = {"chunk", "epoch", "tile",    "flag",
                                            "chunk", "flag",  "command", "chunk"};
    const char *kind = kinds[e->kind & 7];
    char name[96];
    if (e->ns == 0 && (e->kind == 1 || e->kind == 5)) {
        trace_json_begin(j, 'i', rank, track);
        trace_json_us(j, "ts", e->start);
        fputs(",\"s\":\"t\"", j->out);
    } else {
        trace_json_slice(j, rank, track, e->start, e->start + e->ns);
    }
    fprintf(j->out, ",\"cat\":\"%s\",\"name\":", kind);
    trace_export_event_name(name, e, kind);
    trace_json_string(j->out, name);
    fprintf(j->out, ",\"args\":{\"%s\":%lld", arguments[e->kind & 7], e->argument);
    if (e->peer != QUERY_NONE)
        fprintf(j->out, ",\"peer\":%lld", e->peer);
    if (e->slab != QUERY_NONE)
        fprintf(j->out, ",\"rows\":%lld,\"columns\":%lld", e->rows, e->cols);
    if (*e->flag) {
        fputs(",\"for\":", j->out);
        trace_json_string(j->out, e->flag);
    }
    fprintf(j->out, ",\"event\":%lld}}", e->id);
}

int64_t trace_json_tid(const struct trace_json *j, int64_t event, int64_t track)
{
    size_t low = 0, high = j->moved_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (j->moved[middle].event < event)
            low = middle + 1;
        else
            high = middle;
    }
    return low < j->moved_count && j->moved[low].event == event ? j->moved[low].tid : track;
}

/* Events are moved in order of their ids, as they are written. 0 where there is no memory. */
static int trace_export_move(struct trace_json *j, int64_t event, int64_t tid)
{
    if (mk_grow(&j->moved, j->moved_count, sizeof *j->moved))
        return 0;
    j->moved[j->moved_count++] = (struct trace_json_moved){event, tid};
    return 1;
}

/* Whether two of a track's events are under way at once: a CTA that waits while its copies are on
 * their way. */
static int trace_export_overlap(sqlite3_stmt *q, int64_t track)
{
    sqlite3_bind_int64(q, 1, track);
    long long start, ns, end = INT64_MIN;
    int found = 0;
    while (!found && query_row(q, "ii", &start, &ns)) {
        found = ns > 0 && start < end;
        end = start + ns > end ? start + ns : end;
    }
    sqlite3_reset(q);
    return found;
}

/* The thread of an event of a track in which some overlap: copies have lanes of their own there. */
static int64_t trace_export_lane_of(struct trace_json *j, const struct event *e,
                                    struct trace_lanes lanes[2], int64_t rank, int64_t track,
                                    const char *name)
{
    int copy = e->kind == 4,
        lane = e->ns > 0 ? trace_lane(&lanes[copy], e->start, e->start + e->ns) : -1;
    if (lane < 0)
        return track;
    int64_t *tid = &lanes[copy].tid[lane];
    if (*tid < 0 && !copy && !lane)
        *tid = track;
    if (*tid < 0) {
        char text[160];
        snprintf(text, sizeof text, "%s%s", name, copy ? ", copies" : "");
        *tid = j->next_tid++;
        trace_json_thread(j, rank, *tid, trace_export_place_of(track, 1 + lane), text);
    }
    return *tid == track || trace_export_move(j, e->id, *tid) ? *tid : track;
}

/* All tracks' events, track by track: that is the order in which they lie in the file. */
static void trace_export_write_events(struct trace_json *j, sqlite3 *db,
                                      const struct trace_export *what)
{
    QUERY tracks = query_ask(db,
                             "SELECT t.id, t.rank, t.longest_ns, o.name || ' ' || t.name "
                             "FROM track t LEFT JOIN role o ON o.id = t.role"
                             " WHERE t.first_event IS NOT NULL ORDER BY t.first_event",
                             "");
    QUERY times =
        query_ask(db, "SELECT start, ns FROM event WHERE track = ?1 ORDER BY start, id", "");
    QUERY q = query_ask(
        db,
        "SELECT e.start, e.ns, e.kind, c.name, e.argument, e.peer, f.text, e.id, i.slab, i.row, "
        "i.col, i.rows, i.cols, h.rank, h.number FROM event e LEFT JOIN cause c ON c.id = e.cause "
        "LEFT JOIN launch l ON l.id = e.launch"
        " LEFT JOIN flag f ON e.kind = 3 AND f.plan = l.plan AND f.id = e.argument AND f.rank = -1"
        " LEFT JOIN tile i ON e.kind = 2 AND i.plan = l.plan AND i.id = e.argument"
        " LEFT JOIN chunk h ON e.kind IN (4, 7) AND h.plan = l.plan AND h.id = e.argument"
        " WHERE e.track = ?1 AND e.start >= ?2 AND e.start <= ?3 AND e.start + e.ns >= ?4 AND (?5 "
        "< 0 OR e.launch = ?5) ORDER BY e.start, e.id",
        "iiiii", (int64_t)0, (int64_t)0, trace_json_to(what), (int64_t)what->from,
        trace_json_launch(what));
    struct trace_lanes *lanes = malloc(2 * sizeof *lanes);
    struct event e;
    long long track, rank, longest;
    const char *name;
    while (q && lanes && query_row(tracks, "iiit", &track, &rank, &longest, &name)) {
        if (what->rank >= 0 && rank != what->rank)
            continue;
        sqlite3_bind_int64(q, 1, track);
        /* what began before may reach in */
        sqlite3_bind_int64(q, 2, (int64_t)what->from - longest);
        int several = trace_export_overlap(times, track);
        lanes[0].count = lanes[1].count = 0;
        while (trace_export_next(q, &e) && !ferror(j->out))
            trace_export_write_event(j, &e, rank,
                                     several ? trace_export_lane_of(j, &e, lanes, rank, track, name)
                                             : track);
        sqlite3_reset(q);
    }
    free(lanes);
}

static void trace_export_write_counter(struct trace_json *j, int64_t rank, int64_t ns,
                                       const char *name, long long bytes)
{
    trace_json_begin(j, 'C', rank, 0);
    trace_json_us(j, "ts", ns);
    fputs(",\"name\":", j->out);
    trace_json_string(j->out, name);
    fprintf(j->out, ",\"args\":{\"bytes in flight\":%lld}}", bytes);
}

/* Bytes under way per link: the finest level, and a zero where a bucket without a row follows. */
static void trace_export_write_counters(struct trace_json *j, sqlite3 *db,
                                        const struct trace_export *what)
{
    int64_t ns = query_integer(db, 1, "SELECT ns FROM zoom WHERE level = 0", "");
    long long link, bucket, bytes, rank, last_link = -1, last_bucket = -2, last_rank = 0;
    const char *name;
    char last_name[64] = "";
    QUERY q = query_ask(db,
                        "SELECT f.link, f.bucket, f.in_flight, l.rank, l.name FROM flow "
                        "f JOIN link l ON l.id = f.link"
                        " WHERE f.level = 0 ORDER BY f.link, f.bucket",
                        "");
    for (int more = 1; more && !ferror(j->out);) {
        more = query_row(q, "iiiit", &link, &bucket, &bytes, &rank, &name);
        if (more &&
            ((what->rank >= 0 && rank != what->rank) || (bucket + 1) * ns <= (int64_t)what->from ||
             (uint64_t)(bucket * ns) > what->to))
            continue;
        if (last_bucket >= 0 && (!more || link != last_link || bucket != last_bucket + 1))
            trace_export_write_counter(j, last_rank, (last_bucket + 1) * ns, last_name, 0);
        if (!more)
            break;
        snprintf(last_name, sizeof last_name, "%s", name);
        last_link = link, last_bucket = bucket, last_rank = rank;
        trace_export_write_counter(j, rank, bucket * ns, name, bytes);
    }
}

void trace_export_chrome(sqlite3 *db, const struct trace_export *what, FILE *out)
{
    struct trace_json j = {.out = out,
                           .next_tid = query_integer(db, 0, "SELECT max(id) FROM track", "") + 1};
    int64_t count = 0;
    fputs("{\"displayTimeUnit\":\"ns\",\"otherData\":{", out);
    static const char *const names[] = {"op", "shape", "source", "executor"};
    const char *texts[4];
    long long dropped, residual;
    QUERY q =
        query_ask(db, "SELECT op, shape, source, executor, dropped, residual_ns FROM run", "");
    if (query_row(q, "ttttii", &texts[0], &texts[1], &texts[2], &texts[3], &dropped, &residual)) {
        for (int i = 0; i < 4; i++) {
            fprintf(out, "\"%s\":", names[i]);
            trace_json_string(out, texts[i]);
            fputc(',', out);
        }
        fprintf(out, "\"dropped\":%lld,\"clock residual ns\":%lld", dropped, residual);
    }
    fputs("},\"traceEvents\":[", out);
    trace_export_write_names(&j, db, what);
    trace_export_write_launches(&j, db, what);
    trace_export_write_events(&j, db, what);
    struct trace_json_message *messages = trace_json_messages(&j, db, what, &count);
    trace_json_arrows(&j, db, what, messages, count);
    free(messages);
    free(j.moved);
    trace_export_write_counters(&j, db, what);
    fputs("\n]}\n", out);
}
