/* Which rows of a sequence a rank of ring attention holds. One arithmetic for plans, kernels,
 * checks and the public header. */
#pragma once

#include "core/plan/plan.h"

/* Runs of rows that a rank holds: two under a causal mask (zigzag), else one. */
MK_PURE uint32_t mk_attention_halves(const struct mk_attention *a)
{
    return a->causal && !a->contiguous ? 2 : 1;
}

/* A run of rows of the sequence. */
struct mk_attention_half {
    uint64_t begin, rows;
};

/* The sequence is cut into W * halves blocks of as many rows, the last ones of fewer or none. Rank
 * r holds block r and, of two halves, block 2 W - 1 - r behind it. */
MK_PURE struct mk_attention_half mk_attention_half_of(const struct mk_attention *a, uint32_t world,
                                                      uint32_t rank, uint32_t half)
{
    uint64_t blocks = (uint64_t)world * mk_attention_halves(a),
             rows = mk_ceil_div(a->sequence, blocks),
             begin = (half ? blocks - 1 - rank : rank) * rows;
    struct mk_attention_half h;
    h.begin = begin < a->sequence ? begin : a->sequence;
    h.rows = a->sequence - h.begin < rows ? a->sequence - h.begin : rows;
    return h;
}

/* All rows that a rank holds. */
MK_PURE uint64_t mk_attention_rows(const struct mk_attention *a, uint32_t world, uint32_t rank)
{
    uint64_t rows = 0;
    for (uint32_t half = 0; half < mk_attention_halves(a); half++)
        rows += mk_attention_half_of(a, world, rank, half).rows;
    return rows;
}

/* The most that a rank holds: rank 0 has no short block before its last. */
MK_PURE uint64_t mk_attention_most_rows(const struct mk_attention *a, uint32_t world)
{
    uint32_t halves = mk_attention_halves(a);
    return halves * mk_ceil_div(a->sequence, (uint64_t)world * halves);
}

/* Pairs of a query of the rank's and a key that it sees, of one head. */
MK_PURE double mk_attention_pairs(const struct mk_attention *a, uint32_t world, uint32_t rank)
{
    double pairs = 0;
    for (uint32_t half = 0; half < mk_attention_halves(a); half++) {
        struct mk_attention_half h = mk_attention_half_of(a, world, rank, half);
        double rows = (double)h.rows;
        pairs += rows * (a->causal ? (double)h.begin + (rows + 1) / 2 : (double)a->sequence);
    }
    return pairs;
}

/* Where in the sequence row `row` of a rank's stands. */
MK_PURE uint64_t mk_attention_place(const struct mk_attention *a, uint32_t world, uint32_t rank,
                                    uint64_t row)
{
    struct mk_attention_half front = mk_attention_half_of(a, world, rank, 0);
    return row < front.rows ? front.begin + row
                            : mk_attention_half_of(a, world, rank, 1).begin + row - front.rows;
}
