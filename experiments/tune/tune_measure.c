/* Many plans of a shape in one communicator, measured in turns: what drifts, drifts for all of
 * them. */
#include "experiments/tune/tune.h"
#include "core/base/sorted.h"
#include "core/comm/agree.h"
#include "core/comm/comm.h"
#include "core/ops/op.h"
#include "core/base/scoped.h"
#include "core/base/sentence.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TOGETHER 48u /* plans of a communicator, which takes 64 */
#define TURNS 4u

/* What all plans of a communicator may take together. */
static uint64_t tune_measure_most_heap(const struct tune *t)
{
    return t->shape.problem.exec == MK_EXEC_CUDA ? (uint64_t)32 << 30 : (uint64_t)1 << 30;
}

#define MOST_FLAGS                                                                                 \
    ((uint64_t)7 << 20) /* bytes: with what is added to them, all that the efa fabric can name */

/* How many of the plans go beside each other, two at least. *heap, *flags: what they take. */
static uint32_t tune_measure_fit(const struct tune *t, const uint32_t *which, uint32_t count,
                                 uint64_t *heap, uint64_t *flags)
{
    uint32_t i = 0;
    *heap = *flags = 0;
    for (; i < count && i < TOGETHER; i++) {
        struct mk_problem q = tune_problem(t, which[i]);
        struct mk_plan p;
        char why[256];
        if (plan_build(&p, &q, (uint32_t)(*flags / 8), *heap, why, sizeof why))
            break;
        uint64_t end = p.heap_base + p.heap_bytes, flag_end = (p.flag_base + (uint64_t)p.flags) * 8;
        if (i > 1 && (end > tune_measure_most_heap(t) || flag_end > MOST_FLAGS))
            break;
        *heap = end;
        *flags = flag_end;
    }
    return i;
}

static int tune_measure_host_turns(struct tune *t, struct run_rank *r, struct mk_plan **plans,
                                   const uint32_t *which, uint32_t count, uint64_t per_turn,
                                   double *times, struct check_result *checks)
{
    for (uint32_t turn = 0; turn < TURNS; turn++)
        for (uint32_t step = 0; step < count; step++) {
            uint32_t i = turn & 1 ? count - 1 - step : step; /* to and fro */
            r->plan = plans[i];
            t->shape.plan = *plans[i]; /* checks ask for its tiles */
            t->running = &t->plans[which[i]];
            memset(&r->result, 0, sizeof r->result);
            for (uint64_t launch = 0; launch <= per_turn; launch++) { /* the first does not count */
                double ms;
                uint64_t one;
                int result = run_burst(r, ++t->launches, 1, &ms, &one);
                if (result)
                    return result;
                if (launch)
                    times[(i * TURNS + turn) * per_turn + launch - 1] = ms;
            }
            check_join(&checks[i], &r->result.check);
        }
    return 0;
}

const struct mk_plan *tune_largest(struct mk_plan *const *plans, uint32_t count)
{
    const struct mk_plan *largest = NULL;
    uint64_t most = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t bytes[MK_SPACES - 1] = {0}, all = 0;
        op_extents(&plans[i]->problem, bytes);
        for (uint32_t space = 0; space < MK_SPACES - 1; space++)
            all += bytes[space];
        if (!largest || all > most)
            largest = plans[i];
        most = all > most ? all : most;
    }
    return largest;
}

static int tune_measure_host_measure(struct tune *t, struct mk_comm *comm, const uint32_t *which,
                                     uint32_t count, uint64_t iters, struct tune_result *results)
{
    struct run_rank r = {.job = &t->shape, .comm = comm};
    struct mk_plan *plans[TOGETHER];
    struct check_result checks[TOGETHER];
    uint64_t per_turn = mk_ceil_div(iters, TURNS), all = per_turn * TURNS;
    MK_FREED double *times = calloc(count * all, sizeof *times);
    int result = times ? 0 : -ENOMEM;
    memset(checks, 0, sizeof checks);
    for (uint32_t i = 0; i < count && !result; i++) {
        struct mk_problem q = tune_problem(t, which[i]);
        result = comm_make_plan(&plans[i], comm, &q);
    }
    if (!result) {
        t->shape.plan = *tune_largest(plans, count);
        result = run_data_open(&r.data, &t->shape);
    }
    if (!result)
        result = tune_measure_host_turns(t, &r, plans, which, count, per_turn, times, checks);
    for (uint32_t i = 0; i < count && !result; i++) {
        double *mine = times + i * all;
        mk_sort(mine, all);
        results[i] = (struct tune_result){mk_median(mine, all),
                                          mine[0],
                                          mine[all - 1],
                                          mine[(all - 1) / 4],
                                          mine[all - 1 - (all - 1) / 4],
                                          (uint32_t)all,
                                          !check_right(&checks[i])};
    }
    if (result)
        snprintf(t->error, t->size, "%s", *mk_error(comm) ? mk_error(comm) : strerror(-result));
    if (r.data.job)
        run_data_close(&r.data);
    return result;
}

