#include "core/comm/bootstrap_internal.h"
#include "core/base/clock.h"
#include "core/base/interrupt.h"
#include "core/base/sentence.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* How long rank 0 waits at the end for the others to have read everything, and a rank for its own
 * last words. */
#define SLICE_NS 100000000ull /* between two looks for an interrupt */
#define FAREWELL_NS 1000000000ull
#define FAREWELL_FAILED_NS 250000000ull

int bootstrap_wait(struct bootstrap *b, uint64_t deadline)
{
    uint64_t slice = peer_now() + SLICE_NS;
    int late = mk_cond_wait_until(&b->changed, &b->lock, deadline < slice ? deadline : slice);
    pthread_mutex_unlock(&b->lock); /* the program's signal handlers may run */
    int interrupted = mk_interrupted();
    pthread_mutex_lock(&b->lock);
    if (interrupted && !b->failed) {
        struct mk_failure f = bootstrap_blame(b, MK_FAIL_SETUP, b->rank);
        snprintf(f.detail, sizeof f.detail, "it was interrupted");
        bootstrap_record(b, &f);
    }
    return deadline < slice ? late : 0;
}

int bootstrap_join(struct bootstrap **out, const struct bootstrap_config *config, char *error,
                   size_t size)
{
    *out = NULL;
    if (config->world == 0 || config->world > MK_MAX_RANKS || config->rank >= config->world ||
        !config->timeout_ns || (config->world > 1 && !config->token[0]))
        return mk_fail(-EINVAL, error, size,
                       "rank %u of %u: a job has 1 to %u ranks, a token and a timeout",
                       config->rank, config->world, MK_MAX_RANKS);
    struct bootstrap *b = calloc(1, sizeof *b);
    uint32_t peers = config->world == 1 ? 0 : config->rank == 0 ? config->world : 1;
    if (b) {
        b->peers = calloc(peers + 1, sizeof *b->peers);
        b->slots = calloc(peers + 1, sizeof *b->slots);
        b->stands = calloc(config->world, sizeof *b->stands);
    }
    if (!b || !b->peers || !b->slots || !b->stands ||
        failure_case_open(&b->failure, config->world)) {
        snprintf(error, size, "out of memory");
        if (b) {
            free(b->peers);
            free(b->slots);
            free(b->stands);
        }
        free(b);
        return -ENOMEM;
    }
    b->rank = config->rank;
    b->world = config->world;
    b->timeout_ns = config->timeout_ns;
    b->listener.fd = -1;
    for (uint32_t i = 0; i < peers; i++)
        peer_init(&b->peers[i], -1);
    b->peer_count = peers;
    struct bootstrap_config mine = *config;
    memset(mine.token, 0, sizeof mine.token); /* the caller's bytes behind its end are not sent */
    memcpy(mine.token, config->token, strnlen(config->token, sizeof mine.token));
    int result = 0;
    if (b->world > 1)
        result = bootstrap_meet(b, &mine, error, size);
    else if (config->listen_fd >= 0)
        close(config->listen_fd);
    if (!result && (result = bootstrap_watch_start(b)))
        snprintf(error, size, "cannot start the bootstrap's thread: %s", strerror(-result));
    if (result) {
        bootstrap_leave(b);
        return result;
    }
    *out = b;
    return 0;
}

void bootstrap_set_timeout(struct bootstrap *b, uint64_t timeout_ns)
{
    pthread_mutex_lock(&b->lock);
    b->timeout_ns = timeout_ns;
    pthread_mutex_unlock(&b->lock);
}

void bootstrap_fail(struct bootstrap *b, const struct mk_failure *failure)
{
    pthread_mutex_lock(&b->lock);
    bootstrap_record(b, failure);
    pthread_mutex_unlock(&b->lock);
}

int bootstrap_failure(struct bootstrap *b, struct mk_failure *failure)
{
    if (!__atomic_load_n(&b->failed, __ATOMIC_ACQUIRE))
        return 0;
    if (failure) {
        pthread_mutex_lock(&b->lock);
        *failure = b->failure.kept;
        pthread_mutex_unlock(&b->lock);
    }
    return 1;
}

