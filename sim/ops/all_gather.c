/* AllGather on the host: core/roles/all_gather.h compiled by gcc, behind struct sim_op.
 * SIM_OP_NAME lets a test compile the same file over a broken copy of the CTA interface. */
#include "core/cta.h"
#ifdef SIM_OP_BROKEN_CTA
#include SIM_OP_BROKEN_CTA
#endif
#include "core/roles/all_gather.h"
#include "sim/op.h"
#include "sim/fingerprint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef SIM_OP_NAME
#define SIM_OP_NAME sim_op_all_gather
#endif

static int intra_comm(const struct mk_plan *plan, struct mk_cta *cta)
{
    return all_gather_intra_comm(all_gather_plan_of(plan), cta);
}

static int inter_send(const struct mk_plan *plan, struct mk_cta *cta)
{
    return all_gather_inter_send(all_gather_plan_of(plan), cta);
}

static int inter_reduce(const struct mk_plan *plan, struct mk_cta *cta)
{
    return all_gather_inter_reduce(all_gather_plan_of(plan), cta);
}

static void all_gather_fill(const struct mk_plan *plan, uint64_t seed, uint64_t launch,
                            void *const arguments[MK_SPACES - 1])
{
    const struct mk_problem *q = &plan->problem;
    fingerprint_fill(arguments[0], q->m / mk_world(&q->topo) * q->k, seed, q->topo.rank, launch, 0);
}

/* C against every rank's A, made anew, row by row. */
static int all_gather_verify(const struct mk_plan *plan, uint64_t seed, uint64_t launch,
                             void *const arguments[MK_SPACES - 1], struct sim_reference *reference,
                             char *text, size_t size)
{
    const struct mk_problem *q = &plan->problem;
    uint64_t rows = q->m / mk_world(&q->topo), wrong = q->m;
    uint16_t *shard = malloc(rows * q->k * 2);
    for (uint64_t row = 0; shard && row < q->m && wrong == q->m; row++) {
        if (row % rows == 0)
            fingerprint_fill(shard, rows * q->k, seed, (uint32_t)(row / rows), launch, 0);
        if (memcmp((const uint16_t *)arguments[1] + row * q->k, shard + row % rows * q->k,
                   q->k * 2))
            wrong = row;
    }
    if (!shard)
        snprintf(text, size, "no memory to check launch %llu", (unsigned long long)launch);
    else if (wrong < q->m)
        snprintf(text, size, "launch %llu, rank %u: row %llu of C is not row %llu of rank %llu's A",
                 (unsigned long long)launch, q->topo.rank, (unsigned long long)wrong,
                 (unsigned long long)(wrong % rows), (unsigned long long)(wrong / rows));
    free(shard);
    return !shard || wrong < q->m;
}

extern const struct sim_op SIM_OP_NAME;
const struct sim_op SIM_OP_NAME = {
    .roles = {[MK_INTRA_COMM] = intra_comm,
              [MK_INTER_SEND] = inter_send,
              [MK_INTER_REDUCE] = inter_reduce},
    .fill = all_gather_fill,
    .verify = all_gather_verify,
};
