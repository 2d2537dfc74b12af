#include "kernels/cuda_heap.h"

#include "core/gpus.h"

#include <cuda_runtime_api.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Says what CUDA said. */
static int cuda_heap_refuse(struct mk_comm *comm, int result, const char *what)
{
    snprintf(comm->error, sizeof comm->error, "%s: %s", what,
             cudaGetErrorString(cudaGetLastError()));
    return result;
}

struct share {
    cudaIpcMemHandle_t handle;
    char bus[32];   /* of the GPU; empty: not known */
    int32_t result; /* 0 or -errno of the rank's own part */
};

/* A handle shares the whole block of the driver that memory lies in, so what is shared fills whole
 * ones (CUDA programming guide, interprocess communication: allocations of a 2 MiB aligned
 * size). */
#define BLOCK_BYTES ((uint64_t)2 << 20)

static int cuda_heap_make_own(struct mk_comm *comm, struct share *mine)
{
    struct mk_heap *heap = &comm->heap;
    void *base = NULL;
    if (cudaMalloc(&base, mk_round_up(heap->bytes, BLOCK_BYTES)) != cudaSuccess)
        return cuda_heap_refuse(comm, -ENOMEM, "no GPU memory for the symmetric heap");
    heap->base = heap->peers[mk_local_of(&comm->topo, comm->topo.rank)] = base;
    if (cudaMemset(base, 0, heap->bytes) != cudaSuccess || cudaDeviceSynchronize() != cudaSuccess ||
        cudaIpcGetMemHandle(&mine->handle, base) != cudaSuccess)
        return cuda_heap_refuse(comm, -EIO, "the symmetric heap cannot be shared");
    int device = 0;
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
    if (!strcmp(mine->bus, peer->bus))
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

int cuda_heap_open(struct mk_comm *comm)
{
    uint32_t world = mk_world(&comm->topo),
             first = mk_node_of(&comm->topo, comm->topo.rank) * comm->topo.gpus;
    struct share mine, *all = calloc(world, sizeof *all);
    if (!all)
        return -ENOMEM;
    memset(&mine, 0, sizeof mine);
    mine.result = cuda_heap_make_own(comm, &mine);
    int result = bootstrap_allgather(comm->bootstrap, &mine, all, sizeof mine);
    if (mine.result)
        result = mine.result;
    for (uint32_t i = 0; i < comm->topo.gpus && !result; i++) {
        if (first + i == comm->topo.rank)
            continue;
        if (all[first + i].result) {
            snprintf(comm->error, sizeof comm->error, "rank %u could not allocate its heap",
                     first + i);
            result = all[first + i].result;
        } else if ((result = cuda_heap_check_peer(comm, first + i, &mine, &all[first + i]))) {
            break;
        } else if (cudaIpcOpenMemHandle(&comm->heap.peers[i], all[first + i].handle,
                                        cudaIpcMemLazyEnablePeerAccess) != cudaSuccess) {
            result = cuda_heap_refuse(
                comm, -EIO,
                "a peer's heap cannot be mapped (are all GPUs of the node linked by NVLink? if "
                "not, each is a node of its own: --gpus 1)");
        }
    }
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
    uint32_t own = mk_local_of(&comm->topo, comm->topo.rank);
    for (uint32_t i = 0; i < comm->topo.gpus; i++)
        if (comm->heap.peers[i] && i != own)
            cudaIpcCloseMemHandle(comm->heap.peers[i]);
    /* Memory must not be freed while another process still has it mapped (CUDA runtime API,
     * cudaIpcOpenMemHandle). */
    if (comm->heap.base && comm->topo.gpus > 1 && !comm_failed(comm))
        bootstrap_barrier(comm->bootstrap);
    if (comm->heap.base)
        cudaFree(comm->heap.base);
    memset(&comm->heap, 0, sizeof comm->heap);
}
