/* The watcher: the one thread that reads the bootstrap's sockets after join. */
#include "core/comm/bootstrap_internal.h"
#include "core/base/clock.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct mk_failure bootstrap_blame(const struct bootstrap *b, enum mk_failure_kind kind,
                                  uint32_t producer)
{
    struct mk_failure f;
    memset(&f, 0, sizeof f);
    f.kind = kind;
    f.rank = b->rank;
    f.op = f.cta = f.role = f.flag = f.chunk = f.relay = UINT32_MAX;
    f.producer = producer;
    return f;
}

void bootstrap_wake(struct bootstrap *b)
{
    uint64_t one = 1;
    ssize_t n = write(b->wake_fd, &one, sizeof one);
    (void)n; /* full means that it is awake already */
}

/* Whether this rank decides on the job's failure: rank 0, or a rank that has lost it. */
static int bootstrap_watch_decides(const struct bootstrap *b)
{
    return b->rank == 0 || b->peers[0].fd < 0;
}

static void bootstrap_watch_tell_failure(struct bootstrap *b, const struct mk_failure *f)
{
    uint8_t payload[WIRE_FAILURE_BYTES];
    wire_put_failure(payload, f, b->final);
    struct peer_blob *frame = peer_frame(WIRE_FAIL, 0, b->rank, payload, sizeof payload);
    for (uint32_t i = 0; frame && i < b->peer_count; i++)
        if (b->peers[i].fd >= 0 && !b->peers[i].left)
            peer_send(&b->peers[i], frame);
    peer_drop(frame);
}

void bootstrap_record(struct bootstrap *b, const struct mk_failure *f)
{
    int news = b->final ? FAILURE_OLD : failure_merge(&b->failure, f);
    if (news == FAILURE_OLD)
        return;
    __atomic_store_n(&b->failed, 1, __ATOMIC_RELEASE);
    if (!bootstrap_watch_decides(b)) {
        /* as it is: only the deciding rank knows all the others */
        bootstrap_watch_tell_failure(b, f);
    } else if (news == FAILURE_CHANGED) {
        if (!b->settle_at)
            b->settle_at = peer_now() + SETTLE_NS;
        b->final = b->world == 1 || failure_is_final(&b->failure.kept);
        bootstrap_watch_tell_failure(b, &b->failure.kept);
    }
    bootstrap_wake(b);
    pthread_cond_broadcast(&b->changed);
}

/* Rank 0's decision, which holds. */
static void bootstrap_watch_take_decision(struct bootstrap *b, const struct mk_failure *f,
                                          int final)
{
    if (b->final)
        return;
    b->failure.kept = *f;
    b->final = final;
    __atomic_store_n(&b->failed, 1, __ATOMIC_RELEASE);
    pthread_cond_broadcast(&b->changed);
}

void bootstrap_clear_slot(struct bootstrap *b, uint32_t i)
{
    if (b->slots[i].full)
        b->full_slots--;
    free(b->slots[i].payload);
    memset(&b->slots[i], 0, sizeof b->slots[i]);
}

void bootstrap_take_stand(struct bootstrap *b, uint32_t rank, uint8_t *stand, uint64_t bytes)
{
    free(b->stands[rank].payload);
    b->stands[rank].payload = stand;
    b->stands[rank].bytes = bytes;
    b->stands_news++;
}

/* The connection is over. A peer that said BYE may go; any other is lost. */
static void bootstrap_watch_lose(struct bootstrap *b, uint32_t i, int error)
{
    struct peer *p = &b->peers[i];
    int expected = p->left || b->leaving;
    peer_close(p);
    if (!expected) {
        struct mk_failure f = bootstrap_blame(b, MK_FAIL_PEER_LOST, bootstrap_peer_rank(b, i));
        int silent = error == -ETIMEDOUT || error == -EHOSTUNREACH || error == -ENETUNREACH;
        snprintf(f.detail, sizeof f.detail,
                 silent ? "its host %s does not answer" : "its connection from %s closed",
                 p->address);
        bootstrap_record(b, &f);
    }
    pthread_cond_broadcast(&b->changed);
}

