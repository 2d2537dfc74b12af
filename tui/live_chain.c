/* Chains of waits: from a CTA's progress word to the rank that all of them wait for in the end. */
#include "tui/live.h"
#include "core/base/scoped.h"
#include "core/base/sentence.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tracer/reader.h"
#include "tui/words.h"

int live_halted(const struct live_rank *r)
{
    return r->state == LIVE_STOPPED || r->state == LIVE_SILENT || r->state == LIVE_GONE;
}

const char *live_state_text(const struct live_job *job, uint32_t rank, char *out, size_t size)
{
    const struct live_rank *r = &job->ranks[rank];
    char length[32];
    switch (r->state) {
    case LIVE_STOPPED:
        snprintf(out, size, "is stopped (process %d; SIGCONT lets it go on)", r->header.pid);
        break;
    case LIVE_SILENT:
        snprintf(out, size, "has not run for %s (process %d)",
                 words_length(length, (double)(job->now - r->header.beat)), r->header.pid);
        break;
    case LIVE_GONE:
        snprintf(out, size, "is gone: its process %d died", r->header.pid);
        break;
    case LIVE_ENDED:
        snprintf(out, size, "has ended");
        break;
    case LIVE_ABSENT:
        snprintf(out, size, "is not seen from this host");
        break;
    default:
        snprintf(out, size, "%s (launch %lu of %lu)", live_phase_name(r->header.phase),
                 r->header.launch < r->header.launches ? r->header.launch + 1 : r->header.launch,
                 r->header.launches);
    }
    return out;
}

int live_class(const struct live_doing *d)
{
    return span_class_of(d->kind, d->cause);
}

static void live_chain_add(struct live_chain *c, int rank, int cta, int alarm, const char *format,
                           ...) __attribute__((format(printf, 5, 6)));
static void live_chain_add(struct live_chain *c, int rank, int cta, int alarm, const char *format,
                           ...)
{
    if (c->count == LIVE_STEPS)
        return;
    struct live_step *s = &c->step[c->count++];
    va_list args;
    va_start(args, format);
    vsnprintf(s->text, sizeof s->text, format, args);
    va_end(args);
    s->rank = rank;
    s->cta = cta;
    s->alarm = alarm;
}

static void live_chain_add_cta(struct live_chain *c, int rank, int cta, const struct live_doing *d)
{
    char length[32];
    const char *name = plan_role_name(d->role);
    words_length(length, (double)d->ns);
    if (d->kind == MK_EV_WAIT)
        live_chain_add(c, rank, cta, 0, "rank %d %s CTA %d has waited %s for %s (launch %u)", rank,
                       name, cta, length, d->text, d->epoch);
    else if (d->kind == MK_EV_NONE)
        live_chain_add(c, rank, cta, 0, "rank %d %s CTA %d waits for nothing (launch %u)", rank,
                       name, cta, d->epoch);
    else
        live_chain_add(c, rank, cta, 1, "rank %d %s CTA %d is at work: %s, %s, for %s", rank, name,
                       cta, span_look[live_class(d)].name, d->text, length);
}

/* The CTA of a rank that tells best why it does not deliver: the one that waits longest, of those
 * in launch `epoch` or before it; communication before compute where they began together, as
 * compute's waits are the echo. -1: none waits. */
static int live_chain_blocked_cta(const struct live_job *job, uint32_t rank, uint32_t epoch,
                                  int64_t but)
{
    const struct live_rank *r = &job->ranks[rank];
    uint64_t longest = 0;
    int best = -1;
    for (uint32_t i = 0; i < r->header.ctas; i++) {
        struct live_doing d = live_describe(job, rank, i);
        if (d.kind != MK_EV_WAIT || d.epoch > epoch || i == but)
            continue;
        uint64_t ns = d.ns + (d.role == MK_COMPUTE ? 0 : 2 * LIVE_PERIOD_NS);
        if (best < 0 || ns > longest) {
            best = (int)i;
            longest = ns;
        }
    }
    return best;
}

static int live_chain_working_cta(const struct live_job *job, uint32_t rank)
{
    for (uint32_t i = 0; i < job->ranks[rank].header.ctas; i++) {
        struct live_doing d = live_describe(job, rank, i);
        if (live_class(&d) != SPAN_IDLE && d.kind != MK_EV_WAIT)
            return (int)i;
    }
    return -1;
}

static int live_chain_waits_for(const struct live_job *job, uint32_t rank, int64_t flag,
                                uint32_t epoch)
{
    for (uint32_t i = 0; i < job->ranks[rank].header.ctas; i++) {
        struct live_doing d = live_describe(job, rank, i);
        if (d.kind == MK_EV_WAIT && d.flag == flag && d.epoch == epoch)
            return (int)i;
    }
    return -1;
}

/* Of the ranks that this one's puts go to, one that does not run; -1: none. */
static int live_chain_halted_peer(const struct live_job *job, uint32_t rank)
{
    const struct mk_topo *t = &job->ranks[rank].header.problem.topo;
    for (uint32_t i = mk_local_of(t, rank); i < job->world; i += t->gpus)
        if (i != rank && live_halted(&job->ranks[i]))
            return (int)i;
    return -1;
}

/* The rank to ask next about a wait: the one that hands the chunk on, where that does not run or
 * misses it too, else the chunk's producer. */
static int live_chain_next_rank(const struct live_job *job, uint32_t rank,
                                const struct live_doing *d)
{
    if (d->flag < 0)
        return live_chain_halted_peer(job, rank);
    if (d->relay >= 0 && live_halted(&job->ranks[d->relay]))
        return (int)d->relay;
    if (d->relay >= 0 && live_chain_waits_for(job, (uint32_t)d->relay, d->flag, d->epoch) >= 0)
        return (int)d->relay;
    return (int)d->producer;
}

