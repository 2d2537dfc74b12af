/* A viewer's side: which jobs there are, and what their files say. Files are read and never mapped:
 * one that shrinks under a reader is an error and not a SIGBUS. Their bytes are checked as foreign
 * ones, and nothing is taken from a folder or file of another user or that another may write to:
 * that user could say anything of a job there. */
#include "core/mkernel.h"
#include "tracer/live_process.h"
#include "core/base/scoped.h"
#include "core/base/sentence.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FOREIGN "%s is not read: another user owns it or may write to it"
#define NO_ARGUMENT 0xffffffu /* of a wait for what is no flag */

static int live_read_header_holds(const struct live_header *h)
{
    const struct mk_topo *t = &h->problem.topo;
    return !memcmp(h->magic, LIVE_MAGIC, 8) && h->version == LIVE_VERSION &&
           h->bytes == sizeof *h && h->plan_bytes == sizeof(struct mk_plan) &&
           h->ctas <= LIVE_MAX_CTAS && t->gpus >= 1 && t->nodes >= 1 && t->gpus <= MK_MAX_LOCAL &&
           t->nodes <= MK_MAX_RANKS && mk_world(t) <= MK_MAX_RANKS && t->rank < mk_world(t) &&
           h->pid > 0;
}

/* A folder, opened; -EPERM: it is not ours alone. */
static int live_read_open_folder(const char *path)
{
    struct stat s;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    int result = fstat(fd, &s) ? -errno : live_is_own(&s) ? 0 : -EPERM;
    if (result)
        close(fd);
    return result ? result : fd;
}