/* A peer that has shown the token sends an impossible frame: a bug, and the end of the job. */
static void bootstrap_watch_garbled(struct bootstrap *b, uint32_t i, const char *why)
{
    uint32_t rank = bootstrap_peer_rank(b, i);
    struct mk_failure f = bootstrap_blame(b, MK_FAIL_INTERNAL, rank);
    snprintf(f.detail, sizeof f.detail, "%s on the bootstrap's connection with rank %u", why, rank);
    bootstrap_record(b, &f);
    peer_close(&b->peers[i]);
}

static void bootstrap_watch_take_slot(struct bootstrap *b, uint32_t i)
{
    struct wire_parser *in = &b->peers[i].in;
    struct bootstrap_slot *s = &b->slots[i];
    s->full = 1;
    s->sequence = in->header.sequence;
    s->bytes = in->header.length;
    s->payload = in->payload;
    in->payload = NULL;
    b->full_slots++;
    pthread_cond_broadcast(&b->changed);
}

static void bootstrap_watch_take_bye(struct bootstrap *b, uint32_t i)
{
    struct peer *p = &b->peers[i];
    if (!p->left && !b->leaving && b->rank != 0)
        /* rank 0 may go without waiting for our own leave */
        peer_say(p, WIRE_BYE, 0, b->rank, NULL, 0);
    p->left = 1;
    b->departed++;
    pthread_cond_broadcast(&b->changed);
}

/* Handles the complete frame of peer i. */
static const char *bootstrap_watch_take_frame(struct bootstrap *b, uint32_t i)
{
    struct peer *p = &b->peers[i];
    struct wire_header *h = &p->in.header;
    struct mk_failure f;
    int final;
    if (h->from != bootstrap_peer_rank(b, i))
        return "a frame that names another rank as its sender";
    switch (h->kind) {
    case WIRE_PART:
    case WIRE_RESULT:
        if ((h->kind == WIRE_PART) != (b->rank == 0))
            return "a frame in the wrong direction";
        if (b->slots[i].full)
            return "a second message before the first was answered";
        bootstrap_watch_take_slot(b, i);
        return NULL;
    case WIRE_PING: {
        uint8_t clock[8];
        if (b->rank != 0)
            return "a frame in the wrong direction";
        wire_put_u64(clock, peer_now());
        peer_say(p, WIRE_PONG, h->sequence, 0, clock, sizeof clock);
        return NULL;
    }
    case WIRE_PONG:
        b->pong_at = peer_now();
        b->pong_value = wire_get_u64(p->in.payload);
        pthread_cond_broadcast(&b->changed);
        return NULL;
    case WIRE_FAIL:
        if (wire_get_failure(p->in.payload, h->length, &f, &final))
            return "an impossible failure record";
        if (b->rank == 0)
            bootstrap_record(b, &f);
        else
            bootstrap_watch_take_decision(b, &f, final);
        return NULL;
    case WIRE_STAND:
        if (b->rank != 0)
            return "a frame in the wrong direction";
        bootstrap_take_stand(b, h->from, p->in.payload, h->length);
        p->in.payload = NULL;
        return NULL;
    case WIRE_BYE:
        bootstrap_watch_take_bye(b, i);
        return NULL;
    default:
        return "a frame that is not allowed after joining";
    }
}

static void bootstrap_watch_serve_peer(struct bootstrap *b, uint32_t i)
{
    struct peer *p = &b->peers[i];
    const char *why;
    int result;
    peer_flush(p); /* where it fails, receive says why behind the last unread frames */
    /* A few frames a turn, so that one busy peer does not keep the lock. */
    for (int frames = 0; frames < 8; frames++) {
        result = peer_receive(p, &why);
        if (result == 0)
            return;
        if (result == 1)
            why = bootstrap_watch_take_frame(b, i);
        if (result == 1 && !why) {
            wire_release(&p->in);
            continue;
        }
        if (result == 1 || result == -EPROTO)
            bootstrap_watch_garbled(b, i, why);
        else
            bootstrap_watch_lose(b, i, result);
        return;
    }
}

/* Late strangers, and second copies of ranks that have joined. Without the lock: after joining the
 * listener is the watcher's alone, and no caller waits for strangers. */
