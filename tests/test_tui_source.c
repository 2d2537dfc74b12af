/* What rows show is what the events say: every window at every zoom adds up to the sums over single
 * events, and figures of the panels are those of the views. */
#include <math.h>

#include "tests/helpers/tui_stage.h"
#include "tests/helpers/generate.h"
#include "tracer/reader.h"

static char big[96]; /* a made-up run with more events than the windows that are read exactly */

static int make_big(void **state)
{
    const struct generate_config config = {.events = 60000, .nodes = 2, .gpus = 2, .seed = 3};
    char error[256] = "";
    snprintf(big, sizeof big, "/tmp/mk_tui_source_%d.db", (int)getpid());
    int rc = trace_generate(&config, big, error, sizeof error);
    if (rc)
        fprintf(stderr, "no trace: %s\n", error);
    return rc;
}

static int clean(void **state)
{
    unlink(big);
    return stage_clean(state);
}

static double sum_events(sqlite3 *db, int rank, int role, int cta, int state, double a, double b)
{
    sqlite3_stmt *q;
    double sum = 0;
    sqlite3_prepare_v2(db,
                       "SELECT e.start, e.start + e.ns, e.kind, e.cause FROM event e JOIN track t "
                       "ON t.id = e.track WHERE "
                       "t.rank = ? AND t.role = ? AND (?3 < 0 OR t.cta = ?3)",
                       -1, &q, NULL);
    sqlite3_bind_int(q, 1, rank);
    sqlite3_bind_int(q, 2, role);
    sqlite3_bind_int(q, 3, cta);
    while (sqlite3_step(q) == SQLITE_ROW) {
        double x = fmax(a, sqlite3_column_double(q, 0)), y = fmin(b, sqlite3_column_double(q, 1));
        if (y > x && span_class_of(sqlite3_column_int(q, 2), sqlite3_column_int(q, 3)) == state)
            sum += y - x;
    }
    sqlite3_finalize(q);
    return sum;
}

/* The whole run at any number of columns; and windows on the grid of the finest level, where
 * nothing is spread. */
CASE(occupancy_is_the_sum_of_events)
{
    struct source *s;
    char error[256];
    float out[400 * SPAN_CLASSES];
    sqlite3 *db;
    assert_int_equal(source_open(&s, big, error, sizeof error), 0);
    assert_int_equal(sqlite3_open_v2(big, &db, SQLITE_OPEN_READONLY, NULL), SQLITE_OK);
    double end = s->info.end;
    static const int columns[] = {1, 7, 60, 175, 400};
    for (int what = 0; what < 4; what++) {
        int role = what % 3, track = -1, leaves = 0;
        for (int i = 0; i < s->info.tracks; i++) {
            const struct source_track *t = &s->tracks[i];
            leaves += t->rank == 1 && t->role == role;
            if (what == 3 && t->rank == 1 && t->role == 0 && track < 0)
                track = i;
        }
        leaves = track >= 0 ? 1 : leaves;
        for (size_t k = 0; k < sizeof columns / sizeof *columns; k++) {
            double step = end / columns[k];
            assert_int_equal(source_occupancy(s, (struct source_group){1, role, track}, 0, step,
                                              columns[k], out),
                             0);
            for (int c = 1; c < SPAN_CLASSES; c++) {
                double shown = 0,
                       real = sum_events(db, 1, role, track < 0 ? -1 : s->tracks[track].cta, c, 0,
                                         end);
                for (int i = 0; i < columns[k]; i++)
                    shown += (double)out[i * SPAN_CLASSES + c] * step * leaves;
                assert_true(fabs(shown - real) <= 1e-4 * real + 1);
            }
        }
    }
    sqlite3_close(db);
    source_close(s);
}

