/* A communicator's own thread. It finds ranks that call differently, and ends a GPU's waits once
 * the job has failed, also where nobody waits in mk_wait.
 *
 * A launch pays nothing for it. CTAs show long waits in their progress words, and a flag belongs to
 * one plan, so the words say which launch a rank stands in; graph replays show it too. A rank that
 * stands, in a launch or in a collective call, says so to rank 0, with a count for each plan that
 * grows as launches of it end here. Rank 0 compares any two such records.
 *
 * Ranks are told apart from late ones without a clock. All ranks make the same calls in one order.
 * Let A stand in a launch of plan Y and B in one of X. If X comes first in the order, A has ended
 * that launch of X, and its count for X is above B's. If Y comes first, B's count for Y is above
 * A's. If neither is, the two orders differ. A rank that stands in a collective call has ended its
 * launches, so its count for Y tells in the same way; the number of collectives begun says that the
 * other rank has not come to the call yet. Records may be old: what they say stays true. */
#include "core/base/clock.h"
#include "core/comm/comm_parts.h"
#include "core/cta/event.h"
#include "core/ops/op.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

/* How often the thread looks, and how many looks must show the same before a rank is said to
 * stand. */
#define LOOK_NS 100000000ull
#define LOOKS 3u

/* Where a rank stands. */
struct stand {
    uint32_t call; /* enum comm_call; COMM_CALL_NONE: it goes on */
    uint32_t op;
    uint32_t plan;     /* its id; a launch's */
    uint32_t meetings; /* collectives that the rank has begun */
    uint64_t epoch;    /* a launch's */
};

struct comm_watch {
    struct mk_comm *comm;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int quit, ended; /* ended: waits of the device */
    struct stand seen;
    uint32_t looks; /* that showed `seen` */
    uint64_t left[COMM_MOST_PLANS];
    uint8_t record[BOOTSTRAP_STAND_BYTES];
};

/* With plans_lock held: the launch that a CTA waits in, by its progress word. */
static int comm_watch_launch(const struct mk_comm *comm, uint64_t word, struct stand *s)
{
    struct mk_event e = {.what = (uint32_t)word};
    uint32_t flag = mk_event_argument(&e);
    if (mk_event_kind_of(&e) != MK_EV_WAIT)
        return 0;
    for (uint32_t i = 0; i < comm->plan_count; i++) {
        const struct mk_plan *p = comm->plans[i];
        if (!p || flag - p->flag_base >= p->flags)
            continue;
        *s = (struct stand){
            .call = COMM_CALL_LAUNCH, .op = p->problem.op, .plan = p->id, .epoch = word >> 32};
        return 1;
    }
    return 0;
}

/* With plans_lock held. */
static struct stand comm_watch_look(struct mk_comm *comm)
{
    uint32_t calling = __atomic_load_n(&comm->calling, __ATOMIC_ACQUIRE);
    struct stand s = {.call = COMM_CALL_NONE, .op = MK_OPS};
    int works = 0;
    for (uint32_t i = 0; s.call == COMM_CALL_NONE && comm->progress && i < comm->progress_count;
         i++) {
        uint64_t word = __atomic_load_n(&comm->progress[i], __ATOMIC_RELAXED);
        works |= (uint32_t)word != 0;
        comm_watch_launch(comm, word, &s);
    }
    if (s.call == COMM_CALL_NONE && !works) {
        s.call = calling & 0xff;
        s.op = calling >> 8;
    }
    s.meetings = bootstrap_meetings(comm->bootstrap);
    return s;
}

static int comm_watch_same(const struct stand *a, const struct stand *b)
{
    return a->call == b->call && a->op == b->op && a->plan == b->plan && a->epoch == b->epoch &&
           a->meetings == b->meetings;
}

/* ---- records ---- */

enum { RECORD_HEAD = 28, RECORD_PLAN = 12 };
_Static_assert(RECORD_HEAD + RECORD_PLAN * COMM_MOST_PLANS <= BOOTSTRAP_STAND_BYTES,
               "a record holds a count of each plan");

static uint64_t comm_watch_get(const uint8_t *in, unsigned bytes)
{
    uint64_t value = 0;
    memcpy(&value, in, bytes);
    return value;
}

static struct stand comm_watch_stand_of(const uint8_t *record)
{
    struct stand s;
    memcpy(&s, record, sizeof s);
    return s;
}

