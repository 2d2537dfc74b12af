/* What the trace commands print is what the trace holds: the export is JSON that keeps the Trace
 * Event Format's rules, the summary and the comparison show the figures of the views, a picture is drawn
 * its script, and bad arguments end in one sentence. */
#include "tests/helpers/command.h"
#include "tests/helpers/json.h"
#include "experiments/trace/trace_cli.h"
#include "tests/helpers/trace_parts.h"

static sqlite3 *db;

static int open_trace(void **state)
{
    static struct parts p;
    parts_make(&p);
    snprintf(p.part[1].host, sizeof p.part[1].host, "odd \"name\"\t\\ \xff");
    parts_store(&p, db);
    return 0;
}

static int close_trace(void **state)
{
    sqlite3_close(db);
    return parts_clean(state);
}

static char *export(const struct trace_export *what)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    trace_export_chrome(db, what, out);
    assert_int_equal(fclose(out), 0);
    return text;
}

static double number(const struct json *e, const char *key)
{
    const struct json *m = json_get(e, key);
    if (!m || m->type != JSON_NUMBER)
        fail_msg("an event lacks the number %s", key);
    return m->number;
}

static const char *string(const struct json *e, const char *key)
{
    const struct json *m = json_get(e, key);
    if (!m || m->type != JSON_STRING)
        fail_msg("an event lacks the string %s", key);
    return m->string;
}

/* What the format asks of each phase. */
static void check_event(const struct json *e)
{
    assert_int_equal(e->type, JSON_OBJECT);
    const char *phase = string(e, "ph");
    assert_int_equal(strlen(phase), 1);
    string(e, "name");
    assert_true(number(e, "pid") >= 0 && number(e, "tid") >= 0);
    if (*phase != 'M')
        assert_true(number(e, "ts") >= 0);
    switch (*phase) {
    case 'X':
        assert_true(number(e, "dur") >= 0);
        break;
    case 'i':
        assert_string_equal(string(e, "s"), "t");
        break;
    case 's':
    case 't':
    case 'f':
        number(e, "id");
        string(e, "cat");
        break;
    case 'M':
    case 'C':
        assert_non_null(json_get(e, "args"));
        assert_int_equal(json_get(e, "args")->type, JSON_OBJECT);
        break;
    default:
        fail_msg("phase %s", phase);
    }
}

/* Of a phase, and with a name that begins so. */
static int count(const struct json *events, char phase, const char *name)
{
    int n = 0;
    for (const struct json *e = events->first; e; e = e->next)
        n +=
            *string(e, "ph") == phase && (!name || !strncmp(string(e, "name"), name, strlen(name)));
    return n;
}

CASE(test_export)
{
    const struct trace_export everything = {0, UINT64_MAX, -1, 0};
    char *text = export(&everything);
    struct json *j = json_read(text);
    assert_non_null(j);
    const struct json *events = json_get(j, "traceEvents");
    assert_non_null(events);
    assert_int_equal(events->type, JSON_ARRAY);
    for (const struct json *e = events->first; e; e = e->next)
        check_event(e);
    assert_int_equal(count(events, 'M', "process_name"), 4);
    /* tracks, launches, messages */
    assert_int_equal(count(events, 'M', "thread_name"), 12 + 4 + 1);
    assert_int_equal(count(events, 'X', "tile"), 6);
    assert_int_equal(count(events, 'X', "tile 2: shard 2, row 0, column 0"), 1);
    assert_int_equal(count(events, 'X', "copy chunk 0 of rank 1"), 1);
    assert_int_equal(count(events, 'X', "launch 1"), 4);
    assert_int_equal(count(events, 'X', "chunk 0 of rank 0's A to rank 2"), 1);
    assert_int_equal(count(events, 'X', "in the ring") + count(events, 'X', "in the proxy") +
                         count(events, 'X', "on the network"),
                     3);
    assert_int_equal(count(events, 'X', "wait data"), 2);
    assert_int_equal(count(events, 'X', "wait network"), 1);
    assert_int_equal(count(events, 'X', "command"), 1);
    assert_int_equal(count(events, 'i', "launch"), 12);
    assert_int_equal(count(events, 'i', "signal"), 2);
    assert_int_equal(count(events, 's', NULL), 3);
    assert_int_equal(count(events, 'f', NULL), 3);
    assert_int_equal(count(events, 't', NULL), 1);
    assert_true(count(events, 'C', "network out") > 0);
    for (const struct json *e = events->first; e; e = e->next)
        if (!strncmp(string(e, "name"), "tile 2:", 7))
            assert_true(number(e, "pid") == 1 && number(e, "ts") == 0.07 &&
                        number(e, "dur") == 0.1);
        else if (!strcmp(string(e, "name"), "launch 1") && number(e, "pid") == 2)
            assert_true(number(e, "ts") == 0 && number(e, "dur") == 0.3);
        else if (*string(e, "ph") == 's' && !strcmp(string(e, "name"), "message"))
            assert_true(number(e, "ts") == 0.009); /* the command lasts from 0 to 10 */
        else if (*string(e, "ph") == 'f' && !strcmp(string(e, "name"), "message"))
            assert_true(number(e, "ts") == 0.179);          /* the wait from 50 to 180 */
        else if (!strncmp(string(e, "name"), "chunk 0", 7)) /* commanded at 10, completed at 200 */
            assert_true(number(e, "pid") == 0 && number(e, "ts") == 0.01 &&
                        number(e, "dur") == 0.19);
    json_free(j);
    free(text);
}

