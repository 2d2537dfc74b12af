/* Ring attention: tensors 0, 1 and 2 are every rank's Q, K and V. */
#include "experiments/ops/check_attention_gpu.h"
#include "experiments/job/op.h"
#include "core/plan/attention_shards.h"
#include "core/base/scoped.h"

#include <errno.h>
#include <stdlib.h>

/* Scores differ, since Q is 8 times as large. */
static struct run_source ring_attention_source(const struct run_data *d, uint32_t argument,
                                               uint32_t rank, uint64_t launch)
{
    const struct mk_attention *t = &d->job->problem.attention;
    uint64_t row = (argument == 0 ? t->heads : t->kv_heads) * t->head_dim,
             before = mk_attention_most_rows(t, mk_world(&d->job->problem.topo)) * t->batch * row;
    return (struct run_source){run_data_key(d, argument, launch), rank * before,
                               argument == 0 ? 3 : 0};
}

/* Rows that a GPU checks of a launch: another choice each time. */
enum { GPU_ROWS = 4096 };

/* K and V of all ranks in the order of the sequence. */
static int ring_attention_check(const struct run_data *d, const struct run_checked *it)
{
    const struct mk_attention *t = &d->job->problem.attention;
    uint32_t world = mk_world(&d->job->problem.topo);
    uint64_t row = t->kv_heads * t->head_dim;
    struct check_attention c = {.problem = *t, .world = world, .rank = d->job->identity.rank};
    c.q = it->arguments[0];
    c.o = it->arguments[3];
    c.lse = it->arguments[4];
    if (!mk_attention_rows(t, world, c.rank)) {
        const struct check_result none = {.nothing = 1};
        check_join(it->result, &none);
        return 0;
    }
    if (d->cuda && check_attention_gpu) {
        const uint64_t keys[2] = {run_data_key(d, 1, it->launch), run_data_key(d, 2, it->launch)};
        return check_attention_gpu(&c, keys, GPU_ROWS, keys[0], it->result);
    }
    const uint64_t each = t->batch * t->sequence * row;
    MK_FREED uint16_t *kv = malloc(2 * each * sizeof *kv);
    if (!kv)
        return -ENOMEM;
    for (uint32_t part = 0; part < 2; part++)
        for (uint32_t rank = 0; rank < world; rank++)
            for (uint64_t batch = 0, from = 0; batch < t->batch; batch++)
                for (uint32_t half = 0; half < mk_attention_halves(t); half++) {
                    struct mk_attention_half h = mk_attention_half_of(t, world, rank, half);
                    run_data_input(d, 1 + part, rank, it->launch, from * row, h.rows * row,
                                   kv + part * each + (batch * t->sequence + h.begin) * row);
                    from += h.rows;
                }
    c.k = kv;
    c.v = kv + each;
    return check_attention(&c, it->pace, it->result);
}

const struct run_op run_op_ring_attention = {.source = ring_attention_source,
                                             .check = ring_attention_check,
                                             .made_on_gpu = 1 << 1 | 1 << 2,
                                             .collective = RUN_ALL_GATHER,
                                             .product = RUN_ATTENTION};
