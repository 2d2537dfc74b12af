/* Inside the emulated machine: its state, shared by its parts. */
#pragma once

#include "sim/clock.h"
#include "sim/coroutine.h"
#include "sim/hopper/device.h"
#include "sim/hopper/e4m3.h"
#include "sim/hopper/hopper.h"
#include "sim/hopper/shadow.h"

enum {
    SHARED_WINDOW = 1024,     /* address of a block's first byte: the system has what lies below */
    SHARED_MOST = 227 * 1024, /* of a block */
    SHARED_ROOM = SHARED_MOST + 2048, /* and what alignment costs */
    VARIABLES = 256,                  /* in shared memory, of all kernels of the program */
    NAMED_BARRIERS = 16,
    CLUSTER_MOST = 8,
    COMMITS = 64 /* groups of products that a lane may have open */
};

enum thread_state {
    THREAD_RUNS,
    THREAD_WARP,
    THREAD_BARRIER,
    THREAD_CLUSTER,
    THREAD_MBARRIER,
    THREAD_POLL,
    THREAD_BULK,
    THREAD_WGMMA,
    THREAD_REGISTERS,
    THREAD_LAUNCH,
    THREAD_STOPPED,
    THREAD_ENDED
};

struct hopper_block;
struct hopper_warp;
struct thread_copies; /* copy.c */

struct hopper_thread {
    struct hopper_place place; /* first: what the kernel sees */
    struct coroutine *coroutine;
    struct hopper_block *block;
    struct hopper_warp *warp;
    uint32_t number, lane;
    enum thread_state state;

    /* What it knows, its own clock, and up to where its own writes are behind a proxy fence (by
     * view). */
    struct known *known;
    uint32_t clock, bridged[KNOWN_VIEWS];
    uint32_t began;       /* its clock then: before it the entry was a thread of another launch */
    struct known *fenced; /* at its last fence, for the relaxed stores behind it */
    enum hopper_scope fenced_scope;
    /* by relaxed loads, for the fence behind them; by the scope that it has to have */
    struct known *heard[HOPPER_SYSTEM + 1];

    /* THREAD_WARP: what it came for, and what it gets */
    enum hopper_collective collective;
    uint32_t mask, argument;
    uint64_t value, result;
    int retry; /* a lane of its warp has ended */
    void *data;

    /* THREAD_BARRIER and others: where */
    uint32_t barrier;
    int tried; /* THREAD_MBARRIER: has waited long enough */
    int either;
    /* 1 + the last phase of each mbarrier that it waited for; 0: none */
    uint32_t phase_of[KNOWN_MBARRIERS];
    const void *poll;
    uint64_t polled;
    uint32_t poll_bytes;
    int polls_again;

    int issuer; /* among the block's issuers of bulk stores; -1: none */

    /* Products: so many issued, committed; how many were issued before each commit */
    uint32_t products, commits, products_at[COMMITS], products_wanted;
    int fenced_registers;
    uint32_t swapped[4];          /* registers of a mutant */
    struct thread_copies *copies; /* NULL until the first */
};

struct accumulators;

/* A product of one warp: 16 rows of the warpgroup's 64. */
struct product {
    struct hopper_product of; /* lane 0's */
    struct accumulators *accumulators;
    const uint32_t *a[32];
    uint32_t lanes; /* that have issued it */
    uint64_t where;
    struct known *checked;
};

/* Accumulators under way: what the registers will be. */
struct accumulators {
    float *of[32];     /* registers of each lane; NULL: not taken yet */
    uint32_t n, last;  /* last: 1 + the product that was issued last on them; 0: free */
    uint32_t poisoned; /* lanes whose registers are */
    float v[16][256];
};

enum { PRODUCTS = 128, ACCUMULATORS = 8 };

struct hopper_warp {
    struct hopper_block *block;
    uint32_t number, lanes;      /* lanes: mask of those that there are */
    uint32_t runs, ended, polls; /* masks; the last of those in THREAD_POLL */
    uint32_t ready, unit;        /* 1 + place in the machine's lists; 0: not in it */
    uint32_t registers;
    struct product *products;  /* ring of PRODUCTS; NULL until the first */
    uint32_t formed, executed; /* products that all lanes have issued, and done */
    uint32_t products_clock;   /* of all blocks before */
    struct accumulators *accumulators;
};

