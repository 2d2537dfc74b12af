#include "core/cta/ring_host.h"
#include "backends/proxy_state.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    DEFAULT_IN_FLIGHT = 256,
    RING_BATCH = 64, /* commands read from one ring before the next has its turn */
    POLL_BATCH = 32,
};

/* ---- failures ---- */

static struct mk_failure proxy_failure_of(const struct proxy *p, uint32_t kind,
                                          const struct ring_state *r)
{
    struct mk_failure f = {
        .kind = kind, .op = MK_OPS, .rank = p->config.topo.rank, .cta = UINT32_MAX};
    f.role = MK_INTER_SEND;
    f.flag = f.chunk = f.producer = UINT32_MAX;
    f.epoch = r ? r->epoch : 0;
    return f;
}

static void proxy_fail(struct proxy *p, uint32_t plan, struct mk_failure *f)
{
    if (p->draining)
        return;
    p->draining = 1;
    if (p->config.describe)
        p->config.describe(p->config.context, plan, f);
    p->config.fail(p->config.context, f);
}

static void proxy_fail_flight(struct proxy *p, const struct flight *flight, uint64_t now,
                              int status, const char *detail)
{
    struct mk_failure f = proxy_failure_of(p, MK_FAIL_NETWORK, NULL);
    f.producer = flight->peer;
    f.flag = flight->flag;
    f.epoch = f.wanted = flight->epoch;
    f.waited_ns = now - flight->posted;
    f.status = status;
    snprintf(f.what, sizeof f.what, "the put of command %" PRIu64 " in ring %u", flight->sequence,
             flight->ring);
    snprintf(f.detail, sizeof f.detail, "%s", detail);
    proxy_fail(p, flight->plan, &f);
}

/* ---- completion, in order per ring ---- */

static void proxy_mark_done(struct proxy *p, struct ring_state *r, uint64_t sequence)
{
    r->done[sequence & (p->window - 1)] = 1;
}

static void proxy_publish_completed(struct proxy *p, struct ring_state *r)
{
    uint64_t mask = p->window - 1, before = r->completed;
    if (p->draining)
        return;
    while (r->completed < r->next && r->done[r->completed & mask])
        r->done[r->completed++ & mask] = 0;
    if (r->completed != before)
        __atomic_store_n(&r->ring->completed, r->completed, __ATOMIC_RELEASE);
}

static void proxy_unlink_flight(struct proxy *p, uint32_t index)
{
    struct flight *f = &p->flights[index];
    *(f->older == PROXY_NONE ? &p->oldest : &p->flights[f->older].younger) = f->younger;
    *(f->younger == PROXY_NONE ? &p->youngest : &p->flights[f->younger].older) = f->older;
    f->busy = 0;
    uint32_t left = p->in_flight - 1;
    p->idle[p->config.in_flight - p->in_flight] = index;
    __atomic_store_n(&p->in_flight, left, __ATOMIC_RELAXED);
}

static struct flight *proxy_take_flight(struct proxy *p, uint32_t *index)
{
    *index = p->idle[p->config.in_flight - p->in_flight - 1];
    return &p->flights[*index];
}

static void proxy_link_flight(struct proxy *p, uint32_t index)
{
    struct flight *f = &p->flights[index];
    f->busy = 1;
    f->older = p->youngest;
    f->younger = PROXY_NONE;
    *(p->youngest == PROXY_NONE ? &p->oldest : &p->flights[p->youngest].younger) = index;
    p->youngest = index;
    __atomic_store_n(&p->in_flight, p->in_flight + 1, __ATOMIC_RELAXED);
}

/* Fails the job when a peer's puts can no longer be received, so that waits for its flags would
 * never end, or when the NIC has failed without a put that reports it. */
static void proxy_fail_peer(struct proxy *p, const struct fabric_completion *c)
{
    struct mk_failure f = proxy_failure_of(p, MK_FAIL_NETWORK, NULL);
    f.producer = c->peer;
    f.status = c->status;
    snprintf(f.what, sizeof f.what, "acknowledgements of its puts");
    snprintf(f.detail, sizeof f.detail, "%.*s", (int)sizeof c->detail, c->detail);
    proxy_fail(p, 0, &f);
}

