#include "tui/chain.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "tui/cells.h"

/* A message's stages; NAN where the trace does not have one. */
struct stages {
    int64_t id, command_event, arrival_event;
    int rank, peer;
    int64_t flag; /* at the peer */
    double bytes, commanded, seen, posted, completed, arrived;
    int waited;
};

static struct chain_step *chain_add(struct chain *c, const char *name, enum chain_where where,
                                    double time, double ns)
{
    static struct chain_step spare; /* what comes after CHAIN_MAX steps is not shown */
    struct chain_step *s = c->count < CHAIN_MAX ? &c->step[c->count++] : &spare;
    *s = (struct chain_step){.where = where, .rank = -1, .track = -1, .time = time, .ns = ns};
    snprintf(s->name, sizeof s->name, "%s", name);
    return s;
}

__attribute__((format(printf, 2, 3))) static void say(struct chain_step *s, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(s->text, sizeof s->text, format, args);
    va_end(args);
    cells_clean(s->text);
}

static void chain_place_of(const struct source *s, int track, char out[64])
{
    const struct source_track *t = &s->tracks[track];
    if (t->warp >= 0)
        snprintf(out, 64, "rank %d %s CTA %d warp %d", t->rank, source_role_name(t->role), t->cta,
                 t->warp);
    else
        snprintf(out, 64, "rank %d %s CTA %d", t->rank, source_role_name(t->role), t->cta);
}

/* What two ranks' clocks leave open; 0 on one rank. */
static double chain_doubt(const struct source *s, int a, int b)
{
    if (a == b)
        return 0;
    double x = source_uncertainty(s, a), y = source_uncertainty(s, b);
    return (x > 0 ? x : 0) + (y > 0 ? y : 0);
}

static int chain_event_by_id(struct source *s, int64_t id, struct source_event *out)
{
    QUERY q = query_ask(s->db, "SELECT " EVENT_COLUMNS " FROM event WHERE id = ?", "i", id);
    return id > 0 && source_read_event(s, q, out) && out->track >= 0;
}

/* The last event of the same track before `e` that took time, or a signal where `signals`. */
static int chain_event_before(struct source *s, const struct source_event *e,
                              struct source_event *out)
{
    QUERY q = query_ask(
        s->db,
        "SELECT " EVENT_COLUMNS " FROM event WHERE track = ? AND start <= ? AND id <> ? AND "
        "ns > 0 AND kind <> 1 AND (start < ?2 OR id < ?3) ORDER BY start DESC, id DESC LIMIT 1",
        "iii", s->tracks[e->track].id, (int64_t)e->start, e->id);
    return source_read_event(s, q, out);
}

/* A wait for the completion of the CTA's own puts names no flag. */
static int chain_is_drain(const struct source_event *e)
{
    return e->kind == MK_EV_WAIT && e->cause == MK_CAUSE_NETWORK && e->argument == 0xffffff;
}

/* One message by a condition on one number, or two. */
static int chain_read_message(struct source *s, const char *condition, int64_t a, int64_t b,
                              struct stages *m)
{
    char sql[640];
    long long id, command, arrival, flag;
    snprintf(sql, sizeof sql,
             "SELECT id, command_event, arrival_event, rank, peer, bytes, commanded, seen, "
             "posted, completed, arrived, waited, flag FROM message WHERE %s LIMIT 1",
             condition);
    QUERY q = query_ask(s->db, sql, "ii", a, b);
    int found = query_row(q, "iiinnddddddni", &id, &command, &arrival, &m->rank, &m->peer,
                          &m->bytes, &m->commanded, &m->seen, &m->posted, &m->completed,
                          &m->arrived, &m->waited, &flag);
    if (!found)
        return 0;
    m->id = id;
    m->command_event = command;
    m->arrival_event = arrival;
    m->flag = flag;
    return 1;
}

/* SQL: what flag `flag` at rank `at` announces. */
#define FLAG_TEXT(flag, at)                                                                        \
    "coalesce((SELECT text FROM flag WHERE flag.plan = e.plan AND flag.id = " flag                 \
    " AND flag.rank IN (" at ", -1) ORDER BY flag.rank DESC LIMIT 1), "                            \
    "'flag ' || " flag " || ', which the trace does not explain')"
