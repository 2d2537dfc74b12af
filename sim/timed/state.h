/* Inside the timed executor. */
#pragma once

#include "core/pipeline.h"
#include "sim/clock.h"
#include "sim/cta.h"
#include "sim/first_error.h"
#include "sim/op.h"
#include "sim/timed/queue.h"
#include "sim/timed/timed.h"

struct timed_world;
struct timed_rank;

/* ns of the chain of causes that a thing ends, by part and by role. */
struct timed_path {
    float parts[TIMED_PARTS], roles[MK_ROLES];
};

enum timed_state {
    TIMED_SLEEPS, /* its event is pending, or it runs */
    TIMED_WAITS,  /* for a flag */
    TIMED_BEGINS, /* its event is pending, and its bytes go into a flow then */
    TIMED_MOVES,  /* its bytes are in a flow */
    TIMED_STANDS, /* for its neighbour: an outbox, or a turn of a query */
    TIMED_ENDED
};

/* What a CTA will do without its coroutine: copies, and what stands between them. */
enum timed_step_kind { TIMED_STEP_COPY, TIMED_STEP_ADD, TIMED_STEP_RAISE, TIMED_STEP_WAITED };
struct timed_step {
    uint64_t value;      /* of a flag; bytes */
    uint32_t flag;       /* or chunk */
    uint8_t what, local; /* of a flag that was waited for, the cause */
};
#define TIMED_LINE 32u
struct timed_line {
    struct timed_step steps[TIMED_LINE];
    uint64_t began; /* the copy that is on its way; kept where it is traced */
};

/* What a CTA moves. */
struct timed_move {
    uint64_t bytes;
    uint32_t local;
    int kind, sum;
};

/* Who runs on a coroutine: a CTA of the plan, or a warp that takes tiles out of an outbox. Begins
 * as struct sim_cta does. A thing that a CTA does takes it to `at`, at or ahead of the queue's
 * time: it goes on without an event as long as it needs nothing that another could change.
 *
 * There are hundreds of thousands, and each event is another's: what its moves need is in the first
 * two lines of a cache. */
struct timed_cta {
    struct mk_cta cta;
    struct sim_rank *rank;
    uint64_t at;
    uint32_t number; /* of the world, and of its event */
    uint32_t beside; /* of a warp beside an engine, who that is; TIMED_NONE */
    uint8_t state, mover;
    uint8_t sends : 1;       /* it has moved something to a peer since its last flag */
    uint8_t goes_on : 1;     /* what it adds follows on what it has added: token by token */
    uint8_t sum : 1;         /* its move, */
    uint8_t kind, local;     /* by whom and where to */
    uint8_t done, count;     /* steps of its line */
    struct timed_line *line; /* NULL: it has none, and does all at once */

    struct timed_path path;
    float slowed;          /* its move, by the engine beside it */
    uint64_t bytes, moves; /* of its move, and since when */

    struct coroutine *coroutine;
    struct mk_track *track; /* NULL: none */
    uint64_t target;
    uint32_t grid;            /* index in the launch's grid; of a sender, its compute CTA's */
    uint32_t flag, last_flag; /* of those that a CTA waits for, the first that is not raised */
    uint32_t next;            /* who waits behind it in a list */
    struct timed_post *post;  /* of one that posts commands; NULL */
} __attribute__((aligned(64)));

/* A posting CTA's ring. */
struct timed_post {
    uint64_t posted, completed; /* commands; when those that have left will be complete */
    uint64_t waiting;           /* those that have not left */
    int drains;                 /* its CTA stands until they have */
    uint64_t *seen;             /* [capacity] when the proxy sees a command */
};

/* A CTA's bytes. */
struct timed_flow {
    double end; /* in bytes of each of its class */
    uint32_t cta;
};

/* Flows that share alike: from one GPU to another (or within one) by one kind of mover. One line of
 * a cache, as rates of all classes of a node are made many times. */
struct timed_class {
    double served; /* bytes of each flow since the class began, at `at` */
    double rate;   /* of each, bytes/ns */
    double alone;  /* of each, alone */
    double end;    /* of the first to end */
    uint64_t at;
    struct timed_flow *flows; /* a ring of them, in the order in which they end */
    uint32_t event;
    uint16_t count, first, capacity; /* flows; a power of two, or 0 */
    uint16_t active;                 /* place in its node's list of those with flows */
    uint8_t ways[4]; /* of links.c: out, in, and both memories, where memory may be the narrowest */
} __attribute__((aligned(64)));

