/* What every file of mkernel may assume: integer types, the limits of the encodings, and the two
 * words that let one source be compiled by gcc for the host and by nvcc for a Hopper GPU. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "core/types.h"

/* MK_PURE: arithmetic on a plan, the same on both sides. MK_ROLE: schedule code that runs inside a
 * CTA. */
#ifdef __CUDACC__
#define MK_PURE static __host__ __device__ __forceinline__
#define MK_ROLE static __device__ __forceinline__
#define MK_ROLE_CALL static __device__ /* an executor's function that roles call */
#else
#define MK_PURE static inline
#define MK_ROLE static inline
#define MK_ROLE_CALL
#endif

/* Once a turn of a role's loop: returns the pointer to a plan unchanged, and the compiler cannot
 * know that it does. On a GPU a role shares its registers with the GEMM engine, and nvcc would keep
 * all that it derives from the plan in them. */
#ifdef __CUDACC__
#define MK_FRESH(p) mk_fresh(p)
extern "C++" { /* though a C++ file may include this as C */
template <class plan> static __device__ __forceinline__ const plan *mk_fresh(const plan *p)
{
    asm volatile("" : "+l"(p));
    return p;
}
}
#else
#define MK_FRESH(p) (p)
#endif

#define MK_CACHE_LINE 128u
#define MK_HEAP_UNIT 128u            /* bytes: heap offsets of commands are in these units */
#define MK_MAX_RANKS 4096u           /* 12 bits of a command */
#define MK_MAX_LOCAL 16u             /* ranks of one node */
#define MK_MAX_RINGS 32u             /* command rings of one rank */
#define MK_TIMEOUT_NS 10000000000ull /* how long a wait lasts unless told otherwise */

MK_PURE uint64_t mk_ceil_div(uint64_t a, uint64_t b)
{
    return (a + b - 1) / b;
}

MK_PURE uint64_t mk_round_up(uint64_t a, uint64_t unit)
{
    return mk_ceil_div(a, unit) * unit;
}

/* A float in a table of words. */
MK_PURE float mk_float_of(uint32_t bits)
{
    union {
        uint32_t bits;
        float value;
    } u;
    u.bits = bits;
    return u.value;
}

/* Where a rank stands. Ranks are numbered node by node: rank = node * gpus + local rank. The rail
 * of a rank joins it with the same local rank of every other node. */
struct mk_topo {
    uint32_t nodes;
    uint32_t gpus; /* ranks per node */
    uint32_t rank;
};

MK_PURE uint32_t mk_world(const struct mk_topo *t)
{
    return t->nodes * t->gpus;
}

MK_PURE uint32_t mk_node_of(const struct mk_topo *t, uint32_t rank)
{
    return rank / t->gpus;
}

MK_PURE uint32_t mk_local_of(const struct mk_topo *t, uint32_t rank)
{
    return rank % t->gpus;
}

/* Local ranks [first, end), a bit each. */
MK_PURE uint32_t mk_locals(uint32_t first, uint32_t end)
{
    return first < end ? (1u << end) - (1u << first) : 0;
}

MK_PURE uint32_t mk_rank_at(const struct mk_topo *t, uint32_t node, uint32_t local)
{
    return node * t->gpus + local;
}

/* Whether the network brings what `rank` has to this rank itself: it is the other end of a rail. */
MK_PURE int mk_by_network(const struct mk_topo *t, uint32_t rank)
{
    return mk_node_of(t, rank) != mk_node_of(t, t->rank) &&
           mk_local_of(t, rank) == mk_local_of(t, t->rank);
}

/* The rank of this rank's node that hands on what `producer` made on another node; UINT32_MAX:
 * none, it comes from the producer itself. Between nodes data goes along rails alone. */
MK_PURE uint32_t mk_relay_of(const struct mk_topo *t, uint32_t producer)
{
    uint32_t relay = mk_rank_at(t, mk_node_of(t, t->rank), mk_local_of(t, producer));
    return mk_node_of(t, producer) == mk_node_of(t, t->rank) || relay == t->rank ? UINT32_MAX
                                                                                 : relay;
}

#define MK_AUXILIARY_WARPS 3u     /* warps of a compute block that the GEMM engine leaves free */
#define MK_MMA_AUXILIARY_WARPS 2u /* the same of engine mma */

/* How many CTAs of a rank take each role; the order of enum mk_role is that of CTAs in a launch's
 * grid. On a GPU a CTA is a thread block, but CTAs of intra_comm may be co-resident with compute:
 * then each is a warp of a compute block, the schedule stays the same, and every SM computes. On
 * the host each CTA is a coroutine either way. */
struct mk_role_split {
    uint32_t ctas[MK_ROLES];
    /* warps of each compute block that are CTAs of intra_comm; 0: those have blocks of their own */
    uint32_t intra_comm_warps;
};

/* So many warps of each compute block are CTAs of intra_comm, which are counted here. Whoever
 * changes how many CTAs compute calls it after that. */
MK_PURE void mk_share_blocks(struct mk_role_split *s, uint32_t warps)
{
    s->intra_comm_warps = warps;
    if (warps)
        s->ctas[MK_INTRA_COMM] = warps * s->ctas[MK_COMPUTE];
}

MK_PURE uint32_t mk_total_ctas(const struct mk_role_split *s)
{
    return s->ctas[MK_COMPUTE] + s->ctas[MK_INTRA_COMM] + s->ctas[MK_INTER_SEND] +
           s->ctas[MK_INTER_REDUCE];
}

/* A pace is how many ns a warp takes to push 512 bytes to a peer at least. This one is no limit,
 * since no warp is as fast. */
#define MK_PACE_NONE 1u

/* The pace of each of `warps` that keep `pace` together. */
MK_PURE uint32_t mk_pace_of_each(uint32_t pace, uint32_t warps)
{
    return pace == MK_PACE_NONE ? MK_PACE_NONE : pace * warps;
}

/* Thread blocks of a launch on a GPU. */
MK_PURE uint32_t mk_total_blocks(const struct mk_role_split *s)
{
    return mk_total_ctas(s) - s->intra_comm_warps * s->ctas[MK_COMPUTE];
}
