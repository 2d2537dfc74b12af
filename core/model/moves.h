/* What the walks through schedules share of what moves: a role's turns over NVLink, rails between
 * nodes, and workers that take tiles in turn. */
#pragma once

#include "core/model/gemm.h"

/* Turns dealt out to a role's movers, each of which copies a piece to a peer and tells of it. */
struct model_turns {
    const struct mk_role_split *split;
    enum machine_mover block; /* what a mover is that has a thread block of its own */
    uint32_t pace;
    uint64_t turns;
    double bytes;  /* of a turn: of the largest, which keeps a pace the longest, */
    double mean;   /* and of all, which share NVLink; 0: they are alike */
    double wanted; /* bytes that must stay in L2 for pushes not to disturb tiles; 0: none */
};

/* When they are through. */
struct model_push {
    uint32_t movers;
    double round; /* of one turn of all movers */
    double until; /* the last turn's end */
    double busy;  /* share by which pushing slows tiles' stages while it lasts */
    double first; /* when the first turn begins */
};

struct model_push model_push_of(const struct model_walk *w, const struct model_turns *t);

/* When turn number `turn` (from 1 on) has been told of. */
double model_told(const struct model_walk *w, const struct model_push *push, uint64_t turn);

/* A rail: chunks of this rank to the same local rank of every other node, one node after the other,
 * staged by the CTAs of inter_send where `staged`. */
struct model_rail {
    double put, way; /* ns between two puts; of a put's way */
    double stage;    /* ns of a sender's copy; 0: none */
    double first;    /* when the first may leave */
    double behind;   /* puts to further nodes that a sender posts once it has staged its chunks */
    uint32_t senders, chunks;
};

struct model_rail model_rail_of(const struct model_walk *w, const struct mk_role_split *split,
                                uint32_t chunks, double bytes, int staged);

/* When chunk `chunk` of the node at `distance` (1 ..) is here. Ranks are alike: it is here when
 * this rank's own is there. */
double model_by_rail(const struct model_rail *r, uint32_t distance, uint32_t chunk);

/* ... of another rail: its rank of this node pushes it on in `chunk_turns` turns, behind its own
 * shard. */
double model_by_peer(const struct model_walk *w, const struct model_rail *r,
                     const struct model_push *push, uint64_t chunk_turns, uint32_t distance,
                     uint32_t chunk);

/* Workers that take what comes next when they are free; the one that is free first comes first. */
#define MODEL_WORKERS 256u
struct model_crew {
    uint32_t count;
    double free[MODEL_WORKERS]; /* a heap */
};

/* One more, free at `at`; beyond MODEL_WORKERS it is left out. */
void model_crew_join(struct model_crew *c, double at);
/* The first has taken something and is free at `at`, not before it was. */
void model_crew_take(struct model_crew *c, double at);
