#include "backends/memory.h"

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
