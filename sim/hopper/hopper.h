/* A Hopper GPU, or several of one job, without one: kernels that were compiled for the CPU
 * (include/) run on it, thread by thread, under a seeded scheduler. Nothing here knows about tiles
 * or roles. One machine is current in a thread of the process; everything is called from that
 * thread, and allocates with malloc. Of memory outside the machine's own, such as a heap that other
 * processes have mapped too, nothing is checked. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct hopper;

/* Broken machines for tests: at one place in the kernels' source, what an instruction does is left
 * out or done wrong. */
enum hopper_primitive {
    HOPPER_P_FENCE,
    HOPPER_P_FENCE_ASYNC,
    HOPPER_P_SYNCWARP,
    HOPPER_P_BARRIER,
    HOPPER_P_CLUSTER,
    HOPPER_P_INIT,
    HOPPER_P_INIT_ONE,
    HOPPER_P_INIT_FENCE,
    HOPPER_P_ARRIVE,
    HOPPER_P_EXPECT,
    HOPPER_P_MBAR_WAIT,
    HOPPER_P_LOAD,
    HOPPER_P_STORE,
    HOPPER_P_COMMIT,
    HOPPER_P_BULK_WAIT,
    HOPPER_P_WGMMA,
    HOPPER_P_WGMMA_FENCE,
    HOPPER_P_WGMMA_COMMIT,
    HOPPER_P_WGMMA_WAIT,
    HOPPER_P_ACQUIRE,
    HOPPER_P_RELEASE,
    HOPPER_P_STMATRIX,
    HOPPER_P_REGISTERS,
    HOPPER_P_LAUNCH_WAIT,
    HOPPER_P_WORD,
    HOPPER_PRIMITIVES
};
struct hopper_site {
    const char *file;
    int line;
    enum hopper_primitive what;
};
struct hopper_mutation {
    struct hopper_site at;
    uint32_t variant; /* from 1; hopper_variant says what each is */
};
/* NULL: there is no such */
const char *hopper_variant(enum hopper_primitive what, uint32_t variant);

struct hopper_config {
    uint32_t ranks, sms; /* sms: of each rank; at most so many blocks are resident */
    /* more SMs of each, which kernels are not told of: for a launch that comes early, and for
     * second blocks of an SM, where they are as many */
    uint32_t spare;
    uint32_t together;           /* SMs of one GPU that all ranks share; 0: each has its own */
    struct coroutine_pool *pool; /* of stacks, which machines pass on; NULL: one of its own */
    uint64_t seed;               /* chooses every order */
    uint64_t *now;               /* ns; NULL: a clock of its own. The machine advances it */
    /* the clock, where time goes on by itself: `now` and own clocks are of machines without it */
    uint64_t (*clock)(void *context);
    uint32_t first_rank; /* what messages call rank 0 of the machine */
    int calm;            /* no strange habits: for runs that nobody searches for mistakes */
    /* A try of an mbarrier says no after a while, as on a GPU; else it waits for ever, so that a
     * phase that never comes is told at once as a deadlock */
    int tries_end;
    size_t memory; /* bytes of address space; 0: 4 GiB */
    const struct hopper_mutation *mutations;
    uint32_t mutation_count;
    uint64_t max_steps; /* of hopper_run; 0: no bound */
    int races;          /* 0: memory is not watched, only values tell (many times faster) */
    /* Asked where the watch has found a mistake: 1, it is none any more, and nor is what follows: a
     * job that has failed reads what nobody has announced. NULL: never */
    int (*forgives)(void *context);
    void *context;
};

/* Places that have been come to so far. */
const struct hopper_site *hopper_sites(const struct hopper *h, uint32_t *count);

/* 0 or -ENOMEM. Becomes current. */
int hopper_create(struct hopper **out, const struct hopper_config *config);
void hopper_destroy(struct hopper *h);
/* what host calls of CUDA go to, and hopper_enqueue */
void hopper_use(struct hopper *h, uint32_t rank);
struct hopper *hopper_current(void);

/* Global memory of a rank, aligned to 1024; what is outside is watched. NULL: full. Freed with the
 * machine. */
void *hopper_memory(struct hopper *h, size_t bytes);

/* What runs next: 1, something did; 0, nothing can: all wait for somebody outside, or for time. */
int hopper_step(struct hopper *h);

/* Nothing else can happen either: the clock goes on until a thread that polls has reason to look
 * (with a clock that goes on by itself: every thread that polls looks). 1, or 0 where no thread
 * polls. */
int hopper_tick(struct hopper *h);

/* Whether kernels of `rank` are running or queued; of all ranks: hopper_busy(h, UINT32_MAX). */
int hopper_busy(const struct hopper *h, uint32_t rank);

/* How many kernels of `rank` are over. */
uint64_t hopper_over(const struct hopper *h, uint32_t rank);

/* Runs until nothing is busy. 0, or -EIO (a mistake was found), -EDEADLK or -ETIMEDOUT (max_steps);
 * hopper_error says it. */
int hopper_run(struct hopper *h);

/* The first mistake: one sentence; NULL: none. Whoever finds another reason to stop says it by
 * hopper_fail. */
const char *hopper_error(const struct hopper *h);
void hopper_fail(struct hopper *h, const char *format, ...) __attribute__((format(printf, 2, 3)));
void hopper_deadlock(struct hopper *h); /* says who waits for what */

/* How many accesses the watch over memory has forgotten for want of room: mistakes that have to do
 * with these are not found, and a search in which there are any is incomplete. */
uint64_t hopper_forgotten(const struct hopper *h);

/* Memory is not watched any more. And: a rank stops altogether, where it stands. */
void hopper_unwatch(struct hopper *h);
void hopper_drop(struct hopper *h, uint32_t rank);

/* A NIC, or whoever else moves bytes of the ranks' memory: reads by what rank `rank` has told it
 * (every command stored so far), and writes that only a flag makes known. All by the generic proxy.
 * hopper_nic_flag: the word is stored by the caller. */
void hopper_nic_read(struct hopper *h, uint32_t rank, const void *p, size_t bytes);
void hopper_nic_write(struct hopper *h, uint32_t rank, const void *p, size_t bytes);
void hopper_nic_flag(struct hopper *h, uint32_t rank, const void *p);

/* What the caller writes to a rank's memory stands in its stream behind the kernels launched so
 * far, as if a kernel of its own had written it. Nothing that still runs may use that memory. */
void hopper_stream_write(struct hopper *h, uint32_t rank, const void *p, size_t bytes);

/* Orders that were chosen so far, as one number: equal for equal runs. */
uint64_t hopper_hash(const struct hopper *h);
/* Grows while more is done than looking at words that do not change. */
uint64_t hopper_work(const struct hopper *h);
