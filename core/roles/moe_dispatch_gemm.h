/* MoE dispatch+GEMM: C = the tokens of each expert * its B, as one schedule for every executor.
 *
 * Operands
 *   X_r, ids_r, count_r      those of core/roles/moe_dispatch.h; rows_r [E/W, 2] are its counts_r
 *   B_r [E/W, H, I]          of the experts of a rank
 *   C_r [rows, I]            of these, one after the other, each from a multiple of tile_m on
 * Roles
 *   intra_comm, inter_send   as there
 *   compute                  tiles of an expert start when their rows are in: of all experts first
 *                            rows of this rank's own tokens, then those of its node's other ranks,
 *                            then those of other nodes, in slices
 * Bytes moved, buffer reuse, deadlock freedom and flags
 *   Those of dispatch, which derives the least of bytes. Tiles wait for rows, nobody for tiles. */
#pragma once

#include "core/roles/moe_dispatch.h"
#include "core/roles/moe_dispatch_gemm_plan.h"

/* Entry number `t` of the table of tiles, as a tile. */
MK_ROLE void moe_tile_of(const struct moe_dispatch_gemm_plan *p, const struct mk_tile_entry *e,
                         struct mk_tile *tile)
{
    tile->a = MK_SPACE_HEAP;
    tile->a_slab = tile->c_slab = tile->c_local = tile->stage = 0;
    tile->slab = e->group;
    tile->row = e->row;
    tile->rows = e->rows;
    tile->col = e->column * p->tile_n;
    tile->cols = p->inner - tile->col < p->tile_n ? p->inner - tile->col : p->tile_n;
    tile->c = MK_SPACE_ARG3;
    tile->id = e->row / p->dispatch.tile_m * p->col_tiles + e->column;
}

/* Tile number `t` of this rank, in the order of computation (struct mk_route); rows is 0 where
 * there is none. */
MK_ROLE void moe_tile(const struct moe_dispatch_gemm_plan *p, struct mk_cta *cta, uint32_t t,
                      struct mk_tile *tile)
{
    struct mk_tile_entry e;
    tile->rows = 0;
    if (!moe_entry(&p->dispatch, cta, t, &e))
        return;
    moe_tile_of(p, &e, tile);
}

/* Before the loads of a tile's A: its rows are here. */
MK_ROLE int moe_before(const struct moe_dispatch_gemm_plan *p, struct mk_cta *cta,
                       const struct mk_tile *tile)
{
    return moe_await_rows(&p->dispatch, cta, tile->row);
}
