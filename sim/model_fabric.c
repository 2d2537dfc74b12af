#include "sim/model_fabric.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum stage { WAITS_FOR_DOORBELL, SENDS_DATA, SENDS_FLAG, SENDS_ACK, ENDED };

#define RETRY_EXCEEDED 12 /* IBV_WC_RETRY_EXC_ERR */

struct model_put {
    struct fabric_put put;
    enum stage stage;
    int status;
    uint64_t posted, due, moved;
};

struct model_fabric {
    struct fabric base;
    struct sim_world *world;
    uint32_t rank;
    uint64_t number;         /* puts so far */
    uint32_t depth, count;   /* count: posted and not collected */
    struct model_put puts[]; /* oldest first */
};

static struct model_fabric *model_fabric_of(struct fabric *f)
{
    return (struct model_fabric *)(void *)f;
}

static const struct model_fabric *model_fabric_of_const(const struct fabric *f)
{
    return (const struct model_fabric *)(const void *)f;
}

static size_t model_fabric_address_bytes(struct fabric *f)
{
    return sizeof(uint32_t);
}

static void model_fabric_address(struct fabric *f, void *out)
{
    memcpy(out, &model_fabric_of(f)->rank, sizeof(uint32_t));
}

static int model_fabric_connect_peers(struct fabric *f, const void *addresses,
                                      const uint32_t *peers, uint32_t count, char *error,
                                      size_t size)
{
    return 0; /* the world has all ranks already */
}

static int put(struct fabric *base, const struct fabric_put *p)
{
    struct model_fabric *f = model_fabric_of(base);
    const struct sim_fault *fault = &f->world->config.fault;
    if (f->count == f->depth)
        return -EAGAIN;
    struct model_put *m = &f->puts[f->count++];
    *m = (struct model_put){.put = *p, .stage = WAITS_FOR_DOORBELL, .posted = f->world->now};
    f->number++;
    if (fault->kind == SIM_FAULT_FAIL_PUT && fault->rank == f->rank && fault->number == f->number)
        m->status = RETRY_EXCEEDED;
    return 0;
}

/* When something arrives that the cost model says arrives at `due`. */
static uint64_t model_fabric_arrival(struct model_fabric *f, const struct model_put *m,
                                     uint64_t due)
{
    struct sim_world *w = f->world;
    const struct sim_fault *fault = &w->config.fault;
    if (w->config.delay_ns)
        due += sim_random(&w->random) % w->config.delay_ns;
    if (fault->kind == SIM_FAULT_SLOW && fault->number &&
        (fault->rank == f->rank || fault->rank == m->put.peer))
        due += sim_random(&w->random) % fault->number;
    return due;
}

static int model_fabric_flush(struct fabric *base)
{
    struct model_fabric *f = model_fabric_of(base);
    const struct sim_costs *costs = f->world->config.costs;
    uint64_t now = f->world->now;
    for (uint32_t i = 0; i < f->count; i++) {
        struct model_put *m = &f->puts[i];
        if (m->stage != WAITS_FOR_DOORBELL)
            continue;
        m->stage = m->status ? SENDS_ACK : SENDS_DATA;
        m->due = model_fabric_arrival(f, m,
                                      costs && costs->put ? costs->put(costs->context, now, f->rank,
                                                                       m->put.peer, m->put.bytes)
                                                          : now);
    }
    return 0;
}

static int model_fabric_poll_completions(struct fabric *base, struct fabric_completion *out,
                                         int max)
{
    struct model_fabric *f = model_fabric_of(base);
    uint32_t kept = 0;
    int n = 0;
    for (uint32_t i = 0; i < f->count; i++) {
        struct model_put *m = &f->puts[i];
        if (m->stage != ENDED || n == max) {
            f->puts[kept++] = *m;
            continue;
        }
        out[n] = (struct fabric_completion){.cookie = m->put.cookie, .status = m->status};
        if (m->status)
            snprintf(out[n].detail, sizeof out[n].detail, "transport retry counter exceeded");
        n++;
    }
    f->count = kept;
    return n;
}

