/* The CTA interface: all that a role may do. Roles (core/roles) are written against this file alone and compiled for
 * three executors; kernels/cta.cuh implements it on the GPU, sim/cta.c on the host and in the simulator.
 *
 * Who runs a role: on the GPU one thread of the CTA (copies are TMA bulk operations, so one thread moves 44 GB/s); on
 * the host one coroutine. The compute role is different: the executor's engine pulls tiles from the op's tile source
 * (<op>_tile, <op>_before, <op>_after) so that loads, math and stores of several tiles overlap.
 * <op>_after follows the tile's stores as a flag follows copies: what it signals is visible after the tile's C is.
 *
 * Memory order. mk_cta_copy, mk_cta_copy_rows, mk_cta_reduce, mk_cta_combine, mk_cta_route and mk_cta_put are
 * asynchronous: nothing is promised about the bytes until
 *   - mk_cta_signal or mk_cta_add: every copy, sum, table and tile stored before by this CTA is visible at the peer
 *     before the flag is;
 *   - the flag that a put carries: the put's bytes are visible at the peer before it is;
 *   - mk_cta_drain: every put made before by this CTA has left its source, which may be overwritten.
 * mk_cta_wait acquires: what was written before the flag was raised is visible after it.
 *
 * Flags are 64-bit counters that never go back, named by an index into the flag region at the start of the heap.
 * A flag written by puts holds the epoch; a flag raised by mk_cta_add counts, and its target is epoch * contributors.
 *
 * A call that returns non-zero says that the launch is ending (a wait timed out here or elsewhere): the role returns at
 * once. The bound of every wait is the plan's timeout. */
#ifndef MK_CTA_H
#define MK_CTA_H

#include "core/base.h"
#include "core/event.h"

/* What an address is relative to: the symmetric heap, or an argument of the launch (A, B, C, in the op's order). */
enum mk_space {
    MK_SPACE_HEAP,
    MK_SPACE_ARG0,
    MK_SPACE_ARG1,
    MK_SPACE_ARG2,
    MK_SPACE_ARG3,
    MK_SPACE_ARG4,
    MK_SPACE_ARG5,
    MK_SPACES
};

/* What one transfer moves: contiguous bytes, a multiple of 16, both ends aligned to 16 (to 128 for a put). A copy out of an
 * argument may be a multiple of 4 only: nobody may read past its end. */
struct mk_chunk {
    uint32_t id;          /* the plan's number of it, for traces and messages */
    uint32_t space;       /* of the source */
    uint64_t source;      /* byte offset in that space, on this rank */
    uint64_t destination; /* byte offset in the peer's heap */
    uint64_t bytes;
};

/* How numbers lie in memory. */
enum mk_number { MK_BF16, MK_FP32 };

/* What one sum adds: `sources` runs of numbers, `pitch` bytes apart in this rank's heap, element by element in fp32, from
 * the first to the last: the order is the result's. The result goes to rows of `columns` elements. One source: a conversion
 * or, from bf16 to bf16, a copy. Everything is aligned to 16 bytes; `elements`, a multiple of `columns`, fits 32 bits; `columns`
 * is a multiple of 8. */
struct mk_sum {
    uint32_t id; /* the plan's number of the chunk, for traces */
    uint32_t sources;
    uint64_t source, pitch; /* bytes */
    uint64_t elements;
    uint32_t columns;
    uint32_t from, to;    /* enum mk_number */
    uint32_t clear;       /* 1: zeros are left in the sources, for those who add to them next */
    uint32_t space;       /* of the destination, on this rank */
    uint64_t destination; /* byte offset in that space */
    uint64_t row_pitch;   /* bytes from row to row of the destination */
};

/* One source of a weighted sum: a run of numbers in this rank's heap. */
struct mk_term {
    uint64_t source; /* byte offset */
    float weight;
};

#define MK_TERMS 32u

/* What one weighted sum adds: terms[0 .. count - 1], weight times run, element by element in fp32, from the first to the
 * last: the order is the result's. (Whether a product is rounded before it is added is the executor's, the same in every
 * launch.) No terms: zeros. Alignment as in struct mk_sum. A warp can let each lane take 16 bytes of every run in turn;
 * count and terms are the same in all lanes. */
struct mk_combine {
    uint32_t id; /* the plan's number of the chunk, for traces */
    uint32_t count;
    struct mk_term terms[MK_TERMS];
    uint64_t elements;
    uint32_t from, to;    /* enum mk_number */
    uint32_t space;       /* of the destination, on this rank */
    uint64_t destination; /* byte offset in that space */
};

/* Where the tokens of all ranks go. Each token of each rank names k experts; expert e is on rank e / rank_experts. On the
 * rank of an expert its rows begin at a multiple of tile_rows, behind those of the expert before, in the order of source
 * rank, token, place among the k; with chunk_rows, of source node, chunk, rank, token, place. Everything but ids and wanted
 * is made by mk_cta_route; offsets in this rank's heap. */
