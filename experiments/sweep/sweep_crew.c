/* A sweep under a launcher: as many processes as the job has ranks, each of which runs its rank of
 * every point. Rank 0 says the number of the job that comes next, and has the results. Each rank
 * makes the job's command itself, from the sweep that it has read: no command crosses the network.
 */
#include "experiments/sweep/sweep.h"
#include "core/comm/bootstrap.h"
#include "core/base/digest.h"
#include "core/comm/launcher.h"
#include "core/base/scoped.h"
#include "core/base/sentence.h"
#include "experiments/common/launched.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PORTS 40u /* that jobs take in turn, so that none meets the one before it */
#define JOIN_NS 30000000000ull
#define MARGIN_NS 60000000000ull

/* What all do next, as rank 0 says it. */
enum crew_kind { CREW_JOB = 1, CREW_END };
struct crew_order {
    uint32_t kind, mode, point, repeat, port;
};

static struct {
    struct bootstrap *bootstrap; /* NULL: no launcher, or one rank */
    struct launcher launcher;
    uint32_t jobs;
    struct crew_order *orders;   /* [world] */
    struct sweep_ended *endings; /* [world] */
} crew;

/* Of all commands, and of how often and how long they run. */
static uint64_t sweep_crew_digest(const struct sweep *s, struct sweep_command *c)
{
    const uint64_t numbers[] = {s->point_count, s->repeats, s->seed, s->limit_ns};
    uint64_t digest = mk_digest(MK_DIGEST, numbers, sizeof numbers);
    for (uint32_t i = 0; i < s->point_count; i++) {
        sweep_make_command(c, &s->points[i], SWEEP_MEASURE, s->seed, "");
        digest = mk_digest(digest, c->text, c->used);
    }
    return digest;
}

/* Whether all ranks have read what rank 0 has. */
static int sweep_crew_compare(const struct sweep *s, char *error, size_t size)
{
    MK_FREED struct sweep_command *c = calloc(1, sizeof *c);
    MK_FREED uint64_t *all = calloc(crew.launcher.world, sizeof *all);
    if (!c || !all)
        return mk_fail(-ENOMEM, error, size, "no memory for %u ranks", crew.launcher.world);
    uint64_t mine = sweep_crew_digest(s, c);
    int rc = bootstrap_allgather(crew.bootstrap, &mine, all, sizeof mine);
    if (rc)
        return mk_fail(rc, error, size, "rank %u: another rank of the sweep is lost: %s",
                       crew.launcher.rank, strerror(-rc));
    for (uint32_t r = 1; r < crew.launcher.world; r++)
        if (all[r] != all[0])
            return mk_fail(-EINVAL, error, size,
                           "rank %u has read another sweep than rank 0: give all ranks one file "
                           "and one command line",
                           r);
    return 0;
}

int sweep_crew_join(const struct sweep *s, int *rank, char *error, size_t size)
{
    *rank = 0;
    int found = launched(&crew.launcher, error, size);
    if (found < 0)
        return -EINVAL;
    if (!found || crew.launcher.world == 1)
        return 0;
    *rank = (int)crew.launcher.rank;
    const struct launcher *l = &crew.launcher;
    struct bootstrap_config config = {.rank = l->rank,
                                      .world = l->world,
                                      .port = l->port,
                                      .listen_fd = -1,
                                      .timeout_ns = JOIN_NS};
    memcpy(config.host, l->host, sizeof config.host);
    memcpy(config.token, l->token, sizeof config.token);
    launched_warn("sweep", l->name, l->rank, l->port, l->guessable);
    crew.orders = calloc(l->world, sizeof *crew.orders);
    crew.endings = calloc(l->world, sizeof *crew.endings);
    if (!crew.orders || !crew.endings)
        return mk_fail(-ENOMEM, error, size, "no memory for %u ranks", l->world);
    int rc = bootstrap_join(&crew.bootstrap, &config, error, size);
    if (rc) {
        crew.bootstrap = NULL;
        return rc;
    }
    rc = sweep_crew_compare(s, error, size);
    bootstrap_set_timeout(crew.bootstrap, s->limit_ns + MARGIN_NS);
    return rc;
}

uint32_t sweep_crew_size(void)
{
    return crew.bootstrap ? crew.launcher.world : 0;
}

/* Where the next job's ranks meet, as rank 0 says: each job has a port of its own, since those of
 * the last may still be closing, and what other programs use is passed over. */
