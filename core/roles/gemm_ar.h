/* GEMM+AllReduce: C = sum over ranks of A_r * B_r, whole on every rank, as one schedule for every
 * executor.
 *
 *   A_r [M, K], B_r [K, N]   each rank's own
 *   C_r [M, N]               the whole sum, the same bits on every rank
 *
 *   compute        as in core/roles/gemm_rs.h: tiles go to their reducer as they are made
 *   inter_reduce   reduces as there; an owner puts each unit that it has summed along the rail, and
 *   announces it;
 *                  between its own units it delivers those before of all owners to C
 *   intra_comm     pushes the units that its rank has summed, and those that the rail brings, to
 *   the peers of the node
 *
 * Minimum bytes: those of the reduction (core/roles/gemm_rs.h), then of a gather: every rank needs
 * W blocks and has one; a node needs the (nodes - 1) gpus blocks of others once, (nodes - 1) per
 * rail; the (gpus - 1) nodes others come over NVLink. A block is (M/W) N elements: bf16 when
 * gathered, and the plan's number of partial sums when reduced.
 *
 * The gathered sum has one buffer and needs no credits: a unit of launch e + 1 is whole only once
 * every rank's tiles of e + 1 are in it, and a rank that has begun e + 1 has ended e and read the
 * buffer.
 *
 * Flags of a rank: gemm_rs's, and whole[owner][unit]. */
#ifndef MK_ROLES_GEMM_AR_H
#define MK_ROLES_GEMM_AR_H

#include "core/roles/gemm_ar_plan.h"
#include "core/roles/gemm_rs.h"

/* A sum of this rank's own block goes into the heap, from where others get it. */
MK_ROLE void gemm_ar_redirect(const struct gemm_ar_plan *p, uint32_t unit, struct mk_sum *s)
{
    struct gemm_rs_area a = gemm_rs_unit(&p->rs, unit);
    s->space = MK_SPACE_HEAP;
    s->row_pitch = (uint64_t)a.cols * 2;
    s->destination = p->whole + p->rs.topo.rank * p->block_pitch + a.first * 2;
}

/* Sends a unit that this rank has summed along the rail, and announces it. */
MK_ROLE int gemm_ar_announce(const struct gemm_ar_plan *p, struct mk_cta *cta, uint32_t unit)
{
    const struct mk_topo *t = &p->rs.topo;
    uint32_t node = mk_node_of(t, t->rank), local = mk_local_of(t, t->rank);
    uint32_t flag = gemm_ar_whole_flag(p, t->rank, unit);
    struct mk_chunk c = gemm_ar_unit(p, t->rank, unit);
    for (uint32_t distance = 1; distance < t->nodes; distance++)
        if (mk_cta_put(cta, mk_rank_at(t, (node + distance) % t->nodes, local), &c, flag))
            return 1;
    mk_cta_signal(cta, local, flag, cta->epoch);
    return 0;
}

MK_ROLE int gemm_ar_await(const struct gemm_ar_plan *p, struct mk_cta *cta, uint32_t owner,
                          uint32_t unit)
{
    return mk_cta_wait(cta, gemm_ar_whole_flag(p, owner, unit), cta->epoch,
                       gemm_ar_by_network(p, owner) ? MK_CAUSE_NETWORK : MK_CAUSE_DATA);
}

/* Turns between summing a unit and delivering it, between nodes: a unit comes a network latency
 * after its owner has summed it, and a CTA that waits for it sums nothing meanwhile. Simulated on 2
 * x 4 H200s (`mkernel sim gemm_ar --shape 4096,1024,512 --gpus 4 --roles
 * compute=4,intra_comm=2,inter_reduce=4`): 98.8 us at 1, 60.8 at 4, 54.6 at 16, 54.0 at 64. */
#define GEMM_AR_LAG 16

/* Step `step` of an inter_reduce CTA. First its units of other nodes' blocks; then in turn one unit
 * of its own block, and of all blocks (this node's first, this rank's foremost) the unit that the
 * turn before (between nodes: some turns before) has summed here. Owners keep about the same pace,
 * so what is delivered is there or nearly. Returns 1 where the launch is ending, -1 behind the last
 * step. */
