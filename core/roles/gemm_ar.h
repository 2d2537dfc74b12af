/* GEMM+AllReduce: C = sum over ranks of A_r * B_r, whole on every rank, as one schedule for every executor.
 *
 *   A_r [M, K], B_r [K, N]   each rank's own
 *   C_r [M, N]               the whole sum, the same bits on every rank
 *
 *   compute        as in core/roles/gemm_rs.h: tiles go to their reducer as they are made
 *   inter_reduce   reduces as there; an owner puts each unit that it has summed along the rail, and announces
 * it; then it delivers units to C as they come in intra_comm     pushes the units that its rank has summed,
 * and those that the rail brings, to the peers of the node
 *
 * Minimum bytes: those of the reduction (core/roles/gemm_rs.h), then of a gather: every rank needs W blocks
 * and has one; a node needs the (nodes - 1) gpus blocks of others once, (nodes - 1) per rail; the (gpus - 1)
 * nodes others come over NVLink. A block is (M/W) N elements: bf16 when gathered, and the plan's number of
 * partial sums when reduced.
 *
 * The gathered sum has one buffer and needs no credits: a unit of launch e + 1 is whole only once every
 * rank's tiles of e + 1 are in it, and a rank that has begun e + 1 has ended e and read the buffer.
 *
 * Flags of a rank: gemm_rs's, and whole[owner][unit]. */
#ifndef MK_ROLES_GEMM_AR_H
#define MK_ROLES_GEMM_AR_H

#include "core/roles/gemm_ar_plan.h"
#include "core/roles/gemm_rs.h"

/* Sums the units of this rank's own block, sends them along the rail, announces them. */
MK_ROLE int gemm_ar_total(const struct gemm_ar_plan *p, struct mk_cta *cta)
{
    const struct mk_topo *t = &p->rs.topo;
    uint32_t node = mk_node_of(t, t->rank), local = mk_local_of(t, t->rank);
    for (uint32_t unit = cta->index; unit < p->rs.units; unit += cta->count) {
        struct mk_chunk c = gemm_ar_unit(p, t->rank, unit);
        struct mk_sum s =
            gemm_rs_total(&p->rs, unit, cta->epoch, MK_SPACE_HEAP, p->whole + t->rank * p->block_pitch);
        if (!c.bytes)
            continue;
        if (gemm_rs_await_total(&p->rs, cta, unit))
            return 1;
        mk_cta_reduce(cta, &s);
        for (uint32_t distance = 1; distance < t->nodes; distance++)
            if (mk_cta_put(cta, mk_rank_at(t, (node + distance) % t->nodes, local), &c,
                           gemm_ar_whole_flag(p, t->rank, unit)))
                return 1;
        mk_cta_signal(cta, local, gemm_ar_whole_flag(p, t->rank, unit), cta->epoch);
    }
    return 0;
}

MK_ROLE int gemm_ar_await(const struct gemm_ar_plan *p, struct mk_cta *cta, uint32_t owner, uint32_t unit)
{
    return mk_cta_wait(cta, gemm_ar_whole_flag(p, owner, unit), cta->epoch,
                       gemm_ar_by_network(p, owner) ? MK_CAUSE_NETWORK : MK_CAUSE_DATA);
}

MK_ROLE int gemm_ar_inter_reduce(const struct gemm_ar_plan *p, struct mk_cta *cta)
{
    const struct mk_topo *t = &p->rs.topo;
    uint32_t node = mk_node_of(t, t->rank), local = mk_local_of(t, t->rank);
    if (gemm_rs_send(&p->rs, cta) || gemm_ar_total(p, cta))
        return 1;
    for (uint32_t unit = cta->index; unit < p->rs.units; unit += cta->count)
        for (uint32_t i = 0; i < mk_world(t); i++) { /* this node's blocks first, this rank's foremost */
            uint32_t owner = mk_rank_at(t, (node + i / t->gpus) % t->nodes, (local + i) % t->gpus);
            struct mk_sum s = gemm_ar_deliver(p, owner, unit);
            if (!s.elements)
                continue;
            if (gemm_ar_await(p, cta, owner, unit))
                return 1;
            mk_cta_reduce(cta, &s);
        }
    return 0;
}

/* Every rail's units become whole at about the same time, so they are taken side by side. At step s every
 * rank pushes to local rank - s, so each step is a permutation and no ingress is shared. */
MK_ROLE int gemm_ar_intra_comm(const struct gemm_ar_plan *p, struct mk_cta *cta)
{
    const struct mk_topo *t = &p->rs.topo;
    uint32_t node = mk_node_of(t, t->rank), local = mk_local_of(t, t->rank), turn = 0;
    for (uint32_t unit = 0; unit < p->rs.units; unit++)
        for (uint32_t distance = 0; distance < t->nodes; distance++) {
            uint32_t owner = mk_rank_at(t, (node + t->nodes - distance) % t->nodes, local);
            struct mk_chunk c = gemm_ar_unit(p, owner, unit);
            if (!c.bytes)
                continue;
            for (uint32_t step = 1; step < t->gpus; step++) {
                uint32_t peer = (local + t->gpus - step) % t->gpus;
                if (turn++ % cta->count != cta->index)
                    continue;
                if (gemm_ar_await(p, cta, owner, unit))
                    return 1;
                mk_cta_copy(cta, peer, &c);
                mk_cta_signal(cta, peer, gemm_ar_whole_flag(p, owner, unit), cta->epoch);
            }
        }
    return 0;
}

#endif
