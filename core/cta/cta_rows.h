/* The CTA interface, rows by lists: for roles that move tokens. What they mean is said here in
 * terms of core/cta/cta.h, which is how the host does it; on a GPU (kernels/cta/cta_rows.cuh) the warps of
 * a thread block take rows side by side. A file that breaks the CTA interface on purpose comes
 * before this one. */
#pragma once

#include "core/cta/cta_route.h"

/* Rows of `row_bytes` each, a multiple of 16. */
struct mk_rows {
    uint32_t id;     /* the plan's number of the chunk, for traces */
    uint32_t space;  /* where they are, on this rank */
    uint64_t source; /* of row 0 */
    uint64_t row_bytes;
    uint64_t list; /* uint32_t of this rank's heap for each; what it says is the caller's */
    uint32_t first, count;
    uint64_t destination; /* in a heap */
};

/* Which rows tokens are: uint32_t [k] for each, one behind the other, of this rank's heap;
 * UINT32_MAX: none. */
struct mk_places {
    uint64_t position;
    uint32_t k, tile_rows;
    uint32_t flag; /* of the first tile of rows: counts rows that have come */
};

/* Tokens of a list, `row_bytes` each, a multiple of 16, one behind the other; and what they are. */
struct mk_spread {
    uint32_t id;     /* the plan's number of the chunk, for traces */
    uint32_t space;  /* where they are, on this rank */
    uint64_t source; /* of token 0 */
    uint64_t row_bytes;
    uint32_t first, count;
    struct mk_places places;
    uint32_t to; /* rows: an argument of this rank, from its beginning on */
};

#ifndef __CUDACC__
/* Where the executor has no data: takes the time of copying `bytes` to `local`, and returns 1; else
 * 0. */
int mk_rows_without_data(struct mk_cta *cta, uint32_t local, uint32_t id, uint64_t bytes);

/* Rows list[first] .. list[first + count - 1] of the source to `destination` in the heap of
 * `local`, one after the other. */
static inline void mk_cta_copy_listed(struct mk_cta *cta, uint32_t local,
                                      const struct mk_rows *rows)
{
    if (mk_rows_without_data(cta, local, rows->id, rows->count * rows->row_bytes))
        return; /* side by side: one after the other they would take longer */
    for (uint32_t i = 0; i < rows->count; i++) {
        uint64_t row = mk_cta_load(cta, rows->list + (rows->first + i) * 4ull);
        const struct mk_chunk c = {rows->id, rows->space, rows->source + row * rows->row_bytes,
                                   rows->destination + i * rows->row_bytes, rows->row_bytes};
        mk_cta_copy(cta, local, &c);
    }
}

/* Tokens first .. first + count - 1 to each row that they are. On a GPU a token is read once. */
static inline void mk_cta_spread(struct mk_cta *cta, uint32_t local, const struct mk_spread *s)
{
    const uint64_t begin = (uint64_t)s->first * s->places.k, end = begin + s->count * s->places.k;
    uint64_t rows = 0;
    for (uint64_t at = begin; at < end; at++)
        rows += mk_cta_load(cta, s->places.position + at * 4) != UINT32_MAX;
    /* tokens are read once, and a byte written takes as much of memory as three that are read */
    if (mk_rows_without_data(cta, local, s->id, (3 * rows + s->count) * s->row_bytes / 4))
        return;
    for (uint64_t at = begin; at < end; at++) {
        const uint32_t row = mk_cta_load(cta, s->places.position + at * 4);
        const struct mk_chunk c = {s->id, s->space, s->source + at / s->places.k * s->row_bytes,
                                   row * s->row_bytes, s->row_bytes};
        if (row != UINT32_MAX)
            mk_cta_deliver(cta, (enum mk_space)s->to, &c, 1, 0);
    }
}

/* Tokens first .. first + count - 1 have come: of each row that they are, 1 to the flag of its
 * tile. */
static inline void mk_cta_tell_rows(struct mk_cta *cta, uint32_t local, uint32_t first,
                                    uint32_t count, const struct mk_places *places)
{
    for (uint64_t at = (uint64_t)first * places->k; at < (uint64_t)(first + count) * places->k;
         at++) {
        uint32_t row = mk_cta_load(cta, places->position + at * 4);
        if (row != UINT32_MAX)
            mk_cta_add(cta, local, places->flag + row / places->tile_rows, 1);
    }
}

/* Waits until all rows that tokens first .. first + count - 1 are have been counted: of a tile of
 * them the flag is at least what the uint64_t [tiles of rows] at `wanted` says, times `times`.
 * Returns 0, or 1 where the launch is ending. */
static inline int mk_cta_wait_rows(struct mk_cta *cta, const struct mk_places *places,
                                   uint64_t wanted, uint32_t times, uint32_t first, uint32_t count,
                                   enum mk_cause cause)
{
    uint32_t seen[32] = {0}; /* of some tiles of rows, one more than their number */
    for (uint64_t at = (uint64_t)first * places->k; at < (uint64_t)(first + count) * places->k;
         at++) {
        uint32_t row = mk_cta_load(cta, places->position + at * 4), tile = row / places->tile_rows;
        if (row == UINT32_MAX || seen[tile % 32] == tile + 1)
            continue;
        seen[tile % 32] = tile + 1;
        if (mk_cta_wait(cta, places->flag + tile, mk_cta_load64(cta, wanted + tile * 8ull) * times,
                        cause))
            return 1;
    }
    return 0;
}
#endif
