#include "sim/host_heap.h"
#include "core/base/sentence.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* How a peer finds a rank's memory file, and that it is the right one. */
struct where {
    int64_t pid;
    int64_t fd;
    uint64_t inode;
    uint64_t bytes;
    int64_t result; /* 0 or -errno of the rank's own part */
};

/* The file keeps its size: where a file shrinks under its mapping, the next access is a SIGBUS.
 * Only a memfd can have these. */
#define HEAP_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

static int host_heap_make_own(struct mk_comm *comm, struct where *mine)
{
    struct mk_heap *heap = &comm->heap;
    mine->pid = getpid();
    mine->bytes = heap->bytes;
    mine->fd = memfd_create("mkernel heap", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    struct stat st;
    if (mine->fd < 0 || ftruncate((int)mine->fd, (off_t)heap->bytes) ||
        fcntl((int)mine->fd, F_ADD_SEALS, HEAP_SEALS) || fstat((int)mine->fd, &st))
        return -errno;
    mine->inode = st.st_ino;
    void *base = mmap(NULL, heap->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, (int)mine->fd, 0);
    if (base == MAP_FAILED)
        return -errno;
    heap->base = heap->peers[mk_local_of(&comm->topo, comm->topo.rank)] = base;
    return 0;
}

/* The token keeps jobs apart; where it can be guessed, what a rank says of itself is a stranger's
 * word. So nothing is opened, which could do more than open it, before it is known to be a file of
 * this user, and nothing is mapped but a heap. 0 or -errno. */
static int host_heap_check_peer(const struct where *peer, const struct stat *st)
{
    if (st->st_ino != peer->inode || (uint64_t)st->st_size != peer->bytes)
        return -ENXIO; /* another process has that number here */
    return S_ISREG(st->st_mode) && st->st_uid == geteuid() ? 0 : -EPERM;
}

static int host_heap_map_peer(struct mk_comm *comm, uint32_t rank, const struct where *peer)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%ld/fd/%ld", peer->pid, peer->fd);
    int place = open(path, O_PATH | O_CLOEXEC), fd = -1;
    if (place < 0)
        return -errno;
    struct stat st;
    void *base = MAP_FAILED;
    int result = fstat(place, &st) ? -errno : host_heap_check_peer(peer, &st);
    snprintf(path, sizeof path, "/proc/self/fd/%d", place);
    if (!result && (fd = open(path, O_RDWR | O_CLOEXEC)) < 0)
        result = -errno;
    close(place);
    int seals = fd < 0 ? 0 : fcntl(fd, F_GET_SEALS);
    if (!result && (seals < 0 || (seals & HEAP_SEALS) != HEAP_SEALS))
        result = -EPERM;
    if (!result &&
        (base = mmap(NULL, peer->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) == MAP_FAILED)
        result = -errno;
    if (fd >= 0)
        close(fd);
    if (!result)
        comm->heap.peers[mk_local_of(&comm->topo, rank)] = base;
    return result;
}

static int host_heap_map_peers(struct mk_comm *comm, const struct where *all)
{
    uint32_t node = mk_node_of(&comm->topo, comm->topo.rank);
    for (uint32_t local = 0; local < comm->topo.gpus; local++) {
        uint32_t rank = mk_rank_at(&comm->topo, node, local);
        if (rank == comm->topo.rank)
            continue;
        if (all[rank].bytes != comm->heap.bytes)
            return mk_fail(-EINVAL, comm->error, sizeof comm->error,
                           "rank %u has a heap of %lu bytes, rank %u one of %lu", rank,
                           all[rank].bytes, comm->topo.rank, comm->heap.bytes);
        int result = host_heap_map_peer(comm, rank, &all[rank]);
        if (result) {
            int ours = result == -ENOMEM || result == -EMFILE || result == -ENFILE;
            return mk_fail(
                result, comm->error, sizeof comm->error,
                "rank %u can't map the heap of rank %u (process %ld): %s%s", comm->topo.rank, rank,
                all[rank].pid, strerror(-result),
                ours ? ""
                     : "; ranks of one node must share a host, a user and a process namespace");
        }
    }
    return 0;
}

/* All ranks learn whether all of them managed; the sentence of the first that did not becomes that
 * of all. */
static int host_heap_agree(struct mk_comm *comm, int result, const char *doing)
{
    uint32_t world = mk_world(&comm->topo);
    struct verdict {
        int64_t result;
        char sentence[256];
    } mine = {.result = result}, *all = calloc(world, sizeof *all);
    if (!all)
        return -ENOMEM;
    if (result)
        snprintf(mine.sentence, sizeof mine.sentence, "%.255s", comm->error);
    int sent = bootstrap_allgather(comm->bootstrap, &mine, all, sizeof mine);
    if (sent) {
        result = sent;
        snprintf(comm->error, sizeof comm->error, "%s: lost the other ranks: %s", doing,
                 strerror(-sent));
    }
    for (uint32_t rank = 0; !sent && rank < world; rank++)
        if (all[rank].result) {
            result = (int)all[rank].result;
            snprintf(comm->error, sizeof comm->error, "%.255s", all[rank].sentence);
            break;
        }
    free(all);
    return result;
}

int host_heap_open(struct mk_comm *comm)
{
    uint32_t world = mk_world(&comm->topo);
    struct where mine = {.fd = -1}, *all = calloc(world, sizeof *all);
    if (!all)
        return mk_fail(-ENOMEM, comm->error, sizeof comm->error, "no memory for %u ranks", world);
    int result = host_heap_make_own(comm, &mine);
    if (result)
        snprintf(comm->error, sizeof comm->error, "rank %u can't make a heap of %lu bytes: %s",
                 comm->topo.rank, comm->heap.bytes, strerror(-result));
    result = host_heap_agree(comm, result, "making the heap");
    if (result)
        goto out;
    result = bootstrap_allgather(comm->bootstrap, &mine, all, sizeof mine);
    if (result) {
        snprintf(comm->error, sizeof comm->error, "making the heap: lost the other ranks: %s",
                 strerror(-result));
        goto out;
    }
    result = host_heap_map_peers(comm, all);
    /* from here on no rank needs the files open */
    result = host_heap_agree(comm, result, "mapping the heaps");
out:
    if (mine.fd >= 0)
        close((int)mine.fd);
    if (result)
        host_heap_close(comm);
    free(all);
    return result;
}

void host_heap_close(struct mk_comm *comm)
{
    for (uint32_t local = 0; local < MK_MAX_LOCAL; local++) {
        if (comm->heap.peers[local])
            munmap(comm->heap.peers[local], comm->heap.bytes);
        comm->heap.peers[local] = NULL;
    }
    comm->heap.base = NULL;
}

#define RING_CAPACITY 1024

void host_heap_clear(struct mk_comm *comm, const struct mk_plan *plan)
{
    char *heap = comm->heap.base;
    memset(heap + plan->flag_base * 8ull, 0, plan->flags * 8ull);
    memset(heap + plan->heap_base, 0, plan->heap_bytes);
}

int host_rings_open(struct mk_comm *comm)
{
    if (comm->topo.nodes == 1)
        return 0;
    for (uint32_t i = 0; i < MK_MAX_RINGS; i++) {
        size_t bytes = mk_round_up(mk_ring_bytes(RING_CAPACITY), MK_CACHE_LINE);
        comm->rings[i] = aligned_alloc(MK_CACHE_LINE, bytes);
        if (!comm->rings[i])
            return -ENOMEM;
        memset(comm->rings[i], 0, bytes);
        comm->rings[i]->capacity = RING_CAPACITY;
        comm->ring_count = i + 1;
    }
    return 0;
}

void host_rings_close(struct mk_comm *comm)
{
    for (uint32_t i = 0; i < comm->ring_count; i++)
        free(comm->rings[i]);
    comm->ring_count = 0;
}