/* With plans_lock held: the record's bytes. */
static size_t comm_watch_write(struct comm_watch *w)
{
    struct mk_comm *comm = w->comm;
    uint32_t count = 0;
    _Static_assert(sizeof w->seen <= RECORD_HEAD - 4, "and its count");
    memcpy(w->record, &w->seen, sizeof w->seen);
    for (uint32_t i = 0; i < comm->plan_count; i++) {
        if (!comm->plans[i])
            continue;
        uint8_t *at = w->record + RECORD_HEAD + (size_t)RECORD_PLAN * count++;
        memcpy(at, &comm->plans[i]->id, 4);
        memcpy(at + 4, &w->left[i], 8);
    }
    memcpy(w->record + RECORD_HEAD - 4, &count, 4);
    return RECORD_HEAD + (size_t)RECORD_PLAN * count;
}

/* A rank's count for a plan; 0: it does not have the plan. */
static int comm_watch_count(const uint8_t *record, uint32_t plan, uint64_t *count)
{
    uint64_t plans = comm_watch_get(record + RECORD_HEAD - 4, 4);
    for (uint64_t i = 0; i < plans; i++) {
        const uint8_t *at = record + RECORD_HEAD + RECORD_PLAN * i;
        if (comm_watch_get(at, 4) == plan) {
            *count = comm_watch_get(at + 4, 8);
            return 1;
        }
    }
    return 0;
}

/* Whether the rank of record `b` has not come to the end of the launch in which `a` stands. */
static int comm_watch_lacks(const uint8_t *b, const uint8_t *a)
{
    struct stand s = comm_watch_stand_of(a);
    uint64_t here, there;
    return comm_watch_count(a, s.plan, &here) && comm_watch_count(b, s.plan, &there) &&
           there <= here;
}

/* Whether the two call in different orders; `a` stands in a launch. */
static int comm_watch_differ(const uint8_t *a, const uint8_t *b)
{
    struct stand of_a = comm_watch_stand_of(a), of_b = comm_watch_stand_of(b);
    if (of_a.call != COMM_CALL_LAUNCH || of_b.call == COMM_CALL_NONE || !comm_watch_lacks(b, a))
        return 0;
    return of_b.call == COMM_CALL_LAUNCH ? of_a.plan != of_b.plan && comm_watch_lacks(a, b)
                                         : of_a.meetings < of_b.meetings;
}

/* ---- rank 0 ---- */

static const struct mk_plan *comm_watch_plan(const struct mk_comm *comm, uint32_t id)
{
    for (uint32_t i = 0; i < comm->plan_count; i++)
        if (comm->plans[i] && comm->plans[i]->id == id)
            return comm->plans[i];
    return NULL;
}

/* "launches ag_gemm 8,16,32": what the rank does that stands there. */
static void comm_watch_say(const struct mk_comm *comm, const struct stand *s, char *text,
                           size_t size)
{
    static const char *const calls[COMM_CALLS] = {
        [COMM_CALL_DESTROY] = "destroys a plan of %s",
        [COMM_CALL_PLAN] = "makes another plan, of %s",
        [COMM_CALL_TRACE] = "begins or ends a trace",
        [COMM_CALL_CLOSE] = "closes its communicator",
    };
    char numbers[OP_PROBLEM_TEXT];
    const struct mk_plan *p = comm_watch_plan(comm, s->plan);
    text[0] = '\0';
    if (s->call == COMM_CALL_LAUNCH)
        mk_append(text, size, "launches %s %s", plan_op_name(s->op),
                  p ? op_problem_text(&p->problem, numbers) : "");
    else if (s->call < COMM_CALLS && calls[s->call])
        mk_append(text, size, calls[s->call], plan_op_name(s->op));
}

static void comm_watch_fail(struct mk_comm *comm, uint32_t a, const uint8_t *of_a, uint32_t b,
                            const uint8_t *of_b)
{
    struct stand here = comm_watch_stand_of(of_a), there = comm_watch_stand_of(of_b);
    struct mk_failure f;
    memset(&f, 0, sizeof f);
    f.kind = MK_FAIL_ORDER;
    f.rank = a;
    f.producer = b;
    f.op = f.cta = f.role = f.flag = f.chunk = f.relay = UINT32_MAX;
    pthread_mutex_lock(&comm->plans_lock);
    comm_watch_say(comm, &here, f.what, sizeof f.what);
    comm_watch_say(comm, &there, f.detail, sizeof f.detail);
    if (here.call == there.call) {
        const struct mk_plan *p = comm_watch_plan(comm, here.plan),
                             *q = comm_watch_plan(comm, there.plan);
        const char *name = p && q ? comm_fields_difference(comm, &p->problem, &q->problem) : NULL;
        if (name)
            mk_append(f.detail, sizeof f.detail, " (another %s)", name);
    }
    pthread_mutex_unlock(&comm->plans_lock);
    bootstrap_fail(comm->bootstrap, &f);
}

