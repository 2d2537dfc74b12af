/* What the tests over the deterministic executor share. */
#pragma once

#include "core/mkernel.h"
#include "sim/world.h"

#include <string.h>

static inline struct sim_world_config world_config(uint32_t nodes, uint32_t gpus, uint64_t m,
                                                   uint64_t n, uint64_t k)
{
    struct sim_world_config c;
    memset(&c, 0, sizeof c);
    c.problem.op = MK_OP_AG_GEMM;
    c.problem.exec = MK_EXEC_HOST;
    c.problem.topo = (struct mk_topo){.nodes = nodes, .gpus = gpus};
    c.problem.m = m;
    c.problem.n = n;
    c.problem.k = k;
    c.launches = 4; /* the third is the first that overwrites a buffer */
    return c;
}
