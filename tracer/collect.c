/* Brings the ranks' parts together at rank 0 and has them stored. */
#include "tracer/trace.h"
#include "core/base/clock.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/comm/comm.h"
#include "core/base/scoped.h"
#include "core/base/sentence.h"
#include "tracer/store.h"

#define SAMPLES_AFTER 64 /* clock samples taken when the run is over */

/* Of all ranks together, in one gather: a wait is bounded by the time that so many bytes take, and
 * not by that of all. */
#define ROUND_BYTES ((uint64_t)4 << 20)

/* How often rank 0, while it stores, says that it still does; less often where waits are bounded by
 * less than four of them. */
#define TICK_NS 500000000ull

int trace_sample_clock(struct mk_comm *comm, struct trace_samples *samples, uint32_t count)
{
    uint32_t room = TRACE_MAX_SAMPLES - samples->count;
    count = count < room ? count : room;
    MK_FREED uint64_t *columns = malloc(3 * (size_t)count * sizeof *columns + 1);
    if (!columns)
        return -ENOMEM;
    int rc = bootstrap_clock(comm->bootstrap, count, columns, columns + count, columns + 2 * count);
    for (uint32_t i = 0; !rc && comm->topo.rank && i < count; i++)
        samples->samples[samples->count++] =
            (struct trace_clock_sample){columns[i], columns[count + i], columns[2 * count + i]};
    return rc;
}

/* Rank 0: parses what came in, one part a rank. */
static int collect_take_parts(const char *all, const uint64_t *lengths, uint32_t ranks,
                              const struct trace_run *run, const char *path, char *error,
                              size_t size)
{
    MK_FREED struct trace_part *parts = calloc(ranks, sizeof *parts);
    int rc = parts ? 0 : -ENOMEM;
    if (rc)
        snprintf(error, size, "the trace could not be merged: out of memory");
    size_t at = 0;
    for (uint32_t r = 0; !rc && r < ranks; r++) {
        rc = part_parse(&parts[r], all + at, lengths[r]);
        if (rc)
            snprintf(error, size, "the trace could not be merged: rank %u sent %s", r,
                     lengths[r] ? "a part that is garbled" : "none");
        at += lengths[r];
    }
    rc = rc ? rc : store_parts(parts, ranks, run, path, error, size);
    for (uint32_t r = 0; parts && r < ranks; r++)
        part_free(&parts[r]);
    return rc;
}

/* ---- every rank's bytes to rank 0 ---- */

#define NO_ROOM UINT64_MAX /* rank 0's length: it cannot take any */

/* Rank 0: what a round brought, to where each rank's part is put together. 0, or -EPROTO where it
 * is not what was announced. */
static int collect_append(char *all, const uint64_t *lengths, uint32_t ranks, uint64_t at,
                          const char *some, const size_t *got, uint64_t piece)
{
    for (uint32_t r = 0; r < ranks; r++) {
        uint64_t left = lengths[r] > at ? lengths[r] - at : 0;
        if (got[r] != (left < piece ? left : piece))
            return -EPROTO;
        if (got[r])
            memcpy(all + at, some, got[r]);
        some += got[r];
        all += lengths[r];
    }
    return 0;
}

/* Gathers `bytes` of every rank at rank 0, there end to end in *all (malloc'd), with their sizes in
 * lengths[ranks]. A rank that has none takes part, and rank 0 does where it has no memory for them.
 * 0 or -errno. */
static int collect_gather(struct mk_comm *comm, const char *blob, uint64_t bytes, char **all,
                          uint64_t *lengths)
{
    uint32_t ranks = mk_world(&comm->topo), root = comm->topo.rank == 0;
    MK_FREED size_t *got = root ? calloc(ranks, sizeof *got) : NULL;
    uint64_t mine = root && !got ? NO_ROOM : bytes, most = 0, total = 0;
    uint64_t piece = mk_round_up(ROUND_BYTES / ranks, 4096);
    int rc = bootstrap_allgather(comm->bootstrap, &mine, lengths, sizeof mine);
    if (!rc && lengths[0] == NO_ROOM)
        return root ? -ENOMEM : 0;
    for (uint32_t r = 0; r < ranks && !rc; r++) {
        total += lengths[r];
        most = lengths[r] > most ? lengths[r] : most;
    }
    *all = root && !rc ? malloc(total + 1) : NULL;
    int wrong = root && !*all ? -ENOMEM : 0;
    for (uint64_t at = 0; at < most && !rc; at += piece) {
        uint64_t from = at < bytes ? at : bytes, left = bytes - from;
        MK_FREED void *some = NULL;
        rc = bootstrap_gather(comm->bootstrap, blob ? blob + from : NULL,
                              left < piece ? left : piece, &some, got);
        __atomic_fetch_add(&comm->beats, 1, __ATOMIC_RELAXED);
        if (!rc && root && !wrong)
            wrong = collect_append(*all, lengths, ranks, at, some, got, piece);
    }
    return rc ? rc : wrong;
}

/* ---- storing ---- */

struct storing {
    pthread_mutex_t lock;
    pthread_cond_t ended;
    int over, result;
    const char *all, *path;
    const uint64_t *lengths;
    uint32_t ranks;
    const struct trace_run *run;
    char *error;
    size_t size;
};

