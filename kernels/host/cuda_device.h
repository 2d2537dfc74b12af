/* The GPU that a rank computes on, and which other ranks of the job share it. */
#pragma once

#include "core/comm/comm.h"

struct cuda_device {
    int number;            /* as CUDA counts them in this process */
    int major, minor;      /* compute capability */
    uint32_t sms;          /* of those that the ranks' GPUs have, the fewest */
    uint32_t block_shared; /* bytes of shared memory that a block may have, the fewest likewise */
    uint32_t share; /* of those, that a plan may have on every rank; 0: all (core/comm/gpus.h) */
    uint32_t turns; /* most ranks that take turns on one GPU; 1: none do */
    int watched;    /* a GPU of the job has a display, whose driver ends long launches */
};

/* Picks and sets this rank's GPU: that of comm->config.device, else the i-th rank of a host takes GPU
 * i modulo its GPUs. Collective
 * (uses the bootstrap). 0, -ENODEV (no GPU, no driver, or one that has no engine), or the
 * bootstrap's error; comm->error says it. */
int cuda_device_choose(struct mk_comm *comm, struct cuda_device *out);