static void proxy_complete(struct proxy *p, const struct fabric_completion *c, uint64_t now)
{
    if (c->cookie == FABRIC_NO_PUT) {
        if (c->status)
            proxy_fail_peer(p, c);
        return;
    }
    if (c->cookie >= p->config.in_flight || !p->flights[c->cookie].busy) {
        struct mk_failure f = proxy_failure_of(p, MK_FAIL_INTERNAL, NULL);
        snprintf(f.detail, sizeof f.detail,
                 "the %s fabric completed put %" PRIu64 ", which is not under way",
                 p->config.fabric->ops->name, c->cookie);
        proxy_fail(p, 0, &f);
        return;
    }
    struct flight *flight = &p->flights[c->cookie];
    if (c->status) {
        char detail[sizeof c->detail + 1];
        snprintf(detail, sizeof detail, "%.*s", (int)sizeof c->detail, c->detail);
        proxy_fail_flight(p, flight, now, c->status, detail);
        proxy_unlink_flight(p, (uint32_t)c->cookie);
        return;
    }
    if (flight->message != UINT64_MAX)
        p->config.messages->messages[flight->message].completed = now;
    proxy_mark_done(p, &p->rings[flight->ring], flight->sequence);
    proxy_unlink_flight(p, (uint32_t)c->cookie);
}

/* Collects completions until the fabric has no more: one of them may explain a put that was
 * refused. */
static int proxy_collect(struct proxy *p)
{
    struct fabric_completion done[POLL_BATCH];
    int total = 0, n;
    do {
        n = p->config.fabric->ops->poll(p->config.fabric, done, POLL_BATCH);
        uint64_t now = n > 0 ? p->config.now(p->config.context) : 0;
        for (int i = 0; i < n; i++)
            proxy_complete(p, &done[i], now);
        total += n;
    } while (n == POLL_BATCH && total < (int)p->config.in_flight);
    return total;
}

/* Fails the oldest put if it has been in flight for longer than the timeout. */
static int proxy_oldest_hangs(struct proxy *p, uint64_t now, uint64_t bound_ns)
{
    const struct flight *f = p->oldest == PROXY_NONE ? NULL : &p->flights[p->oldest];
    if (!f || now <= f->posted || now - f->posted < bound_ns)
        return 0;
    proxy_fail_flight(p, f, now, -ETIMEDOUT, "the put did not complete");
    return 1;
}

/* ---- commands ---- */

/* Why a command is invalid; NULL: it is valid. */
static const char *proxy_complaint(const struct proxy *p, const struct ring_state *r,
                                   const struct mk_command *c, const struct mk_command_fields *f)
{
    const struct proxy_config *k = &p->config;
    if (f->kind == MK_CMD_BEGIN) {
        if (!f->flag || f->peer || c->lo >> 40)
            return "a BEGIN without a plan";
        if (!f->epoch)
            return "a BEGIN without an epoch";
        return f->flag == r->plan && f->epoch < r->epoch ? "a BEGIN whose epoch goes back" : NULL;
    }
    if (f->kind != MK_CMD_PUT)
        return "an unknown kind of command";
    if (!r->epoch)
        return "a PUT before any BEGIN";
    if (f->peer >= mk_world(&k->topo) ||
        mk_node_of(&k->topo, f->peer) == mk_node_of(&k->topo, k->topo.rank))
        return "a PUT to a rank that is not on another node";
    if (f->flag >= k->heap_flags)
        return "a PUT with a flag that the heap does not have";
    if (f->source > k->heap_bytes || f->bytes > k->heap_bytes - f->source)
        return "a PUT from beyond the heap";
    if (f->destination > k->heap_bytes || f->bytes > k->heap_bytes - f->destination)
        return "a PUT to beyond the heap";
    if (f->bytes && f->destination < k->heap_flags * 8)
        return "a PUT of bytes over the flags";
    return NULL;
}