/* Reads a rank's file; *words is made where it is NULL. 0 or -errno. */
static int live_read_rank(int folder, uint32_t rank, struct live_header *h,
                          struct live_word **words)
{
    char name[24];
    struct stat s;
    snprintf(name, sizeof name, "rank-%u", rank);
    int fd = openat(folder, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return -errno;
    int result = fstat(fd, &s) ? -errno : live_is_own(&s) ? 0 : -EPERM;
    if (!result)
        result = pread(fd, h, sizeof *h, 0) == (ssize_t)sizeof *h && live_read_header_holds(h)
                     ? 0
                     : -EINVAL;
    h->command[sizeof h->command - 1] = 0;
    size_t bytes = result ? 0 : h->ctas * sizeof **words;
    if (!result && !*words && !(*words = calloc(LIVE_MAX_CTAS, sizeof **words)))
        result = -ENOMEM;
    if (!result && pread(fd, *words, bytes, sizeof *h) != (ssize_t)bytes)
        result = -EINVAL;
    close(fd);
    return result;
}

static enum live_state live_read_state_of(const struct live_header *h, uint64_t now)
{
    char letter;
    uint64_t start;
    int none = live_process(h->pid, &letter, &start);
    int heard = h->beat + LIVE_SILENT_NS > now;
    if ((none || start != h->pid_start) && !heard)
        return LIVE_GONE;
    if (!none && (letter == 'T' || letter == 't'))
        return LIVE_STOPPED;
    return heard ? LIVE_RUNS : LIVE_SILENT;
}

int live_plan(struct live_rank *rank)
{
    char error[256];
    struct mk_plan *plan = calloc(1, sizeof *plan);
    if (!plan)
        return -ENOMEM;
    const struct live_header *h = &rank->header;
    int result =
        (unsigned)h->problem.op >= MK_OPS || (unsigned)h->problem.exec >= MK_EXECS
            ? -EINVAL
            : plan_build(plan, &h->problem, h->flag_base, h->heap_base, error, sizeof error);
    if (result) {
        free(plan);
        return result;
    }
    free(rank->plan);
    rank->plan = plan;
    return 0;
}

void live_read(struct live_job *job)
{
    int seen = 0, over = 0, folder = live_read_open_folder(job->folder);
    job->now = live_now();
    for (uint32_t i = 0; i < job->world; i++) {
        struct live_rank *r = &job->ranks[i];
        struct live_header h;
        int result = folder < 0 ? folder : live_read_rank(folder, i, &h, &r->words);
        if (!result && h.problem.topo.rank == i && mk_world(&h.problem.topo) == job->world) {
            int is_new = !r->plan || h.pid_start != r->header.pid_start || h.pid != r->header.pid;
            r->header = h;
            r->state = !is_new || !live_plan(r) ? live_read_state_of(&h, job->now) : LIVE_ABSENT;
        } else if (result == -ENOENT && r->state != LIVE_ABSENT) {
            r->state = LIVE_ENDED;
        }
        seen += r->state != LIVE_ABSENT;
        over += r->state == LIVE_ENDED || r->state == LIVE_GONE;
    }
    if (folder >= 0)
        close(folder);
    job->ended = seen && seen == over;
}

/* The same, to list it. 0 or -errno. */
static int live_read_open_own(const char *path, DIR **out)
{
    int fd = live_read_open_folder(path);
    *out = fd < 0 ? NULL : fdopendir(fd);
    if (*out || fd < 0)
        return *out ? 0 : fd;
    int result = -errno;
    close(fd);
    return result;
}

/* Any rank's header of a folder. 0 or -errno. */
static int live_read_any(const char *folder, struct live_header *h)
{
    MK_FREED struct live_word *words = NULL;
    struct dirent *e;
    unsigned rank;
    MK_CLOSED_DIR DIR *d = NULL;
    int result = live_read_open_own(folder, &d);
    if (result)
        return result;
    for (result = -ENOENT; result && (e = readdir(d));)
        if (sscanf(e->d_name, "rank-%u", &rank) == 1)
            result = live_read_rank(dirfd(d), rank, h, &words);
    return result;
}

int live_open(struct live_job *job, const char *folder, char *error, size_t error_size)
{
    struct live_header h;
    memset(job, 0, sizeof *job);
    snprintf(job->folder, sizeof job->folder, "%s", folder);
    int result = live_read_any(folder, &h);
    if (result) {
        if (result == -ENOENT || result == -ENOTDIR)
            snprintf(error, error_size, "no job runs at %s", folder);
        else if (result == -EINVAL)
            snprintf(error, error_size, "the job at %s was published by another version of mkernel",
                     folder);
        else if (result == -EPERM)
            snprintf(error, error_size, FOREIGN, folder);
        else
            snprintf(error, error_size, "the job at %s cannot be read: %s", folder,
                     strerror(-result));
        return result;
    }
    job->world = mk_world(&h.problem.topo);
    job->ranks = calloc(job->world, sizeof *job->ranks);
    if (!job->ranks)
        return mk_fail(-ENOMEM, error, error_size, "no memory for %u ranks", job->world);
    live_read(job);
    return 0;
}

void live_close(struct live_job *job)
{
    for (uint32_t i = 0; i < job->world && job->ranks; i++) {
        free(job->ranks[i].words);
        free(job->ranks[i].plan);
    }
    free(job->ranks);
    memset(job, 0, sizeof *job);
}

/* Whether a job in `folder` is the one that is asked for; pid 0 takes any job with a process that
 * lives. */
static int live_read_is_wanted(const char *folder, int pid, struct live_header *h)
{
    struct live_job job;
    char error[64];
    int wanted = 0;
    if (live_open(&job, folder, error, sizeof error))
        return 0;
    for (uint32_t i = 0; i < job.world && !wanted; i++) {
        const struct live_rank *r = &job.ranks[i];
        if (r->state == LIVE_ABSENT || r->state == LIVE_GONE || r->state == LIVE_ENDED)
            continue;
        wanted = !pid || r->header.pid == pid || r->header.job_pid == pid;
        *h = r->header;
    }
    live_close(&job);
    return wanted;
}

int live_find(char *folder, size_t size, const char *name, char *error, size_t error_size)
{
    char bases[2][200], path[700], *end, list[256] = "";
    struct live_header h;
    int pid = 0, found = 0, foreign = -1, count = live_bases(bases);
    if (name) {
        const long number = strtol(name, &end, 10);
        pid = *end || number < 1 || number > INT_MAX ? 0 : (int)number;
        if (!pid) { /* a folder, or its name in the usual place */
            int result = -ENOENT;
            for (int i = -1; i < count && result != -EPERM; i++) {
                snprintf(path, sizeof path, "%s%s%s", i < 0 ? "" : bases[i], i < 0 ? "" : "/",
                         name);
                result = live_read_any(path, &h);
                if (!result)
                    return snprintf(folder, size, "%s", path) < (int)size ? 0 : -ENAMETOOLONG;
            }
            if (result == -EPERM)
                snprintf(error, error_size, FOREIGN, path);
            else
                snprintf(error, error_size, "no job is called %s", name);
            return result == -EPERM ? result : -ENOENT;
        }
    }
    for (int i = 0; i < count; i++) {
        MK_CLOSED_DIR DIR *d = NULL;
        struct dirent *e;
        if (live_read_open_own(bases[i], &d) == -EPERM)
            foreign = i;
        while (d && (e = readdir(d))) {
            snprintf(path, sizeof path, "%s/%.250s", bases[i], e->d_name);
            if (e->d_name[0] == '.' || !live_read_is_wanted(path, pid, &h))
                continue;
            if (!found++)
                snprintf(folder, size, "%s", path);
            mk_append(list, sizeof list, "%s%d (%s on %u ranks)", *list ? ", " : "",
                      h.job_pid ? h.job_pid : h.pid, plan_op_name(h.problem.op),
                      mk_world(&h.problem.topo));
        }
    }
    if (found == 1)
        return 0;
    if (found > 1)
        snprintf(error, error_size, "several jobs run here; attach to one of %s", list);
    else if (foreign >= 0)
        snprintf(error, error_size, FOREIGN, bases[foreign]);
    else if (pid)
        snprintf(error, error_size,
                 "process %d is neither a running `mkernel run` nor one of its ranks", pid);
    else
        snprintf(error, error_size, "no `mkernel run` of this user runs on this host");
    return found ? -EEXIST : -ENOENT;
}

/* Which role a CTA of the grid has, and its number there. */
static void live_read_place_cta(const struct mk_role_split *s, uint32_t cta, struct live_doing *out)
{
    uint32_t first = 0;
    for (int role = 0; role < MK_ROLES; role++) {
        if (cta < first + s->ctas[role]) {
            out->role = role;
            out->index = (int)(cta - first);
            return;
        }
        first += s->ctas[role];
    }
}

static void live_read_describe_wait(const struct live_rank *r, uint32_t argument,
                                    struct live_doing *out)
{
    const struct mk_topo *t = &r->header.problem.topo;
    struct mk_flag_meaning m;
    if (out->cause == MK_CAUSE_BACKPRESSURE) {
        snprintf(out->text, sizeof out->text, "room in its command ring");
        return;
    }
    if (argument == NO_ARGUMENT) {
        snprintf(out->text, sizeof out->text,
                 out->cause == MK_CAUSE_NETWORK ? "its puts to leave their source"
                                                : "its own copies");
        return;
    }
    plan_describe_flag(r->plan, argument, &m);
    out->flag = argument;
    snprintf(out->text, sizeof out->text, "%s", m.text);
    out->chunk = m.chunk == UINT32_MAX ? -1 : (int64_t)m.chunk;
    if (m.producer >= mk_world(t))
        return;
    out->producer = m.producer;
    uint32_t relay = mk_relay_of(t, m.producer);
    out->relay = relay == UINT32_MAX ? -1 : (int64_t)relay;
}

struct live_doing live_describe(const struct live_job *job, uint32_t rank, uint32_t cta)
{
    const struct live_rank *r = &job->ranks[rank];
    struct live_doing d = {.flag = -1, .chunk = -1, .producer = -1, .relay = -1};
    if (cta >= r->header.ctas || !r->plan)
        return d;
    live_read_place_cta(&r->plan->problem.tuning.split, cta, &d);
    uint64_t word = r->words[cta].word;
    uint32_t what = (uint32_t)word, argument = what >> 8;
    d.epoch = (uint32_t)(word >> 32);
    d.kind = (int)(what & 15);
    d.cause = d.kind == MK_EV_WAIT ? (int)(what >> 4 & 15) : MK_CAUSE_NONE;
    d.ns =
        r->words[cta].since && job->now > r->words[cta].since ? job->now - r->words[cta].since : 0;
    if (d.kind == MK_EV_WAIT)
        live_read_describe_wait(r, argument, &d);
    else if (d.kind == MK_EV_TILE)
        snprintf(d.text, sizeof d.text, "tile %u", argument);
    else if (d.kind == MK_EV_COMMAND)
        snprintf(d.text, sizeof d.text, "command %u", argument);
    else if (d.kind == MK_EV_SIGNAL)
        snprintf(d.text, sizeof d.text, "flag %u", argument);
    else if (d.kind != MK_EV_NONE)
        snprintf(d.text, sizeof d.text, "chunk %u", argument);
    return d;
}

const char *live_phase_name(uint32_t phase)
{
    static const char *const names[LIVE_PHASES] = {
        "starts",   "makes inputs",      "waits for every rank to be ready",
        "launches", "checks the result", "ends"};
    return phase < LIVE_PHASES ? names[phase] : "?";
}
