/* The tiles of products of several groups of rows, as a table in the order of computation: a CTA
 * takes the next entry and searches no groups. */
#ifndef MK_GEMM_TABLE_H
#define MK_GEMM_TABLE_H

#include "core/gemm_order.h"

/* One tile; 16 bytes, so that it is read at once. */
struct mk_tile_entry {
    uint32_t row, rows; /* first row of A and C, a multiple of the tile's; how many: at least 1 */
    uint32_t group;     /* whose B */
    uint32_t column;    /* of tiles */
};

/* Rows of tiles of one group that are computed one after the other, each with all columns. Of the
 * group's tiles from `low` up to `high`, which follow each other as in a ring, `count` from
 * `first` on. */
struct mk_tile_run {
    uint32_t group, row, rows; /* the group's first row of A; how many it has */
    uint32_t low, high, first, count;
};

/* Entry `i` of a run, 0 .. count * columns - 1. `running`: tiles that are computed at the same
 * time. */
MK_PURE struct mk_tile_entry mk_tile_of_run(const struct mk_tile_run *run, uint32_t i,
                                            uint32_t columns, uint32_t tile_m, uint32_t tile_n,
                                            uint32_t running)
{
    struct gemm_order order = gemm_order_make(run->count, columns, tile_m, tile_n, running);
    struct mk_tile_entry e;
    uint32_t tile, row;
    gemm_order_at(&order, i, &tile, &e.column);
    tile += run->first;
    row = (tile < run->high ? tile : tile - (run->high - run->low)) * tile_m;
    e.group = run->group;
    e.row = run->row + row;
    e.rows = run->rows - row < tile_m ? run->rows - row : tile_m;
    return e;
}

#endif
