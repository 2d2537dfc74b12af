/* Flags in flight. Each is an event; adds that are gathered are one event together. */
#include "sim/timed/state.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { GATHERED = 1 << 16 }; /* lists of adds that are gathered, by a hash of rank and flag */

int timed_flags_open(struct timed_world *w)
{
    if (w->pipeline.together <= 1)
        return 0;
    w->gathered = malloc(GATHERED * sizeof *w->gathered);
    if (!w->gathered)
        return -ENOMEM;
    memset(w->gathered, 0xff, GATHERED * sizeof *w->gathered);
    return 0;
}

void timed_flags_close(struct timed_world *w)
{
    free(w->flights);
    free(w->gathered);
}

/* Allocates the event of a flight, which is w->flights[event - timed_first_flight(w)].
 * TIMED_NONE: no memory; timed_error is set. */
static uint32_t flags_take(struct timed_world *w)
{
    uint32_t event = timed_queue_take(&w->queue), first = timed_first_flight(w);
    if (event != TIMED_NONE && event - first >= w->flight_capacity) {
        uint32_t capacity = w->flight_capacity ? 2 * w->flight_capacity : 1024;
        struct timed_flight *grown = realloc(w->flights, capacity * sizeof *grown);
        if (grown) {
            w->flights = grown;
            w->flight_capacity = capacity;
        }
    }
    if (event == TIMED_NONE || event - first >= w->flight_capacity) {
        timed_error(w, -ENOMEM, "no memory for flags on their way");
        return TIMED_NONE;
    }
    return event;
}

/* If every waiter needs all adds to a flag, they are one event: they are kept in a list until the
 * last has been issued, and the one that arrives last is the event. */
static void flags_gather(struct timed_world *w, const struct timed_flight *f, uint64_t time)
{
    uint32_t first = timed_first_flight(w),
             *list = &w->gathered[(f->rank * 0x9e3779b1u + f->flag * 0x85ebca6bu) /
                                  (UINT32_MAX / GATHERED + 1)],
             *at = list;
    while (*at != TIMED_NONE &&
           (w->flights[*at].rank != f->rank || w->flights[*at].flag != f->flag))
        at = &w->flights[*at].next;
    struct timed_flight *all;
    if (*at == TIMED_NONE) {
        uint32_t event = flags_take(w);
        if (event == TIMED_NONE)
            return;
        all = &w->flights[event - first];
        *all = *f;
        all->due = time;
        all->next = *list;
        *list = event - first;
        at = list;
    } else {
        all = &w->flights[*at];
        all->value += f->value;
        if (time >= all->due) {
            all->due = time;
            all->path = f->path;
        }
    }
    if (all->value % w->pipeline.together)
        return;
    timed_queue_put(&w->queue, first + *at, all->due);
    *at = all->next;
}

void timed_raise(struct timed_world *w, const struct timed_flight *f, uint64_t time)
{
    if (w->pipeline.together > 1 && f->add && f->poster == TIMED_NONE) {
        flags_gather(w, f, time);
        return;
    }
    uint32_t event = flags_take(w);
    if (event == TIMED_NONE)
        return;
    w->flights[event - timed_first_flight(w)] = *f;
    timed_queue_put(&w->queue, event, time);
}
