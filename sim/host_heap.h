/* Host memory of the executors that run on the CPU: the symmetric heap that the ranks of a node
 * share, an anonymous memory file each, which the peers open through /proc (it has no name, so
 * nothing stays behind however a process ends), and the command rings. */
#pragma once

#include "core/comm/comm.h"

/* Makes this rank's heap of comm->heap.bytes and maps the peers of its node. Every rank of the job
 * calls; they return together, all well or all in error. 0 or -errno with comm->error set. Thread:
 * the communicator's. */
int host_heap_open(struct mk_comm *comm);

/* Unmaps what is mapped, also after an error. */
void host_heap_close(struct mk_comm *comm);

/* Makes the plan's flags and its part of this rank's heap 0 again. */
void host_heap_clear(struct mk_comm *comm, const struct mk_plan *plan);

/* Command rings in this process's memory, where there are nodes to reach: comm->rings. 0 or
 * -ENOMEM; host_rings_close in either case. */
int host_rings_open(struct mk_comm *comm);
void host_rings_close(struct mk_comm *comm);
