/* GPU memory between processes: the sender names an allocation by its cudaIpc handle, once per
 * link, in a SHARE frame; the receiver maps it and copies out of it. The addresses of a later
 * frame's segments are looked up among the mappings: no other memory of its process has an address
 * of GPU memory. No process ever writes into another's memory. */
#include "gpu.h"
#include "core/base/clock.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    /* ns for a peer to map what is shared with it: the driver takes milliseconds */
    WAIT_NS = 5000000000,
};

/* A SHARE frame's payload. */
struct shared {
    struct softnic_cuda_handle handle;
    struct softnic_cuda_uuid gpu;
};
_Static_assert(sizeof(struct shared) == SOFTNIC_HANDLE_BYTES, "as parsed");

static int share_make_locked(struct softnic_context *ctx, uint64_t base, uint64_t size,
                             const struct softnic_cuda_uuid *gpu,
                             const struct softnic_cuda_handle *handle, struct softnic_share **out)
{
    for (struct softnic_share *s = ctx->shares; s; s = s->next)
        if (s->base == base && s->size == size && !memcmp(&s->handle, handle, sizeof(*handle))) {
            s->users++;
            *out = s;
            return 1;
        }
    struct softnic_share *s = calloc(1, sizeof(*s));
    if (!s)
        return -ENOMEM;
    *s = (struct softnic_share){.next = ctx->shares,
                                .base = base,
                                .size = size,
                                .handle = *handle,
                                .gpu = *gpu,
                                .serial = ++ctx->share_serial,
                                .users = 1};
    *out = ctx->shares = s;
    for (struct softnic_link *link = ctx->links; link; link = link->next)
        if (link->requester && link->ready && !link->dead)
            softnic_share_announce(link);
    softnic_links_flush(ctx);
    return 1;
}

int softnic_share_make(struct softnic_context *ctx, void *address, size_t length, unsigned access,
                       struct softnic_share **share)
{
    const struct softnic_cuda *cuda = softnic_cuda();
    struct softnic_cuda_handle handle;
    struct softnic_cuda_uuid gpu;
    unsigned type = 0, managed = 0;
    int ordinal = 0;
    uint64_t pointer = (uintptr_t)address, base = 0;
    size_t size = 0;
    if (!cuda || cuda->pointer_attribute(&type, SOFTNIC_CUDA_MEMORY_TYPE, pointer) ||
        type != SOFTNIC_CUDA_DEVICE_MEMORY)
        return 0;
    if (ctx->options.gpu_refuse)
        return -EFAULT; /* as a device answers whose kernel finds no pages there */
    if (access & (IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC))
        return -EOPNOTSUPP;
    if (cuda->pointer_attribute(&managed, SOFTNIC_CUDA_IS_MANAGED, pointer) || managed ||
        cuda->pointer_attribute(&ordinal, SOFTNIC_CUDA_DEVICE_ORDINAL, pointer))
        return -EOPNOTSUPP;
    int result = softnic_gpu_open(ctx, ordinal);
    if (!result)
        result = softnic_gpu_describe(ctx, pointer, ordinal, &base, &size, &handle, &gpu);
    if (!result && (length > size || pointer - base > size - length))
        result = -EFAULT;
    if (result)
        return result;
    pthread_mutex_lock(&ctx->lock);
    result = share_make_locked(ctx, base, size, &gpu, &handle, share);
    pthread_mutex_unlock(&ctx->lock);
    return result;
}

/* Peers keep their mapping until the link goes, or until something else is shared at the same
 * address. */
void softnic_share_drop(struct softnic_context *ctx, struct softnic_share *share)
{
    if (!share || --share->users)
        return;
    struct softnic_share **at = &ctx->shares;
    while (*at != share)
        at = &(*at)->next;
    *at = share->next;
    free(share);
}

