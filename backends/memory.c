#include "backends/memory.h"
#include "backends/wall_clock.h"

#include <sched.h>

enum { MEMORIES = 2 };

static const struct mr_memory_ops *providers[MEMORIES];

void mr_provide(enum mk_memory memory, const struct mr_memory_ops *ops)
{
    if ((unsigned)memory < MEMORIES)
        providers[memory] = ops;
}

const struct mr_memory_ops *mr_provider(enum mk_memory memory)
{
    return (unsigned)memory < MEMORIES ? providers[memory] : 0;
}

int mr_copies(const struct mr_memory_ops *ops)
{
    return ops && ops->copy && ops->copied && ops->pinned && ops->unpin;
}

void mr_copy_wait(const struct mr_memory_ops *ops, int64_t ticket, uint64_t deadline)
{
    while (!ops->copied(ticket) && wall_clock(NULL) < deadline)
        sched_yield();
}
