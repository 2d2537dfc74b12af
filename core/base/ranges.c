#include "core/base/ranges.h"
#include "core/base/random.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int ranges_make_room(struct ranges *r, uint32_t room)
{
    if (room <= r->room)
        return 0;
    struct ranges_run *runs = realloc(r->runs, 2 * room * sizeof *runs);
    if (!runs)
        return -ENOMEM;
    r->runs = runs;
    r->room = 2 * room;
    return 0;
}

int ranges_open(struct ranges *r, uint64_t first, uint64_t count)
{
    memset(r, 0, sizeof *r);
    if (ranges_make_room(r, 8))
        return -ENOMEM;
    r->runs[0] = (struct ranges_run){first, count};
    r->count = count > 0;
    return 0;
}

void ranges_close(struct ranges *r)
{
    free(r->runs);
    memset(r, 0, sizeof *r);
}

uint64_t ranges_first(const struct ranges *r)
{
    return r->count ? r->runs[0].first : UINT64_MAX;
}

uint64_t ranges_longest(const struct ranges *r)
{
    uint64_t longest = 0;
    for (uint32_t i = 0; i < r->count; i++)
        longest = r->runs[i].count > longest ? r->runs[i].count : longest;
    return longest;
}

uint64_t ranges_last(const struct ranges *r, uint64_t end)
{
    const struct ranges_run *last = r->count ? &r->runs[r->count - 1] : NULL;
    return last && last->first + last->count == end ? last->count : 0;
}

uint64_t ranges_find(const struct ranges *r, uint64_t count)
{
    for (uint32_t i = 0; i < r->count; i++)
        if (r->runs[i].count >= count)
            return r->runs[i].first;
    return UINT64_MAX;
}

int ranges_take(struct ranges *r, uint64_t first, uint64_t count)
{
    uint32_t i = 0;
    if (!count)
        return 0;
    if (ranges_make_room(r, r->count + r->taken + 1)) /* for all that may come back */
        return -ENOMEM;
    while (r->runs[i].first != first)
        i++;
    r->taken++;
    r->runs[i].first += count;
    r->runs[i].count -= count;
    if (!r->runs[i].count)
        memmove(&r->runs[i], &r->runs[i + 1], (--r->count - i) * sizeof *r->runs);
    return 0;
}

/* Makes one of a run and the next where they touch. */
static void ranges_join(struct ranges *r, uint32_t i)
{
    struct ranges_run *run = &r->runs[i];
    if (i + 1 >= r->count || run->first + run->count != run[1].first)
        return;
    run->count += run[1].count;
    memmove(&run[1], &run[2], (--r->count - i - 1) * sizeof *run);
}

void ranges_give(struct ranges *r, uint64_t first, uint64_t count)
{
    uint32_t i = 0;
    if (!count)
        return;
    while (i < r->count && r->runs[i].first < first)
        i++;
    memmove(&r->runs[i + 1], &r->runs[i], (r->count++ - i) * sizeof *r->runs);
    r->runs[i] = (struct ranges_run){first, count};
    r->taken--;
    ranges_join(r, i);
    if (i)
        ranges_join(r, i - 1);
}

int ranges_are_taken(const struct ranges *r, uint64_t first, uint64_t count)
{
    for (uint32_t i = 0; i < r->count; i++)
        if (r->runs[i].first < first + count && first < r->runs[i].first + r->runs[i].count)
            return 0;
    return 1;
}

uint64_t ranges_digest(const struct ranges *r)
{
    uint64_t digest = r->count;
    for (uint32_t i = 0; i < r->count; i++)
        digest = mk_mix(mk_mix(digest ^ r->runs[i].first) ^ r->runs[i].count);
    return digest;
}
