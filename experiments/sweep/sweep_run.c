/* The jobs of a sweep, one after the other or several at once, each with its row in the results
 * file. */
#include "experiments/sweep/sweep_run.h"
#include "core/base/clock.h"
#include "core/base/sentence.h"
#include "experiments/common/commands.h"
#include "experiments/common/ending.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void sweep_threads(uint64_t most, void *(*work)(void *), void *argument)
{
    pthread_t threads[SWEEP_JOBS];
    uint64_t started = 0;
    while (started + 1 < most && !pthread_create(&threads[started], NULL, work, argument))
        started++;
    work(argument);
    while (started)
        pthread_join(threads[--started], NULL);
}

/* ---- a job ---- */

static const char *sweep_run_verdict(struct running *r, const struct sweep_point *p,
                                     struct sweep_ended *ended, const char *result)
{
    if (ended->status == STATUS_WRONG && !ended->over)
        return "wrong";
    if (ended->status != STATUS_DONE)
        return "failed";
    if (!result) {
        snprintf(ended->sentence, sizeof ended->sentence, "it left no result");
        return "failed";
    }
    return query_integer(r->db, 0, "SELECT json_extract(?1, '$.verdict') IS 'not checked'", "t",
                         result)
               ? "unchecked"
               : "right";
}

static void sweep_run_count(struct running *r, uint32_t point, const char *verdict, double seconds)
{
    uint32_t n = ++r->counted[point];
    r->seconds[point] += (seconds - r->seconds[point]) / n;
    r->wrong += !strcmp(verdict, "wrong");
    r->failed += !strcmp(verdict, "failed");
    r->impossible += !strcmp(verdict, "impossible");
    r->right += !strcmp(verdict, "right") || !strcmp(verdict, "unchecked");
}

/* How long the jobs that have not begun will take, by what those before them took. */
static double sweep_run_left(const struct running *r)
{
    double sum = 0, left = 0;
    uint32_t known = 0;
    for (uint32_t i = 0; i < r->sweep->point_count; i++)
        if (r->counted[i]) {
            sum += r->seconds[i];
            known++;
        }
    for (uint32_t i = r->next; i < r->count; i++) {
        uint32_t point = r->jobs[i].point;
        left += r->counted[point] ? r->seconds[point] : known ? sum / known : 0;
    }
    return left / (double)r->sweep->jobs;
}

static void sweep_run_say_time(char text[32], double seconds)
{
    if (seconds < 90)
        snprintf(text, 32, "%.0f s", seconds);
    else
        snprintf(text, 32, "%.0f min", seconds / 60);
}

static void sweep_run_progress(struct running *r, const struct sweep_job *j, const char *verdict,
                               const char *sentence)
{
    char left[32];
    double ms = NAN;
    if (r->how->quiet)
        return;
    QUERY q = query_ask(
        r->db,
        "SELECT ms FROM jobs WHERE point = ?1 AND repeat = ?2 AND job IN (SELECT job FROM sample)",
        "ii", r->points[j->point], (int64_t)j->repeat);
    query_row(q, "d", &ms);
    sweep_run_say_time(left, sweep_run_left(r));
    fprintf(stderr, "%u/%u %s: ", r->done, r->count, r->sweep->points[j->point].label);
    if (!strcmp(verdict, "right") || !strcmp(verdict, "unchecked"))
        isnan(ms) ? fprintf(stderr, "%s", verdict) : fprintf(stderr, "%.4g ms", ms);
    else
        fprintf(stderr, "%s: %s", verdict, sentence);
    fprintf(stderr, r->done < r->count ? "; %s left\n" : "\n", left);
}

