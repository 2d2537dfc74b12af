/* The experts that tokens choose: given ids, or drawn ones. */
#include "core/ops/moe.h"
#include "core/ops/moe_map.h"
#include "core/base/random.h"
#include "sim/route.h"
#include "sim/timed/state.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

int timed_ids_open(struct timed_world *w)
{
    const struct mk_moe *m = &w->config.plan->problem.moe;
    const uint64_t experts = plan_moe_named(&w->config.plan->problem);
    for (uint32_t i = 0; i < 2 && w->op->routes; i++) {
        w->ids[i] = calloc(w->world, m->tokens * m->k * sizeof *w->ids[i]);
        if (!w->ids[i])
            return -ENOMEM;
    }
    if (!w->op->routes || w->config.skew <= 0 || w->config.ids)
        return 0;
    w->chosen = malloc(experts * sizeof *w->chosen);
    if (!w->chosen)
        return -ENOMEM;
    double sum = 0;
    for (uint64_t e = 0; e < experts; e++)
        w->chosen[e] = sum += pow((double)e + 1, -w->config.skew);
    return 0;
}

/* The first expert whose cumulated share is above `x`. */
static uint32_t ids_draw(const struct timed_world *w, double x)
{
    uint32_t low = 0, high = (uint32_t)plan_moe_named(&w->config.plan->problem) - 1;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (w->chosen[middle] > x)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static void ids_draw_rank(const struct timed_world *w, const struct mk_plan *plan, uint64_t launch,
                          uint32_t rank, uint32_t *ids)
{
    const struct mk_moe *m = &plan->problem.moe;
    uint64_t count = m->tokens * m->k;
    if (w->config.ids) {
        for (uint64_t i = 0; i < count; i++)
            ids[i] = w->config.ids[rank * count + i];
        return;
    }
    const uint64_t key = mk_key(w->config.seed, ROUTE_IDS + rank, launch);
    for (uint64_t token = 0; token < m->tokens && !w->chosen; token++)
        route_draw_token(key, token, (uint32_t)m->k, (uint32_t)plan_moe_named(&plan->problem),
                         ids + token * m->k);
    if (!w->chosen)
        return;
    for (uint64_t i = 0; i < count && isinf(w->config.skew); i++)
        ids[i] = i % m->k ? UINT32_MAX : 0;
    if (isinf(w->config.skew))
        return;
    struct sim_random random = {sim_mix(w->config.seed) ^ sim_mix(launch << 20 ^ rank)};
    const uint32_t experts = (uint32_t)plan_moe_named(&plan->problem);
    double all = w->chosen[experts - 1];
    for (uint64_t token = 0; token < m->tokens; token++)
        for (uint32_t place = 0; place < m->k; place++) {
            uint32_t *own = ids + token * m->k;
            double x = (double)(sim_random(&random) >> 11) / (double)(1ull << 53) * all;
            uint32_t expert = ids_draw(w, x);
            for (uint32_t i = 0; i < place; i++)
                if (own[i] == expert) { /* a token chooses an expert once: take the next */
                    expert = (expert + 1) % experts;
                    i = UINT32_MAX;
                }
            own[place] = expert;
        }
}

static uint32_t *ids_map_of(const struct timed_world *w, uint32_t rank)
{
    const struct timed_rank *r = &w->ranks[rank];
    return (uint32_t *)(void *)(r->heap + plan_moe_map(&r->plan));
}

/* Draws the ids of a rank, and drops those that exceed the plan's capacity. */
static void ids_keep_rank(const struct timed_world *w, const struct mk_plan *plan, uint64_t launch,
                          uint32_t rank, uint32_t *ids)
{
    ids_draw_rank(w, plan, launch, rank, ids);
    route_keep_plan(plan, op_logical(&plan->problem) ? ids_map_of(w, rank) : NULL, ids);
}

void timed_ids_place(struct timed_world *w, const struct mk_plan *plan, uint64_t launch)
{
    uint32_t *ids = w->ids[launch & 1];
    const uint64_t each = plan->problem.moe.tokens * plan->problem.moe.k;
    if (!ids || w->ids_launch[launch & 1] == launch)
        return;
    w->ids_launch[launch & 1] = launch;
    for (uint32_t rank = 0; rank < w->world; rank++)
        ids_keep_rank(w, plan, launch, rank, ids + rank * each);
}

const uint32_t *timed_ids_of(const struct timed_world *w, uint64_t launch, uint32_t rank)
{
    const struct mk_moe *m = &w->config.plan->problem.moe;
    return w->ids[launch & 1] + rank * m->tokens * m->k;
}

/* The load of each logical expert. */
static void ids_loads(const struct timed_world *w, uint32_t logical, double *loads)
{
    const struct mk_moe *m = &w->config.plan->problem.moe;
    if (!w->config.ids) {
        moe_map_skew(w->config.skew, logical, loads);
        return;
    }
    memset(loads, 0, logical * sizeof *loads);
    for (uint64_t i = 0; i < w->world * m->tokens * m->k; i++)
        if (w->config.ids[i] < logical)
            loads[w->config.ids[i]]++;
}

int timed_map_open(struct timed_world *w)
{
    const struct mk_problem *q = &w->config.plan->problem;
    const uint32_t logical = (uint32_t)op_logical(q);
    struct moe_map map;
    int32_t *slots;
    double *loads = logical ? malloc(logical * sizeof *loads) : NULL;
    if (!loads)
        return logical ? -ENOMEM : 0;
    ids_loads(w, logical, loads);
    int result = moe_map_place(&map, &slots, q, loads);
    for (uint32_t rank = 0; rank < w->world && !result; rank++)
        moe_map_row(&map, &w->ranks[rank].plan.problem.topo, (uint32_t)q->moe.experts / w->world,
                    ids_map_of(w, rank));
    free(loads);
    free(result ? NULL : slots);
    return result;
}

void timed_ids_close(struct timed_world *w)
{
    free(w->ids[0]);
    free(w->ids[1]);
    free(w->chosen);
}