static void *store(void *argument)
{
    struct storing *s = argument;
    int result =
        collect_take_parts(s->all, s->lengths, s->ranks, s->run, s->path, s->error, s->size);
    pthread_mutex_lock(&s->lock);
    s->result = result;
    s->over = 1;
    pthread_cond_signal(&s->ended);
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

static int collect_is_over(struct storing *s, uint64_t tick_ns)
{
    uint64_t until = mk_now_ns() + tick_ns;
    pthread_mutex_lock(&s->lock);
    while (!s->over && mk_cond_wait_until(&s->ended, &s->lock, until) != ETIMEDOUT)
        ;
    int over = s->over;
    pthread_mutex_unlock(&s->lock);
    return over;
}

/* A thread of rank 0 stores the trace, and this one tells the other ranks now and then that it
 * still does: storing may take longer than they wait for any rank. `flags` has room for all
 * ranks. */
static int collect_store_and_tell(struct mk_comm *comm, struct storing *s, uint64_t *flags)
{
    uint64_t bound = comm->config.timeout_ns ? comm->config.timeout_ns / 4 : TICK_NS, over = 0;
    pthread_t thread;
    sigset_t all, before;
    pthread_mutex_init(&s->lock, NULL);
    mk_cond_init(&s->ended);
    sigfillset(&all); /* signals are the program's own affair */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int alone = s->over || pthread_create(&thread, NULL, store, s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (alone && !s->over)
        store(s);
    for (int rc = 0; !over && !rc;) {
        over = (uint64_t)collect_is_over(s, bound < TICK_NS ? bound : TICK_NS);
        rc = bootstrap_allgather(comm->bootstrap, &over, flags, sizeof over);
        __atomic_fetch_add(&comm->beats, 1, __ATOMIC_RELAXED);
    }
    if (!alone)
        pthread_join(thread, NULL);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->ended);
    return s->result;
}

/* Until rank 0 has stored. */
static int collect_wait_for_store(struct mk_comm *comm, uint64_t *flags)
{
    const uint64_t nothing = 0;
    int rc;
    do
        rc = bootstrap_allgather(comm->bootstrap, &nothing, flags, sizeof nothing);
    while (!rc && !flags[0]);
    return rc;
}

int trace_collect(struct mk_comm *comm, const struct trace_run *run, const char *path, char *error,
                  size_t size)
{
    MK_FREED struct trace_samples *clock = calloc(1, sizeof *clock);
    struct trace_part part;
    MK_FREED void *blob = NULL;
    MK_FREED char *all = NULL;
    size_t bytes = 0;
    uint32_t ranks = mk_world(&comm->topo);
    MK_FREED uint64_t *lengths = calloc(2ull * ranks, sizeof *lengths);
    error[0] = 0;
    if (clock && run->host_clock)
        *clock = *run->host_clock;
    int mine = clock && lengths ? 0 : -ENOMEM;
    if (!mine) {
        mine = trace_sample_clock(comm, clock, SAMPLES_AFTER);
        if (mine)
            return mk_fail(mine, error, size, "the trace's clock samples failed: %s",
                           strerror(-mine));
        mine = part_of_comm(&part, comm, run, clock);
        if (!mine) {
            mine = part_pack(&part, &blob, &bytes);
            part_free(&part);
        }
    }
    /* A rank without memory sends an empty part, so that the others do not wait for it. */
    int rc = lengths ? collect_gather(comm, blob, bytes, &all, lengths) : -ENOMEM;
    if (rc || mine) {
        snprintf(error, size, "the trace could not be gathered: %s", strerror(rc ? -rc : -mine));
        mine = rc ? rc : mine;
    }
    if (!lengths)
        return mine;
    if (comm->topo.rank) {
        rc = collect_wait_for_store(comm, lengths + ranks);
        if (rc && !mine)
            snprintf(error, size, "rank 0 did not say that the trace is stored: %s", strerror(-rc));
        mine = mine ? mine : rc;
    } else {
        struct storing s = {.all = all,
                            .path = path,
                            .lengths = lengths,
                            .ranks = ranks,
                            .run = run,
                            .error = error,
                            .size = size};
        /* there is nothing to store; the others wait for a word all the same */
        if (mine || !path) {
            s.over = 1;
            s.result = mine;
        }
        mine = collect_store_and_tell(comm, &s, lengths + ranks);
    }
    return mine;
}

int trace_collect_local(struct mk_comm *const *comms, uint32_t count, const struct trace_run *run,
                        const char *path, char *error, size_t size)
{
    MK_FREED struct trace_part *parts = calloc(count, sizeof *parts);
    int rc = parts ? 0 : -ENOMEM;
    error[0] = 0;
    for (uint32_t r = 0; !rc && r < count; r++)
        rc = part_of_comm(&parts[r], comms[r], run, NULL);
    if (rc)
        snprintf(error, size, "the trace could not be merged: out of memory");
    else
        rc = store_parts(parts, count, run, path, error, size);
    for (uint32_t r = 0; parts && r < count; r++)
        part_free(&parts[r]);
    return rc;
}
