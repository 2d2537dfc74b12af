/* The jobs of a sweep, one after the other or several at once, each with its row in the results
 * file. */
#include "experiments/sweep/sweep.h"
#include "core/clock.h"
#include "core/sentence.h"
#include "experiments/common/commands.h"
#include "experiments/results/results_file.h"
#include "experiments/results/results_merge.h"
#include "tracer/bound.h"
#include "tracer/reader.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct running {
    struct sweep *sweep;
    const struct sweep_how *how;
    sqlite3 *db;
    sqlite3 *whole;    /* what this is a part of, while jobs are chosen; NULL: nothing */
    int64_t id;        /* of this sweep */
    int64_t *points;   /* ids of the points */
    double *seconds;   /* that a job of each took, mean; 0: none is known */
    uint32_t *counted; /* jobs in it */
    char folder[64];   /* where commands leave their JSON */
    uint32_t right, wrong, failed, impossible; /* jobs of this call */
    uint64_t began;
    const struct sweep_job *jobs; /* that are to be done */
    uint32_t count, next, done;
    int over, rc;         /* the budget is spent; how it ended */
    pthread_mutex_t lock; /* of all of this, but not while a job runs */
};

/* `work` on so many threads, this one among them. */
static void sweep_run_threads(uint64_t most, void *(*work)(void *), void *argument)
{
    pthread_t threads[SWEEP_JOBS];
    uint64_t started = 0;
    while (started + 1 < most && !pthread_create(&threads[started], NULL, work, argument))
        started++;
    work(argument);
    while (started)
        pthread_join(threads[--started], NULL);
}

static void sweep_run_now(char text[32])
{
    time_t now = time(NULL);
    struct tm tm;
    strftime(text, 32, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &tm));
}

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
    sweep_run_threads(s->jobs, sweep_ask_work, &a);
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

/* ---- the results file ---- */

/* Another machine than `text` that the file's jobs were measured with; where tasks share the
 * points, another host is none. */
static void sweep_run_find_other(sqlite3 *db, int spread, const char *text, char *other,
                                 size_t size)
{
    static const char sql[] = "SELECT identity FROM machine WHERE CASE WHEN ?2 "
                              "THEN " RESULTS_BUILD("identity") " <> " RESULTS_BUILD(
                                  "?1") " ELSE identity <> ?1 END AND EXISTS (SELECT * FROM job) "
                                        "LIMIT 1";
    QUERY q = query_ask(db, sql, "ti", text, (int64_t)spread);
    const char *found;
    if (query_row(q, "t", &found))
        snprintf(other, size, "%s", found);
}

/* The points, the machine and this sweep; 0, or -EINVAL or -EIO with a sentence. */
static int sweep_run_enter(struct running *r, char *error, size_t size)
{
    struct sweep *s = r->sweep;
    char now[32], *facts = sweep_machine();
    if (!facts)
        return -ENOMEM;
    snprintf(error, size, "%s cannot be written", r->how->out);
    sweep_run_now(now);
    static const char identity[] =
        "SELECT json_extract(?1, '$.host') || ', mkernel ' || json_extract(?1, '$.mkernel') || "
        "' at ' || json_extract(?1, '$.commit') || ', ' || json_extract(?1, '$.build') || "
        "', driver ' || json_extract(?1, '$.nvidia_driver')";
    char text[800] = "", other[800] = "";
    sqlite3_stmt *q = query_ask(r->db, identity, "t", facts);
    const char *who_am_i;
    if (query_row(q, "t", &who_am_i))
        snprintf(text, sizeof text, "%s", who_am_i);
    sqlite3_finalize(q);
    sweep_run_find_other(r->db, r->how->whole != NULL, text, other, sizeof other);
    if (!*other && r->whole)
        sweep_run_find_other(r->whole, 1, text, other, sizeof other);
    if (*other && !r->how->mix) {
        snprintf(error, size,
                 "%s was measured with %s, and this is %s: name another file with --out, or --mix "
                 "puts both into one",
                 r->how->whole ? r->how->whole : r->how->out, other, text);
        free(facts);
        return -EINVAL;
    }
    int rc = sqlite3_exec(r->db, "BEGIN IMMEDIATE", NULL, NULL, NULL) ? -EIO : 0;
    rc = rc ? rc
            : results_do(r->db,
                         "INSERT INTO machine (identity, facts) VALUES (?1, ?2) ON CONFLICT DO "
                         "UPDATE SET facts = ?2",
                         "tt", text, facts);
    rc = rc ? rc
            : results_do(r->db,
                         "INSERT INTO sweep (name, question, text, command, seed, machine, begun) "
                         "SELECT ?1, ?2, ?3, ?4, ?5, id, ?6 FROM machine WHERE identity = ?7",
                         "ttttitt", s->name, s->question, s->text, r->how->command,
                         (int64_t)s->seed, now, text);
    r->id = sqlite3_last_insert_rowid(r->db);
    for (uint32_t i = 0; i < s->point_count && !rc; i++) {
        const struct sweep_point *p = &s->points[i];
        rc = results_do(r->db, "INSERT INTO point (key) VALUES (?1) ON CONFLICT DO NOTHING", "t",
                        p->key);
        r->points[i] = query_integer(r->db, 0, "SELECT id FROM point WHERE key = ?1", "t", p->key);
        for (uint32_t k = 0; k < p->count && !rc; k++)
            rc = results_do(r->db, "INSERT INTO setting VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING",
                            "itt", r->points[i], p->settings[k].name, p->settings[k].value);
        for (uint32_t k = 0; k < s->published.count && !rc; k++) {
            const char *who = "";
            double flops = 0;
            if (sweep_is_published(p, &s->published.list[k], &who, &flops))
                rc = results_do(r->db, "INSERT OR REPLACE INTO published VALUES (?1, ?2, ?3)",
                                "itd", r->points[i], who, flops);
        }
        if (!rc && r->how->retry)
            rc = results_do(r->db,
                            "DELETE FROM job WHERE point = ?1 AND verdict IN ('failed', "
                            "'impossible') AND id NOT IN (SELECT job FROM sample)",
                            "i", r->points[i]);
    }
    if (sqlite3_exec(r->db, rc ? "ROLLBACK" : "COMMIT", NULL, NULL, NULL) && !rc)
        rc = -EIO;
    free(facts);
    return rc;
}