/* Copies to peers by each mover and by senders; of a GPU to itself, also sums. */
enum { TIMED_SENDS = MACHINE_MOVERS, TIMED_KINDS };

struct timed_node {
    struct timed_class *classes;                  /* see timed_class_of */
    uint32_t *active, count;                      /* those to peers that have flows */
    uint32_t out[MK_MAX_LOCAL], in[MK_MAX_LOCAL]; /* flows of each GPU */
    uint32_t event;
    uint64_t shared; /* when rates were last made */
};

/* A flag on its way; or, before that, a put that leaves its NIC. */
struct timed_flight {
    uint32_t rank, flag; /* where it is raised */
    uint64_t value;
    int add;
    uint32_t role;    /* whose time it is */
    uint32_t poster;  /* CTA of a put that has not left yet; TIMED_NONE: a flag */
    uint32_t message; /* of the put, in its sender's log; TIMED_NONE: not traced */
    uint64_t bytes;   /* of the put */
    uint64_t due;     /* of adds that come together: when the last so far does; */
    uint32_t next;    /* the next such flight in its list */
    struct timed_path path;
};

struct timed_rank {
    struct sim_rank rank; /* what roles see; its context is this struct */
    struct timed_world *world;
    struct mk_plan plan;
    uint64_t *flags;
    uint8_t *heap; /* of operators with tables; NULL: none */
    uint8_t *summary;
    struct timed_cta *ctas; /* plan's, then senders */
    struct timed_engine *engines;
    struct timed_line *lines; /* of intra_comm's CTAs, in the world's */
    uint32_t *waiting;        /* [TIMED_BUCKETS] CTAs that wait, by flag */
    uint32_t event;           /* begins launches */
    uint32_t running;
    uint32_t taken; /* tiles that were handed out in turn, where the engine asks so */
    uint32_t units; /* ... and of what comes behind them */
    uint64_t launch, ended, begun;
    struct timed_path path; /* of the CTA that ended last, then of the launch's begin */
    struct timed_slow slow;
    double proxy_free, nic_out, nic_in, receive_free;
    double host_out, host_in;       /* its ways to host memory and back, where puts are staged */
    struct mk_message_log messages; /* where it is traced */
    uint64_t *flying;               /* [in_flight] when puts complete */
    uint64_t puts;
    double nvlink_in, network_in; /* bytes */
    double busy;                  /* ns of its engines */
    double loading;               /* bytes/ns from its memory while its engines multiply, */
    uint64_t loads_until;         /* which they do until about then */
};
#define TIMED_BUCKETS 256u

/* A compute CTA or cluster, beside its coroutine: tiles on their way out. */
struct timed_engine {
    uint32_t left;     /* tiles that it has not begun */
    double tile;       /* ns of the last one's products */
    uint64_t made;     /* tiles that are in the outbox, or were */
    uint64_t taken[4]; /* that each sender is through with: two of each of two CTAs at most */
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
    uint32_t *gathered;                /* lists of flights of which some have come; NULL: none */
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
    double clock;   /* what power does to tiles, 1 or more */
    double fetched; /* bytes from HBM in a stage of all engines */
    double spilled; /* share of all ranks' A that does not fit into the cache */
    /* Of each kind, how many of a GPU move in its own memory all the time, about: their loads
     * stand in each other's way between flows too, as calibration has it. 0: not known */
    uint32_t movers[TIMED_KINDS];
    int sends; /* enum machine_mover, whose rates senders have: of a straight pipeline the engine's */
    int beside; /* warps beside the engines work, so that an engine looks at them */
    double peak;
    const struct machine_tile *tile;
    struct sim_random random;
    int error;
    uint64_t tiles;
    double flop; /* that are done */
};

#define timed_error(w, ...)                                                                        \
    first_error(&(w)->error, (w)->result->sentence, sizeof(w)->result->sentence, __VA_ARGS__)
/* Events are those of CTAs, ranks and links, then those of flights: */
static inline uint32_t timed_first_flight(const struct timed_world *w)
{
    return w->world * (w->per_rank + 1) +
           w->world / w->config.plan->problem.topo.gpus * (w->classes + 1);
}

/* ideal.c. A factor about 1, by the seed and config.jitter; what power does to the clock: a factor on
 * the time of tiles. */
double timed_scatter(struct timed_world *w);
double timed_clock(const struct mk_machine *m, const struct mk_plan *plan);

