/* The host's sides of a ring of commands (core/cta/command.h): a producer, and the proxy that reads
 * it. */
#pragma once

#include "core/cta/command.h"

/* A command, taken apart. Offsets and sizes in bytes. */
struct mk_command_fields {
    uint32_t kind;
    uint32_t peer;
    uint32_t flag; /* plan id for BEGIN */
    uint64_t bytes;
    uint64_t source, destination;
    uint64_t epoch; /* BEGIN only */
};

MK_PURE struct mk_command_fields mk_command_decode(struct mk_command c)
{
    struct mk_command_fields f;
    f.kind = (uint32_t)(c.lo >> 1 & 7);
    f.peer = (uint32_t)(c.lo >> 4 & 0xfff);
    f.flag = (uint32_t)(c.lo >> 16 & 0xffffff);
    f.bytes = f.kind == MK_CMD_PUT ? (c.lo >> 40) * 16 : 0;
    f.source = f.kind == MK_CMD_PUT ? (c.hi & 0xffffffff) * MK_HEAP_UNIT : 0;
    f.destination = f.kind == MK_CMD_PUT ? (c.hi >> 32) * MK_HEAP_UNIT : 0;
    f.epoch = f.kind == MK_CMD_BEGIN ? c.hi : 0;
    return f;
}

/* The host's producer: posts one command (its parity set for sequence `posted`). Returns 0, or -1
 * where the ring is full. Never blocks. */
static inline int mk_ring_post(struct mk_ring *r, struct mk_command c)
{
    uint64_t sequence = r->posted;
    if (sequence - __atomic_load_n(&r->seen, __ATOMIC_ACQUIRE) == r->capacity)
        return -1;
    struct mk_command *slot = &r->slots[sequence & (r->capacity - 1)];
    __atomic_store_n(&slot->hi, c.hi, __ATOMIC_RELAXED);
    __atomic_store_n(&slot->lo, c.lo, __ATOMIC_RELEASE);
    r->posted = sequence + 1;
    return 0;
}

/* The proxy's side: reads command `sequence`, the next one. Returns 1 and fills *c, or 0 where it
 * is not there yet. The slot is free for the producer once `seen` is sequence + 1 (stored with
 * release). */
static inline int mk_ring_peek(const struct mk_ring *r, uint64_t sequence, struct mk_command *c)
{
    const struct mk_command *slot = &r->slots[sequence & (r->capacity - 1)];
    c->lo = __atomic_load_n(&slot->lo, __ATOMIC_ACQUIRE);
    if ((c->lo & 1) != mk_ring_parity(r->capacity, sequence))
        return 0;
    c->hi = __atomic_load_n(&slot->hi, __ATOMIC_RELAXED);
    return 1;
}
