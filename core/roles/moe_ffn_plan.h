/* The plan of the MoE feed-forward layer and its arithmetic. The schedule, and what lies where and
 * why, is core/roles/moe_ffn.h. */
#pragma once

#include "core/cta/cta.h"
#include "core/roles/moe_dispatch_plan.h"

/* The stages of a tile. */
enum { MOE_FFN_UP, MOE_FFN_DOWN };

struct moe_ffn_plan {
    struct moe_dispatch_plan dispatch;
    struct mk_role_split split;
    uint32_t hidden, inner;
    uint32_t tile_n;
    uint32_t
        /* columns of the activation that a tile makes: tile_n / 2, from as many of gate and up */
        up_cols;
    uint32_t up_tiles, down_tiles; /* side by side in a row of tiles, of each stage */
    uint32_t part_rows;            /* tokens of a chunk that are added at a time */
    uint32_t chunk_parts;          /* of a chunk */
    uint32_t list_chunks;          /* of the longest list of tokens whose sums come back */
    uint32_t tiles;                /* room for: row_tiles * (up_tiles + down_tiles) */
    /* enum mk_dtype of results, and of what ranks and nodes have added of them, on its way back */
    uint32_t number, carried;
    uint32_t staged; /* mk_sums' */
    uint32_t tree;   /* 1: a token's experts are added in a tree (core/cta/sum_tree.h) */
    /* where results (the heap, at `made`; or an argument, complete when the launch begins) and Y
     * lie: enum mk_space */
    uint32_t made_space, y_space;
    uint32_t flag_acted, flag_made, flag_back, flag_sum;
    uint64_t act_bytes;     /* of a row of the activation */
    uint64_t result_bytes;  /* of a row of results */
    uint64_t carried_bytes; /* of a sum on its way back */
    /* Offsets in the heap. */
    uint64_t acted;      /* [row_tiles * tile_m] of act_bytes, bf16 or e4m3 */
    uint64_t act_scales; /* of e4m3: [ceil(inner / 128)][row_tiles * tile_m] fp32 */
    uint64_t made;       /* [row_tiles * tile_m] of result_bytes */
    /* [gpus][landed_room] of carried_bytes: what other ranks of this node have added for tokens
     * that this rank has brought them, in the order of the table `push` */
    uint64_t back;
    uint64_t
        sums; /* [nodes][relay_room] of carried_bytes: what this node has for tokens of another,
                     * as they came */
    uint64_t whole; /* the same: what other nodes have for this rank's, in the order of `sent` */
};
MK_PLAN_OF(moe_ffn);

MK_PURE uint32_t moe_ffn_acted_flag(const struct moe_ffn_plan *p, uint32_t row)
{
    return p->flag_acted + row / p->dispatch.tile_m;
}

MK_PURE uint32_t moe_ffn_made_flag(const struct moe_ffn_plan *p, uint32_t row)
{
    return p->flag_made + row / p->dispatch.tile_m;
}

/* Parts of a chunk. */
MK_PURE uint32_t moe_ffn_parts(const struct moe_ffn_plan *p, uint32_t chunk)
{
    const struct moe_dispatch_plan *d = &p->dispatch;
    uint32_t left = d->tokens - chunk * d->chunk_rows,
             rows = left < d->chunk_rows ? left : d->chunk_rows;
    return rows / p->part_rows + (rows % p->part_rows != 0);
}

/* What moe_ffn_job_here counts, some of which may be empty. */
MK_PURE uint32_t moe_ffn_units(const struct moe_ffn_plan *p)
{
    return p->dispatch.chunks * moe_ffn_parts(p, 0) * p->dispatch.topo.gpus;
}

/* The part that token number `token` of a list is in, of all parts of the list. */
MK_PURE uint32_t moe_ffn_part_of(const struct moe_ffn_plan *p, uint32_t token)
{
    const uint32_t rows = p->dispatch.chunk_rows;
    return token / rows * p->chunk_parts + token % rows / p->part_rows;
}

/* Local rank `local` has added part `part` of what this rank has brought it of the tokens of this
 * rail's rank of `node`. */
MK_PURE uint32_t moe_ffn_back_flag(const struct moe_ffn_plan *p, uint32_t node, uint32_t local,
                                   uint32_t part)
{
    return p->flag_back + (node * p->dispatch.topo.gpus + local) * p->list_chunks * p->chunk_parts +
           part;
}

/* What `node` has for chunk `chunk` of this rank's tokens that have an expert there is here. */
MK_PURE uint32_t moe_ffn_sum_flag(const struct moe_ffn_plan *p, uint32_t node, uint32_t chunk)
{
    return p->flag_sum + node * p->dispatch.chunks + chunk;
}

/* Number of what comes back for a chunk of `rank`'s tokens, for traces; those below are of tokens
 * on their way there. */
MK_PURE uint32_t moe_ffn_back_id(const struct moe_ffn_plan *p, uint32_t rank, uint32_t chunk)
{
    return (mk_world(&p->dispatch.topo) + rank) * p->dispatch.chunks + chunk;
}

/* A tile of stage `stage` by its place: the row of tiles counts from this rank's first, the column
 * within the stage. */
MK_PURE uint32_t moe_ffn_tile_id(const struct moe_ffn_plan *p, uint32_t row_tile, uint32_t stage,
                                 uint32_t col)
{
    return row_tile * (p->up_tiles + p->down_tiles) + (stage == MOE_FFN_UP ? 0 : p->up_tiles) + col;
}

/* All of a tile but the rows: A, C and columns of tile `col` of a stage. */
MK_PURE void moe_ffn_columns(const struct moe_ffn_plan *p, uint32_t stage, uint32_t col,
                             struct mk_tile *tile)
{
    uint32_t width = stage == MOE_FFN_UP ? p->up_cols : p->tile_n,
             all = stage == MOE_FFN_UP ? p->inner : p->hidden;
    tile->a = tile->c = MK_SPACE_HEAP;
    tile->a_slab = tile->c_slab = 0;
    tile->c_local = mk_local_of(&p->dispatch.topo, p->dispatch.topo.rank);
    tile->stage = stage;
    tile->col = col * width;
    tile->cols = all - tile->col < width ? all - tile->col : width;
}
