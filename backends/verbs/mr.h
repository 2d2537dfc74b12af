/* Registration of the symmetric heap with a NIC, whatever memory it lies in.
 *
 * Two regions: the flags, never with relaxed ordering (a flag must not overtake the data before
 * it), and the data behind them, with it where the device takes it. Addresses on the wire are the
 * heap's own virtual addresses.
 *
 * Memory that is not the host's is registered by DMA-BUF, then by its address (peer memory:
 * nvidia_peermem). The owner of such memory (kernels/) hands in a table of functions with
 * mr_provide before the fabric is opened. It is refused where the owner says that a NIC's writes
 * are not seen in order (backends/memory.h); then, and where the NIC can do neither, the way is
 * through host memory (backends/stage.h). */
#pragma once

#include "backends/memory.h"
#include "backends/verbs/verbs_api.h"

struct mr_heap {
    enum mk_memory memory;
    void *base;
    uint64_t flag_bytes; /* a multiple of 4096, where registration and DMA-BUF can cut */
    uint64_t bytes;      /* in all */
};

struct mr_set {
    struct ibv_mr *flags, *data; /* data: NULL where the heap is flags alone */
    const char *how;             /* "host", "DMA-BUF" or "peer memory" */
    int relaxed;                 /* the data region has relaxed ordering */
};

/* Registers the heap with the PD's device for local reads and remote writes. 0, -ENOMEM (locked
 * memory: the sentence names the limit), -EOPNOTSUPP (this NIC cannot reach this memory), or the
 * provider's error; one sentence in `error`. */
int mr_register(const struct verbs_api *api, struct ibv_pd *pd, const struct mr_heap *heap,
                int relaxed, struct mr_set *out, char *error, size_t size);

void mr_deregister(const struct verbs_api *api, struct mr_set *set);
