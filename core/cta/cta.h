/* The CTA interface: all that a role may do. Roles (core/roles) are written against this file alone
 * and compiled for three executors; kernels/cta/cta.cuh implements it on the GPU, sim/cta.c on the host
 * and in the simulator.
 *
 * What runs a role: on the GPU one thread of the CTA (copies are TMA bulk operations, so one thread
 * moves 44 GB/s); on the host one coroutine. The compute role is different: the executor's engine
 * pulls tiles from the op's tile source (<op>_tile, <op>_before, <op>_after) so that loads, math
 * and stores of several tiles overlap. <op>_after follows the tile's stores as a flag follows
 * copies: what it signals is visible after the tile's C is.
 *
 * Here is what every executor implements. What only some operators need stands in files of its own,
 * and a role includes those that it uses: core/cta/cta_combine.h, core/cta/cta_route.h.
 * A GPU that lacks a call declares none, so that an operator which makes it does not compile there
 * (tests/test_house.py).
 *
 * Memory order. mk_cta_copy, mk_cta_copy_rows, mk_cta_copy_packed, mk_cta_deliver, mk_cta_combine,
 * mk_cta_route and mk_cta_put are asynchronous: nothing is promised about the bytes until
 *   - mk_cta_signal or mk_cta_add: every copy, sum, table and tile stored before by this CTA is
 *     visible at the peer before the flag is;
 *   - the flag that a put carries: the put's bytes are visible at the peer before it is;
 *   - mk_cta_drain: every put made before by this CTA has left its source, which may be
 *     overwritten.
 * mk_cta_wait acquires: what was written before the flag was raised is visible after it.
 *
 * Flags are 64-bit counters that never go back, named by an index into the flag region at the start
 * of the heap. A flag written by puts holds the epoch; a flag raised by mk_cta_add counts, and its
 * target is epoch * contributors.
 *
 * A call that returns non-zero says that the launch is ending (a wait timed out here or elsewhere):
 * the role returns at once. The bound of every wait is the plan's timeout. */
#pragma once

#include "core/base.h"
#include "core/cta/event.h"

/* What an address is relative to: the symmetric heap, or an argument of the launch (A, B, C, in the
 * op's order). */
enum mk_space {
    MK_SPACE_HEAP,
    MK_SPACE_ARG0,
    MK_SPACE_ARG1,
    MK_SPACE_ARG2,
    MK_SPACE_ARG3,
    MK_SPACE_ARG4,
    MK_SPACE_ARG5,
    MK_SPACE_ARG6,
    MK_SPACE_ARG7,
    MK_SPACE_ARG8,
    MK_SPACES
};

/* What one transfer moves: contiguous bytes, a multiple of 16, both ends aligned to 16 (to 128 for
 * a put). A copy out of an argument may be a multiple of 4 only, since no copy may read past its
 * end. */
struct mk_chunk {
    uint32_t id;          /* the plan's number of it, for traces and messages */
    uint32_t space;       /* of the source */
    uint64_t source;      /* byte offset in that space, on this rank */
    uint64_t destination; /* byte offset in the peer's heap */
    uint64_t bytes;
};

/* Warps of a CTA on a GPU that can be senders: two where intra_comm leaves them. */
MK_PURE uint32_t mk_pipeline_senders(const struct mk_role_split *split)
{
    return split->intra_comm_warps < 2 ? 2 : 1;
}

/* How numbers lie in memory. MK_FP24: fp32 without its lowest byte, which is 2^-15 of a number at
 * most; how the bytes lie is the executor's. MK_E4M3: with scales, which lie where its user
 * says. */
enum mk_dtype { MK_BF16, MK_FP32, MK_FP24, MK_E4M3, MK_FP16 };

/* What one CTA (or a cluster of two) computes at a time: C[c_slab][row.., col..] = A[a_slab][row..,
 * :] * B[:, col..] over the extents. Slabs are row blocks of one size, the shards of a matrix. */
struct mk_tile {
    uint32_t id;         /* 0 .. tiles - 1, the plan's number of it */
    uint32_t a;          /* where A lies: enum mk_space */
    uint32_t a_slab;     /* slab of A in its space: 0 where A is this rank's own shard */
    uint32_t slab;       /* of the op's whole C: the rank whose rows these are */
    uint32_t row, col;   /* first element in the slab */
    uint32_t rows, cols; /* extents, at most tile_m and tile_n of the plan */
    uint32_t c; /* where C goes: an argument of this rank, or MK_SPACE_HEAP of local rank `c_local`
                 */
    uint32_t c_local;
    uint32_t c_slab; /* in that space */
    uint32_t stage;  /* which of an op's several products; of a slice of K, 1 + its number */
};

/* Several threads may each store a part of a tile and call <op>_after for it: their parts add up to
 * this. */
#define MK_TILE_PARTS 4u

/* What a role may read of its CTA; the rest of struct mk_cta belongs to the executor. */
#define MK_CTA_FIELDS                                                                              \
    uint32_t role;  /* enum mk_role */                                                             \
    uint32_t index; /* among the CTAs of this role: 0 .. count - 1 */                              \
    uint32_t count;                                                                                \
    uint64_t epoch /* of this launch, from 1 */

#ifdef __CUDACC__
/* kernels/cta/cta.cuh defines it, and the calls below as device functions; include it before the
 * roles */
struct mk_cta;
#else
struct mk_cta {
    MK_CTA_FIELDS;
};

/* Waits until this rank's `flag` is at least `target`. Returns 0, or 1 where the launch is
 * ending. */
