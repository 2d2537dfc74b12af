/* Registration of the symmetric heap with a NIC, whatever memory it lies in.
 *
 * Two regions: the flags, never with relaxed ordering (a flag must not overtake the data before it), and the
 * data behind them, with it where the device takes it. Addresses on the wire are the heap's own virtual
 * addresses.
 *
 * Memory that is not the host's is registered by DMA-BUF, then by its address (peer memory: nvidia_peermem).
 * Whoever owns such memory (kernels/) hands in what it takes with mr_provide before the fabric is opened. */
#ifndef MK_MR_H
#define MK_MR_H

#include "backends/verbs/verbs_api.h"
#include "core/comm.h"

struct mr_heap {
    enum mk_memory memory;
    void *base;
    uint64_t flag_bytes; /* a multiple of 4096: what registration and DMA-BUF can cut at */
    uint64_t bytes;      /* in all */
};

struct mr_set {
    struct ibv_mr *flags, *data; /* data: NULL where the heap is flags alone */
    const char *how;             /* "host", "DMA-BUF" or "peer memory" */
    int relaxed;                 /* the data region has relaxed ordering */
};

/* What the owner of device memory knows to do. The functions may be called from any thread and do not block
 * longer than the driver does. */
struct mr_memory_ops {
    /* A DMA-BUF of [base, base + bytes): *fd (the caller closes it) and the offset of `base` in it. 0, or
     * -errno where this device or driver exports none. */
    int (*export_dmabuf)(void *base, uint64_t bytes, int *fd, uint64_t *offset);

    /* For NICs that cannot register device memory (rxe, no peer-mem module): copies between device memory and
     * pinned host memory. copy starts one on the owner's own stream and returns a ticket, copied asks whether
     * it has ended (1, 0, or -errno). Staging itself is not built yet: such a NIC is refused with
     * -EOPNOTSUPP. */
    int64_t (*copy)(void *to, const void *from, uint64_t bytes);
    int (*copied)(int64_t ticket);
};

/* Registers who answers for `memory`, NULL for nobody. At start-up, before any fabric is opened; the table
 * must live on. */
void mr_provide(enum mk_memory memory, const struct mr_memory_ops *ops);

/* Registers the heap with the PD's device for local reads and remote writes. 0, -ENOMEM (locked memory: the
 * sentence names the limit), -EOPNOTSUPP (this NIC cannot reach this memory), or what the provider said; one
 * sentence in `error`. */
int mr_register(const struct verbs_api *api, struct ibv_pd *pd, const struct mr_heap *heap, int relaxed,
                struct mr_set *out, char *error, size_t error_size);

void mr_deregister(const struct verbs_api *api, struct mr_set *set);

#endif