static void bootstrap_watch_serve_listener(struct bootstrap *b)
{
    struct peer arrived;
    struct wire_hello hello;
    uint32_t version;
    int result;
    while ((result = listener_step(&b->listener, &arrived, &hello, &version)) == 1) {
        char text[128];
        snprintf(text, sizeof text,
                 "rank %u joined twice: the job at this port is complete and running", hello.rank);
        listener_refuse(&arrived, -EEXIST, text);
    }
    if (result < 0)
        listener_close(&b->listener);
}

static uint32_t bootstrap_watch_list(struct bootstrap *b, struct pollfd *fds, uint32_t *peer_at,
                                     uint64_t *deadline)
{
    uint32_t n = 0;
    fds[n++] = (struct pollfd){.fd = b->wake_fd, .events = POLLIN};
    for (uint32_t i = 0; i < b->peer_count; i++)
        if (b->peers[i].fd >= 0) {
            peer_at[n] = i;
            fds[n++] =
                (struct pollfd){.fd = b->peers[i].fd,
                                .events = (short)(POLLIN | (b->peers[i].first ? POLLOUT : 0))};
        }
    *deadline = UINT64_MAX;
    if (b->settle_at && !b->final)
        *deadline = b->settle_at;
    return n;
}

static void *watch_main(void *argument)
{
    struct bootstrap *b = argument;
    struct pollfd *fds = calloc(b->peer_count + LISTENER_STRANGERS + 2, sizeof *fds);
    uint32_t *peer_at = calloc(b->peer_count + 1, sizeof *peer_at);
    pthread_mutex_lock(&b->lock);
    if (!fds || !peer_at) {
        struct mk_failure f = bootstrap_blame(b, MK_FAIL_SETUP, b->rank);
        snprintf(f.detail, sizeof f.detail, "out of memory in the bootstrap");
        bootstrap_record(b, &f);
        b->quit = 1;
    }
    while (!b->quit) {
        uint64_t deadline, now = peer_now();
        uint32_t peers = bootstrap_watch_list(b, fds, peer_at, &deadline);
        uint32_t n = peers + listener_watch(&b->listener, fds + peers, &deadline);
        pthread_mutex_unlock(&b->lock);
        int ms = deadline == UINT64_MAX ? -1
                 : deadline <= now      ? 0
                                        : (int)((deadline - now) / 1000000 + 1);
        poll(fds, n, ms);
        bootstrap_watch_serve_listener(b);
        pthread_mutex_lock(&b->lock);
        uint64_t count;
        ssize_t woken = fds[0].revents ? read(b->wake_fd, &count, sizeof count) : 0;
        (void)woken; /* how often does not matter */
        for (uint32_t k = 1; k < peers; k++)
            if (fds[k].revents && b->peers[peer_at[k]].fd >= 0)
                bootstrap_watch_serve_peer(b, peer_at[k]);
        if (b->settle_at && !b->final && peer_now() >= b->settle_at) {
            b->final = 1;
            failure_settle(&b->failure);
            bootstrap_watch_tell_failure(b, &b->failure.kept);
            pthread_cond_broadcast(&b->changed);
        }
    }
    pthread_mutex_unlock(&b->lock);
    free(fds);
    free(peer_at);
    return NULL;
}

int bootstrap_watch_start(struct bootstrap *b)
{
    b->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (b->wake_fd < 0)
        return -errno;
    pthread_mutex_init(&b->lock, NULL);
    mk_cond_init(&b->changed);
    /* Signals are the program's own affair. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int result = -pthread_create(&b->watcher, NULL, watch_main, b);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (result) {
        pthread_mutex_destroy(&b->lock);
        pthread_cond_destroy(&b->changed);
        close(b->wake_fd);
        return result;
    }
    b->threads = 1;
    return 0;
}

void bootstrap_watch_stop(struct bootstrap *b)
{
    if (!b->threads)
        return;
    pthread_mutex_lock(&b->lock);
    b->quit = 1;
    bootstrap_wake(b);
    pthread_mutex_unlock(&b->lock);
    pthread_join(b->watcher, NULL);
    pthread_mutex_destroy(&b->lock);
    pthread_cond_destroy(&b->changed);
    close(b->wake_fd);
    b->threads = 0;
}
