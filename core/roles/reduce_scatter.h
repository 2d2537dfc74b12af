/* ReduceScatter: C_r = block r of the sum over ranks of A.
 *
 * Operands
 *   A [M, K]     of each rank, W equal blocks of rows
 *   C [M/W, K]   of each rank, its block of the sum. Partial sums are fp32; C is rounded to bf16
 *                once.
 *
 * Roles
 *   intra_comm    pushes each block to the rank of its own node that is on the owner's rail: on the
 *                 owner's node, the owner
 *   inter_send    adds its node's parts of a block of another node, and puts the sum to the owner
 *   inter_reduce  adds its node's parts of this rank's block, then, of several nodes, the nodes'
 *                 sums. That is C.
 *
 * Parts are added in rank order on one node and on nodes with one GPU; elsewhere each node's parts
 * in that order, then the nodes' sums in node order. So every executor and run gives the same bits.
 *
 * Bytes moved
 *   (gpus - 1) nodes blocks of bf16 come over NVLink, and nodes - 1 sums over the network: of fp32
 *   where a node has several GPUs, since a sum of bf16 would be rounded twice.
 *
 * Buffer reuse
 *   Two buffers, by epoch & 1. A rank begins launch e + 2 after its launch e + 1 has ended. By then
 *   it has had parts of e + 1 from every rank of its node, and sums from every rank of its rail.
 *   Those had ended launch e, and with it read the memory that launch e + 2 overwrites. `leaving`
 *   has one buffer: its puts are drained before the launch ends.
 *
 * Deadlock freedom
 *   intra_comm waits for nothing, inter_send for intra_comm, inter_reduce for both.
 *
 * Flags of a rank
 *   part[node][local rank][chunk]   the epoch
 *   sum[node][chunk]                the epoch */
#pragma once

#include "core/roles/move.h"
#include "core/roles/reduce_scatter_plan.h"

MK_ROLE int reduce_scatter_intra_comm(const struct reduce_scatter_plan *p, struct mk_cta *cta)
{
    const struct move_plan *m = &p->move;
    const struct mk_topo *t = &m->topo;
    uint32_t local = mk_local_of(t, t->rank);
    for (uint32_t turn = cta->index; turn < t->nodes * m->chunks * t->gpus; turn += cta->count) {
        struct move_turn to = move_turn_of(m, turn);
        struct mk_chunk c = move_chunk_of_a(m, mk_rank_at(t, to.node, to.local) * m->block_rows,
                                            to.chunk, cta->epoch);
        struct mk_chunk place = move_chunk(m, mk_rank_at(t, to.node, local), to.chunk, cta->epoch);
        c.id = place.id;
        c.destination = place.destination;
        mk_cta_copy(cta, to.local, &c);
        mk_cta_signal(cta, to.local, reduce_scatter_part_flag(p, to.node, local, to.chunk),
                      cta->epoch);
    }
    return 0;
}

/* Waits for what this node's ranks have of a chunk for `node`, and starts adding it. */
MK_ROLE int reduce_scatter_add(const struct reduce_scatter_plan *p, struct mk_cta *cta,
                               uint32_t node, uint32_t chunk, struct mk_combine *sum)
{
    const struct mk_topo *t = &p->move.topo;
    sum->id = reduce_scatter_sum_id(p, node, chunk);
    sum->count = t->gpus;
    sum->elements = reduce_scatter_elements(p, chunk);
    sum->from = p->element;
    sum->local = mk_local_of(t, t->rank);
    sum->tree = MK_COMBINE_IN_TURN;
    sum->records = 0;
    for (uint32_t i = 0; i < t->gpus; i++) {
        if (mk_cta_wait(cta, reduce_scatter_part_flag(p, node, i, chunk), cta->epoch,
                        MK_CAUSE_DATA))
            return 1;
        sum->terms[i].source =
            move_chunk(&p->move, mk_rank_at(t, node, i), chunk, cta->epoch).source;
        sum->terms[i].weight = 1;
        sum->terms[i].space = MK_SPACE_HEAP;
    }
    mk_cta_combine(cta, sum);
    return 0;
}