/* Compares the records that have come. */
static void comm_watch_compare(struct mk_comm *comm)
{
    uint32_t world = mk_world(&comm->topo), first = 0, second = 0;
    uint8_t **records = calloc(world, sizeof *records);
    int found = 0;
    for (uint32_t r = 0; records && r < world; r++) {
        size_t bytes;
        uint8_t *record = bootstrap_stand_of(comm->bootstrap, r, &bytes);
        if (record &&
            (bytes < RECORD_HEAD ||
             bytes != RECORD_HEAD + RECORD_PLAN * comm_watch_get(record + RECORD_HEAD - 4, 4))) {
            free(record);
            record = NULL;
        }
        records[r] = record;
        for (uint32_t o = 0; record && !found && o < r; o++) {
            if (!records[o])
                continue;
            found = comm_watch_differ(records[o], record) || comm_watch_differ(record, records[o]);
            first = o;
            second = r;
        }
    }
    if (found && comm_watch_differ(records[first], records[second]))
        comm_watch_fail(comm, first, records[first], second, records[second]);
    else if (found)
        comm_watch_fail(comm, second, records[second], first, records[first]);
    for (uint32_t r = 0; records && r < world; r++)
        free(records[r]);
    free(records);
}

/* ---- the thread ---- */

/* Says where this rank stands, if it does. */
static void comm_watch_turn(struct comm_watch *w)
{
    struct mk_comm *comm = w->comm;
    size_t bytes = 0;
    pthread_mutex_lock(&comm->plans_lock);
    struct stand now = comm_watch_look(comm);
    w->looks = comm_watch_same(&now, &w->seen) ? w->looks + 1 : 1;
    w->seen = now;
    if (now.call != COMM_CALL_NONE && w->looks == LOOKS && comm->exec->left &&
        !comm->exec->left(comm, w->left)) {
        now = comm_watch_look(comm);
        if (comm_watch_same(&now, &w->seen)) /* so the counts belong to it */
            bytes = comm_watch_write(w);
    }
    pthread_mutex_unlock(&comm->plans_lock);
    if (bytes)
        bootstrap_stand(comm->bootstrap, w->record, bytes);
    if (comm->topo.rank == 0 && bootstrap_stands(comm->bootstrap))
        comm_watch_compare(comm);
}

static void *comm_watch_main(void *argument)
{
    struct comm_watch *w = argument;
    struct mk_comm *comm = w->comm;
    pthread_mutex_lock(&w->lock);
    while (!w->quit) {
        mk_cond_wait_until(&w->changed, &w->lock, mk_now_ns() + LOOK_NS);
        if (w->quit)
            break;
        pthread_mutex_unlock(&w->lock);
        if (!bootstrap_failure(comm->bootstrap, NULL)) {
            comm_watch_turn(w);
        } else if (!w->ended && comm->exec->end_waits) {
            comm->exec->end_waits(comm);
            w->ended = 1;
        }
        pthread_mutex_lock(&w->lock);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

int comm_watch_start(struct mk_comm *comm)
{
    if (mk_world(&comm->topo) == 1)
        return 0;
    struct comm_watch *w = calloc(1, sizeof *w);
    if (!w)
        return comm_refuse(comm, -ENOMEM, "out of memory");
    w->comm = comm;
    pthread_mutex_init(&w->lock, NULL);
    mk_cond_init(&w->changed);
    sigset_t all, before; /* signals are the program's own affair */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int result = -pthread_create(&w->thread, NULL, comm_watch_main, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (result) {
        pthread_mutex_destroy(&w->lock);
        pthread_cond_destroy(&w->changed);
        free(w);
        return comm_refuse(comm, result, "cannot start the communicator's thread: %s",
                           strerror(-result));
    }
    comm->watch = w;
    return 0;
}

void comm_watch_stop(struct mk_comm *comm)
{
    struct comm_watch *w = comm->watch;
    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    w->quit = 1;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    pthread_mutex_destroy(&w->lock);
    pthread_cond_destroy(&w->changed);
    free(w);
    comm->watch = NULL;
}