static uint32_t sweep_crew_port(void)
{
    uint16_t port = 0;
    int listens = -1;
    for (uint32_t tries = 0; tries < PORTS && listens < 0; tries++) {
        uint32_t next = crew.launcher.port + 1 + crew.jobs++ % PORTS;
        port = (uint16_t)((next - 1024u) % (65536u - 1024u) + 1024u);
        listens = bootstrap_listen(crew.launcher.host, &port);
    }
    if (listens >= 0)
        close(listens);
    return port;
}

/* This rank's part of a job that all do. */
static int sweep_crew_do(const struct crew_order *o, struct sweep_command *c, uint64_t limit_ns,
                         struct sweep_ended *out)
{
    char port[40];
    snprintf(port, sizeof port, "MKERNEL_PORT=%u", o->port);
    c->environment[c->entries++] = port;
    int rc = sweep_run_job(out, c->words, c->environment, limit_ns);
    c->entries--;
    return rc;
}

/* One status and one sentence for all: rank 0's, or of the first that did worse. */
static void sweep_crew_judge(struct sweep_ended *out)
{
    for (uint32_t r = 1; r < crew.launcher.world; r++) {
        const struct sweep_ended *e = &crew.endings[r];
        int worse = e->status < 0 ? out->status >= 0 && out->status < 3
                                  : out->status >= 0 && e->status > out->status;
        if (worse) {
            double seconds = out->seconds;
            int stopped = out->stopped;
            *out = *e;
            out->sentence[sizeof out->sentence - 1] = '\0';
            out->seconds = seconds;
            out->stopped = stopped;
        }
    }
}

int sweep_crew_run(struct sweep_ended *out, const struct sweep *s, const struct sweep_job *j,
                   enum sweep_mode mode, struct sweep_command *c)
{
    if (!crew.bootstrap)
        return sweep_run_job(out, c->words, c->environment, s->limit_ns);
    const struct crew_order o = {.kind = CREW_JOB,
                                 .mode = mode,
                                 .point = j->point,
                                 .repeat = j->repeat,
                                 .port = sweep_crew_port()};
    int rc = bootstrap_allgather(crew.bootstrap, &o, crew.orders, sizeof o);
    rc = rc ? rc : sweep_crew_do(&o, c, s->limit_ns, out);
    rc = rc || out->stopped ? rc
                            : bootstrap_allgather(crew.bootstrap, out, crew.endings, sizeof *out);
    if (!rc && !out->stopped)
        sweep_crew_judge(out);
    return rc;
}

/* What rank 0 says, where it can be. */
static int sweep_crew_follow(const struct sweep *s, const struct crew_order *o,
                             struct sweep_command *c, struct sweep_ended *ended)
{
    if (o->kind != CREW_JOB || o->point >= s->point_count || o->repeat >= s->repeats ||
        (o->mode != SWEEP_MEASURE && o->mode != SWEEP_TRACE) || !o->port || o->port > UINT16_MAX)
        return -EPROTO;
    sweep_make_command(c, &s->points[o->point], (enum sweep_mode)o->mode, s->seed + o->repeat,
                       "/dev/null"); /* rank 0 writes the result */
    return sweep_crew_do(o, c, s->limit_ns, ended);
}

int sweep_crew_work(const struct sweep *s, char *error, size_t size)
{
    MK_FREED struct sweep_command *c = calloc(1, sizeof *c);
    struct sweep_ended ended = {.status = 0};
    const struct crew_order nothing = {.kind = 0};
    int rc = c ? 0 : -ENOMEM;
    while (!rc) {
        rc = bootstrap_allgather(crew.bootstrap, &nothing, crew.orders, sizeof nothing);
        if (rc || crew.orders[0].kind == CREW_END)
            break;
        rc = sweep_crew_follow(s, &crew.orders[0], c, &ended);
        if (!rc && ended.stopped)
            break;
        rc = rc ? rc : bootstrap_allgather(crew.bootstrap, &ended, crew.endings, sizeof ended);
    }
    if (rc)
        snprintf(error, size, "rank %u: rank 0 or another rank of the sweep is lost: %s",
                 crew.launcher.rank, strerror(-rc));
    return rc ? rc : ended.stopped;
}

void sweep_crew_leave(void)
{
    if (crew.bootstrap && crew.launcher.rank == 0 && !bootstrap_failure(crew.bootstrap, NULL)) {
        const struct crew_order end = {.kind = CREW_END};
        bootstrap_allgather(crew.bootstrap, &end, crew.orders, sizeof end);
    }
    if (crew.bootstrap)
        bootstrap_leave(crew.bootstrap);
    free(crew.orders);
    free(crew.endings);
    memset(&crew, 0, sizeof crew);
}