MK_ROLE int gemm_ar_reduce_step(const struct gemm_ar_plan *p, struct mk_cta *cta, uint32_t step)
{
    const struct mk_topo *t = &p->rs.topo;
    uint32_t node = mk_node_of(t, t->rank), local = mk_local_of(t, t->rank), world = mk_world(t);
    uint32_t foreign = (t->nodes - 1) * p->rs.units; /* items; see gemm_rs_inter_reduce */
    uint32_t sends = foreign > cta->index ? (foreign - 1 - cta->index) / cta->count + 1 : 0;
    uint32_t item = cta->index + step * cta->count, unit = item % p->rs.units, owner = t->rank,
             delivers = 0;
    uint32_t owner_node = (node + 1 + item / p->rs.units) % t->nodes;
    if (step >= sends) {
        uint32_t turn = (step - sends) / (1 + world), place = (step - sends) % (1 + world);
        delivers = place > 0;
        uint32_t lag = t->nodes > 1 ? GEMM_AR_LAG : 1;
        if (turn >= lag && (turn - lag) * cta->count + cta->index >= p->rs.units)
            return -1;
        if (delivers && turn < lag)
            return 0;
        unit = (delivers ? turn - lag : turn) * cta->count + cta->index;
        if (unit >= p->rs.units)
            return 0;
        owner_node = node;
        if (delivers)
            owner = mk_rank_at(t, (node + (place - 1) / t->gpus) % t->nodes,
                               (local + place - 1) % t->gpus);
    }
    struct mk_sum s = delivers ? gemm_ar_deliver(p, owner, unit)
                               : gemm_rs_sum(&p->rs, owner_node, unit, cta->epoch);
    if (!s.elements)
        return 0;
    if (delivers ? gemm_ar_await(p, cta, owner, unit)
                 : gemm_rs_await(&p->rs, cta, owner_node, unit))
        return 1;
    if (!delivers && owner_node == node)
        gemm_ar_redirect(p, unit, &s);
    mk_cta_reduce(cta, &s);
    if (delivers)
        return 0;
    return owner_node == node ? gemm_ar_announce(p, cta, unit)
                              : gemm_rs_send(&p->rs, cta, owner_node, unit, &s);
}

MK_ROLE int gemm_ar_inter_reduce(const struct gemm_ar_plan *p, struct mk_cta *cta)
{
    int result = 0;
    for (uint32_t step = 0; !result; step++)
        result = gemm_ar_reduce_step(MK_FRESH(p), cta, step);
    if (result > 0)
        return 1;
    return p->rs.topo.nodes > 1 ? mk_cta_drain(cta) : 0;
}

/* Every rail's units become whole at about the same time, so they are taken side by side. At step s
 * every rank pushes to local rank - s, and neighbouring turns go to different peers. Turns are
 * dealt out to the CTAs. */
MK_ROLE int gemm_ar_intra_comm(const struct gemm_ar_plan *p, struct mk_cta *cta)
{
    const struct mk_topo *t = &p->rs.topo;
    uint32_t node = mk_node_of(t, t->rank), local = mk_local_of(t, t->rank);
    uint32_t steps = t->gpus - 1, unit_turns = t->nodes * steps;
    for (uint32_t turn = cta->index; turn < p->rs.units * unit_turns; turn += cta->count) {
        p = MK_FRESH(p);
        t = &p->rs.topo;
        uint32_t unit = turn / unit_turns, distance = turn % unit_turns / steps,
                 step = 1 + turn % steps;
        uint32_t owner = mk_rank_at(t, (node + t->nodes - distance) % t->nodes, local);
        uint32_t peer = (local + t->gpus - step) % t->gpus;
        struct mk_chunk c = gemm_ar_unit(p, owner, unit);
        if (!c.bytes)
            continue;
        if (gemm_ar_await(p, cta, owner, unit))
            return 1;
        mk_cta_copy(cta, peer, &c);
        mk_cta_signal(cta, peer, gemm_ar_whole_flag(p, owner, unit), cta->epoch);
    }
    return 0;
}

#endif
