#include "kernels/host/cuda_heap.h"
#include "kernels/host/cuda_vmm.h"

#include "core/base/fd_pass.h"
#include "core/comm/gpus.h"

#include <cuda_runtime_api.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Says what CUDA said. */
static int cuda_heap_refuse(struct mk_comm *comm, int result, const char *what)
{
    snprintf(comm->error, sizeof comm->error, "%s: %s", what,
             cudaGetErrorString(cudaGetLastError()));
    return result;
}

struct share {
    cudaIpcMemHandle_t handle;
    struct fd_pass_name socket; /* by VMM: where this rank takes the others' descriptors */
    uint64_t mapped;            /* and the bytes of its own; 0: by cudaIpc */
    char bus[32];               /* of the GPU; empty: not known */
    int32_t result;             /* 0 or -errno of the rank's own part */
};

/* A handle shares the whole block of the driver that memory lies in, so what is shared fills whole
 * ones (CUDA programming guide, interprocess communication: allocations of a 2 MiB aligned
 * size). */
#define BLOCK_BYTES ((uint64_t)2 << 20)

static int cuda_heap_make_by_ipc(struct mk_comm *comm, struct share *mine)
{
    struct mk_heap *heap = &comm->heap;
    if (cudaMalloc(&heap->base, mk_round_up(heap->bytes, BLOCK_BYTES)) != cudaSuccess) {
        heap->base = NULL;
        return cuda_heap_refuse(comm, -ENOMEM, "no GPU memory for the symmetric heap");
    }
    if (comm->topo.gpus == 1) /* nobody maps it, and not every system shares memory (WSL2) */
        return 0;
    return cudaIpcGetMemHandle(&mine->handle, heap->base) == cudaSuccess
               ? 0
               : cuda_heap_refuse(comm, -EIO,
                                  "the symmetric heap cannot be shared with other processes (WSL2 "
                                  "cannot; a rank that is a node of its own need not: --gpus 1)");
}

static int cuda_heap_make_by_vmm(struct mk_comm *comm, struct share *mine, struct fd_pass *pass,
                                 int *fd)
{
    struct mk_heap *heap = &comm->heap;
    int device = 0;
    if (cudaGetDevice(&device) != cudaSuccess)
        return cuda_heap_refuse(comm, -EIO, "there is no current GPU");
    int result = cuda_vmm_check(device, comm->error, sizeof comm->error);
    if (!result)
        result = fd_pass_open(pass, comm->error, sizeof comm->error);
    if (!result)
        result = cuda_vmm_make(device, heap->bytes, comm->topo.nodes > 1, &heap->base,
                               &mine->mapped, fd, comm->error, sizeof comm->error);
    mine->socket = pass->name;
    return result;
}

static int cuda_heap_make_own(struct mk_comm *comm, struct share *mine, struct fd_pass *pass,
                              int *fd)
{
    struct mk_heap *heap = &comm->heap;
    uint32_t local = mk_local_of(&comm->topo, comm->topo.rank);
    int wanted = gpus_heap_wanted(comm->error, sizeof comm->error), device = 0;
    int result = wanted < 0 ? wanted
                 : wanted   ? cuda_heap_make_by_vmm(comm, mine, pass, fd)
                            : cuda_heap_make_by_ipc(comm, mine);
    heap->peers[local] = heap->base;
    heap->mapped[local] = mine->mapped;
    if (result)
        return result;
    if (cudaMemset(heap->base, 0, heap->bytes) != cudaSuccess ||
        cudaDeviceSynchronize() != cudaSuccess)
        return cuda_heap_refuse(comm, -EIO, "the symmetric heap cannot be cleared");
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetPCIBusId(mine->bus, sizeof mine->bus, device) != cudaSuccess)
        mine->bus[0] = '\0';
    return 0;
}

/* Kernels raise flags in a peer's memory by atomic additions, which only a link with native atomics
 * carries out as such. Of a GPU that this process does not see CUDA says nothing, nor of a rank on
 * the same GPU. */
static int cuda_heap_check_peer(struct mk_comm *comm, uint32_t rank, const struct share *mine,
                                const struct share *peer)
{
    int own = 0, other = 0, atomics = 1;
    if (*mine->bus && !strcmp(mine->bus, peer->bus))
        return 0;
    int wanted = gpus_peers_wanted(comm->error, sizeof comm->error);
    if (!wanted)
        snprintf(comm->error, sizeof comm->error,
                 "MKERNEL_P2P=off: this GPU (%s) and rank %u's (%s) do not reach each other's "
                 "memory: each is a node of its own, as --nodes %u --gpus 1 has it",
                 mine->bus, rank, peer->bus, mk_world(&comm->topo));
    if (wanted <= 0)
        return wanted ? wanted : -ENODEV;
    if (cudaGetDevice(&own) != cudaSuccess ||
        cudaDeviceGetByPCIBusId(&other, peer->bus) != cudaSuccess ||
        cudaDeviceGetP2PAttribute(&atomics, cudaDevP2PAttrNativeAtomicSupported, own, other) !=
            cudaSuccess) {
        cudaGetLastError(); /* it was only a question */
        return 0;
    }
    if (atomics)
        return 0;
    snprintf(comm->error, sizeof comm->error,
             "this GPU (%s) and rank %u's (%s) have no native atomics between them, as over PCIe, "
             "so neither can raise the other's flags: ranks of a node need GPUs joined by NVLink; "
             "here each is a node of its own, as --nodes %u --gpus 1 has it",
             mine->bus, rank, peer->bus, mk_world(&comm->topo));
    return -ENODEV;
}

