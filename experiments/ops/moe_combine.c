/* MoE combine: each token's sum over its experts' rows, in float64. */
#include "core/base/bf16.h"
#include "core/base/scoped.h"
#include "experiments/job/op.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#define BF16 0x1p-8
#define FP32 0x1p-23

/* Of each place of every rank's tokens the row, on its expert's rank. 0 or -ENOMEM. */
static int moe_combine_find_rows(const struct run_data *d, uint64_t launch, uint32_t *ids,
                                 uint64_t *rows)
{
    const struct mk_problem *q = &d->job->plan.problem;
    const struct mk_moe *m = &q->moe;
    const uint64_t world = mk_world(&q->topo), places = m->tokens * m->k, each = m->experts / world;
    MK_FREED uint64_t *next = calloc(m->experts, sizeof *next);
    uint64_t first = 0;
    if (!next)
        return -ENOMEM;
    for (uint32_t rank = 0; rank < world; rank++)
        run_data_kept_ids(d, rank, launch, ids + rank * places);
    for (uint64_t i = 0; i < world * places; i++)
        if (ids[i] < m->experts)
            next[ids[i]]++;
    for (uint64_t e = 0; e < m->experts; e++) { /* from counts to first rows */
        uint64_t count = next[e];
        first = e % each ? first : 0;
        next[e] = first;
        first += mk_round_up(count, q->tuning.tile_m);
    }
    for (uint64_t i = 0; i < world * places; i++)
        if (ids[i] < m->experts)
            rows[i] = next[ids[i]]++;
    return 0;
}

/* A token of this rank: sum is [H] of fp64, size that of absolute values. Rounded to bf16 is
 * what crosses NVLink, what crosses the network, and Y. fp32 sums: see check.h. */
static void moe_combine_check_token(const struct run_data *d, uint64_t token, const double *sum,
                                    const double *size, const uint16_t *y,
                                    struct check_result *result)
{
    const struct mk_problem *q = &d->job->problem;
    const uint64_t h = q->moe.hidden;
    const double crossings = (q->topo.gpus > 1) + (q->topo.nodes > 1);
    for (uint64_t col = 0; col < h; col++) {
        double value = (double)mk_bf16_to_float(y[token * h + col]),
               bound = ((double)(q->moe.k + 1) * FP32 + crossings * BF16) * size[col];
        bound += BF16 * (fabs(sum[col]) + bound);
        check_within(result, token, col, value, sum[col], bound);
    }
}

static int moe_combine_check(const struct run_data *d, const struct run_checked *it)
{
    const struct mk_problem *q = &d->job->plan.problem;
    const struct mk_moe *m = &q->moe;
    const uint64_t world = mk_world(&q->topo), h = m->hidden, places = m->tokens * m->k,
                   own = d->job->identity.rank * places;
    const float *weights = it->arguments[2];
    MK_FREED uint32_t *ids = malloc(world * places * sizeof *ids);
    MK_FREED uint64_t *rows = malloc(world * places * sizeof *rows);
    MK_FREED uint16_t *row = malloc(h * sizeof *row);
    MK_FREED double *sum = malloc(2 * h * sizeof *sum);
    double *size = sum + h;
    struct check_result mine = {.frobenius = CHECK_FAST};
    int status =
        ids && rows && row && sum ? moe_combine_find_rows(d, it->launch, ids, rows) : -ENOMEM;
    const uint64_t made = run_data_tokens(d, d->job->identity.rank, it->launch);
    mine.nothing = !made;
    for (uint64_t token = 0; token < made && !status; token++) {
        for (uint64_t col = 0; col < h; col++)
            sum[col] = size[col] = 0;
        for (uint64_t at = token * m->k; at < (token + 1) * m->k; at++) {
            uint32_t expert = ids[own + at];
            if (expert >= m->experts)
                continue;
            run_data_input(d, 0, (uint32_t)(expert / (m->experts / world)), it->launch,
                           rows[own + at] * h, h, row);
            for (uint64_t col = 0; col < h; col++) {
                double term = (double)weights[at] * (double)mk_bf16_to_float(row[col]);
                sum[col] += term;
                size[col] += fabs(term);
            }
        }
        moe_combine_check_token(d, token, sum, size, it->arguments[3], &mine);
        spawn_beat();
    }
    if (!status)
        check_join(it->result, &mine);
    return status;
}

const struct run_op run_op_moe_combine = {
    .make = run_make_moe, .check = moe_combine_check, .records = 2, .routed = 1};