/* Zoomed in below the levels, a row is read from its events: exact for any window. */
CASE(deep_windows_are_exact)
{
    struct source *s;
    char error[256];
    float out[100 * SPAN_CLASSES];
    sqlite3 *db;
    assert_int_equal(source_open(&s, big, error, sizeof error), 0);
    assert_int_equal(sqlite3_open_v2(big, &db, SQLITE_OPEN_READONLY, NULL), SQLITE_OK);
    srand(4);
    for (int i = 0; i < 60; i++) {
        int track = rand() % s->info.tracks;
        const struct source_track *t = &s->tracks[track];
        double span = 100 * (1 + rand() % 20), t0 = (double)(rand() % (int)s->info.end);
        assert_int_equal(source_occupancy(s, (struct source_group){t->rank, t->role, track}, t0,
                                          span / 100, 100, out),
                         0);
        for (int c = 1; c < SPAN_CLASSES; c++) {
            double shown = 0;
            for (int k = 0; k < 100; k++)
                shown += (double)out[k * SPAN_CLASSES + c] * span / 100;
            assert_true(fabs(shown - sum_events(db, t->rank, t->role, t->cta, c, t0, t0 + span)) <
                        1);
        }
    }
    sqlite3_close(db);
    source_close(s);
}

CASE(overlap_over_time_adds_up_to_the_view)
{
    struct source *s;
    char error[256];
    float out[123 * OVERLAP_CLASSES];
    sqlite3 *db;
    sqlite3_stmt *q;
    assert_int_equal(source_open(&s, stage_trace(0), error, sizeof error), 0);
    assert_int_equal(sqlite3_open_v2(stage_trace(0), &db, SQLITE_OPEN_READONLY, NULL), SQLITE_OK);
    sqlite3_prepare_v2(db,
                       "SELECT compute_only_ns, comm_only_ns, both_ns FROM overlap ORDER BY rank",
                       -1, &q, NULL);
    for (int rank = 0; rank < s->info.ranks; rank++) {
        assert_int_equal(sqlite3_step(q), SQLITE_ROW);
        double step = s->info.end / 123, sum[OVERLAP_CLASSES] = {0};
        assert_int_equal(source_overlap(s, rank, 0, step, 123, out), 0);
        for (int i = 0; i < 123 * OVERLAP_CLASSES; i++)
            sum[i % OVERLAP_CLASSES] += (double)out[i] * step;
        for (int c = OVERLAP_COMPUTE; c <= OVERLAP_BOTH; c++)
            assert_true(fabs(sum[c] - sqlite3_column_double(q, c - 1)) <=
                        0.001 * sum[c] + 600); /* launches end before their
                                                * last flag is seen */
    }
    sqlite3_finalize(q);
    sqlite3_close(db);
    source_close(s);
}

/* Bytes in flight, integrated over time, over the time that one transfer takes: all bytes that went
 * out. */
CASE(bytes_in_flight_reach_their_peak_and_no_more)
{
    struct source *s;
    char error[256];
    float out[2000], peak, most = 0;
    assert_int_equal(source_open(&s, stage_trace(0), error, sizeof error), 0);
    for (int link = LINK_NVLINK; link <= LINK_NIC; link++) {
        most = 0;
        assert_int_equal(
            source_bytes(s, 0, (enum source_link)link, 0, s->info.end / 2000, 2000, out, &peak), 0);
        for (int i = 0; i < 2000; i++)
            most = out[i] > most ? out[i] : most;
        /* one copy at a time over NVLink, two puts at a time over the network, 256 KiB each */
        assert_true(peak == (link == LINK_NIC ? 524288.f : 262144.f));
        assert_true(most <= peak * 1.001f && most > peak * 0.95f);
    }
    source_close(s);
}

/* What the panel of roles says of all ranks is what `trace summary` says: view figures, not a mean
 * of ranks' shares, which differs where ranks' launches take different times. */