#define TO_PEER " || CASE WHEN peer < 0 THEN '' ELSE ' to rank ' || peer END || "
#define CHUNK_TEXT(verb)                                                                           \
    "'" verb "'" TO_PEER "': chunk ' || coalesce(c.number || ' of rank ' || c.rank, argument), "   \
    "c.bytes FROM e LEFT JOIN chunk c ON c.plan = e.plan AND c.id = argument"

/* One line about an event, "tile 37: rows 256-511, columns 0-255 of shard 2", but for the cause of
 * a wait. */
static void chain_words(struct source *s, const struct source_event *e, char *out, int size)
{
    static const char *const words[MK_EV_KINDS] = {
        [MK_EV_NONE] = "'an event of unknown kind', NULL FROM e",
        [MK_EV_LAUNCH] = "'launch, epoch ' || argument, NULL FROM e",
        [MK_EV_TILE] =
            "'tile ' || argument || coalesce((SELECT printf(': rows %d–%d, columns %d–%d "
            "of shard %d', row, row + rows - 1, col, col + cols - 1, slab) FROM tile "
            "WHERE tile.plan = e.plan AND tile.id = argument), ''), NULL FROM e",
        [MK_EV_WAIT] = FLAG_TEXT("argument", "e.rank") ", NULL FROM e",
        [MK_EV_COPY] = CHUNK_TEXT("copy"),
        [MK_EV_SIGNAL] = "'signal'" TO_PEER "': ' || " FLAG_TEXT(
            "argument", "CASE WHEN peer < 0 THEN e.rank ELSE peer END") ", NULL FROM e",
        [MK_EV_COMMAND] = "coalesce('put to rank ' || m.peer || ': ' || " FLAG_TEXT(
            "m.flag", "m.peer") ", 'command ' || argument || ', whose message is not in the "
                                "trace'), NULL FROM e "
                                "LEFT JOIN message m ON m.command_event = e.id LIMIT 1",
        [MK_EV_REDUCE] = CHUNK_TEXT("reduce"),
    };
    char sql[1024], bytes[32];
    const char *text = "";
    double of = NAN;
    int kind = e->kind > 0 && e->kind < MK_EV_KINDS ? e->kind : MK_EV_NONE;
    snprintf(sql, sizeof sql,
             "WITH e(id, plan, argument, rank, peer) AS (VALUES (?, ?, ?, ?, ?)) SELECT %s",
             words[kind]);
    QUERY q = query_ask(s->db, sql, "iiiii", e->id, e->plan, e->argument,
                        (int64_t)s->tracks[e->track].rank, (int64_t)e->peer);
    query_row(q, "td", &text, &of);
    snprintf(out, (size_t)size, isnan(of) ? "%s" : "%s (%s)", text, words_bytes(bytes, of));
    cells_clean(out);
}

static void chain_describe(struct source *s, const struct source_event *e, char *out, int size)
{
    char text[96];
    if (e->kind == MK_EV_WAIT && e->cause == MK_CAUSE_BACKPRESSURE) {
        snprintf(out, (size_t)size, "wait for room in the command ring");
    } else if (chain_is_drain(e)) {
        snprintf(out, (size_t)size, "wait network: its own puts, until they have left");
    } else if (e->kind == MK_EV_WAIT) {
        chain_words(s, e, text, sizeof text);
        snprintf(out, (size_t)size, "%s: %s", span_look[span_class_of(e->kind, e->cause)].name,
                 text);
    } else {
        chain_words(s, e, out, size);
    }
}

static struct chain_step *chain_add_event(struct source *s, struct chain *c, const char *name,
                                          const struct source_event *e)
{
    char place[64], text[112];
    struct chain_step *step = chain_add(c, name, CHAIN_TRACK, e->start, e->end - e->start);
    chain_place_of(s, e->track, place);
    chain_describe(s, e, text, sizeof text);
    step->rank = s->tracks[e->track].rank;
    step->track = e->track;
    step->event = *e;
    /* the step's name says that it is a wait */
    const char *what = e->kind == MK_EV_WAIT && strstr(text, ": ") ? strstr(text, ": ") + 2 : text;
    say(step, e->kind == MK_EV_WAIT ? "%s for %.60s" : "%s · %.60s", place, what);
    return step;
}

