/* The CTA interface, routes: for roles that send tokens to their experts. sim/cta.c and sim/route.c
 * implement it, kernels/cta_route.cuh on a GPU. Asynchronous, as core/cta.h says. */
#ifndef MK_CTA_ROUTE_H
#define MK_CTA_ROUTE_H

#include "core/cta.h"
#include "core/gemm_table.h"

/* Where the tokens of all ranks go. Each token of each rank names k experts; expert e is on rank e
 * / rank_experts. On the rank of an expert its rows begin at a multiple of tile_rows, behind those
 * of the expert before, in the order of source rank, token, place among the k. Everything but ids
 * is made by mk_cta_route; offsets in this rank's heap.
 *
 * Several CTAs make the tables together, in two steps: all of them count, and when all have counted
 * all of them place. `part` of `parts` is what one CTA does of a step.
 *
 * A token that lies on this rank has a number: up to `room` this rank's own; from landed_source on
 * [gpus][landed_room], those that each other rank of the node brings, of node 0's rank on that
 * rank's rail first, one behind the other; from relay_source on [nodes][relay_room], those that this
 * rail's rank of each other node sends. More than there is room for, of these or of rows, is an
 * overflow: then nothing but the head is made, which says so. Both ranks of a link count its
 * tokens, so neither writes past the other's room.
 *
 * KEEP comes before all that, on one CTA, where a plan drops what does not fit: the own rank's ids
 * come from an argument to their place among `ids`. Of its places on experts of one rank, in the
 * order of tokens and places, the first `quota` are kept; the others' become UINT32_MAX. With a
 * quota of capacity / W no rank can overflow, and no rank needs to know another's ids to tell. */
enum mk_route_step { MK_ROUTE_COUNT, MK_ROUTE_PLACE, MK_ROUTE_KEEP };

struct mk_route {
    struct mk_topo topo;
    uint32_t step, part, parts;
    uint32_t tokens, k, experts, rank_experts, tile_rows;
    uint32_t capacity; /* rows that this rank has room for, tiles that are not full aside */
    uint64_t ids;      /* uint32_t [W][ids_pitch bytes: tokens, k]; `experts` or more: none */
    uint64_t ids_pitch;
    uint32_t quota, named_space; /* 0: all are kept; else the argument with the own rank's ids */
    uint64_t dropped;            /* uint64_t: += how many of a launch were not kept */
    /* uint32_t [numbers of tokens][k]: row, where the expert is this rank's; else UINT32_MAX */
    uint64_t position;
    uint64_t source; /* uint32_t per row of this rank's experts: the number of its token */
    uint32_t room, landed_source, relay_source, landed_room, relay_room;
    uint64_t first; /* uint32_t [rank_experts]: first row */
    uint64_t rows;  /* uint32_t [rank_experts]: how many */
    /* uint32_t [nodes][relay_room]: tokens of this rank that have experts on that other node, in
     * order */
    uint64_t sent;
    uint64_t sent_count; /* uint32_t [nodes] */
    /* uint32_t [nodes][relay_room]: tokens of this rail's rank of that node that have experts here */
    uint64_t came;
    uint64_t came_count; /* uint32_t [nodes] */
    /* uint32_t [gpus][landed_room]: what this rank hands on to each other local rank: of each node,
     * from push_first on, those of its tokens that lie here (of this node this rank's own, by
     * their number; of another those of `came`, by their place there) that have an expert there,
     * in order */
    uint64_t push;
    uint64_t push_first, push_count; /* uint32_t [nodes][gpus] */
    /* uint32_t [gpus][landed_room]: tokens of a rank that have experts on this one, in order, from
     * landed_first on; of those that the rank's local rank of this node brings here */
    uint64_t landed;
    uint64_t landed_first, landed_count; /* uint32_t [W] */
    uint64_t node_rows; /* uint32_t [rank_experts][nodes + 1]: how many rows of each of this rank's
                         * experts come from the  nodes before; last, all of them */
    /* uint64_t per tile of rows of this rank, kept from launch to launch: += its rows; += those of
     * other ranks' tokens */
    uint64_t wanted, awaited;
    uint64_t summary; /* uint32_t [rank_experts][2] in `summary_space`: first row and rows of this
                       * rank's experts; not made where that is the heap */
    uint32_t summary_space;
    /* The tiles of this rank in the order of computation (mk_route_run), `columns` of tile_columns
     * each, then `down` of a second product (struct mk_stages, in groups of group_rows rows of
     * tiles): struct mk_tile_entry per tile; how many is said in `order_head` (struct
     * mk_route_head). */
    uint64_t order, order_head;
    uint32_t columns, down, group_rows, tile_columns, slices;
    uint32_t running; /* tiles that run at the same time */
    uint32_t apart;   /* 1: rows of this rank's own tokens are computed apart from its node's */
    uint32_t late;    /* 1: half of its node's are computed last */
    /* Of a GPU: mk_route_scratch_words; and, where a block's counts do not fit into shared memory,
     * mk_route_shared_words of each part; 0: they fit. */
    uint64_t scratch, spill;
    uint32_t shared; /* of a GPU: bytes of shared memory; 0: MK_ROUTE_SHARED */
    /* For an op whose rows go back to where their tokens came from; 0: not made. uint32_t [nodes]
     * [tokens + 1]: how many tokens of `sent` come before this token. uint32_t [own tokens, up to
     * `room`; then those of `came`, nodes * relay_room][gpus]: which place in `push` of that local
     * rank the next token that goes there from this one on has. */
    uint64_t sent_before, push_before;
};