static void proxy_fail_command(struct proxy *p, const struct ring_state *r,
                               const struct mk_command *c, const char *why)
{
    struct mk_failure f = proxy_failure_of(p, MK_FAIL_INTERNAL, r);
    snprintf(f.what, sizeof f.what, "command %" PRIu64 " of ring %u is %016" PRIx64 " %016" PRIx64,
             r->next, (uint32_t)(r - p->rings), c->lo, c->hi);
    snprintf(f.detail, sizeof f.detail, "%s", why);
    proxy_fail(p, r->plan, &f);
}

static uint64_t proxy_log_message(struct proxy *p, const struct ring_state *r,
                                  const struct mk_command_fields *c, uint64_t posted)
{
    struct mk_message_log *log = p->config.messages;
    if (!log || !log->messages)
        return UINT64_MAX;
    if (log->count == log->capacity) {
        log->dropped++;
        return UINT64_MAX;
    }
    log->messages[log->count] = (struct mk_message){.epoch = r->epoch,
                                                    .bytes = c->bytes,
                                                    .sequence = r->next,
                                                    .seen = r->head_seen,
                                                    .posted = posted,
                                                    .ring = (uint32_t)(r - p->rings),
                                                    .peer = c->peer,
                                                    .flag = c->flag,
                                                    .plan = r->plan};
    return log->count++;
}

/* Hands one PUT to the fabric. 1: taken; 0: no room, the command stays in its ring. */
static int proxy_post(struct proxy *p, struct ring_state *r, const struct mk_command_fields *c,
                      uint64_t *now)
{
    if (p->in_flight == p->config.in_flight)
        return 0;
    uint32_t index;
    struct flight *flight = proxy_take_flight(p, &index);
    struct fabric_put put = {.peer = c->peer,
                             .flag = c->flag,
                             .value = r->epoch,
                             .source = c->source,
                             .destination = c->destination,
                             .bytes = c->bytes,
                             .cookie = index};
    int rc = p->config.fabric->ops->put(p->config.fabric, &put);
    if (rc == -EAGAIN && *now - r->head_seen < p->config.timeout_ns)
        return 0;
    flight->ring = (uint32_t)(r - p->rings);
    flight->plan = r->plan;
    flight->peer = c->peer;
    flight->flag = c->flag;
    flight->sequence = r->next;
    flight->epoch = r->epoch;
    flight->message = UINT64_MAX;
    if (rc) {
        flight->posted = r->head_seen;
        proxy_collect(p); /* an earlier put's completion may say why the fabric is broken, and then
                       it has failed the job */
        if (rc != -EAGAIN)
            proxy_fail_flight(p, flight, *now, rc, strerror(-rc));
        /* the queue, shared by all peers, is full of puts to a peer that is gone */
        else if (!proxy_oldest_hangs(p, *now, p->config.timeout_ns / 2))
            proxy_fail_flight(p, flight, *now, rc, "the send queue had no room for so long");
        return 1;
    }
    if (p->config.messages)
        *now = p->config.now(p->config.context);
    flight->posted = *now;
    flight->message = proxy_log_message(p, r, c, *now);
    proxy_link_flight(p, index);
    return 1;
}

/* Reads one ring until it is empty, something is full, or its turn is over. Returns how many
 * commands it took. */
