/* The parent waits for its ranks, and ends those that do not end by themselves (spawn.h). */
#include "experiments/common/spawn_internal.h"
#include "core/base/clock.h"

#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#define SECOND 1000000000ull
#define LOOK_NS (SECOND / 10) /* how often the ranks' words are looked at */
#define JUMP_NS (SECOND / 2)  /* if more passes between two looks, the parent did not run */
/* beyond the timeout: by then a wait that timed out in a rank has shown as its failure */
#define IDLE_EXTRA_NS (19 * LOOK_NS)
#define END_EXTRA_NS (2 * SECOND)
#define DEAF_NS (15 * LOOK_NS) /* after a failure: for a rank that has not noticed it */
/* ... for a rank that has: it takes 1.2 s at most to agree on a sentence, then closes */
#define FAILED_NS (35 * LOOK_NS)
#define REPORTED_NS (2 * SECOND) /* after a rank's report */
#define INTERRUPTED_NS SECOND
#define KILLED_NS (2 * SECOND) /* only a process that hangs in the kernel takes longer to die */

static void spawn_wait_move_clock(struct spawn_job *j)
{
    uint64_t wall = mk_now_ns(), passed = wall - j->wall;
    j->wall = wall;
    j->now += passed < JUMP_NS ? passed : JUMP_NS;
}

static void spawn_wait_note(uint64_t *when, uint64_t now)
{
    if (!*when)
        *when = now;
}

static void spawn_wait_collect_ends(struct spawn_job *j)
{
    int status;
    for (uint32_t i = 0; i < j->world; i++) {
        struct spawn_end *e = &j->ends[i];
        if (!j->pids[i] ||
            waitpid(j->pids[i], &status, WNOHANG | WUNTRACED | WCONTINUED) != j->pids[i])
            continue;
        if (WIFSTOPPED(status) || WIFCONTINUED(status)) {
            e->stopped = WIFSTOPPED(status);
            continue;
        }
        j->pids[i] = 0;
        j->alive--;
        e->status = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
        e->signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
        spawn_wait_note(e->status > 1 || e->signal ? &j->failed_at : &j->first_end_at, j->now);
    }
}

static void spawn_wait_collect_reports(struct spawn_job *j)
{
    struct spawn_last_word w;
    while (read(j->reports, &w, sizeof w) == sizeof w) {
        if (w.rank >= j->world)
            continue;
        struct spawn_end *e = &j->ends[w.rank];
        e->reported = 1;
        e->reported_status = w.status;
        spawn_wait_note(&j->reported_at[w.rank], j->now);
        memcpy(e->sentence, w.sentence, sizeof e->sentence);
        e->sentence[sizeof e->sentence - 1] = 0;
    }
}

static void spawn_wait_collect_signals(struct spawn_job *j)
{
    struct signalfd_siginfo info;
    while (read(j->signals, &info, sizeof info) == sizeof info) {
        if (info.ssi_signo == SIGCHLD || j->how->interrupted)
            continue;
        j->how->interrupted = (int)info.ssi_signo;
        spawn_wait_note(&j->interrupted_at, j->now);
        for (uint32_t i = 0; i < j->world; i++)
            if (j->pids[i])
                kill(j->pids[i], SIGTERM);
    }
}

static void spawn_wait_collect_words(struct spawn_job *j)
{
    for (uint32_t i = 0; i < j->world; i++) {
        uint64_t beats = __atomic_load_n(&j->words[i].beats, __ATOMIC_RELAXED);
        if (beats != j->beats[i])
            j->progress_at = j->now;
        j->beats[i] = beats;
        if (__atomic_load_n(&j->words[i].stage, __ATOMIC_ACQUIRE) == SPAWN_FAILED)
            spawn_wait_note(&j->failed_at, j->now);
    }
}

