/* AllGather: every element of C is one of some rank's A, bit by bit. */
#include "experiments/job/op.h"
#include "core/bf16.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

static int all_gather_check(const struct run_data *d, const void *const arguments[RUN_ARGUMENTS],
                            uint64_t launch, const struct check_pace *pace,
                            struct check_result *result)
{
    const struct mk_problem *q = &d->job->problem;
    uint64_t rows = q->m / mk_world(&q->topo);
    const uint16_t *c = arguments[1];
    uint16_t *shard = malloc(rows * q->k * 2);
    if (!shard)
        return -ENOMEM;
    for (uint64_t i = 0; i < q->m * q->k; i++) {
        uint64_t in_shard = i % (rows * q->k);
        if (in_shard == 0)
            run_data_input(d, 0, (uint32_t)(i / (rows * q->k)), launch, 0, rows * q->k, shard);
        check_add(result, i / q->k, i % q->k, mk_bf16_to_float(c[i]),
                  mk_bf16_to_float(shard[in_shard]), c[i] == shard[in_shard] ? 0 : INFINITY);
    }
    free(shard);
    return 0;
}

const struct run_op run_op_all_gather = {.check = all_gather_check};