/* A stage of the proxy: shown on the sender's NIC row. */
static void chain_add_stage(struct source *s, struct chain *c, const char *name,
                            const struct stages *m, double time, double since, int crosses,
                            const char *text)
{
    struct chain_step *step = chain_add(c, name, CHAIN_NIC, time, time - since);
    step->rank = m->rank;
    step->uncertain =
        crosses && !isnan(step->ns) && fabs(step->ns) <= chain_doubt(s, m->rank, m->peer);
    if (isnan(time)) {
        step->where = CHAIN_NOWHERE;
        say(step, "%s: not in the trace", text);
    } else {
        say(step, "%s", text);
    }
}

/* What the track of `e` did before it: what kept the sender, or its tile. */
static void chain_add_before(struct source *s, struct chain *c, const struct source_event *e)
{
    struct source_event before;
    if (chain_event_before(s, e, &before) && before.launch == e->launch)
        chain_add_event(s, c, "before", &before);
    else
        say(chain_add(c, "before", CHAIN_NOWHERE, NAN, NAN),
            "nothing on that CTA in this launch: it was its first act");
}

static void chain_add_stages(struct source *s, struct chain *c, const struct stages *m)
{
    char text[112], bytes[32];
    struct source_event e;
    snprintf(text, sizeof text, "at rank %d, %s from rank %d%s", m->peer,
             words_bytes(bytes, m->bytes), m->rank,
             m->waited ? "" : " (no CTA waited: it may have been there before)");
    chain_add_stage(s, c, "arrived", m, m->arrived, m->posted, 1, text);
    snprintf(text, sizeof text, "the work request, at rank %d's proxy", m->rank);
    chain_add_stage(s, c, "completed", m, m->completed, m->posted, 0, text);
    snprintf(text, sizeof text, "to the QP by rank %d's proxy", m->rank);
    chain_add_stage(s, c, "posted", m, m->posted, m->seen, 0, text);
    snprintf(text, sizeof text, "in its ring by rank %d's proxy", m->rank);
    chain_add_stage(s, c, "seen", m, m->seen, m->commanded, 0, text);
    if (chain_event_by_id(s, m->command_event, &e)) {
        chain_add_event(s, c, "put", &e);
        chain_add_before(s, c, &e);
    } else {
        say(chain_add(c, "put", CHAIN_NOWHERE, m->commanded, NAN),
            "rank %d's command is not in the trace", m->rank);
    }
}

static double chain_part_of(double a, double b, double from, double to)
{
    a = a > from ? a : from;
    b = b < to ? b : to;
    return b > a ? b - a : 0;
}

/* Where the time of a wait may have gone: from `from` to `to`, `what` happened. */
struct share {
    double from, to;
    const char *what;
};

/* One sentence: what happened during most of the wait. */
static void chain_diagnose(struct chain *c, const struct source_event *wait,
                           const struct share *share, int count, const char *sender)
{
    double whole = wait->end - wait->start, most = -1;
    int best = 0;
    for (int i = 0; i < count; i++) {
        double ns = chain_part_of(share[i].from, share[i].to, wait->start, wait->end);
        if (ns > most) {
            most = ns;
            best = i;
        }
    }
    if (whole > 0)
        snprintf(c->verdict, sizeof c->verdict, "%.0f %% of this wait %s%s%s%s", 100 * most / whole,
                 share[best].what, best == 0 ? " (" : "", best == 0 ? sender : "",
                 best == 0 ? ")" : "");
}

static void chain_diagnose_message(struct chain *c, const struct source_event *wait,
                                   const struct stages *m, const char *sender)
{
    double there = chain_is_drain(wait) ? m->completed : m->arrived;
    const struct share share[] = {
        {wait->start, m->commanded, "the chunk was not sent yet"},
        {m->commanded, m->posted, "the chunk lay with the sender's proxy"},
        {m->posted, isnan(there) ? wait->end : there,
         chain_is_drain(wait) ? "the last of its puts was under way"
                              : "the chunk was on its way over the network"},
        {isnan(there) ? wait->end : there, wait->end,
         "the chunk was there, but this CTA did not run to see it"},
    };
    if (!isnan(m->commanded) && !isnan(m->posted))
        chain_diagnose(c, wait, share, 4, sender);
}

