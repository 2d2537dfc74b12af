#include "experiments/common/pulse.h"
#include "experiments/common/progress.h"
#include "experiments/common/spawn.h"
#include "core/base/clock.h"
#include "core/comm/comm.h"

#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LOOK_NS 100000000ull

static struct {
    pthread_mutex_t lock;
    pthread_cond_t over;
    pthread_t thread;
    int runs, ends;
    struct mk_comm *comm;
    uint64_t seen; /* of comm, as last looked at */
    uint64_t cpu;  /* ns of this process, at the last beat for it */
    const uint64_t *done;
    uint64_t all;
    int trusts;
    char name[64], says[96];
    struct progress line;
} pulse = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* A number that changes with whatever the communicator gets done. */
static uint64_t pulse_done_by(const struct mk_comm *comm)
{
    uint64_t sum = __atomic_load_n(&comm->beats, __ATOMIC_RELAXED);
    if (comm->exec_beats)
        sum += __atomic_load_n(comm->exec_beats, __ATOMIC_RELAXED);
    for (uint32_t i = 0;
         comm->heap.memory == MK_MEMORY_CUDA && comm->progress && i < comm->progress_count; i++)
        /* a GPU's own words */
        sum = sum * 31 + __atomic_load_n(&comm->progress[i], __ATOMIC_RELAXED);
    return sum;
}

static void pulse_look_at_job(void)
{
    uint64_t cpu = pulse.trusts ? mk_clock_ns(CLOCK_PROCESS_CPUTIME_ID) : 0;
    if (cpu > pulse.cpu + LOOK_NS / 20) { /* more than this thread takes */
        spawn_beat();
        pulse.cpu = cpu;
    }
    if (!pulse.comm)
        return;
    uint64_t done = pulse_done_by(pulse.comm);
    if (done != pulse.seen)
        spawn_beat();
    pulse.seen = done;
    if (comm_failed(pulse.comm)) {
        spawn_stage(SPAWN_FAILED);
        pulse.comm = NULL;
    }
}

/* To the terminal itself: what stdio prints holds no control characters (plain_output.h). */
static void pulse_write(const char *text)
{
    if (write(STDERR_FILENO, text, strlen(text)) < 0) {
        /* nobody reads it */
    }
}

static void pulse_show(void)
{
    char text[256];
    uint64_t now = mk_now_ns();
    if (!*pulse.name || !*pulse.says || !progress_due(&pulse.line, now))
        return;
    uint64_t done = pulse.done ? __atomic_load_n(pulse.done, __ATOMIC_RELAXED) : 0;
    pulse_write(progress_line(&pulse.line, pulse.name, pulse.says, done, pulse.done ? pulse.all : 0,
                              now, text, sizeof text));
    pulse.line.shown = pulse.line.terminal;
}

static void *pulse_main(void *argument)
{
    pthread_mutex_lock(&pulse.lock);
    while (!pulse.ends) {
        uint64_t until = mk_now_ns() + LOOK_NS;
        mk_cond_wait_until(&pulse.over, &pulse.lock, until);
        pulse_look_at_job();
        if (!pulse.ends)
            pulse_show();
    }
    pthread_mutex_unlock(&pulse.lock);
    return NULL;
}

void pulse_begin(const char *name)
{
    sigset_t all, old;
    snprintf(pulse.name, sizeof pulse.name, "%s", name ? name : "");
    pulse.says[0] = 0;
    pulse.ends = 0;
    progress_begin(&pulse.line, isatty(STDERR_FILENO), getenv("MKERNEL_PROGRESS"), mk_now_ns());
    mk_cond_init(&pulse.over);
    sigfillset(&all); /* signals are the command's own affair */
    pthread_sigmask(SIG_SETMASK, &all, &old);
    pulse.runs = !pthread_create(&pulse.thread, NULL, pulse_main, NULL);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
}

void pulse_says(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    pthread_mutex_lock(&pulse.lock);
    vsnprintf(pulse.says, sizeof pulse.says, format, args);
    pthread_mutex_unlock(&pulse.lock);
    va_end(args);
    spawn_beat();
}

void pulse_counts(const uint64_t *done, uint64_t all)
{
    pthread_mutex_lock(&pulse.lock);
    pulse.done = done;
    pulse.all = all;
    pthread_mutex_unlock(&pulse.lock);
}

void pulse_follow(struct mk_comm *comm)
{
    pthread_mutex_lock(&pulse.lock);
    if (pulse.comm)
        pulse_look_at_job(); /* a failure since the last look */
    pulse.comm = comm;
    pthread_mutex_unlock(&pulse.lock);
    spawn_stage(comm ? SPAWN_RUNS : SPAWN_SETS_UP);
}

void pulse_trust(int on)
{
    pthread_mutex_lock(&pulse.lock);
    pulse.trusts = on;
    pulse.cpu = mk_clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    pthread_mutex_unlock(&pulse.lock);
}

static void pulse_clear(void)
{
    if (pulse.line.shown)
        pulse_write("\r\033[K");
    pulse.line.shown = 0;
}

void pulse_hide(void)
{
    pthread_mutex_lock(&pulse.lock);
    pulse.says[0] = 0;
    pulse_clear();
    pthread_mutex_unlock(&pulse.lock);
}

void pulse_end(void)
{
    if (!pulse.runs)
        return;
    pthread_mutex_lock(&pulse.lock);
    pulse.ends = 1;
    pthread_cond_signal(&pulse.over);
    pthread_mutex_unlock(&pulse.lock);
    pthread_join(pulse.thread, NULL);
    pthread_cond_destroy(&pulse.over);
    pulse.runs = 0;
    pulse_clear();
}
