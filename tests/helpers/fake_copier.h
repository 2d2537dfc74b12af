/* An owner of memory, as backends/memory.h has it, whose copies take as long as the test likes:
 * each way is a queue, and its oldest copy is made when it has been asked for `lag` times. */
#pragma once

#include "backends/memory.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { COPIER_ROOM = 64 };

struct fake_copy {
    void *to;
    const void *from;
    uint64_t bytes;
};

static struct {
    struct fake_copy queue[2][COPIER_ROOM];
    uint64_t started[2], ended[2];
    uint32_t lag, asked[2];
    uint32_t room; /* copies under way, at most COPIER_ROOM */
    int fails;     /* the next copy does */
    int unordered; /* writes_in_order says no */
    uint64_t made;
} fake_copier = {.room = COPIER_ROOM};

static int fake_copier_ordered(void)
{
    return !fake_copier.unordered;
}

static void *fake_copier_pinned(uint64_t bytes)
{
    void *p = aligned_alloc(4096, mk_round_up(bytes, 4096));
    if (p)
        memset(p, 0, mk_round_up(bytes, 4096));
    return p;
}

static int64_t fake_copier_copy(void *to, const void *from, uint64_t bytes, enum memory_way way)
{
    uint64_t number = fake_copier.started[way];
    if (fake_copier.fails)
        return -EIO;
    if (number - fake_copier.ended[way] >= fake_copier.room)
        return -EAGAIN;
    fake_copier.queue[way][number % COPIER_ROOM] = (struct fake_copy){to, from, bytes};
    fake_copier.started[way]++;
    return (int64_t)(number * 2 + way);
}

/* Makes the oldest copy of a way. */
static void fake_copier_move(int way)
{
    if (fake_copier.ended[way] == fake_copier.started[way])
        return;
    struct fake_copy c = fake_copier.queue[way][fake_copier.ended[way]++ % COPIER_ROOM];
    if (c.bytes == 8) {
        uint64_t word;
        memcpy(&word, c.from, 8);
        __atomic_store_n((uint64_t *)c.to, word, __ATOMIC_RELEASE);
    } else {
        memcpy(c.to, c.from, c.bytes);
    }
    fake_copier.made++;
}

static int fake_copier_copied(int64_t ticket)
{
    int way = (int)(ticket % 2);
    if (fake_copier.ended[way] > (uint64_t)ticket / 2)
        return 1;
    if (++fake_copier.asked[way] < fake_copier.lag)
        return 0;
    fake_copier.asked[way] = 0;
    fake_copier_move(way);
    return fake_copier.ended[way] > (uint64_t)ticket / 2;
}

static const struct mr_memory_ops fake_copier_ops = {.writes_in_order = fake_copier_ordered,
                                                     .pinned = fake_copier_pinned,
                                                     .unpin = free,
                                                     .copy = fake_copier_copy,
                                                     .copied = fake_copier_copied};
