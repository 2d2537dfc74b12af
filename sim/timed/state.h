/* Private to the timed executor: its state, and what its files call of each other. */
#pragma once

#include "core/cta/halves.h"
#include "core/plan/pipeline.h"
#include "sim/clock.h"
#include "sim/cta.h"
#include "sim/first_error.h"
#include "sim/op.h"
#include "sim/timed/queue.h"
#include "sim/timed/timed.h"

struct timed_world;
struct timed_rank;

/* The chain of causes that led to an event: its ns by part of the machine and by role. */
struct timed_path {
    float parts[TIMED_PARTS], roles[MK_ROLES];
};

enum timed_state {
    TIMED_SLEEPS, /* its event is pending, or it runs */
    TIMED_WAITS,  /* it waits for a flag */
    TIMED_BEGINS, /* its event is pending, at which its bytes enter a flow */
    TIMED_MOVES,  /* its bytes are in a flow */
    TIMED_STANDS, /* it waits for its neighbour: for an outbox, or its turn at a query */
    TIMED_ENDED
};

/* A step that a CTA does without switching to its coroutine: copies, and what is between them. */
enum timed_step_kind { TIMED_STEP_COPY, TIMED_STEP_ADD, TIMED_STEP_RAISE, TIMED_STEP_WAITED };
struct timed_step {
    uint64_t value;      /* of the flag, or bytes of the copy */
    uint32_t flag;       /* or the chunk */
    uint8_t what, local; /* local: the GPU; after a wait for a flag, its cause */
};
#define TIMED_LINE 32u
struct timed_line {
    struct timed_step steps[TIMED_LINE];
    uint64_t began; /* time at which the current copy began; kept if it is traced */
};

/* What a CTA moves. */
struct timed_move {
    uint64_t bytes;
    uint32_t local;
    int kind, sum;
};

/* A coroutine: a CTA of the plan, or a warp that sends tiles from an outbox. Begins as struct
 * sim_cta does. Its own time `at` may be ahead of the queue's: a CTA goes on without an event
 * while it depends on nothing that another CTA could change.
 *
 * There are hundreds of thousands of them, and consecutive events are of different ones: what a
 * move needs is in the first two cache lines. */
struct timed_cta {
    struct mk_cta cta;
    struct sim_rank *rank;
    uint64_t at;
    uint32_t number; /* among all CTAs of the world; its event has the same */
    uint32_t beside; /* of a warp beside an engine: the engine's CTA; else TIMED_NONE */
    uint8_t state, mover;
    uint8_t sends : 1;       /* it has moved something to a peer since its last flag */
    uint8_t goes_on : 1;     /* its sums follow each other without a gap: token by token */
    uint8_t sum : 1;         /* its move is a sum, not a copy */
    uint8_t kind, local;     /* of its move: the mover, and the GPU it goes to */
    uint8_t done, count;     /* steps of its line */
    struct timed_line *line; /* its steps; NULL: it does each at once */

    struct timed_path path;
    float slowed;          /* factor by which the engine beside it slows its move */
    uint64_t bytes, moves; /* of its move: the bytes, and the time at which it began */

    struct coroutine *coroutine;
    struct mk_track *track; /* NULL: none */
    uint64_t target;
    uint64_t waited;          /* when its last wait ended */
    uint32_t grid;            /* index in the launch's grid; of a sender, its compute CTA's */
    uint32_t flag, last_flag; /* of the flags it waits for: the first not raised, and the last */
    uint32_t next;            /* the next CTA in a list of those that wait */
    struct timed_post *post;  /* its ring, if it posts commands; else NULL */
} __attribute__((aligned(64)));

/* A posting CTA's ring. */
struct timed_post {
    uint64_t posted, completed; /* commands posted; time at which all that left are complete */
    uint64_t waiting;           /* commands that have not left */
    int drains;                 /* whether its CTA waits until all have left */
    uint64_t *seen;             /* [capacity] time at which the proxy sees a command */
};

/* A CTA's bytes. */
struct timed_flow {
    double end; /* the value of its class's `served` at which it ends */
    uint32_t cta;
};

