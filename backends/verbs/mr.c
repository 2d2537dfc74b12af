#include "backends/verbs/mr.h"
#include "core/base/sentence.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE };

/* One region by its address. Relaxed ordering is an optional access: a device or kernel that does
 * not know it ignores it, but an old library has no call to ask with. */
static struct ibv_mr *mr_by_address(const struct verbs_api *api, struct ibv_pd *pd, void *address,
                                    uint64_t bytes, int relaxed)
{
    if (relaxed && api->reg_mr_iova2)
        return api->reg_mr_iova2(pd, address, bytes, (uintptr_t)address,
                                 ACCESS | IBV_ACCESS_RELAXED_ORDERING);
    return api->reg_mr(pd, address, bytes, ACCESS);
}

static struct ibv_mr *mr_by_dmabuf(const struct verbs_api *api, struct ibv_pd *pd,
                                   const struct mr_memory_ops *owner, void *address, uint64_t bytes,
                                   int relaxed)
{
    int fd = -1;
    uint64_t offset = 0;
    int rc = api->reg_dmabuf_mr && owner->export_dmabuf
                 ? owner->export_dmabuf(address, bytes, &fd, &offset)
                 : -ENOSYS;
    if (rc) {
        errno = -rc;
        return NULL;
    }
    struct ibv_mr *mr = api->reg_dmabuf_mr(pd, offset, bytes, (uintptr_t)address, fd,
                                           ACCESS | (relaxed ? IBV_ACCESS_RELAXED_ORDERING : 0));
    int why = errno;
    close(fd); /* the registration holds the buffer */
    errno = why;
    return mr;
}

static struct ibv_mr *mr_region(const struct verbs_api *api, struct ibv_pd *pd,
                                const struct mr_heap *heap, int dmabuf, uint64_t from, uint64_t to,
                                int relaxed)
{
    char *address = (char *)heap->base + from;
    if (dmabuf)
        return mr_by_dmabuf(api, pd, mr_provider(heap->memory), address, to - from, relaxed);
    return mr_by_address(api, pd, address, to - from, relaxed);
}

static int mr_both(const struct verbs_api *api, struct ibv_pd *pd, const struct mr_heap *heap,
                   int dmabuf, int relaxed, struct mr_set *out)
{
    errno = 0;
    out->relaxed = relaxed && (dmabuf || api->reg_mr_iova2);
    out->flags = mr_region(api, pd, heap, dmabuf, 0, heap->flag_bytes, 0);
    if (out->flags && heap->bytes > heap->flag_bytes)
        out->data = mr_region(api, pd, heap, dmabuf, heap->flag_bytes, heap->bytes, relaxed);
    if (out->flags && (out->data || heap->bytes == heap->flag_bytes))
        return 0;
    int rc = errno ? -errno : -EIO;
    mr_deregister(api, out);
    return rc;
}

static void mr_explain(int rc, const struct mr_heap *heap, const char *device, char *error,
                       size_t size)
{
    struct rlimit limit;
    double mib = (double)heap->bytes / (1 << 20);
    if (heap->memory != MK_MEMORY_HOST)
        snprintf(
            error, size,
            "%s cannot register GPU memory (%s): it takes DMA-BUF support or the nvidia_peermem "
            "module",
            device, strerror(-rc));
    else if ((rc == -ENOMEM || rc == -EPERM) && !getrlimit(RLIMIT_MEMLOCK, &limit) &&
             limit.rlim_cur != RLIM_INFINITY)
        snprintf(error, size,
                 "%s cannot register %.0f MiB (%s): locked memory is limited to %.0f MiB, raise it "
                 "with `ulimit -l unlimited`",
                 device, mib, strerror(-rc), (double)limit.rlim_cur / (1 << 20));
    else
        snprintf(error, size, "%s cannot register %.0f MiB: %s", device, mib, strerror(-rc));
}

int mr_register(const struct verbs_api *api, struct ibv_pd *pd, const struct mr_heap *heap,
                int relaxed, struct mr_set *out, char *error, size_t size)
{
    memset(out, 0, sizeof *out);
    const char *device = pd->context->device->name;
    const struct mr_memory_ops *owner = mr_provider(heap->memory);
    int rc = -EOPNOTSUPP;
    if (!heap->flag_bytes || heap->flag_bytes > heap->bytes || heap->flag_bytes % 4096 ||
        (heap->memory != MK_MEMORY_HOST && heap->memory != MK_MEMORY_CUDA))
        return mk_fail(-EINVAL, error, size,
                       "the heap's layout cannot be registered (%" PRIu64 " of %" PRIu64
                       " bytes are flags)",
                       heap->flag_bytes, heap->bytes);
    if (heap->memory == MK_MEMORY_HOST) {
        out->how = "host";
        rc = mr_both(api, pd, heap, 0, relaxed, out);
    } else if (owner && owner->writes_in_order && !owner->writes_in_order()) {
        return mk_fail(-EOPNOTSUPP, error, size,
                       "this GPU does not see a NIC's writes in order, so %s must not write to it",
                       device);
    } else if (owner) {
        out->how = "DMA-BUF";
        rc = mr_both(api, pd, heap, 1, relaxed, out);
        if (rc) {
            out->how = "peer memory";
            rc = mr_both(api, pd, heap, 0, relaxed, out);
        }
    }
    if (rc)
        mr_explain(rc, heap, device, error, size);
    return rc && heap->memory != MK_MEMORY_HOST ? -EOPNOTSUPP : rc;
}

void mr_deregister(const struct verbs_api *api, struct mr_set *set)
{
    if (set->data)
        api->dereg_mr(set->data);
    if (set->flags)
        api->dereg_mr(set->flags);
    set->data = set->flags = NULL;
}
