/* The MoE feed-forward layer: each token through its k experts and back, summed by weight, as one
 * schedule for every executor.
 *
 *   X_r [T, H], ids_r [T, k] uint32_t, weights_r [T, k] float
 *                               each rank's tokens, their experts (core/roles/moe_dispatch.h) and
 *                               what each expert counts for
 *   B1_r [E/W, H, 2 I]          of the experts of a rank: gate, then up
 *   B2_r [E/W, I, H]            of the experts of a rank
 *   Y_r [T, H]                  the sum over the k experts of weight * (silu(x gate) * (x up)) B2;
 *                               zeros for a token that names no expert
 *
 *   intra_comm, inter_send   move tokens to their experts, as in core/roles/moe_dispatch.h; then
 *                            intra_comm takes each row of results, as it is made, to the rank of
 *                            this node that is on the token's rail
 *   compute                  up: a tile reads columns of gate and the same of up, and stores
 *                            silu(gate) * up. down: a tile of results, once all columns of its
 *                            rows' activation are stored. Experts go through the stages in groups
 *                            of rows of tiles: up of a group, then down of the group before, whose
 *                            last tiles of up are then done: no CTA waits for another stage, and no
 *                            stage waits for all experts. Tokens of this node are computed first
 *                            and last, those of other nodes between (struct moe_run), so that both
 *                            of their crossings have something to hide behind
 *   inter_reduce             the rank on a token's rail adds its rows of this node, by weight. For
 *                            a token of another node it puts the sum along the rail, one row. The
 *                            token's source adds the nodes' sums to Y
 *
 * Minimum bytes, which depend on the ids: those of dispatch, and the same way back. A token's rows
 * of a node are added there, so each other node where it has an expert sends one row, on the
 * token's rail; into the rank that adds comes, over NVLink, a row for each expert on another rank
 * of that node. (Rows of one token on one rank could be added before they move, as the token could
 * go there once: that would make every row wait for the rank's last expert.) A row is H numbers,
 * bf16 in fast mode and fp32 in deterministic mode.
 *
 * Sums are fp32 in one order: nodes in order, in a node experts in order (which is rank order),
 * then places. So results have the same bits on every run in both modes. In fast mode rows, and
 * nodes' sums, are rounded to bf16 on their way: with the rounding of the activation and of Y, four
 * independent ones of u = 1.66e-3 in the norm, 2 u = 3.3e-3 in all; deterministic sqrt(2) u =
 * 2.4e-3.
 *
 * No credits and one buffer of everything but ids and weights, as in dispatch: all that moves in a
 * launch moves after every rank's ids are here, and a rank that has sent them has ended the launch
 * before: it has Y, so that every row and sum for it has come, and all its own rows and sums have
 * been read.
 *
 * Flags of a rank: dispatch's; acted[tile of rows] and made[tile of rows] (count rows times parts
 * of tiles, so that `wanted` times the columns of tiles is the target), back[node][chunk] (counts
 * rows; the table `due` is the target), sum[node][chunk].
 */
#ifndef MK_ROLES_MOE_FFN_H
#define MK_ROLES_MOE_FFN_H

#include "core/cta_combine.h"
#include "core/roles/moe_dispatch.h"
#include "core/roles/moe_ffn_plan.h"

/* Tile number `t` of a group, a part of a run, in stage `stage`. Tiles of one column of B come one
 * after the other. */
MK_ROLE void moe_ffn_tile_of(const struct moe_ffn_plan *p, struct mk_cta *cta,
                             const struct moe_run *group, uint32_t stage, uint32_t t,
                             struct mk_tile *tile)
{
    const struct moe_dispatch_plan *d = &p->dispatch;
    uint32_t col = t / group->count;
    moe_ffn_columns(p, stage, col, tile);
    tile->slab = group->expert;
    tile->row = moe_run_row(d, cta, group, t % group->count, &tile->rows);
    tile->id = moe_ffn_tile_id(p, tile->row / d->tile_m, stage, col);
}

/* Tile number `t` of this rank, in the order of computation (struct moe_run); rows is 0 where there
 * is none. */