/* When no rank has got anything done for too long. */
static uint64_t spawn_wait_idle_limit(const struct spawn_job *j)
{
    uint64_t most = 0;
    for (uint32_t i = 0; i < j->world; i++) {
        uint64_t allowed = __atomic_load_n(&j->words[i].allowed_ns, __ATOMIC_RELAXED);
        most = j->pids[i] && !j->ends[i].stopped && allowed > most ? allowed : most;
    }
    return j->progress_at + j->timeout_ns + IDLE_EXTRA_NS + most;
}

/* When rank i's time is up, and since when it runs. */
static uint64_t spawn_wait_limit(const struct spawn_job *j, uint32_t i, uint64_t *since)
{
    uint32_t stage = __atomic_load_n(&j->words[i].stage, __ATOMIC_ACQUIRE);
    if (j->interrupted_at) {
        *since = j->interrupted_at;
        return *since + INTERRUPTED_NS;
    }
    if (j->failed_at) {
        uint64_t most = stage == SPAWN_FAILED                       ? FAILED_NS
                        : stage == SPAWN_RUNS || j->ends[i].stopped ? DEAF_NS
                                                                    : j->timeout_ns + END_EXTRA_NS;
        *since = j->failed_at;
        if (j->reported_at[i] && j->reported_at[i] + REPORTED_NS > j->failed_at + most) {
            *since = j->reported_at[i];
            most = REPORTED_NS;
        }
        return *since + most;
    }
    *since = j->first_end_at;
    return j->first_end_at ? *since + j->timeout_ns + END_EXTRA_NS : UINT64_MAX;
}

static void spawn_wait_end_rank(struct spawn_job *j, uint32_t i, uint64_t waited_ns)
{
    struct spawn_end *e = &j->ends[i];
    if (e->overdue)
        return;
    e->overdue = e->stopped ? SPAWN_STOPPED : SPAWN_OVERDUE;
    e->overdue_ns = waited_ns;
    kill(j->pids[i], SIGKILL);
    spawn_wait_note(&j->killed_at, j->now);
}

static void spawn_wait_end_overdue(struct spawn_job *j)
{
    uint64_t since;
    int idle = !j->failed_at && !j->interrupted_at && j->now >= spawn_wait_idle_limit(j);
    if (idle && !j->how->idle_ns)
        j->how->idle_ns = j->now - j->progress_at;
    for (uint32_t i = 0; i < j->world; i++)
        if (j->pids[i] && (j->how->idle_ns || j->now >= spawn_wait_limit(j, i, &since)))
            spawn_wait_end_rank(j, i, j->now - (j->how->idle_ns ? j->progress_at : since));
}

/* No process survives SIGKILL, but one that hangs in a driver does not die of it either. */
static void spawn_wait_give_up(struct spawn_job *j)
{
    for (uint32_t i = 0; i < j->world; i++) {
        if (!j->pids[i] || !j->ends[i].overdue)
            continue;
        j->ends[i].overdue = SPAWN_UNKILLABLE;
        j->ends[i].signal = SIGKILL;
        j->pids[i] = 0;
        j->alive--;
    }
}

void spawn_wait(struct spawn_job *j)
{
    j->wall = mk_now_ns();
    j->now = j->progress_at = 1; /* 0 means never */
    while (j->alive) {
        struct pollfd fds[] = {{.fd = j->reports, .events = POLLIN},
                               {.fd = j->signals, .events = POLLIN}};
        poll(fds, fds[0].fd < 0 ? 0 : 2, (int)(LOOK_NS / 1000000));
        spawn_wait_move_clock(j);
        spawn_wait_collect_words(j);
        spawn_wait_collect_reports(j);
        spawn_wait_collect_signals(j);
        spawn_wait_collect_ends(j);
        spawn_wait_end_overdue(j);
        if (j->killed_at && j->now >= j->killed_at + KILLED_NS)
            spawn_wait_give_up(j);
    }
    spawn_wait_collect_reports(j);
}
