#include "tracer/intervals.h"
#include "core/base/grow.h"
#include "core/base/scoped.h"
#include "core/base/sorted.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int intervals_end_run(struct intervals *s)
{
    uint64_t last = s->run_count ? s->runs[s->run_count - 1] : 0;
    if (s->count == last)
        return 0;
    if (mk_grow(&s->runs, s->run_count, sizeof *s->runs))
        return -ENOMEM;
    s->runs[s->run_count++] = s->count;
    return 0;
}

int intervals_add(struct intervals *s, int64_t start, int64_t end)
{
    uint64_t first = s->run_count ? s->runs[s->run_count - 1] : 0;
    if (s->count > first) {
        struct interval *last = &s->at[s->count - 1];
        /* touches the one before: most tiles of a CTA do */
        if (start >= last->start && start <= last->end) {
            last->end = end > last->end ? end : last->end;
            return 0;
        }
        if (start < last->start && intervals_end_run(s))
            return -ENOMEM;
    }
    if (s->count == s->capacity) {
        uint64_t capacity = 2 * s->capacity + 64;
        struct interval *more = realloc(s->at, capacity * sizeof *more);
        if (!more)
            return -ENOMEM;
        s->at = more;
        s->capacity = capacity;
    }
    s->at[s->count++] = (struct interval){start, end};
    return 0;
}

static void intervals_merge_runs(struct interval *to, const struct interval *from, uint64_t a,
                                 uint64_t mid, uint64_t end)
{
    uint64_t b = mid;
    for (uint64_t k = a; k < end; k++) {
        int left = a < mid && (b >= end || from[a].start <= from[b].start);
        to[k] = left ? from[a] : from[b];
        a += (uint64_t)left, b += (uint64_t)!left;
    }
}

int intervals_unite(struct intervals *s)
{
    if (intervals_end_run(s))
        return -ENOMEM;
    MK_FREED struct interval *other = s->run_count > 1 ? malloc(s->count * sizeof *other) : NULL;
    if (s->run_count > 1 && !other)
        return -ENOMEM;
    while (s->run_count > 1) { /* neighbours two by two: every round halves the runs */
        uint64_t made = 0, begin = 0;
        for (uint64_t i = 0; i < s->run_count; i += 2) {
            uint64_t mid = s->runs[i], end = i + 1 < s->run_count ? s->runs[i + 1] : mid;
            intervals_merge_runs(other, s->at, begin, mid, end);
            begin = s->runs[made++] = end;
        }
        s->run_count = made;
        struct interval *swap = s->at;
        s->at = other, other = swap;
        s->capacity = s->count;
    }
    uint64_t n = 0;
    for (uint64_t i = 0; i < s->count; i++) {
        if (n && s->at[i].start <= s->at[n - 1].end)
            s->at[n - 1].end = s->at[i].end > s->at[n - 1].end ? s->at[i].end : s->at[n - 1].end;
        else
            s->at[n++] = s->at[i];
    }
    s->count = n;
    if (s->run_count)
        s->runs[0] = n;
    return 0;
}

uint64_t intervals_find(const struct intervals *s, int64_t t)
{
    return MK_BISECT(i, s->count, s->at[i].end <= t);
}

uint64_t intervals_within(const struct intervals *s, int64_t from, int64_t to)
{
    uint64_t ns = 0;
    for (uint64_t i = intervals_find(s, from); i < s->count && s->at[i].start < to; i++) {
        int64_t a = s->at[i].start > from ? s->at[i].start : from,
                b = s->at[i].end < to ? s->at[i].end : to;
        ns += b > a ? (uint64_t)(b - a) : 0;
    }
    return ns;
}

void intervals_free(struct intervals *s)
{
    free(s->at);
    free(s->runs);
    memset(s, 0, sizeof *s);
}
