/* GEMM+ReduceScatter: C_r = block r of the sum over ranks of A_r B_r. One schedule for every
 * executor.
 *
 * Operands
 *   A_r [M, K], B_r [K, N]   each rank's own: K is split over the ranks
 *   C_r [M/W, N]             block r of the sum, on rank r
 *
 * Roles
 *   compute       takes the blocks in the order in which other ranks need them. The reducer of a
 *                 block is the rank of this node on its owner's rail; on the owner's own node, the
 *                 owner. A tile of another reducer's block goes to that reducer. To a tile of a
 *                 block that this rank reduces, the epilogue adds what the other ranks of the node
 *                 have of it and, if the block is this rank's own, the other nodes' sums. Such a
 *                 tile is stored once: as C, or as this node's sum.
 *   inter_send    puts this node's sums along the rail
 *
 * No other role adds, and no partial sum passes through memory twice: it is stored where the
 * reducer reads it.
 *
 * Numbers
 *   Partial sums are bf16 in fast mode and fp32 in deterministic mode (GPUs send the upper three
 *   bytes). The bound of the check is 2e-3. One rounding to bf16 at the end has a relative error of
 *   u = 1.66e-3; bf16 terms would make it sqrt(1 + 7/8) u = 2.3e-3. In both modes each contributor
 *   has a slot of its own. The reducer starts from its own product, which is never rounded, and
 *   adds in fp32: the ranks of its node in rank order, then the other nodes in node order. So every
 *   run gives the same bits.
 *   Where they are the same everywhere (MK_EVERYWHERE), ranks add blocks of K, and reducers what
 *   ranks and nodes have, as core/cta/sum_tree.h says.
 *
 * One shot, for few rows on one node: a tile has rows of all ranks, so that B is read once and no
 * tile is mostly empty. Every rank takes the same tiles in the same order. When its product is
 * complete, a rank stores its sums of each row at the rank that owns the row (where the sum is
 * gathered: of all rows at all ranks, and then it rounds its own, too, so that all ranks get the
 * same bits). Then it adds what has come from the others to its own. No tile waits before its
 * product.
 *
 * Bytes moved
 *   A sum over a tree of n contributors takes n - 1 messages of its size, and each rank reduces the
 *   block of one rank of each node. So (gpus - 1) nodes blocks come in over NVLink, and (nodes - 1)
 *   sums of its own block over the network, (M/W) N elements each. The schedule moves these alone.
 *   One shot moves (gpus - 1) blocks into a rank; where the sum is gathered, (gpus - 1) W of them:
 *   W / 2 times the minimum, but in one step.
 *
 * Buffer reuse
 *   Two buffers, by epoch & 1, need no credits. A rank begins launch e + 2 after its launch e + 1
 *   has ended. For that it received tiles of e + 1 from every rank of its node and sums of e + 1
 *   from every rank of its rail, and those had ended launch e and read the buffer. (With one shot,
 *   too: each rank ends with rows of some tile.) `sums` has one buffer: its puts are drained before
 *   the launch ends.
 *
 * Deadlock freedom
 *   Waits form no cycle; gemm_rs_turn has the order. Tiles of other nodes' blocks come before all
 *   tiles of this node's own, and inter_send waits for the former alone. With one shot, a tile's
 *   sums leave before the wait for the same tile's sums of other ranks.
 *
 * Flags of a rank
 *   partial[node][tile][local]  counts parts of a tile that rank `local` of this node has stored
 *                               for the owner in `node` on this rank's rail; where `local` is this
 *                               rank, parts of this node's sum
 *   sum[node][unit]             the sum of a node is here. Where one put takes several units, the
 *                               flag of the first speaks for all.
 *   partial[tile][local]        with one shot: parts of a tile that a rank has stored here */
#pragma once

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
    const uint32_t local = mk_local_of(&p->topo, p->topo.rank),
                   flag = gemm_rs_partial_flag(p, 0, local, tile->id);
    uint32_t first = 0, end = p->topo.gpus;
    if (!p->gathers) { /* the owner of its rows */
        first = tile->row / p->shard_rows;
        end = tile->rows ? (tile->row + tile->rows - 1) / p->shard_rows + 1 : first;
    }
    mk_cta_add_each(cta, mk_locals(first, end) & ~(1u << local), flag, parts);
}