CASE(test_export_part)
{
    const struct trace_export part = {160, 175, 1, 0};
    char *text = export(&part);
    struct json *j = json_read(text);
    assert_non_null(j);
    const struct json *events = json_get(j, "traceEvents");
    /* rank 1's tile lasts from 70 to 170, its launch to 170 */
    assert_int_equal(count(events, 'X', NULL), 2);
    assert_int_equal(count(events, 'M', "process_name"), 1);
    json_free(j);
    free(text);
}

struct slice {
    int64_t tid, start, end;
    int order;
    const char *category;
};

static int compare_slices(const void *x, const void *y)
{
    const struct slice *a = x, *b = y;
    return a->tid != b->tid       ? (a->tid > b->tid) - (a->tid < b->tid)
           : a->start != b->start ? (a->start > b->start) - (a->start < b->start)
                                  : a->order - b->order;
}

/* As Perfetto reads a time (json_utils.cc). */
static int64_t read_ns(const struct json *e, const char *key)
{
    return (int64_t)(number(e, key) * 1000.0);
}

/* The innermost slice that is open on a thread at a time. */
static const struct slice *innermost(const struct slice *s, int n, int64_t tid, int64_t at)
{
    const struct slice *found = NULL;
    for (int i = 0; i < n; i++)
        if (s[i].tid == tid && s[i].start <= at && at < s[i].end)
            found = &s[i];
    return found;
}

/* In a simulated trace everything begins where something ends, and a CTA has several copies under
 * way: a reader still finds every slice inside or beside any other of its thread, and of every
 * arrow the slice that it means at both ends. */
