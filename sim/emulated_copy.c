#include "sim/emulated_copy.h"

#include <stdlib.h>
#include <string.h>

static int emulated_copy_in_order(void)
{
    return 0; /* no NIC writes there */
}

static void *emulated_copy_pinned(uint64_t bytes)
{
    uint64_t whole = mk_round_up(bytes, 4096);
    void *p = aligned_alloc(4096, whole);
    if (p)
        memset(p, 0, whole);
    return p;
}

static int64_t emulated_copy_start(void *to, const void *from, uint64_t bytes, enum memory_way way)
{
    if (bytes == 8) {
        uint64_t word;
        memcpy(&word, from, 8);
        __atomic_store_n((uint64_t *)to, word, __ATOMIC_RELEASE);
    } else {
        memcpy(to, from, bytes);
    }
    return 0;
}

static int emulated_copy_ended(int64_t ticket)
{
    return 1;
}

const struct mr_memory_ops emulated_copy_ops = {.writes_in_order = emulated_copy_in_order,
                                                .pinned = emulated_copy_pinned,
                                                .unpin = free,
                                                .copy = emulated_copy_start,
                                                .copied = emulated_copy_ended};
