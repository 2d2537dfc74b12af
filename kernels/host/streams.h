/* The streams that launches were given since the last wait for them. */
#pragma once

#include <errno.h>
#include <stdint.h>

enum { STREAMS_MOST = 64 };

struct streams {
    void *of[STREAMS_MOST];
    uint32_t count;
};

/* Whether all that is on a stream so far has ended: 1, 0, or a negative number where the device
 * failed. */
typedef int streams_ended_fn(void *stream);

/* Before a launch on `stream`. 0, or -EBUSY where STREAMS_MOST others are still at work. */
static inline int streams_add(struct streams *s, void *stream, streams_ended_fn *ended)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < s->count; i++)
        if (s->of[i] == stream)
            return 0;
    for (uint32_t i = 0; s->count == STREAMS_MOST && i < STREAMS_MOST; i++)
        if (ended(s->of[i]) != 1)
            s->of[kept++] = s->of[i];
    if (s->count == STREAMS_MOST)
        s->count = kept;
    if (s->count == STREAMS_MOST)
        return -EBUSY;
    s->of[s->count++] = stream;
    return 0;
}

/* Whether all of them have ended: 1 (and they are forgotten), 0, or what `ended` said. */
static inline int streams_ended(struct streams *s, streams_ended_fn *ended)
{
    while (s->count) {
        int result = ended(s->of[s->count - 1]);
        if (result != 1)
            return result;
        s->count--;
    }
    return 1;
}