CASE(all_ranks_are_those_of_the_figures)
{
    static const struct {
        const char *figure;
        int role;
        uint32_t classes;
    } same[] = {{"compute tile", MK_COMPUTE, 1u << SPAN_COMPUTE},
                {"intra_comm copy", MK_INTRA_COMM, 1u << SPAN_COPY},
                {"intra_comm wait", MK_INTRA_COMM,
                 1u << SPAN_WAIT_DATA | 1u << SPAN_WAIT_ROOM | 1u << SPAN_WAIT_NETWORK}};
    struct source *s;
    char path[128], command[384], error[256];
    sqlite3 *db;
    snprintf(path, sizeof path, "%s.uneven", stage_trace(0));
    snprintf(command, sizeof command, "cp %s %s", stage_trace(0), path);
    assert_int_equal(system(command), 0);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(
        sqlite3_exec(db, "UPDATE launch_rank SET \"end\" = \"end\" + 400000 WHERE rank = 2", NULL,
                     NULL, NULL),
        SQLITE_OK);
    sqlite3_close(db);
    assert_int_equal(source_open(&s, path, error, sizeof error), 0);
    assert_int_equal(trace_open(&db, path, error, sizeof error), 0);
    static struct trace_figure f[256];
    int figures = trace_figures(db, NULL, f, 256);
    const double *shares = source_role_shares(s) + (size_t)s->info.ranks * MK_ROLES * SPAN_CLASSES;
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        double shown = 0, mean = 0, figure = -1;
        for (int k = 0; k < figures; k++)
            if (!strcmp(f[k].section, "role") && !strcmp(f[k].name, same[i].figure))
                figure = f[k].value[0];
        for (int c = 1; c < SPAN_CLASSES; c++)
            if (same[i].classes >> c & 1) {
                shown += shares[same[i].role * SPAN_CLASSES + c];
                for (int r = 1; r <= s->info.ranks; r++)
                    mean +=
                        shares[(same[i].role - r * MK_ROLES) * SPAN_CLASSES + c] / s->info.ranks;
            }
        assert_true(figure > 0 && fabs(shown - figure) < 1e-6);
        assert_true(fabs(mean - figure) > 0.2); /* else this trace would not tell the two apart */
    }
    sqlite3_close(db);
    source_close(s);
    unlink(path);
}

/* Traces of schedules that waited for credits hold a cause 3, which is gone, under that name: its
 * waits are shown, as waits for data, neither as idle time nor as waits for the network; reports
 * name it as the file does. */
CASE(a_cause_that_is_gone_is_shown)
{
    static const char *const old =
        "INSERT OR REPLACE INTO cause VALUES (3, 'credit'); UPDATE event SET cause = 3 WHERE cause "
        "= 1;"
        "UPDATE total SET cause = 3 WHERE cause = 1; INSERT INTO state VALUES (7, 'wait credit');"
        "UPDATE level SET wait_credit = wait_data, wait_data = 0, busiest = CASE busiest WHEN 5 "
        "THEN 7 ELSE busiest END";
    struct source *s[2];
    struct source_event found[2];
    struct query query;
    char path[128], command[384], error[256];
    float out[2][100 * SPAN_CLASSES];
    double reached;
    sqlite3 *db;
    snprintf(path, sizeof path, "%s.old", big);
    snprintf(command, sizeof command, "cp %s %s", big, path);
    assert_int_equal(system(command), 0);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, old, NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
    assert_int_equal(source_open(&s[0], big, error, sizeof error), 0);
    assert_int_equal(source_open(&s[1], path, error, sizeof error), 0);
    double end = s[0]->info.end;
    for (int part = 1; part <= 100000; part *= 10) { /* from the levels, then from the events */
        double waited = 0;
        for (int i = 0; i < 2; i++)
            assert_int_equal(source_occupancy(s[i], (struct source_group){0, MK_COMPUTE, -1},
                                              end / 2, end / part / 200, 100, out[i]),
                             0);
        assert_memory_equal(out[0], out[1], sizeof out[0]);
        for (int c = 0; c < 100; c++)
            waited += (double)out[1][c * SPAN_CLASSES + SPAN_WAIT_DATA];
        assert_true(part > 10 || waited > 0);
    }
    assert_int_equal(words_parse_query("wait data", &query, error), 0);
    for (int i = 0; i < 2; i++)
        assert_int_equal(source_find(s[i], (struct source_group){0, MK_COMPUTE, -1}, &query, 0,
                                     NULL, 1, &found[i], &reached),
                         1);
    assert_true(found[0].id == found[1].id && found[1].cause == 3);
    const double *shares[2] = {source_role_shares(s[0]), source_role_shares(s[1])};
    assert_true(shares[0][SPAN_WAIT_DATA] > 0 &&
                shares[0][SPAN_WAIT_DATA] == shares[1][SPAN_WAIT_DATA]);
    source_close(s[0]);
    source_close(s[1]);
    assert_int_equal(trace_open(&db, path, error, sizeof error), 0);
    sqlite3_stmt *q;
    sqlite3_prepare_v2(db,
                       "SELECT count(*) FILTER (WHERE cause = 'credit'), count(*) FILTER (WHERE "
                       "cause = 'data') FROM stalls",
                       -1, &q, NULL);
    assert_int_equal(sqlite3_step(q), SQLITE_ROW);
    assert_true(sqlite3_column_int(q, 0) > 0 && sqlite3_column_int(q, 1) == 0);
    sqlite3_finalize(q);
    sqlite3_close(db);
    unlink(path);
}

