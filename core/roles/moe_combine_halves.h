/* moe_combine in two halves (core/cta/halves.h), of the parts of a whole launch.
 *
 * Roles
 *   intra_comm    first half: makes all tables, and this rank's sums for other ranks
 *   inter_send    first half: puts counts and records; then adds what the ranks of this node send
 *                 for other nodes' tokens, and puts these sums
 *   inter_reduce  second half: adds all to Y
 *   The first half waits for the other ranks' first halves, since nothing is kept from dispatch:
 *   the records of tokens whose rows lie here come from their ranks.
 *
 * Buffer reuse
 *   Sums have one buffer, as in whole launches: they move once all ranks have begun the launch. Of
 *   puts and their sources as in dispatch (core/roles/moe_dispatch_halves.h).
 *
 * Deadlock freedom
 *   First halves wait for first halves alone: what is put for sums that ranks of the node send, and
 *   these for tables. The second half waits for both, and nothing for it. */
#pragma once

#include "core/roles/moe_combine.h"
#include "core/roles/moe_dispatch_halves.h"

/* This CTA's share of the sums of other nodes' tokens that reach so far. */
MK_ROLE int moe_halves_add_away(const struct moe_ffn_plan *p, struct mk_cta *cta,
                                enum mk_reach reach)
{
    struct moe_ffn_walk at = {0, 0, 0, cta->index};
    struct moe_ffn_job job;
    while (moe_ffn_job_away(p, cta, &at, &job))
        if (job.reach == reach && moe_ffn_add(p, cta, &job))
            return 1;
    return 0;
}

/* ... of units `first` to `end` of this node's. */
MK_ROLE int moe_halves_add_here(const struct moe_ffn_plan *p, struct mk_cta *cta, uint32_t first,
                                uint32_t end)
{
    struct moe_ffn_job job;
    for (uint32_t unit = first + cta->index; unit < end; unit += cta->count)
        if (moe_ffn_job_here(p, unit, &job) && moe_ffn_add(p, cta, &job))
            return 1;
    return 0;
}

/* Units of this node's tokens that are for other ranks: the first ones (moe_ffn_job_here). */
MK_PURE uint32_t moe_halves_for_others(const struct moe_ffn_plan *p)
{
    return p->dispatch.chunks * moe_ffn_parts(p, 0) * (p->dispatch.topo.gpus - 1);
}

MK_ROLE int moe_halves_add_others(const struct moe_ffn_plan *p, const struct moe_halves *h,
                                  struct mk_cta *cta)
{
    return moe_halves_await_left(h, cta) || moe_make_tables(&p->dispatch, cta) ||
           moe_await_routed(&p->dispatch, cta) || moe_halves_add_away(p, cta, MK_REACH_RANK) ||
           moe_halves_add_here(p, cta, 0, moe_halves_for_others(p));
}

MK_ROLE int moe_halves_put_sums(const struct moe_ffn_plan *p, const struct moe_halves *h,
                                struct mk_cta *cta)
{
    return moe_halves_leave(&p->dispatch, h, cta) || moe_say(&p->dispatch, cta) ||
           moe_await_routed(&p->dispatch, cta) || moe_halves_add_away(p, cta, MK_REACH_NODE);
}

MK_ROLE int moe_halves_add_own(const struct moe_ffn_plan *p, struct mk_cta *cta)
{
    return moe_await_routed(&p->dispatch, cta) ||
           moe_halves_add_here(p, cta, moe_halves_for_others(p), moe_ffn_units(p));
}

MK_ROLE int moe_combine_begin(const struct moe_combine_halves_plan *plan, struct mk_cta *cta)
{
    const struct moe_ffn_plan *p = &plan->combine.layer;
    return cta->role == MK_INTER_SEND ? moe_halves_put_sums(p, &plan->halves, cta)
                                      : moe_halves_add_others(p, &plan->halves, cta);
}

MK_ROLE int moe_combine_end(const struct moe_combine_halves_plan *plan, struct mk_cta *cta)
{
    return moe_halves_add_own(&plan->combine.layer, cta);
}