/* Flows with equal shares: from one GPU to another (or within one) by one kind of mover. It fits in
 * one cache line, because the rates of all classes of a node are computed often. */
struct timed_class {
    double served; /* bytes that each flow has moved up to `at`, since the class began */
    double rate;   /* of each flow, bytes/ns */
    double alone;  /* rate of a flow that shares with no other */
    double end;    /* value of `served` at which the first flow ends */
    uint64_t at;
    struct timed_flow *flows; /* a ring of them, in the order in which they end */
    uint32_t event;
    uint16_t count, first, capacity; /* flows; a power of two, or 0 */
    uint16_t active;                 /* index in its node's list of classes with flows */
    uint8_t ways[4]; /* its resources (links.c): out, in, both memories if they may limit it */
} __attribute__((aligned(64)));

/* Copies to peers by each mover and by senders; of a GPU to itself, also sums. */
enum { TIMED_SENDS = MACHINE_MOVERS, TIMED_KINDS };

struct timed_node {
    struct timed_class *classes;                  /* see timed_class_of */
    uint32_t *active, count;                      /* classes to peers that have flows */
    uint32_t out[MK_MAX_LOCAL], in[MK_MAX_LOCAL]; /* flows of each GPU */
    uint32_t event;
    uint64_t shared; /* when rates were last made */
};

/* A flag in flight, or a put that has not left its NIC yet. */
struct timed_flight {
    uint32_t rank, flag; /* where it is raised */
    uint64_t value;
    int add;
    uint32_t role;    /* to which its time counts */
    uint32_t poster;  /* CTA of a put that has not left yet; TIMED_NONE: a flag */
    uint32_t message; /* of the put, in its sender's log; TIMED_NONE: not traced */
    uint64_t bytes;   /* of the put */
    uint64_t due;     /* of gathered adds: when the last of them comes */
    uint32_t next;    /* the next gathered flight in its list */
    struct timed_path path;
};

/* What tiles by tickets have read through L2: of each column of an expert's B, and of each
 * product's row of tiles of A, when it was last read, in bytes that have come from HBM. */
struct timed_cache {
    double *b, *a;
    double fetched;
    uint32_t columns, up; /* of tiles, of both products and of the first */
};

struct timed_rank {
    struct sim_rank rank; /* what roles see; its context is this struct */
    struct timed_world *world;
    struct mk_plan plan;
    uint64_t *flags;
    uint8_t *heap; /* of operators with routing tables; else NULL */
    uint8_t *summary;
    struct timed_cta *ctas; /* the plan's, then senders */
    struct timed_engine *engines;
    struct timed_line *lines; /* of intra_comm's CTAs, a part of the world's array */
    uint32_t *waiting;        /* [TIMED_BUCKETS] lists of waiting CTAs, by flag */
    uint32_t event;           /* at which its next launch begins, or the launch's second half */
    enum mk_half half;        /* that runs */
    uint32_t running;
    uint32_t taken;    /* tiles handed out so far, if the engine takes tiles in turn */
    uint32_t units;    /* ... and units of the work that follows them */
    uint32_t multiply; /* engines that multiply tiles by tickets now, */
    double reading;    /* and the bytes that they read from HBM in one stage */
    struct timed_cache cache;
    uint64_t launch, ended, begun;
    struct timed_path path; /* of the CTA that ended last, then of the launch's begin */
    struct timed_slow slow;
    double proxy_free, nic_out, nic_in, receive_free;
    double host_out, host_in;       /* when PCIe to and from host memory is free (staged puts) */
    struct mk_message_log messages; /* if it is traced */
    uint64_t *flying;               /* [in_flight] times at which puts complete */
    uint64_t puts;
    double nvlink_in, network_in; /* bytes */
    double busy;                  /* ns of its engines */
    double loading;               /* bytes/ns that its engines read while they multiply */
    uint64_t loads_until;         /* about when they stop */
};
#define TIMED_BUCKETS 256u

