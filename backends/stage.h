/* A fabric over another fabric, for NICs that cannot reach the heap's memory: bytes pass through
 * pinned host memory on both sides, and so the NIC sees host memory only.
 *
 * A put is cut into pieces. The memory's copy engine copies each piece from the heap into a slot;
 * the inner fabric puts it into a slot of the peer; and the peer copies it into its heap, and after
 * the last piece the flag, on the same queue: data before flag. Each peer has a fixed number of
 * slots in each direction, which the receiver gives back (credits). A put to a peer whose queue is
 * full is refused with -EAGAIN, as usual.
 *
 * A put's completion means the same as a NIC's: its source may be overwritten and the peer's NIC
 * has taken it. The peer moves it on while it polls. Puts are multiples of 8 bytes at multiples of
 * 8 (-EINVAL). */
#pragma once

#include "backends/fabric.h"
#include "backends/memory.h"

/* The host memory that the inner fabric is to be opened over, laid out like a symmetric heap. */
struct stage_memory {
    void *base;
    uint64_t flag_bytes, bytes;
};

struct stage_config {
    const struct mr_memory_ops *ops; /* with copy and pinned; must outlive the fabric */
    struct mk_heap heap;             /* the memory that the NIC does not reach */
    uint32_t rank, world;
    const uint32_t *peers; /* ascending; each rank of the group lists all others of it */
    uint32_t peer_count;

    /* Opens the inner fabric, whose puts of one flag to one peer land in the order of their making,
     * data before flag, as any fabric's do. 0 or -errno with a sentence in `error`. */
    int (*open_inner)(void *context, struct fabric **out, const struct stage_memory *memory,
                      char *error, size_t size);
    void *context;
};

/* 0, -ENOMEM, -EOPNOTSUPP (this process cannot copy that memory), or open_inner's error; a sentence
 * in `error`. The fabric's close frees everything, the inner fabric too. */
int stage_open(struct fabric **out, const struct stage_config *config, char *error, size_t size);
