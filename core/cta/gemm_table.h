/* The tiles of products of several groups of rows, as a table in the order of computation: a CTA
 * takes the next entry and searches no groups. */
#pragma once

#include "core/cta/gemm_order.h"

/* One tile; 16 bytes, so that it is read at once. */
struct mk_tile_entry {
    uint32_t row, rows; /* first row of A and C, a multiple of the tile's; how many: at least 1 */
    uint32_t group;     /* whose B */
    uint32_t column; /* of tiles; of the second product, where there is one, behind the first's */
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

/* The order of two products, up and down, where down reads what up makes. Rows of tiles, run by
 * run, are cut into groups of `group`. Up of a group is followed by down of the group before: the
 * last tiles of that group's up are done by then. Without a second product (no `down`) runs follow
 * each other. */
struct mk_stages {
    uint32_t rows;     /* of tiles, in all */
    uint32_t up, down; /* tiles across, of each product */
    uint32_t group;
};

/* Where tile `t` of 0 .. rows * (up + down) - 1 stands: in which group (rows of tiles first ..
 * first + count - 1), as which of its tiles of a product. */
struct mk_stage {
    uint32_t down; /* 1: of the second product */
    uint32_t first, count, index;
};

MK_PURE struct mk_stage mk_stage_at(const struct mk_stages *s, uint32_t t)
{
    uint32_t group = s->down && s->group < s->rows ? s->group : s->rows,
             each = group * (s->up + s->down), last = group ? (s->rows - 1) / group : 0,
             rest = s->rows - last * group; /* of the last group */
    struct mk_stage at = {0, 0, group, t};
    if (t < group * s->up)
        return at;
    t -= group * s->up;
    uint32_t turn = last ? t / each : 0; /* up of group turn + 1, then down of group turn */
    turn = last && turn > last - 1 ? last - 1 : turn;
    t -= turn * each;
    uint32_t next = !last ? 0 : turn + 1 == last ? rest : group;
    at.index = t;
    if (t < next * s->up) {
        at.first = (turn + 1) * group;
        at.count = next;
        return at;
    }
    at.down = 1;
    at.index -= next * s->up;
    at.first = turn * group;
    if (last && at.index >= group * s->down) { /* what the last group leaves */
        at.index -= group * s->down;
        at.first = last * group;
        at.count = rest;
    }
    return at;
}

/* The part of a run that is in the group, and which of its tiles `at` is. begin: the number of the
 * run's first row of tiles among all. */
MK_PURE struct mk_tile_entry mk_tile_of_stage(const struct mk_stages *s, const struct mk_stage *at,
                                              const struct mk_tile_run *run, uint32_t begin,
                                              uint32_t tile_m, uint32_t tile_n, uint32_t running)
{
    uint32_t columns = at->down ? s->down : s->up, end = at->first + at->count,
             from = begin > at->first ? begin : at->first,
             to = begin + run->count < end ? begin + run->count : end;
    struct mk_tile_run part = *run;
    part.first += from - begin;
    /* A tile that there is also where begins are wrong: where there is none something is divided by
     * 0, which a GPU survives and a processor does not, when a test looks at what a missing barrier
     * does. */
    part.count = to > from ? to - from : 1;
    uint32_t i = at->index - (from - at->first) * columns, most = part.count * columns - 1;
    struct mk_tile_entry e =
        mk_tile_of_run(&part, i < most ? i : most, columns, tile_m, tile_n, running);
    e.column += at->down ? s->up : 0;
    return e;
}

/* The row of tiles, of all, that it is in. */
MK_PURE uint32_t mk_stage_row(const struct mk_stages *s, const struct mk_stage *at)
{
    return at->first + at->index / (at->down ? s->down : s->up);
}

/* The first tile behind all of the rows of tiles before `row`: behind down of the group that the
 * last of them is in. */
MK_PURE uint32_t mk_stage_behind(const struct mk_stages *s, uint32_t row)
{
    uint32_t group = s->down && s->group < s->rows ? s->group : s->rows,
             end = row ? ((row - 1) / group + 1) * group : 0, /* of the group */
        next = row ? end + group : 0;
    return (next < s->rows ? next : s->rows) * s->up + (end < s->rows ? end : s->rows) * s->down;
}
