/* What the tests over the deterministic executor share. */
#pragma once

#include "core/mkernel.h"
#include "core/ops/op.h"
#include "sim/world.h"

#include "tests/helpers/test.h"

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

static inline void world_say(const struct sim_world_config *c, int rc, const char *sentence)
{
    const struct mk_tuning *t = &c->problem.tuning;
    uint64_t numbers[OP_DIMENSIONS];
    const uint32_t count = op_numbers(&c->problem, numbers);
    print_error("%s, %u x %u ranks, engine %d, ", plan_op_name(c->problem.op),
                c->problem.topo.nodes, c->problem.topo.gpus, (int)c->problem.engine);
    for (uint32_t i = 0; i < count; i++)
        print_error("%s%llu", i ? "," : "", (unsigned long long)numbers[i]);
    print_error(", tiles %ux%u, chunks of %u, %u shots, fault %d, seed %llu: %d, %s\n", t->tile_m,
                t->tile_n, t->chunk_rows, t->shots, (int)c->fault.kind, (unsigned long long)c->seed,
                rc, sentence);
}

/* The order is right. */
static inline void world_right(const struct sim_world_config *c)
{
    struct sim_world_result result;
    int rc = sim_world_run(c, &result);
    if (rc)
        world_say(c, rc, result.sentence);
    assert_int_equal(rc, 0);
}

/* The case's fault ends it with a sentence that says what was promised of that fault. */
static inline void world_ends_as_promised(const struct sim_world_config *c)
{
    struct sim_world_result result;
    int rc = sim_world_run(c, &result);
    if (rc != -EIO || sim_world_promised(c, rc, &result))
        world_say(c, rc, result.sentence);
    assert_int_equal(rc, -EIO);
    assert_int_equal(sim_world_promised(c, rc, &result), 0);
}

static inline void world_tile(struct sim_world_config *c, uint32_t rows, uint32_t columns,
                              uint32_t cluster)
{
    c->problem.tuning.tile_m = rows;
    c->problem.tuning.tile_n = columns;
    c->problem.tuning.cluster = cluster;
}
