/* In which order the CTAs take the tiles of a product. Plain C for the host and the device; pure
 * functions. */
#pragma once

#include "core/base.h"

/*
 * Order of the tiles of a grid of rows x columns. The grid is cut into bands along its longer side,
 * `width` tiles across; each is walked from end to end, every other one backwards, all tiles across
 * the band before the next step along it. Tiles that run at the same time then form a block that is
 * about square in elements, and that moves on by one step at a time, so that most of A and B is in
 * L2 when it is needed. (Bands across the longer side cost a grid of 64 x 8 tiles with K = 16384 a
 * third more DRAM reads and 1 % of its time on an H200.)
 */
struct gemm_order {
    uint32_t rows, columns, width;
};

/* The order for tiles of tile_rows x tile_columns elements of which `running` run at the same
 * time. */
MK_PURE struct gemm_order gemm_order_make(uint32_t rows, uint32_t columns, uint32_t tile_rows,
                                          uint32_t tile_columns, uint32_t running)
{
    int down = rows > columns; /* bands run along M */
    uint32_t across = down ? columns : rows;
    uint32_t square =
        down ? running * tile_rows / tile_columns : running * tile_columns / tile_rows;
    uint32_t width = 1;
    while ((width + 1) * (width + 1) <= square)
        width++;
    uint32_t bands = (across + width / 2) / width; /* of equal width, as far as possible */
    struct gemm_order o = {rows, columns, bands ? (across + bands - 1) / bands : across};
    return o;
}

MK_PURE void gemm_order_at(const struct gemm_order *o, uint32_t index, uint32_t *row,
                           uint32_t *column)
{
    int down = o->rows > o->columns;
    uint32_t along = down ? o->rows : o->columns, across = down ? o->columns : o->rows;
    uint32_t band = index / (o->width * along), first = band * o->width;
    uint32_t width = across - first < o->width ? across - first : o->width;
    uint32_t within = index - first * along, step = within / width, side = first + within % width;
    if (band & 1)
        step = along - 1 - step;
    *row = down ? step : side;
    *column = down ? side : step;
}
