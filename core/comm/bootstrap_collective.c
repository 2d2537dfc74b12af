/* The collectives: rank 0 collects every rank's part and answers; every other rank sends its part
 * and waits. */
#include "core/comm/bootstrap_internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How much longer than rank 0, which knows the missing ranks, the others wait: a tenth of the
 * timeout, at most this. */
#define GRACE_NS 400000000ull

static const char *const collective_names[WIRE_COLLECTIVES] = {"an all-gather", "a gather",
                                                               "a barrier", "a clock exchange"};

/* The result of a call once the job has failed. With the lock held. */
static int bootstrap_collective_failed_result(const struct bootstrap *b)
{
    switch (b->failure.kept.kind) {
    case MK_FAIL_PEER_LOST:
        return -ECONNRESET;
    case MK_FAIL_TIMEOUT:
        return -ETIMEDOUT;
    case MK_FAIL_INTERNAL:
        return -EPROTO;
    default:
        return -EIO;
    }
}

static int bootstrap_collective_fail_memory(struct bootstrap *b)
{
    struct mk_failure f = bootstrap_blame(b, MK_FAIL_SETUP, b->rank);
    snprintf(f.detail, sizeof f.detail, "out of memory");
    bootstrap_record(b, &f);
    return -ENOMEM;
}

static void bootstrap_collective_record_wait(struct bootstrap *b, enum wire_collective kind,
                                             uint32_t producer, uint32_t others, uint64_t waited_ns)
{
    struct mk_failure f = bootstrap_blame(b, MK_FAIL_TIMEOUT, producer);
    f.waited_ns = waited_ns;
    if (others)
        snprintf(f.what, sizeof f.what, "rank %u (and %u more) to take part in %s", producer,
                 others, collective_names[kind]);
    else
        snprintf(f.what, sizeof f.what, "rank %u to take part in %s", producer,
                 collective_names[kind]);
    bootstrap_record(b, &f);
}

/* Rank 0 waited too long for its parts, or something else ended that wait: it names each missing
 * rank. Which of them hangs and which waits for another, their own records say. */
static int bootstrap_collective_fail_missing(struct bootstrap *b, enum wire_collective kind,
                                             uint32_t first, uint32_t last, uint64_t waited_ns)
{
    uint32_t missing = 0;
    for (uint32_t r = first; r < last; r++)
        missing += !b->slots[r].full;
    for (uint32_t r = first, others = missing - 1; r < last; r++)
        if (!b->slots[r].full) {
            bootstrap_collective_record_wait(b, kind, r, others, waited_ns);
            others = 0;
        }
    return bootstrap_collective_failed_result(b);
}

static int bootstrap_collective_fail_departed(struct bootstrap *b, enum wire_collective kind,
                                              uint32_t rank)
{
    struct mk_failure f = bootstrap_blame(b, MK_FAIL_PEER_LOST, rank);
    snprintf(f.detail, sizeof f.detail, "it left the job when others called %s",
             collective_names[kind]);
    bootstrap_record(b, &f);
    return bootstrap_collective_failed_result(b);
}

/* Rank 0: does the part of rank r belong to this collective? */
static int bootstrap_collective_check_part(struct bootstrap *b, uint32_t r,
                                           enum wire_collective kind, uint32_t sequence)
{
    const struct bootstrap_slot *s = &b->slots[r];
    uint32_t called = wire_get_u32(s->payload);
    if (s->sequence == sequence && called == (uint32_t)kind)
        return 0;
    struct mk_failure f = bootstrap_blame(b, MK_FAIL_INTERNAL, r);
    snprintf(f.detail, sizeof f.detail,
             "rank %u called %s (number %u) where rank 0 called %s (number %u)", r,
             called < WIRE_COLLECTIVES ? collective_names[called] : "something unknown",
             s->sequence, collective_names[kind], sequence);
    bootstrap_record(b, &f);
    return bootstrap_collective_failed_result(b);
}

