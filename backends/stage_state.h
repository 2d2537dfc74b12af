/* Inside stage.c and stage_pieces.c: the state of a staging fabric. */
#pragma once

#include "backends/stage.h"

enum {
    STAGE_SLOTS = 8,               /* per peer and way */
    STAGE_FLAGS = STAGE_SLOTS + 1, /* per rank of the job */
    STAGE_QUEUE = 64,              /* puts accepted per peer */
    STAGE_HEADER_BYTES = 64,       /* before a piece, in its slot */
};

struct stage_put {
    struct fabric_put put;
    uint64_t cut; /* bytes in pieces already */
    int32_t status;
};

struct stage_peer {
    uint32_t rank, place; /* place: in the group, this rank included, ascending */
    struct stage_put puts[STAGE_QUEUE];
    uint64_t accepted, cutting, finished, reported; /* puts, in order */
    int64_t out_tickets[STAGE_SLOTS], in_tickets[STAGE_SLOTS];
    int out_last[STAGE_SLOTS];
    uint64_t copying, sent,
        /* pieces out: copies started, handed to the NIC, taken by the peer's */
        acknowledged;
    uint64_t landing, freed, told; /* pieces in: copies started, ended, and the peer knows */
    int telling;
    int broken;
    char detail[64];
};

struct stage {
    struct fabric fabric; /* first */
    struct fabric *inner;
    const struct mr_memory_ops *ops;
    struct mk_heap heap;
    struct stage_memory memory;
    uint32_t rank, world, peer_count, place;
    uint64_t piece_bytes, slot_bytes;
    struct stage_peer *peers;
    struct fabric_completion alarm; /* of no put, to be handed on; status 0: none */
    int dirty;                      /* the inner fabric has puts to flush */
};

/* stage_pieces.c: starts and ends all copies and puts that it can, out and in; takes a completion
 * of the inner fabric. */
void stage_advance(struct stage *s);
void stage_completed(struct stage *s, const struct fabric_completion *c);