MK_ROLE void moe_ffn_tile(const struct moe_ffn_plan *p, struct mk_cta *cta, uint32_t t,
                          struct mk_tile *tile)
{
    const struct moe_dispatch_plan *d = &p->dispatch;
    struct moe_run run, before = {0}; /* before: the group whose turn to go down is next */
    tile->rows = 0;
    for (uint32_t turn = 0; turn < moe_stretches(d) * d->rank_experts; turn++) {
        moe_run_of(d, cta, turn / d->rank_experts, turn % d->rank_experts, &run);
        for (uint32_t left = run.count; left; left -= run.count, run.first += run.count) {
            run.count = left < p->group_tiles ? left : p->group_tiles;
            uint32_t up = run.count * p->up_tiles, down = before.count * p->down_tiles;
            if (t < up) {
                moe_ffn_tile_of(p, cta, &run, MOE_FFN_UP, t, tile);
                return;
            }
            t -= up;
            if (t < down) {
                moe_ffn_tile_of(p, cta, &before, MOE_FFN_DOWN, t, tile);
                return;
            }
            t -= down;
            before = run;
        }
    }
    if (t < before.count * p->down_tiles)
        moe_ffn_tile_of(p, cta, &before, MOE_FFN_DOWN, t, tile);
}

/* Waits until all `columns` of tiles of the rows that row `row` is of are stored. */
MK_ROLE int moe_ffn_await(const struct moe_ffn_plan *p, struct mk_cta *cta, uint32_t flag,
                          uint32_t row, uint32_t columns)
{
    uint64_t wanted =
        mk_cta_load64(cta, p->dispatch.route.wanted + row / p->dispatch.tile_m * 8ull);
    return mk_cta_wait(cta, flag, wanted * columns * MK_TILE_PARTS, MK_CAUSE_DATA);
}

/* Before the loads of a tile's A. */
MK_ROLE int moe_ffn_before(const struct moe_ffn_plan *p, struct mk_cta *cta,
                           const struct mk_tile *tile)
{
    return tile->stage == MOE_FFN_UP
               ? moe_await_rows(&p->dispatch, cta, tile->row)
               : moe_ffn_await(p, cta, moe_ffn_acted_flag(p, tile->row), tile->row, p->up_tiles);
}

/* `parts` of MK_TILE_PARTS of the tile are stored. */
MK_ROLE void moe_ffn_after(const struct moe_ffn_plan *p, struct mk_cta *cta,
                           const struct mk_tile *tile, uint32_t parts)
{
    uint32_t flag = tile->stage == MOE_FFN_UP ? moe_ffn_acted_flag(p, tile->row)
                                              : moe_ffn_made_flag(p, tile->row);
    mk_cta_add(cta, tile->c_local, flag, (uint64_t)tile->rows * parts);
}

/* Which place (token * k + place) of which rank's tokens row `row` is of. */
MK_ROLE uint32_t moe_ffn_origin(const struct moe_ffn_plan *p, struct mk_cta *cta, uint32_t row,
                                uint32_t *place)
{
    const struct moe_dispatch_plan *d = &p->dispatch;
    uint32_t origin = mk_cta_load(cta, d->route.origin + row * 4ull), places = d->tokens * d->k;
    *place = origin % places;
    return origin / places;
}

/* Row `row` of the results to the rank of this node that is on its token's rail. */
MK_ROLE void moe_ffn_return_row(const struct moe_ffn_plan *p, struct mk_cta *cta, uint32_t row)
{
    const struct moe_dispatch_plan *d = &p->dispatch;
    uint32_t place, rank = moe_ffn_origin(p, cta, row, &place), local = mk_local_of(&d->topo, rank);
    struct mk_chunk c;
    if (local == mk_local_of(&d->topo, d->topo.rank)) /* it is added from where it is */
        return;
    c.id = moe_ffn_back_id(p, rank, place / d->k / d->chunk_rows);
    c.space = MK_SPACE_HEAP;
    c.source = p->made + row * p->result_bytes;
    c.destination = p->back + ((uint64_t)mk_node_of(&d->topo, rank) * d->tokens * d->k + place) *
                                  p->result_bytes;
    c.bytes = p->result_bytes;
    mk_cta_copy(cta, local, &c);
}

/* Then their arrival: rows of one chunk of tokens follow each other, and are told together. */
MK_ROLE void moe_ffn_tell_rows(const struct moe_ffn_plan *p, struct mk_cta *cta, uint32_t row,
                               uint32_t end)
{
    const struct moe_dispatch_plan *d = &p->dispatch;
    uint32_t last_flag = 0, last_local = 0, count = 0;
    for (; row < end; row++) {
        uint32_t place, rank = moe_ffn_origin(p, cta, row, &place),
                        local = mk_local_of(&d->topo, rank);
        uint32_t flag =
            moe_ffn_back_flag(p, mk_node_of(&d->topo, rank), place / d->k / d->chunk_rows);
        if (count && (flag != last_flag || local != last_local)) {
            mk_cta_add(cta, last_local, last_flag, count);
            count = 0;
        }
        last_flag = flag;
        last_local = local;
        count++;
    }
    mk_cta_add(cta, last_local, last_flag, count);
}