static int sweep_run_one(struct running *r, const struct sweep_job *j, struct sweep_ended *ended)
{
    struct sweep_command c;
    char command[20000], begun[32], result[128];
    const struct sweep_point *p = &r->sweep->points[j->point];
    double load[1] = {NAN};
    struct outcome o = {.begun = begun, .command = command, .load = NAN};
    sweep_now(begun);
    snprintf(result, sizeof result, "%s/%u-%u", r->folder, j->point, j->repeat);
    sweep_make_command(&c, p, SWEEP_MEASURE, r->sweep->seed + j->repeat, result);
    sweep_say_command(&c, command, sizeof command);
    memset(ended, 0, sizeof *ended);
    if (p->impossible) {
        snprintf(ended->sentence, sizeof ended->sentence, "%s", p->impossible);
        ended->status = STATUS_USAGE;
        o.verdict = "impossible";
    } else {
        if (getloadavg(load, 1) == 1)
            o.load = load[0];
        struct sweep_power *power =
            strcmp(sweep_value(p, "exec"), "sim") ? sweep_power_begin() : NULL;
        pthread_mutex_unlock(&r->lock);
        int rc = sweep_crew_run(ended, r->sweep, j, SWEEP_MEASURE, &c);
        pthread_mutex_lock(&r->lock);
        o.power_count = sweep_power_end(power, &o.power);
        if (rc) {
            snprintf(ended->sentence, sizeof ended->sentence, "no process could be started: %s",
                     strerror(-rc));
            ended->status = STATUS_FAILED;
        }
        if (ended->stopped) {
            free(o.power);
            unlink(result);
            return -EINTR;
        }
        o.result = sweep_store_result(r, result);
        unlink(result);
        o.verdict = sweep_run_verdict(r, p, ended, o.result);
    }
    o.sentence = ended->sentence;
    o.seconds = ended->seconds;
    o.status = ended->status;
    int rc = sweep_store_job(r, j, &o);
    free(o.power);
    free(o.result);
    if (!rc) {
        r->done++;
        sweep_run_count(r, j->point, o.verdict, ended->seconds);
        sweep_run_progress(r, j, o.verdict, ended->sentence);
    }
    return rc;
}

/* ---- traces ---- */

static int sweep_run_trace(struct running *r, uint32_t point, int *stopped)
{
    static struct sweep_command c;
    static char command[20000];
    const struct sweep_point *p = &r->sweep->points[point];
    struct sweep_ended ended;
    char path[4200];
    double ideal, exposed;
    if (!p->traced || p->impossible ||
        query_integer(r->db, 0, "SELECT count(*) FROM trace WHERE point = ?1", "i",
                      r->points[point]))
        return 0;
    snprintf(path, sizeof path, "%s.traces", r->how->out);
    mkdir(path, 0777);
    snprintf(path, sizeof path, "%s.traces/%ld.db", r->how->out, r->points[point]);
    sweep_make_command(&c, p, SWEEP_TRACE, r->sweep->seed, path);
    sweep_say_command(&c, command, sizeof command);
    const struct sweep_job job = {.point = point};
    int rc = sweep_crew_run(&ended, r->sweep, &job, SWEEP_TRACE, &c);
    if (rc || ended.stopped) {
        *stopped = ended.stopped;
        return rc ? rc : -EINTR;
    }
    sweep_store_weigh(path, &ideal, &exposed);
    if (!r->how->quiet)
        fprintf(stderr, "trace of %s: %s\n", p->label, ended.status ? ended.sentence : path);
    r->failed += ended.status != 0;
    return results_do(r->db, "INSERT INTO trace VALUES (?1, ?2, ?3, ?4, ?5, ?6)", "itttdd",
                      r->points[point], path, command, ended.sentence, ideal, exposed);
}

/* ---- the loop ---- */

