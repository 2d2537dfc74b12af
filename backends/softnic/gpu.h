/* GPU memory in softnic: gpu.c copies, share.c lets peers in. docs/SOFTNIC.md describes both for
 * users. */
#pragma once

#include "nic.h"

/* Prepares the context for GPU memory on device `ordinal` (the first call decides): stream, events,
 * pinned ring. 0, -EOPNOTSUPP (no CUDA here, or gpu=refuse) or -ENOMEM. Context->lock is not held;
 * may take as long as the driver. */
int softnic_gpu_open(struct softnic_context *ctx, int ordinal);
/* The progress thread's last call, under context->lock: its links are gone. */
void softnic_gpu_close(struct softnic_context *ctx);

/* The driver's calls, with the device's context made current; progress thread. NULL: the driver
 * refuses. */
const struct softnic_cuda *softnic_gpu_calls(struct softnic_context *ctx);

/* Progress thread, under context->lock, which it lets go of while it starts copies: puts a
 * message's bytes where they belong where either side is GPU memory. The copies have at most been
 * started on return; what must follow them goes through softnic_gpu_answer_later, or behind
 * softnic_gpu_settle. 0, -EFAULT (what is named is not there), or another error after which nothing
 * is to be done about this request. */
int softnic_gpu_place(struct softnic_link *link, struct softnic_qp *qp, const struct iovec *to,
                      struct softnic_mr **mr, int count, const struct softnic_message *message);

/* Calls `answer` once everything placed so far is there, unless the link or the QP has gone on. */
typedef void softnic_copied(struct softnic_link *link, struct softnic_qp *qp,
                            const struct softnic_frame *request, bool failed);
void softnic_gpu_answer_later(struct softnic_link *link, struct softnic_qp *qp,
                              const struct softnic_frame *request, softnic_copied *answer);

/* Progress thread, under context->lock. start: starts what has been gathered, and lets go of the
 * lock for that. poll: the same with the lock held, and answers what has ended; is anything left?
 * settle: until nothing is left, at most 2 s, and what is left then has failed. */
void softnic_gpu_start(struct softnic_context *ctx);
bool softnic_gpu_poll(struct softnic_context *ctx);
void softnic_gpu_settle(struct softnic_context *ctx);
bool softnic_gpu_busy(const struct softnic_context *ctx);
void softnic_gpu_forget_link(struct softnic_context *ctx, const struct softnic_link *link);

/* Copies one word out of `address` and waits for it: can this be read? Progress thread,
 * context->lock not held. */
int softnic_gpu_probe(struct softnic_context *ctx, uint64_t address);

/* The allocation that `pointer` on device `ordinal` lies in, its handle and its GPU. 0, or
 * -EOPNOTSUPP: not one of cuMemAlloc. Any thread. */
int softnic_gpu_describe(struct softnic_context *ctx, uint64_t pointer, int ordinal, uint64_t *base,
                         size_t *size, struct softnic_cuda_handle *handle,
                         struct softnic_cuda_uuid *gpu);

/* share.c. Is [address, address + length) GPU memory? 1: yes, and it may be registered: *share
 * (counted) goes into the region. 0: host memory. -errno: it cannot be registered. Context->lock is
 * not held. */
int softnic_share_make(struct softnic_context *ctx, void *address, size_t length, unsigned access,
                       struct softnic_share **share);
/* under context->lock */
void softnic_share_drop(struct softnic_context *ctx, struct softnic_share *share);
/* under context->lock */
void softnic_share_announce(struct softnic_link *link);
/* under context->lock */
void softnic_share_wait(struct softnic_context *ctx, struct softnic_qp *qp);
void softnic_share_take(struct softnic_link *link,
                        const struct softnic_message *message); /* a peer's: maps it */
void softnic_share_answered(struct softnic_link *link, const struct softnic_message *message);
void softnic_share_unmap_all(struct softnic_link *link);
