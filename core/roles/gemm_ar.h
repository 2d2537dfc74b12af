/* GEMM+AllReduce: C = sum over ranks of A_r B_r, whole on every rank. One schedule for every
 * executor.
 *
 * Operands
 *   A_r [M, K], B_r [K, N]   each rank's own
 *   C_r [M, N]               the whole sum, the same bits on every rank
 *   M need not divide by W: blocks then have M/W rows rounded up, the last ones fewer or none. All
 *   blocks have the same tiles, flags and room in the heap, so that no wait depends on M. Rows
 *   behind row M are neither read from A nor written to C; they move only where a put takes a whole
 *   block. Blocks are of rows, or all of M rows and N/W columns each (shots is 4): of few rows a
 *   tile is then as full as can be, and a rank reads B once where for blocks of rows it reads B for
 *   each. All blocks have as many columns where N divides by 8 W; else whole tiles, and the last
 *   ones fewer or none.
 *
 * Roles
 *   compute       reduces as in core/roles/gemm_rs.h. Each tile of its own block it also pushes,
 *                 from C, to the peers of the node.
 *   inter_send    puts sums as there, then this rank's own tiles along the rail
 *   intra_comm    forwards to the peers of the node what the rail brings, and copies to C what has
 *                 come from all other ranks. On one node whose ranks have C in their heaps compute
 *                 has stored it there already, and intra_comm only waits.
 *
 * Bytes moved
 *   Those of the reduction (core/roles/gemm_rs.h), then those of a gather. Every rank needs W
 *   blocks and has one; a node needs the (nodes - 1) gpus blocks of other nodes once, (nodes - 1)
 *   of them on each rail; the (gpus - 1) nodes others come over NVLink. A block has M N / W
 *   elements, bf16 when it is gathered, and partial sums' numbers when it is reduced.
 *
 * Buffer reuse
 *   The gathered sum has one buffer and needs no credits: a tile of launch e + 1 is complete only
 *   when every rank's partial sums of e + 1 are in it, and a rank that has begun e + 1 has ended e
 *   and read the buffer. The same holds of a C in the heap.
 *
 * Deadlock freedom
 *   The reduction waits for nothing here. Of a tile, the units that the network brings come before
 *   those that a peer forwards, on every rank. So, by induction over the order of units, each unit
 *   is forwarded.
 *
 * Flags of a rank
 *   gemm_rs's, and
 *   whole[owner][unit]   the epoch where a put brings the unit; else it counts parts. The flag of
 *                        the first unit speaks for all units of one put, of a tile that its owner
 *                        pushes, and of a rank's own tile. */
#pragma once

#include "core/roles/gemm_ar_plan.h"
#include "core/roles/gemm_rs.h"

/* Of any rank: this rank's own tile is here. */
MK_PURE uint32_t gemm_ar_own_flag(const struct gemm_ar_plan *p, const struct mk_tile *tile)
{
    return gemm_ar_whole_flag(p, p->rs.topo.rank, tile->id % p->rs.shard_tiles * p->rs.pieces);
}

/* Pushes rows of a tile of this rank's own block to the peer `step` behind it, or stages them in
 * its own heap (0). Which local rank that is. */
MK_ROLE uint32_t gemm_ar_push(const struct gemm_ar_plan *p, struct mk_cta *cta,
                              const struct mk_tile *tile, uint32_t first, uint32_t rows,
                              uint32_t step)
{
    p = MK_FRESH(p);
    const struct mk_topo *t = &p->rs.topo;
    uint32_t peer = (mk_local_of(t, t->rank) + t->gpus - step) % t->gpus;
    struct mk_chunk c = gemm_ar_rows(p, tile, first);
    if (rows)
        mk_cta_copy_rows(cta, peer, &c, rows, (uint64_t)p->rs.n * 2,
                         p->direct ? (uint64_t)p->rs.n * 2 : c.bytes);
    return peer;
}

/* compute: rows [first, first + rows) of the tile, `parts` of MK_TILE_PARTS of it, are stored; of
 * its own block, in C. (No rows: whoever multiplied has stored them in C of the peers, too.)
 * Between nodes they are staged first, from where they are put. Then come the peers, who are told
 * behind all copies by one fence: on eight GPUs, as the simulator says, seven took 3 us each.
 * (apart: each is told behind its own, since a GPU's kernels of FP8 and of a tree have no registers
 * for more.) */