/* In the order in which intra_comm pushes. */
MK_ROLE int reduce_scatter_inter_send(const struct reduce_scatter_plan *p, struct mk_cta *cta)
{
    const struct move_plan *m = &p->move;
    const struct mk_topo *t = &m->topo;
    uint32_t node = mk_node_of(t, t->rank), local = mk_local_of(t, t->rank);
    struct mk_combine sum;
    for (uint32_t turn = cta->index; turn < (t->nodes - 1) * m->chunks; turn += cta->count) {
        uint32_t to = (node + 1 + turn / m->chunks) % t->nodes, chunk = turn % m->chunks;
        struct mk_chunk c;
        sum.to = p->number;
        sum.space = MK_SPACE_HEAP;
        sum.destination = reduce_scatter_sum(p, p->leaving, to, chunk);
        if (reduce_scatter_add(p, cta, to, chunk, &sum))
            return 1;
        c.id = reduce_scatter_sum_id(p, node, chunk);
        c.space = MK_SPACE_HEAP;
        c.source = sum.destination;
        c.destination = reduce_scatter_sum(p, p->sums[cta->epoch & 1], node, chunk);
        c.bytes = sum.elements * (p->number == MK_FP32 ? 4 : 2);
        if (mk_cta_put(cta, mk_rank_at(t, to, local), &c, reduce_scatter_sum_flag(p, node, chunk)))
            return 1;
    }
    return mk_cta_drain(cta);
}

/* The sums of all nodes, this one's among them, which the flag says is written. */
MK_ROLE int reduce_scatter_add_nodes(const struct reduce_scatter_plan *p, struct mk_cta *cta,
                                     uint32_t chunk, struct mk_combine *sum)
{
    const struct mk_topo *t = &p->move.topo;
    uint32_t node = mk_node_of(t, t->rank);
    mk_cta_signal(cta, mk_local_of(t, t->rank), reduce_scatter_sum_flag(p, node, chunk),
                  cta->epoch);
    for (uint32_t i = 0; i < t->nodes; i++) {
        if (mk_cta_wait(cta, reduce_scatter_sum_flag(p, i, chunk), cta->epoch,
                        i == node ? MK_CAUSE_DATA : MK_CAUSE_NETWORK))
            return 1;
        sum->terms[i].source = reduce_scatter_sum(p, p->sums[cta->epoch & 1], i, chunk);
        sum->terms[i].weight = 1;
        sum->terms[i].space = MK_SPACE_HEAP;
    }
    sum->count = t->nodes;
    sum->from = p->number;
    return 0;
}

MK_ROLE int reduce_scatter_inter_reduce(const struct reduce_scatter_plan *p, struct mk_cta *cta)
{
    const struct move_plan *m = &p->move;
    uint32_t node = mk_node_of(&m->topo, m->topo.rank);
    struct mk_combine sum;
    for (uint32_t chunk = cta->index; chunk < m->chunks; chunk += cta->count) {
        int several = m->topo.nodes > 1;
        uint64_t c = (uint64_t)chunk * m->chunk_rows * m->row_bytes;
        sum.to = several ? p->number : p->element;
        sum.space = several ? MK_SPACE_HEAP : MK_SPACE_ARG1;
        sum.destination = several ? reduce_scatter_sum(p, p->sums[cta->epoch & 1], node, chunk) : c;
        if (reduce_scatter_add(p, cta, node, chunk, &sum))
            return 1;
        if (!several)
            continue;
        if (reduce_scatter_add_nodes(p, cta, chunk, &sum))
            return 1;
        sum.to = p->element;
        sum.space = MK_SPACE_ARG1;
        sum.destination = c;
        mk_cta_combine(cta, &sum);
    }
    return 0;
}

MK_ROLES_OF(reduce_scatter, reduce_scatter_intra_comm(p, cta), reduce_scatter_inter_send(p, cta),
            reduce_scatter_inter_reduce(p, cta));
