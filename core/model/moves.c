#include "core/model/moves.h"

#include <math.h>

struct model_push model_push_of(const struct model_walk *w, const struct model_turns *t)
{
    const struct mk_machine *m = w->machine;
    uint32_t movers = t->split->ctas[MK_INTRA_COMM];
    int coresident = t->split->intra_comm_warps > 0;
    struct model_push push = {.movers = movers ? movers : 1};
    if (!t->turns)
        return push;
    uint32_t at_once = t->turns < push.movers ? (uint32_t)t->turns : push.movers;
    enum machine_mover mover = coresident ? MACHINE_WARP : t->block;
    uint32_t sharing =
        t->mean > 0 && t->mean < t->bytes ? (uint32_t)ceil(at_once * t->mean / t->bytes) : at_once;
    push.round =
        machine_copy_ns(m, mover, sharing, 1, coresident ? t->pace : MK_PACE_NONE, t->bytes);
    if (coresident)
        push.round = model_later(
            push.round, machine_copy_ns(m, mover, 1, 1, MK_PACE_NONE, t->bytes) * (1 + m->under));
    push.round += m->settle;
    push.until = push.round * (double)mk_ceil_div(t->turns, push.movers);
    /* how far the warps want more than NVLink takes, the worse where what is read is in memory */
    double wanted = coresident ? machine_wanted(m, push.movers, t->pace) : 0;
    push.busy = wanted * (1 + m->spill * machine_spilled(m, t->wanted));
    return push;
}

double model_told(const struct model_walk *w, const struct model_push *push, uint64_t turn)
{
    return push->first + push->round * (double)mk_ceil_div(turn, push->movers) + w->machine->flag;
}

struct model_rail model_rail_of(const struct model_walk *w, const struct mk_role_split *split,
                                uint32_t chunks, double bytes, int staged)
{
    const struct mk_machine *m = w->machine;
    struct model_rail r = {.chunks = chunks,
                           .senders = split->ctas[MK_INTER_SEND] ? split->ctas[MK_INTER_SEND] : 1};
    r.put = model_later(machine_wire_ns(m, bytes), model_later(m->nic_message, m->put));
    r.stage =
        staged ? machine_copy_ns(m, MACHINE_TMA, r.senders, 0, MK_PACE_NONE, bytes) + m->settle : 0;
    r.way = m->command + m->proxy_command + m->nic_latency + m->nic_flag + m->receive +
            machine_through_host_ns(m, bytes);
    return r;
}

double model_by_rail(const struct model_rail *r, uint32_t distance, uint32_t chunk)
{
    double staged = r->stage * (chunk / r->senders + 1),
           queued = r->stage + r->put * ((double)(distance - 1) * r->chunks + chunk);
    if (distance == 1 && chunk + r->senders >= r->chunks) /* its last, behind the others' */
        queued += r->put * r->behind * (chunk % r->senders);
    return r->first + model_later(staged, queued) + r->put + r->way;
}

double model_by_peer(const struct model_walk *w, const struct model_rail *r,
                     const struct model_push *push, uint64_t chunk_turns, uint32_t distance,
                     uint32_t chunk)
{
    uint64_t turns = ((uint64_t)(distance - 1) * r->chunks + chunk + 1) * chunk_turns;
    double queued = push->until + push->round * (double)mk_ceil_div(turns, push->movers),
           here = model_by_rail(r, distance, chunk) + w->machine->wait +
                  push->round * (double)mk_ceil_div(chunk_turns, push->movers);
    return model_later(queued, here) + w->machine->flag;
}

void model_crew_join(struct model_crew *c, double at)
{
    uint32_t i = c->count;
    if (i == MODEL_WORKERS)
        return;
    for (c->count++; i && c->free[(i - 1) / 2] > at; i = (i - 1) / 2)
        c->free[i] = c->free[(i - 1) / 2];
    c->free[i] = at;
}

void model_crew_take(struct model_crew *c, double at)
{
    uint32_t i = 0;
    for (;;) {
        uint32_t next = 2 * i + 1;
        if (next + 1 < c->count && c->free[next + 1] < c->free[next])
            next++;
        if (next >= c->count || c->free[next] >= at)
            break;
        c->free[i] = c->free[next];
        i = next;
    }
    c->free[i] = at;
}