MK_ROLE void gemm_ar_after(const struct gemm_ar_plan *p, struct mk_cta *cta,
                           const struct mk_tile *tile, uint32_t first, uint32_t rows,
                           uint32_t parts, int apart)
{
    if (tile->slab != p->rs.topo.rank) {
        gemm_rs_after(&p->rs, cta, tile, parts);
        return;
    }
    for (uint32_t step = p->rs.topo.nodes > 1 ? 0 : 1; apart && step < p->rs.topo.gpus; step++) {
        uint32_t peer = gemm_ar_push(p, cta, tile, first, rows, step);
        p = MK_FRESH(p);
        mk_cta_add(cta, peer, gemm_ar_own_flag(p, tile), parts);
    }
    for (uint32_t pass = p->rs.topo.nodes > 1 ? 0 : 1; !apart && pass < 2; pass++) {
        for (uint32_t step = pass; step < (pass ? p->rs.topo.gpus : 1); step++)
            gemm_ar_push(p, cta, tile, first, rows, step);
        p = MK_FRESH(p);
        const uint32_t own = 1u << mk_local_of(&p->rs.topo, p->rs.topo.rank);
        mk_cta_add_each(cta, pass ? mk_locals(0, p->rs.topo.gpus) & ~own : own,
                        gemm_ar_own_flag(p, tile), parts);
    }
}

/* Waits for a unit of another's block, or for a tile of this rank's own. */
MK_ROLE int gemm_ar_await(const struct gemm_ar_plan *p, struct mk_cta *cta, uint32_t owner,
                          uint32_t unit)
{
    const struct mk_topo *t = &p->rs.topo;
    if (mk_by_network(&p->rs.topo, owner))
        return mk_cta_wait(cta, gemm_ar_whole_flag(p, owner, gemm_rs_put_unit(&p->rs, unit)),
                           cta->epoch, MK_CAUSE_NETWORK);
    if (mk_node_of(t, owner) == mk_node_of(t, t->rank))
        unit -= unit % p->rs.pieces;
    return mk_cta_wait(cta, gemm_ar_whole_flag(p, owner, unit), cta->epoch * MK_TILE_PARTS,
                       MK_CAUSE_DATA);
}

/* After the sums: its own tiles, put by put, to every other node. */
MK_ROLE int gemm_ar_inter_send(const struct gemm_ar_plan *p, struct mk_cta *cta)
{
    const struct mk_topo *t = &p->rs.topo;
    uint32_t node = mk_node_of(t, t->rank), local = mk_local_of(t, t->rank), others = t->nodes - 1;
    if (gemm_rs_send(&p->rs, cta))
        return 1;
    for (uint32_t item = cta->index; item < gemm_rs_puts(&p->rs) * others; item += cta->count) {
        uint32_t unit;
        p = MK_FRESH(p);
        struct gemm_rs_run run = gemm_rs_put_at(&p->rs, item / others, &unit);
        struct mk_chunk c = gemm_ar_put(p, run, unit);
        if (!c.bytes)
            continue;
        for (uint32_t i = 0; i < run.tiles; i++)
            if (gemm_ar_await(p, cta, p->rs.topo.rank, (run.tile + i) * p->rs.pieces))
                return 1;
        if (mk_cta_put(
                cta, mk_rank_at(&p->rs.topo, (node + 1 + item % others) % p->rs.topo.nodes, local),
                &c, gemm_ar_whole_flag(p, p->rs.topo.rank, unit)))
            return 1;
    }
    return mk_cta_drain(cta);
}

/* What intra_comm does at a time: it passes a unit that the network has brought on to one peer of
 * the node, or delivers one to C. */
struct gemm_ar_item {
    uint32_t owner, unit;
    uint32_t to; /* local rank; this one's own: it is delivered */
};

/* Of a unit: network ones for each peer, then deliveries. */
MK_PURE uint32_t gemm_ar_forwards(const struct gemm_ar_plan *p)
{
    return (p->rs.topo.nodes - 1) * (p->rs.topo.gpus - 1);
}

MK_PURE uint32_t gemm_ar_items(const struct gemm_ar_plan *p)
{
    return p->rs.units * (gemm_ar_forwards(p) + mk_world(&p->rs.topo) - 1);
}

/* Item `item`. Unit by unit in the order in which owners make them: first what the network brings
 * is passed on, peer by peer, so that as many CTAs as there are peers share a unit; then it is
 * delivered, then units of this node's, then those that peers pass on. */
