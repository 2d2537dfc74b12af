/* The event queue of the timed executor: a hierarchical timing wheel (Varghese and Lauck, Hashed
 * and Hierarchical Timing Wheels, SOSP 1987). Inserting, removing and finding the next event take
 * constant time. Events with the same time come in the order in which they were inserted.
 *
 * An event is a number: an index into the queue's array of times and links. An owner with at most
 * one pending event keeps a fixed number; others allocate one from a free list. */
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

/* Upcoming events whose data is prefetched. */
#define TIMED_AHEAD 8

struct timed_queue {
    uint64_t now;
    uint64_t taken; /* events so far */
    struct timed_event *events;
    uint32_t count, capacity, free;
    /* the events that probably follow the one taken last, in order; TIMED_NONE: not known. New
     * events may come before them, and they may be removed. */
    uint32_t ahead[TIMED_AHEAD];
    uint32_t head[TIMED_LEVELS * TIMED_SLOTS], tail[TIMED_LEVELS * TIMED_SLOTS];
    uint64_t full[TIMED_LEVELS][TIMED_SLOTS / 64]; /* bit set of the slots that are not empty */
};

/* The caller owns the numbers 0 .. fixed - 1 until the queue is closed. Returns 0 or -ENOMEM; call
 * timed_queue_close in either case. */
int timed_queue_open(struct timed_queue *q, uint32_t fixed);
void timed_queue_close(struct timed_queue *q);

/* Allocates a number, which timed_queue_give frees. TIMED_NONE: no memory. */
uint32_t timed_queue_take(struct timed_queue *q);
void timed_queue_give(struct timed_queue *q, uint32_t event);

/* Makes an event that is not pending come at `time`, or at once if that time is past. */
void timed_queue_put(struct timed_queue *q, uint32_t event, uint64_t time);

/* Removes an event if it is pending. */
void timed_queue_remove(struct timed_queue *q, uint32_t event);

static inline int timed_queue_pending(const struct timed_queue *q, uint32_t event)
{
    return q->events[event].slot != TIMED_NONE;
}

/* Takes the next event and sets q->now to its time. TIMED_NONE: none is pending. */
uint32_t timed_queue_next(struct timed_queue *q);
