/* The pipeline of a compute CTA: what its engine, its senders and the roles beside it leave for
 * each other. The operator's plan declares it (struct op_descriptor) and its kernel is built that
 * way. Executors without a kernel go by it: the host's engine, the events engine, the quick model.
 *
 *   operands   come in slices of K. The engine waits for one slice, and multiplies it while the
 *              next one comes
 *   addends    what is added to a tile's products is awaited behind these
 *   outbox     the epilogue leaves a tile in one of a few places. Senders, warps beside the
 *              engine, take it from there to the peer that adds it, and publish it. A full outbox
 *              holds up the engine: that is the back-pressure of NVLink
 *   direct_store  there is none: the epilogue stores a tile at the peers, and senders publish it
 *   halves     a tile of half the rows keeps half of the engine's consumers busy
 *   tickets    tiles of unequal cost are taken from one counter, by whichever CTA is free */
#pragma once

#include "core/cta/cta.h"

/* All 0 but `slices` and `together`, 1: tiles are computed in turn and stored where they belong. */
struct mk_pipeline {
    uint32_t slices;       /* of a tile's operands, that the engine waits for one by one */
    uint32_t slice_stages; /* stages (64 elements of K) of a slice; 0: there is one slice */
    uint32_t load_addends; /* 1: the wait before a tile comes behind its products, for addends */
    uint32_t outbox;       /* places of a CTA's outbox, a tile each; 0: there is none */
    uint32_t senders;      /* warps of a CTA that take tiles from its outbox */
    uint32_t
        direct_store;    /* 1: what leaves for peers leaves from registers; senders only publish */
    uint32_t halves;     /* 1: a tile of at most half of tile_m takes MK_HALF_TILE of its time */
    uint32_t owned_pass; /* 1: senders also publish tiles whose C is an argument of this rank */
    /* in the outbox rows and columns are rounded up to multiples of these */
    uint32_t grain_rows, grain_cols, element_bytes;
    uint32_t tickets;   /* 1: tiles are taken from one counter */
    uint32_t together;  /* adds to a flag come so many at a time, and nobody waits for fewer */
    uint32_t by_thread; /* 1: a role in a thread block of its own copies by TMA, on one thread */
};

/* Of a whole tile's time, what one of half its rows takes: the same B is loaded for it. ag_gemm
 * 3072,7168,4096 and 5120,5120,5120 on one and two H200s: 0.47 to 0.63. */
#define MK_HALF_TILE 0.6

/* Whether the senders have to do with a tile. */
MK_PURE int mk_pipeline_passes(const struct mk_pipeline *p, const struct mk_tile *tile)
{
    return p->senders && (p->owned_pass || tile->c == MK_SPACE_HEAP);
}

/* What `rows` rows of a tile take in the outbox, and on the way. */
MK_PURE uint64_t mk_pipeline_bytes(const struct mk_pipeline *p, const struct mk_tile *tile,
                                   uint32_t rows)
{
    return mk_round_up(rows, p->grain_rows) * mk_round_up(tile->cols, p->grain_cols) *
           p->element_bytes;
}
