/* The event queue of the timed executor: a hierarchical timing wheel (Varghese and Lauck, Hashed
 * and Hierarchical Timing Wheels, SOSP 1987). Putting in, taking out and the next event cost the
 * same however many there are. Events of one time come in the order in which they were put in.
 *
 * An event is a number; the queue keeps its time and links in one array. An owner that never has
 * more than one event pending has a number for life; others take one from the free ones. */
#pragma once

#include <stdint.h>

#define TIMED_LEVELS 5u
#define TIMED_SLOT_BITS 10u
#define TIMED_SLOTS (1u << TIMED_SLOT_BITS)
#define TIMED_NONE UINT32_MAX

struct timed_event {
    uint64_t time;
    uint32_t next, previous; /* in its slot; of a free one, the next free one */
    uint32_t slot;           /* level * TIMED_SLOTS + slot; TIMED_NONE: not pending */
};

/* Events that are looked at before they come. */
#define TIMED_AHEAD 8

struct timed_queue {
    uint64_t now;
    uint64_t taken; /* events so far */
    struct timed_event *events;
    uint32_t count, capacity, free;
    /* the events that come behind the one that was taken last, the first of them first, as far as
     * that is known: TIMED_NONE is not. They may come later, or not at all. */
    uint32_t ahead[TIMED_AHEAD];
    uint32_t head[TIMED_LEVELS * TIMED_SLOTS], tail[TIMED_LEVELS * TIMED_SLOTS];
    uint64_t full[TIMED_LEVELS][TIMED_SLOTS / 64]; /* slots that hold something */
};

/* `fixed` numbers 0 .. fixed - 1 belong to the caller for life. 0 or -ENOMEM; timed_queue_close in
 * either case. */
int timed_queue_open(struct timed_queue *q, uint32_t fixed);
void timed_queue_close(struct timed_queue *q);

/* A number of one's own until timed_queue_give; TIMED_NONE: no memory. */
uint32_t timed_queue_take(struct timed_queue *q);
void timed_queue_give(struct timed_queue *q, uint32_t event);

/* An event that is not pending comes at `time`, at once where that is past. */
void timed_queue_put(struct timed_queue *q, uint32_t event, uint64_t time);

/* An event does not come any more; nothing where it is not pending. */
void timed_queue_remove(struct timed_queue *q, uint32_t event);

static inline int timed_queue_pending(const struct timed_queue *q, uint32_t event)
{
    return q->events[event].slot != TIMED_NONE;
}

/* The next event, and q->now is its time; TIMED_NONE: there is none. */
uint32_t timed_queue_next(struct timed_queue *q);
