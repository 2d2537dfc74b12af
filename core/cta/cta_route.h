/* The CTA interface, routes: for roles that send tokens to their experts. sim/cta.c and sim/route.c
 * implement it, kernels/cta/cta_route.cuh on a GPU. Asynchronous, as core/cta/cta.h says. */
#pragma once

#include "core/cta/cta.h"
#include "core/cta/gemm_table.h"

/* Where tokens go. Each token of each rank names k experts; expert e is on rank e / rank_experts.
 * On the rank of an expert its rows begin at a multiple of tile_rows, behind those of the expert
 * before, in the order of source rank, token, place among the k. No rank has another's ids but
 * those of tokens that come to it, so work and memory do not grow with ranks times tokens.
 *
 * Several CTAs make the tables together, in steps: `part` of `parts` is what one CTA does of a
 * step, and all have done a step before any begins the next.
 *
 *   KEEP     one CTA, where a plan drops what does not fit: the own rank's ids come from an
 *            argument to `ids`. Of its places on experts of one rank, in the order of tokens and
 *            places, the first `quota` are kept; the others' become UINT32_MAX. With a quota of
 *            capacity / W no rank can overflow, and no rank needs to know another's ids to tell.
 *   COUNT    the own rank's ids are counted: rows of each expert, tokens of each rank and node
 *   PLACE    each place of a token learns its numbers (struct mk_route_record), and what the own
 *            rank has to say to the others is made: to those of its node in `say` and `telling`, to
 *            those of other nodes in `railing`
 *   RELAY    with several nodes, once all have come: what this rail's ranks of other nodes have to
 *            say, `railed`, is added to `say` and `telling`, by ranks of this node
 *   LAY_OUT  once all ranks of the node have told theirs: rows, and, for a product, `source`,
 *            `wanted`, `awaited` and the order of tiles
 *
 * Where there is a map, ids name `logical` experts, and those of ranks are their copies, which here
 * alone are called experts: each rank looks up which one its tokens take (mk_route_expert), so what
 * ranks say to each other, and all behind it, knows nothing of a map.
 *
 * What is said to a rank by another, of one node's tokens: said_words words, the rows of each of
 * its experts, then how many tokens come to it, and to its node (struct mk_route_said).
 *
 * A token that lies on this rank has a number: up to `room` this rank's own; from landed_source on
 * [gpus][landed_room], those that each other rank of the node brings, its own first, then of the
 * nodes behind, in their order, those of its rail's rank, one behind the other; from relay_source
 * on [nodes][relay_room], those that this rail's rank of each other node sends. More than there is
 * room for, of these or of rows, is an overflow: then nothing but the head is made, which says so.
 * Both ranks of a link know how many tokens it has before one is written, so neither writes past
 * the other's room. */
enum mk_route_step {
    MK_ROUTE_KEEP,
    MK_ROUTE_COUNT,
    MK_ROUTE_PLACE,
    MK_ROUTE_RELAY,
    MK_ROUTE_LAY_OUT
};

/* A place of a token, as its rank tells others of it; [k] for each token. */
struct mk_route_record {
    uint32_t expert; /* UINT32_MAX: none, and nothing else is said */
    uint32_t row;    /* its number among the token's rank's rows of that expert */
    /* the token's number among those that its rank has for the expert's rank; UINT32_MAX where the
     * token's rank is that one, or a place before has said it */
    uint32_t turn;
    float weight; /* 0 where the operator has none */
};

/* Behind a rank's counts of rows: words of said_words. */
enum mk_route_said {
    MK_SAID_TOKENS, /* that come to the rank */
    MK_SAID_OF_NODE /* ... to its node */
};

/* What a plan computes once, so that a GPU does not divide: the rank's node and local rank, tokens
 * of a warp with a lane for each place, and the numbers of counters and words below. Divisions
 * become products (by k of a number below 32; by rank_experts) and shifts (by the rows of a tile):
 * mk_route_know makes the factors. */