int mk_cta_wait(struct mk_cta *cta, uint32_t flag, uint64_t target, enum mk_cause cause);

/* The same for `count` flags (1 to 32) that follow each other: until each is at least `target`. */
int mk_cta_wait_all(struct mk_cta *cta, uint32_t flag, uint32_t count, uint64_t target,
                    enum mk_cause cause);

/* The same for `count` flags but the `own`-th. */
int mk_cta_wait_others(struct mk_cta *cta, uint32_t flag, uint32_t count, uint32_t own,
                       uint64_t target, enum mk_cause cause);

/* Starts copying a chunk into the heap of local rank `local` (this node; itself allowed). */
void mk_cta_copy(struct mk_cta *cta, uint32_t local, const struct mk_chunk *chunk);

/* The same with `rows` runs of chunk->bytes each, so many bytes apart: a part of the columns of a
 * matrix. */
void mk_cta_copy_rows(struct mk_cta *cta, uint32_t local, const struct mk_chunk *chunk,
                      uint32_t rows, uint64_t source_pitch, uint64_t destination_pitch);

/* The same where the runs follow each other at the destination: chunk->bytes are those of all
 * `rows` runs together. */
void mk_cta_copy_packed(struct mk_cta *cta, uint32_t local, const struct mk_chunk *chunk,
                        uint32_t rows, uint64_t pitch);

/* Starts copying a chunk that lies on this rank (in its heap, where it has come, or in an argument;
 * its rows follow each other there) to where it belongs in an argument of this rank: `rows` runs of
 * chunk->bytes each, `pitch` bytes apart, the first at chunk->destination of `space`. */
void mk_cta_deliver(struct mk_cta *cta, enum mk_space space, const struct mk_chunk *chunk,
                    uint32_t rows, uint64_t pitch);

/* After all earlier copies of this CTA: sets `flag` of local rank `local` to `value`. */
void mk_cta_signal(struct mk_cta *cta, uint32_t local, uint32_t flag, uint64_t value);

/* After all earlier copies of this CTA: adds `count` to `flag` of local rank `local`,
 * atomically. */
void mk_cta_add(struct mk_cta *cta, uint32_t local, uint32_t flag, uint64_t count);

/* The same to `flag` of each local rank whose bit is in `ranks`. */
void mk_cta_add_each(struct mk_cta *cta, uint32_t ranks, uint32_t flag, uint64_t count);

/* Writes a chunk (its source in the heap) to `rank` of another node, then sets `flag` there to the
 * epoch. No bytes: the flag alone. Waits while the command ring is full. Ordered after every
 * earlier copy and sum of this CTA, so a chunk staged by one may be put. Returns 0, or 1 where the
 * launch is ending. */
int mk_cta_put(struct mk_cta *cta, uint32_t rank, const struct mk_chunk *chunk, uint32_t flag);

/* Waits until every put of this CTA has left its source. Returns 0, or 1 where the launch is
 * ending. */
int mk_cta_drain(struct mk_cta *cta);

/* mk_cta_add of 1 to a flag of this rank, local rank `own`, that this rank alone waits for: a GPU
 * need not wait until others see it. */
static inline void mk_cta_made(struct mk_cta *cta, uint32_t own, uint32_t flag)
{
    mk_cta_add(cta, own, flag, 1);
}
#endif

/* Which kernels multiply and move on a GPU: Hopper's, by wgmma and the TMA unit (kernels/hopper/),
 * or those of every GPU of compute capability 8.0 and up, by mma.sync and plain copies
 * (kernels/mma/). DEVICE: the first on Hopper, else the second; on the host there is none. */
enum mk_engine { MK_ENGINE_DEVICE, MK_ENGINE_WGMMA, MK_ENGINE_MMA, MK_ENGINES };

/* What an operator's host code in kernels/ chooses a plan's kernel by: numbers of struct mk_problem
 * (core/plan/plan.h), which no kernel sees. */
struct mk_kernel_choice {
    enum mk_engine engine;
    struct mk_role_split split;
    uint32_t tile_m, tile_n, slices, sms_most, block_shared;
    int b_transposed, fp8, fp16, b_columns, deterministic;
};

struct mk_plan;
#ifdef __cplusplus
extern "C"
#endif
    struct mk_kernel_choice
    mk_kernel_choice_of(const struct mk_plan *plan);

#define MK_PLAN_OWN 2048u

/* Room for an operator's own plan, which a struct mk_plan (core/plan/plan.h) begins with. MK_PLAN_OF(ag_gemm), behind struct ag_gemm_plan,
 * makes ag_gemm_plan_of, which reads it, and ag_gemm_plan_in, through which it is made. Nothing but
 * the operator looks inside. */
#ifdef __cplusplus
#define MK_STATIC_ASSERT static_assert
#else
#define MK_STATIC_ASSERT _Static_assert
#endif
#define MK_PLAN_OF(op)                                                                             \
    MK_STATIC_ASSERT(sizeof(struct op##_plan) <= MK_PLAN_OWN,                                      \
                     "a plan of " #op " is larger than MK_PLAN_OWN");                              \
    static inline const struct op##_plan *op##_plan_of(const struct mk_plan *p)                    \
    {                                                                                              \
        return (const struct op##_plan *)(const void *)p;                                          \
    }                                                                                              \
    static inline struct op##_plan *op##_plan_in(struct mk_plan *p)                                \
    {                                                                                              \
        return (struct op##_plan *)(void *)p;                                                      \
    }                                                                                              \
    struct op##_plan /* so that a semicolon follows */
