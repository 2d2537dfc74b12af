/* The CTA interface, sums: for roles that add what has come from others. kernels/cta_reduce.cuh
 * implements it on a GPU, sim/cta.c elsewhere. Asynchronous, as core/cta.h says. */
#ifndef MK_CTA_REDUCE_H
#define MK_CTA_REDUCE_H

#include "core/cta.h"

/* What one sum adds: `sources` runs of numbers, `pitch` bytes apart in this rank's heap, element by
 * element in fp32, from the first to the last: the order is the result's. The result goes to rows
 * of `columns` elements. One source: a conversion or, from bf16 to bf16, a copy. Everything is
 * aligned to 16 bytes; `elements`, a multiple of `columns`, fits 32 bits; `columns` is a multiple
 * of 8. */
struct mk_sum {
    uint32_t id; /* the plan's number of the chunk, for traces */
    uint32_t sources;
    uint64_t source, pitch; /* bytes */
    uint64_t elements;
    uint32_t columns;
    uint32_t from, to;    /* enum mk_dtype */
    uint32_t clear;       /* 1: zeros are left in the sources, for the next additions */
    uint32_t space;       /* of the destination, on this rank */
    uint64_t destination; /* byte offset in that space */
    uint64_t row_pitch;   /* bytes from row to row of the destination */
};

#ifndef __CUDACC__
/* Starts adding what `sum` says. The sources must not change until a flag, raised after it, says
 * that it is done. */
void mk_cta_reduce(struct mk_cta *cta, const struct mk_sum *sum);
#endif

#endif
