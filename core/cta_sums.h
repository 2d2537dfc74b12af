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

/* The sums of tokens first .. first + count - 1 of some of one rank, which `list` names. A token
 * names k experts, of which `experts` or more is none. Of those of this rank its rows are added,
 * each by its weight; other ranks of this node, and other nodes, have added theirs. Added in fp32,
 * in the order of nodes, of ranks in a node, of experts, of places. Offsets are in this rank's heap,
 * but for those of rows. */
struct mk_sums {
    uint32_t id; /* the plan's number of the chunk, for traces */
    struct mk_topo topo;
    enum mk_reach reach;
    uint32_t first, count;
    uint64_t list; /* uint32_t: which token of its rank each is; 0: token i is the i-th */
    uint32_t k, tokens, experts, rank_experts;
    uint64_t ids, weights; /* uint32_t, float [tokens][k]: of the tokens' rank */
    uint64_t position;     /* uint32_t [k] of each token of the list */
    uint64_t rows;         /* position[][] says which of them; in rows_space */
    uint32_t rows_space;
    /* [gpus][parts_room]: what other ranks of this node have added; uint32_t [gpus] of each token of
     * the list: where among a rank's its sum lies */
    uint64_t parts, parts_before;
    uint32_t parts_room;
    /* [nodes][whole_room]: what other nodes have added; uint32_t [nodes][tokens + 1]: how many
     * tokens before this one have an expert on that node. Of the own rank's tokens alone. */
    uint64_t whole, whole_before;
    uint32_t whole_room;
    uint64_t elements;
    uint32_t from, to;    /* enum mk_dtype: of what is added, and of sums */
    uint32_t space;       /* of the sums: on this rank, or the heap of `local` */
    uint32_t local;       /* a local rank */
    uint64_t destination; /* of the first token's; the others' follow */
};

MK_PURE uint64_t mk_sums_bytes(const struct mk_sums *s, uint32_t number)
{
    return s->elements * (number == MK_FP32 ? 4 : 2);
}

/* Where in the heap other ranks' sum for token `i` of the list lies, of local rank `local`, whose
 * place the table says; and other nodes'. */
MK_PURE uint64_t mk_sums_part(const struct mk_sums *s, uint32_t local, uint32_t place)
{
    return s->parts + ((uint64_t)local * s->parts_room + place) * mk_sums_bytes(s, s->from);
}

MK_PURE uint64_t mk_sums_whole(const struct mk_sums *s, uint32_t node, uint32_t place)
{
    return s->whole + ((uint64_t)node * s->whole_room + place) * mk_sums_bytes(s, s->from);
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

/* The term that place `place` of token `i` of the list is, which is token `token` of its rank. */
static inline void mk_sums_add_place(struct mk_cta *cta, const struct mk_sums *s, uint32_t i,
                                     uint32_t token, uint32_t place, struct mk_sums_terms *t)
{
    uint64_t at = ((uint64_t)token * s->k + place) * 4;
    uint32_t expert = mk_cta_load(cta, s->ids + at);
    if (expert >= s->experts)
        return;
    uint32_t rank = expert / s->rank_experts, node = mk_node_of(&s->topo, rank),
             local = mk_local_of(&s->topo, rank);
    if (rank == s->topo.rank) {
        uint64_t row = mk_cta_load(cta, s->position + ((uint64_t)i * s->k + place) * 4);
        mk_sums_insert(t, (uint64_t)expert * MK_TERMS + place, s->rows_space,
                       s->rows + row * mk_sums_bytes(s, s->from),
                       mk_float_of(mk_cta_load(cta, s->weights + at)));
    } else if (node == mk_node_of(&s->topo, s->topo.rank)) {
        uint64_t said = s->parts_before + ((uint64_t)i * s->topo.gpus + local) * 4;
        if (s->reach >= MK_REACH_NODE)
            mk_sums_insert(t, (uint64_t)rank * s->rank_experts * MK_TERMS, MK_SPACE_HEAP,
                           mk_sums_part(s, local, mk_cta_load(cta, said)), 1);
    } else if (s->reach == MK_REACH_ALL) {
        uint64_t said = s->whole_before + ((uint64_t)node * (s->tokens + 1) + token) * 4;
        mk_sums_insert(t, (uint64_t)node * s->topo.gpus * s->rank_experts * MK_TERMS, MK_SPACE_HEAP,
                       mk_sums_whole(s, node, mk_cta_load(cta, said)), 1);
    }
}

/* Starts adding. A token of a list has a term; one of all tokens that has none gets zeros. */
static inline void mk_cta_add_up(struct mk_cta *cta, const struct mk_sums *s)
{
    for (uint32_t i = s->first; i < s->first + s->count; i++) {
        struct mk_sums_terms t = {.c = {.id = s->id,
                                        .elements = s->elements,
                                        .from = s->from,
                                        .to = s->to,
                                        .space = s->space,
                                        .local = s->local}};
        uint32_t token = s->list ? mk_cta_load(cta, s->list + i * 4ull) : i;
        for (uint32_t place = 0; place < s->k; place++)
            mk_sums_add_place(cta, s, i, token, place, &t);
        t.c.destination = s->destination + (uint64_t)(i - s->first) * mk_sums_bytes(s, s->to);
        mk_cta_combine(cta, &t.c);
    }
}
#endif

#endif