/* Of a compute CTA or cluster: its tiles and their outbox. */
struct timed_engine {
    uint32_t left;     /* tiles that it has not begun */
    double tile;       /* ns of the last one's products */
    uint64_t made;     /* tiles put into the outbox so far */
    uint64_t taken[4]; /* tiles that each sender has sent: at most two senders for each of 2 CTAs */
};

struct timed_world {
    struct timed_config config;
    struct timed_result *result;
    const struct mk_machine *machine;
    const struct sim_op *op;
    struct coroutine_pool *pool;
    struct timed_queue queue;
    struct timed_rank *ranks;
    struct timed_node *nodes;
    struct timed_cta *ctas;   /* of all ranks */
    struct timed_line *lines; /* ... of all of intra_comm's CTAs */
    uint32_t *moved;          /* [per_rank] CTAs whose flows end with an event */
    struct timed_flight *flights;
    uint32_t flight_capacity;
    struct mk_pipeline pipeline;
    uint32_t *gathered;                /* lists of adds that are gathered into one event; or NULL */
    uint32_t world, per_rank, senders; /* senders: of a compute CTA */
    uint32_t cluster;
    uint32_t classes; /* of a node */
    uint32_t ended;   /* ranks that have done all launches */
    double pace_rate; /* bytes/ns of a paced warp; 0: no pace */
    double *chosen;   /* [experts] sums of shares, where tokens choose unevenly; NULL */
    /* By launch & 1, each rank's [tokens, k] expert ids; and whose launch they are of. */
    uint32_t *ids[2];
    uint64_t ids_launch[2];
    int by_hand;    /* tiles are handed out in turn */
    double clock;   /* factor on the time of tiles at the power limit, 1 or more */
    double fetched; /* bytes that all engines read from HBM in one stage; of tickets, one */
    double spilled; /* share of all ranks' A that does not fit into the L2 cache */
    /* Movers of each kind that copy within one GPU's memory at once, about. They slow each other
     * between flows, too, as calibration measures it. 0: not known */
    uint32_t movers[TIMED_KINDS];
    int sends; /* enum machine_mover with the senders' rates: in a straight pipeline the engine's */
    int beside; /* whether warps beside the engines work, which an engine then waits for */
    double peak;
    const struct machine_tile *tile;
    struct sim_random random;
    int error;
    uint64_t tiles;
    double flop; /* done so far */
};

#define timed_error(w, ...)                                                                        \
    first_error(&(w)->error, (w)->result->sentence, sizeof(w)->result->sentence, __VA_ARGS__)
/* The numbers of events: of CTAs, ranks and links, then, from this one on, of flights. */
static inline uint32_t timed_first_flight(const struct timed_world *w)
{
    return w->world * (w->per_rank + 1) +
           w->world / w->config.plan->problem.topo.gpus * (w->classes + 1);
}

/* ideal.c. A random factor about 1 (the seed, config.jitter); and the factor on the time of tiles
 * by which the power limit lowers the clock. */
double timed_scatter(struct timed_world *w);
double timed_clock(const struct mk_machine *m, const struct mk_plan *plan);

/* flags.c. A flag is raised at `time`. */
int timed_flags_open(struct timed_world *w);
void timed_flags_close(struct timed_world *w);
void timed_raise(struct timed_world *w, const struct timed_flight *f, uint64_t time);

/* ahead.c */
void timed_look_ahead(struct timed_world *w);

/* cta.c: the calls of roles, and the coroutines. */
extern const struct sim_calls timed_calls;
int timed_cta_open(struct timed_cta *c);
void timed_cta_start(struct timed_cta *c);
void timed_sync(struct timed_cta *c);  /* returns when the queue's time is the CTA's */
void timed_stand(struct timed_cta *c); /* returns after timed_wake */
void timed_wake(struct timed_cta *c);
void timed_resume(struct timed_world *w, struct timed_cta *c);
void timed_spend(struct timed_cta *c, enum timed_part part, double ns);
void timed_record(struct timed_cta *c, uint32_t what, uint64_t start);
/* A flag's flight has ended: raises it, and wakes the CTAs that wait for it. */
void timed_raise_now(struct timed_world *w, const struct timed_flight *f);
/* The step of a line that waits for a flag; the flag is raised. */
void timed_waited(struct timed_cta *c, uint32_t flag, enum mk_cause cause);

