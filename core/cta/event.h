/* The trace's smallest unit: one 16-byte record per thing that a CTA did, in a buffer that one warp
 * owns.
 *
 * A track belongs to one (CTA, role warp), the only one that writes it, so it needs no atomics. It
 * does not wrap: a full track keeps what it has and counts what it drops. Both sides (GPU and host)
 * use this file. */
#pragma once

#include "core/base.h"

/* What a record says. Every kind is an interval except MK_EV_LAUNCH and MK_EV_SIGNAL, which last 0
 * ns. The four bits between argument and kind say a wait's cause, a copy's or signal's destination
 * (local rank), a launch's plan; else 0. */
enum mk_event_kind {
    MK_EV_NONE,
    MK_EV_LAUNCH, /* a launch began on this CTA; argument: low 24 bits of the epoch; cause field:
                   * low 4 bits of the plan id; its flags tell more. What follows belongs to it */
    MK_EV_TILE,   /* a tile's math, first load to last store; argument: tile id */
    MK_EV_WAIT,   /* waited for a flag (0 ns: it was there); argument: flag index; cause set */
    /* moved a chunk to a local peer; argument: chunk id; cause field: the peer's local rank */
    MK_EV_COPY,
    /* raised a flag of a local peer; argument: flag index; cause field: the peer's local rank */
    MK_EV_SIGNAL,
    /* posted a command to the proxy; argument: low 24 bits of its sequence number in its ring */
    MK_EV_COMMAND,
    MK_EV_REDUCE, /* added partial sums; argument: chunk id */
    MK_EV_KINDS
};

/* Why a CTA waited. */
enum mk_cause {
    MK_CAUSE_NONE,
    MK_CAUSE_DATA,         /* a chunk that a rank of this node produces or forwards */
    MK_CAUSE_BACKPRESSURE, /* room in the command ring */
    MK_CAUSE_NETWORK =
        4, /* a chunk that comes over the network, or own puts that have not left their source; 3
            * was a cause of schedules that are gone, and stays free for the traces that hold it */
    MK_CAUSES
};

struct mk_event {
    uint64_t start; /* ns on the clock of its writer: %globaltimer or CLOCK_MONOTONIC */
    uint32_t ns;    /* length; longer intervals are written as several records that touch */
    uint32_t what;  /* argument (24 bits) << 8 | cause, local rank or plan (4 bits) << 4 | kind */
};

struct mk_track {
    struct mk_event *events; /* NULL: tracing is off */
    uint32_t capacity;
    uint32_t count;
    uint64_t dropped;
};

MK_PURE uint32_t mk_event_what(uint32_t kind, uint32_t cause, uint64_t argument)
{
    return (uint32_t)(argument & 0xffffff) << 8 | cause << 4 | kind;
}

MK_PURE uint32_t mk_event_kind_of(const struct mk_event *e)
{
    return e->what & 15;
}

MK_PURE uint32_t mk_event_cause_of(const struct mk_event *e)
{
    return e->what >> 4 & 15;
}

MK_PURE uint32_t mk_event_argument(const struct mk_event *e)
{
    return e->what >> 8;
}

/* Appends one interval; an interval over 4.29 s becomes several records. */
MK_PURE void mk_track_add(struct mk_track *t, uint32_t what, uint64_t start, uint64_t end)
{
    if (!t->events)
        return;
    uint64_t left = end > start ? end - start : 0;
    do {
        uint32_t ns = left > 0xffffffffu ? 0xffffffffu : (uint32_t)left;
        if (t->count == t->capacity) {
            t->dropped++;
            return;
        }
        struct mk_event *e = &t->events[t->count++];
        e->start = start;
        e->ns = ns;
        e->what = what;
        start += ns;
        left -= ns;
    } while (left);
}

/* A message's way through the proxy of its sender, ns on that host's CLOCK_MONOTONIC; 0 is a stage
 * not reached. */
struct mk_message {
    uint64_t epoch;
    uint64_t bytes;
    uint64_t sequence;  /* number of the command in its ring, from 0: joins MK_EV_COMMAND */
    uint64_t seen;      /* the proxy read the command */
    uint64_t posted;    /* its last work request was posted */
    uint64_t completed; /* its last work request completed at the sender */
    uint32_t ring;
    uint32_t peer; /* rank */
    /* flag index at the peer: joins the peer's MK_EV_WAIT, whose end is the arrival */
    uint32_t flag;
    uint32_t plan; /* id of the plan that posted it */
};

struct mk_message_log {
    struct mk_message *messages; /* NULL: tracing is off */
    uint64_t capacity, count, dropped;
};
