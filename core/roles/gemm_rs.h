/* GEMM+ReduceScatter: C_r = rows r of sum over ranks of A_r * B_r, as one schedule for every
 * executor.
 *
 *   A_r [M, K], B_r [K, N]   each rank's own: K is what is split over the ranks
 *   C_r [M/W, N]             block r of the sum, on rank r
 *
 *   compute        takes the blocks in the order in which they are needed elsewhere. A tile of a
 *                  block on another's rail goes to its reducer: the rank of its node that lies on
 *                  the owner's rail (on the owner's own node, the owner). To a tile of a block on
 *                  its own rail it adds, before it stores it, what the ranks of its node have of
 *                  it; then, of its own block, the sums of the other nodes. So such a tile is
 *                  stored once: as C, or as this node's sum of it
 *   inter_send     puts this node's sums along the rail
 *
 * Nothing else adds, and nothing passes through memory twice: a partial sum is stored where who
 * adds it reads it.
 *
 * Minimum bytes. A sum over a tree of n contributors needs n - 1 messages of its size, and each
 * rank has the block of one rank of each node to reduce: (gpus - 1) * nodes blocks come in over
 * NVLink, and of its own block (nodes - 1) sums over the network. The schedule moves exactly these,
 * (M/W) N elements each; nothing crosses twice.
 *
 * An element that moves is bf16 in fast mode, and fp32 in deterministic mode (GPUs send its upper
 * three bytes): with bf16 terms, and u = 1.66e-3 the relative error of one rounding to bf16, sqrt(1
 * + 7/8) u = 2.3e-3 would miss the 2e-3 that one rounding at the end keeps. In both modes each
 * contributor has a slot of its own, and terms are added in fp32: to the adding rank's own product,
 * which is never rounded, those of its node in rank order, then the sums of other nodes in node
 * order: the same bits on every run.
 *
 * One shot, for few rows, in one node: a rank's tiles have rows of all ranks, so that B is read
 * once and no tile is mostly empty; every rank takes the same tiles in the same order. When its
 * product is whole, a rank stores its sums of each row at the ranks that end with it (of all rows,
 * where the sum is gathered: then it rounds its own, too, and all ranks get the same bits), and
 * adds to its own what comes from them. No tile waits before its product. That moves (gpus - 1)
 * blocks into a rank; where the sum is gathered (gpus - 1) W of them, W / 2 times the minimum, but
 * in one step.
 *
 * No wait closes a circle: see gemm_rs_turn; with one shot a tile's sums leave before the wait for
 * the same tile's of others; tiles of other nodes' blocks come before all of one's
 * own node's, and inter_send waits for those alone.
 *
 * No credits are needed with two buffers. Buffer e & 1 is written again in launch e + 2, which a
 * rank begins after its launch e + 1 has ended; for that it needed tiles of e + 1 from every rank
 * of its node, and sums of e + 1 from every rank of its rail, who had all ended launch e and read
 * the buffer. (With one shot, too: each rank ends with rows of some tile.) `sums` is one buffer: it
 * is drained before the launch ends.
 *
 * Where these are few (the plan's `words`) no flag stands between: each word of 8 bytes is half
 * data and half the launch's number, so who adds them sees in the words whether they are here. A
 * word is written once a launch, in one of two buffers; none is cleared.
 *
 * Flags of a rank: partial[node][tile][local] (counts parts of a tile that a rank of this node has
 * stored for the owner in `node` on this rank's rail; where that is this rank, of its sum),
 * sum[node][unit] (a node's sum is here). With one shot partial[tile][local]: parts of a tile that
 * a rank has stored here. Where a put takes several units, the first one's flag speaks for all. */
#ifndef MK_ROLES_GEMM_RS_H
#define MK_ROLES_GEMM_RS_H

#include "core/roles/gemm_rs_plan.h"

/* compute, before a tile's products are added to: waits until all that is, is here. 1: the launch
 * is ending. */