MK_PURE struct gemm_ar_item gemm_ar_item(const struct gemm_ar_plan *p, uint32_t item)
{
    const struct mk_topo *t = &p->rs.topo;
    uint32_t forwards = gemm_ar_forwards(p), of_unit = forwards + mk_world(t) - 1,
             turn = item / of_unit, at = item % of_unit, own = mk_local_of(t, t->rank),
             peers = t->gpus - 1;
    uint32_t from =
        at < forwards ? at / peers + 1 : at - forwards + 1; /* by nodes; 0 is this rank */
    uint32_t node = mk_node_of(t, t->rank) + t->nodes - from % t->nodes, local = own;
    struct gemm_ar_item i;
    i.to = at < forwards ? (own + peers - at % peers) % t->gpus : own;
    if (at >= forwards)
        local += from / t->nodes;
    i.owner = mk_rank_at(t, node % t->nodes, local % t->gpus);
    i.unit = gemm_rs_order(&p->rs, turn / p->rs.pieces) * p->rs.pieces + turn % p->rs.pieces;
    return i;
}

/* intra_comm of shared tiles (core/roles/gemm_ar_shared.h): each tile, in the order in which they
 * are computed. */
MK_ROLE int gemm_ar_shared_intra_comm(const struct gemm_ar_plan *p, struct mk_cta *cta)
{
    for (uint32_t t = cta->index; t < p->rs.tiles; t += cta->count) {
        p = MK_FRESH(p);
        struct mk_tile tile;
        gemm_rs_tile(&p->rs, t, &tile);
        if (mk_cta_wait_others(cta, gemm_ar_shared_flag(p, tile.id, 0), p->rs.topo.gpus,
                               p->rs.topo.gpus, cta->epoch * MK_TILE_PARTS, MK_CAUSE_DATA))
            return 1;
        p = MK_FRESH(p);
        if (p->direct)
            continue;
        struct mk_chunk c = {.id = gemm_rs_unit_id(&p->rs, 0, tile.id * p->rs.pieces),
                             .space = MK_SPACE_HEAP,
                             .source = gemm_ar_shared_at(p, &tile, 0),
                             .destination = gemm_ar_shared_in_c(p, &tile, 0),
                             .bytes = tile.cols * 2ull};
        mk_cta_deliver(cta, MK_SPACE_ARG2, &c, tile.rows, p->rs.n * 2ull);
    }
    return 0;
}

/* shares: a constant, 0 in a GPU's kernels of which no plan has shared tiles: it would be a ninth
 * of those kernels. */
MK_ROLE int gemm_ar_intra_comm(const struct gemm_ar_plan *p, struct mk_cta *cta, int shares)
{
    if (shares && p->rs.shared_columns)
        return gemm_ar_shared_intra_comm(p, cta);
    if (p->rs.shots == 1) /* all has been summed here */
        return 0;
    for (uint32_t item = cta->index; item < gemm_ar_items(p); item += cta->count) {
        p = MK_FRESH(p);
        struct gemm_ar_item i = gemm_ar_item(p, item);
        if (!gemm_ar_area(p, i.owner, i.unit).rows)
            continue;
        if (gemm_ar_await(p, cta, i.owner, i.unit))
            return 1;
        p = MK_FRESH(p);
        if (p->direct)
            continue;
        i = gemm_ar_item(p, item); /* rather than kept */
        if (i.to != mk_local_of(&p->rs.topo, p->rs.topo.rank)) {
            struct mk_chunk c = gemm_ar_unit(p, i.owner, i.unit);
            mk_cta_copy(cta, i.to, &c);
            p = MK_FRESH(p);
            i = gemm_ar_item(p, item);
            mk_cta_add(cta, i.to, gemm_ar_whole_flag(p, i.owner, i.unit), MK_TILE_PARTS);
        } else {
            struct mk_chunk c = gemm_ar_delivery(p, i.owner, i.unit);
            mk_cta_deliver(cta, MK_SPACE_ARG2, &c, gemm_ar_area(p, i.owner, i.unit).rows,
                           (uint64_t)p->rs.n * 2);
        }
    }
    return 0;
}

/* intra_comm of a plan with an epilogue of rows, or without. */
MK_ROLE int gemm_ar_intra_comm_of_rows(const struct gemm_ar_plan *p, struct mk_cta *cta, int shares)
{
    if (gemm_ar_intra_comm(p, cta, shares))
        return 1;
    if (p->rs.norm.columns && gemm_rs_others_store(&p->rs))
        gemm_rs_ended(&p->rs, cta);
    return 0;
}
