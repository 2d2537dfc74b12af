/* The CTA interface, sums of tokens: for roles that add what experts have made of them. What it
 * means is said here in terms of core/cta/cta_combine.h, which is how the host does it; on a GPU
 * (kernels/cta/cta_sums.cuh) the warps of a thread block take tokens side by side. A file that breaks
 * the CTA interface on purpose comes before this one. */
#pragma once

#include "core/cta/cta_combine.h"
#include "core/cta/cta_route.h"
#include "core/cta/sum_tree.h"

/* How far a sum reaches: over a token's rows on this rank, on this node, on all nodes. */
enum mk_reach { MK_REACH_RANK, MK_REACH_NODE, MK_REACH_ALL };

/* The sums of tokens first .. first + count - 1 of a list of tokens of one rank. A token names k
 * experts, or none in a place. Of those of this rank its rows are added, each by its weight; other
 * ranks of this node, and other nodes, have added theirs. Added in fp32, in the order of nodes, of
 * ranks in a node, of experts, of places; or in a tree whose leaves are runs of experts
 * (core/cta/sum_tree.h), of which what a rank or a node has added is a node. Offsets are in this rank's
 * heap, but for those of rows. */
struct mk_sums {
    uint32_t id; /* the plan's number of the chunk, for traces */
    struct mk_topo topo;
    enum mk_reach reach;
    uint32_t first, count;
    uint32_t k, rank_experts;
    uint32_t tree_experts; /* of all ranks, where they are added in a tree; else 0 */
    uint64_t records;      /* struct mk_route_record [k] of each token of the list */
    uint64_t position;     /* uint32_t [k] of each */
    uint64_t rows;         /* position[][] says which of them; in rows_space */
    uint32_t rows_space;
    /* [gpus][parts_room]: what other ranks of this node have added; uint32_t [gpus]: where among a
     * rank's the list's begin, in the order of `turn` */
    uint64_t parts, parts_first;
    uint32_t parts_room;
    /* [nodes][whole_room]: what other nodes have added; uint32_t [k] of each token: which of a
     * node's its sum is. Of the own rank's tokens alone. */
    uint64_t whole, whole_at;
    uint32_t whole_room;
    uint64_t elements;
    /* enum mk_dtype: of this rank's rows, of what others have added, and of sums; the last two are
     * records where they are MK_E4M3 (core/base/quantize.h) */
    uint32_t from, carried, to;
    uint32_t staged;      /* of a GPU: bytes of shared memory for terms; 0: they have none */
    uint32_t space;       /* of the sums: on this rank, or the heap of `local` */
    uint32_t local;       /* a local rank */
    uint64_t destination; /* of the first token's; the others' follow */
};

MK_PURE uint64_t mk_sums_bytes(const struct mk_sums *s, uint32_t number)
{
    return mk_combine_bytes(s->elements, number);
}

/* The leaf that an expert's row is added in, or the first one of the node that another rank or node
 * has added, by its first expert: there it stands for the whole node, since nothing else is added
 * to that. */
MK_PURE uint16_t mk_sums_leaf(const struct mk_sums *s, uint32_t expert)
{
    return s->tree_experts ? (uint16_t)mk_sum_leaf(s->tree_experts, expert) : (uint16_t)0;
}

/* Where in the heap other ranks' sum for token `i` of the list lies, of local rank `local`, whose
 * place the table says; and other nodes'. */
MK_PURE uint64_t mk_sums_part(const struct mk_sums *s, uint32_t local, uint32_t place)
{
    return s->parts + ((uint64_t)local * s->parts_room + place) * mk_sums_bytes(s, s->carried);
}

/* Who has added what others add of a list is told of by flags: of local rank 0's first part on,
 * each rank's parts_pitch behind the one's before; a part is of part_rows tokens of a chunk. And of
 * node 0's first chunk on, each node's whole_pitch behind. */
struct mk_sums_flags {
    uint32_t parts, parts_pitch, part_rows, chunk_parts;
    uint32_t whole, whole_pitch;
    uint32_t chunk_rows;
};

MK_PURE uint32_t mk_sums_part_flag(const struct mk_sums_flags *f, uint32_t local, uint32_t turn)
{
    return f->parts + local * f->parts_pitch + turn / f->chunk_rows * f->chunk_parts +
           turn % f->chunk_rows / f->part_rows;
}

MK_PURE uint32_t mk_sums_whole_flag(const struct mk_sums_flags *f, uint32_t node, uint32_t at)
{
    return f->whole + node * f->whole_pitch + at / f->chunk_rows;
}

MK_PURE uint64_t mk_sums_whole(const struct mk_sums *s, uint32_t node, uint32_t place)
{
    return s->whole + ((uint64_t)node * s->whole_room + place) * mk_sums_bytes(s, s->carried);
}

#ifndef __CUDACC__
/* Terms of a sum while they are put in order: each is known by an expert and a place. */
struct mk_sums_terms {
    struct mk_combine c;
    uint64_t keys[MK_TERMS];
};

static inline void mk_sums_insert(struct mk_sums_terms *t, const struct mk_sums *s, uint32_t expert,
                                  uint32_t place, uint32_t space, uint64_t source, float weight,
                                  uint32_t record)
{
    const uint64_t key = (uint64_t)expert * MK_TERMS + place;
    uint32_t i = t->c.count;
    for (; i && t->keys[i - 1] > key; i--) {
        t->keys[i] = t->keys[i - 1];
        t->c.terms[i] = t->c.terms[i - 1];
    }
    const uint32_t before = (1u << i) - 1;
    t->c.records = (t->c.records & before) | (t->c.records & ~before) << 1 | record << i;
    t->keys[i] = key;
    t->c.terms[i].source = source;
    t->c.terms[i].weight = weight;
    t->c.terms[i].space = (uint16_t)space;
    t->c.terms[i].leaf = mk_sums_leaf(s, expert);
    t->c.count++;
}