/* A rank that should have delivered for `epoch`, and has no CTA that waits. */
static void live_chain_end_at(struct live_chain *c, const struct live_job *job, int rank,
                              uint32_t epoch)
{
    const struct live_rank *r = &job->ranks[rank];
    char state[96];
    uint32_t newest = 0;
    int cta = live_chain_working_cta(job, (uint32_t)rank);
    for (uint32_t i = 0; i < r->header.ctas; i++) {
        uint32_t epoch_of = live_describe(job, (uint32_t)rank, i).epoch;
        newest = epoch_of > newest ? epoch_of : newest;
    }
    if (cta >= 0) {
        struct live_doing d = live_describe(job, (uint32_t)rank, (uint32_t)cta);
        live_chain_add_cta(c, rank, cta, &d);
    } else if (newest < epoch) {
        live_chain_add(c, rank, -1, 1, "rank %d has not begun launch %u: it %s", rank, epoch,
                       live_state_text(job, (uint32_t)rank, state, sizeof state));
    } else {
        live_chain_add(c, rank, -1, 1,
                       "rank %d has done its part: what is missing lies with its NIC or proxy, or "
                       "is on its way",
                       rank);
    }
}

void live_chain(const struct live_job *job, uint32_t rank, uint32_t cta, struct live_chain *out)
{
    MK_FREED unsigned char *seen = calloc(job->world, 1);
    uint32_t at = rank;
    int at_cta = (int)cta, own = 0;
    char state[96];
    memset(out, 0, sizeof *out);
    out->root = -1;
    while (seen && out->count < LIVE_STEPS - 2) {
        struct live_doing d = live_describe(job, at, (uint32_t)at_cta);
        live_chain_add_cta(out, (int)at, at_cta, &d);
        if (d.kind != MK_EV_WAIT)
            break;
        out->root = (int)at;
        int next = live_chain_next_rank(job, at, &d);
        if (next < 0) {
            out->step[out->count - 1].alarm = 1;
            break;
        }
        if (next == (int)at) { /* its own CTAs: one of them may wait for another rank */
            int other = own ? -1 : live_chain_blocked_cta(job, at, d.epoch, at_cta);
            if (other >= 0) {
                own = 1;
                at_cta = other;
                continue;
            }
            live_chain_end_at(out, job, next, d.epoch);
            break;
        }
        own = 0;
        seen[at] = 1;
        out->root = next;
        if (job->ranks[next].state != LIVE_RUNS) {
            live_chain_add(out, next, -1, 1, "rank %d %s", next,
                           live_state_text(job, (uint32_t)next, state, sizeof state));
            break;
        }
        if (seen[next]) {
            live_chain_add(out, next, -1, 1, "which waits itself, as above: a circle");
            break;
        }
        int same =
            d.relay == next ? live_chain_waits_for(job, (uint32_t)next, d.flag, d.epoch) : -1;
        at = (uint32_t)next;
        at_cta = same >= 0 ? same : live_chain_blocked_cta(job, at, d.epoch, -1);
        if (at_cta < 0) {
            live_chain_end_at(out, job, next, d.epoch);
            break;
        }
    }
}

static void live_chain_say(const struct live_job *job, struct live_verdict *v)
{
    char state[96], length[32];
    if (v->waiting && v->root >= 0) {
        snprintf(v->text, sizeof v->text,
                 "rank %d %s: %d of %d CTAs have waited up to %s, %s in the end for it", v->root,
                 live_state_text(job, (uint32_t)v->root, state, sizeof state), v->waiting, v->ctas,
                 words_length(length, (double)v->longest),
                 v->at_root == v->waiting ? "all" : "most");
    } else if (v->halted) {
        int ready = 0, first = -1;
        for (uint32_t i = 0; i < job->world; i++) {
            ready += job->ranks[i].state == LIVE_RUNS && job->ranks[i].header.phase == LIVE_MEETS;
            if (first < 0 && live_halted(&job->ranks[i]))
                first = (int)i;
        }
        snprintf(v->text, sizeof v->text, "rank %d %s", first,
                 live_state_text(job, (uint32_t)first, state, sizeof state));
        if (ready)
            mk_append(v->text, sizeof v->text, "; %d rank%s ready and wait%s", ready,
                      ready > 1 ? "s are" : " is", ready > 1 ? "" : "s");
    } else {
        snprintf(v->text, sizeof v->text, "no CTA has waited for %s: the job goes on",
                 words_length(length, LIVE_LONG_NS));
    }
}

void live_diagnose(const struct live_job *job, struct live_verdict *v)
{
    MK_FREED int *votes = calloc(job->world, sizeof *votes);
    memset(v, 0, sizeof *v);
    v->rank = v->cta = v->root = -1;
    for (uint32_t i = 0; i < job->world && votes; i++) {
        const struct live_rank *r = &job->ranks[i];
        v->halted += live_halted(r);
        if (r->state == LIVE_ABSENT || r->state == LIVE_ENDED)
            continue;
        v->ctas += (int)r->header.ctas;
        /* A rank that does not run waits for nothing: its words are old. */
        for (uint32_t k = 0; k < r->header.ctas && r->state == LIVE_RUNS; k++) {
            struct live_doing d = live_describe(job, i, k);
            struct live_chain c;
            if (d.kind != MK_EV_WAIT || d.ns < LIVE_LONG_NS)
                continue;
            v->waiting++;
            if (d.ns > v->longest) {
                v->longest = d.ns;
                v->rank = (int)i;
                v->cta = (int)k;
            }
            live_chain(job, i, k, &c);
            if (c.root >= 0 && ++votes[c.root] > v->at_root) {
                v->at_root = votes[c.root];
                v->root = c.root;
            }
        }
    }
    live_chain_say(job, v);
}
