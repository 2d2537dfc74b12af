/* `mkernel trace export`: the Trace Event Format. A process is a rank, a thread a track; messages and the
 * waits that they end are joined by flow arrows; bytes under way on each link are counters. Source: "Trace
 * Event Format", the document of chrome://tracing; ui.perfetto.dev reads the same. Times there are us. */
#include "experiments/trace_cli.h"

#include <string.h>

static void put_string(FILE *out, const char *text)
{
    fputc('"', out);
    for (const unsigned char *c = (const unsigned char *)(text ? text : ""); *c; c++) {
        if (*c == '"' || *c == '\\')
            fprintf(out, "\\%c", *c);
        else if (*c < 0x20 ||
                 *c >= 0x7f) /* names are ASCII but for what the user wrote, which may be no UTF-8 */
            fprintf(out, "\\u%04x", *c);
        else
            fputc(*c, out);
    }
    fputc('"', out);
}

struct writer {
    FILE *out;
    int any;
};

/* Begins one event; the caller adds members, each begun by a comma, and ends it with `}`. */
static void begin(struct writer *w, char phase, int64_t rank, int64_t track)
{
    fprintf(w->out, "%s\n{\"ph\":\"%c\",\"pid\":%lld,\"tid\":%lld", w->any ? "," : "", phase, (long long)rank,
            (long long)track);
    w->any = 1;
}

static void put_us(struct writer *w, const char *name, int64_t ns)
{
    fprintf(w->out, ",\"%s\":%lld.%03lld", name, (long long)(ns / 1000), (long long)(ns % 1000));
}

static const char *text_of(sqlite3_stmt *q, int column)
{
    const char *text = (const char *)sqlite3_column_text(q, column); /* NULL in a damaged file too */
    return text ? text : "";
}

static void write_names(struct writer *w, sqlite3 *db, const struct trace_export *what)
{
    sqlite3_stmt *q = trace_query(
        db,
        "SELECT kind, id, rank, name, first_event IS NOT NULL, (SELECT o.name FROM role o WHERE o.id = role)"
        " FROM track ORDER BY id",
        0, 0);
    while (sqlite3_step(q) == SQLITE_ROW) {
        int64_t rank = sqlite3_column_int64(q, 2), id = sqlite3_column_int64(q, 1);
        int is_rank = !strcmp(text_of(q, 0), "rank");
        if ((what->rank >= 0 && rank != what->rank) || (!is_rank && !sqlite3_column_int(q, 4)))
            continue;
        char name[128];
        snprintf(name, sizeof name, "%s%s%s",
                 is_rank         ? ""
                 : text_of(q, 5) ? text_of(q, 5)
                                 : "",
                 is_rank ? "" : " ", text_of(q, 3));
        begin(w, 'M', rank, is_rank ? 0 : id);
        fprintf(w->out, ",\"name\":\"%s\",\"args\":{\"name\":", is_rank ? "process_name" : "thread_name");
        put_string(w->out, name);
        fputs("}}", w->out);
        begin(w, 'M', rank, is_rank ? 0 : id);
        fprintf(w->out, ",\"name\":\"%s\",\"args\":{\"sort_index\":%lld}}",
                is_rank ? "process_sort_index" : "thread_sort_index", (long long)(is_rank ? rank : id));
    }
    sqlite3_finalize(q);
}