MK_ROLE int moe_ffn_intra_comm(const struct moe_ffn_plan *p, struct mk_cta *cta)
{
    const struct moe_dispatch_plan *d = &p->dispatch;
    uint32_t turn = 0;
    if (moe_intra_comm(d, cta))
        return 1;
    for (uint32_t stretch = 0; stretch < moe_stretches(d); stretch++)
        for (uint32_t expert = 0; expert < d->rank_experts; expert++) {
            struct moe_run run;
            moe_run_of(d, cta, stretch, expert, &run);
            for (uint32_t i = 0; i < run.count; i++) {
                if (turn++ % cta->count != cta->index)
                    continue;
                uint32_t rows, row = moe_run_row(d, cta, &run, i, &rows);
                if (moe_ffn_await(p, cta, moe_ffn_made_flag(p, row), row, p->down_tiles))
                    return 1;
                for (uint32_t j = 0; j < rows; j++)
                    moe_ffn_return_row(p, cta, row + j);
                moe_ffn_tell_rows(p, cta, row, row + rows);
            }
        }
    return 0;
}

/* The rows that a token of `rank` has on this node, in the order of their experts, behind the terms
 * that *c has. */
MK_ROLE void moe_ffn_add_rows(const struct moe_ffn_plan *p, struct mk_cta *cta, uint32_t rank,
                              uint32_t token, struct mk_combine *c)
{
    const struct moe_dispatch_plan *d = &p->dispatch;
    uint64_t ids = d->ids[cta->epoch & 1] + rank * d->ids_pitch, first = c->count;
    uint32_t node = mk_node_of(&d->topo, d->topo.rank), experts[MK_TERMS];
    for (uint32_t place = 0; place < d->k; place++) {
        uint64_t at = (uint64_t)token * d->k + place;
        uint32_t expert = mk_cta_load(cta, ids + at * 4), i = c->count;
        if (expert >= d->experts || moe_node_of_expert(d, expert) != node)
            continue;
        for (; i > first && experts[i - 1] > expert; i--) {
            experts[i] = experts[i - 1];
            c->terms[i] = c->terms[i - 1];
        }
        uint64_t row = mk_cta_load(cta, d->route.position + rank * d->ids_bytes + at * 4);
        experts[i] = expert;
        c->terms[i].source =
            expert / d->rank_experts == d->topo.rank
                ? p->made + row * p->result_bytes
                : p->back + ((uint64_t)mk_node_of(&d->topo, rank) * d->tokens * d->k + at) *
                                p->result_bytes;
        c->terms[i].weight = mk_float_of(mk_cta_load(cta, ids + d->weights + at * 4));
        c->count++;
    }
}

MK_ROLE int moe_ffn_await_back(const struct moe_ffn_plan *p, struct mk_cta *cta, uint32_t node,
                               uint32_t chunk)
{
    uint64_t due = mk_cta_load64(cta, p->dispatch.route.due +
                                          ((uint64_t)node * p->dispatch.chunks + chunk) * 8);
    return mk_cta_wait(cta, moe_ffn_back_flag(p, node, chunk), due, MK_CAUSE_DATA);
}

/* Of how many tokens before `token` this rank's (sent_before) or its rail's (came_before) have an
 * expert on the other's node. */
MK_ROLE uint32_t moe_ffn_before_token(const struct moe_ffn_plan *p, struct mk_cta *cta,
                                      uint64_t table, uint32_t node, uint32_t token)
{
    return mk_cta_load(cta, table + ((uint64_t)node * (p->dispatch.tokens + 1) + token) * 4);
}

/* The tokens [*first, *end) of chunk `chunk`. */
MK_ROLE void moe_ffn_tokens(const struct moe_ffn_plan *p, uint32_t chunk, uint32_t *first,
                            uint32_t *end)
{
    const struct moe_dispatch_plan *d = &p->dispatch;
    *first = chunk * d->chunk_rows;
    *end = d->tokens - *first < d->chunk_rows ? d->tokens : *first + d->chunk_rows;
}

/* This node's sums for chunk `chunk` of the tokens of this rail's rank of `node`, and on their
 * way. */
