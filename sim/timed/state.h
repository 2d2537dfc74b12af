/* Inside the timed executor. */
#ifndef SIM_TIMED_STATE_H
#define SIM_TIMED_STATE_H

#include "sim/clock.h"
#include "sim/cta.h"
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
    TIMED_MOVES,  /* its bytes are in a flow */
    TIMED_STANDS, /* for its neighbour: an outbox, or a turn of a query */
    TIMED_ENDED
};

/* Who runs on a coroutine: a CTA of the plan, or a warp that takes tiles out of an outbox. Begins
 * as struct sim_cta does. A thing that a CTA does takes it to `at`, at or ahead of the queue's
 * time: it goes on without an event as long as it needs nothing that another could change. */
struct timed_cta {
    struct mk_cta cta;
    struct sim_rank *rank;
    struct coroutine *coroutine;
    struct mk_track *track; /* NULL: none */
    uint64_t at;
    uint32_t number; /* of the world, and of its event */
    uint32_t grid;   /* index in the launch's grid; of a sender, its compute CTA's */
    uint8_t state, mover;
    uint8_t sends;            /* it has moved something to a peer since its last flag */
    uint8_t works;            /* it moves or adds now */
    uint8_t goes_on;          /* what it adds follows on what it has added: token by token */
    uint32_t flag, last_flag; /* of those that a CTA waits for, the first that is not raised */
    uint32_t next;            /* who waits behind it in a list */
    uint32_t next_flow, previous_flow;
    double flow_end; /* of its flow's class, in bytes of each flow */
    uint64_t target;
    struct timed_path path;
    struct timed_post *post; /* of one that posts commands; NULL */
};

/* A posting CTA's ring. */
struct timed_post {
    uint64_t posted, completed; /* commands; when those that have left will be complete */
    uint64_t waiting;           /* those that have not left */
    int drains;                 /* its CTA stands until they have */
    uint64_t *seen;             /* [capacity] when the proxy sees a command */
};

/* Flows that share alike: from one GPU to another (or within one) by one kind of mover. */
struct timed_class {
    double served; /* bytes of each flow since the class began, at `at` */
    double rate;   /* of each, bytes/ns */
    double alone;  /* of each, alone */
    uint64_t at;
    uint32_t event, count; /* flows */
    uint32_t first, last;  /* CTAs, in the order in which their flows end */
    uint32_t active;       /* place in its node's list of those with flows */
    uint8_t ways[4]; /* of links.c: out, in, and both memories, where memory may be the narrowest */
};

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
    uint32_t *waiting; /* [TIMED_BUCKETS] CTAs that wait, by flag */
    uint32_t event;    /* begins launches */
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
    struct timed_cta *ctas; /* of all ranks */
    struct timed_flight *flights;
    uint32_t flight_capacity;
    uint32_t world, per_rank, senders; /* senders: of a compute CTA */
    uint32_t cluster;
    uint32_t classes; /* of a node */
    uint32_t ended;   /* ranks that have done all launches */
    double pace_rate; /* bytes/ns of a paced warp; 0: no pace */
    double *chosen;   /* [experts] sums of shares, where tokens choose unevenly; NULL */
    int by_hand;      /* tiles are handed out in turn */
    double clock;     /* what power does to tiles, 1 or more */
    double fetched;   /* bytes from HBM in a stage of all engines */
    double spilled;   /* share of all ranks' A that does not fit into the cache */
    /* Of each kind, how many of a GPU move in its own memory all the time, about: their loads
     * stand in each other's way between flows too, as calibration has it. 0: not known */
    uint32_t movers[TIMED_KINDS];
    int beside; /* warps beside the engines work, so that an engine looks at them */
    double peak;
    const struct machine_tile *tile;
    struct sim_random random;
    int error;
    uint64_t tiles;
    double flop; /* that are done */
};

/* world.c */
void timed_error(struct timed_world *w, int error, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
struct timed_rank *timed_rank_of(const struct timed_cta *c);
void timed_raise(struct timed_world *w, const struct timed_flight *f, uint64_t time);
void timed_raise_now(struct timed_world *w, const struct timed_flight *f);
/* A factor about 1, by the seed and config.jitter. */
double timed_scatter(struct timed_world *w);

/* cta.c: the CTA interface, and what a coroutine does between its calls. */
extern const struct sim_calls timed_calls;
int timed_cta_open(struct timed_cta *c);
void timed_cta_start(struct timed_cta *c);
void timed_sync(struct timed_cta *c);  /* until the queue's time is the CTA's */
void timed_stand(struct timed_cta *c); /* until timed_wake */
void timed_wake(struct timed_cta *c);
void timed_resume(struct timed_world *w, struct timed_cta *c);
void timed_spend(struct timed_cta *c, enum timed_part part, double ns);
int timed_move(struct timed_cta *c, uint32_t local, uint64_t bytes, int kind);
void timed_record(struct timed_cta *c, uint32_t what, uint64_t start);

/* compute.c */
int timed_compute(struct timed_cta *c);
int timed_send(struct timed_cta *c);

/* ids.c: the experts of a rank's tokens */
int timed_ids_open(struct timed_world *w);
void timed_ids(const struct timed_world *w, const struct mk_plan *plan, uint64_t launch,
               uint32_t rank, uint32_t *ids);

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
/* `event` is a class's or a node's. */
void timed_links_event(struct timed_world *w, uint32_t event);
/* The CTA whose flow ends first, where `event` is a class's; TIMED_NONE: there is none. */
uint32_t timed_links_first(const struct timed_world *w, uint32_t event);

/* network.c */
int timed_put(struct timed_cta *c, uint32_t to, uint64_t bytes, uint32_t flag);
int timed_drain(struct timed_cta *c);
void timed_put_leaves(struct timed_world *w, struct timed_flight *f);

#endif
