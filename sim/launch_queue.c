#include "sim/launch_queue.h"
#include "backends/wall_clock.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Waits look around this often, and allow a launch this much beyond the timeout, which is the bound
 * of its own waits. */
#define LOOK_NS 50000000ull
#define BEYOND_NS 300000000ull

void launch_queue_back_off(uint32_t idle)
{
    if (idle < 32)
        return;
    if (idle < 64) {
        sched_yield();
        return;
    }
    struct timespec t = {0, idle < 256 ? 10000 : 100000};
    nanosleep(&t, NULL);
}

void launch_queue_forget(struct mk_comm *comm)
{
    comm->exec_beats = NULL;
    comm->exec_state = NULL;
    comm->tracks = NULL;
    comm->progress = NULL;
    comm->ring_count = comm->track_count = comm->progress_count = 0;
}

static void *launch_queue_main(void *argument)
{
    struct launch_queue *q = argument;
    pthread_mutex_lock(&q->lock);
    for (;;) {
        while (q->head == q->tail && !q->stop)
            pthread_cond_wait(&q->asked, &q->lock);
        if (q->stop)
            break;
        struct launch launch = q->launches[q->tail % LAUNCH_QUEUE];
        pthread_mutex_unlock(&q->lock);
        if (!comm_failed(q->comm))
            q->run(q->comm, &launch);
        __atomic_fetch_add(&q->left[launch.plan->slot], 1, __ATOMIC_RELEASE);
        pthread_mutex_lock(&q->lock);
        q->tail++;
        pthread_cond_broadcast(&q->done);
    }
    q->ended = 1;
    pthread_cond_broadcast(&q->done);
    pthread_mutex_unlock(&q->lock);
    return NULL;
}

void *launch_queue_open(struct mk_comm *comm, size_t bytes, const struct launch_queue *like)
{
    struct launch_queue *q = calloc(1, bytes);
    if (!q) {
        snprintf(comm->error, sizeof comm->error, "no memory for an executor");
        return NULL;
    }
    *q = *like;
    comm->exec_state = q;
    q->comm = comm;
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->asked, NULL);
    mk_cond_init(&q->done);
    return q;
}

int launch_queue_start(struct launch_queue *q)
{
    int result = -pthread_create(&q->thread, NULL, launch_queue_main, q);
    q->threaded = !result;
    return result;
}

/* With the lock held: waits until at most `left` launches are left or, with left UINT64_MAX, the
 * thread has ended. 0 or -ETIMEDOUT. */
static int launch_queue_wait_until(struct launch_queue *q, uint64_t left)
{
    uint64_t moved_at = wall_clock(NULL), failed_at = 0,
             seen = __atomic_load_n(&q->turns, __ATOMIC_RELAXED);
    int told = 0;
    while (left == UINT64_MAX ? !q->ended : q->head - q->tail > left) {
        uint64_t until = wall_clock(NULL) + LOOK_NS, tail = q->tail;
        mk_cond_wait_until(&q->done, &q->lock, until);
        pthread_mutex_unlock(&q->lock);
        comm_interrupted(q->comm);
        pthread_mutex_lock(&q->lock);
        uint64_t now = wall_clock(NULL), turns = __atomic_load_n(&q->turns, __ATOMIC_RELAXED);
        if (turns != seen || tail != q->tail)
            moved_at = now;
        seen = turns;
        if (!failed_at && comm_failed(q->comm))
            failed_at = now;
        if (failed_at && now - failed_at > q->linger_ns && now - moved_at > q->linger_ns)
            return -ETIMEDOUT;
        if (!failed_at && now - moved_at > q->comm->config.timeout_ns + BEYOND_NS) {
            /* closing; or a communicator without a bootstrap, where no other rank can be told */
            if (told || q->stop)
                return -ETIMEDOUT;
            told = 1;
            if (q->head != q->tail)
                q->silent(q->comm, &q->launches[q->tail % LAUNCH_QUEUE], now - moved_at);
        }
    }
    return 0;
}

int launch_queue_launch(struct mk_comm *comm, struct mk_plan *plan, enum mk_half half,
                        void *const arguments[MK_SPACES - 1], void *stream)
{
    struct launch_queue *q = comm->exec_state;
    uint64_t *epoch = &q->epochs[plan->slot];
    struct launch launch = {.plan = plan, .half = half, .epoch = *epoch += half != MK_END};
    memcpy(launch.arguments, arguments, sizeof launch.arguments);
    pthread_mutex_lock(&q->lock);
    int result = launch_queue_wait_until(q, LAUNCH_QUEUE - 1);
    if (!result)
        q->launches[q->head++ % LAUNCH_QUEUE] = launch;
    pthread_cond_signal(&q->asked);
    pthread_mutex_unlock(&q->lock);
    return result;
}

int launch_queue_left(struct mk_comm *comm, uint64_t left[COMM_MOST_PLANS])
{
    const struct launch_queue *q = comm->exec_state;
    for (uint32_t i = 0; i < comm->plan_count; i++)
        left[i] = __atomic_load_n(&q->left[i], __ATOMIC_ACQUIRE);
    return 0;
}

void launch_queue_unplan(struct launch_queue *q, const struct mk_plan *plan)
{
    q->epochs[plan->slot] = 0;
    __atomic_store_n(&q->left[plan->slot], 0, __ATOMIC_RELEASE);
}

int launch_queue_wait(struct launch_queue *q)
{
    pthread_mutex_lock(&q->lock);
    int result = launch_queue_wait_until(q, 0);
    pthread_mutex_unlock(&q->lock);
    return result;
}

int launch_queue_end(struct mk_comm *comm)
{
    int result = launch_queue_wait(comm->exec_state);
    return comm_failed(comm) ? -EIO : result;
}

int launch_queue_stop(struct launch_queue *q)
{
    if (q->threaded) {
        pthread_mutex_lock(&q->lock);
        __atomic_store_n(&q->stop, 1, __ATOMIC_RELAXED);
        pthread_cond_signal(&q->asked);
        int hangs = launch_queue_wait_until(q, UINT64_MAX);
        pthread_mutex_unlock(&q->lock);
        if (hangs) {
            pthread_detach(q->thread);
            launch_queue_forget(q->comm);
            q->comm->plan_count = 0;
            return hangs;
        }
        pthread_join(q->thread, NULL);
    }
    pthread_mutex_destroy(&q->lock);
    pthread_cond_destroy(&q->asked);
    pthread_cond_destroy(&q->done);
    return 0;
}