static int proxy_read_ring(struct proxy *p, struct ring_state *r, int *puts)
{
    uint64_t first = r->next, now = 0;
    struct mk_command c;
    while (r->next - first < RING_BATCH && (p->draining || r->next - r->completed < p->window) &&
           mk_ring_peek(r->ring, r->next, &c)) {
        if (!now)
            now = p->config.now(p->config.context);
        if (!r->head_seen)
            r->head_seen = now;
        struct mk_command_fields f = mk_command_decode(c);
        const char *why = p->draining ? NULL : proxy_complaint(p, r, &c, &f);
        if (why)
            proxy_fail_command(p, r, &c, why);
        int put = !p->draining && f.kind == MK_CMD_PUT;
        if (put && !proxy_post(p, r, &f, &now))
            break;
        *puts += put;
        if (!p->draining && f.kind == MK_CMD_BEGIN) {
            r->plan = f.flag;
            r->epoch = f.epoch;
        }
        if (!put)
            proxy_mark_done(p, r, r->next);
        r->next++;
        r->head_seen = 0;
    }
    if (r->next != first)
        __atomic_store_n(&r->ring->seen, r->next, __ATOMIC_RELEASE);
    return (int)(r->next - first);
}

int proxy_step(struct proxy *p)
{
    if (!p->draining && p->config.failed(p->config.context)) {
        /* A rank that waits for this rank's puts may have failed first; a put that hangs is then
         * the true cause. */
        proxy_oldest_hangs(p, p->config.now(p->config.context), p->config.timeout_ns / 2);
        p->draining = 1;
    }
    int did = proxy_collect(p), puts = 0;
    for (uint32_t i = 0; i < p->config.ring_count; i++) {
        struct ring_state *r = &p->rings[(p->turn + i) % p->config.ring_count];
        did += proxy_read_ring(p, r, &puts);
        proxy_publish_completed(p, r);
    }
    p->turn = p->config.ring_count ? (p->turn + 1) % p->config.ring_count : 0;
    if (puts) {
        int rc = p->config.fabric->ops->flush(p->config.fabric);
        if (rc && p->oldest != PROXY_NONE) {
            proxy_collect(p);
            if (p->oldest != PROXY_NONE)
                proxy_fail_flight(p, &p->flights[p->oldest], p->config.now(p->config.context), rc,
                                  strerror(-rc));
        }
    }
    if (!p->draining && p->oldest != PROXY_NONE)
        proxy_oldest_hangs(p, p->config.now(p->config.context), p->config.timeout_ns);
    return did;
}

uint32_t proxy_in_flight(const struct proxy *p)
{
    return __atomic_load_n(&p->in_flight, __ATOMIC_RELAXED);
}

/* ---- life ---- */

int proxy_create(struct proxy **out, const struct proxy_config *config)
{
    *out = NULL;
    if (config->ring_count > MK_MAX_RINGS || !config->timeout_ns)
        return -EINVAL;
    struct proxy *p = calloc(1, sizeof *p);
    if (!p)
        return -ENOMEM;
    p->config = *config;
    if (!p->config.in_flight)
        p->config.in_flight = DEFAULT_IN_FLIGHT;
    p->oldest = p->youngest = PROXY_NONE;
    for (p->window = RING_BATCH; p->window < p->config.in_flight;)
        p->window *= 2;
    p->flights = calloc(p->config.in_flight, sizeof *p->flights);
    p->idle = calloc(p->config.in_flight, sizeof *p->idle);
    int rc = p->flights && p->idle ? 0 : -ENOMEM;
    for (uint32_t i = 0; !rc && i < p->config.in_flight; i++)
        p->idle[i] = i;
    for (uint32_t i = 0; !rc && i < config->ring_count; i++) {
        struct ring_state *r = &p->rings[i];
        r->ring = config->rings[i];
        uint64_t capacity = r->ring->capacity;
        r->next = r->completed = __atomic_load_n(&r->ring->seen, __ATOMIC_RELAXED);
        r->done = calloc(p->window, 1);
        if (!capacity || capacity & (capacity - 1))
            rc = -EINVAL;
        else if (!r->done)
            rc = -ENOMEM;
    }
    if (rc)
        proxy_destroy(p);
    else
        *out = p;
    return rc;
}

void proxy_destroy(struct proxy *p)
{
    if (!p)
        return;
    proxy_stop(p);
    for (uint32_t i = 0; i < p->config.ring_count; i++)
        free(p->rings[i].done);
    free(p->flights);
    free(p->idle);
    free(p);
}