static void chain_diagnose_signal(struct chain *c, const struct source_event *wait,
                                  const struct source_event *work,
                                  const struct source_event *signal, const char *sender)
{
    const struct share share[] = {
        {wait->start, work->start, "its producer had not begun"},
        {work->start, signal->end,
         work->kind == MK_EV_COPY     ? "the chunk was being copied"
         : work->kind == MK_EV_TILE   ? "the last of its producers computed a tile"
         : work->kind == MK_EV_REDUCE ? "its producer was adding"
         : work->kind == MK_EV_WAIT   ? "its producer waited too"
                                      : "its producer was at work"},
        {signal->end, wait->end, "the flag was up, but this CTA did not run to see it"},
    };
    chain_diagnose(c, wait, share, 3, sender);
}

/* Where the sender's rank came to this launch only during the wait, that says more than what its
 * CTA did. */
static void chain_diagnose_start(struct source *s, struct chain *c, const struct source_event *wait,
                                 int rank)
{
    char late[32];
    double whole = wait->end - wait->start, start = NAN;
    QUERY q = query_ask(s->db, "SELECT start FROM launch_rank WHERE launch = ? AND rank = ?", "ii",
                        wait->launch, (int64_t)rank);
    query_row(q, "d", &start);
    double before = (start < wait->end ? start : wait->end) - wait->start;
    if (rank == s->tracks[wait->track].rank || isnan(start) || before < whole / 2 ||
        before <= chain_doubt(s, s->tracks[wait->track].rank, rank))
        return;
    snprintf(c->verdict, sizeof c->verdict,
             "%.0f %% of this wait rank %d had not begun launch %ld (it came %s late)",
             100 * before / whole, rank, wait->epoch, words_length(late, before));
}

static void chain_follow_signal(struct source *s, struct chain *c, const struct source_event *wait,
                                int64_t producer)
{
    struct source_event signal, copy;
    char sender[64];
    if (!chain_event_by_id(s, producer, &signal)) {
        say(chain_add(c, "signal", CHAIN_NOWHERE, NAN, NAN), "its event is not in the trace");
        return;
    }
    struct chain_step *step =
        chain_add_event(s, c, signal.kind == MK_EV_SIGNAL ? "signal" : "put", &signal);
    step->ns = wait->end - signal.end;
    step->uncertain = fabs(step->ns) <= chain_doubt(s, s->tracks[wait->track].rank, step->rank) &&
                      s->tracks[wait->track].rank != step->rank;
    chain_place_of(s, signal.track, sender);
    if (!chain_event_before(s, &signal, &copy))
        return;
    chain_add_event(s, c, copy.kind == MK_EV_COPY ? "copy" : "before", &copy);
    chain_diagnose_signal(c, wait, &copy, &signal, sender);
    chain_diagnose_start(s, c, wait, s->tracks[signal.track].rank);
    if (copy.kind == MK_EV_COPY || copy.kind == MK_EV_REDUCE)
        chain_add_before(s, c, &copy);
}

