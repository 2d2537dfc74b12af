/* MoE dispatch: each expert's rows, bit by bit, as the ids of all ranks say. */
#include "core/base/bf16.h"
#include "core/base/quantize.h"
#include "core/base/scoped.h"
#include "experiments/job/op.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOE_DISPATCH_X, MOE_DISPATCH_IDS, MOE_DISPATCH_ROWS, MOE_DISPATCH_COUNTS };

static uint64_t moe_dispatch_row_bytes(const struct mk_problem *q)
{
    return q->fp8 ? quantize_record(q->moe.hidden) : q->moe.hidden * 2;
}

/* One tensor of all ranks, whatever a row is made of. */
static struct run_source moe_dispatch_source(const struct run_data *d, uint32_t argument,
                                             uint32_t rank, uint64_t launch)
{
    return (struct run_source){.key = run_data_key(d, 0, launch),
                               .before = rank * (d->bytes[MOE_DISPATCH_X] / 2)};
}

/* Ids; records are moved as they are, so any bytes do. */
static void moe_dispatch_make(const struct run_data *d, uint32_t argument, uint64_t launch,
                              void *to)
{
    if (argument == MOE_DISPATCH_X)
        run_data_input(d, argument, d->job->identity.rank, launch, 0, d->bytes[argument] / 2, to);
    else
        run_make_moe(d, argument, launch, to);
}

/* Row `row` of this rank, which should be token `token`, counted over all ranks. */
static void moe_dispatch_check_row(const struct run_data *d, uint64_t row, const uint8_t *is,
                                   const uint8_t *should_be, struct check_result *result)
{
    const uint64_t count = moe_dispatch_row_bytes(&d->job->problem) / 2;
    for (uint64_t i = 0; i < count; i++) {
        uint16_t a, b;
        memcpy(&a, is + 2 * i, 2);
        memcpy(&b, should_be + 2 * i, 2);
        check_add(result, row, i, mk_bf16_to_float(a), mk_bf16_to_float(b), a != b ? INFINITY : 0);
    }
}

/* Ranks have different work: they do not meet, so there is nothing to pace. */
static int moe_dispatch_check(const struct run_data *d, const struct run_checked *it)
{
    const struct mk_problem *q = &d->job->plan.problem;
    const struct mk_moe *m = &q->moe;
    const uint64_t world = mk_world(&q->topo), bytes = moe_dispatch_row_bytes(q),
                   each = m->experts / world, all = world * m->tokens;
    const uint32_t *said = it->arguments[MOE_DISPATCH_COUNTS];
    const uint8_t *rows = it->arguments[MOE_DISPATCH_ROWS];
    MK_FREED uint8_t *x = malloc(all * bytes);
    MK_FREED uint32_t *ids = malloc(all * m->k * sizeof *ids);
    uint64_t first = 0, count;
    int status = x && ids ? 0 : -ENOMEM;
    for (uint32_t rank = 0; rank < world && !status; rank++) {
        run_data_input(d, MOE_DISPATCH_X, rank, it->launch, 0, m->tokens * bytes / 2,
                       (uint16_t *)(void *)(x + rank * m->tokens * bytes));
        run_data_kept_ids(d, rank, it->launch, ids + rank * m->tokens * m->k);
    }
    for (uint64_t local = 0; local < each && !status; local++) {
        count = 0;
        for (uint64_t i = 0; i < all * m->k; i++)
            if (ids[i] == d->job->identity.rank * each + local) {
                if (first + count < q->m)
                    moe_dispatch_check_row(d, first + count, rows + (first + count) * bytes,
                                           x + i / m->k * bytes, it->result);
                count++;
            }
        it->result->elements += 2; /* what is said of it counts, too */
        it->result->wrong += (said[2 * local] != first) + (said[2 * local + 1] != count);
        first += mk_round_up(count, q->tuning.tile_m);
        spawn_beat();
    }
    return status;
}

static void moe_dispatch_spoil(const struct run_data *d, uint64_t slot)
{
    run_spoil_rows(d, slot, MOE_DISPATCH_ROWS, moe_dispatch_row_bytes(&d->job->plan.problem));
}

const struct run_op run_op_moe_dispatch = {.source = moe_dispatch_source,
                                           .make = moe_dispatch_make,
                                           .check = moe_dispatch_check,
                                           .spoil = moe_dispatch_spoil,
                                           .records = 1,
                                           .routed = 1};
