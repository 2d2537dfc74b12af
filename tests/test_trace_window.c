/* mk_trace_begin and mk_trace_end bracket a stretch of a program: the file holds the launches
 * between them and no others, however many came before, of every rank and node; what cannot be is
 * refused with a sentence, and a file that cannot be written costs the trace and nothing else. */
#include "core/comm/comm.h"
#include "tests/helpers/job.h"

#include <sqlite3.h>
#include "tests/helpers/test.h"

#include "tests/helpers/folder.h"

enum { M = 64, N = 64, K = 64, EVENTS = 128 };

static char path[256];
static uint32_t nodes;
static enum mk_exec exec;

struct rank {
    struct mk_comm *comm;
    struct mk_plan *plan;
    uint16_t a[M * K], b[K * N], c[M * N];
} __attribute__((aligned(16)));

static int open_rank(struct rank *r, const struct bootstrap_config *c, uint32_t events)
{
    struct mk_config config = {.version = MK_VERSION_NUMBER,
                               .rank = c->rank,
                               .nodes = nodes,
                               .gpus = c->world / nodes,
                               .exec = exec,
                               .port = c->port,
                               .listen_fd = c->listen_fd,
                               .nic = "soft",
                               .heap_bytes = 1 << 20,
                               .timeout_ns = c->timeout_ns,
                               .trace_events = events,
                               .tuning = "none"};
    struct mk_spec spec = {.op = MK_OP_AG_GEMM, .shape = {M, N, K}};
    memcpy(config.host, c->host, sizeof config.host);
    memcpy(config.token, c->token, sizeof config.token);
    memset(r, 0, sizeof *r);
    int result = mk_comm_open(&r->comm, &config);
    return result ? result : mk_plan_create(&r->plan, r->comm, &spec);
}

static int launches(struct rank *r, int count)
{
    int result = 0;
    for (int i = 0; i < count && !result; i++)
        result = mk_ag_gemm(r->plan, r->a, r->b, r->c, NULL);
    return result;
}

static int close_rank(struct rank *r, int result, char *text, size_t size)
{
    if (result)
        snprintf(text, size, "%d: %s", result, mk_error(r->comm));
    mk_comm_close(r->comm);
    return result;
}

/* How many rows `query` counts in the file. */
static int count_of(const char *query)
{
    sqlite3 *db;
    sqlite3_stmt *s;
    assert_int_equal(sqlite3_open_v2(path, &db, SQLITE_OPEN_READONLY, NULL), SQLITE_OK);
    if (sqlite3_prepare_v2(db, query, -1, &s, NULL))
        fail_msg("%s: %s", query, sqlite3_errmsg(db));
    assert_int_equal(sqlite3_step(s), SQLITE_ROW);
    int count = sqlite3_column_int(s, 0);
    sqlite3_finalize(s);
    sqlite3_close(db);
    return count;
}

static void run_ranks(job_main scene, uint32_t of_nodes, const char *wanted)
{
    struct job j;
    nodes = of_nodes;
    job_init(&j, 2, 60);
    job_start_all(&j, scene, NULL);
    close(j.listener);
    for (uint32_t r = 0; r < j.world; r++) {
        job_wait(&j, r);
        if (!j.reports[r].came || j.reports[r].result || strcmp(j.reports[r].text, wanted))
            fail_msg("rank %u: %d: %s", r, j.reports[r].result, j.reports[r].text);
    }
}

/* ---- what is recorded ---- */

/* Launches before it overfill the tracks; those after it are of no trace. */
static int bracket(const struct bootstrap_config *c, char *text, size_t size, void *argument)
{
    static struct rank r;
    int result = open_rank(&r, c, EVENTS);
    if (!result)
        result = launches(&r, 100);
    if (!result)
        result = mk_trace_begin(r.comm);
    if (!result)
        result = launches(&r, 3);
    if (!result)
        result = mk_trace_end(r.comm, c->rank ? NULL : path, "a test");
    if (!result)
        result = launches(&r, 2);
    return close_rank(&r, result, text, size);
}

static void check_three_launches(void)
{
    assert_int_equal(count_of("SELECT count(*) FROM launch"), 3);
    assert_int_equal(count_of("SELECT min(epoch) FROM launch"), 101);
    assert_int_equal(count_of("SELECT count(*) FROM launch_rank"), 6);
    assert_true(count_of("SELECT count(*) FROM events WHERE kind = 'tile'") >= 6);
    assert_int_equal(count_of("SELECT coalesce(sum(dropped), 0) FROM \"drop\""), 0);
    assert_int_equal(count_of("SELECT count(*) FROM run WHERE command = 'a test'"), 1);
    assert_int_equal(count_of("SELECT count(*) FROM run WHERE executor = 'host'"),
                     exec == MK_EXEC_HOST);
    assert_int_equal(count_of("SELECT count(DISTINCT rank) FROM track"), 2);
}