/* struct timed_rank begins with the struct sim_rank that roles see. */
static inline struct timed_rank *timed_rank_of(const struct timed_cta *c)
{
    return (struct timed_rank *)(void *)c->rank;
}

static inline struct timed_cta *timed_cta_of(struct mk_cta *cta)
{
    return (struct timed_cta *)(void *)cta;
}

/* moves.c */
/* Sums or copies. Returns when the bytes have arrived: 0, or 1 if the run is ending. */
int timed_transfer(struct timed_cta *c, uint32_t local, uint64_t bytes, int kind, int sum);
void timed_copy(struct mk_cta *cta, uint32_t local, uint32_t id, uint64_t bytes);
void timed_copy_now(struct timed_cta *c, uint32_t local, uint32_t id, uint64_t bytes);
void timed_signal(struct mk_cta *cta, int add, uint32_t local, uint32_t flag, uint64_t value);
void timed_line_flush(struct timed_cta *c); /* returns when its line is empty */
/* Adds the wait for a flag that is raised to the line. Returns 0 if the CTA has no line. */
int timed_line_waited(struct timed_cta *c, uint32_t flag, enum mk_cause cause);
/* The event of a CTA in TIMED_BEGINS, and the end of its flow. */
void timed_move_begins(struct timed_cta *c);
void timed_moved(struct timed_world *w, struct timed_cta *c);

/* cache.c */
int timed_cache_open(struct timed_rank *r, const struct mk_route *route);
void timed_cache_close(struct timed_rank *r);
/* Bytes of a stage of a tile by a ticket that come from HBM; marks what it reads as read. */
double timed_cache_fetch(struct timed_rank *r, const struct mk_tile *tile,
                         const struct sim_operands *o);

/* compute.c */
int timed_compute(struct timed_cta *c);
int timed_send(struct timed_cta *c);

/* ids.c: the experts of all ranks' tokens. Call timed_ids_place before a rank begins `launch`. Ids
 * of two launches are kept: no rank begins launch n + 2 before all have ended launch n. */
int timed_ids_open(struct timed_world *w);
int timed_map_open(struct timed_world *w); /* copies of logical experts; ranks must have heaps */
void timed_ids_close(struct timed_world *w);
void timed_ids_place(struct timed_world *w, const struct mk_plan *plan, uint64_t launch);
const uint32_t *timed_ids_of(const struct timed_world *w, uint64_t launch, uint32_t rank);

/* links.c */
int timed_links_open(struct timed_world *w);
void timed_links_close(struct timed_world *w);
/* Begins a CTA's flow of `bytes`. The CTA is resumed when it ends. */
void timed_flow_begin(struct timed_world *w, struct timed_cta *c, uint32_t to, int kind, int sum,
                      double bytes);
/* bytes/ns that copies and sums read and write in this rank's memory now. */
double timed_links_memory(const struct timed_rank *r);
/* By what share the demand of this rank's pushing warps now exceeds NVLink's rate, 0 to 1. */
double timed_links_wanted(const struct timed_rank *r);
/* Handles a class's or a node's event. Returns how many CTAs' flows have ended; w->moved has their
 * numbers. */
uint32_t timed_links_event(struct timed_world *w, uint32_t event);
/* Prefetch what such an event will touch, and what the begin of a CTA's flow will. */
void timed_links_soon(const struct timed_world *w, uint32_t event);
void timed_links_begins(struct timed_world *w, const struct timed_cta *c);
/* The CTA whose flow ends first; TIMED_NONE where there is none or the event is a node's. */
uint32_t timed_links_first(const struct timed_world *w, uint32_t event);

/* network.c */
int timed_put(struct timed_cta *c, uint32_t to, uint64_t bytes, uint32_t flag);
int timed_drain(struct timed_cta *c);
void timed_put_leaves(struct timed_world *w, struct timed_flight *f);