static int sweep_run_is_done(struct running *r, const struct sweep_job *j)
{
    if (r->whole) {
        bound_begin(r->whole);
        if (query_integer(
                r->whole, 0,
                "SELECT count(*) FROM job j JOIN point p ON p.id = j.point WHERE p.key = ?1 AND "
                "repeat = ?2 AND NOT (?3 AND verdict IN ('failed', 'impossible') AND j.id NOT IN "
                "(SELECT job FROM sample))",
                "tii", r->sweep->points[j->point].key, (int64_t)j->repeat, (int64_t)r->how->retry))
            return 1;
    }
    return query_integer(r->db, 0, "SELECT count(*) FROM job WHERE point = ?1 AND repeat = ?2",
                         "ii", r->points[j->point], (int64_t)j->repeat) > 0;
}

/* What the command left, malloc'd; NULL where there is nothing. */
static char *sweep_run_read(const char *path)
{
    FILE *f = fopen(path, "re");
    struct stat st;
    if (!f)
        return NULL;
    char *text = fstat(fileno(f), &st) ? NULL : malloc((size_t)st.st_size + 1);
    size_t length = text ? fread(text, 1, (size_t)st.st_size, f) : 0;
    fclose(f);
    if (text && !length) {
        free(text);
        text = NULL;
    }
    if (text)
        text[length] = '\0';
    return text;
}

struct outcome {
    const char *verdict, *command, *begun, *sentence;
    double seconds, load;
    int status;
    char *result; /* JSON; NULL: none */
    struct sweep_power_sample *power;
    uint32_t power_count;
};

/* One transaction: half a job is none. */
static int sweep_run_store(struct running *r, const struct sweep_job *j, const struct outcome *o)
{
    static const char samples[] =
        /* a bench on GPUs has rows; the shape of a job is one */
        "INSERT INTO sample SELECT ?1, w.key, s.key, l.key, 0, l.value FROM "
        "json_each(?2, '$.samples_ms') w, json_each(w.value) s, json_each(s.value) l";
    static const char warmups[] =
        "INSERT INTO sample SELECT ?1, 'fused', s.key, l.key, 1, l.value FROM "
        "json_each(?2, '$.warmup_ms') s, json_each(s.value) l";
    /* a simulation's launches are alike */
    static const char simulated[] =
        "INSERT INTO sample SELECT ?1, 'fused', 0, 0, 0, json_extract(?2, '$.ms_mean') WHERE "
        "json_extract(?2, '$.ms_mean') IS NOT NULL AND json_extract(?2, '$.samples_ms') IS NULL";
    int rc = sqlite3_exec(r->db, "BEGIN IMMEDIATE", NULL, NULL, NULL) ? -EIO : 0;
    rc = rc ? rc
            : results_do(r->db,
                         "INSERT INTO job (point, repeat, sweep, begun, seconds, command, status, "
                         "verdict, sentence, load, result) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, "
                         "?9, ?10, json_remove(?11, '$.samples_ms', '$.warmup_ms'))",
                         "iiitdtittdt", r->points[j->point], (int64_t)j->repeat, r->id, o->begun,
                         o->seconds, o->command, (int64_t)o->status, o->verdict, o->sentence,
                         o->load, o->result);
    int64_t id = sqlite3_last_insert_rowid(r->db);
    if (!rc && o->result && !strcmp(o->verdict, "wrong")) /* a wrong result has no time */
        rc = 0;
    else if (!rc && o->result) {
        rc = results_do(r->db, samples, "it", id, o->result);
        rc = rc ? rc : results_do(r->db, warmups, "it", id, o->result);
        rc = rc ? rc : results_do(r->db, simulated, "it", id, o->result);
    }
    for (uint32_t i = 0; i < o->power_count && !rc; i++) {
        const struct sweep_power_sample *p = &o->power[i];
        rc = results_do(r->db, "INSERT INTO power VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)", "ididddd",
                        id, p->seconds, (int64_t)p->gpu, p->sm_mhz, p->memory_mhz, p->watts,
                        p->celsius);
    }
    if (sqlite3_exec(r->db, rc ? "ROLLBACK" : "COMMIT", NULL, NULL, NULL) && !rc)
        rc = -EIO;
    return rc;
}