MK_ROLE int gemm_rs_before(const struct gemm_rs_plan *p, struct mk_cta *cta,
                           const struct mk_tile *tile)
{
    uint32_t local = mk_local_of(&p->topo, p->topo.rank), node = mk_node_of(&p->topo, p->topo.rank);
    uint32_t owner_node = mk_node_of(&p->topo, tile->slab), index = tile->id % p->shard_tiles;
    if (tile->c_local != local || p->shots == 1)
        return 0;
    for (uint32_t i = 0; i < p->topo.gpus; i++)
        if (i != local && mk_cta_wait(cta, gemm_rs_partial_flag(p, owner_node, i, index),
                                      cta->epoch * MK_TILE_PARTS, MK_CAUSE_DATA))
            return 1;
    if (owner_node != node)
        return 0;
    for (uint32_t distance = 1; distance < p->topo.nodes; distance++)
        for (uint32_t unit = index * p->pieces; unit < (index + 1) * p->pieces; unit++) {
            struct gemm_rs_area a = gemm_rs_unit(p, unit);
            uint32_t from = (node + p->topo.nodes - distance) % p->topo.nodes;
            if (a.rows && mk_cta_wait(cta, gemm_rs_sum_flag(p, from, gemm_rs_put_unit(p, unit)),
                                      cta->epoch, MK_CAUSE_NETWORK))
                return 1;
        }
    return 0;
}

/* compute: `parts` of MK_TILE_PARTS of the tile are stored. */
MK_ROLE void gemm_rs_after(const struct gemm_rs_plan *p, struct mk_cta *cta,
                           const struct mk_tile *tile, uint32_t parts)
{
    uint32_t flag =
        gemm_rs_partial_flag(p, mk_node_of(&p->topo, tile->slab),
                             mk_local_of(&p->topo, p->topo.rank), tile->id % p->shard_tiles);
    if (tile->slab != p->topo.rank)
        mk_cta_add(cta, tile->c_local, flag, parts);
}

/* One shot, compute: `parts` of MK_TILE_PARTS of the tile's sums are stored at all ranks that want
 * them. */
MK_ROLE void gemm_rs_announce(const struct gemm_rs_plan *p, struct mk_cta *cta,
                              const struct mk_tile *tile, uint32_t parts)
{
    uint32_t local = mk_local_of(&p->topo, p->topo.rank), gpus = p->topo.gpus;
    for (uint32_t step = 1; step < gpus; step++) {
        uint32_t peer = (local + gpus - step) % gpus;
        if (gemm_rs_wants(p, peer, tile->row, tile->rows))
            mk_cta_add(cta, peer, gemm_rs_partial_flag(p, 0, local, tile->id), parts);
    }
}

/* One shot, compute: waits until all that is added to the tile here has come. 1: the launch is
 * ending. */
MK_ROLE int gemm_rs_await(const struct gemm_rs_plan *p, struct mk_cta *cta,
                          const struct mk_tile *tile)
{
    uint32_t local = mk_local_of(&p->topo, p->topo.rank);
    if (!gemm_rs_wants(p, local, tile->row, tile->rows))
        return 0;
    for (uint32_t i = 0; i < p->topo.gpus; i++)
        if (i != local && mk_cta_wait(cta, gemm_rs_partial_flag(p, 0, i, tile->id),
                                      cta->epoch * MK_TILE_PARTS, MK_CAUSE_DATA))
            return 1;
    return 0;
}

/* Item by item: puts of the next node's block, of the one behind, ..., in the order of computation.
 * A put takes several tiles: a NIC has so much to do for each, and softnic more. */
MK_ROLE int gemm_rs_send(const struct gemm_rs_plan *p, struct mk_cta *cta)
{
    uint32_t nodes = p->topo.nodes, node = mk_node_of(&p->topo, p->topo.rank),
             local = mk_local_of(&p->topo, p->topo.rank);
    uint32_t puts = gemm_rs_puts(p);
    for (uint32_t item = cta->index; item < (nodes - 1) * puts; item += cta->count) {
        p = MK_FRESH(p);
        uint32_t owner_node = (node + 1 + item / puts) % nodes, unit;
        struct gemm_rs_run run = gemm_rs_put_at(p, item % puts, &unit);
        struct mk_chunk c = gemm_rs_sum_chunk(p, owner_node, run, unit, cta->epoch);
        if (!c.bytes)
            continue;
        for (uint32_t i = 0; i < run.tiles; i++)
            if (mk_cta_wait(cta, gemm_rs_partial_flag(p, owner_node, local, run.tile + i),
                            cta->epoch * MK_TILE_PARTS, MK_CAUSE_DATA))
                return 1;
        if (mk_cta_put(cta, mk_rank_at(&p->topo, owner_node, local), &c,
                       gemm_rs_sum_flag(p, node, unit)))
            return 1;
    }
    return 0;
}

MK_ROLE int gemm_rs_inter_send(const struct gemm_rs_plan *p, struct mk_cta *cta)
{
    if (gemm_rs_send(p, cta))
        return 1;
    return mk_cta_drain(cta);
}

#endif
