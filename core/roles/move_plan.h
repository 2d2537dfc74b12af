/* The plan of an operator that only moves rows, and its arithmetic: what such operators share
 * (core/roles/move.h). A rank gets a block of `block_rows` rows of each rank; they are C, one under
 * the other. */
#pragma once

#include "core/cta/cta.h"

struct move_plan {
    struct mk_topo topo;
    uint32_t block_rows;
    uint32_t chunk_rows; /* a multiple of 8 */
    uint32_t chunks;     /* of a block; the last may be shorter */
    uint32_t flag_arrival;
    uint64_t row_bytes;
    uint64_t block_pitch; /* bytes from block to block in the heap, a multiple of 128 */
    uint64_t come[2];     /* heap offsets of W blocks, by epoch & 1 */
};

/* Holds the epoch of the last launch whose chunk has come. */
MK_PURE uint32_t move_flag(const struct move_plan *m, uint32_t rank, uint32_t chunk)
{
    return m->flag_arrival + rank * m->chunks + chunk;
}

MK_PURE uint32_t move_rows(const struct move_plan *m, uint32_t chunk)
{
    uint32_t left = m->block_rows - chunk * m->chunk_rows;
    return left < m->chunk_rows ? left : m->chunk_rows;
}

/* A chunk of `rank`'s block, from its place in one heap to that in another. */
MK_PURE struct mk_chunk move_chunk(const struct move_plan *m, uint32_t rank, uint32_t chunk,
                                   uint64_t epoch)
{
    struct mk_chunk c;
    c.id = rank * m->chunks + chunk;
    c.space = MK_SPACE_HEAP;
    c.destination =
        m->come[epoch & 1] + rank * m->block_pitch + (uint64_t)chunk * m->chunk_rows * m->row_bytes;
    c.source = c.destination;
    c.bytes = move_rows(m, chunk) * m->row_bytes;
    return c;
}

/* The same out of A, of the block that begins at A's row `first`. */
MK_PURE struct mk_chunk move_chunk_of_a(const struct move_plan *m, uint32_t first, uint32_t chunk,
                                        uint64_t epoch)
{
    struct mk_chunk c = move_chunk(m, m->topo.rank, chunk, epoch);
    c.space = MK_SPACE_ARG0;
    c.source = (first + (uint64_t)chunk * m->chunk_rows) * m->row_bytes;
    return c;
}
