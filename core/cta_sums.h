/* The CTA interface, sums of tokens: for roles that add what experts have made of them. What it
 * means is said here in terms of core/cta_combine.h, which is how the host does it; on a GPU
 * (kernels/cta_sums.cuh) the warps of a thread block take tokens side by side. A file that breaks
 * the CTA interface on purpose comes before this one. */
#ifndef MK_CTA_SUMS_H
#define MK_CTA_SUMS_H

#include "core/cta_combine.h"
#include "core/cta_route.h"

/* How far a sum reaches: over a token's rows on this rank, on this node, on all nodes. */
enum mk_reach { MK_REACH_RANK, MK_REACH_NODE, MK_REACH_ALL };

/* The sums of tokens first .. first + count - 1 of one rank. A token names k experts, of which
 * `experts` or more is none. Of those of this rank its rows are added, each by its weight; other
 * ranks of this node, and other nodes, have added theirs. Added in fp32, in the order of nodes, of
 * ranks in a node, of experts, of places. Offsets are in this rank's heap, but for those of rows. */
struct mk_sums {
    uint32_t id; /* the plan's number of the chunk, for traces */
    struct mk_topo topo;
    enum mk_reach reach;
    uint32_t first, count;
    uint32_t k, tokens, experts, rank_experts;
    uint64_t ids, weights,
        position;  /* uint32_t, float, uint32_t [tokens][k]: of the tokens' rank */
    uint64_t rows; /* position[][] says which of them; in rows_space */
    uint32_t rows_space;
    uint64_t parts; /* [gpus][tokens]: what other ranks of this node have added */
    /* [nodes][room]: what other nodes have, by chunks: a chunk's, whose first token is
     * `chunk_first`, from there on, one after the other. uint32_t [nodes][tokens + 1]: how many
     * tokens before this one have an expert on that node */
    uint64_t whole, before;
    uint32_t room, chunk_first;
    uint64_t elements;
    uint32_t from, to;    /* enum mk_dtype: of what is added, and of sums */
    uint32_t space;       /* of the sums: on this rank, or the heap of `local` */
    uint32_t local;       /* a local rank */
    uint64_t destination; /* of the first token's */
    /* uint32_t [tokens + 1]: sums follow each other, and this tells how many are before; 0: there
     * is a place for each token. */
    uint64_t packed;
};

MK_PURE uint64_t mk_sums_bytes(const struct mk_sums *s, uint32_t number)
{
    return s->elements * (number == MK_FP32 ? 4 : 2);
}

/* Where a node's sum for a token begins in `whole`; rank of that node, counted from the chunk's. */
MK_PURE uint64_t mk_sums_whole(const struct mk_sums *s, uint32_t node, uint32_t number)
{
    return s->whole +
           ((uint64_t)node * s->room + s->chunk_first + number) * mk_sums_bytes(s, s->from);
}

#ifndef __CUDACC__
/* Terms of a sum while they are put in order: each is known by an expert and a place. */
struct mk_sums_terms {
    struct mk_combine c;
    uint64_t keys[MK_TERMS];
};

static inline void mk_sums_insert(struct mk_sums_terms *t, uint64_t key, uint32_t space,
                                  uint64_t source, float weight)
{
    uint32_t i = t->c.count;
    for (uint32_t j = 0; j < t->c.count; j++)
        if (t->keys[j] == key)
            return; /* the sum of a rank or node, of which another place has told */
    for (; i && t->keys[i - 1] > key; i--) {
        t->keys[i] = t->keys[i - 1];
        t->c.terms[i] = t->c.terms[i - 1];
    }
    t->keys[i] = key;
    t->c.terms[i].source = source;
    t->c.terms[i].weight = weight;
    t->c.terms[i].space = space;
    t->c.count++;
}

static inline void mk_sums_add_place(struct mk_cta *cta, const struct mk_sums *s, uint32_t token,
                                     uint32_t place, struct mk_sums_terms *t)
{
    uint64_t at = (uint64_t)token * s->k + place, bytes = mk_sums_bytes(s, s->from);
    uint32_t expert = mk_cta_load(cta, s->ids + at * 4);
    if (expert >= s->experts)
        return;
    uint32_t rank = expert / s->rank_experts, node = mk_node_of(&s->topo, rank),
             local = mk_local_of(&s->topo, rank);
    if (rank == s->topo.rank) {
        uint64_t row = mk_cta_load(cta, s->position + at * 4);
        mk_sums_insert(t, (uint64_t)expert * MK_TERMS + place, s->rows_space, s->rows + row * bytes,
                       mk_float_of(mk_cta_load(cta, s->weights + at * 4)));
    } else if (node == mk_node_of(&s->topo, s->topo.rank)) {
        if (s->reach >= MK_REACH_NODE)
            mk_sums_insert(t, (uint64_t)rank * s->rank_experts * MK_TERMS, MK_SPACE_HEAP,
                           s->parts + ((uint64_t)local * s->tokens + token) * bytes, 1);
    } else if (s->reach == MK_REACH_ALL) {
        uint64_t table = s->before + (uint64_t)node * (s->tokens + 1) * 4;
        mk_sums_insert(t, (uint64_t)node * s->topo.gpus * s->rank_experts * MK_TERMS, MK_SPACE_HEAP,
                       mk_sums_whole(s, node,
                                     mk_cta_load(cta, table + token * 4ull) -
                                         mk_cta_load(cta, table + s->chunk_first * 4ull)),
                       1);
    }
}

/* Starts adding. A token without a term has no sum, but of all nodes zeros. */
static inline void mk_cta_add_up(struct mk_cta *cta, const struct mk_sums *s)
{
    for (uint32_t token = s->first; token < s->first + s->count; token++) {
        struct mk_sums_terms t = {.c = {.id = s->id,
                                        .elements = s->elements,
                                        .from = s->from,
                                        .to = s->to,
                                        .space = s->space,
                                        .local = s->local}};
        uint32_t number = token - s->first;
        for (uint32_t place = 0; place < s->k; place++)
            mk_sums_add_place(cta, s, token, place, &t);
        if (!t.c.count && s->reach != MK_REACH_ALL)
            continue;
        if (s->packed)
            number = mk_cta_load(cta, s->packed + token * 4ull) -
                     mk_cta_load(cta, s->packed + s->first * 4ull);
        t.c.destination = s->destination + number * mk_sums_bytes(s, s->to);
        mk_cta_combine(cta, &t.c);
    }
}
#endif

#endif