struct mk_route_known {
    uint32_t node, local, lane_tokens, counters, words;
    uint32_t by_k;    /* in units of 2^-16 */
    uint32_t by_rank; /* in units of 2^-32; 0: it is divided */
    uint32_t by_tile; /* by tile_rows: the shift and 1; 0: it is divided */
};

struct mk_route {
    struct mk_topo topo;
    uint32_t step, part, parts;
    struct mk_route_known known; /* of a GPU */
    uint32_t tokens, k, experts, rank_experts, tile_rows;
    uint32_t
        logical; /* experts that ids name, by `map`; 0: there is none, ids name those of ranks */
    uint32_t capacity; /* rows that this rank has room for, tiles that are not full aside */
    /* The own rank's: uint32_t [tokens][k] at `ids` of ids_space (mk_route_expert). float
     * [tokens][k], from the beginning of weights_space; there are none where that is the heap. */
    uint32_t ids_space, weights_space;
    uint64_t ids;
    uint32_t quota, named_space; /* 0: all are kept; else the argument with the own rank's ids */
    uint64_t dropped;            /* uint64_t: += how many of a launch were not kept */
    uint64_t map;                /* uint32_t [logical]: mk_route_expert's */
    uint32_t said_words;         /* a multiple of 4 */
    /* Offsets in this rank's heap, of here on; [k] records for each token. What other ranks write
     * is of this launch alone (moe_route). */
    uint64_t records; /* [tokens]: the own rank's */
    uint64_t say;     /* [gpus][nodes][said_words]: to a rank of this node, of a node's tokens */
    uint64_t said;    /* [gpus][nodes][said_words]: by a rank of this node */
    uint64_t telling; /* [gpus][landed_room]: records of the tokens of `push` */
    uint64_t landed_records; /* [gpus][landed_room]: of those that have come from there */
    /* [nodes] of rail_pitch bytes: [gpus][said_words] to each rank of a node; behind rail_head
     * bytes [relay_room] records, of the tokens of `sent`; and the same by this rail's ranks */
    uint64_t railing, railed;
    uint64_t rail_head, rail_pitch; /* multiples of 128 */
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
    /* uint32_t [tokens][k]: which of `sent` the token is, of the expert's node, where that is
     * another and no place before has said it; else UINT32_MAX. Of several nodes */
    uint64_t sent_at;
    uint64_t came_count; /* uint32_t [nodes]: tokens of this rail's rank of that node */
    /* uint32_t [gpus][landed_room]: what this rank hands on to each other local rank: of each node,
     * from push_first on, those of its tokens that lie here (of this node this rank's own, by
     * their number; of another by their place among those that came) that have an expert there,
     * in order */
    uint64_t push;
    uint64_t push_first, push_count; /* uint32_t [nodes][gpus] */
    /* uint32_t [W]: of the tokens of a rank that the rank of this node on its rail brings, the
     * first one's place among those that rank brings, and how many they are */
    uint64_t landed_first, landed_count;
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
    uint32_t columns, down, group_rows, tile_columns, slices; /* columns 0: nothing is multiplied */
    uint32_t running;                                         /* tiles that run at the same time */
    uint32_t apart; /* 1: rows of this rank's own tokens are computed apart from its node's */
    uint32_t late;  /* half of its node's are computed last, in so many slices; 0: none is */
    /* Of a GPU: mk_route_scratch_words; and, where a block's words do not fit into shared memory,
     * mk_route_shared_words of each part; 0: they fit. */
    uint64_t scratch, spill;
    uint32_t shared; /* of a GPU: bytes of shared memory; 0: MK_ROUTE_SHARED */
};

