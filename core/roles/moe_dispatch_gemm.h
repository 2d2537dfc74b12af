/* MoE dispatch+GEMM: C = the tokens of each expert * its B, as one schedule for every executor.
 *
 *   X_r [T, H], ids_r [T, k] uint32_t   each rank's tokens and their experts: see
 *                                       core/roles/moe_dispatch.h
 *   B_r [E/W, H, I]                     of the experts of a rank
 *   C_r [rows, I]                       of its experts one after the other, each beginning at a
 *                                       multiple of tile_m
 *   rows_r [E/W, 2] uint32_t            first row and number of rows of each
 *
 *   intra_comm, inter_send   as in core/roles/moe_dispatch.h, where the minimum of bytes is
 *   compute                  tiles of an expert start when their rows are in; all experts' rows
 *                            from this node come first */
#ifndef MK_ROLES_MOE_DISPATCH_GEMM_H
#define MK_ROLES_MOE_DISPATCH_GEMM_H

#include "core/roles/moe_dispatch.h"
#include "core/roles/moe_dispatch_gemm_plan.h"

/* Tile number `t` of this rank, in the order of computation (struct moe_run); rows is 0 where there
 * is none. */
MK_ROLE void moe_tile(const struct moe_dispatch_gemm_plan *p, struct mk_cta *cta, uint32_t t,
                      struct mk_tile *tile)
{
    const struct moe_dispatch_plan *d = &p->dispatch;
    tile->rows = 0;
    for (uint32_t turn = 0; turn < moe_stretches(d) * d->rank_experts; turn++) {
        struct moe_run run;
        moe_run_of(d, cta, turn / d->rank_experts, turn % d->rank_experts, &run);
        if (t >= run.count * p->col_tiles) {
            t -= run.count * p->col_tiles;
            continue;
        }
        tile->a = MK_SPACE_HEAP;
        tile->a_slab = tile->c_slab = tile->c_local = tile->stage = 0;
        tile->slab = run.expert;
        tile->row = moe_run_row(d, cta, &run, t % run.count, &tile->rows);
        tile->col = t / run.count * p->tile_n;
        tile->cols = p->inner - tile->col < p->tile_n ? p->inner - tile->col : p->tile_n;
        tile->c = MK_SPACE_ARG3;
        tile->id = tile->row / d->tile_m * p->col_tiles + t / run.count;
        return;
    }
}

/* Before the loads of a tile's A: its rows are here. */
MK_ROLE int moe_before(const struct moe_dispatch_gemm_plan *p, struct mk_cta *cta,
                       const struct mk_tile *tile)
{
    return moe_await_rows(&p->dispatch, cta, tile->row);
}

#endif