/* A bench on GPUs writes a list of rows, here of one shape: it becomes one object. NULL: it is no
 * JSON. */
static char *sweep_run_flatten(struct running *r, char *text)
{
    char *flat = NULL;
    QUERY q =
        query_ask(r->db,
                  "SELECT CASE WHEN json_valid(?1) THEN CASE WHEN json_extract(?1, '$.rows[0]') "
                  "IS NULL THEN ?1 ELSE json_patch(json_remove(?1, '$.rows'), json_extract(?1, "
                  "'$.rows[0]')) END END",
                  "t", text);
    const char *object;
    if (query_row(q, "t", &object) && *object)
        flat = strdup(object);
    free(text);
    return flat;
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
    return strstr(result, "\"not checked\"") ? "unchecked" : "right";
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
    sweep_run_now(begun);
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
        int rc = sweep_crew_run(ended, &c, r->sweep->limit_ns);
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
        o.result = sweep_run_read(result);
        unlink(result);
        o.result = o.result ? sweep_run_flatten(r, o.result) : NULL;
        o.verdict = sweep_run_verdict(r, p, ended, o.result);
    }
    o.sentence = ended->sentence;
    o.seconds = ended->seconds;
    o.status = ended->status;
    int rc = sweep_run_store(r, j, &o);
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

/* Which part of a launch an ideal one would have taken, and which was communication that no compute
 * covered. */
static void sweep_run_weigh(const char *path, double *ideal, double *exposed)
{
    char error[512];
    sqlite3 *db;
    *ideal = *exposed = NAN;
    if (trace_open(&db, path, error, sizeof error))
        return;
    sqlite3_stmt *q = query_ask(db,
                                "SELECT (SELECT avg(1.0 * ideal_ns / slowest_ns) FROM launches "
                                "WHERE (SELECT told FROM launch_spread)), (SELECT 1.0 * "
                                "sum(comm_only) / sum(end - start) FROM launch_rank)",
                                "");
    /* launches that differ too much have no ideal */
    if (query_row(q, "dd", ideal, exposed) && trace_damage())
        *ideal = *exposed = NAN;
    sqlite3_finalize(q);
    sqlite3_close(db);
}

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
    snprintf(path, sizeof path, "%s.traces/%lld.db", r->how->out, (long long)r->points[point]);
    sweep_make_command(&c, p, SWEEP_TRACE, r->sweep->seed, path);
    sweep_say_command(&c, command, sizeof command);
    int rc = sweep_crew_run(&ended, &c, r->sweep->limit_ns);
    if (rc || ended.stopped) {
        *stopped = ended.stopped;
        return rc ? rc : -EINTR;
    }
    sweep_run_weigh(path, &ideal, &exposed);
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
        int rc = sweep_stopped() ? -EINTR : sweep_run_one(r, &r->jobs[r->next++], &ended);
        r->rc = r->rc ? r->rc : rc;
        if (rc == -EINTR)
            *r->how->stopped = sweep_stopped();
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

static int sweep_run_loop(struct running *r, char *error, size_t size)
{
    *r->how->stopped = 0;
    r->began = mk_now_ns();
    pthread_mutex_init(&r->lock, NULL);
    sweep_run_threads(r->sweep->jobs < r->count ? r->sweep->jobs : r->count, sweep_run_work, r);
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
    sweep_run_now(now);
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
        fprintf(stderr, "; %lld wrong", (long long)wrong);
    if (failed)
        fprintf(stderr, "; %lld failed (--retry does them again)", (long long)failed);
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
    if (!rc && (rc = sweep_run_enter(&r, error, sizeof error)))
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
        if (!sweep_run_is_done(&r, &jobs[i]))
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
