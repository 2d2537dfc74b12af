/* The rank of this process, from the variables that torchrun, srun (Slurm) and mpirun (Open MPI,
 * MPICH, Intel MPI) leave in the environment.
 *
 * Looked for in this order, the innermost first, because one may be started by another:
 *   torchrun  RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT mpirun
 *   OMPI_COMM_WORLD_{RANK,SIZE,LOCAL_RANK,LOCAL_SIZE}, or PMI_RANK, PMI_SIZE, MPI_LOCALRANKID,
 * MPI_LOCALNRANKS srun      SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID, SLURM_NODEID,
 * SLURM_STEP_TASKS_PER_NODE, SLURM_STEP_NODELIST, SLURM_GTIDS. A step of one task (srun --pty
 * bash) is no launcher: there `mkernel run` starts the ranks.
 *
 * RANK and WORLD_SIZE without LOCAL_RANK and LOCAL_WORLD_SIZE, as on Kubernetes: one node.
 *
 * Host of rank 0: MKERNEL_HOST; else 127.0.0.1 where all ranks are on one node; else MASTER_ADDR;
 * else the first node of Slurm's list. Port: MKERNEL_PORT; else MASTER_PORT + 1 (torchrun's own
 * store listens at MASTER_PORT); else 20000 to 29999, from the job's id. Token: MKERNEL_TOKEN; else
 * made from the job's id, which keeps jobs apart but is no secret: where others share the network,
 * set MKERNEL_TOKEN. */
#pragma once

#include "core/base.h"

struct launcher {
    const char *name; /* "torchrun", "mpirun", "srun" */
    uint32_t rank, world;
    /* among the ranks of this node; the same number on every node */
    uint32_t local_rank, local_world;
    uint32_t nodes;
    char host[256]; /* of rank 0 */
    uint16_t port;
    char token[64];
    /* the environment does not say how many ranks a node has (Kubernetes' RANK and WORLD_SIZE), and
     * so all are taken for one node's */
    int assumed;
    int guessable; /* the token was made from ids: a process that knows or guesses them has it */
};

/* Reads `environment` ("NAME=VALUE" strings, ended by NULL: environ). Returns 1 and fills *out
 * under a launcher, 0 where there is none, -EINVAL with one sentence in `error` where the
 * environment is incomplete or contradicts itself. Ranks must be numbered node by node, as many on
 * each: the sentence says which option gives that. Pure: any thread, nothing kept. */
int launcher_read(struct launcher *out, const char *const *environment, char *error, size_t size);