CASE(test_export_of_simulation)
{
    static struct command_run sim;
    char line[512], error[512];
    sqlite3 *simulated;
    snprintf(line, sizeof line, "sim ag_gemm --nodes 2 --gpus 2 --launches 2 --trace %s",
             parts_path("sim.db"));
    command_start(&sim, line, NULL);
    assert_int_equal(command_finish(&sim, 60), 0);
    assert_int_equal(trace_open(&simulated, parts_path("sim.db"), error, sizeof error), 0);
    sqlite3 *old = db;
    db = simulated;
    const struct trace_export everything = {0, UINT64_MAX, -1, 0}, second = {0, UINT64_MAX, -1, 2};
    char *text = export(&everything), *part = export(&second);
    db = old;
    int64_t edges = query_integer(simulated, 0, "SELECT count(*) FROM edge", ""), copies = 0;
    int n = 0, arrows[2] = {0}, wrong = 0;
    struct json *j = json_read(text);
    assert_non_null(j);
    struct slice *slices = NULL;
    for (const struct json *e = json_get(j, "traceEvents")->first; e; e = e->next)
        if (*string(e, "ph") == 'X') {
            slices = realloc(slices, (size_t)(n + 1) * sizeof *slices);
            slices[n] = (struct slice){(int64_t)number(e, "tid"), read_ns(e, "ts"),
                                       read_ns(e, "ts") + read_ns(e, "dur"), n, string(e, "cat")};
            copies += !strcmp(slices[n++].category, "copy");
        }
    qsort(slices, (size_t)n, sizeof *slices, compare_slices);
    for (int i = 0; i < n; i++)
        for (int k = i + 1;
             k < n && slices[k].tid == slices[i].tid && slices[k].start < slices[i].end; k++)
            wrong += slices[k].end > slices[i].end;
    assert_int_equal(wrong, 0);
    assert_int_equal(copies,
                     query_integer(simulated, -1, "SELECT count(*) FROM event WHERE kind = 4", ""));
    for (const struct json *e = json_get(j, "traceEvents")->first; e; e = e->next) {
        char phase = *string(e, "ph");
        if (!strchr("stf", phase))
            continue;
        const struct slice *s = innermost(slices, n, (int64_t)number(e, "tid"), read_ns(e, "ts"));
        arrows[phase == 'f'] += phase != 't';
        wrong +=
            !s || !strcmp(s->category, "wait") != (phase == 'f' || !strcmp(s->category, "wait"));
        wrong +=
            phase == 't' && s && strcmp(s->category, "stage") && strcmp(s->category, "message");
    }
    assert_int_equal(wrong, 0);
    assert_true(arrows[0] == arrows[1] && arrows[0] == edges && edges > 100);
    json_free(j);
    j = json_read(part);
    assert_non_null(j);
    int64_t start, end;
    assert_int_equal(trace_launch(simulated, 2, &start, &end, error, sizeof error), 0);
    int tiles = 0;
    for (const struct json *e = json_get(j, "traceEvents")->first; e; e = e->next)
        if (*string(e, "ph") == 'X') {
            assert_true(read_ns(e, "ts") >= start && read_ns(e, "ts") + read_ns(e, "dur") <= end);
            tiles += !strcmp(string(e, "cat"), "tile");
        }
    assert_int_equal(tiles,
                     query_integer(simulated, -1,
                                   "SELECT count(*) FROM event WHERE kind = 2 AND launch = 2", ""));
    assert_int_equal(count(json_get(j, "traceEvents"), 'X', "launch 2"), 4);
    assert_int_equal(count(json_get(j, "traceEvents"), 'X', "launch 1"), 0);
    json_free(j);
    free(slices);
    free(text);
    free(part);
    sqlite3_close(simulated);
}

CASE(test_json_reader)
{
    static const char *const bad[] = {"",          "{",       "{\"a\":1,}", "[1 2]",
                                      "{\"a\" 1}", "\"\n\"",  "01",         "1.",
                                      "[1]x",      "\"\\q\"", "nul",        "\"\\u12g4\""};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_null(json_read(bad[i]));
    struct json *j = json_read(" {\"a\": [1, -2.5e3, \"x\\\"y\", true, null], \"b\": {}} ");
    assert_non_null(j);
    json_free(j);
}

static char *report(int diff)
{
    char *text = NULL, error[512];
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    assert_int_equal(diff ? trace_report_diff(db, db, out, error, sizeof error)
                          : trace_report_summary(db, out, error, sizeof error),
                     0);
    fclose(out);
    return text;
}

static void assert_lines(const char *text, const char *const *lines, size_t n, int most)
{
    int count_lines = 0;
    for (const char *c = text; *c; c++)
        count_lines += *c == '\n';
    if (count_lines > most)
        fail_msg("%d lines, more than a screen of %d:\n%s", count_lines, most, text);
    for (size_t i = 0; i < n; i++)
        if (!strstr(text, lines[i]))
            fail_msg("\"%s\" is not in\n%s", lines[i], text);
    for (const char *line = text; *line; line = strchr(line, '\n') + 1)
        if (strchr(line, '\n') - line > 120)
            fail_msg("a line of %d columns", (int)(strchr(line, '\n') - line));
}

CASE(test_summary)
{
    static const char *const lines[] = {
        "ag_gemm 512,64,64: measured, host executor, 2 nodes x 2 ranks",
        "1 launch, 26 events, 1 message in 300 ns; nothing dropped",
        "     0          28.0   52.0       20.0    0.0  |#########",
        "exposed communication: 53.2 % of it, on the worst rank 86.7 %",
        "(# compute, @ both, = communication)", /* as in the viewer */
        "compute       network                1      130 ns     130 ns",
        "130 ns at     50 ns  rank 2 CTA 0 (compute) for chunk 0 of rank 0's A, message 1",
        "critical path: 56.7 % message (compute), 40.0 % tile (compute), 3.3 % command "
        "(inter_send)",
        "busiest link: network out of rank 0",
    };
    char *text = report(0);
    assert_lines(text, lines, sizeof lines / sizeof *lines, 50);
    free(text);
}