/* What there is too much of. */
enum mk_route_over {
    MK_OVER_NOTHING,
    MK_OVER_ROWS,   /* rows of a rank's experts */
    MK_OVER_LANDED, /* tokens that one rank brings another of its node */
    MK_OVER_RELAYED /* tokens that a rank sends its rail's rank of another node */
};

/* Where `order` is from; kept from launch to launch, begins as 0. */
struct mk_route_head {
    /* enum mk_route_over, in this launch; the rank that has no room, how many, and its room */
    uint32_t over, over_rank, over_count, over_room;
    uint64_t begin; /* of a GPU: what gpu_launch.taken stood at when this launch began */
    uint32_t count;
    uint32_t apart; /* of these, tiles before what is computed last (mk_route_last) */
    uint64_t
        added; /* the same as `begin`, of `adding`: units of another kind, by another counter */
    uint64_t adding;
};

/* What a GPU reports in place of a wait's cause, plus enum mk_route_over; of such a report the wait's
 * length is the rank that has no room. */
#define GPU_CAUSE_OVERFLOW 256u

#define MK_ROUTE_WARPS 12u /* of a thread block that makes tables */

/* Tokens that lie on a rank, and have numbers. */
MK_PURE uint64_t mk_route_sources(const struct mk_route *r)
{
    return r->relay_source + (uint64_t)r->topo.nodes * r->relay_room;
}

/* The number of the first token that a rank of another rail has here, or one of this rail's of
 * another node. */
MK_PURE uint32_t mk_route_landed(const struct mk_route *r, uint32_t rank, uint32_t first)
{
    return r->landed_source + mk_local_of(&r->topo, rank) * r->landed_room + first;
}

MK_PURE uint32_t mk_route_relayed(const struct mk_route *r, uint32_t node)
{
    return r->relay_source + node * r->relay_room;
}

/* What a run of tokens is counted by: rows of each expert of this rank, tokens by local rank, by
 * node. */
MK_PURE uint32_t mk_route_counters(const struct mk_topo *t, uint32_t rank_experts)
{
    return rank_experts + t->gpus + t->nodes;
}

/* Runs that a thread block makes of its part of one rank's tokens: as few as give all its warps as
 * many, in all ranks together. */
MK_PURE uint32_t mk_route_runs_of_rank(uint32_t world)
{
    uint32_t runs = 1;
    while (runs * world % MK_ROUTE_WARPS)
        runs++;
    return runs;
}

/* Words that a thread block needs for it, in shared memory where they fit: 6 of each expert; counters
 * of each run (12 at least; later, where each run of the order begins, in 2 + 2 + 2 stretches), and
 * twice of each rank; and 64, which are always there. What is left of MK_ROUTE_SHARED, or of engine
 * mma's, keeps ids, where they fit. */
#define MK_ROUTE_SHARED 200000u
#define MK_MMA_ROUTE_SHARED 98304u
MK_PURE uint64_t mk_route_shared_words(uint64_t world, uint64_t rank_experts, uint64_t counters)
{
    uint64_t runs = world * mk_route_runs_of_rank((uint32_t)world);
    return ((runs + 2 * world) * counters + 6 * rank_experts + 64 + 3) / 4 * 4;
}