static void write_event(struct writer *w, sqlite3_stmt *q, int64_t rank, int64_t track)
{
    static const char *const names[] = {"none", "launch", "tile",    "wait",
                                        "copy", "signal", "command", "reduce"};
    int kind = sqlite3_column_int(q, 2), instant = kind == 1 || kind == 5;
    begin(w, instant ? 'i' : 'X', rank, track);
    put_us(w, "ts", sqlite3_column_int64(q, 0));
    if (instant)
        fputs(",\"s\":\"t\"", w->out);
    else
        put_us(w, "dur", sqlite3_column_int64(q, 1));
    fprintf(w->out, ",\"cat\":\"%s\",\"name\":", names[kind & 7]);
    if (kind == 3) {
        char name[64];
        snprintf(name, sizeof name, "wait %s", text_of(q, 3));
        put_string(w->out, name);
    } else {
        put_string(w->out, names[kind & 7]);
    }
    fprintf(w->out, ",\"args\":{\"%s\":%lld",
            kind == 1                ? "epoch"
            : kind == 2              ? "tile"
            : kind == 3 || kind == 5 ? "flag"
            : kind == 6              ? "command"
                                     : "chunk",
            (long long)sqlite3_column_int64(q, 4));
    if (sqlite3_column_type(q, 5) != SQLITE_NULL)
        fprintf(w->out, ",\"peer\":%lld", (long long)sqlite3_column_int64(q, 5));
    if (*text_of(q, 6)) {
        fputs(",\"for\":", w->out);
        put_string(w->out, text_of(q, 6));
    }
    fprintf(w->out, ",\"event\":%lld}}", (long long)sqlite3_column_int64(q, 7));
}

/* All tracks' events, track by track: that is the order in which they lie in the file. */
static void write_events(struct writer *w, sqlite3 *db, const struct trace_export *what)
{
    sqlite3_stmt *tracks =
        trace_query(db, "SELECT id, rank, longest_ns FROM track WHERE first_event IS NOT NULL", 0, 0);
    sqlite3_stmt *q = NULL;
    sqlite3_prepare_v2(
        db,
        "SELECT e.start, e.ns, e.kind, c.name, e.argument, e.peer, f.text, e.id FROM event e LEFT JOIN cause "
        "c ON"
        " c.id = e.cause LEFT JOIN launch l ON l.id = e.launch LEFT JOIN flag f ON e.kind = 3 AND f.plan = "
        "l.plan"
        " AND f.id = e.argument AND f.rank = -1 WHERE e.track = ?1 AND e.start >= ?2 AND e.start <= ?3 AND"
        " e.start + e.ns >= ?4 ORDER BY e.start",
        -1, &q, NULL);
    while (q && sqlite3_step(tracks) == SQLITE_ROW) {
        int64_t rank = sqlite3_column_int64(tracks, 1), from = (int64_t)what->from;
        if (what->rank >= 0 && rank != what->rank)
            continue;
        sqlite3_bind_int64(q, 1, sqlite3_column_int64(tracks, 0));
        sqlite3_bind_int64(q, 2, from - sqlite3_column_int64(tracks, 2)); /* what began before may reach in */
        sqlite3_bind_int64(q, 3, what->to > INT64_MAX ? INT64_MAX : (int64_t)what->to);
        sqlite3_bind_int64(q, 4, from);
        while (sqlite3_step(q) == SQLITE_ROW && !ferror(w->out))
            write_event(w, q, rank, sqlite3_column_int64(tracks, 0));
        sqlite3_reset(q);
    }
    sqlite3_finalize(q);
    sqlite3_finalize(tracks);
}

/* An arrow from the command (or signal) to the wait that it ended. Both ends must lie in what is exported. */
static void write_arrows(struct writer *w, sqlite3 *db, const struct trace_export *what)
{
    sqlite3_stmt *q = trace_query(
        db,
        "SELECT d.event, p.start + p.ns, s.rank, p.track, e.start + e.ns, t.rank, e.track, d.message FROM "
        "edge d"
        " JOIN event e ON e.id = d.event JOIN event p ON p.id = d.producer JOIN track t ON t.id = e.track"
        " JOIN track s ON s.id = p.track",
        0, 0);
    while (sqlite3_step(q) == SQLITE_ROW && !ferror(w->out)) {
        int64_t begins = sqlite3_column_int64(q, 1), ends = sqlite3_column_int64(q, 4);
        int64_t source = sqlite3_column_int64(q, 2), target = sqlite3_column_int64(q, 5);
        if (begins < (int64_t)what->from || (uint64_t)ends > what->to || begins > ends ||
            (what->rank >= 0 && (source != what->rank || target != what->rank)))
            continue;
        const char *name = sqlite3_column_type(q, 7) == SQLITE_NULL ? "signal" : "message";
        begin(w, 's', source, sqlite3_column_int64(q, 3));
        put_us(w, "ts", begins);
        fprintf(w->out, ",\"cat\":\"flow\",\"name\":\"%s\",\"id\":%lld}", name,
                (long long)sqlite3_column_int64(q, 0));
        begin(w, 'f', target, sqlite3_column_int64(q, 6));
        put_us(w, "ts", ends);
        fprintf(w->out, ",\"bp\":\"e\",\"cat\":\"flow\",\"name\":\"%s\",\"id\":%lld}", name,
                (long long)sqlite3_column_int64(q, 0));
    }
    sqlite3_finalize(q);
}

