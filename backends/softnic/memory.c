/* Protection domains and memory regions. A key is table index << 8 | ctx->mr_tag; an rkey's tag is
 * odd and an lkey's even, so that one used for the other is caught, and a key of a region that is
 * gone does not open the slot's next tenant. */
#include "gpu.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
    struct softnic_context *ctx = softnic_context_of(context);
    struct softnic_pd *pd = calloc(1, sizeof(*pd));
    if (!pd)
        return NULL;
    pd->ibv.context = context;
    pthread_mutex_lock(&ctx->lock);
    pd->ibv.handle = ctx->pd_next++;
    pthread_mutex_unlock(&ctx->lock);
    return &pd->ibv;
}

int ibv_dealloc_pd(struct ibv_pd *ibv)
{
    struct softnic_context *ctx = softnic_context_of(ibv->context);
    struct softnic_pd *pd = (struct softnic_pd *)ibv;
    pthread_mutex_lock(&ctx->lock);
    bool used = pd->users;
    pthread_mutex_unlock(&ctx->lock);
    if (used)
        return EBUSY;
    free(pd);
    return 0;
}

/* A device pins pages when it registers them, and so refuses an address that is not mapped. */
static bool memory_mapped(void *address, size_t length)
{
    enum { PAGES = 4096 };
    unsigned char residency[PAGES];
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t from = (uintptr_t)address & ~(page - 1), end = (uintptr_t)address + length;
    while (from < end) {
        uintptr_t chunk = end - from < PAGES * page ? end - from : PAGES * page;
        if (mincore((void *)from, chunk, residency))
            return false;
        from += chunk;
    }
    return true;
}

static int memory_access_error(unsigned access)
{
    const unsigned known = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                           IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND |
                           IBV_ACCESS_HUGETLB | IBV_ACCESS_OPTIONAL_RANGE;
    if (access & ~known)
        return EOPNOTSUPP; /* on demand, zero based */
    if ((access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) &&
        !(access & IBV_ACCESS_LOCAL_WRITE))
        return EINVAL;
    return 0;
}

/* Finds a free slot, growing the table; -1 when there is none. */
static int64_t memory_free_slot(struct softnic_context *ctx)
{
    for (uint32_t tried = 0; tried < ctx->mr_size; tried++) {
        uint32_t index = (ctx->mr_next + tried) % ctx->mr_size;
        if (!ctx->mr[index])
            return index;
    }
    uint32_t size = ctx->mr_size ? ctx->mr_size * 2 : 64;
    struct softnic_mr **table =
        size <= SOFTNIC_MAX_MR ? realloc(ctx->mr, size * sizeof(*table)) : NULL;
    if (!table)
        return -1;
    memset(table + ctx->mr_size, 0, (size - ctx->mr_size) * sizeof(*table));
    uint32_t index = ctx->mr_size;
    ctx->mr = table;
    ctx->mr_size = size;
    return index;
}

static void memory_give_back(struct softnic_context *ctx, struct softnic_share *share)
{
    pthread_mutex_lock(&ctx->lock);
    softnic_share_drop(ctx, share);
    pthread_mutex_unlock(&ctx->lock);
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *address, size_t length, uint64_t iova,
                                unsigned access)
{
    struct softnic_context *ctx = softnic_context_of(pd->context);
    int error = memory_access_error(access);
    if (!error &&
        (!length || (uintptr_t)address + length < (uintptr_t)address || iova + length < iova))
        error = EINVAL;
    struct softnic_share *share = NULL;
    int gpu = error ? 0 : softnic_share_make(ctx, address, length, access, &share);
    if (gpu < 0)
        error = -gpu;
    if (!error && !gpu && !memory_mapped(address, length))
        error = EFAULT;
    struct softnic_mr *mr = error ? NULL : calloc(1, sizeof(*mr));
    if (!mr) {
        memory_give_back(ctx, share);
        return softnic_none(error ? error : ENOMEM);
    }
    mr->gpu = gpu;
    mr->share = share;
    mr->ibv.context = pd->context;
    mr->ibv.pd = pd;
    mr->ibv.addr = address;
    mr->ibv.length = length;
    mr->iova = iova;
    mr->access = access;

    pthread_mutex_lock(&ctx->lock);
    int64_t slot = memory_free_slot(ctx);
    if (slot >= 0) {
        /* The search goes on behind the slot, so a slot rests as long as possible before its keys
         * come again. */
        ctx->mr_tag = (uint8_t)(ctx->mr_tag + 2);
        ctx->mr_next = (uint32_t)slot + 1;
        ctx->mr[slot] = mr;
        mr->ibv.handle = (uint32_t)slot;
        mr->ibv.lkey = (uint32_t)(slot + 1) << 8 | ctx->mr_tag;
        mr->ibv.rkey = mr->ibv.lkey | 1;
        ((struct softnic_pd *)pd)->users++;
    }
    pthread_mutex_unlock(&ctx->lock);
    if (slot < 0) {
        memory_give_back(ctx, share);
        free(mr);
        return softnic_none(ENOMEM);
    }
    return &mr->ibv;
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *address, size_t length, int access)
{
    return ibv_reg_mr_iova2(pd, address, length, (uintptr_t)address, (unsigned)access);
}

struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *address, size_t length, uint64_t iova,
                               int access)
{
    return ibv_reg_mr_iova2(pd, address, length, iova, (unsigned)access);
}

int ibv_dereg_mr(struct ibv_mr *ibv)
{
    struct softnic_context *ctx = softnic_context_of(ibv->context);
    struct softnic_mr *mr = (struct softnic_mr *)ibv;
    pthread_mutex_lock(&ctx->lock);
    ctx->mr[ibv->handle] = NULL;
    while (mr->busy) /* bounded by the copies that the progress thread has started */
        pthread_cond_wait(&ctx->idle, &ctx->lock);
    softnic_share_drop(ctx, mr->share);
    ((struct softnic_pd *)ibv->pd)->users--;
    pthread_mutex_unlock(&ctx->lock);
    free(mr);
    return 0;
}

struct softnic_mr *softnic_mr_find(struct softnic_qp *qp, uint32_t key, bool remote,
                                   unsigned access, uint64_t address, uint64_t length)
{
    struct softnic_context *ctx = softnic_qp_context(qp);
    uint32_t slot = (key >> 8) - 1;
    struct softnic_mr *mr = slot < ctx->mr_size ? ctx->mr[slot] : NULL;
    if (!mr || key != (remote ? mr->ibv.rkey : mr->ibv.lkey) || mr->ibv.pd != qp->ibv.pd ||
        (mr->access & access) != access)
        return NULL;
    if (address < mr->iova || length > mr->ibv.length ||
        address - mr->iova > mr->ibv.length - length)
        return NULL;
    return mr;
}

/* Bytes [offset, offset + length) of a scatter/gather list as addresses in this process. Returns
 * their number, or -EACCES when a key does not permit it. `pinned` (may be NULL) receives the
 * regions, in the same order. */
int softnic_sge_slice(struct softnic_qp *qp, const struct ibv_sge *sge, int count, unsigned access,
                      uint64_t offset, uint64_t length, struct iovec *out,
                      struct softnic_mr **pinned)
{
    int used = 0;
    for (int i = 0; i < count && length; i++) {
        if (offset >= sge[i].length) {
            offset -= sge[i].length;
            continue;
        }
        uint64_t bytes = sge[i].length - offset < length ? sge[i].length - offset : length;
        struct softnic_mr *mr =
            softnic_mr_find(qp, sge[i].lkey, false, access, sge[i].addr + offset, bytes);
        if (!mr)
            return -EACCES;
        out[used] = (struct iovec){softnic_mr_address(mr, sge[i].addr + offset), bytes};
        if (pinned)
            pinned[used] = mr;
        used++;
        offset = 0;
        length -= bytes;
    }
    return length ? -EACCES : used;
}

int softnic_wqe_slice(struct softnic_qp *qp, const struct softnic_wqe *wqe, unsigned access,
                      uint64_t offset, uint64_t length, struct iovec *out,
                      struct softnic_mr **pinned)
{
    return wqe->is_inline
               ? 0
               : softnic_sge_slice(qp, wqe->sge, wqe->num_sge, access, offset, length, out, pinned);
}

bool softnic_regions_in_gpu(struct softnic_mr *const *mr, int count)
{
    bool gpu = false;
    for (int i = 0; i < count; i++)
        gpu |= mr[i]->gpu;
    return gpu;
}

bool softnic_wqe_in_gpu(struct softnic_qp *qp, const struct softnic_wqe *wqe, unsigned access)
{
    struct iovec at[SOFTNIC_MAX_SGE];
    struct softnic_mr *mr[SOFTNIC_MAX_SGE];
    return softnic_regions_in_gpu(mr, softnic_wqe_slice(qp, wqe, access, 0, wqe->length, at, mr));
}
