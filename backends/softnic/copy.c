/* Every byte that enters or leaves registered memory passes here. */
#include "nic.h"

#include <errno.h>
#include <string.h>
#include <sys/uio.h>

/* The last aligned word is stored with release: a thread that polls it (a flag, or the end of a
 * message) sees all bytes before it. */
void softnic_copy_in(void *to, const void *from, size_t length)
{
    size_t word = length >= 8 && !(((uintptr_t)to + length) & 7)   ? 8
                  : length >= 4 && !(((uintptr_t)to + length) & 3) ? 4
                                                                   : 1;
    if (!length)
        return;
    size_t body = length - word;
    char *last = (char *)to + body;
    if (body)
        memcpy(to, from, body);
    if (word == 8) {
        uint64_t value;
        memcpy(&value, (const char *)from + body, 8);
        __atomic_store_n((uint64_t *)(void *)last, value, __ATOMIC_RELEASE);
    } else if (word == 4) {
        uint32_t value;
        memcpy(&value, (const char *)from + body, 4);
        __atomic_store_n((uint32_t *)(void *)last, value, __ATOMIC_RELEASE);
    } else {
        __atomic_store_n(last, ((const char *)from)[body], __ATOMIC_RELEASE);
    }
}

static size_t copy_advance(struct iovec **vector, size_t *count, size_t bytes)
{
    while (*count && bytes >= (*vector)->iov_len) {
        bytes -= (*vector)->iov_len;
        (*vector)++;
        (*count)--;
    }
    if (*count) {
        (*vector)->iov_base = (char *)(*vector)->iov_base + bytes;
        (*vector)->iov_len -= bytes;
    }
    return *count;
}

/* Copies `length` bytes out of the peer process. Called without context->lock: it may take long.
 * Returns 0, -EFAULT (an address on either side is not mapped), or another -errno (the peer is
 * gone). */
int softnic_pull(struct softnic_link *link, const struct iovec *to, int to_count,
                 const struct softnic_segment *from, int from_count, uint64_t length)
{
    struct iovec local[SOFTNIC_MAX_SEGMENTS], remote[SOFTNIC_MAX_SEGMENTS];
    struct iovec *l = local, *r = remote;
    size_t l_count = (size_t)to_count, r_count = (size_t)from_count;
    memcpy(local, to, l_count * sizeof(*to));
    for (int i = 0; i < from_count; i++)
        remote[i] = (struct iovec){(void *)(uintptr_t)from[i].address, from[i].length};
    while (length) {
        ssize_t n = process_vm_readv(link->peer_pid, l, l_count, r, r_count, 0);
        if (n < 0)
            return -errno;
        if (!n)
            return -EFAULT;
        length -= (uint64_t)n;
        copy_advance(&l, &l_count, (size_t)n);
        copy_advance(&r, &r_count, (size_t)n);
    }
    return 0;
}

struct softnic_mapping *softnic_mapping_at(struct softnic_link *link, uint64_t base, uint64_t size)
{
    for (struct softnic_mapping *m = link->mappings; m; m = m->next)
        if (base < m->base + m->size && m->base < base + size)
            return m;
    return NULL;
}

uint64_t softnic_mapped_address(struct softnic_link *link, uint64_t address, uint64_t length,
                                struct softnic_cuda_uuid *gpu)
{
    struct softnic_mapping *m = softnic_mapping_at(link, address, 1);
    if (!m || length > m->size || address - m->base > m->size - length)
        return 0;
    if (gpu)
        *gpu = m->gpu;
    return m->local + (address - m->base);
}

/* Pulls with context->lock let go, the QP and the regions pinned. Returns 0, -EFAULT, or another
 * error after which nothing about this request is to be done any more: the QP has gone on, or the
 * link is dead. */
int softnic_pull_pinned(struct softnic_link *link, struct softnic_qp *qp, const struct iovec *to,
                        struct softnic_mr **mr, int count, const struct softnic_segment *from,
                        int from_count, uint64_t length)
{
    struct softnic_context *ctx = link->context;
    unsigned generation = qp->generation;
    qp->busy++;
    for (int i = 0; i < count; i++)
        mr[i]->busy++;
    pthread_mutex_unlock(&ctx->lock);
    int error = softnic_pull(link, to, count, from, from_count, length);
    pthread_mutex_lock(&ctx->lock);
    for (int i = 0; i < count; i++)
        mr[i]->busy--;
    qp->busy--;
    pthread_cond_broadcast(&ctx->idle);
    if (qp->generation != generation)
        return -ECANCELED;
    if (error && error != -EFAULT)
        softnic_link_kill(link);
    return error;
}