/* Bytes under way per link: the finest level, and a zero where a bucket without a row follows. */
static void write_counters(struct writer *w, sqlite3 *db, const struct trace_export *what)
{
    int64_t ns = trace_integer(db, "SELECT ns FROM zoom WHERE level = 0", 1), last_link = -1,
            last_bucket = -2;
    char last_name[64] = "";
    int64_t last_rank = 0;
    sqlite3_stmt *q = trace_query(
        db,
        "SELECT f.link, f.bucket, f.in_flight, l.rank, l.name FROM flow f JOIN link l ON l.id = f.link"
        " WHERE f.level = 0 ORDER BY f.link, f.bucket",
        0, 0);
    for (int more = 1; more && !ferror(w->out);) {
        more = sqlite3_step(q) == SQLITE_ROW;
        int64_t link = more ? sqlite3_column_int64(q, 0) : -1,
                bucket = more ? sqlite3_column_int64(q, 1) : -1;
        int64_t at = bucket * ns, rank = more ? sqlite3_column_int64(q, 3) : 0;
        if (more && ((what->rank >= 0 && rank != what->rank) || at + ns <= (int64_t)what->from ||
                     (uint64_t)at > what->to))
            continue;
        if (last_bucket >= 0 && (link != last_link || bucket != last_bucket + 1)) {
            begin(w, 'C', last_rank, 0);
            put_us(w, "ts", (last_bucket + 1) * ns);
            fputs(",\"name\":", w->out);
            put_string(w->out, last_name);
            fputs(",\"args\":{\"bytes in flight\":0}}", w->out);
        }
        if (!more)
            break;
        snprintf(last_name, sizeof last_name, "%s", text_of(q, 4));
        last_link = link, last_bucket = bucket, last_rank = rank;
        begin(w, 'C', rank, 0);
        put_us(w, "ts", at);
        fputs(",\"name\":", w->out);
        put_string(w->out, last_name);
        fprintf(w->out, ",\"args\":{\"bytes in flight\":%lld}}", (long long)sqlite3_column_int64(q, 2));
    }
    sqlite3_finalize(q);
}

void trace_export_chrome(sqlite3 *db, const struct trace_export *what, FILE *out)
{
    struct writer w = {out, 0};
    fputs("{\"displayTimeUnit\":\"ns\",\"otherData\":{", out);
    sqlite3_stmt *q =
        trace_query(db, "SELECT op, shape, source, executor, dropped, residual_ns FROM run", 0, 0);
    if (sqlite3_step(q) == SQLITE_ROW) {
        static const char *const names[] = {"op", "shape", "source", "executor"};
        for (int i = 0; i < 4; i++) {
            fprintf(out, "\"%s\":", names[i]);
            put_string(out, text_of(q, i));
            fputc(',', out);
        }
        fprintf(out, "\"dropped\":%lld,\"clock residual ns\":%lld", (long long)sqlite3_column_int64(q, 4),
                (long long)sqlite3_column_int64(q, 5));
    }
    sqlite3_finalize(q);
    fputs("},\"traceEvents\":[", out);
    write_names(&w, db, what);
    write_events(&w, db, what);
    write_arrows(&w, db, what);
    write_counters(&w, db, what);
    fputs("\n]}\n", out);
}
