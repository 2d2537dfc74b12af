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
