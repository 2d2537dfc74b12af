/* Proxies, NICs and, for staged puts, PCIe to host memory. Each serves in order of arrival, so the
 * times of a put are known when its command is posted: they follow from the queues in front. */
#include "sim/timed/state.h"

#include <math.h>

static double network_later(double a, double b)
{
    return a > b ? a : b;
}

/* When the proxy will have seen a command that is posted now and handed its put to the NIC. If the
 * greatest number of puts is in flight, the oldest must have completed first. */
static double network_through_proxy(struct timed_world *w, struct timed_rank *r, double posted)
{
    uint32_t in_flight = w->config.in_flight;
    double start = network_later(posted + w->machine->command, r->proxy_free);
    start = network_later(start, (double)r->flying[r->puts % in_flight]);
    r->proxy_free = start + w->machine->proxy_command + w->machine->proxy_completion;
    return start;
}

/* When bytes that are ready at `at` have passed PCIe to or from host memory, which is busy until
 * `until`; `at` itself if puts are not staged. */
static double network_host(const struct mk_machine *m, double *until, double at, double bytes)
{
    if (m->staged <= 0)
        return at;
    *until = network_later(*until, at) + (m->pcie > 0 ? bytes / m->pcie : 0);
    return *until + m->pcie_latency;
}

/* Queues and sends the bytes. Returns the time at which the first leaves, and notes the put's
 * completion, for which a later put may have to wait. */
static double network_out(struct timed_world *w, struct timed_rank *r, double start, uint64_t bytes)
{
    const struct mk_machine *m = w->machine;
    double takes = m->nic_rate > 0 ? (double)bytes / (m->nic_rate * r->slow.nic) : 0;
    start = network_host(m, &r->host_out, start, (double)bytes);
    r->nic_out = network_later(r->nic_out, start) + network_later(takes, m->nic_message + m->put);
    r->flying[r->puts++ % w->config.in_flight] = (uint64_t)ceil(r->nic_out + 2 * m->nic_latency);
    return r->nic_out - takes;
}

/* Returns its number in the log. */
static uint32_t network_log(const struct timed_cta *c, uint32_t to, uint64_t bytes, uint32_t flag,
                            double seen, double through)
{
    struct timed_rank *r = timed_rank_of(c);
    struct mk_message_log *log = &r->messages;
    const uint32_t *ctas = r->plan.problem.tuning.split.ctas;
    if (!log->messages || log->count == log->capacity) {
        log->dropped += log->messages != NULL;
        return TIMED_NONE;
    }
    log->messages[log->count] =
        (struct mk_message){.epoch = c->cta.epoch,
                            .bytes = bytes,
                            .sequence = c->post->posted,
                            .seen = (uint64_t)ceil(seen),
                            .posted = (uint64_t)ceil(through),
                            .ring = c->grid - ctas[MK_COMPUTE] - ctas[MK_INTRA_COMM],
                            .peer = to,
                            .flag = flag,
                            .plan = r->plan.id};
    return (uint32_t)log->count++;
}

int timed_put(struct timed_cta *c, uint32_t to, uint64_t bytes, uint32_t flag)
{
    struct timed_rank *r = timed_rank_of(c);
    struct timed_world *w = r->world;
    struct timed_post *post = c->post;
    uint32_t ring = w->config.ring;
    timed_sync(c);
    uint64_t room = post->posted < ring ? 0 : post->seen[post->posted % ring];
    uint64_t start = c->at;
    if (room > c->at) { /* the ring is full until then */
        timed_spend(c, TIMED_PROXY, (double)(room - c->at));
        timed_sync(c);
        timed_record(c, mk_event_what(MK_EV_WAIT, MK_CAUSE_BACKPRESSURE, 0xffffffu), start);
    }
    double posted = (double)c->at, seen = network_through_proxy(w, r, posted),
           through = seen + w->machine->proxy_command, leaves = network_out(w, r, through, bytes);
    uint32_t message = network_log(c, to, bytes, flag, seen, through);
    post->seen[post->posted++ % ring] = (uint64_t)ceil(seen);
    post->waiting++;
    struct timed_flight f = {.rank = to,
                             .flag = flag,
                             .value = c->cta.epoch,
                             .role = c->cta.role,
                             .poster = c->number,
                             .message = message,
                             .bytes = bytes,
                             .path = c->path};
    uint64_t due = (uint64_t)ceil(leaves);
    f.path.parts[TIMED_PROXY] += (float)(through - posted);
    f.path.parts[TIMED_NETWORK] += (float)((double)due - through);
    f.path.roles[c->cta.role] += (float)((double)due - posted);
    timed_raise(w, &f, due);
    timed_record(c, mk_event_what(MK_EV_COMMAND, MK_CAUSE_NONE, post->posted - 1), c->at);
    return 0;
}

void timed_put_leaves(struct timed_world *w, struct timed_flight *f)
{
    const struct mk_machine *m = w->machine;
    struct timed_cta *c = &w->ctas[f->poster];
    struct timed_rank *r = timed_rank_of(c), *peer = &w->ranks[f->rank];
    double now = (double)w->queue.now, bytes = (double)f->bytes;
    double out = m->nic_rate > 0 ? bytes / (m->nic_rate * r->slow.nic) : 0,
           in = m->nic_rate > 0 ? bytes / (m->nic_rate * peer->slow.nic) : 0;
    peer->nic_in = network_later(peer->nic_in, now) + network_later(in, m->nic_message);
    double landed = network_later(now + out, peer->nic_in) + m->nic_latency * timed_scatter(w),
           arrives = network_host(m, &peer->host_in, landed, bytes), flagged = arrives;
    if (m->receive > 0) {
        peer->receive_free = network_later(peer->receive_free, arrives) + m->receive;
        flagged = peer->receive_free;
    }
    uint64_t complete = (uint64_t)ceil(arrives + m->nic_latency + m->proxy_completion),
             raised = (uint64_t)ceil(flagged + m->nic_flag);
    peer->network_in += bytes;
    f->poster = TIMED_NONE;
    f->path.parts[TIMED_NETWORK] += (float)(raised - w->queue.now);
    f->path.roles[f->role] += (float)(raised - w->queue.now);
    timed_raise(w, f, raised);
    if (f->message != TIMED_NONE)
        r->messages.messages[f->message].completed = complete;
    if (c->post->completed < complete)
        c->post->completed = complete;
    if (!--c->post->waiting && c->post->drains) {
        c->post->drains = 0;
        timed_wake(c);
    }
}

int timed_drain(struct timed_cta *c)
{
    struct timed_post *post = c->post;
    uint64_t start = c->at;
    if (!post)
        return 0;
    timed_sync(c);
    if (post->waiting) {
        post->drains = 1;
        timed_stand(c);
    }
    uint64_t done = post->completed > c->at ? post->completed : c->at;
    c->path.parts[TIMED_NETWORK] += (float)(done - start);
    c->path.roles[c->cta.role] += (float)(done - start);
    c->at = done;
    timed_record(c, mk_event_what(MK_EV_WAIT, MK_CAUSE_NETWORK, 0xffffffu), start);
    return 0;
}
