#include "experiments/baselines/baselines.h"
#include "core/cta/cta.h"
#include "core/base/sentence.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>

/* The few declarations of nccl.h that are used; its C ABI has been stable since 2.0. */
typedef struct ncclComm *nccl_comm;
enum { NCCL_INT8 = 0, NCCL_FP16 = 6, NCCL_BF16 = 9, NCCL_SUM = 0 };

struct baseline_nccl {
    void *library;
    nccl_comm comm;
    int (*get_id)(struct baseline_nccl_id *);
    int (*init)(nccl_comm *, int, struct baseline_nccl_id, int);
    int (*allgather)(const void *, void *, size_t, int, nccl_comm, cudaStream_t);
    int (*reducescatter)(const void *, void *, size_t, int, int, nccl_comm, cudaStream_t);
    int (*allreduce)(const void *, void *, size_t, int, int, nccl_comm, cudaStream_t);
    int (*destroy)(nccl_comm);
};

int baseline_nccl_open(struct baseline_nccl **out, char *error, size_t size)
{
    struct baseline_nccl *b = calloc(1, sizeof *b);
    *out = b;
    if (!b)
        return -ENOMEM;
    setenv("NCCL_NVLS_ENABLE", "0", 0);
    b->library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!b->library)
        return mk_fail(-ENOENT, error, size, "no NCCL here: %s", dlerror());
    *(void **)&b->get_id = dlsym(b->library, "ncclGetUniqueId");
    *(void **)&b->init = dlsym(b->library, "ncclCommInitRank");
    *(void **)&b->allgather = dlsym(b->library, "ncclAllGather");
    *(void **)&b->reducescatter = dlsym(b->library, "ncclReduceScatter");
    *(void **)&b->allreduce = dlsym(b->library, "ncclAllReduce");
    *(void **)&b->destroy = dlsym(b->library, "ncclCommDestroy");
    if (!b->get_id || !b->init || !b->allgather || !b->reducescatter || !b->allreduce ||
        !b->destroy)
        return mk_fail(-EIO, error, size, "this NCCL lacks what the baseline calls");
    return 0;
}

int baseline_nccl_make_id(struct baseline_nccl *b, struct baseline_nccl_id *id)
{
    return b->get_id(id) ? -EIO : 0;
}

int baseline_nccl_join(struct baseline_nccl *b, const struct baseline_nccl_id *id, int rank,
                       int world)
{
    return b->init(&b->comm, world, *id, rank) ? -EIO : 0;
}

int baseline_nccl_allgather(struct baseline_nccl *b, const void *mine, void *all, size_t bytes,
                            cudaStream_t stream)
{
    return b->allgather(mine, all, bytes, NCCL_INT8, b->comm, stream) ? -EIO : 0;
}

static int nccl_type(uint32_t element)
{
    return element == MK_FP16 ? NCCL_FP16 : NCCL_BF16;
}

int baseline_nccl_reducescatter(struct baseline_nccl *b, uint32_t element, const void *all,
                                void *mine, size_t count, cudaStream_t stream)
{
    return b->reducescatter(all, mine, count, nccl_type(element), NCCL_SUM, b->comm, stream) ? -EIO
                                                                                             : 0;
}

int baseline_nccl_allreduce(struct baseline_nccl *b, uint32_t element, const void *in, void *out,
                            size_t count, cudaStream_t stream)
{
    return b->allreduce(in, out, count, nccl_type(element), NCCL_SUM, b->comm, stream) ? -EIO : 0;
}

void baseline_nccl_close(struct baseline_nccl *b)
{
    if (!b)
        return;
    if (b->comm)
        b->destroy(b->comm);
    if (b->library)
        dlclose(b->library);
    free(b);
}