/* Rank 0: waits for the parts of ranks first .. last - 1, then checks them. */
static int bootstrap_collective_collect(struct bootstrap *b, enum wire_collective kind,
                                        uint32_t sequence, uint32_t first, uint32_t last,
                                        uint64_t deadline)
{
    for (int late = 0;; late = bootstrap_wait(b, deadline) == ETIMEDOUT) {
        /* One rank alone: others may be ahead, with their part of the next collective here
         * already. */
        if (last - first == 1 ? b->slots[first].full : b->full_slots == last - first)
            break;
        for (uint32_t r = first; b->departed && !b->failed && r < last; r++)
            if (!b->slots[r].full && b->peers[r].left)
                return bootstrap_collective_fail_departed(b, kind, r);
        if (b->failed || late)
            return bootstrap_collective_fail_missing(
                b, kind, first, last, late ? b->timeout_ns : peer_now() + b->timeout_ns - deadline);
    }
    for (uint32_t r = first; r < last; r++) {
        int result = bootstrap_collective_check_part(b, r, kind, sequence);
        if (result)
            return result;
    }
    return 0;
}

/* Every other rank: sends its part and waits for rank 0's answer, which is in slot 0 then. */
static int bootstrap_collective_ask(struct bootstrap *b, enum wire_collective kind,
                                    uint32_t sequence, const void *mine, size_t bytes)
{
    uint64_t grace = b->timeout_ns / 10 < GRACE_NS ? b->timeout_ns / 10 : GRACE_NS;
    uint64_t deadline = peer_now() + b->timeout_ns + grace;
    if (b->failed)
        return bootstrap_collective_failed_result(b);
    struct peer_blob *frame = peer_frame(WIRE_PART, sequence, b->rank, NULL, 4 + bytes);
    if (!frame)
        return bootstrap_collective_fail_memory(b);
    wire_put_u32(frame->data + WIRE_HEADER_BYTES, kind);
    if (bytes)
        memcpy(frame->data + WIRE_HEADER_BYTES + 4, mine, bytes);
    int sent = peer_send(&b->peers[0], frame);
    peer_drop(frame);
    if (sent == -ENOMEM)
        return bootstrap_collective_fail_memory(b);
    bootstrap_wake(b); /* the watcher writes the rest that the socket did not take yet */
    for (int late = 0;; late = bootstrap_wait(b, deadline) == ETIMEDOUT) {
        if (b->slots[0].full)
            break; /* a collective that ended before the failure counts */
        if (b->failed)
            return bootstrap_collective_failed_result(b);
        if (b->peers[0].left)
            return bootstrap_collective_fail_departed(b, kind, 0);
        if (late) {
            bootstrap_collective_record_wait(b, kind, 0, 0, b->timeout_ns);
            return bootstrap_collective_failed_result(b);
        }
    }
    if (b->slots[0].sequence == sequence)
        return 0;
    struct mk_failure f = bootstrap_blame(b, MK_FAIL_INTERNAL, 0);
    snprintf(f.detail, sizeof f.detail, "rank 0 answered call %u where rank %u made call %u",
             b->slots[0].sequence, b->rank, sequence);
    bootstrap_record(b, &f);
    return bootstrap_collective_failed_result(b);
}

static void bootstrap_collective_answer_all(struct bootstrap *b, struct peer_blob *frame)
{
    for (uint32_t r = 1; r < b->world; r++) {
        bootstrap_clear_slot(b, r);
        peer_send(&b->peers[r], frame);
    }
    bootstrap_wake(b);
}