CASE(foreign_files_get_a_sentence)
{
    static const char *const content[] = {
        "", "not a trace at all, but long enough to look like a file", "SQLite format 3"};
    char path[] = "/tmp/mk_tui_foreign_XXXXXX", error[256];
    struct source *s;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(ftruncate(fd, 0), 0);
        assert_int_equal(pwrite(fd, content[i], strlen(content[i]), 0),
                         (ssize_t)strlen(content[i]));
        error[0] = 0;
        assert_true(source_open(&s, path, error, sizeof error) < 0 && !s && strlen(error) > 10);
    }
    close(fd);
    unlink(path);
    assert_true(source_open(&s, "/nonexistent", error, sizeof error) < 0 && !s);
}

/* A trace whose tables were spoilt after it was written: no crash, whatever the numbers. */
CASE(spoilt_tables_do_no_harm)
{
    static const char *const spoil[] = {
        "UPDATE track SET rank = 99999",
        "UPDATE track SET role = 77",
        "UPDATE track SET cta = -5, parent = id",
        "UPDATE event SET kind = 99, cause = 99",
        "UPDATE event SET start = start * 1000003, ns = -5",
        "UPDATE message SET posted = NULL, arrived = -1, command_event = 424242",
        "UPDATE level SET tile = -7, bucket = bucket + 1000000",
        "UPDATE overlap_level SET both = 1000000000000000",
        "UPDATE zoom SET ns = 1",
        "UPDATE launch_rank SET start = end + 5",
        "DELETE FROM launch",
        "DELETE FROM flag",
        "UPDATE edge SET producer = event, message = 1",
        "UPDATE link SET rank = -3, peak_bytes = 0",
        "DELETE FROM role",
        "UPDATE run SET duration_ns = -1, residual_ns = -4",
        "DELETE FROM rank WHERE id > 0",
        "UPDATE rank SET id = id + 4000",
        "UPDATE run SET op = char(27, 91, 50, 74), shape = NULL",
        "UPDATE run SET duration_ns = 9000000000000000000",
    };
    char path[128], command[384], error[256];
    snprintf(path, sizeof path, "%s.spoilt", stage_trace(0));
    for (size_t i = 0; i < sizeof spoil / sizeof *spoil; i++) {
        snprintf(command, sizeof command, "cp %s %s", stage_trace(0), path);
        assert_int_equal(system(command), 0);
        sqlite3 *db;
        assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
        sqlite3_exec(db, spoil[i], NULL, NULL, NULL);
        sqlite3_close(db);
        struct stage s = {0};
        if (source_open(&s.source[0], path, error, sizeof error) == 0) {
            assert_int_equal(model_open(&s.m, s.source[0], NULL, 120, 40), 0);
            stage_draw(&s);
            stage_play(&s,
                       "w Enter Enter Backspace\n1 2 3 4 5 6 7 + + + Tab Down Space Tab Enter\n[ L "
                       "]\nEnd G\n/\ntype wait\nEnter\n");
            for (int k = 0; k < s.m.width * s.m.height; k++)
                assert_true(s.cells.cell[k].glyph >= 0x20);
            stage_close(&s);
        }
    }
    unlink(path);
}

