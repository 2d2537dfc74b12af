/* What the executors that run on the CPU share: launches that are asked for wait in a queue, a
 * thread of the executor runs them one after the other, and every wait for it has an end. */
#pragma once

#include "core/comm/comm.h"

#include <pthread.h>

#define LAUNCH_QUEUE 256 /* launches that may be asked for before one is done */

struct launch {
    struct mk_plan *plan;
    enum mk_half half;
    uint64_t epoch;
    void *arguments[MK_SPACES - 1];
};

/* The first member of such an executor's state, which launch_queue_open makes with these four. */
struct launch_queue {
    struct mk_comm *comm;
    /* Runs a launch, on the queue's thread. Not called once the job has failed. */
    void (*run)(struct mk_comm *comm, const struct launch *launch);
    /* `launch` has shown nothing for silent_ns, longer than any wait of its own lasts: fails the
     * job. */
    void (*silent)(struct mk_comm *comm, const struct launch *launch, uint64_t silent_ns);
    uint64_t linger_ns; /* a launch ends so soon after the job has failed, or never */
    uint64_t turns;     /* atomic; the executor lets it grow while a launch goes on */
    int stop;           /* atomic; the communicator closes: a launch that runs is to end */
    int ended, threaded;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t asked, done;
    struct launch launches[LAUNCH_QUEUE];
    uint64_t head, tail;              /* asked for, done */
    uint64_t epochs[COMM_MOST_PLANS]; /* by slot: of the last launch asked for */
    uint64_t left[COMM_MOST_PLANS];   /* by slot, atomic: launches and halves that have ended */
};

/* Makes `bytes` of state, zeroed, for comm->exec_state, with its locks, which launch_queue_stop
 * takes away. NULL, with a sentence: no memory. */
void *launch_queue_open(struct mk_comm *comm, size_t bytes, const struct launch_queue *like);

/* Starts the thread. 0 or -errno. */
int launch_queue_start(struct launch_queue *q);

/* struct mk_exec_ops' launch and wait. The former blocks while the queue is full. 0; -ETIMEDOUT: a
 * launch hangs and will not see that the job has failed; the latter -EIO where the job failed. */
int launch_queue_launch(struct mk_comm *comm, struct mk_plan *plan, enum mk_half half,
                        void *const arguments[MK_SPACES - 1], void *stream);
int launch_queue_end(struct mk_comm *comm);

/* struct mk_exec_ops' left; and what its unplan does to a plan's counts. */
int launch_queue_left(struct mk_comm *comm, uint64_t left[COMM_MOST_PLANS]);
void launch_queue_unplan(struct launch_queue *q, const struct mk_plan *plan);

/* Blocks until all launches are done. 0 or -ETIMEDOUT. */
int launch_queue_wait(struct launch_queue *q);

/* Ends the thread and what it runs, also where neither was started. Where that hangs it returns
 * -ETIMEDOUT and has taken the executor away from the communicator: whatever the thread may still
 * touch (rings, heap, plans, the queue) stays for as long as the process. */
int launch_queue_stop(struct launch_queue *q);

static inline int launch_queue_stops(const struct launch_queue *q)
{
    return __atomic_load_n(&q->stop, __ATOMIC_RELAXED);
}

/* Nothing could go on for the idle-th time: spins in case that lasts nanoseconds, then gives the
 * core to another rank, then sleeps. */
void launch_queue_back_off(uint32_t idle);

/* The communicator has no executor any more. */
void launch_queue_forget(struct mk_comm *comm);