static int bootstrap_collective_allgather_root(struct bootstrap *b, enum wire_collective kind,
                                               uint32_t sequence, const void *mine, void *all,
                                               size_t bytes)
{
    int result =
        bootstrap_collective_collect(b, kind, sequence, 1, b->world, peer_now() + b->timeout_ns);
    if (result)
        return result;
    struct peer_blob *frame = peer_frame(WIRE_RESULT, sequence, 0, NULL, b->world * bytes);
    if (!frame)
        return bootstrap_collective_fail_memory(b);
    uint8_t *body = frame->data + WIRE_HEADER_BYTES;
    if (bytes)
        memcpy(body, mine, bytes);
    for (uint32_t r = 1; r < b->world; r++) {
        const struct bootstrap_slot *s = &b->slots[r];
        if (s->bytes != 4 + bytes) {
            struct mk_failure f = bootstrap_blame(b, MK_FAIL_INTERNAL, r);
            snprintf(f.detail, sizeof f.detail, "rank %u gave %lu bytes to an all-gather of %zu", r,
                     s->bytes - 4, bytes);
            bootstrap_record(b, &f);
            peer_drop(frame);
            return bootstrap_collective_failed_result(b);
        }
        if (bytes)
            memcpy(body + r * bytes, s->payload + 4, bytes);
    }
    if (bytes)
        memcpy(all, body, b->world * bytes);
    bootstrap_collective_answer_all(b, frame);
    peer_drop(frame);
    return 0;
}

static int bootstrap_collective_allgather(struct bootstrap *b, enum wire_collective kind,
                                          const void *mine, void *all, size_t bytes)
{
    if (bytes > WIRE_MAX_BYTES / b->world - 4)
        return -EMSGSIZE;
    if (b->world == 1) {
        if (bytes)
            memmove(all, mine, bytes);
        return bootstrap_failure(b, NULL) ? -EIO : 0;
    }
    pthread_mutex_lock(&b->lock);
    uint32_t sequence = __atomic_fetch_add(&b->sequence, 1, __ATOMIC_RELAXED);
    int result;
    if (b->rank == 0) {
        result = bootstrap_collective_allgather_root(b, kind, sequence, mine, all, bytes);
    } else if (!(result = bootstrap_collective_ask(b, kind, sequence, mine, bytes))) {
        if (b->slots[0].bytes != b->world * bytes)
            result = -EPROTO;
        else if (bytes)
            memcpy(all, b->slots[0].payload, b->world * bytes);
        bootstrap_clear_slot(b, 0);
    }
    pthread_mutex_unlock(&b->lock);
    return result;
}

int bootstrap_allgather(struct bootstrap *b, const void *mine, void *all, size_t bytes)
{
    return bootstrap_collective_allgather(b, WIRE_ALLGATHER, mine, all, bytes);
}

int bootstrap_barrier(struct bootstrap *b)
{
    return bootstrap_collective_allgather(b, WIRE_BARRIER, NULL, NULL, 0);
}

/* Rank 0, with all parts here: puts them end to end. */
static int bootstrap_collective_gather_parts(struct bootstrap *b, const void *mine, size_t bytes,
                                             void **all, size_t *lengths)
{
    size_t total = bytes, at = bytes;
    for (uint32_t r = 1; r < b->world; r++)
        total += b->slots[r].bytes - 4;
    uint8_t *whole = malloc(total ? total : 1);
    if (!whole)
        return bootstrap_collective_fail_memory(b);
    if (bytes)
        memcpy(whole, mine, bytes);
    lengths[0] = bytes;
    for (uint32_t r = 1; r < b->world; r++) {
        lengths[r] = b->slots[r].bytes - 4;
        memcpy(whole + at, b->slots[r].payload + 4, lengths[r]);
        at += lengths[r];
    }
    *all = whole;
    return 0;
}