struct named_barrier {
    uint32_t expected, arrived, waiting;
    int either;
    uint32_t warps[KNOWN_WARPS]; /* masks of lanes that came */
    struct known *known;
};

struct mbarrier {
    uint32_t address;                        /* 0: free */
    uint32_t arrivals, pending, phase, base; /* base: the first phase */
    uint32_t init_entry, init_clock;         /* who initialised it, and when */
    int fenced;                              /* for the asynchronous proxy */
    int64_t bytes;                           /* still expected in this phase */
    struct known *coming;                    /* of those who have arrived in this phase */
    struct known *passed;                    /* of the last phase that completed */
    uint64_t where;
};

/* A thread's bulk stores. Groups are counted from 1; what is not committed yet is group committed +
 * 1. */
struct issuer {
    struct hopper_thread *thread; /* NULL: free */
    uint32_t committed, open;     /* open: stores not committed */
};

struct hopper_grid {
    struct hopper_grid *next;
    void (*run)(void *);
    void *arguments;
    struct hopper_xyz size, block;
    uint32_t dynamic_shared, cluster, blocks, begun, ended;
    /* Its kernel's variables in shared memory lie behind the dynamic part in the order in which the
     * first thread came to each: 1 + where; 0: none has come yet. */
    uint32_t variables[VARIABLES], variable_bytes;
    int early;            /* may begin while the one before it runs */
    uint32_t from;        /* SMs from here on are looked at first */
    uint32_t released;    /* blocks that have let the next one come, or have ended */
    struct known *begins; /* what its threads know when they begin */
    struct known *done;   /* what they have done, and the stream behind it */
    char name[64];
};

struct cluster_barrier {
    uint32_t arrived, waiting, alive, phase;
    struct known *coming, *passed;
};

/* One resident thread block; an SM has one. */
struct hopper_block {
    struct hopper *machine;
    uint32_t rank, sm;        /* of its rank */
    uint32_t global_sm;       /* of all */
    struct hopper_grid *grid; /* NULL: none is resident */
    uint32_t number, threads, warps, ended;
    int released;
    uint8_t *shared; /* SHARED_ROOM bytes of the arena; address SHARED_WINDOW */
    uint32_t shared_bytes, dynamic_at;
    uint32_t variable_bytes;      /* of the grid's, that the block has: the rest is outside yet */
    struct hopper_thread *thread; /* KNOWN_THREADS */
    struct hopper_warp warp[KNOWN_WARPS];
    struct named_barrier barriers[NAMED_BARRIERS];
    struct mbarrier mbarriers[KNOWN_MBARRIERS];
    struct issuer issuers[KNOWN_ISSUERS];
    struct hopper_block *leader; /* of its cluster: has its barrier */
    uint32_t cluster_rank;
    struct cluster_barrier cluster;
    uint32_t registers; /* free ones */
    uint32_t loads;     /* TMA loads into its shared memory that have not landed */
};

/* A tensor map's content, and a box of it. */
struct tensor {
    uint64_t magic;
    uint8_t *base;
    uint64_t sizes[5], strides[4]; /* bytes */
    uint32_t box[5];
    uint8_t rank, element, type, swizzle, fill;
};

struct region { /* what a copy moves: a box, or a run of bytes */
    struct tensor tensor;
    int32_t at[5];
    uint8_t *run; /* NULL: a box */
    uint32_t bytes, rows, row_bytes;
};

/* An asynchronous copy: its source is read, its destination written; a load then completes its
 * barrier. */
struct flight {
    struct hopper_block *block;  /* who issued it */
    struct hopper_block *target; /* whose shared memory it is about */
    struct hopper_grid *grid;    /* of the target, then */
    struct region region;
    uint32_t shared, moved; /* moved: rows */
    uint64_t where;
    struct mbarrier *mbarrier; /* of a load; NULL: a store */
    struct known *arrival;     /* NULL but of a thread's own copies: what its arrival tells */
    struct hopper_thread *copier;
    uint32_t phase;
    int issuer, read;
    uint32_t group;
    enum hopper_reduction reduction;
    enum hopper_number number;
    /* of a store: what it has read; of a thread's own copies: each of them */
    _Alignas(8) uint8_t data[];
};

