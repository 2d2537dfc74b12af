/* Commands: what a CTA asks of the proxy. One 16-byte store each, into a ring that one CTA writes
 * and one proxy reads.
 *
 * A slot is valid when its parity bit equals the parity of the current lap (1 on the first lap over
 * zeroed memory), so the host clears nothing. The parity bit lies in `lo`; a producer that cannot
 * store 16 bytes at once stores `hi` first and `lo` with release.
 *
 *   lo   bit 0 parity | 1-3 kind | 4-15 peer rank | 16-39 flag index | 40-63 bytes / 16
 *   hi   0-31 source offset / 128 | 32-63 destination offset / 128
 *   BEGIN   lo: parity, kind, 16-39 plan id; hi: the epoch, whole
 *
 * Offsets are from the start of the symmetric heap. Every field is checked when the plan is made
 * (plan_build), so nothing is narrowed here. */
#pragma once

#include "core/base.h"

enum mk_command_kind {
    MK_CMD_NONE,
    MK_CMD_BEGIN, /* a launch begins: plan id and epoch of the commands that follow in this ring */
    /* write bytes to the peer's heap, then set its flag to the epoch; 0 bytes: the flag alone */
    MK_CMD_PUT,
    MK_CMD_KINDS
};

#define MK_CMD_MAX_BYTES ((((uint64_t)1 << 24) - 1) * 16)
#define MK_CMD_MAX_OFFSET ((((uint64_t)1 << 32) - 1) * MK_HEAP_UNIT)
#define MK_CMD_MAX_FLAG (((uint32_t)1 << 24) - 1)

struct mk_command {
    uint64_t lo, hi;
};

/* A command, taken apart. Offsets and sizes in bytes. */
struct mk_command_fields {
    uint32_t kind;
    uint32_t peer;
    uint32_t flag; /* plan id for BEGIN */
    uint64_t bytes;
    uint64_t source, destination;
    uint64_t epoch; /* BEGIN only */
};

MK_PURE struct mk_command mk_command_put(uint32_t peer, uint64_t source, uint64_t destination,
                                         uint64_t bytes, uint32_t flag, uint32_t parity)
{
    struct mk_command c;
    c.lo =
        parity | MK_CMD_PUT << 1 | (uint64_t)peer << 4 | (uint64_t)flag << 16 | (bytes / 16) << 40;
    c.hi = source / MK_HEAP_UNIT | (destination / MK_HEAP_UNIT) << 32;
    return c;
}

MK_PURE struct mk_command mk_command_begin(uint32_t plan, uint64_t epoch, uint32_t parity)
{
    struct mk_command c;
    c.lo = parity | MK_CMD_BEGIN << 1 | (uint64_t)plan << 16;
    c.hi = epoch;
    return c;
}

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

/* One ring, in host memory that both sides map (pinned, where a GPU writes it). The producer may be
 * at most `capacity` ahead of `seen`. Starts zeroed but for `capacity`, a power of two. */
struct mk_ring {
    uint64_t capacity;
    uint8_t pad0[MK_CACHE_LINE - 8];
    uint64_t seen; /* proxy: commands read; their slots may be written again */
    uint8_t pad1[MK_CACHE_LINE - 8];
    uint64_t completed; /* proxy: commands, in order, whose source may be overwritten */
    uint8_t pad2[MK_CACHE_LINE - 8];
    uint64_t posted; /* producer: commands posted, kept between launches */
    uint8_t pad3[MK_CACHE_LINE - 8];
    struct mk_command slots[];
};

MK_PURE uint32_t mk_ring_parity(uint64_t capacity, uint64_t sequence)
{
    return (uint32_t)(sequence / capacity & 1) ^ 1;
}

MK_PURE size_t mk_ring_bytes(uint64_t capacity)
{
    return sizeof(struct mk_ring) + capacity * sizeof(struct mk_command);
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