struct mk_route {
    struct mk_topo topo;
    uint32_t tokens, k, experts, rank_experts, tile_rows;
    uint64_t ids;        /* uint32_t [W][ids_pitch bytes: tokens, k]; `experts` or more: none */
    uint64_t ids_pitch;
    uint64_t position;   /* uint32_t [W][tokens][k]: row on the rank of its expert; UINT32_MAX: none */
    uint64_t first;      /* uint32_t [experts]: first row */
    uint64_t rows;       /* uint32_t [experts]: how many */
    uint64_t sent;       /* uint32_t [nodes][tokens]: tokens of this rank that have experts on that other node, in order */
    uint64_t sent_count; /* uint32_t [nodes] */
    uint64_t came;       /* uint32_t [nodes][tokens]: tokens of this rail's rank of that node that have experts here */
    uint64_t came_count; /* uint32_t [nodes] */
    uint64_t node_rows;  /* uint32_t [rank_experts][nodes + 1]: how many rows of each of this rank's experts come from the
                          * nodes before; last, all of them */
    uint64_t wanted;     /* uint64_t per tile of rows of this rank, kept from launch to launch: += its rows */
    uint64_t summary;    /* uint32_t [rank_experts][2] in `summary_space`: first row and rows of this rank's experts; not
                          * made where that is the heap */
    uint32_t summary_space;
    /* For an op whose rows go back to where their tokens came from; 0: these are not made. Chunks are of chunk_rows tokens. */
    uint32_t chunk_rows;
    uint64_t origin;      /* uint32_t per row of this rank's experts: (rank * tokens + token) * k + place */
    uint64_t sent_before; /* uint32_t [nodes][tokens + 1]: how many tokens of `sent` come before this token */
    uint64_t came_before; /* uint32_t [nodes][tokens + 1]: the same of `came` */
    uint64_t due;         /* uint64_t [nodes][chunks], kept from launch to launch: += how often the tokens of a chunk of this
                           * rail's rank of that node name an expert on this node */
};

/* What one CTA (or a cluster of two) computes at a time: C[c_slab][row.., col..] = A[a_slab][row.., :] * B[:, col..] over
 * the extents. Slabs are row blocks of one size, the shards of a matrix. */
struct mk_tile {
    uint32_t id;         /* 0 .. tiles - 1, the plan's number of it */
    uint32_t a;          /* where A lies: enum mk_space */
    uint32_t a_slab;     /* slab of A in its space: 0 where A is this rank's own shard */
    uint32_t slab;       /* of the op's whole C: the rank whose rows these are */
    uint32_t row, col;   /* first element in the slab */
    uint32_t rows, cols; /* extents, at most tile_m and tile_n of the plan */
    uint32_t c;          /* where C goes: an argument of this rank, or MK_SPACE_HEAP of local rank `c_local`, where the
                          * plan says whether it is stored or added */
    uint32_t c_local;
    uint32_t c_slab;     /* in that space */
    uint32_t stage;      /* which of an op's products, where it has several */
};

/* Several threads may each store a part of a tile and call <op>_after for it: their parts add up to this. */
#define MK_TILE_PARTS 4u

/* What a role may read of its CTA; the rest of struct mk_cta belongs to the executor. */
#define MK_CTA_FIELDS                                                                                                  \
    uint32_t role;  /* enum mk_role */                                                                                 \
    uint32_t index; /* among the CTAs of this role: 0 .. count - 1 */                                                  \
    uint32_t count;                                                                                                    \
    uint64_t epoch /* of this launch, from 1 */

#ifdef __CUDACC__
struct mk_cta; /* kernels/cta.cuh defines it, and the calls below as device functions; include it before the roles */
#else
struct mk_cta {
    MK_CTA_FIELDS;
};

/* Waits until this rank's `flag` is at least `target`. Returns 0, or 1 where the launch is ending. */
int mk_cta_wait(struct mk_cta *cta, uint32_t flag, uint64_t target, enum mk_cause cause);

/* The same for `count` flags (1 to 32) that follow each other: until each is at least `target`. */
int mk_cta_wait_all(struct mk_cta *cta, uint32_t flag, uint32_t count, uint64_t target, enum mk_cause cause);

/* Starts copying a chunk into the heap of local rank `local` (this node; itself allowed). */
void mk_cta_copy(struct mk_cta *cta, uint32_t local, const struct mk_chunk *chunk);

/* The same with `rows` runs of chunk->bytes each, `pitch` bytes apart at both ends: a part of the columns of a matrix. */
void mk_cta_copy_rows(struct mk_cta *cta, uint32_t local, const struct mk_chunk *chunk, uint32_t rows, uint64_t pitch);

/* Starts adding what `sum` says. The sources must not change until a flag, raised after it, says that it is done. */
void mk_cta_reduce(struct mk_cta *cta, const struct mk_sum *sum);

/* Starts adding what `combine` says. The sources must not change until a flag, raised after it, says that it is done. */
void mk_cta_combine(struct mk_cta *cta, const struct mk_combine *combine);

/* Starts making the tables of `route` from its ids, which have come. */
void mk_cta_route(struct mk_cta *cta, const struct mk_route *route);

/* Reads a table: a word of this rank's heap, 4- or 8-byte aligned, that a wait has acquired. */
uint32_t mk_cta_load(struct mk_cta *cta, uint64_t offset);
uint64_t mk_cta_load64(struct mk_cta *cta, uint64_t offset);

/* After all earlier copies of this CTA: sets `flag` of local rank `local` to `value`. */
void mk_cta_signal(struct mk_cta *cta, uint32_t local, uint32_t flag, uint64_t value);

/* After all earlier copies of this CTA: adds `count` to `flag` of local rank `local`, atomically. */
void mk_cta_add(struct mk_cta *cta, uint32_t local, uint32_t flag, uint64_t count);

/* Writes a chunk (its source in the heap) to `rank` of another node, then sets `flag` there to the epoch. No bytes: the
 * flag alone. Waits while the command ring is full. Ordered after every earlier copy and sum of this CTA, so a chunk staged
 * by one may be put. Returns 0, or 1 where the launch is ending. */
int mk_cta_put(struct mk_cta *cta, uint32_t rank, const struct mk_chunk *chunk, uint32_t flag);

/* Waits until every put of this CTA has left its source. Returns 0, or 1 where the launch is ending. */
int mk_cta_drain(struct mk_cta *cta);
#endif

#endif