/* flags.c. A flag is raised at `time`. */
int timed_flags_open(struct timed_world *w);
void timed_flags_close(struct timed_world *w);
void timed_raise(struct timed_world *w, const struct timed_flight *f, uint64_t time);

/* ahead.c */
void timed_look_ahead(struct timed_world *w);

/* cta.c: the CTA interface, and what a coroutine does between its calls. */
extern const struct sim_calls timed_calls;
int timed_cta_open(struct timed_cta *c);
void timed_cta_start(struct timed_cta *c);
void timed_sync(struct timed_cta *c);  /* until the queue's time is the CTA's */
void timed_stand(struct timed_cta *c); /* until timed_wake */
void timed_wake(struct timed_cta *c);
void timed_resume(struct timed_world *w, struct timed_cta *c);
void timed_spend(struct timed_cta *c, enum timed_part part, double ns);
void timed_record(struct timed_cta *c, uint32_t what, uint64_t start);
/* A flag's flight is over: who waits for it goes on. */
void timed_raise_now(struct timed_world *w, const struct timed_flight *f);
/* A wait of a line, for a flag that is raised. */
void timed_waited(struct timed_cta *c, uint32_t flag, enum mk_cause cause);

/* What roles see of a rank begins it. */
static inline struct timed_rank *timed_rank_of(const struct timed_cta *c)
{
    return (struct timed_rank *)(void *)c->rank;
}

static inline struct timed_cta *timed_cta_of(struct mk_cta *cta)
{
    return (struct timed_cta *)(void *)cta;
}

/* moves.c */
/* Returns when the bytes are through, and 1 where the run is ending. Sum or, without, copy. */
int timed_transfer(struct timed_cta *c, uint32_t local, uint64_t bytes, int kind, int sum);
void timed_copy(struct mk_cta *cta, uint32_t local, uint32_t id, uint64_t bytes);
void timed_copy_now(struct timed_cta *c, uint32_t local, uint32_t id, uint64_t bytes);
void timed_signal(struct mk_cta *cta, int add, uint32_t local, uint32_t flag, uint64_t value);
void timed_line_flush(struct timed_cta *c); /* returns when its line is empty */
/* Of a flag that is raised: 1 where the wait has its place in the line now; 0: there is none. */
int timed_line_waited(struct timed_cta *c, uint32_t flag, enum mk_cause cause);
/* A CTA's event where it is TIMED_BEGINS, and the end of its flow. */
void timed_move_begins(struct timed_cta *c);
void timed_moved(struct timed_world *w, struct timed_cta *c);

/* compute.c */
int timed_compute(struct timed_cta *c);
int timed_send(struct timed_cta *c);

/* ids.c: the experts of all ranks' tokens. timed_ids_place: before a rank begins launch `launch`. No
 * rank begins the launch after the next before all have ended this one. */
int timed_ids_open(struct timed_world *w);
int timed_map_open(struct timed_world *w); /* once ranks have heaps: copies of logical experts */
void timed_ids_close(struct timed_world *w);
void timed_ids_place(struct timed_world *w, const struct mk_plan *plan, uint64_t launch);
const uint32_t *timed_ids_of(const struct timed_world *w, uint64_t launch, uint32_t rank);

/* links.c */
int timed_links_open(struct timed_world *w);
void timed_links_close(struct timed_world *w);
/* Puts `bytes` of a CTA's into a flow; it is resumed when they are through. */
void timed_flow_begin(struct timed_world *w, struct timed_cta *c, uint32_t to, int kind, int sum,
                      double bytes);
/* bytes/ns that copies and sums read and write in this rank's memory now. */
double timed_links_memory(const struct timed_rank *r);
/* How far warps of this rank that push to peers now want more than NVLink takes, 0 to 1. */
double timed_links_wanted(const struct timed_rank *r);
/* `event` is a class's or a node's. How many CTAs' flows are through: their numbers are w->moved. */
uint32_t timed_links_event(struct timed_world *w, uint32_t event);
/* Fetch what will be touched by such an event, and by a CTA's flow that begins. */
void timed_links_soon(const struct timed_world *w, uint32_t event);
void timed_links_begins(struct timed_world *w, const struct timed_cta *c);
/* The CTA whose flow ends first; TIMED_NONE where there is none or the event is a node's. */
uint32_t timed_links_first(const struct timed_world *w, uint32_t event);

/* network.c */
int timed_put(struct timed_cta *c, uint32_t to, uint64_t bytes, uint32_t flag);
int timed_drain(struct timed_cta *c);
void timed_put_leaves(struct timed_world *w, struct timed_flight *f);
