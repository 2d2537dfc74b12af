/* What the MoE operators share: which experts tokens name, and with what weights; and what they are
 * given of FP8. */
#include "core/ops/moe.h"
#include "core/base/quantize.h"
#include "core/base/scoped.h"
#include "experiments/common/inputs.h"
#include "experiments/job/op.h"
#include "sim/route.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Expert e in proportion to 1 / (e + 1)^skew, none twice: of those that a token has not named yet.
 */
static void moe_draw(const struct run_data *d, uint32_t rank, uint64_t launch, uint64_t token,
                     uint32_t *ids)
{
    const struct mk_moe *m = &d->job->problem.moe;
    const uint64_t experts = plan_moe_named(&d->job->problem);
    uint64_t bits = run_data_key(d, 4000 + rank, launch) ^ token << 8;
    double left = 0;
    for (uint64_t e = 0; e < experts; e++)
        left += pow((double)e + 1, -d->job->skew);
    for (uint32_t place = 0; place < m->k; place++) {
        double at = (double)(mk_hash(bits ^ place) >> 11) * 0x1p-53 * left, share = 0;
        uint32_t expert = UINT32_MAX;
        for (uint32_t e = 0; e < experts && at >= 0; e++) {
            int named = 0;
            for (uint32_t i = 0; i < place; i++)
                named |= ids[i] == e;
            if (named)
                continue;
            share = pow((double)e + 1, -d->job->skew);
            at -= share;
            expert = e; /* the last that is free, where rounding leaves none */
        }
        ids[place] = expert;
        left -= share;
    }
}

void run_data_ids(const struct run_data *d, uint32_t rank, uint64_t launch, uint32_t *ids)
{
    const struct mk_moe *m = &d->job->problem.moe;
    uint32_t k = (uint32_t)m->k, experts = (uint32_t)plan_moe_named(&d->job->problem),
             world = mk_world(&d->job->problem.topo);
    const uint64_t key = run_data_key(d, ROUTE_IDS + rank, launch);
    int routing = d->job->options.routing, few = routing == RUN_ROUTING_FEW && experts / 2 >= k;
    uint64_t tokens = routing == RUN_ROUTING_NONE
                          ? (rank == world - 1 ? 0 : m->tokens - m->tokens / 8)
                          : m->tokens;
    for (uint64_t token = 0; token < m->tokens; token++) {
        if (d->job->skew > 0) {
            moe_draw(d, rank, launch, token, ids + token * k);
            continue;
        }
        uint32_t *of = ids + token * k;
        route_draw_token(key, token, k, few ? experts / 2 : experts, of);
        for (uint32_t place = 0; place < k; place++)
            of[place] = token >= tokens              ? UINT32_MAX
                        : routing == RUN_ROUTING_ONE ? (place ? UINT32_MAX : 0)
                                                     : of[place] * (few ? 2 : 1);
    }
}

uint32_t run_data_tokens(const struct run_data *d, uint32_t rank, uint64_t launch)
{
    const struct run_job *job = d->job;
    const uint32_t most = (uint32_t)job->problem.moe.tokens;
    if (!op_counted(&job->problem))
        return most;
    if (job->tokens_now_count)
        return job->tokens_now[(rank + launch - 1) % job->tokens_now_count];
    const uint64_t bits = mk_hash(run_data_key(d, 5000 + rank, launch));
    return bits % 4 ? (uint32_t)(bits >> 32) % (most + 1) : 0; /* often none */
}

void run_make_count(const struct run_data *d, uint64_t launch, uint32_t *to)
{
    const char *spoilt = getenv("MKERNEL_TEST_TOKENS");
    unsigned rank;
    int count;
    *to = run_data_tokens(d, d->job->identity.rank, launch);
    if (spoilt && sscanf(spoilt, "%u,%d", &rank, &count) == 2 && rank == d->job->identity.rank)
        *to = (uint32_t)count;
}

/* As the plan's launch does. Without memory for the map no place has an expert. */
static uint64_t moe_find_experts(const struct run_data *d, uint32_t rank, uint32_t *ids)
{
    const struct mk_problem *q = &d->job->problem;
    const struct moe_map *map = &d->job->map;
    const struct mk_topo topo = {q->topo.nodes, q->topo.gpus, rank};
    if (!map->slots)
        return route_find_experts(&d->job->plan, NULL, ids);
    MK_FREED uint32_t *row = malloc(map->experts * sizeof *row);
    uint64_t dropped = 0;
    if (row) {
        moe_map_row(map, &topo, (uint32_t)q->moe.experts / mk_world(&q->topo), row);
        dropped = route_find_experts(&d->job->plan, row, ids);
    } else {
        memset(ids, 0xff, q->moe.tokens * q->moe.k * sizeof *ids);
    }
    return dropped;
}

