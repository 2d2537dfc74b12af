/* The CTA interface of core/cta/cta.h on the host: a CTA is a coroutine that yields in every call, and
 * the executor that runs the coroutines decides which one goes on. Form (a) is exec_host.c (a
 * process per rank, real time), form (b) world.c (everything in one thread, virtual time). They
 * differ in what struct sim_rank points to and in nothing else. */
#pragma once

#include "core/cta/command.h"
#include "core/cta/cta_combine.h"
#include "core/cta/cta_norm.h"
#include "core/cta/cta_outbox.h"
#include "core/cta/cta_route.h"
#include "core/comm/failure.h"
#include "sim/coroutine.h"

struct sim_cta;
struct sim_op;

struct sim_operands;

enum sim_transfer_kind { SIM_COPY, SIM_TILE, SIM_COMBINE, SIM_ROUTE, SIM_SET, SIM_ADD };

/* Moves bytes, unlike a flag. */
#define SIM_IS_DATA(kind) ((kind) < SIM_SET)

/* One store of a CTA into a heap of its node: bytes, or a flag that follows all earlier bytes of
 * that CTA. */
struct sim_transfer {
    enum sim_transfer_kind kind;
    uint32_t local;
    uint32_t id;           /* chunk of a copy or weighted sum, index of a flag */
    enum mk_space space;   /* where it goes: the heap of `local`, or an argument of this rank */
    uint64_t offset;       /* there */
    const uint8_t *source; /* of a copy; read when the bytes move */
    /* of a tile or weighted sum: 2 an element, however they lie in memory */
    uint64_t bytes;
    uint64_t value;                   /* of a flag */
    uint64_t start;                   /* when the CTA asked */
    const struct mk_combine *combine; /* its caller's */
    const struct mk_route *route;     /* the CTA's own copy: one at a time */
    const float *values;              /* of a tile, [rows, cols] */
    uint32_t cols, pitch;             /* elements; pitch: from row to row in the heap */
    uint64_t row_bytes, row_pitch;    /* of a copy whose rows are apart; row_bytes 0: one run */
    uint64_t to_pitch;                /* at its destination */
    enum mk_dtype number;
};

/* The calls of core/cta/cta.h, where an executor has its own. `bytes`: those that a copy moves. */
struct sim_calls {
    /* for `count` flags that follow each other */
    int (*wait)(struct mk_cta *cta, uint32_t flag, uint32_t count, uint64_t target,
                enum mk_cause cause);
    void (*copy)(struct mk_cta *cta, uint32_t local, uint32_t id, uint64_t bytes);
    void (*combine)(struct mk_cta *cta, const struct mk_combine *combine);
    void (*route)(struct mk_cta *cta, const struct mk_route *route);
    void (*overflow)(struct mk_cta *cta, enum mk_route_over over, uint32_t rank, uint32_t count,
                     uint32_t room);
    void (*norm)(struct mk_cta *cta, const struct mk_norm *norm);
    const void *(*load)(struct mk_cta *cta, uint64_t offset);
    uint32_t (*count)(struct mk_cta *cta); /* what the argument says that counts tokens */
    void (*raise)(struct mk_cta *cta, int add, uint32_t local, uint32_t flag, uint64_t value);
    int (*put)(struct mk_cta *cta, uint32_t rank, const struct mk_chunk *chunk, uint32_t flag);
    int (*drain)(struct mk_cta *cta);
};

/* What the CTAs of one rank share. Belongs to the executor. */
struct sim_rank {
    const struct sim_calls *calls; /* NULL: those of sim/cta.c */
    const struct mk_plan *plan;
    const struct sim_op *op;
    uint64_t epoch;
    uint8_t *spaces[MK_SPACES];   /* the heap, then the arguments of this launch */
    uint8_t *peers[MK_MAX_LOCAL]; /* heaps of this node's ranks, own included */
    struct mk_ring *const *rings;
    struct sim_cta *ctas; /* grid order */
    uint32_t cta_count;
    uint64_t *progress; /* a word per CTA, see struct mk_comm; NULL: not kept */
    uint64_t *beats;    /* grows while a tile's math goes on; NULL: not kept */
    uint64_t (*now)(void *context);
    int (*failed)(void *context);
    void (*fail)(void *context, const struct mk_failure *failure);
    /* A tile's math, its loads and its stores; may yield. */
    void (*math)(struct sim_cta *cta, const struct mk_tile *tile);
    /* Takes a transfer that lands later (data then counts in cta->landed); a tile's values and a
     * weighted sum's terms are its caller's. NULL: it lands at once. */
    void (*transfer)(struct sim_cta *cta, const struct sim_transfer *t);
    void *context;
};

/* What every CTA begins with, whose executor it may be. */
struct sim_head {
    struct mk_cta cta; /* what roles see */
    struct sim_rank *rank;
};

struct sim_cta {
    struct mk_cta cta; /* as struct sim_head */
    struct sim_rank *rank;
    struct coroutine *coroutine;
    uint32_t grid;        /* index in the launch's grid */
    struct mk_ring *ring; /* NULL: this CTA does not post */
    struct mk_track track;
    int begun; /* this launch's BEGIN is in the ring */
    int ended, result;
    uint64_t issued, landed; /* transfers that are not flags */
    struct mk_route route;   /* of the transfer that makes tables */

    /* What it waits for: runs again once *word >= target and the clock has reached `ready`. */
    const uint64_t *word;
    uint64_t target, ready;
    uint64_t since, deadline;
    uint32_t flag; /* UINT32_MAX: a ring or its own copies */
    uint32_t what; /* of the record */
};

/* Fills in one CTA of `rank` for the launch that rank->plan and rank->epoch say, and starts its
 * coroutine. The track and the coroutine stay as they are. */
void sim_cta_begin(struct sim_cta *c, struct sim_rank *rank, uint32_t grid);

/* Whether a resume gets it any further at time `now`, in a job that has failed or not. */
static inline int sim_cta_runnable(const struct sim_cta *c, uint64_t now, int failed)
{
    if (c->ended || now < c->ready)
        return 0;
    return !c->word || failed || now >= c->deadline ||
           __atomic_load_n(c->word, __ATOMIC_ACQUIRE) >= c->target;
}

/* Makes a transfer's bytes or flag visible. For the executor, when it is due. sim_transfer_part:
 * bytes [first, first + count) of what is not a flag, multiples of 16. */
void sim_transfer_land(const struct sim_rank *rank, const struct sim_transfer *t);
void sim_transfer_part(const struct sim_rank *rank, const struct sim_transfer *t, uint64_t first,
                       uint64_t count);

/* A tile's C goes where its operands say: into an argument at once, into a heap as a transfer.
 * `values`: [rows, cols]. */
void sim_cta_store(struct sim_cta *c, const struct sim_operands *o, const float *values);

/* A MK_FAIL_INTERNAL failure about this CTA: `what` happened. */
void sim_cta_internal(struct sim_cta *c, const char *what);