/* tensor.c */
void region_of_box(const struct hopper_box *box, struct region *out);
/* of it; inside the tensor */
void region_row(const struct region *r, uint32_t row, uint8_t **at, uint32_t *before,
                uint32_t *bytes);
uint32_t region_swizzle(const struct region *r, uint32_t address);
void reduce_row(uint8_t *to, const uint8_t *from, uint32_t bytes, enum hopper_reduction what,
                enum hopper_number number);

struct sync_word {
    const void *address; /* NULL: free */
    struct known *known;
    enum hopper_scope scope;
    uint32_t rank, global_sm, cluster;
};

struct hopper_rank {
    struct hopper_block *blocks;     /* sms */
    struct hopper_grid *grid, *last; /* not over; the first runs, and early ones behind it */
    uint64_t asked, over;            /* launches */
    struct known *stream;            /* what those that are over have done, and the host */
    struct known *before;            /* of that, what the last of them knew when it began */
    struct known *told;              /* by commands, to its NIC */
    uint32_t nic_clock, stream_clock;
};

enum async_habit { ASYNC_LAZY, ASYNC_UNIFORM, ASYNC_EAGER, ASYNC_HABITS };

struct hopper {
    struct hopper_config config; /* its sms: with the spare ones */
    struct sim_random random;
    uint64_t own_now, *now, steps, work, hash, jump;
    struct hopper_rank *ranks;
    uint32_t sms; /* of all ranks, and one more each: its NIC */
    struct shadow shadow;
    struct known_table *known;
    struct coroutine_pool *pool, *own_pool;
    struct hopper_warp **ready; /* those with lanes that run */
    uint32_t ready_count;
    struct hopper_warp **units; /* those with products to execute */
    uint32_t unit_count;
    struct flight **flights;
    uint32_t flight_count;
    struct sync_word *words;
    uint32_t word_count, word_room;
    uint32_t pollers, host_rank, since_scan;
    enum async_habit async;
    uint32_t skew;    /* 0 or 16: dynamic shared memory need not begin at a round address */
    uint32_t preempt; /* one in so many points is a switch */
    uint32_t lanes;   /* 0: forwards, 1: backwards, 2: from anywhere */
    uint32_t starved; /* of 16 sorts of warps, one runs rarely; 16: none */
    struct hopper_warp *sticky;
    struct {
        const char *file;
        int line;
    } * lines;
    uint32_t line_count;
    struct hopper_site sites[512];
    uint32_t site_count;
    /* of the product that is executed; not thread-local: there is next to no room for such in a
     * library that is loaded at run time */
    float a[16][256], b[16][256];
    struct e4m3_matrix e4m3_a, e4m3_b;
    int failed;
    char sentence[768];
};

extern __thread struct hopper *hopper_machine;

static inline struct hopper_thread *hopper_thread(void)
{
    return (struct hopper_thread *)(void *)hopper_self;
}

/* As messages call it. */
static inline uint32_t rank_of(const struct hopper_block *b)
{
    return b->rank + b->machine->config.first_rank;
}

/* Behind a rank's SMs: of its NIC (entry 0) and of its stream (1). */
static inline uint32_t sm_of_host(const struct hopper *h, uint32_t rank)
{
    return rank * (h->config.sms + 1) + h->config.sms;
}

static inline uint32_t thread_entry(const struct hopper_thread *t)
{
    return t->block->global_sm * KNOWN_ENTRIES + t->number;
}

/* turn.c */
void hopper_wait(struct hopper_thread *t, enum thread_state state); /* until thread_wake */
void thread_wake(struct hopper_thread *t);
void hopper_point(void);                          /* somebody else may run here */
void hopper_stop(void) __attribute__((noreturn)); /* the thread has made a mistake */
void unit_ready(struct hopper_warp *w);           /* it has products to execute */
void unit_idle(struct hopper_warp *w);
void warp_idle(struct hopper_warp *w);
struct hopper_block *block_of_cluster(struct hopper_block *b, uint32_t rank);