/* Words of `scratch`, of a GPU. */
MK_PURE uint64_t mk_route_scratch_words(const struct mk_topo *t, uint32_t rank_experts,
                                        uint32_t parts)
{
    return (uint64_t)mk_world(t) * parts * mk_route_counters(t, rank_experts);
}

/* Where rows of an expert of this rank come from: how many in all, and which of them from this node
 * and from this rank, of the expert's first. */
struct mk_route_rows {
    uint32_t rows, node_begin, node_end, rank_begin, rank_end;
};

/* Tiles of `rows` rows. In 32 bits, all of which a plan's row numbers have: on a GPU, where every
 * launch makes tables, a division of 64 bits takes some hundred steps. */
MK_PURE uint32_t mk_route_tiles(const struct mk_route *r, uint32_t rows)
{
    return rows / r->tile_rows + (rows % r->tile_rows != 0);
}

/* The order of computation: stretches, in each of which every expert has a run. First rows of this
 * rank's own tokens, which are here at once, then those of its node's others, then those of other
 * nodes in slices, each of all experts, so that a slice's tokens need to have come, and are done
 * with, while the next ones are on their way. Where rows go back (`late`), those of half of the
 * experts are kept of the first two, to compute while the last slice crosses and sums do: the first
 * half hides tokens' way here, the second the way back. A tile that holds rows of two kinds belongs
 * to the later stretch. */
MK_PURE uint32_t mk_route_stretches(const struct mk_route *r)
{
    return 2 + r->slices + (r->late ? 2 : 0);
}

/* The stretch from which on what others wait for is done but for that of the last slice. */
MK_PURE uint32_t mk_route_last(const struct mk_route *r)
{
    return r->late ? 3 : mk_route_stretches(r);
}

/* Of `tiles` rows of tiles of this node, how many are computed first: of the first half of the
 * experts, and of the one in the middle half of them. */
MK_PURE uint32_t mk_route_early(const struct mk_route *r, uint32_t expert, uint32_t tiles)
{
    uint32_t left = r->rank_experts > 2 * expert ? r->rank_experts - 2 * expert : 0;
    return !r->late || left > 1 ? tiles : left ? tiles / 2 : 0;
}

MK_PURE struct mk_tile_run mk_route_run(const struct mk_route *r, const struct mk_route_rows *e,
                                        uint32_t expert, uint32_t stretch)
{
    uint32_t tiles = mk_route_tiles(r, e->rows);
    uint32_t near = mk_route_tiles(r, e->node_begin),
             near_end = e->node_end == e->rows ? tiles : e->node_end / r->tile_rows;
    uint32_t own = mk_route_tiles(r, e->rank_begin),
             own_end = e->rank_end == e->rows ? tiles : e->rank_end / r->tile_rows;
    struct mk_tile_run run;
    near_end = near_end > near ? near_end : near;
    own = own < near_end ? own : near_end;
    own_end = own_end > own ? own_end : own;
    if (!r->apart)
        own = own_end = near;
    run.group = expert;
    run.rows = e->rows;
    run.low = 0;
    run.high = tiles;
    if (stretch >= 2 && stretch < 2 + r->slices) {
        uint32_t others = tiles - (near_end - near), slice = stretch - 2;
        uint32_t from = (uint32_t)((uint64_t)others * slice / r->slices);
        run.first = near_end + from;
        run.count = (uint32_t)((uint64_t)others * (slice + 1) / r->slices) - from;
        return run;
    }
    int last = stretch >= 2, is_own = last ? stretch == 3 + r->slices : stretch == 0;
    uint32_t all = is_own ? own_end - own : near_end - near - (own_end - own),
             early = mk_route_early(r, expert, all);
    if (!is_own) {
        run.low = near;
        run.high = near_end;
    }
    run.first = (is_own ? own : own_end) + (last ? early : 0);
    run.count = last ? all - early : early;
    return run;
}

#ifndef __CUDACC__
/* Starts making the tables of `route` from its ids, which have come. */
void mk_cta_route(struct mk_cta *cta, const struct mk_route *route);

/* Ends the launch, since there is more than there is room for (struct mk_route_head). Returns 1. */
int mk_cta_overflow(struct mk_cta *cta, enum mk_route_over over, uint32_t rank, uint32_t count,
                    uint32_t room);

/* Reads a table: a word of this rank's heap, 4- or 8-byte aligned, that a wait has acquired. */
uint32_t mk_cta_load(struct mk_cta *cta, uint64_t offset);
uint64_t mk_cta_load64(struct mk_cta *cta, uint64_t offset);
#endif

#endif
