/* MoE dispatch+GEMM: C = the tokens of each expert * its B, as one schedule for every executor.
 *
 *   X_r [T, H], ids_r [T, k] uint32_t   each rank's tokens and their experts: see core/roles/moe_dispatch.h
 *   B_r [E/W, H, I]                     of the experts of a rank
 *   C_r [rows, I]                       of its experts one after the other, each beginning at a multiple of tile_m
 *   rows_r [E/W, 2] uint32_t            first row and number of rows of each
 *
 *   intra_comm, inter_send   as in core/roles/moe_dispatch.h, where the minimum of bytes is
 *   compute                  tiles of an expert start when their rows are in; experts with rows take their turns in order */
#ifndef MK_ROLES_MOE_DISPATCH_GEMM_H
#define MK_ROLES_MOE_DISPATCH_GEMM_H

#include "core/roles/moe_dispatch.h"
#include "core/roles/moe_dispatch_gemm_plan.h"

/* Tile number `t` of this rank, in the order of computation; rows is 0 where there is none. */
MK_ROLE void moe_tile(const struct moe_dispatch_gemm_plan *p, struct mk_cta *cta, uint32_t t,
                      struct mk_tile *tile)
{
    const struct moe_dispatch_plan *d = &p->dispatch;
    uint32_t first_expert = d->topo.rank * d->rank_experts;
    tile->rows = 0;
    for (uint32_t expert = 0; expert < d->rank_experts; expert++) {
        uint32_t rows = mk_cta_load(cta, d->route.rows + (first_expert + expert) * 4);
        uint32_t row_tiles = (uint32_t)mk_ceil_div(rows, d->tile_m), tiles = row_tiles * p->col_tiles;
        if (t >= tiles) {
            t -= tiles;
            continue;
        }
        uint32_t row = t % row_tiles * d->tile_m;
        tile->a = MK_SPACE_HEAP;
        tile->a_slab = tile->c_slab = tile->c_local = tile->stage = 0;
        tile->slab = expert;
        tile->row = mk_cta_load(cta, d->route.first + (first_expert + expert) * 4) + row;
        tile->col = t / row_tiles * p->tile_n;
        tile->rows = rows - row < d->tile_m ? rows - row : d->tile_m;
        tile->cols = p->inner - tile->col < p->tile_n ? p->inner - tile->col : p->tile_n;
        tile->c = MK_SPACE_ARG3;
        tile->id = tile->row / d->tile_m * p->col_tiles + t / row_tiles;
        return;
    }
}

/* Before the loads of a tile's A: its rows are here. */
MK_ROLE int moe_before(const struct moe_dispatch_gemm_plan *p, struct mk_cta *cta, const struct mk_tile *tile)
{
    return moe_await_rows(&p->dispatch, cta, tile->row);
}

#endif