void softnic_share_announce(struct softnic_link *link)
{
    struct softnic_context *ctx = link->context;
    for (struct softnic_share *s = ctx->shares; s; s = s->next) {
        if (s->serial <= link->shares_sent)
            continue;
        const struct shared shared = {s->handle, s->gpu};
        struct softnic_frame head = {.kind = SOFTNIC_SHARE,
                                     .length = sizeof(shared),
                                     .payload = sizeof(shared),
                                     .address = s->base,
                                     .operand = {s->size, s->serial}};
        softnic_link_send(link, &head, &shared, sizeof(shared));
    }
    link->shares_sent = ctx->share_serial;
}

void softnic_share_answered(struct softnic_link *link, const struct softnic_message *message)
{
    if (message->head.operand[0] > link->shares_taken)
        link->shares_taken = message->head.operand[0];
    pthread_cond_broadcast(&link->context->idle);
}

/* A QP does not become ready to send before its peer has mapped what it may send from: mapping
 * while kernels run could wait for them, and they for the data. */
void softnic_share_wait(struct softnic_context *ctx, struct softnic_qp *qp)
{
    const uint64_t end = mk_now_ns() + WAIT_NS;
    softnic_links_flush(ctx);
    while (ctx->shares && qp->link && !qp->link->dead && qp->link->shares_taken < ctx->share_serial)
        if (mk_cond_wait_until(&ctx->idle, &ctx->lock, end))
            break;
}

static void share_unmap(struct softnic_link *link, struct softnic_mapping *mapping)
{
    struct softnic_mapping **at = &link->mappings;
    const struct softnic_cuda *cuda = mapping->opened ? softnic_gpu_calls(link->context) : NULL;
    while (*at != mapping)
        at = &(*at)->next;
    *at = mapping->next;
    if (cuda)
        cuda->ipc_close(mapping->local);
    free(mapping);
}

/* Opens the handle, and copies one word out of it: a mapping that cannot be read is found out
 * here. */
static bool share_open_mapping(struct softnic_link *link, struct softnic_mapping *m,
                               const struct softnic_cuda_handle *handle)
{
    const struct softnic_cuda *cuda = softnic_gpu_calls(link->context);
    if (!cuda)
        return false;
    m->local = m->base;
    if (link->peer_pid != getpid()) /* the driver does not open a process's own handles */
        m->opened = !cuda->ipc_open(&m->local, *handle, SOFTNIC_CUDA_IPC_LAZY_PEER_ACCESS);
    return link->peer_pid == getpid() || (m->opened && !softnic_gpu_probe(link->context, m->local));
}

void softnic_share_take(struct softnic_link *link, const struct softnic_message *message)
{
    const struct softnic_frame *head = &message->head;
    struct softnic_context *ctx = link->context;
    struct softnic_frame answer = {.kind = SOFTNIC_SHARED, .operand = {head->operand[1]}};
    struct shared shared;
    uint64_t base = head->address, size = head->operand[0];
    struct softnic_mapping *m = calloc(1, sizeof(*m));
    if (!m) {
        free(m);
        softnic_link_kill(link);
        return;
    }
    memcpy(&shared, message->payload, sizeof(shared));
    for (struct softnic_mapping *old; (old = softnic_mapping_at(link, base, size));) {
        softnic_gpu_settle(ctx); /* nothing copies out of it any more */
        share_unmap(link, old);
    }
    m->base = base;
    m->size = size;
    m->gpu = shared.gpu;
    pthread_mutex_unlock(&ctx->lock);
    bool mapped = !softnic_gpu_open(ctx, 0) && share_open_mapping(link, m, &shared.handle);
    pthread_mutex_lock(&ctx->lock);
    m->next = link->mappings;
    link->mappings = m;
    if (!mapped)
        share_unmap(link, m); /* writes from there end in REM_OP_ERR */
    softnic_link_send(link, &answer, NULL, 0);
    softnic_link_flush(link);
}

void softnic_share_unmap_all(struct softnic_link *link)
{
    while (link->mappings)
        share_unmap(link, link->mappings);
}
