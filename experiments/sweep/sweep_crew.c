/* A sweep under a launcher: as many processes as the job has ranks, each of which runs its rank of
 * every point. Rank 0 decides what comes next, and has the results. */
#include "experiments/sweep/sweep.h"
#include "core/bootstrap.h"
#include "core/launcher.h"
#include "core/scoped.h"
#include "core/sentence.h"
#include "experiments/common/launched.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define PORTS 40u /* that jobs take in turn, so that none meets the one before it */
#define MARGIN_NS 60000000000ull

enum crew_kind { CREW_JOB = 1, CREW_END };

/* What all do next, as rank 0 says it; positions in `text`. */
struct crew_order {
    uint32_t kind, count, entries, port;
    uint64_t limit_ns;
    uint32_t words[SWEEP_WORDS], environment[SWEEP_SETTINGS];
    char text[sizeof((struct sweep_command *)0)->text];
};

static struct {
    struct bootstrap *bootstrap; /* NULL: no launcher, or one rank */
    struct launcher launcher;
    uint32_t jobs;
    struct crew_order *orders;   /* [world] */
    struct sweep_ended *endings; /* [world] */
} crew;

int sweep_crew_join(uint64_t limit_ns, int *rank, char *error, size_t size)
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
                                      .timeout_ns = limit_ns + MARGIN_NS};
    memcpy(config.host, l->host, sizeof config.host);
    memcpy(config.token, l->token, sizeof config.token);
    crew.orders = calloc(l->world, sizeof *crew.orders);
    crew.endings = calloc(l->world, sizeof *crew.endings);
    if (!crew.orders || !crew.endings)
        return mk_fail(-ENOMEM, error, size, "no memory for %u ranks", l->world);
    int rc = bootstrap_join(&crew.bootstrap, &config, error, size);
    if (rc)
        crew.bootstrap = NULL;
    return rc;
}

uint32_t sweep_crew_size(void)
{
    return crew.bootstrap ? crew.launcher.world : 0;
}

/* Where `word` is in the command's text; UINT32_MAX: it is not. */
static void sweep_crew_pack(struct crew_order *o, const struct sweep_command *c)
{
    memcpy(o->text, c->text, sizeof o->text);
    o->count = c->count;
    o->entries = c->entries;
    for (uint32_t i = 0; i < c->count; i++)
        o->words[i] = (uint32_t)(c->words[i] - c->text);
    for (uint32_t i = 0; i < c->entries; i++)
        o->environment[i] = (uint32_t)(c->environment[i] - c->text);
}

static int sweep_crew_is_free(uint16_t port)
{
    const struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    const int yes = 1;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int is_free = fd < 0 || (!setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) &&
                             !bind(fd, (const struct sockaddr *)&address, sizeof address));
    if (fd >= 0)
        close(fd);
    return is_free;
}

/* Where the next job's ranks meet, as rank 0 says: each job has a port of its own, since those of
 * the last may still be closing, and what other programs use is passed over. */
static uint32_t sweep_crew_port(void)
{
    uint32_t port = 0;
    for (uint32_t tries = 0; tries < PORTS; tries++) {
        port = (crew.launcher.port + 1 + crew.jobs++ % PORTS - 1024u) % (65536u - 1024u) + 1024u;
        if (sweep_crew_is_free((uint16_t)port))
            break;
    }
    return port;
}

/* This rank's part of a job that all do. */
static int sweep_crew_do(struct crew_order *o, struct sweep_ended *out)
{
    char *words[SWEEP_WORDS + 1], *environment[SWEEP_SETTINGS + 2], port[40];
    snprintf(port, sizeof port, "MKERNEL_PORT=%u", o->port);
    for (uint32_t i = 0; i < o->count; i++)
        words[i] = o->text + o->words[i];
    words[o->count] = NULL;
    for (uint32_t i = 0; i < o->entries; i++)
        environment[i] = o->text + o->environment[i];
    environment[o->entries] = port;
    environment[o->entries + 1] = NULL;
    return sweep_run_job(out, words, environment, o->limit_ns);
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
            out->seconds = seconds;
            out->stopped = stopped;
        }
    }
}

int sweep_crew_run(struct sweep_ended *out, struct sweep_command *c, uint64_t limit_ns)
{
    if (!crew.bootstrap)
        return sweep_run_job(out, c->words, c->environment, limit_ns);
    MK_FREED struct crew_order *o = calloc(1, sizeof *o);
    if (!o)
        return -ENOMEM;
    o->kind = CREW_JOB;
    o->limit_ns = limit_ns;
    o->port = sweep_crew_port();
    sweep_crew_pack(o, c);
    int rc = bootstrap_allgather(crew.bootstrap, o, crew.orders, sizeof *o);
    rc = rc ? rc : sweep_crew_do(o, out);
    rc = rc || out->stopped ? rc
                            : bootstrap_allgather(crew.bootstrap, out, crew.endings, sizeof *out);
    if (!rc && !out->stopped)
        sweep_crew_judge(out);
    return rc;
}

int sweep_crew_work(char *error, size_t size)
{
    MK_FREED struct crew_order *mine = calloc(1, sizeof *mine);
    struct sweep_ended ended = {.status = 0};
    int rc = mine ? 0 : -ENOMEM;
    while (!rc) {
        rc = bootstrap_allgather(crew.bootstrap, mine, crew.orders, sizeof *mine);
        if (rc || crew.orders[0].kind != CREW_JOB)
            break;
        rc = sweep_crew_do(&crew.orders[0], &ended);
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
        MK_FREED struct crew_order *end = calloc(1, sizeof *end);
        if (end) {
            end->kind = CREW_END;
            bootstrap_allgather(crew.bootstrap, end, crew.orders, sizeof *end);
        }
    }
    if (crew.bootstrap)
        bootstrap_leave(crew.bootstrap);
    free(crew.orders);
    free(crew.endings);
    memset(&crew, 0, sizeof crew);
}
