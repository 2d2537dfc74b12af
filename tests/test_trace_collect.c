/* trace_collect brings what every rank of a job recorded into one file at rank 0; when that file
 * cannot be written, rank 0 alone hears of it and the job goes on, and so it does where storing
 * takes longer than a wait may. trace_collect_local does the same for ranks of one process. */
/* WAITS */
#include "tests/helpers/test.h"
#include "core/comm/comm.h"
#include "tests/helpers/job.h"
#include "tests/helpers/trace_parts.h"

#define WORLD 3

static double slow;   /* seconds that the disk takes */
static uint32_t many; /* tiles of a rank beside the one */

/* In place of the system's, for what this program stores. */
int fsync(int fd)
{
    job_sleep(slow);
    return 0;
}

/* What an executor leaves behind: one tile of rank + 1 us on its compute CTA, and a plan. */
struct rank_state {
    struct mk_comm comm;
    struct mk_plan plan;
    struct mk_track tracks[3];
    struct mk_event events[3][4];
};

static int make_rank(struct rank_state *s, uint32_t rank, char *text, size_t size)
{
    struct mk_problem q = {.op = MK_OP_AG_GEMM,
                           .exec = MK_EXEC_HOST,
                           .topo = {1, WORLD, rank},
                           .m = 64 * WORLD,
                           .n = 64,
                           .k = 64};
    memset(s, 0, sizeof *s);
    int rc = plan_build(&s->plan, &q, 0, 0, text, size);
    s->plan.id = 1;
    s->comm.topo = q.topo;
    s->comm.plans[0] = &s->plan;
    s->comm.plan_count = 1;
    s->comm.tracks = s->tracks;
    s->comm.track_count = mk_total_ctas(&s->plan.problem.tuning.split);
    s->comm.track_warps = 1;
    if (s->comm.track_count > 3)
        return -E2BIG;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    uint64_t t = (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
    for (uint32_t c = 0; c < s->comm.track_count; c++) {
        s->tracks[c] = (struct mk_track){s->events[c], 4, 0, c};
        mk_track_add(&s->tracks[c], mk_event_what(MK_EV_LAUNCH, 1, 1), t, t);
    }
    mk_track_add(&s->tracks[0], mk_event_what(MK_EV_TILE, 0, rank), t, t + 1000 * (rank + 1));
    if (!rc && many) {
        s->tracks[0].events = malloc((many + 4ull) * sizeof *s->tracks[0].events);
        if (!s->tracks[0].events)
            return -ENOMEM;
        memcpy(s->tracks[0].events, s->events[0], sizeof s->events[0]);
        s->tracks[0].capacity = many + 4;
        for (uint32_t i = 0; i < many; i++)
            mk_track_add(&s->tracks[0], mk_event_what(MK_EV_TILE, 0, rank), t + 1000ull * i,
                         t + 1000ull * i + rank + 1);
    }
    return rc;
}

static int rank_main(const struct bootstrap_config *config, char *text, size_t size, void *path)
{
    static struct rank_state s;
    static struct trace_samples before;
    const struct trace_metric metric = {"launch_median", "ns", 42};
    const struct trace_run run = {.executor = "host",
                                  .device = config->rank == 1 ? "the second" : NULL,
                                  .host_clock = &before,
                                  .metrics = &metric,
                                  .metric_count = 1};
    int rc = make_rank(&s, config->rank, text, size);
    rc = rc ? rc : bootstrap_join(&s.comm.bootstrap, config, text, size);
    rc = rc ? rc : trace_sample_clock(&s.comm, &before, 16);
    if (rc)
        return rc;
    rc = trace_collect(&s.comm, &run, path, text, size);
    /* the communicator is usable whatever came of the trace */
    int barrier = bootstrap_barrier(s.comm.bootstrap);
    bootstrap_leave(s.comm.bootstrap);
    return barrier ? barrier : rc;
}

static void run_job(struct job *j, const char *path)
{
    job_init(j, WORLD, 10);
    job_start_all(j, rank_main, (void *)(uintptr_t)path);
    job_finish(j);
    for (int r = 0; r < WORLD; r++)
        assert_int_equal(j->reports[r].came, 1);
}

static void assert_trace(const char *path)
{
    char error[512];
    sqlite3 *db;
    if (trace_open(&db, path, error, sizeof error))
        fail_msg("%s", error);
    parts_ask(db,
              "SELECT t.rank, e.ns FROM event e JOIN track t ON t.id = e.track WHERE e.kind = 2 "
              "ORDER BY 1",
              "0|1000;1|2000;2|3000");
    parts_ask(db, "SELECT count(*), min(shape), max(dropped) FROM run", "1|192,64,64|9");
    /* the last of a wave of two is halved */
    parts_ask(db, "SELECT count(*) FROM tile WHERE plan = 1", "4");
    parts_ask(db, "SELECT count(*), count(DISTINCT rank), min(text) FROM flags WHERE producer = 2",
              "3|3|chunk 0 of rank 2's A");
    sqlite3_close(db);
}

CASE(test_job)
{
    struct job j;
    char path[128], error[512];
    sqlite3 *db;
    snprintf(path, sizeof path, "%s", parts_path("job.db"));
    run_job(&j, path);
    for (int r = 0; r < WORLD; r++)
        if (j.reports[r].result)
            fail_msg("rank %d: %d (%s)", r, j.reports[r].result, j.reports[r].text);
    assert_trace(path);
    assert_int_equal(trace_open(&db, path, error, sizeof error), 0);
    /* Processes of one host share its clock: nothing is uncertain. The samples, 16 before and 64
     * after, are kept. */
    parts_ask(db, "SELECT rank, residual_ns, samples FROM clock ORDER BY rank",
              "0|0|0;1|0|80;2|0|80");
    parts_ask(db, "SELECT count(*), min(rank) FROM clock_sample", "160|1");
    parts_ask(db, "SELECT device FROM rank WHERE device IS NOT NULL", "the second");
    parts_ask(db, "SELECT name, value, unit FROM metric WHERE name NOT LIKE 'plan %'",
              "launch_median|42.0|ns");
    sqlite3_close(db);
}

/* Several rounds of a gather: what comes is what was recorded. */
CASE(test_much)
{
    struct job j;
    char path[128], error[512];
    sqlite3 *db;
    many = 120000;
    snprintf(path, sizeof path, "%s", parts_path("much.db"));
    run_job(&j, path);
    many = 0;
    for (int r = 0; r < WORLD; r++)
        if (j.reports[r].result)
            fail_msg("rank %d: %d (%s)", r, j.reports[r].result, j.reports[r].text);
    assert_int_equal(trace_open(&db, path, error, sizeof error), 0);
    parts_ask(db,
              "SELECT t.rank, count(*), sum(e.ns) FROM event e JOIN track t ON t.id = e.track "
              "WHERE e.kind = 2 GROUP BY 1 ORDER BY 1",
              "0|120001|121000;1|120001|242000;2|120001|363000");
    sqlite3_close(db);
}

CASE(test_slow_disk)
{
    struct job j;
    char path[128];
    slow = 7;
    snprintf(path, sizeof path, "%s", parts_path("slow.db"));
    job_init(&j, WORLD, 3);
    job_start_all(&j, rank_main, path);
    job_finish(&j);
    slow = 0;
    for (int r = 0; r < WORLD; r++) {
        assert_int_equal(j.reports[r].came, 1);
        if (j.reports[r].result)
            fail_msg("rank %d: %d (%s)", r, j.reports[r].result, j.reports[r].text);
    }
    assert_trace(path);
}

CASE(test_no_room)
{
    struct job j;
    run_job(&j, "/none/t.db");
    assert_int_equal(j.reports[0].result, -ENOENT);
    assert_non_null(strstr(j.reports[0].text, "cannot create the trace '/none/t.db"));
    for (int r = 1; r < WORLD; r++)
        assert_int_equal(j.reports[r].result, 0);
}

CASE(test_local)
{
    static struct rank_state s[WORLD];
    struct mk_comm *comms[WORLD];
    const struct trace_run run = {.source = "simulated", .executor = "sim"};
    char error[512];
    for (uint32_t r = 0; r < WORLD; r++) {
        assert_int_equal(make_rank(&s[r], r, error, sizeof error), 0);
        comms[r] = &s[r].comm;
    }
    if (trace_collect_local(comms, WORLD, &run, parts_path("local.db"), error, sizeof error))
        fail_msg("%s", error);
    assert_trace(parts_path("local.db"));
}

FIXTURE(NULL, parts_clean)