static void *sweep_run_work(void *argument)
{
    struct running *r = argument;
    struct sweep_ended ended;
    pthread_mutex_lock(&r->lock);
    while (!r->rc && !r->over && r->next < r->count) {
        if (r->sweep->budget_ns && mk_now_ns() - r->began > r->sweep->budget_ns) {
            r->over = 1;
            break;
        }
        int rc = ending_came() ? -EINTR : sweep_run_one(r, &r->jobs[r->next++], &ended);
        r->rc = r->rc ? r->rc : rc;
        if (rc == -EINTR)
            *r->how->stopped = ending_came();
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

static int sweep_run_loop(struct running *r, char *error, size_t size)
{
    *r->how->stopped = 0;
    r->began = mk_now_ns();
    pthread_mutex_init(&r->lock, NULL);
    sweep_threads(r->sweep->jobs < r->count ? r->sweep->jobs : r->count, sweep_run_work, r);
    pthread_mutex_destroy(&r->lock);
    int rc = r->rc;
    if (r->over && !rc)
        return 0;
    for (uint32_t i = 0; i < r->sweep->point_count && !rc; i++)
        rc = sweep_run_trace(r, i, r->how->stopped);
    if (rc && rc != -EINTR)
        snprintf(error, size, "%s could not be written: %s", r->how->out, sqlite3_errmsg(r->db));
    return rc;
}

static int sweep_run_say(struct running *r, int rc, int over, uint32_t before, uint32_t all,
                         char *error)
{
    uint32_t jobs = before + r->right + r->wrong + r->failed + r->impossible;
    /* those from before count, too: what went wrong then is not right now */
    int64_t wrong = query_integer(r->db, 0, "SELECT count(*) FROM job WHERE verdict = 'wrong'", "");
    int64_t failed =
        query_integer(r->db, 0, "SELECT count(*) FROM job WHERE verdict = 'failed'", "");
    char how[256];
    snprintf(how, sizeof how, "%s",
             rc == -EINTR ? "interrupted"
             : over       ? "budget spent"
             : rc         ? "failed"
                          : "done");
    char now[32];
    sweep_now(now);
    results_do(r->db, "UPDATE sweep SET ended = ?1, how = ?2 WHERE id = ?3", "tti", now, how,
               r->id);
    if (rc && rc != -EINTR) {
        fprintf(stderr, "mkernel sweep: %s\n", error);
        return STATUS_FAILED;
    }
    int status = rc == -EINTR ? STATUS_FAILED
                 : wrong      ? STATUS_WRONG
                 : failed     ? STATUS_FAILED
                              : STATUS_DONE;
    if (r->how->silent)
        return status;
    fprintf(stderr, "mkernel sweep: ");
    if (rc == -EINTR)
        fprintf(stderr, "interrupted by signal %d; ", *r->how->stopped);
    else if (over)
        fprintf(stderr, "the budget of time is spent; ");
    fprintf(stderr, "%u of %u jobs of %u points are in %s%s", jobs, all, r->sweep->point_count,
            r->how->whole ? "this task's part of " : "",
            r->how->whole ? r->how->whole : r->how->out);
    if (before)
        fprintf(stderr, ", %u from before", before);
    if (wrong)
        fprintf(stderr, "; %ld wrong", wrong);
    if (failed)
        fprintf(stderr, "; %ld failed (--retry does them again)", failed);
    if (rc == -EINTR || over)
        fprintf(stderr, "; the same command goes on from there");
    fprintf(stderr, "\n");
    return status;
}

int sweep_run(struct sweep *s, const struct sweep_how *how)
{
    struct running r = {.sweep = s, .how = how, .folder = "/tmp/mkernel-sweep-XXXXXX"};
    char error[2000];
    uint32_t all = s->point_count * (uint32_t)s->repeats, count = 0;
    struct sweep_job *jobs = sweep_take(s, all * sizeof *jobs);
    int status = STATUS_FAILED;
    r.points = sweep_take(s, s->point_count * sizeof *r.points);
    r.seconds = sweep_take(s, s->point_count * sizeof *r.seconds);
    r.counted = sweep_take(s, s->point_count * sizeof *r.counted);
    int rc = jobs && r.points && r.seconds && r.counted ? 0 : -ENOMEM;
    snprintf(error, sizeof error, "no memory for %u jobs", all);
    if (!rc && (rc = results_create(&r.db, how->out, error, sizeof error)))
        status = STATUS_USAGE;
    if (!rc && how->whole) { /* another task may be about to make it: nothing is in it then */
        rc = results_open(&r.whole, how->whole, error, sizeof error);
        rc = rc == -ENOENT || rc == -ENODATA ? 0 : rc;
        status = rc ? STATUS_USAGE : status;
    }
    if (!rc && (rc = sweep_store_begin(&r, error, sizeof error)))
        status = rc == -EINVAL ? STATUS_USAGE : STATUS_FAILED;
    if (!rc && !mkdtemp(r.folder))
        rc = mk_fail(-errno, error, sizeof error, "no folder could be made in /tmp: %s",
                     strerror(errno));
    if (rc) {
        fprintf(stderr, "mkernel sweep: %s\n", error);
        sqlite3_close(r.db);
        sqlite3_close(r.whole);
        return status;
    }
    sweep_order(s, jobs);
    for (uint32_t i = 0; i < all; i++)
        if (!sweep_store_has(&r, &jobs[i]))
            jobs[count++] = jobs[i];
    sqlite3_close(r.whole); /* others write it while jobs run */
    r.whole = NULL;
    if (!how->quiet && count < all)
        fprintf(stderr, "%u of %u jobs are there already\n", all - count, all);
    r.jobs = jobs;
    r.count = count;
    rc = sweep_run_loop(&r, error, sizeof error);
    rmdir(r.folder);
    status = sweep_run_say(&r, rc, r.over, all - count, all, error);
    sqlite3_close(r.db);
    return status;
}