/* The earlier puts to the same peer that put `i` has to let pass first. */
static int model_fabric_may_move(const struct model_fabric *f, uint32_t i)
{
    const struct model_put *m = &f->puts[i];
    if (m->stage == WAITS_FOR_DOORBELL || m->stage == ENDED ||
        sim_world_dropped(f->world, f->rank) || sim_world_dropped(f->world, m->put.peer))
        return 0;
    int in_order = f->world->config.order == SIM_ORDER_RC;
    for (uint32_t j = 0; j < i; j++) {
        const struct model_put *earlier = &f->puts[j];
        if (earlier->put.peer != m->put.peer || earlier->stage == ENDED)
            continue;
        if (m->stage == SENDS_ACK ? 1 : in_order && earlier->stage != SENDS_ACK)
            return 0;
    }
    return 1;
}

int model_fabric_ready(const struct fabric *base)
{
    const struct model_fabric *f = model_fabric_of_const(base);
    for (uint32_t i = 0; i < f->count; i++)
        if (f->puts[i].due <= f->world->now && model_fabric_may_move(f, i))
            return 1;
    return 0;
}

uint64_t model_fabric_due(const struct fabric *base)
{
    const struct model_fabric *f = model_fabric_of_const(base);
    uint64_t due = SIM_NEVER;
    for (uint32_t i = 0; i < f->count; i++)
        if (f->puts[i].due < due && model_fabric_may_move(f, i))
            due = f->puts[i].due;
    return due;
}

uint64_t model_fabric_oldest(const struct fabric *base)
{
    const struct model_fabric *f = model_fabric_of_const(base);
    return f->count ? f->puts[0].posted : SIM_NEVER;
}

static void model_fabric_raise_flag(struct model_fabric *f, const struct fabric_put *p)
{
    struct sim_world_rank *peer = &f->world->ranks[p->peer];
    uint64_t *flag = (uint64_t *)(void *)peer->heap + p->flag;
    if (f->world->hopper)
        world_emulated_raises(f->world, f->rank, flag);
    if (*flag > p->value && f->world->config.order == SIM_ORDER_RC)
        sim_world_error(f->world, -EBADMSG,
                        "a put of rank %u set flag %u of rank %u from %lu back to %lu", f->rank,
                        p->flag, p->peer, *flag, p->value);
    if (*flag < p->value)
        *flag = p->value;
}

static void model_fabric_advance(struct model_fabric *f, struct model_put *m)
{
    struct sim_world *w = f->world;
    const struct fabric_put *p = &m->put;
    switch (m->stage) {
    case SENDS_DATA:
        if (w->hopper && p->bytes && !m->moved)
            world_emulated_moves(w, f->rank, w->ranks[p->peer].heap + p->destination,
                                 w->ranks[f->rank].heap + p->source, p->bytes);
        if (p->bytes && !sim_world_move(w, w->ranks[p->peer].heap + p->destination,
                                        w->ranks[f->rank].heap + p->source, p->bytes, &m->moved))
            break;
        m->stage = SENDS_FLAG;
        m->due = model_fabric_arrival(f, m, w->now);
        break;
    case SENDS_FLAG:
        model_fabric_raise_flag(f, p);
        m->stage = SENDS_ACK;
        m->due = w->now;
        break;
    case SENDS_ACK:
        m->stage = ENDED;
        w->ranks[f->rank].proxy_touched = 1;
        break;
    default:
        break;
    }
}

void model_fabric_step(struct fabric *base)
{
    struct model_fabric *f = model_fabric_of(base);
    uint32_t able = 0, chosen = 0;
    for (uint32_t i = 0; i < f->count; i++)
        if (f->puts[i].due <= f->world->now && model_fabric_may_move(f, i) &&
            sim_random_below(&f->world->random, ++able) == 0)
            chosen = i;
    if (able)
        model_fabric_advance(f, &f->puts[chosen]);
}

static void model_fabric_close_fabric(struct fabric *f)
{
    free(f);
}

static const struct fabric_ops model_ops = {
    .name = "model",
    .address_bytes = model_fabric_address_bytes,
    .address = model_fabric_address,
    .connect = model_fabric_connect_peers,
    .put = put,
    .flush = model_fabric_flush,
    .poll = model_fabric_poll_completions,
    .close = model_fabric_close_fabric,
};

int model_fabric_create(struct fabric **out, struct sim_world *world, uint32_t rank)
{
    uint32_t depth = world->config.fabric_depth ? world->config.fabric_depth : 16;
    struct model_fabric *f = calloc(1, sizeof *f + depth * sizeof *f->puts);
    if (!f)
        return -ENOMEM;
    f->base.ops = &model_ops;
    f->world = world;
    f->rank = rank;
    f->depth = depth;
    *out = &f->base;
    return 0;
}
