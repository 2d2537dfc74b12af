/* Asks the command of each point whether it could run, before the first does. */
#include "experiments/sweep/sweep_run.h"
#include "core/base/sentence.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

struct asking {
    struct sweep *sweep;
    char *error;
    size_t size;
    uint32_t next;
    int rc;
    pthread_mutex_t lock; /* but not while a command runs */
};

static int sweep_ask_one(struct asking *a, struct sweep_point *p)
{
    struct sweep_command c;
    struct sweep_ended ended;
    int rc = sweep_make_command(&c, p, SWEEP_ASK, a->sweep->seed, "/dev/null");
    if (rc)
        return mk_fail(-EINVAL, a->error, a->size, "%s: its command is too long", p->label);
    pthread_mutex_unlock(&a->lock);
    rc = sweep_run_job(&ended, c.words, c.environment, a->sweep->limit_ns);
    pthread_mutex_lock(&a->lock);
    if (rc)
        snprintf(a->error, a->size, "no process could be started: %s", strerror(-rc));
    if (!rc && ended.stopped)
        rc = mk_fail(-EINTR, a->error, a->size, "interrupted by signal %d; nothing was started",
                     ended.stopped);
    if (!rc && ended.status)
        p->impossible = sweep_keep(a->sweep, ended.sentence, strlen(ended.sentence));
    return rc || !ended.status || p->impossible ? rc : -ENOMEM;
}

static void *sweep_ask_work(void *argument)
{
    struct asking *a = argument;
    pthread_mutex_lock(&a->lock);
    while (!a->rc && a->next < a->sweep->point_count) {
        int rc = sweep_ask_one(a, &a->sweep->points[a->next++]);
        a->rc = a->rc ? a->rc : rc;
    }
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

int sweep_ask(struct sweep *s, char *error, size_t size)
{
    struct asking a = {.sweep = s, .error = error, .size = size, .lock = PTHREAD_MUTEX_INITIALIZER};
    uint32_t refused = 0;
    char first[1200] = "";
    sweep_threads(s->jobs, sweep_ask_work, &a);
    if (a.rc)
        return a.rc;
    for (uint32_t i = 0; i < s->point_count; i++)
        if (s->points[i].impossible && !refused++)
            snprintf(first, sizeof first, "%s: %s", s->points[i].label, s->points[i].impossible);
    if (!refused || (s->skip && refused < s->point_count))
        return 0;
    snprintf(error, size, "%s", first);
    if (refused > 1)
        mk_append(error, size, " (and %u other point%s)", refused - 1, refused > 2 ? "s" : "");
    if (!s->skip)
        mk_append(error, size, "; `exclude` leaves points out, `impossible: skip` records them");
    return -EINVAL;
}