/* The slowest rank's times, and whether any rank was wrong. */
static int tune_measure_join(struct tune *t, struct mk_comm *comm, const uint32_t *which,
                             uint32_t count, struct tune_result *mine)
{
    uint32_t world = t->job->identity.world;
    MK_FREED struct tune_result *all = calloc((size_t)world * count, sizeof *all);
    int result =
        all ? bootstrap_allgather(comm->bootstrap, mine, all, count * sizeof *mine) : -ENOMEM;
    for (uint32_t i = 0; i < count && !result; i++) {
        struct tune_plan *p = &t->plans[which[i]];
        p->ms = 0;
        for (uint32_t rank = 0; rank < world; rank++) {
            const struct tune_result *r = &all[rank * count + i];
            p->wrong |= r->wrong;
            if (r->ms <= p->ms)
                continue;
            p->ms = r->ms;
            p->min = r->min;
            p->max = r->max;
            p->low = r->low;
            p->high = r->high;
            p->launches = r->launches;
        }
        p->ratio = p->ms / t->plans[which[0]].ms;
    }
    if (result)
        snprintf(t->error, t->size, "the times of the ranks could not be joined: %s",
                 strerror(-result));
    return result;
}

/* The default comes from files of which each host has its own. */
static int tune_measure_agree_on_table(struct tune *t, struct mk_comm *comm)
{
    const struct mk_topo *topo = &comm->topo;
    const struct agree_field fields[] = {
        {"set of tuned plans", tuning_hash(&t->table, topo->nodes, topo->gpus), 1}};
    return agree(comm->bootstrap, topo->rank, mk_world(topo), "has", fields, 1, 0, t->error,
                 t->size);
}

/* Before the ranks part: where they meet again. The listener of the communicator that they leave
 * refuses ranks that connect too early. */
static int tune_measure_arrange_meeting(struct tune *t, struct mk_comm *comm)
{
    const struct run_identity *me = &t->job->identity;
    struct meeting {
        uint16_t port;
        int16_t error;
    } mine = {0, 0};
    MK_FREED struct meeting *all = calloc(me->world, sizeof *all);
    t->listen_fd = me->rank ? -1 : bootstrap_listen(me->host, &mine.port);
    if (!me->rank && t->listen_fd < 0)
        mine.error = (int16_t)t->listen_fd;
    int result = all ? bootstrap_allgather(comm->bootstrap, &mine, all, sizeof mine) : -ENOMEM;
    result = result ? result : all[0].error;
    if (!result)
        t->port = all[0].port;
    if (result)
        snprintf(t->error, t->size, "the ranks cannot meet again: %s", strerror(-result));
    return result;
}

static int tune_measure_together(struct tune *t, const uint32_t *which, uint32_t count,
                                 uint64_t iters, uint64_t heap, uint64_t flags)
{
    MK_FREED struct tune_result *results = calloc(count, sizeof *results);
    struct mk_config config;
    struct mk_comm *comm = NULL;
    run_configure(t->job, &config);
    snprintf(config.tuning, sizeof config.tuning, "none"); /* what is measured says all itself */
    config.heap_bytes = mk_round_up(heap + 4096, 1 << 20);
    config.flag_bytes = mk_round_up(flags + 4096, 1 << 20);
    if (t->port) {
        config.port = t->port;
        config.listen_fd = t->listen_fd;
    }
    t->listen_fd = -1; /* the communicator's now */
    int result = results ? run_open(&comm, &config, t->job) : -ENOMEM;
    if (result)
        snprintf(t->error, t->size, "%s", mk_error(comm));
    else if ((result = tune_measure_agree_on_table(t, comm)))
        ;
    else if (config.exec == MK_EXEC_HOST)
        result = tune_measure_host_measure(t, comm, which, count, iters, results);
    else
        result =
            tune_gpu_measure ? tune_gpu_measure(t, comm, which, count, iters, results) : -ENODEV;
    result = result ? result : tune_measure_join(t, comm, which, count, results);
    result = result ? result : tune_measure_arrange_meeting(t, comm);
    run_close(comm);
    return result;
}

int tune_measure(struct tune *t, const uint32_t *which, uint32_t count, uint64_t iters)
{
    uint32_t together[TOGETHER] = {0}, done = 0;
    if (t->job->simulated)
        return tune_sim_measure(t, which, count);
    do { /* plan 0 is in every company */
        uint32_t some = count - done < TOGETHER - 1 ? count - done : TOGETHER - 1;
        uint64_t heap, flags;
        memcpy(together + 1, which + done, some * sizeof *which);
        uint32_t fits = tune_measure_fit(t, together, some + 1, &heap, &flags);
        if (fits < 2 && count)
            return mk_fail(-ENOSPC, t->error, t->size,
                           "two plans of this shape are more than a communicator can hold");
        int result = tune_measure_together(t, together, fits, iters, heap, flags);
        if (result)
            return result;
        done += fits - 1;
    } while (done < count);
    return 0;
}