/* One shot, compute: waits until all that is added to the tile here has come. 1: the launch is
 * ending. */
MK_ROLE int gemm_rs_await(const struct gemm_rs_plan *p, struct mk_cta *cta,
                          const struct mk_tile *tile)
{
    uint32_t local = mk_local_of(&p->topo, p->topo.rank);
    if (!gemm_rs_wants(p, local, tile->row, tile->rows))
        return 0;
    return mk_cta_wait_others(cta, gemm_rs_partial_flag(p, 0, 0, tile->id), p->topo.gpus, local,
                              cta->epoch * MK_TILE_PARTS, MK_CAUSE_DATA);
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

/* The epilogue of rows of GEMM+ReduceScatter and GEMM+AllReduce (core/plan/epilogue.h): a residual is
 * added, and rows are normed, on every rank for the rows of its C.
 *
 * It stands behind all tiles, since a tile has some columns of a row, and several CTAs reduce the
 * tiles of a row. Where the sum is gathered, the owner of a row could norm it first, but then both
 * results, the new residual and the normed row, would cross NVLink. So C alone is gathered, once,
 * and each rank norms its copy, from its L2 where it fits. In one shot each rank adds its rows
 * anyway. (Of few rows a GPU's consumers do it to the sums in their registers:
 * kernels/sums/joint_norm.cuh.)
 *
 * Buffer reuse
 *   Where the sum is gathered in two shots, peers store in a C in the heap. A tile of launch e + 1
 *   is pushed when its sum is complete, which takes this rank's partial sum of e + 1; this rank
 *   makes it after it has ended launch e.
 *
 * Deadlock freedom
 *   The wait for `ended` is the last thing that compute does. The last tiles and deliveries, which
 *   raise the counter, wait for no norm. All CTAs of a launch are co-resident.
 *
 * Flags of a rank
 *   ended   counts the CTAs of this rank that are done with C: compute CTAs when their last tile's
 *           C is stored and pushed; in two shots and of shared tiles also those of intra_comm, when
 *           they have delivered (or awaited, where peers store in C itself) their last unit. It
 *           grows by gemm_rs_storers each launch and is never reset. One counter speaks for all
 *           rows: tiles are computed column by column of up to ROWS_TOGETHER rows
 *           (core/ops/gemm_rs.c), so all rows are complete at about the same time, and a CTA that
 *           norms has no tile left by then. */

/* Whether C has also what intra_comm delivers, or awaits. */
MK_PURE int gemm_rs_others_store(const struct gemm_rs_plan *p)
{
    return p->shots == 2 || p->shared_columns;
}

/* CTAs of a rank that store in C, or push from it. */
MK_PURE uint32_t gemm_rs_storers(const struct gemm_rs_plan *p)
{
    return p->split.ctas[MK_COMPUTE] + (gemm_rs_others_store(p) ? p->split.ctas[MK_INTRA_COMM] : 0);
}

/* compute; where others store, too, intra_comm: all that this CTA stores in C is stored. */
MK_ROLE void gemm_rs_ended(const struct gemm_rs_plan *p, struct mk_cta *cta)
{
    mk_cta_made(cta, mk_local_of(&p->topo, p->topo.rank), p->flag_ended);
}

/* compute, behind gemm_rs_ended: waits until all rows are complete, and norms every cta->count-th
 * of them. 1: the launch is ending. */
MK_ROLE int gemm_rs_norm_rows(const struct gemm_rs_plan *p, struct mk_cta *cta)
{
    const uint32_t rows = p->gathers ? p->m : p->shard_rows;
    if (cta->index >= rows) /* a CTA without a row does not poll */
        return 0;
    if (mk_cta_wait(cta, p->flag_ended, cta->epoch * gemm_rs_storers(p), MK_CAUSE_DATA))
        return 1;
    for (uint32_t row = cta->index; row < rows; row += cta->count)
        mk_cta_norm(cta, &p->norm, row);
    return 0;
}