static int cuda_heap_map_by_ipc(struct mk_comm *comm, uint32_t i, const struct share *peer)
{
    return cudaIpcOpenMemHandle(&comm->heap.peers[i], peer->handle,
                                cudaIpcMemLazyEnablePeerAccess) == cudaSuccess
               ? 0
               : cuda_heap_refuse(comm, -EIO,
                                  "a peer's heap cannot be mapped (are all GPUs of the node "
                                  "linked by NVLink? if not, each is a node of its own: --gpus 1)");
}

/* All of the node's, whose descriptors cross sockets. */
static int cuda_heap_map_by_vmm(struct mk_comm *comm, struct fd_pass *pass, int fd,
                                const struct share *node, uint32_t first)
{
    struct fd_pass_name names[MK_MAX_LOCAL];
    uint32_t gpus = comm->topo.gpus, own = comm->topo.rank - first;
    int fds[MK_MAX_LOCAL], device = 0;
    for (uint32_t i = 0; i < gpus; i++)
        names[i] = node[i].socket;
    if (cudaGetDevice(&device) != cudaSuccess)
        return cuda_heap_refuse(comm, -EIO, "there is no current GPU");
    /* half the time that others wait for what this rank says of it */
    int result = fd_pass_exchange(pass, own, gpus, names, fd, fds, first,
                                  comm->config.timeout_ns / 2, comm->error, sizeof comm->error);
    for (uint32_t i = 0; i < gpus && !result; i++)
        if (i != own) {
            result = cuda_vmm_map(device, fds[i], node[i].mapped, &comm->heap.peers[i], comm->error,
                                  sizeof comm->error);
            comm->heap.mapped[i] = result ? 0 : node[i].mapped;
        }
    for (uint32_t i = 0; i < gpus; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    return result;
}

/* Whether this rank and the node's others can map each other. 0 or -errno. */
static int cuda_heap_check(struct mk_comm *comm, const struct share *mine, const struct share *node,
                           uint32_t first)
{
    int result = 0;
    for (uint32_t i = 0; i < comm->topo.gpus && !result; i++) {
        if (first + i == comm->topo.rank)
            continue;
        if (node[i].result) {
            snprintf(comm->error, sizeof comm->error, "rank %u could not allocate its heap",
                     first + i);
            result = node[i].result;
        } else if (!node[i].mapped != !mine->mapped) {
            snprintf(comm->error, sizeof comm->error,
                     "MKERNEL_HEAP: rank %u has %s and rank %u has %s", comm->topo.rank,
                     mine->mapped ? "vmm" : "ipc", first + i, node[i].mapped ? "vmm" : "ipc");
            result = -EINVAL;
        } else {
            result = cuda_heap_check_peer(comm, first + i, mine, &node[i]);
        }
    }
    return result;
}

int cuda_heap_open(struct mk_comm *comm)
{
    uint32_t world = mk_world(&comm->topo),
             first = mk_node_of(&comm->topo, comm->topo.rank) * comm->topo.gpus;
    struct share mine, *all = calloc(world, sizeof *all);
    struct fd_pass pass = {.listens = -1};
    int fd = -1;
    if (!all)
        return -ENOMEM;
    memset(&mine, 0, sizeof mine);
    mine.result = cuda_heap_make_own(comm, &mine, &pass, &fd);
    int result = bootstrap_allgather(comm->bootstrap, &mine, all, sizeof mine);
    if (mine.result)
        result = mine.result;
    if (!result)
        result = cuda_heap_check(comm, &mine, &all[first], first);
    if (!result && mine.mapped)
        result = cuda_heap_map_by_vmm(comm, &pass, fd, &all[first], first);
    for (uint32_t i = 0; i < comm->topo.gpus && !result && !mine.mapped; i++)
        if (first + i != comm->topo.rank)
            result = cuda_heap_map_by_ipc(comm, i, &all[first + i]);
    fd_pass_close(&pass);
    if (fd >= 0)
        close(fd);
    free(all);
    /* No rank writes into a heap before all have mapped it. A rank that failed says so here, not
     * later by its absence. */
    int32_t *results = calloc(world, sizeof *results), own = result;
    if (!results)
        return -ENOMEM;
    int gathered = bootstrap_allgather(comm->bootstrap, &own, results, sizeof own);
    for (uint32_t i = 0; i < world && !gathered && !result; i++)
        if (results[i]) {
            snprintf(comm->error, sizeof comm->error, "rank %u could not map its peers' heaps", i);
            result = results[i];
        }
    free(results);
    return result ? result : gathered;
}

void cuda_heap_close(struct mk_comm *comm)
{
    struct mk_heap *heap = &comm->heap;
    uint32_t own = mk_local_of(&comm->topo, comm->topo.rank);
    for (uint32_t i = 0; i < comm->topo.gpus; i++)
        if (heap->peers[i] && i != own) {
            if (heap->mapped[i])
                cuda_vmm_unmap(heap->peers[i], heap->mapped[i]);
            else
                cudaIpcCloseMemHandle(heap->peers[i]);
        }
    /* Memory must not be freed while another process still has it mapped (CUDA runtime API,
     * cudaIpcOpenMemHandle). */
    if (heap->base && comm->topo.gpus > 1 && !comm_failed(comm))
        bootstrap_barrier(comm->bootstrap);
    if (heap->base && heap->mapped[own])
        cuda_vmm_unmap(heap->base, heap->mapped[own]);
    else if (heap->base)
        cudaFree(heap->base);
    memset(heap, 0, sizeof *heap);
}
