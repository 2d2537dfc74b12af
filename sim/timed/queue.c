#include "sim/timed/queue.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int timed_queue_open(struct timed_queue *q, uint32_t fixed)
{
    memset(q, 0, sizeof *q);
    memset(q->head, 0xff, sizeof q->head);
    memset(q->tail, 0xff, sizeof q->tail);
    memset(q->ahead, 0xff, sizeof q->ahead);
    q->free = TIMED_NONE;
    q->count = fixed;
    q->capacity = fixed + 1024;
    q->events = malloc(q->capacity * sizeof *q->events);
    if (!q->events)
        return -ENOMEM;
    for (uint32_t i = 0; i < fixed; i++)
        q->events[i].slot = TIMED_NONE;
    return 0;
}

void timed_queue_close(struct timed_queue *q)
{
    free(q->events);
    q->events = NULL;
}

uint32_t timed_queue_take(struct timed_queue *q)
{
    uint32_t event = q->free;
    if (event != TIMED_NONE) {
        q->free = q->events[event].next;
        return event;
    }
    if (q->count == q->capacity) {
        uint32_t capacity = q->capacity < TIMED_NONE / 2 ? 2 * q->capacity : TIMED_NONE;
        struct timed_event *grown = realloc(q->events, capacity * sizeof *grown);
        if (!grown)
            return TIMED_NONE;
        q->events = grown;
        q->capacity = capacity;
    }
    q->events[q->count].slot = TIMED_NONE;
    return q->count++;
}

void timed_queue_give(struct timed_queue *q, uint32_t event)
{
    q->events[event].next = q->free;
    q->free = event;
}

/* The highest level at which `time` and the queue's time have different slots: the slot of `time`
 * there lies ahead, within the current turn of the wheel. */
static uint32_t queue_slot_of(const struct timed_queue *q, uint64_t time)
{
    uint64_t differs = time ^ q->now;
    uint32_t level = differs ? (63 - (uint32_t)__builtin_clzll(differs)) / TIMED_SLOT_BITS : 0;
    if (level >= TIMED_LEVELS)
        level = TIMED_LEVELS - 1;
    return level * TIMED_SLOTS + (uint32_t)(time >> level * TIMED_SLOT_BITS & (TIMED_SLOTS - 1));
}

void timed_queue_put(struct timed_queue *q, uint32_t event, uint64_t time)
{
    struct timed_event *e = &q->events[event];
    e->time = time < q->now ? q->now : time;
    uint32_t slot = queue_slot_of(q, e->time), last = q->tail[slot];
    e->slot = slot;
    e->next = TIMED_NONE;
    e->previous = last;
    if (last == TIMED_NONE)
        q->head[slot] = event;
    else
        q->events[last].next = event;
    q->tail[slot] = event;
    q->full[slot / TIMED_SLOTS][slot % TIMED_SLOTS / 64] |= 1ull << slot % 64;
}

void timed_queue_remove(struct timed_queue *q, uint32_t event)
{
    struct timed_event *e = &q->events[event];
    uint32_t slot = e->slot;
    if (slot == TIMED_NONE)
        return;
    if (e->previous == TIMED_NONE)
        q->head[slot] = e->next;
    else
        q->events[e->previous].next = e->next;
    if (e->next == TIMED_NONE)
        q->tail[slot] = e->previous;
    else
        q->events[e->next].previous = e->previous;
    if (q->head[slot] == TIMED_NONE)
        q->full[slot / TIMED_SLOTS][slot % TIMED_SLOTS / 64] &= ~(1ull << slot % 64);
    e->slot = TIMED_NONE;
}

/* The first slot of a level, from `from` on, that is not empty; TIMED_SLOTS: none. */
static uint32_t queue_first_full(const struct timed_queue *q, uint32_t level, uint32_t from)
{
    uint32_t word = from / 64;
    uint64_t bits = q->full[level][word] & ~0ull << from % 64;
    while (!bits) {
        if (++word == TIMED_SLOTS / 64)
            return TIMED_SLOTS;
        bits = q->full[level][word];
    }
    return word * 64 + (uint32_t)__builtin_ctzll(bits);
}

/* Moves the events of a slot of an upper level to their slots on lower levels, in their order. */
static void queue_spread(struct timed_queue *q, uint32_t slot)
{
    uint32_t event = q->head[slot];
    q->head[slot] = q->tail[slot] = TIMED_NONE;
    q->full[slot / TIMED_SLOTS][slot % TIMED_SLOTS / 64] &= ~(1ull << slot % 64);
    while (event != TIMED_NONE) {
        uint32_t next = q->events[event].next;
        timed_queue_put(q, event, q->events[event].time);
        event = next;
    }
}

/* The event that probably follows `event`. */
static uint32_t queue_behind(const struct timed_queue *q, uint32_t event)
{
    const struct timed_event *e = &q->events[event];
    if (e->slot >= TIMED_SLOTS || e->next != TIMED_NONE) /* on an upper level, or not pending */
        return e->slot < TIMED_SLOTS ? e->next : TIMED_NONE;
    uint32_t slot = e->slot + 1 < TIMED_SLOTS ? queue_first_full(q, 0, e->slot + 1) : TIMED_SLOTS;
    return slot < TIMED_SLOTS ? q->head[slot] : TIMED_NONE;
}

/* Updates `ahead` when `event` is taken. */
static void queue_look_ahead(struct timed_queue *q, uint32_t event)
{
    uint32_t known = 0;
    if (q->ahead[0] == event) { /* the others still follow, perhaps with new ones between */
        for (; known + 1 < TIMED_AHEAD && q->ahead[known + 1] != TIMED_NONE; known++)
            q->ahead[known] = q->ahead[known + 1];
    }
    for (uint32_t last = known ? q->ahead[known - 1] : event; known < TIMED_AHEAD; known++)
        q->ahead[known] = last = last == TIMED_NONE ? TIMED_NONE : queue_behind(q, last);
}

uint32_t timed_queue_next(struct timed_queue *q)
{
    for (uint32_t level = 0; level < TIMED_LEVELS;) {
        uint32_t shift = level * TIMED_SLOT_BITS;
        uint32_t slot = queue_first_full(q, level, (uint32_t)(q->now >> shift) % TIMED_SLOTS);
        if (slot == TIMED_SLOTS) {
            level++;
            continue;
        }
        uint64_t turn = ~0ull << (shift + TIMED_SLOT_BITS), at = (uint64_t)slot << shift;
        if (!level) {
            uint32_t event = q->head[slot];
            q->now = (q->now & turn) | at;
            queue_look_ahead(q, event);
            timed_queue_remove(q, event);
            q->taken++;
            return event;
        }
        if (((q->now & turn) | at) > q->now)
            q->now = (q->now & turn) | at;
        queue_spread(q, level * TIMED_SLOTS + slot);
        level = 0;
    }
    return TIMED_NONE;
}