/* What there is too much of. */
enum mk_route_over {
    MK_OVER_NOTHING,
    MK_OVER_ROWS,    /* rows of a rank's experts */
    MK_OVER_LANDED,  /* tokens that one rank brings another of its node */
    MK_OVER_RELAYED, /* tokens that a rank sends its rail's rank of another node */
    MK_OVER_TOKENS   /* tokens of a rank, as it says itself; more than INT32_MAX: below 0 */
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

/* What a GPU reports in place of a wait's cause, plus enum mk_route_over; of such a report the
 * wait's length is the rank that has no room. */
#define GPU_CAUSE_OVERFLOW 256u

#define MK_ROUTE_WARPS 12u /* of a thread block that makes tables */

/* The expert that an id of the own rank's tokens stands for; `experts` or more: none. The map says
 * how far behind the id's number it is, so that zeros are a map: each logical expert is the expert
 * of its number. */
MK_PURE uint32_t mk_route_expert(const struct mk_route *r, const uint32_t *map, uint32_t id)
{
    return !r->logical ? id : id < r->logical ? id + map[id] : UINT32_MAX;
}

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

/* The node that is so far behind a rank's own. */
MK_PURE uint32_t mk_route_behind(const struct mk_topo *t, uint32_t distance)
{
    return (mk_node_of(t, t->rank) + distance) % t->nodes;
}

/* Words that a rank says to another, of one node. */
MK_PURE uint32_t mk_route_said_words(uint32_t rank_experts)
{
    return (rank_experts + MK_SAID_OF_NODE + 1 + 3) / 4 * 4;
}

/* Where the records of the list of tokens lie whose first has number `source`, from the number of
 * the first token of a node on. */
MK_PURE uint64_t mk_route_records(const struct mk_route *r, uint32_t source)
{
    const uint64_t each = r->k * (uint64_t)sizeof(struct mk_route_record);
    if (source < r->landed_source)
        return r->records + source * each;
    if (source < r->relay_source)
        return r->landed_records + (source - r->landed_source) * each;
    return r->railed + (source - r->relay_source) / r->relay_room * r->rail_pitch + r->rail_head;
}

/* The order of computation: stretches, in each of which every expert has a run. First rows of this
 * rank's own tokens, which are here at once, then those of its node's others, then those of other
 * nodes in slices, each of all experts, so that a slice's tokens need to have come, and are done
 * with, while the next ones are on their way. Where rows go back (`late`), those of half of the
 * experts are kept of the first two, to compute while the last slice crosses and sums do: the first
 * half hides tokens' way here, the second the way back. That half is cut in slices, too, about
 * equal ones, the node's others' first and each of them at least one: a slice's tokens are through
 * with their experts, and are added while the next one is computed. A tile that holds rows of two
 * kinds belongs to the later stretch. */
MK_PURE uint32_t mk_route_stretches(const struct mk_route *r)
{
    return 2 + r->slices + r->late;
}

/* What a run of tokens is counted by: rows of each expert, tokens by rank, by node. */
MK_PURE uint64_t mk_route_counters(const struct mk_topo *t, uint32_t experts)
{
    return experts + mk_world(t) + t->nodes;
}

/* A warp marks which of its lanes have an expert, a rank, a node, and which of its tokens have the
 * last two. */
MK_PURE uint64_t mk_route_marks(const struct mk_topo *t, uint32_t experts)
{
    return experts + 2ull * mk_world(t) + 2ull * t->nodes;
}

/* Words that a thread block needs for it, in shared memory where they fit. MK_ROUTE_SCAN_WORDS are
 * always there. Behind them: counters of each warp's runs, marks of lanes and of their tokens
 * (mk_route_marks), and counters of the blocks before. Later, in the same place: 6 words of each of
 * the block's experts, where each run of the order begins, in so many stretches, counts of each
 * source's rows, and where lists of each rank begin. The rest of MK_ROUTE_SHARED, or of engine
 * mma's, keeps ids, where they fit. */
#define MK_ROUTE_SHARED 200000u
#define MK_MMA_ROUTE_SHARED 98304u
#define MK_ROUTE_SCAN_WORDS 128u /* of a block's scans */
MK_PURE uint64_t mk_route_shared_words(const struct mk_topo *t, uint32_t experts,
                                       uint32_t stretches)
{
    const uint64_t counters = mk_route_counters(t, experts),
                   counted = MK_ROUTE_WARPS * (counters + mk_route_marks(t, experts)) + counters,
                   laid = experts + (6ull + stretches) * (experts / mk_world(t)) + mk_world(t) +
                          2ull * t->gpus + 2 + t->nodes;
    return (MK_ROUTE_SCAN_WORDS + (counted > laid ? counted : laid) + 3) / 4 * 4;
}

MK_PURE struct mk_route_known mk_route_know(const struct mk_route *r)
{
    struct mk_route_known known;
    known.node = mk_node_of(&r->topo, r->topo.rank);
    known.local = mk_local_of(&r->topo, r->topo.rank);
    known.lane_tokens = 32 / r->k;
    known.counters = (uint32_t)mk_route_counters(&r->topo, r->experts);
    known.words = (uint32_t)mk_route_shared_words(&r->topo, r->experts, mk_route_stretches(r));
    known.by_k = 65536 / r->k + 1;
    const uint64_t each = r->rank_experts, most = r->experts + mk_route_stretches(r) * each;
    known.by_rank = each > 1 && most * each >> 32 == 0 ? UINT32_MAX / r->rank_experts + 1 : 0;
    known.by_tile = 0;
    for (uint32_t shift = 0; shift < 31; shift++)
        if (r->tile_rows == 1u << shift)
            known.by_tile = shift + 1;
    return known;
}

/* Words of `scratch`, of a GPU. */
MK_PURE uint64_t mk_route_scratch_words(const struct mk_topo *t, uint32_t experts, uint32_t parts)
{
    return parts * mk_route_counters(t, experts);
}

/* Where rows of an expert of this rank come from: how many in all, and which of them from this node
 * and from this rank, of the expert's first. */
struct mk_route_rows {
    uint32_t rows, node_begin, node_end, rank_begin, rank_end;
};

/* Whole tiles of `rows` rows; then all. In 32 bits, all of which a plan's row numbers have: on a
 * GPU, where every launch makes tables, a division of 64 bits takes some hundred steps. */
MK_PURE uint32_t mk_route_whole_tiles(const struct mk_route *r, uint32_t rows)
{
    return r->known.by_tile ? rows >> (r->known.by_tile - 1) : rows / r->tile_rows;
}

MK_PURE uint32_t mk_route_tiles(const struct mk_route *r, uint32_t rows)
{
    return rows ? mk_route_whole_tiles(r, rows - 1) + 1 : 0;
}

/* Of the slices of what is computed last, those of the node's others. */
MK_PURE uint32_t mk_route_late_others(const struct mk_route *r)
{
    const uint32_t others = r->late * (r->topo.gpus - 1) / r->topo.gpus;
    return others ? others : 1;
}

/* The stretch from which on some blocks add in place of computing: others' rows are through, but
 * for those of later slices. */
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
             near_end = e->node_end == e->rows ? tiles : mk_route_whole_tiles(r, e->node_end);
    uint32_t own = mk_route_tiles(r, e->rank_begin),
             own_end = e->rank_end == e->rows ? tiles : mk_route_whole_tiles(r, e->rank_end);
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
    const uint32_t of_others = r->late ? mk_route_late_others(r) : 0;
    uint32_t slice = stretch - 2 - r->slices; /* of what is computed last */
    int last = stretch >= 2, is_own = last ? slice >= of_others : stretch == 0;
    uint32_t all = is_own ? own_end - own : near_end - near - (own_end - own),
             early = mk_route_early(r, expert, all);
    if (!is_own) {
        run.low = near;
        run.high = near_end;
    }
    run.first = is_own ? own : own_end;
    run.count = early;
    if (last) {
        const uint32_t slices = is_own ? r->late - of_others : of_others, left = all - early;
        slice -= is_own ? of_others : 0;
        run.first += early + left * slice / slices;
        run.count = left * (slice + 1) / slices - left * slice / slices;
    }
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

/* Reads the first word of an argument, which nothing writes during a launch. */
uint32_t mk_cta_load_argument(struct mk_cta *cta, enum mk_space space);
#endif