uint64_t run_data_kept_ids(const struct run_data *d, uint32_t rank, uint64_t launch, uint32_t *ids)
{
    const struct mk_moe *m = &d->job->problem.moe;
    run_data_ids(d, rank, launch, ids);
    for (uint64_t i = run_data_tokens(d, rank, launch) * m->k; i < m->tokens * m->k; i++)
        ids[i] = UINT32_MAX;
    return moe_find_experts(d, rank, ids);
}

int run_data_dropped(const struct run_job *job, uint64_t launch, uint64_t *dropped, uint64_t *named)
{
    const struct run_data d = {.job = job};
    const struct mk_moe *m = &job->problem.moe;
    MK_FREED uint32_t *ids = malloc(m->tokens * m->k * sizeof *ids);
    *dropped = *named = 0;
    for (uint32_t rank = 0; ids && rank < mk_world(&job->problem.topo); rank++) {
        *dropped += run_data_kept_ids(&d, rank, launch, ids);
        for (uint64_t i = 0; i < m->tokens * m->k; i++)
            *named += ids[i] < m->experts;
    }
    *named += *dropped;
    return ids ? 0 : -ENOMEM;
}

static void moe_make_weights(const struct run_data *d, uint32_t rank, uint64_t launch,
                             float *weights)
{
    const struct mk_moe *m = &d->job->problem.moe;
    for (uint64_t token = 0; token < m->tokens; token++) {
        float sum = 0;
        for (uint64_t i = token * m->k; i < (token + 1) * m->k; i++)
            sum += weights[i] =
                1 + (float)(mk_hash(run_data_key(d, 2000 + rank, launch) ^ i) >> 40) * 0x1p-24f;
        for (uint64_t i = token * m->k; i < (token + 1) * m->k; i++)
            weights[i] /= sum; /* as a router's: they add up to 1 */
    }
}

void run_make_moe(const struct run_data *d, uint32_t argument, uint64_t launch, void *to)
{
    if (op_argument_type(&d->job->problem, argument) == OP_UINT32)
        run_data_ids(d, d->job->identity.rank, launch, to);
    else
        moe_make_weights(d, d->job->identity.rank, launch, to);
}

void run_spoil_rows(const struct run_data *d, uint64_t slot, uint32_t argument, uint64_t row_bytes)
{
    const struct mk_problem *q = &d->job->plan.problem;
    uint8_t *rows = run_data_at(d, slot, argument);
    uint32_t *counts = run_data_at(d, slot, argument + 1);
    for (uint64_t i = 0; i < q->moe.experts / mk_world(&q->topo); i++)
        if (counts[2 * i + 1]) {
            rows[((uint64_t)counts[2 * i] + counts[2 * i + 1]) * row_bytes - 1] ^= 0x40;
            return;
        }
    counts[0] ^= 0x4000;
}

/* ---- FP8 ---- */

struct run_source run_moe_source(const struct run_data *d, uint32_t argument, uint32_t rank,
                                 uint64_t launch)
{
    const struct mk_moe *m = &d->job->problem.moe;
    struct run_source s = run_data_plain(d, argument, rank, launch);
    s.before = argument ? 0 : rank * m->tokens * m->hidden;
    return s;
}

int run_moe_quantize(const struct run_data *d, struct run_source s, uint64_t first, uint64_t rows,
                     uint64_t k, enum mk_scaling scaling, uint8_t *to, float *scales)
{
    s.before += first;
    return run_quantize(d, &s, rows, k, scaling, mk_round_up(mk_ceil_div(k, MK_SCALE_BLOCK), 4), to,
                        scales);
}

int run_moe_records(const struct run_data *d, uint32_t rank, uint64_t launch, uint8_t *to)
{
    const struct mk_moe *m = &d->job->problem.moe;
    memset(to, 0, m->tokens * quantize_record(m->hidden));
    return run_moe_quantize(d, run_moe_source(d, 0, rank, launch), 0, m->tokens, m->hidden,
                            MK_SCALE_RECORDS, to, NULL);
}