int bootstrap_settle(struct bootstrap *b, struct mk_failure *failure)
{
    if (!__atomic_load_n(&b->failed, __ATOMIC_ACQUIRE))
        return 0;
    uint64_t deadline = peer_now() + SETTLE_NS + SETTLE_GRACE_NS;
    pthread_mutex_lock(&b->lock);
    while (!b->final && bootstrap_wait(b, deadline) != ETIMEDOUT)
        ;
    b->final = 1; /* rank 0 is silent: this rank's own record stands */
    *failure = b->failure.kept;
    pthread_mutex_unlock(&b->lock);
    return 1;
}

void bootstrap_stand(struct bootstrap *b, const void *stand, size_t bytes)
{
    pthread_mutex_lock(&b->lock);
    if (b->rank == 0) {
        void *copy = malloc(bytes);
        if (copy)
            bootstrap_take_stand(b, 0, memcpy(copy, stand, bytes), bytes);
    } else if (b->peers[0].fd >= 0) {
        peer_say(&b->peers[0], WIRE_STAND, 0, b->rank, stand, bytes);
        bootstrap_wake(b);
    }
    pthread_mutex_unlock(&b->lock);
}

uint32_t bootstrap_stands(struct bootstrap *b)
{
    pthread_mutex_lock(&b->lock);
    uint32_t news = b->stands_news;
    b->stands_news = 0;
    pthread_mutex_unlock(&b->lock);
    return news;
}

void *bootstrap_stand_of(struct bootstrap *b, uint32_t rank, size_t *bytes)
{
    pthread_mutex_lock(&b->lock);
    const struct bootstrap_slot *s = &b->stands[rank];
    void *copy = s->payload ? malloc(s->bytes) : NULL;
    if (copy)
        memcpy(copy, s->payload, *bytes = s->bytes);
    pthread_mutex_unlock(&b->lock);
    return copy;
}

uint32_t bootstrap_meetings(struct bootstrap *b)
{
    return __atomic_load_n(&b->sequence, __ATOMIC_RELAXED);
}

/* Whether a peer may still need this rank's socket to deliver something. */
static int bootstrap_owes(const struct bootstrap *b)
{
    for (uint32_t i = 0; i < b->peer_count; i++)
        if (b->peers[i].fd >= 0 && (b->peers[i].first || (b->rank == 0 && !b->peers[i].left)))
            return 1;
    return 0;
}

/* A socket that is closed with unread bytes resets the connection, and the peer may lose this
 * rank's last frames. So rank 0 waits until every rank has answered its BYE. */
static void bootstrap_farewell(struct bootstrap *b)
{
    pthread_mutex_lock(&b->lock);
    b->leaving = 1;
    struct peer_blob *frame = peer_frame(WIRE_BYE, 0, b->rank, NULL, 0);
    /* a large answer, that a peer has not taken yet: it may take as long as any wait */
    int queued = 0;
    for (uint32_t i = 0; i < b->peer_count; i++)
        queued |= b->peers[i].first != NULL;
    for (uint32_t i = 0; i < b->peer_count && frame; i++)
        if (b->peers[i].fd >= 0)
            peer_send(&b->peers[i], frame);
    peer_drop(frame);
    bootstrap_wake(b);
    uint64_t bound = b->failed ? FAREWELL_FAILED_NS : queued ? b->timeout_ns : FAREWELL_NS;
    uint64_t deadline = peer_now() + (b->timeout_ns < bound ? b->timeout_ns : bound);
    while (bootstrap_owes(b) && bootstrap_wait(b, deadline) != ETIMEDOUT)
        ;
    pthread_mutex_unlock(&b->lock);
}

void bootstrap_leave(struct bootstrap *b)
{
    if (!b)
        return;
    if (b->threads) {
        bootstrap_farewell(b);
        bootstrap_watch_stop(b);
    }
    listener_close(&b->listener);
    for (uint32_t i = 0; i < b->peer_count; i++) {
        peer_close(&b->peers[i]);
        bootstrap_clear_slot(b, i);
    }
    free(b->peers);
    free(b->slots);
    for (uint32_t r = 0; r < b->world; r++)
        free(b->stands[r].payload);
    free(b->stands);
    failure_case_close(&b->failure);
    free(b);
}
