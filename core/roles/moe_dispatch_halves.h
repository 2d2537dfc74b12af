/* moe_dispatch in two halves (core/cta/halves.h): a program computes on all SMs between them, while
 * links and the network bring what was sent. The parts are those of a whole launch; what differs is
 * who does them. And what combine in two halves (core/roles/moe_combine_halves.h) has of the same.
 *
 * Roles
 *   intra_comm    first half: makes the tables of where this rank's tokens go, tells the ranks of
 *                 the node (of one node), and pushes this rank's tokens to them
 *   inter_send    first half: puts what there is to say along the rail, and tokens
 *   inter_reduce  second half: hands on what the rails have said (of several nodes), makes the
 *                 tables of what comes, hands on tokens that the rails have brought, and takes all
 *                 to rows
 *   No first half waits for another rank: neither to have begun nor for anything that it sends.
 *
 * Buffer reuse
 *   A first half does not know whether another rank has begun the launch, so where tokens land has
 *   two buffers, by epoch & 1, as what ranks say: who sends of launch e + 2 has ended e + 1, whose
 *   second half needed what this rank said of e + 1, and this rank had ended e by then. Tokens from
 *   other nodes likewise, by what their rails' ranks said. Puts may be under way when a half ends.
 *   inter_send waits in the next launch's first half until those of the one before have left, and
 *   tells so by `left`, before this rank makes anything that it puts: so no source is overwritten
 *   under a put, and no put overtakes one of the launch before.
 *
 * Deadlock freedom
 *   First halves wait for first halves alone. Of second halves handing on waits for puts of first
 *   ones, and taking for that; each CTA does them in this order.
 *
 * Too many tokens
 *   end the launch in the second half, which finds out. The first one pushes and puts no more than
 *   there is room for. */
#pragma once

#include "core/roles/moe_dispatch.h"
#include "core/roles/moe_halves_plan.h"

/* inter_send, first of all. */
MK_ROLE int moe_halves_leave(const struct moe_dispatch_plan *p, const struct moe_halves *h,
                             struct mk_cta *cta)
{
    if (mk_cta_drain(cta))
        return 1;
    mk_cta_made(cta, mk_local_of(&p->topo, p->topo.rank), h->flag_left);
    return 0;
}

/* intra_comm, before this rank makes anything that is put. */
MK_ROLE int moe_halves_await_left(const struct moe_halves *h, struct mk_cta *cta)
{
    return h->senders && mk_cta_wait(cta, h->flag_left, cta->epoch * h->senders, MK_CAUSE_NETWORK);
}

MK_ROLE int moe_halves_push(const struct moe_dispatch_plan *p, const struct moe_halves *h,
                            struct mk_cta *cta)
{
    const struct mk_topo *t = &p->topo;
    const uint32_t node = mk_node_of(t, t->rank), local = mk_local_of(t, t->rank);
    uint32_t others = cta->index;
    if (moe_halves_await_left(h, cta) || moe_place_own(p, cta))
        return 1;
    if (t->nodes == 1)
        moe_tell(p, cta);
    for (uint32_t chunk = 0; chunk < p->chunks; chunk++) {
        if (!moe_takes(cta, &others))
            continue;
        for (uint32_t step = 1; step < t->gpus; step++) {
            const uint32_t to = (local + t->gpus - step) % t->gpus,
                           count =
                               mk_cta_load(cta, p->route.push_count + (node * t->gpus + to) * 4);
            if (count <= p->route.landed_room && moe_push(p, cta, node, to, chunk))
                return 1;
        }
    }
    return 0;
}

MK_ROLE int moe_halves_put(const struct moe_dispatch_plan *p, const struct moe_halves *h,
                           struct mk_cta *cta)
{
    return moe_halves_leave(p, h, cta) || moe_say(p, cta) || moe_put_tokens(p, cta);
}

MK_ROLE int moe_halves_take(const struct moe_dispatch_plan *p, struct mk_cta *cta)
{
    const struct mk_topo *t = &p->topo;
    uint32_t others = cta->index;
    if (moe_take_railed(p, cta))
        return 1;
    if (t->nodes > 1)
        moe_tell(p, cta);
    if (moe_lay_out(p, cta) || moe_await_routed(p, cta))
        return 1;
    for (uint32_t distance = 1; distance < t->nodes; distance++)
        if (moe_take_relayed(p, cta, (mk_node_of(t, t->rank) + distance) % t->nodes, 0, &others))
            return 1;
    return moe_deliver(MK_FRESH(p), cta);
}

MK_ROLE int moe_dispatch_begin(const struct moe_dispatch_halves_plan *plan, struct mk_cta *cta)
{
    const struct moe_dispatch_plan *p = &plan->by[cta->epoch & 1];
    return cta->role == MK_INTER_SEND ? moe_halves_put(p, &plan->halves, cta)
                                      : moe_halves_push(p, &plan->halves, cta);
}

MK_ROLE int moe_dispatch_end(const struct moe_dispatch_halves_plan *plan, struct mk_cta *cta)
{
    return moe_halves_take(&plan->by[cta->epoch & 1], cta);
}