MK_ROLE int moe_ffn_send_sums(const struct moe_ffn_plan *p, struct mk_cta *cta, uint32_t node,
                              uint32_t chunk)
{
    const struct moe_dispatch_plan *d = &p->dispatch;
    const struct mk_route *r = &d->route;
    uint32_t rank = mk_rank_at(&d->topo, node, mk_local_of(&d->topo, d->topo.rank)), first, end;
    struct mk_combine s;
    struct mk_chunk c;
    moe_ffn_tokens(p, chunk, &first, &end);
    uint32_t from = moe_ffn_before_token(p, cta, r->came_before, node, first),
             to = moe_ffn_before_token(p, cta, r->came_before, node, end);
    if (from == to)
        return 0;
    if (moe_ffn_await_back(p, cta, node, chunk))
        return 1;
    c.id = s.id = moe_ffn_back_id(p, rank, chunk);
    c.space = s.space = MK_SPACE_HEAP;
    s.from = s.to = p->number;
    s.elements = p->hidden;
    for (uint32_t i = from; i < to; i++) {
        uint32_t token = mk_cta_load(cta, r->came + ((uint64_t)node * d->tokens + i) * 4);
        s.count = 0;
        s.destination = p->sums + ((uint64_t)node * d->room + first + (i - from)) * p->result_bytes;
        moe_ffn_add_rows(p, cta, rank, token, &s);
        mk_cta_combine(cta, &s);
    }
    c.source = p->sums + ((uint64_t)node * d->room + first) * p->result_bytes;
    c.destination = p->whole + ((uint64_t)mk_node_of(&d->topo, d->topo.rank) * d->room + first) *
                                   p->result_bytes;
    c.bytes = (to - from) * p->result_bytes;
    return mk_cta_put(cta, rank, &c,
                      moe_ffn_sum_flag(p, mk_node_of(&d->topo, d->topo.rank), chunk));
}

/* All that chunk `chunk` of this rank's tokens is the sum of is here. */
MK_ROLE int moe_ffn_await_whole(const struct moe_ffn_plan *p, struct mk_cta *cta, uint32_t chunk)
{
    const struct moe_dispatch_plan *d = &p->dispatch;
    uint32_t node = mk_node_of(&d->topo, d->topo.rank), first, end;
    moe_ffn_tokens(p, chunk, &first, &end);
    if (moe_ffn_await_back(p, cta, node, chunk))
        return 1;
    for (uint32_t distance = 1; distance < d->topo.nodes; distance++) {
        uint32_t other = (node + d->topo.nodes - distance) % d->topo.nodes;
        if (moe_ffn_before_token(p, cta, d->route.sent_before, other, first) !=
                moe_ffn_before_token(p, cta, d->route.sent_before, other, end) &&
            mk_cta_wait(cta, moe_ffn_sum_flag(p, other, chunk), cta->epoch, MK_CAUSE_NETWORK))
            return 1;
    }
    return 0;
}

/* Y of one of this rank's tokens. */
MK_ROLE void moe_ffn_total(const struct moe_ffn_plan *p, struct mk_cta *cta, uint32_t token)
{
    const struct moe_dispatch_plan *d = &p->dispatch;
    struct mk_combine s;
    uint32_t first = token / d->chunk_rows * d->chunk_rows; /* of its chunk */
    s.id = moe_ffn_back_id(p, d->topo.rank, token / d->chunk_rows);
    s.count = 0;
    for (uint32_t node = 0; node < d->topo.nodes; node++) {
        if (node == mk_node_of(&d->topo, d->topo.rank)) {
            moe_ffn_add_rows(p, cta, d->topo.rank, token, &s);
            continue;
        }
        uint32_t i = moe_ffn_before_token(p, cta, d->route.sent_before, node, token);
        if (moe_ffn_before_token(p, cta, d->route.sent_before, node, token + 1) == i)
            continue;
        uint32_t before = moe_ffn_before_token(p, cta, d->route.sent_before, node, first);
        s.terms[s.count].source =
            p->whole + ((uint64_t)node * d->room + first + (i - before)) * p->result_bytes;
        s.terms[s.count++].weight = 1;
    }
    s.from = p->number;
    s.to = MK_BF16;
    s.elements = p->hidden;
    s.space = MK_SPACE_ARG5;
    s.destination = token * d->row_bytes;
    mk_cta_combine(cta, &s);
}

MK_ROLE int moe_ffn_inter_reduce(const struct moe_ffn_plan *p, struct mk_cta *cta)
{
    const struct moe_dispatch_plan *d = &p->dispatch;
    uint32_t node = mk_node_of(&d->topo, d->topo.rank), turn = 0, first, end;
    if (moe_await_routed(d, cta))
        return 1;
    for (uint32_t distance = 1; distance < d->topo.nodes; distance++)
        for (uint32_t chunk = 0; chunk < d->chunks; chunk++)
            if (turn++ % cta->count == cta->index &&
                moe_ffn_send_sums(p, cta, (node + distance) % d->topo.nodes, chunk))
                return 1;
    for (uint32_t chunk = cta->index; chunk < d->chunks; chunk += cta->count) {
        if (moe_ffn_await_whole(p, cta, chunk))
            return 1;
        moe_ffn_tokens(p, chunk, &first, &end);
        for (uint32_t token = first; token < end; token++)
            moe_ffn_total(p, cta, token);
    }
    return 0;
}

#endif
