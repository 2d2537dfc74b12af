/* GEMM+ReduceScatter: C_r = rows r of sum over ranks of A_r * B_r, as one schedule for every
 * executor.
 *
 *   A_r [M, K], B_r [K, N]   each rank's own: K is what is split over the ranks
 *   C_r [M/W, N]             block r of the sum, on rank r
 *
 *   compute        takes the blocks in the order in which they are needed elsewhere; a tile goes to
 *   its reducer:
 *                  the rank of its node that lies on the owner's rail (on the owner's own node, the
 *                  owner)
 *   inter_reduce   a reducer adds its node's partial sums of a unit and puts the sum along the
 *   rail; an owner adds, in
 *                  node order, the sums of the other nodes and the partial sums of its own
 *
 * A unit is a tile or a part of one, and lies in one piece wherever partial sums lie: a sum begins
 * as soon as every rank has stored that tile, and what is left to do after the last tile is little.
 *
 * Minimum bytes. A sum over a tree of n contributors needs n - 1 messages of its size, and each
 * rank has the block of one rank of each node to reduce: (gpus - 1) * nodes blocks come in over
 * NVLink, and of its own block (nodes - 1) sums over the network. The schedule moves exactly these,
 * (M/W) N elements each; nothing crosses twice.
 *
 * An element is bf16 in fast mode: up to 8 ranks of a node add their tiles in flight to one slot (u
 * = 1.66e-3 is the relative error of one rounding to bf16; 8 terms and their 7 rounded sums make
 * 2.3 u, with the result's own rounding 2.5 u = 4.2e-3). More ranks would not keep to 5e-3; they
 * store into slots of their own, as all do in deterministic mode, where an element is fp32: with
 * bf16 terms sqrt(1 + 7/8) u = 2.3e-3 would miss the 2e-3 that one rounding at the end keeps. The
 * sum is then added in rank order within a node and in node order, and has the same bits on every
 * run.
 *
 * No credits are needed with two buffers. Buffer e & 1 is written again in launch e + 2, which a
 * rank begins after its launch e + 1 has ended; for that it needed tiles of e + 1 from every rank
 * of its node, and sums of e + 1 from every rank of its rail, and those ranks had ended launch e
 * and read (and cleared) the buffer. `sums` is one buffer: it is drained before the launch ends.
 *
 * Flags of a rank: partial[node][tile][local] (counts parts of a tile that a rank of this node has
 * stored for the owner in `node` on this rank's rail), sum[node][unit] (a node's sum is here). */
#ifndef MK_ROLES_GEMM_RS_H
#define MK_ROLES_GEMM_RS_H

#include "core/roles/gemm_rs_plan.h"

/* `parts` of MK_TILE_PARTS of the tile are stored. */
MK_ROLE void gemm_rs_after(const struct gemm_rs_plan *p, struct mk_cta *cta,
                           const struct mk_tile *tile, uint32_t parts)
{
    uint32_t flag =
        gemm_rs_partial_flag(p, mk_node_of(&p->topo, tile->slab),
                             mk_local_of(&p->topo, p->topo.rank), tile->id % p->shard_tiles);
    mk_cta_add(cta, tile->c_local, flag, parts);
}

/* Waits until all that this rank adds of a unit of the block of `owner_node` is here: tiles of the
 * ranks of this node, and of its own block the sums of the other nodes. */
MK_ROLE int gemm_rs_await(const struct gemm_rs_plan *p, struct mk_cta *cta, uint32_t owner_node,
                          uint32_t unit)
{
    uint32_t nodes = p->topo.nodes, node = mk_node_of(&p->topo, p->topo.rank);
    if (mk_cta_wait_all(cta, gemm_rs_partial_flag(p, owner_node, 0, unit / p->pieces), p->topo.gpus,
                        cta->epoch * MK_TILE_PARTS, MK_CAUSE_DATA))
        return 1;
    for (uint32_t distance = 1; distance < nodes && owner_node == node; distance++)
        if (mk_cta_wait(cta, gemm_rs_sum_flag(p, (node + nodes - distance) % nodes, unit),
                        cta->epoch, MK_CAUSE_NETWORK))
            return 1;
    return 0;
}

/* Sends this node's sum `s` of a unit to its owner. */
MK_ROLE int gemm_rs_send(const struct gemm_rs_plan *p, struct mk_cta *cta, uint32_t owner_node,
                         uint32_t unit, const struct mk_sum *s)
{
    uint32_t node = mk_node_of(&p->topo, p->topo.rank), local = mk_local_of(&p->topo, p->topo.rank);
    struct mk_chunk c;
    c.id = s->id;
    c.space = MK_SPACE_HEAP;
    c.source = s->destination;
    c.destination = p->staged[cta->epoch & 1] +
                    gemm_rs_node_slab(p, owner_node, node) * p->slab_pitch +
                    gemm_rs_unit(p, unit).first * p->element_bytes;
    c.bytes = s->elements * p->element_bytes;
    return mk_cta_put(cta, mk_rank_at(&p->topo, owner_node, local), &c,
                      gemm_rs_sum_flag(p, node, unit));
}

/* Item by item: units of the next node's block, of the one behind, ..., of its own. */
MK_ROLE int gemm_rs_inter_reduce(const struct gemm_rs_plan *p, struct mk_cta *cta)
{
    uint32_t nodes = p->topo.nodes, node = mk_node_of(&p->topo, p->topo.rank);
    for (uint32_t item = cta->index; item < nodes * p->units; item += cta->count) {
        p = MK_FRESH(p);
        uint32_t owner_node = (node + 1 + item / p->units) % nodes, unit = item % p->units;
        struct mk_sum s = gemm_rs_sum(p, owner_node, unit, cta->epoch);
        if (!s.elements)
            continue;
        if (gemm_rs_await(p, cta, owner_node, unit))
            return 1;
        mk_cta_reduce(cta, &s);
        if (owner_node != node && gemm_rs_send(p, cta, owner_node, unit, &s))
            return 1;
    }
    return nodes > 1 ? mk_cta_drain(cta) : 0;
}

#endif
