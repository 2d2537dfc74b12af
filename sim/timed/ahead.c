/* Prefetches the memory that the next events will touch. */
#include "sim/timed/state.h"

/* The CTA that an event probably belongs to; NULL: not known. */
static const struct timed_cta *ahead_concerns(const struct timed_world *w, uint32_t event)
{
    uint32_t ctas = w->world * w->per_rank, links = ctas + w->world, first = timed_first_flight(w),
             cta = TIMED_NONE;
    if (event < ctas)
        cta = event;
    else if (event >= first && event != TIMED_NONE) {
        const struct timed_flight *f = &w->flights[event - first];
        cta = f->poster == TIMED_NONE ? w->ranks[f->rank].waiting[f->flag % TIMED_BUCKETS]
                                      : TIMED_NONE;
    } else if (event >= links && event != TIMED_NONE) {
        cta = timed_links_first(w, event);
    }
    return cta == TIMED_NONE ? NULL : &w->ctas[cta];
}

/* Without this most of an event's time would be cache misses: its class, its CTA, the coroutine and
 * its stack are apart, and all of them exceed any cache. Each points to the next, so they are
 * prefetched one after another while other events are handled. */
void timed_look_ahead(struct timed_world *w)
{
    const uint32_t *ahead = w->queue.ahead;
    uint32_t first = timed_first_flight(w), links = w->world * (w->per_rank + 1);
    const struct timed_cta *c;
    if (ahead[7] >= first && ahead[7] != TIMED_NONE) {
        const struct timed_flight *f = &w->flights[ahead[7] - first];
        __builtin_prefetch(f);
        __builtin_prefetch((const char *)f + 64);
    } else if (ahead[7] >= links && ahead[7] != TIMED_NONE) {
        timed_links_soon(w, ahead[7]);
    }
    if (ahead[5] >= first && ahead[5] != TIMED_NONE) {
        const struct timed_flight *f = &w->flights[ahead[5] - first];
        __builtin_prefetch(&w->ranks[f->rank].waiting[f->flag % TIMED_BUCKETS], 1);
        __builtin_prefetch(&w->ranks[f->rank].flags[f->flag], 1);
    }
    if ((c = ahead_concerns(w, ahead[4]))) {
        __builtin_prefetch(c, 1);
        __builtin_prefetch(&c->path, 1);
    }
    if ((c = ahead_concerns(w, ahead[2]))) {
        __builtin_prefetch(c->rank);
        if (c->beside != TIMED_NONE)
            __builtin_prefetch(&w->ctas[c->beside]);
        if (c->state == TIMED_BEGINS) {
            timed_links_begins(w, c);
        } else {
            if (c->count)
                __builtin_prefetch(&c->line->steps[c->done]);
            if (c->done + 3 >= c->count) /* its coroutine goes on soon */
                __builtin_prefetch(&c->coroutine, 1);
        }
    }
    if ((c = ahead_concerns(w, ahead[1])) && c->state != TIMED_BEGINS && c->done + 3 >= c->count)
        __builtin_prefetch(c->coroutine, 1);
    if ((c = ahead_concerns(w, ahead[0])) && c->state != TIMED_BEGINS && c->done + 3 >= c->count)
        coroutine_soon(c->coroutine);
}