static long one_number(sqlite3 *db, const char *sql)
{
    sqlite3_stmt *q;
    assert_int_equal(sqlite3_prepare_v2(db, sql, -1, &q, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(q), SQLITE_ROW);
    long number = (long)sqlite3_column_int64(q, 0);
    sqlite3_finalize(q);
    return number;
}

/* A row of `track` whose number was damaged, so that it is above the last one's: it is left out.
 * The table is one page: type 13, at 3 the count of cells, from 8 on where they lie; a cell begins
 * with its bytes and its number (SQLite's file format). */
CASE(a_row_out_of_order_is_left_out)
{
    char path[128], command[384], error[256];
    unsigned char page[65536];
    struct source *s;
    snprintf(path, sizeof path, "%s.order", stage_trace(0));
    snprintf(command, sizeof command, "cp %s %s", stage_trace(0), path);
    assert_int_equal(system(command), 0);
    assert_int_equal(source_open(&s, path, error, sizeof error), 0);
    int tracks = s->info.tracks, changed = 0;
    source_close(s);

    sqlite3 *db;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    long root = one_number(db, "SELECT rootpage FROM sqlite_master WHERE name = 'track'");
    long leaf = one_number(db, "SELECT id FROM track t WHERE events > 0 AND NOT EXISTS (SELECT 1 "
                               "FROM track c WHERE c.parent = t.id)");
    long size = one_number(db, "PRAGMA page_size");
    assert_true(one_number(db, "SELECT max(id) FROM track") < 127 && size <= (long)sizeof page);
    sqlite3_close(db);
    FILE *f = fopen(path, "r+");
    assert_non_null(f);
    assert_int_equal(fseek(f, (root - 1) * size, SEEK_SET), 0);
    assert_int_equal(fread(page, (size_t)size, 1, f), 1);
    assert_int_equal(page[0], 13);
    for (int i = 0; i < page[3] * 256 + page[4]; i++) {
        unsigned char *cell = page + page[8 + 2 * i] * 256 + page[9 + 2 * i];
        assert_true(cell[0] < 128);
        changed += cell[1] == leaf;
        cell[1] = cell[1] == leaf ? 127 : cell[1];
    }
    assert_int_equal(changed, 1);
    assert_int_equal(fseek(f, (root - 1) * size, SEEK_SET), 0);
    assert_int_equal(fwrite(page, (size_t)size, 1, f), 1);
    fclose(f);

    assert_int_equal(source_open(&s, path, error, sizeof error), 0);
    assert_int_equal(s->info.tracks, tracks - 1);
    source_close(s);
    unlink(path);
}

/* Another file is written over it, in place, while it is open: nothing more is shown, and the
 * viewer does not die of a page that is gone. */
CASE(a_file_cut_while_open_does_no_harm)
{
    char path[128], command[384], error[256];
    snprintf(path, sizeof path, "%s.cut", big);
    snprintf(command, sizeof command, "cp %s %s", big, path);
    assert_int_equal(system(command), 0);
    struct stage s = {0};
    assert_int_equal(source_open(&s.source[0], path, error, sizeof error), 0);
    assert_int_equal(model_open(&s.m, s.source[0], NULL, 120, 40), 0);
    stage_draw(&s);
    assert_int_equal(truncate(path, 0), 0);
    stage_play(&s, "w Enter Enter Backspace\n1 2 3 4 5 6 7 + + + Tab Down Space Tab Enter\nEnd "
                   "G\n/\ntype wait\nEnter\n");
    stage_close(&s);
    unlink(path);
}

FIXTURE(make_big, clean)