/* Word `word` of the record of a place. */
static inline uint32_t mk_sums_record(struct mk_cta *cta, const struct mk_sums *s, uint32_t i,
                                      uint32_t place, uint64_t word)
{
    return mk_cta_load(
        cta, s->records + ((uint64_t)i * s->k + place) * sizeof(struct mk_route_record) + word);
}

/* What adds the rows of an expert, of which a place is: this rank; another of this node, whose sum
 * is `at` of the list; another node, whose is `at` of those it sends; or nobody here, or it is told
 * of by another place. */
enum mk_sums_from { MK_SUMS_ROW, MK_SUMS_PART, MK_SUMS_WHOLE, MK_SUMS_NOTHING };

static inline enum mk_sums_from mk_sums_from(struct mk_cta *cta, const struct mk_sums *s,
                                             uint32_t i, uint32_t place, uint32_t *expert,
                                             uint32_t *at)
{
    *at = 0;
    *expert = mk_sums_record(cta, s, i, place, offsetof(struct mk_route_record, expert));
    if (*expert == UINT32_MAX)
        return MK_SUMS_NOTHING;
    uint32_t rank = *expert / s->rank_experts;
    if (rank == s->topo.rank)
        return MK_SUMS_ROW;
    int near = mk_node_of(&s->topo, rank) == mk_node_of(&s->topo, s->topo.rank);
    if (s->reach < (near ? MK_REACH_NODE : MK_REACH_ALL))
        return MK_SUMS_NOTHING;
    *at = near ? mk_sums_record(cta, s, i, place, offsetof(struct mk_route_record, turn))
               : mk_cta_load(cta, s->whole_at + ((uint64_t)i * s->k + place) * 4);
    return *at == UINT32_MAX ? MK_SUMS_NOTHING : near ? MK_SUMS_PART : MK_SUMS_WHOLE;
}

/* The term that place `place` of token `i` of the list is. */
static inline void mk_sums_add_place(struct mk_cta *cta, const struct mk_sums *s, uint32_t i,
                                     uint32_t place, struct mk_sums_terms *t)
{
    uint32_t expert, at;
    enum mk_sums_from from = mk_sums_from(cta, s, i, place, &expert, &at);
    uint32_t rank = expert / s->rank_experts, node = mk_node_of(&s->topo, rank),
             local = mk_local_of(&s->topo, rank);
    if (from == MK_SUMS_ROW) {
        uint64_t row = mk_cta_load(cta, s->position + ((uint64_t)i * s->k + place) * 4);
        mk_sums_insert(
            t, s, expert, place, s->rows_space, s->rows + row * mk_sums_bytes(s, s->from),
            mk_float_of(mk_sums_record(cta, s, i, place, offsetof(struct mk_route_record, weight))),
            0);
    } else if (from == MK_SUMS_PART) {
        at += mk_cta_load(cta, s->parts_first + local * 4);
        mk_sums_insert(t, s, rank * s->rank_experts, 0, MK_SPACE_HEAP, mk_sums_part(s, local, at),
                       1, s->carried == MK_E4M3);
    } else if (from == MK_SUMS_WHOLE) {
        mk_sums_insert(t, s, node * s->topo.gpus * s->rank_experts, 0, MK_SPACE_HEAP,
                       mk_sums_whole(s, node, at), 1, s->carried == MK_E4M3);
    }
}

/* Waits until what others have added of the tokens is here. Returns 0, or 1 where the launch is
 * ending. */
static inline int mk_cta_wait_sums(struct mk_cta *cta, const struct mk_sums *s,
                                   const struct mk_sums_flags *f)
{
    uint32_t seen[64] = {0}; /* some flags, one more than their number */
    for (uint32_t i = s->first; i < s->first + s->count; i++)
        for (uint32_t place = 0; place < s->k; place++) {
            uint32_t expert, at;
            enum mk_sums_from from = mk_sums_from(cta, s, i, place, &expert, &at);
            if (from != MK_SUMS_PART && from != MK_SUMS_WHOLE)
                continue;
            uint32_t rank = expert / s->rank_experts,
                     flag = from == MK_SUMS_PART
                                ? mk_sums_part_flag(f, mk_local_of(&s->topo, rank), at)
                                : mk_sums_whole_flag(f, mk_node_of(&s->topo, rank), at);
            if (seen[flag % 64] == flag + 1)
                continue;
            seen[flag % 64] = flag + 1;
            if (mk_cta_wait(cta, flag, cta->epoch,
                            from == MK_SUMS_PART ? MK_CAUSE_DATA : MK_CAUSE_NETWORK))
                return 1;
        }
    return 0;
}

/* Starts adding. A token of a list has a term; one of all tokens that has none gets zeros. */
static inline void mk_cta_add_up(struct mk_cta *cta, const struct mk_sums *s)
{
    for (uint32_t i = s->first; i < s->first + s->count; i++) {
        struct mk_sums_terms t = {
            .c = {.id = s->id,
                  .elements = s->elements,
                  .from = s->from,
                  .to = s->to,
                  .tree = s->tree_experts ? MK_COMBINE_LEAVES : MK_COMBINE_IN_TURN,
                  .space = s->space,
                  .local = s->local}};
        for (uint32_t place = 0; place < s->k; place++)
            mk_sums_add_place(cta, s, i, place, &t);
        t.c.destination = s->destination + (uint64_t)(i - s->first) * mk_sums_bytes(s, s->to);
        mk_cta_combine(cta, &t.c);
    }
}
#endif
