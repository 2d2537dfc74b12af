/* Memory that is not the host's: its owner (kernels/) hands in a table of functions for the
 * network, so that nothing in backends/ knows CUDA. Two ways lead from such memory to a NIC: the
 * NIC reads and writes it itself, after registration (backends/verbs/mr.h), or bytes pass through
 * pinned host memory (backends/stage.h). */
#pragma once

#include "core/comm/comm.h"

enum memory_way { MEMORY_TO_HOST, MEMORY_FROM_HOST };

/* The functions may be called from any thread, copy and copied from one thread at a time. They do
 * not block longer than the driver does. */
struct mr_memory_ops {
    /* A DMA-BUF of [base, base + bytes): *fd (the caller closes it) and the offset of `base` in it.
     * 0, or -errno where this device or driver exports none. NULL: none ever. */
    int (*export_dmabuf)(void *base, uint64_t bytes, int *fd, uint64_t *offset);

    /* Does a kernel that polls a flag in this memory, and sees a NIC's write to it, also see the
     * NIC's earlier writes? 0: not without a flush that only the host can do, so a NIC must not
     * write there. NULL: yes. */
    int (*writes_in_order)(void);

    /* The PCI bus id of the device that the memory of this process is on, "0000:1B:00.0". 0 or
     * -errno. NULL: it is on none. */
    int (*bus_id)(char *out, size_t size);

    /* Host memory that the copies below are fast with, all 0. NULL: there is none. */
    void *(*pinned)(uint64_t bytes);
    void (*unpin)(void *memory);

    /* Starts a copy of `bytes` (multiples of 8, from addresses that are) on the owner's own queue
     * and returns a ticket, or -EAGAIN (too many are under way) or -EIO. Copies of one way end in
     * the order of their starting, and a kernel that polls the memory sees them so; aligned 8 bytes
     * are written at once. NULL: this memory cannot be staged. */
    int64_t (*copy)(void *to, const void *from, uint64_t bytes, enum memory_way way);
    int (*copied)(int64_t ticket); /* has it ended? 1, 0, or -EIO */
};

/* Sets the provider of `memory`, NULL for none. At start-up, before any fabric is opened; the table
 * must live on. */
void mr_provide(enum mk_memory memory, const struct mr_memory_ops *ops);

/* The provider of `memory`; NULL for none. */
const struct mr_memory_ops *mr_provider(enum mk_memory memory);

/* Whether this provider can copy by way of pinned memory. NULL: no. */
int mr_copies(const struct mr_memory_ops *ops);

/* Waits until the copy has ended or failed, or wall_clock is at `deadline`. */
void mr_copy_wait(const struct mr_memory_ops *ops, int64_t ticket, uint64_t deadline);