/* grid.c */
void grid_begin_blocks(struct hopper *h, uint32_t rank);
void grid_drop(struct hopper *h, struct hopper_grid *g);
void thread_ended(struct hopper_thread *t);

/* report.c: the place that called last, or who else it was; and sentences */
enum { WHERE_NETWORK = 1, WHERE_STREAM };
uint64_t hopper_where(void);
void where_text(uint64_t where, char *text, size_t size);
/* "rank 0, block 1, thread 37" */
void thread_text(const struct hopper_thread *t, char *text, size_t size);
/* of the thread that runs */
void hopper_mistake(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
void hopper_shadow_fault(void *context, enum shadow_fault fault, const struct shadow_event *access,
                         const struct shadow_event *with, const void *address);

/* mutate.c: which variant the place that called last has; 0: none. Notes the place. */
uint32_t mutated(enum hopper_primitive what);

/* order.c: who knows what */
/* all that it knows and has done; its clock goes on */
struct known *thread_publish(struct hopper_thread *t);
/* until the launches before this one are over; and the mbarriers that a thread has initialised are
 * the asynchronous proxy's too */
void thread_await_launches(struct hopper_thread *t);
void mbarriers_fence(struct hopper_thread *t);
void thread_learn(struct hopper_thread *t, struct known *k);
/* of an asynchronous operation */
void thread_learn_event(struct hopper_thread *t, uint32_t entry, uint32_t clock);
/* each then knows what any did */
void threads_meet(struct hopper_thread **threads, uint32_t count);
struct known *known_event(struct hopper *h, struct known *k, uint32_t entry, uint32_t clock);
void actor_of(const struct hopper_thread *t, struct shadow_actor *out);
/* An access of the thread that runs; of asynchronous operations `entry` and `clock` say what is
 * noted. */
void access_check(struct hopper_thread *t, const void *p, size_t bytes, uint32_t kind,
                  uint64_t where);
int access_async(struct hopper_thread *t, const void *p, size_t bytes, uint32_t kind,
                 uint32_t entry, uint32_t clock, uint64_t where);
/* The same through the generic proxy, but for ACCESS_ASYNC */
int access_late(struct hopper_thread *t, const void *p, size_t bytes, uint32_t kind, uint32_t entry,
                uint32_t clock, uint64_t where);

/* shared.c */
uint8_t *shared_at(struct hopper_block *b, uint32_t address, uint32_t bytes, uint32_t align,
                   const char *what);

/* mbarrier.c */
struct mbarrier *mbarrier_find(struct hopper_block *b, uint32_t address, const char *what);
uint32_t mbarrier_entry(const struct hopper_block *b, const struct mbarrier *m);
void mbarrier_bytes(struct hopper_block *b, struct mbarrier *m, uint32_t bytes, uint32_t phase,
                    uint64_t where);

/* nobody runs: an arrival that comes by itself. Takes k */
void mbarrier_arrive_late(struct hopper_block *b, struct mbarrier *m, struct known *k);

/* flight.c */
struct flight *flight_issue(struct hopper_thread *t, const struct region *r, uint32_t shared,
                            uint32_t data);
void flights_step(struct hopper *h);
void flights_drop(struct hopper *h, uint32_t rank); /* those that a rank has issued */
void flights_of_block_ended(struct hopper_block *b);

/* copy.c: a new thread has none under way; and some of a flight's land: 1, those were the last */
void copies_begin(struct hopper_thread *t);
int copies_land(struct hopper *h, struct flight *f);

/* wgmma.c */
int wgmma_ready(const struct hopper_warp *w);
void wgmma_execute(struct hopper_warp *w);
void wgmma_forget(struct hopper_warp *w);
int wgmma_open(const struct hopper_warp *w);

/* barrier.c */
void barriers_thread_ended(struct hopper_thread *t);
void warp_thread_ended(struct hopper_thread *t); /* warp.c */
void barriers_begin(struct hopper_block *b);

void shared_begin(struct hopper_block *b); /* shared.c */
