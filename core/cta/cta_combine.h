/* The CTA interface, weighted sums: of what ranks have, and by core/cta/cta_sums.h of a token's rows.
 * On the host: sim/cta.c, on GPUs: kernels/cta/cta_combine.cuh. Asynchronous, as core/cta/cta.h says. */
#pragma once

#include "core/cta/cta.h"
#include "core/base/quantize.h"

/* One source of a weighted sum: a run of numbers on this rank, in its heap or an argument. */
struct mk_term {
    uint64_t source; /* byte offset in `space` */
    float weight;
    uint16_t space; /* enum mk_space */
    uint16_t leaf;  /* of a tree of leaves */
};

#define MK_TERMS 32u

/* Trees of core/cta/sum_tree.h, of fp32, on the host alone: where a GPU adds from registers, terms are
 * 2, 4 or 8 nodes of one level, without weights, and cut; of tokens' sums (core/cta/cta_sums.h) they
 * are added to MK_SUM_BLOCKS leaves first, by weight. */
enum mk_combine_tree { MK_COMBINE_IN_TURN, MK_COMBINE_NODES, MK_COMBINE_LEAVES };

/* What one weighted sum adds: terms[0 .. count - 1], weight times run, element by element in fp32,
 * from the first to the last: the order is the result's. (Whether a product is rounded before it is
 * added is the executor's, the same in every launch.) No terms: zeros. Runs are multiples
 * of 16 bytes, and begin at one. */
struct mk_combine {
    uint32_t id; /* the plan's number of the chunk, for traces */
    uint32_t count;
    struct mk_term terms[MK_TERMS];
    uint64_t elements;
    uint32_t from, to;    /* enum mk_dtype; to MK_E4M3: a record (core/base/quantize.h) */
    uint32_t records;     /* bit i: term i is a record, whatever `from` says */
    uint32_t space;       /* of the destination: on this rank, or the heap of `local` */
    uint32_t local;       /* a local rank */
    uint64_t destination; /* byte offset in that space */
    uint32_t tree;        /* enum mk_combine_tree */
};

/* Bytes of such a run. */
MK_PURE uint64_t mk_combine_bytes(uint64_t elements, uint32_t number)
{
    return number == MK_E4M3 ? quantize_record(elements) : elements * (number == MK_FP32 ? 4 : 2);
}

#ifndef __CUDACC__
/* Starts adding what `combine` says. The sources must not change until a flag, raised after it,
 * says that it is done. */
void mk_cta_combine(struct mk_cta *cta, const struct mk_combine *combine);
#endif