int bootstrap_gather(struct bootstrap *b, const void *mine, size_t bytes, void **all,
                     size_t *lengths)
{
    int result, too_long = bytes > WIRE_MAX_BYTES - 4;
    if (too_long)
        bytes = 0; /* the others would wait for this rank */
    pthread_mutex_lock(&b->lock);
    uint32_t sequence = __atomic_fetch_add(&b->sequence, 1, __ATOMIC_RELAXED);
    if (b->rank != 0) {
        result = bootstrap_collective_ask(b, WIRE_GATHER, sequence, mine, bytes);
        bootstrap_clear_slot(b, 0);
    } else {
        result = b->failed ? bootstrap_collective_failed_result(b) : 0;
        if (b->world > 1)
            result = bootstrap_collective_collect(b, WIRE_GATHER, sequence, 1, b->world,
                                                  peer_now() + b->timeout_ns);
        result = result ? result : bootstrap_collective_gather_parts(b, mine, bytes, all, lengths);
        struct peer_blob *frame = result ? NULL : peer_frame(WIRE_RESULT, sequence, 0, NULL, 0);
        if (frame)
            bootstrap_collective_answer_all(b, frame);
        else if (!result) {
            free(*all);
            *all = NULL; /* callers free it, also after an error */
            result = bootstrap_collective_fail_memory(b);
        }
        peer_drop(frame);
    }
    pthread_mutex_unlock(&b->lock);
    return result ? result : too_long ? -EMSGSIZE : 0;
}

/* Rank 0 lets one rank at a time sample, so that no rank's brackets are widened by the others. */
static int bootstrap_collective_clock_root(struct bootstrap *b, uint32_t sequence)
{
    uint64_t deadline = peer_now() + b->timeout_ns;
    int result = bootstrap_collective_collect(b, WIRE_CLOCK, sequence, 1, b->world, deadline);
    for (uint32_t r = 1; r < b->world && !result; r++)
        bootstrap_clear_slot(b, r);
    for (uint32_t r = 1; r < b->world && !result; r++) {
        peer_say(&b->peers[r], WIRE_RESULT, sequence, 0, NULL, 0);
        result = bootstrap_collective_collect(b, WIRE_CLOCK, sequence + 1, r, r + 1, deadline);
        if (!result) {
            bootstrap_clear_slot(b, r);
            peer_say(&b->peers[r], WIRE_RESULT, sequence + 1, 0, NULL, 0);
        }
    }
    return result;
}

static int bootstrap_collective_sample_clock(struct bootstrap *b, uint32_t i, uint64_t *local,
                                             uint64_t *remote, uint64_t *bracket)
{
    b->pong_at = 0;
    uint64_t before = peer_now(), deadline = before + b->timeout_ns;
    peer_say(&b->peers[0], WIRE_PING, i, b->rank, NULL, 0);
    for (int late = 0; !b->pong_at; late = bootstrap_wait(b, deadline) == ETIMEDOUT) {
        if (b->failed)
            return bootstrap_collective_failed_result(b);
        if (b->peers[0].left)
            return bootstrap_collective_fail_departed(b, WIRE_CLOCK, 0);
        if (late) {
            bootstrap_collective_record_wait(b, WIRE_CLOCK, 0, 0, b->timeout_ns);
            return bootstrap_collective_failed_result(b);
        }
    }
    *local = before + (b->pong_at - before) / 2;
    *remote = b->pong_value;
    *bracket = b->pong_at - before;
    return 0;
}

int bootstrap_clock(struct bootstrap *b, uint32_t samples, uint64_t *local, uint64_t *remote,
                    uint64_t *bracket)
{
    int result = 0;
    pthread_mutex_lock(&b->lock);
    uint32_t sequence = __atomic_fetch_add(&b->sequence, 2, __ATOMIC_RELAXED);
    if (b->rank == 0) {
        if (b->failed)
            result = bootstrap_collective_failed_result(b);
        else if (b->world > 1)
            result = bootstrap_collective_clock_root(b, sequence);
        memset(local, 0, samples * sizeof *local);
        memset(remote, 0, samples * sizeof *remote);
        memset(bracket, 0, samples * sizeof *bracket);
    } else {
        result = bootstrap_collective_ask(b, WIRE_CLOCK, sequence, NULL, 0);
        bootstrap_clear_slot(b, 0);
        for (uint32_t i = 0; i < samples && !result; i++)
            result = bootstrap_collective_sample_clock(b, i, &local[i], &remote[i], &bracket[i]);
        result = result ? result : bootstrap_collective_ask(b, WIRE_CLOCK, sequence + 1, NULL, 0);
        bootstrap_clear_slot(b, 0);
    }
    pthread_mutex_unlock(&b->lock);
    return result;
}
