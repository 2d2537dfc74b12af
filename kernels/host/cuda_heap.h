/* The symmetric heap in GPU memory: one allocation per rank, mapped by the ranks of the node
 * through cudaIpc, or, as MKERNEL_HEAP says, by the driver's virtual memory management
 * (cuda_vmm.h). */
#pragma once

#include "core/comm/comm.h"

/* Allocates comm->heap.bytes, zeroes and maps. Collective. 0, -ENOMEM, -EINVAL
 * (MKERNEL_HEAP is neither, or the ranks do not agree), -ENODEV (a peer without native atomics, a
 * device without what MKERNEL_HEAP asks), -EIO (a peer's memory cannot be mapped); comm->error says
 * it. */
int cuda_heap_open(struct mk_comm *comm);

/* Unmaps and frees; allowed at any point of opening. Where nothing has failed it waits, as long as
 * the timeout says, until all ranks have unmapped. */
void cuda_heap_close(struct mk_comm *comm);
