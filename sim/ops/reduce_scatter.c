/* ReduceScatter on the host: core/roles/reduce_scatter.h compiled by gcc, behind struct sim_op. */
#include "core/cta/cta.h"
#include "core/cta/cta_combine.h"
#include "core/cta/half.h"
#include "core/roles/reduce_scatter.h"
#include "sim/fill.h"
#include "sim/op.h"

#include <stdlib.h>

/* A of a rank. Half of it are 2^20 or -2^20, of fp16 2^12 or -2^12 beside numbers below 2^-13, to
 * which fp32 adds no small number without a loss: so each order of addition has bits of its own. */
static void reduce_scatter_make(const struct mk_problem *q, uint64_t seed, uint32_t rank,
                                uint64_t launch, uint16_t *a)
{
    sim_fill(a, q->m * q->k, seed, rank, launch, 0);
    for (uint64_t i = 0; i < q->m * q->k; i++)
        a[i] = a[i] & 1  ? (a[i] & 0x8000) | (q->fp16 ? 0x6c00 : 0x4980)
               : q->fp16 ? (a[i] & 0x81ff) | 0x0600
                         : a[i];
}

static void reduce_scatter_fill(const struct sim_launch *l)
{
    const struct mk_problem *q = &l->plan->problem;
    reduce_scatter_make(q, l->seed, q->topo.rank, l->launch, l->arguments[0]);
}

/* The whole sum in fp32, [M, K]: the ranks of a node in order, then the nodes in order. */
static int reduce_scatter_refer(const struct mk_problem *q, const struct sim_launch *l,
                                struct sim_reference *r)
{
    const uint64_t count = q->m * q->k;
    uint16_t *a = malloc(count * sizeof *a);
    float *node = malloc(count * sizeof *node), *all = r->memory;
    if (!all)
        all = r->memory = malloc(count * sizeof *all);
    int result = a && node && all ? 0 : 1;
    for (uint32_t rank = 0; !result && rank < mk_world(&q->topo); rank++) {
        uint32_t local = mk_local_of(&q->topo, rank);
        reduce_scatter_make(q, l->seed, rank, l->launch, a);
        for (uint64_t i = 0; i < count; i++) {
            node[i] = (local ? node[i] : 0) + mk_half_to_float(plan_element(q), a[i]);
            if (local == q->topo.gpus - 1)
                all[i] = (rank < q->topo.gpus ? 0 : all[i]) + node[i];
        }
    }
    r->launch = result ? 0 : l->launch;
    free(a);
    free(node);
    return result;
}

static int reduce_scatter_verify(const struct sim_launch *l)
{
    const struct mk_problem *q = &l->plan->problem;
    const uint16_t *c = l->arguments[1];
    uint64_t count = q->m / mk_world(&q->topo) * q->k;
    if (l->reference->launch != l->launch && reduce_scatter_refer(q, l, l->reference))
        return sim_no_memory(l);
    const float *sum = (const float *)l->reference->memory + q->topo.rank * count;
    for (uint64_t i = 0; i < count; i++)
        if (c[i] != mk_half_from_float(plan_element(q), sum[i]))
            return sim_wrong(l, "C[%lu, %lu] is %g; the sum is %g", i / q->k, i % q->k,
                             (double)mk_half_to_float(plan_element(q), c[i]), (double)sum[i]);
    return 0;
}

SIM_OP(reduce_scatter, .fill = reduce_scatter_fill, .verify = reduce_scatter_verify);