static void scale_launches(double least, double most)
{
    char sql[512];
    snprintf(sql, sizeof sql,
             "UPDATE launch_rank SET end = start + 300 * (CASE launch WHEN 1 THEN 1 WHEN 2 THEN %g "
             "ELSE %g END), tile_ns = 170 * compute_tracks, comm_only = 0, both = 0",
             least, most);
    assert_int_equal(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
}

/* An ideal made of the run's own times is set against a launch with the range over launches, in one
 * unit; where measured launches differ by more than the two, there is no ratio, and no share for a
 * sweep's results. In a copy, in memory. */
CASE(test_noise)
{
    static const char *const
        told[] = {"ideal / slowest rank 56.7 %\n  51.5 to 63.0 % over 3"},
        *const silent[] = {"ideal 170 ns (if nothing ever waited)\n  their "
                           "ratio says nothing, as launches differ by more: "
                           "225 ns to 420 ns over 3 launches\n"},
        *const one_unit[] = {"slowest rank 20.0 us, ideal 0.2 us"},
        *const plans[] = {
            "ag_gemm 512,64,64 and 1 other plan: measured",
            "launches by plan                      count       total      median       ideal\n"
            "  ag_gemm 512,64,64                       2     40.0 us     20.0 us      170 ns\n"
            "  gemm_rs 8,8,8                           1     20.0 us     20.0 us      170 ns\n"};
    sqlite3 *stored = db;
    assert_int_equal(sqlite3_open(":memory:", &db), SQLITE_OK);
    sqlite3_backup *copy = sqlite3_backup_init(db, "main", stored, "main");
    assert_non_null(copy);
    sqlite3_backup_step(copy, -1);
    assert_int_equal(sqlite3_backup_finish(copy), SQLITE_OK);
    assert_int_equal(
        sqlite3_exec(db,
                     "INSERT INTO launch SELECT id + 1, plan, epoch + 1 FROM launch; INSERT "
                     "INTO launch SELECT id + 2, plan, epoch + 2 FROM launch WHERE id = 1; INSERT "
                     "INTO launch_rank SELECT l.id, rank, start, end, compute_only, comm_only, "
                     "both, idle, tile_ns, compute_tracks FROM launch_rank, launch l WHERE l.id > "
                     "1",
                     NULL, NULL, NULL),
        SQLITE_OK);
    scale_launches(0.9, 1.1);
    char *text = report(0);
    assert_lines(text, told, 1, 50);
    free(text);
    scale_launches(0.75, 1.4);
    text = report(0);
    assert_lines(text, silent, 1, 50);
    assert_null(strstr(text, "ideal / slowest rank"));
    free(text);
    assert_int_equal(query_integer(db, -1, "SELECT told FROM launch_spread", ""), 0);
    sqlite3_exec(db, "UPDATE launch_rank SET end = start + 20000", NULL, NULL, NULL);
    text = report(0);
    assert_lines(text, one_unit, 1, 50);
    assert_null(strstr(text, "launches by plan"));
    free(text);
    sqlite3_exec(
        db,
        "INSERT INTO plan SELECT 2, 'gemm_rs', '8,8,8', m, n, k, tile_m, tile_n, chunk_rows, "
        "pieces, compute, intra_comm, inter_send, inter_reduce, deterministic, tiles, chunks, "
        "flag_base, flags FROM plan; UPDATE launch SET plan = 2 WHERE id = 3",
        NULL, NULL, NULL);
    text = report(0);
    assert_lines(text, plans, 2, 50);
    free(text);
    sqlite3_close(db);
    db = stored;
}

CASE(test_diff)
{
    static const char *const lines[] = {
        "median launch: slowest rank                  300 ns       300 ns       +0.0 %",
        "median 1.000, from 1.000 to 1.000 over 1 launch"};
    char *text = report(1);
    assert_lines(text, lines, sizeof lines / sizeof *lines, 60);
    assert_null(strstr(text, "note:"));
    free(text);
}

CASE(test_plot)
{
    char error[512];
    if (!command_draws())
        skip();
    for (int kind = 0; kind < 2; kind++)
        for (int svg = 0; svg < 2; svg++) {
            const char *path = parts_path(svg ? "it's.svg" : "it's.png");
            int rc = trace_plot(db, kind,
                                &(struct trace_plot_part){(uint64_t)svg, -1, -1, 0, UINT64_MAX},
                                path, error, sizeof error);
            assert_int_equal(rc, 0);
            char head[64] = "";
            FILE *f = fopen(path, "rb");
            assert_non_null(f);
            assert_true(fread(head, 1, sizeof head - 1, f) > 8);
            fclose(f);
            assert_non_null(svg ? strstr(head, "<?xml") : strstr(head, "PNG"));
            remove(path);
        }
    assert_int_equal(trace_plot(db, TRACE_PLOT_TIMELINE,
                                &(struct trace_plot_part){9, -1, -1, 0, UINT64_MAX},
                                parts_path("x.png"), error, sizeof error),
                     -ERANGE);
    assert_non_null(strstr(error, "no launch 9"));
}

static struct command_run r;

static void expect(const char *line, int status, const char *says)
{
    command_expect(&r, line, NULL, status, says);
}

CASE(test_commands)
{
    char line[512];
    const char *file = parts_path("t.db");
    expect("trace", 2, "which report?");
    expect("trace --help", 0, "examples");
    expect("trace sumary x", 2, "did you mean summary?");
    expect("trace summary", 2, "one trace file");
    expect("trace summary a b", 2, "one trace file");
    expect("trace summary --bogus", 2, "--bogus");
    expect("trace summary /none", 2, "No such file");
    expect("trace diff /none", 2, "two trace files");
    expect("trace export --help", 0, "--chrome");
    snprintf(line, sizeof line, "trace summary %s", file);
    expect(line, 0, "overlap");
    snprintf(line, sizeof line, "trace summary %s --json", file);
    expect(line, 0, "\"launch: median launch: slowest rank, ns\": 300,\n");
    assert_non_null(strstr(r.out_text, "\"op\": \"ag_gemm\",\n"));
    assert_non_null(strstr(r.out_text, "  \"launches\": 1\n}\n"));
    snprintf(line, sizeof line, "trace plot %s --rank 4", file);
    expect(line, 2, "there is no rank 4; the trace has ranks 0 to 3");
    snprintf(line, sizeof line, "trace plot %s --role inter_reduce", file);
    expect(line, 2, "no such role, or no launch in that time");
    snprintf(line, sizeof line, "trace plot %s --from 1s --to 2s", file);
    expect(line, 2, "no such role, or no launch in that time");
    snprintf(line, sizeof line, "trace plot %s --from 2ms --to 1ms", file);
    expect(line, 2, "--to does not lie behind --from");
    snprintf(line, sizeof line, "trace plot %s --kind overlap --role compute", file);
    expect(line, 2, "go with --kind timeline");
    snprintf(line, sizeof line, "trace diff %s %s", file, file);
    expect(line, 0, "median launch: slowest rank");
    snprintf(line, sizeof line, "trace export %s --rank 2", file);
    expect(line, 0, "traceEvents");
    snprintf(line, sizeof line, "trace export %s --from 2ms --to 1ms", file);
    expect(line, 2, "--to lies before --from");
    snprintf(line, sizeof line, "trace export %s --launch 77", file);
    expect(line, 2, "there is no launch 77; the trace has launches 1 to 1");
    snprintf(line, sizeof line, "trace plot %s --out x.gif", file);
    expect(line, 2, ".png or .svg");
    snprintf(line, sizeof line, "trace plot %s --launch 77", file);
    expect(line, 2, "no launch 77");
    snprintf(line, sizeof line, "trace sql %s", file);
    expect(line, 0, "worst_stalls");
    snprintf(line, sizeof line, "trace sql %s SELECT(1)+41", file);
    expect(line, 0, "42");
    snprintf(line, sizeof line, "trace sql %s SELEKT", file);
    expect(line, 2, "syntax error");
}

FIXTURE(open_trace, close_trace)