static void chain_follow_wait(struct source *s, struct chain *c, const struct source_event *e)
{
    char text[96], sender[64] = "";
    int producer_rank, rank = s->tracks[e->track].rank;
    struct source_event command;
    struct stages m;
    chain_add_event(s, c, "wait", e);
    if (e->cause == MK_CAUSE_BACKPRESSURE) {
        say(chain_add(c, "ring", CHAIN_NIC, e->end, NAN),
            "full until rank %d's proxy read a command", rank);
        c->step[c->count - 1].rank = rank;
        return;
    }
    chain_words(s, e, text, sizeof text);
    producer_rank = (int)query_integer(s->db, -1,
                                       "SELECT producer FROM flag WHERE plan = ? AND id = ? AND "
                                       "rank IN (?, -1) ORDER BY rank DESC",
                                       "iii", e->plan, e->argument, (int64_t)rank);
    if (chain_is_drain(e))
        say(chain_add(c, "flag", CHAIN_NOWHERE, NAN, NAN),
            "none: it drains, until the last of its puts has completed");
    else if (producer_rank >= 0)
        say(chain_add(c, "flag", CHAIN_NOWHERE, NAN, NAN), "%ld: %.60s, from rank %d", e->argument,
            text, producer_rank);
    else
        say(chain_add(c, "flag", CHAIN_NOWHERE, NAN, NAN), "%ld: %.70s", e->argument, text);
    QUERY q = query_ask(s->db, "SELECT producer, message FROM edge WHERE event = ?", "i", e->id);
    long long producer = 0, message = 0;
    query_row(q, "ii", &producer, &message);
    if (message && chain_read_message(s, "id = ?", message, 0, &m)) {
        int known = chain_event_by_id(s, m.command_event, &command);
        if (known)
            chain_place_of(s, command.track, sender);
        chain_add_stages(s, c, &m);
        chain_diagnose_message(c, e, &m, sender);
        if (known)
            chain_diagnose_start(s, c, e, s->tracks[command.track].rank);
    } else if (producer) {
        chain_follow_signal(s, c, e, producer);
    } else if (e->end > e->start) {
        say(chain_add(c, "?", CHAIN_NOWHERE, NAN, NAN),
            producer_rank >= 0 ? "what raised it is not in the trace; rank %d should have"
                               : "what raised it is not in the trace",
            producer_rank);
    }
}

/* The waits that a signal or the arrival of a message ended. */
static void chain_add_released(struct source *s, struct chain *c, const char *condition, int64_t id)
{
    char sql[160];
    struct source_event e;
    snprintf(sql, sizeof sql, "SELECT event FROM edge WHERE %s = ? LIMIT 4", condition);
    long long event;
    QUERY q = query_ask(s->db, sql, "i", id);
    while (query_row(q, "i", &event))
        if (chain_event_by_id(s, event, &e))
            chain_add_event(s, c, "ended", &e);
}

void chain_follow(struct source *s, const struct source_event *e, struct chain *c)
{
    struct stages m;
    c->count = 0;
    c->verdict[0] = 0;
    if (e->track < 0)
        return;
    if (e->kind == MK_EV_WAIT) {
        chain_follow_wait(s, c, e);
        return;
    }
    chain_add_event(s, c, "this", e);
    if (e->kind == MK_EV_COMMAND && chain_read_message(s, "command_event = ?", e->id, 0, &m)) {
        chain_add_stage(s, c, "seen", &m, m.seen, m.commanded, 0, "by the proxy");
        chain_add_stage(s, c, "posted", &m, m.posted, m.seen, 0, "to the QP");
        chain_add_stage(s, c, "completed", &m, m.completed, m.posted, 0, "the work request");
        chain_add_stage(s, c, "arrived", &m, m.arrived, m.posted, 1, "at the peer");
        chain_add_released(s, c, "message", m.id);
    } else if (e->kind == MK_EV_SIGNAL) {
        chain_add_released(s, c, "producer", e->id);
    }
    chain_add_before(s, c, e);
}

void chain_follow_message(struct source *s, int rank, double time, struct chain *c)
{
    struct source_event e;
    struct stages m;
    char bytes[32];
    c->count = 0;
    c->verdict[0] = 0;
    /* the last one posted that is still under way, else the last one posted */
    if (!chain_read_message(
            s,
            "id = (SELECT id FROM (SELECT id, posted, max(coalesce(arrived, 0), "
            "coalesce(completed, 0)) AS over FROM message WHERE rank = ?1 AND posted <= ?2 ORDER "
            "BY posted DESC LIMIT 64) ORDER BY over > ?2 DESC, posted DESC LIMIT 1)",
            rank, (int64_t)floor(time), &m))
        return;
    struct chain_step *step = chain_add(c, "message", CHAIN_NIC, m.posted, m.arrived - m.posted);
    step->rank = m.rank;
    say(step, "rank %d to rank %d, %s", m.rank, m.peer, words_bytes(bytes, m.bytes));
    if (chain_event_by_id(s, m.arrival_event, &e))
        chain_add_event(s, c, "ended", &e);
    chain_add_stages(s, c, &m);
}