CASE(launches_in_between_are_recorded)
{
    run_ranks(bracket, 1, "");
    check_three_launches();
}

CASE(messages_in_between_are_recorded)
{
#ifndef MK_HAVE_VERBS
    print_message("skipped: this build has no network\n");
    skip();
#endif
    run_ranks(bracket, 2, "");
    check_three_launches();
    assert_true(count_of("SELECT count(*) FROM message") >= 6);
    assert_int_equal(count_of("SELECT count(*) FROM message WHERE epoch < 101"), 0);
}

CASE(the_emulated_gpu_forgets_too)
{
#ifndef MK_HAVE_EMULATION
    print_message("skipped: this build has no emulated GPU\n");
    skip();
#endif
    exec = MK_EXEC_EMULATED;
    run_ranks(bracket, 1, "");
    check_three_launches();
    exec = MK_EXEC_HOST;
}

/* Launches may be told to leave no events, as those that are timed. */
static int told_not_to(const struct bootstrap_config *c, char *text, size_t size, void *argument)
{
    static struct rank r;
    int result = open_rank(&r, c, EVENTS);
    if (!result)
        result = mk_trace_begin(r.comm);
    for (int i = 0; i < 4 && !result; i++) {
        r.comm->unrecorded = i % 2;
        result = launches(&r, 1 + i);
        int waited = mk_wait(r.comm);
        result = result ? result : waited;
    }
    if (!result)
        result = mk_trace_end(r.comm, path, NULL);
    return close_rank(&r, result, text, size);
}

static void check_told(void)
{
    assert_int_equal(count_of("SELECT count(*) FROM launch"), 1 + 3);
    assert_int_equal(count_of("SELECT count(*) FROM launch WHERE epoch IN (2, 3)"), 0);
    assert_int_equal(count_of("SELECT count(*) FROM launch WHERE epoch > 6"), 0);
}

CASE(launches_that_are_told_not_to_leave_no_events)
{
    run_ranks(told_not_to, 1, "");
    check_told();
#ifdef MK_HAVE_EMULATION
    exec = MK_EXEC_EMULATED;
    run_ranks(told_not_to, 1, "");
    check_told();
    exec = MK_EXEC_HOST;
#endif
}

/* One file after the other over the same path: each has its own launches. */
static int twice(const struct bootstrap_config *c, char *text, size_t size, void *argument)
{
    static struct rank r;
    int result = open_rank(&r, c, EVENTS);
    for (int i = 3; i > 0 && !result; i--) {
        result = mk_trace_begin(r.comm);
        if (!result)
            result = launches(&r, i);
        if (!result)
            result = mk_trace_end(r.comm, path, NULL);
    }
    return close_rank(&r, result, text, size);
}

CASE(each_trace_has_its_own_launches)
{
    run_ranks(twice, 1, "");
    assert_int_equal(count_of("SELECT count(*) FROM launch"), 1);
    assert_int_equal(count_of("SELECT epoch FROM launch"), 6);
}

/* ---- what cannot be ---- */

static int without_room(const struct bootstrap_config *c, char *text, size_t size, void *argument)
{
    static struct rank r;
    int result = open_rank(&r, c, 0), refused = mk_trace_begin(r.comm);
    if (!result && refused != -EINVAL)
        result = -EPROTO;
    snprintf(text, size, "%s", mk_error(r.comm));
    if (!result && mk_trace_end(r.comm, path, NULL) != -EINVAL)
        result = -EPROTO;
    if (!result)
        result = launches(&r, 1);
    if (!result)
        result = mk_wait(r.comm);
    mk_comm_close(r.comm);
    return result;
}

CASE(a_communicator_without_records_is_refused)
{
    run_ranks(without_room, 1,
              "a trace of a communicator that was opened without trace_events: say how many "
              "records each track may hold");
}

/* Rank 0 hears why; both go on. */
static int no_such_folder(const struct bootstrap_config *c, char *text, size_t size, void *argument)
{
    static struct rank r;
    int result = open_rank(&r, c, EVENTS);
    if (!result)
        result = mk_trace_begin(r.comm);
    if (!result)
        result = launches(&r, 1);
    if (!result) {
        int said = mk_trace_end(r.comm, "/nowhere/at/all.db", NULL);
        if (c->rank ? said != 0
                    : said != -ENOENT || !strstr(mk_error(r.comm), "/nowhere/at/all.db"))
            result = -EPROTO;
    }
    if (!result)
        result = launches(&r, 1);
    if (!result)
        result = mk_wait(r.comm);
    return close_rank(&r, result, text, size);
}

CASE(a_file_that_cannot_be_written_costs_the_trace_alone)
{
    run_ranks(no_such_folder, 1, "");
}

static int set_path(void **state)
{
    int result = folder_make(state);
    snprintf(path, sizeof path, "%s/window.db", folder);
    return result;
}

FIXTURE(set_path, folder_remove)
