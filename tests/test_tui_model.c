/* Whatever keys come, in whatever order and at whatever size: the cursor stays in view, zooming in
 * and out are inverse, no cell lies outside the screen, and what a key is said to do it does. */
#include <math.h>

#include "tests/helpers/tui_stage.h"

#include <sqlite3.h>

static void key(struct stage *s, int code)
{
    model_key(&s->m, (struct key){code, 0, 0});
    stage_draw(s);
}

static void check_invariants(const struct stage *s)
{
    const struct model *m = &s->m;
    struct geometry g = model_geometry(m);
    assert_int_equal(s->cells.width, m->width);
    assert_int_equal(s->cells.height, m->height);
    for (int i = 0; i < m->width * m->height; i++) {
        assert_true(s->cells.cell[i].glyph >= 0x20 && s->cells.cell[i].glyph != 0x7f);
        assert_true(s->cells.cell[i].colour < COLOURS);
        assert_true(!m->ascii || s->cells.cell[i].glyph < 0x7f);
    }
    assert_true(m->t1 > m->t0);
    assert_true(m->cursor >= m->begin && m->cursor <= m->end);
    if (g.too_small)
        return;
    assert_true(m->cursor >= m->t0 - 1e-6 && m->cursor <= m->t1 + 1e-6 * (m->t1 - m->t0));
    assert_true(m->row >= 0 && (m->row < m->row_count || m->row_count == 0));
    assert_true(m->top >= 0 && m->row >= m->top);
    assert_true(m->row < m->top + g.rows_height ||
                g.rows_height == 0); /* 0: the panel has the whole screen */
    assert_true(m->step >= 0 && (m->step < m->chain.count || m->step == 0));
    /* lines follow one another without a gap or an overlap */
    assert_int_equal(g.rows_top, g.ruler + g.ruler_rows);
    assert_int_equal(g.legend, g.rows_top + g.rows_height);
    assert_int_equal(g.panel, g.legend + g.legend_rows);
    assert_int_equal(g.status, g.panel + g.panel_height);
    assert_int_equal(g.status, m->height - 1);
    assert_int_equal(g.label + g.columns, m->width);
    assert_true(g.rows_height >= (m->large || m->help ? 0 : 1));
}

/* Shares of a column add up to the whole, on every row that shows shares. */
static void check_shares(const struct stage *s)
{
    const struct picture *p = &s->picture;
    for (int i = 0; i < p->count; i++) {
        int kind = p->rows[i].row.kind;
        int classes = kind == ROW_RANK ? OVERLAP_CLASSES : SPAN_CLASSES;
        for (int c = 0; c < p->columns && kind <= ROW_CTA; c++) {
            float sum = 0;
            for (int k = 0; k < classes; k++) {
                assert_true(p->rows[i].value[c * classes + k] >= 0);
                sum += p->rows[i].value[c * classes + k];
            }
            assert_true(fabsf(sum - 1) < 1e-3f);
        }
    }
}

CASE(random_keys)
{
    static const int codes[] = {
        TUI_UP,  TUI_DOWN,  TUI_LEFT,  TUI_RIGHT,     TUI_PAGE_UP, TUI_PAGE_DOWN, TUI_HOME,
        TUI_END, TUI_ENTER, TUI_ENTER, TUI_BACKSPACE, TUI_TAB,     TUI_BACKTAB,   TUI_ESCAPE,
        'h',     'j',       'k',       'l',           'H',         'L',           'g',
        'G',     '+',       '+',       '+',           '-',         '=',           '0',
        'f',     ' ',       'Z',       'e',           'E',         'w',           'W',
        'n',     'N',       '[',       ']',           '1',         '2',           '3',
        '4',     '5',       '6',       '7',           '8',         '9',           'p',
        'P',     'z',       'J',       'K',           '?',         'a',           'c',
        '/',     '\\',      ':',       'm',           '\'',        '^',           '$',
        'q',     'r',       'x',       's',           '1',         'u',           12,
        1,       0x7f,      200};
    for (int seed = 0; seed < 8; seed++) {
        struct stage s;
        srand((unsigned)seed);
        stage_open(&s,
                   seed == 7                ? 2
                   : seed == 4 || seed == 6 ? 3
                                            : 0,
                   seed % 2 ? 1 : -1, 80, 24, seed % 3 == 0);
        for (int i = 0; i < 700; i++) {
            struct key k = {codes[(size_t)rand() % (sizeof codes / sizeof *codes)], rand() % 220,
                            rand() % 70};
            if (rand() % 40 == 0)
                k = (struct key){TUI_RESIZE, 1 + rand() % 210, 1 + rand() % 64};
            else if (rand() % 12 == 0)
                k.code = TUI_CLICK + rand() % 3;
            model_key(&s.m, k);
            stage_draw(&s);
            check_invariants(&s);
            check_shares(&s);
        }
        stage_close(&s);
    }
}

/* How many columns of the first row show a launch. */
static int busy_columns(const struct stage *s)
{
    int busy = 0;
    for (int c = 0; c < s->picture.columns; c++)
        busy += s->picture.rows[0].value[c * OVERLAP_CLASSES] < 0.5f &&
                !model_is_cut(&s->m, s->picture.t0 + c * s->picture.step, s->picture.step);
    return busy;
}

/* Launches 50 ms apart that last 60 us: the first screen shows them, not what lies between; all
 * times are the run's, and whatever is kept of them stays where it was without cuts. */
CASE(what_lies_between_launches_is_cut_out)
{
    struct stage s;
    stage_open(&s, 3, -1, 120, 40, 0);
    const struct source_launch *l = s.source[0]->launches;
    double run = s.source[0]->info.end;
    assert_int_equal(s.m.cuts, 1);
    assert_true(s.m.end < run / 100);
    assert_true(busy_columns(&s) > s.picture.columns * 0.85);
    assert_true(stage_shows(&s, "/"));
    double last = -1;
    for (int i = 0; i <= 1000; i++) {
        double shown = s.m.end * i / 1000, time = model_file_time(&s.m, 0, shown);
        assert_true(time > last && fabs(model_screen_time(&s.m, 0, time) - shown) < 1e-3);
        last = time;
    }
    assert_true(fabs(last - run) < 1e-3);
    key(&s, 'e');
    assert_true(fabs(model_clock(&s.m, s.m.cursor) - l[1].start) < 1);
    assert_true(stage_shows(&s, "@ 50.0"));
    key(&s, '[');
    stage_play(&s, ":\ntype 50.02ms\nEnter\n]\n");
    assert_true(fabs(model_clock(&s.m, s.m.range[1]) - 50020000) < 1);
    key(&s, 'c');
    assert_int_equal(s.m.cuts, 0);
    assert_true(s.m.end == run && fabs(s.m.cursor - 50020000) < 1);
    assert_true(fabs(s.m.range[0] - l[1].start) < 1 && fabs(s.m.range[1] - 50020000) < 1);
    assert_true(busy_columns(&s) < 4);
    key(&s, 'c');
    assert_int_equal(s.m.cuts, 1);
    assert_true(fabs(model_clock(&s.m, s.m.cursor) - 50020000) < 1);
    stage_close(&s);
    /* launches that are most of the run, and two files, are shown as they are */
    stage_open(&s, 0, -1, 120, 40, 0);
    key(&s, 'c');
    assert_int_equal(s.m.cuts, 0);
    assert_true(stage_shows(&s, "nothing to cut out"));
    stage_close(&s);
    stage_open(&s, 3, 3, 120, 40, 0);
    key(&s, 'c');
    assert_int_equal(s.m.cuts, 0);
    stage_close(&s);
}

CASE(zooming_in_and_out_is_inverse)
{
    struct stage s;
    stage_open(&s, 0, -1, 120, 40, 0);
    srand(5);
    for (int i = 0; i < 100; i++) {
        s.m.cursor = (double)(rand() % (int)s.m.end);
        s.m.on_chain = 0;
        int in = rand() % 9;
        double t0[10], t1[10];
        key(&s, '0');
        for (int k = 0; k < in; k++) {
            t0[k] = s.m.t0;
            t1[k] = s.m.t1;
            key(&s, '+');
            assert_true(fabs((s.m.t1 - s.m.t0) * 2 - (t1[k] - t0[k])) < 1e-3);
        }
        for (int k = in - 1; k >= 0; k--) {
            key(&s, '-');
            assert_true(fabs(s.m.t0 - t0[k]) < 1e-3 && fabs(s.m.t1 - t1[k]) < 1e-3);
        }
    }
    for (int k = 0; k < 60; k++) /* to the closest and no further */
        key(&s, '+');
    assert_true(model_column(&s.m) >= 1);
    assert_true(stage_shows(&s, "no closer"));
    stage_close(&s);
}

CASE(tab_visits_every_event_of_a_row)
{
    struct stage s;
    stage_open(&s, 0, -1, 120, 40, 0);
    stage_play(&s, "Down Space Down\nHome\n"); /* rank 0 compute CTA 0 */
    assert_int_equal(model_row(&s.m)->kind, ROW_CTA);
    int seen = 0;
    double last = -1;
    for (; seen < 200; seen++) {
        key(&s, TUI_TAB);
        if (s.m.failed)
            break;
        assert_true(s.m.have_event && s.m.event.start > last);
        last = s.m.event.start;
    }
    /* two launches of 8 tiles and their waits of more than 0 ns; the first tile begins under the
     * cursor already */
    int waits = 0;
    for (int i = 0; i < seen; i++) {
        waits += s.m.event.kind == MK_EV_WAIT;
        key(&s, TUI_BACKTAB);
    }
    assert_int_equal(seen, 16 + waits - (s.m.event.start > 0 ? 0 : 1));
    assert_true(waits > 0);
    stage_close(&s);
}

/* Where several tracks have an event at the same ns, n stops at each, and N goes the same way
 * back. */
/* A search key, again where the time for one answer was over on a slow machine. */
static void search_key(struct stage *s, int code)
{
    do
        key(s, code);
    while (strstr(s->m.message, " goes on"));
}

CASE(search_stops_at_every_match_and_returns)
{
    struct stage s;
    double time[64];
    int track[64], count = 0;
    stage_open(&s, 0, -1, 120, 40, 0);
    stage_play(&s, "/\ntype wait network role compute\nEnter\n");
    if (strstr(s.m.message, " goes on"))
        search_key(&s, 'n');
    for (; !s.m.failed && count < 64; count++) {
        assert_int_equal(span_class_of(s.m.event.kind, s.m.event.cause), SPAN_WAIT_NETWORK);
        time[count] = s.m.event.start;
        track[count] = s.m.event.track;
        search_key(&s, 'n');
    }
    sqlite3 *db;
    sqlite3_stmt *q;
    assert_int_equal(sqlite3_open_v2(s.source[0]->path, &db, SQLITE_OPEN_READONLY, NULL),
                     SQLITE_OK);
    sqlite3_prepare_v2(db,
                       "SELECT count(*) FROM event e JOIN track t ON t.id = e.track WHERE e.kind = "
                       "3 AND e.cause = 4 AND "
                       "e.ns > 0 AND t.role = 0",
                       -1, &q, NULL);
    assert_int_equal(sqlite3_step(q), SQLITE_ROW);
    assert_int_equal(count, sqlite3_column_int(q, 0));
    sqlite3_finalize(q);
    sqlite3_close(db);
    for (int i = count - 2; i >= 0; i--) {
        search_key(&s, 'N');
        assert_true(s.m.event.start == time[i] && s.m.event.track == track[i]);
    }
    search_key(&s, 'N');
    assert_true(s.m.failed);
    stage_close(&s);
}

CASE(the_chain_leads_from_a_wait_to_its_sender)
{
    struct stage s;
    stage_open(&s, 0, -1, 120, 40, 0);
    /* rank 2's compute CTA 0 waits for chunk 1 of rank 0's A: commanded at 1000 - 200, posted 1300
     * later, 35 us on the way */
    stage_play(&s, "/\ntype wait network rank 2 role compute cta 0\nEnter\n");
    const struct chain *c = &s.m.chain;
    static const char *const names[] = {"wait",   "flag", "arrived", "completed",
                                        "posted", "seen", "put",     "before"};
    assert_int_equal(c->count, 8);
    for (int i = 0; i < c->count; i++)
        assert_string_equal(c->step[i].name, names[i]);
    assert_non_null(strstr(c->step[1].text, "chunk 1 of rank 0's A"));
    assert_true(c->step[2].time == 37000 && c->step[3].time == 37500 && c->step[4].time == 2500 &&
                c->step[5].time == 2100);
    assert_true(c->step[4].ns == 400 && c->step[5].ns == 900);
    assert_non_null(strstr(c->step[6].text, "rank 0 inter_send CTA 5"));
    assert_non_null(
        strstr(c->verdict, "100 % of this wait the chunk was on its way over the network"));

    double cursor = s.m.cursor, t0 = s.m.t0;
    struct row row = *model_row(&s.m);
    static const int rows[] = {ROW_NIC, ROW_NIC, ROW_NIC, ROW_NIC, ROW_CTA, ROW_CTA};
    for (int i = 0; i < 6; i++) {
        key(&s, TUI_ENTER);
        assert_int_equal(model_row(&s.m)->kind, rows[i]);
        assert_int_equal(model_row(&s.m)->rank, 0);
        assert_int_equal(s.m.step, i + 2);
        assert_true(s.m.cursor == c->step[i + 2].time);
    }
    for (int i = 0; i < 6; i++)
        key(&s, TUI_BACKSPACE);
    assert_true(s.m.cursor == cursor && s.m.t0 == t0 && s.m.step == 0);
    assert_int_equal(model_row(&s.m)->track, row.track);
    /* a wait that began after its chunk had come is not the network's fault */
    stage_play(&s, "G End\n/\ntype wait network rank 1 role compute cta 2\nEnter N\n");
    assert_true(s.m.chain.step[2].time < s.m.event.start);
    assert_non_null(strstr(s.m.chain.verdict,
                           "100 % of this wait the chunk was there, but this CTA did not run"));
    stage_close(&s);
}

CASE(a_rank_that_came_late_to_the_launch_is_named)
{
    struct source *source;
    struct source_event e = {.track = -1};
    struct chain c;
    char path[96], command[256], error[256];
    sqlite3 *db;
    snprintf(path, sizeof path, "%s/late.db", stage_folder);
    snprintf(command, sizeof command, "cp %s %s", stage_trace(0), path);
    assert_int_equal(system(command), 0);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    /* rank 2 waits for a chunk of rank 0 from 35.5 to 37 us: say that rank 0 began at 36.9 us */
    assert_int_equal(
        sqlite3_exec(db, "UPDATE launch_rank SET start = 36900 WHERE rank = 0 AND launch = 1", NULL,
                     NULL, NULL),
        SQLITE_OK);
    sqlite3_close(db);
    assert_int_equal(source_open(&source, path, error, sizeof error), 0);
    struct stage s;
    stage_open(&s, 0, -1, 120, 40, 0);
    stage_play(&s, "/\ntype wait network rank 2 role compute cta 0\nEnter\n");
    e = s.m.event;
    assert_true(e.start < 36000 && e.end == 37000 && e.launch == 1);
    chain_follow(source, &e, &c);
    assert_non_null(strstr(c.verdict, "% of this wait rank 0 had not begun launch 1 (it came"));
    stage_close(&s);
    source_close(source);
    unlink(path);
}

CASE(a_wait_over_nvlink_leads_to_the_copy)
{
    struct stage s;
    stage_open(&s, 0, -1, 120, 40, 0);
    stage_play(
        &s, "/\ntype wait role intra_comm network rank 1\nEnter\n/\ntype wait network rank 0 role "
            "compute >1us\nEnter\n");
    assert_int_equal(s.m.chain.count > 4, 1);
    /* a back-pressure wait names the rank of the slow proxy */
    stage_play(&s, "Home g\n/\ntype room\nEnter\n");
    assert_true(stage_shows(&s, "wait for room in the command ring") ||
                stage_shows(&s, "rank 1's proxy"));
    stage_close(&s);
}

CASE(filters_hide_rows_and_say_so)
{
    struct stage s;
    stage_open(&s, 0, -1, 120, 40, 0);
    int all = s.m.row_count;
    stage_play(&s, "\\\ntype rank 1-2\nEnter\n");
    for (int i = 0; i < s.m.row_count; i++)
        assert_true(s.m.rows[i].rank == 1 || s.m.rows[i].rank == 2);
    stage_play(&s, "\\\ntype rank 9\nEnter\n");
    assert_int_equal(s.m.row_count, 0);
    assert_true(stage_shows(&s, "No row fits this filter"));
    stage_play(&s, "\\\ntype >10us\nEnter\n");
    assert_true(s.m.failed);
    stage_play(&s, "\\\nEnter\n");
    assert_int_equal(s.m.row_count, all);
    stage_close(&s);
}

CASE(a_class_filter_shows_nothing_else)
{
    struct stage s;
    stage_open(&s, 0, -1, 120, 40, 0);
    stage_play(&s, "\\\ntype wait\nEnter\n");
    struct geometry g = model_geometry(&s.m);
    for (int i = 0; i < s.picture.count; i++)
        for (int x = g.label; x < s.m.width && s.picture.rows[i].row.kind == ROW_ROLE; x++) {
            uint32_t glyph = s.cells.cell[(g.rows_top + i) * s.m.width + x].glyph;
            assert_true(glyph != span_look[SPAN_COMPUTE].glyph &&
                        glyph != span_look[SPAN_COPY].glyph);
        }
    stage_close(&s);
}

CASE(going_to_a_time)
{
    struct stage s;
    stage_open(&s, 0, -1, 120, 40, 0);
    stage_play(&s, ":\ntype 42us\nEnter\n");
    assert_true(s.m.cursor == 42000);
    stage_play(&s, ":\ntype -2 us\nEnter\n");
    assert_true(s.m.cursor == 40000);
    stage_play(&s, ":\ntype epoch 2\nEnter\n");
    assert_true(s.m.cursor == s.source[0]->launches[1].start);
    stage_play(&s, "Backspace\n");
    assert_true(s.m.cursor == 40000);
    static const char *const bad[] = {":\ntype 42\nEnter\n", ":\ntype 42 s\nEnter\n",
                                      ":\ntype epoch 9\nEnter\n"};
    for (int i = 0; i < 3; i++) {
        stage_play(&s, bad[i]);
        assert_true(s.m.failed && s.m.message[0] && s.m.cursor == 40000);
    }
    stage_close(&s);
}

CASE(bookmarks_come_back_to_row_time_and_zoom)
{
    struct stage s;
    stage_open(&s, 0, -1, 120, 40, 0);
    stage_play(&s, "Down Space Down Down\nRight*9 + +\nm a\n");
    double cursor = s.m.cursor, t0 = s.m.t0, t1 = s.m.t1;
    int track = model_row(&s.m)->track;
    stage_play(&s, "0 g End Z Z Z\n' a\n");
    assert_true(s.m.cursor == cursor && s.m.t0 == t0 && s.m.t1 == t1);
    assert_int_equal(model_row(&s.m)->track, track);
    stage_play(&s, "' b\n");
    assert_true(s.m.failed);
    stage_close(&s);
}

/* A range's figures are the run's where the range is the run. */
CASE(a_range_over_one_launch_has_the_launch_s_figures)
{
    struct stage s;
    char want[96];
    stage_open(&s, 0, -1, 200, 60, 0);
    const struct source_launch *l = s.source[0]->launches;
    s.m.cursor = l[0].start;
    key(&s, '[');
    s.m.cursor = l[0].end;
    key(&s, ']');
    assert_int_equal(s.m.panel, PANEL_RANGE);
    sqlite3 *db;
    sqlite3_stmt *q;
    assert_int_equal(sqlite3_open_v2(s.source[0]->path, &db, SQLITE_OPEN_READONLY, NULL),
                     SQLITE_OK);
    sqlite3_prepare_v2(
        db, "SELECT 100.0 * both / (?1 - ?2) FROM launch_rank WHERE launch = 1 AND rank = 0", -1,
        &q, NULL);
    sqlite3_bind_double(q, 1, l[0].end);
    sqlite3_bind_double(q, 2, l[0].start);
    assert_int_equal(sqlite3_step(q), SQLITE_ROW);
    double both = sqlite3_column_double(q, 0), shown = -1;
    sqlite3_finalize(q);
    sqlite3_close(db);
    for (int i = 0; i < s.picture.panel.count && shown < 0; i++) {
        const char *at = strstr(s.picture.panel.line[i], "both ");
        if (strstr(s.picture.panel.line[i], "rank 0") && at)
            shown = atof(at + 5);
    }
    snprintf(want, sizeof want, "both %.1f", both);
    assert_true(fabs(shown - both) < 0.5);
    key(&s, TUI_ESCAPE);
    assert_true(isnan(s.m.range[0]) && isnan(s.m.range[1]));
    stage_close(&s);
}

CASE(folding_keeps_the_cursor_on_its_row)
{
    struct stage s;
    stage_open(&s, 0, -1, 120, 40, 0);
    stage_play(&s, "Down Space Down Down\n");
    assert_int_equal(model_row(&s.m)->cta, 1);
    stage_play(&s, "Space\n"); /* on a CTA: folds its role, and the cursor goes to it */
    assert_int_equal(model_row(&s.m)->kind, ROW_ROLE);
    assert_int_equal(model_row(&s.m)->role, 0);
    stage_play(&s, "g Space\n");
    assert_int_equal(s.m.rows[1].kind, ROW_RANK);
    stage_close(&s);
}

CASE(the_mouse_points_at_time_and_row)
{
    struct stage s;
    stage_open(&s, 0, -1, 120, 40, 0);
    struct geometry g = model_geometry(&s.m);
    model_key(&s.m, (struct key){TUI_CLICK, g.label + 30, g.rows_top + 2});
    stage_draw(&s);
    assert_int_equal(s.m.row, 2);
    assert_int_equal(layout_column(&s.m, &g, s.m.cursor), g.label + 30);
    double at = s.m.cursor, span = s.m.t1 - s.m.t0;
    model_key(&s.m, (struct key){TUI_WHEEL_UP, g.label + 30, g.rows_top + 2});
    stage_draw(&s);
    assert_true(s.m.cursor == at && fabs((s.m.t1 - s.m.t0) * 2 - span) < 1e-6);
    assert_int_equal(layout_column(&s.m, &g, s.m.cursor),
                     g.label + 30); /* what is under the pointer stays there */
    int rows = s.m.row_count;
    model_key(&s.m, (struct key){TUI_CLICK, 3, g.rows_top});
    stage_draw(&s);
    assert_int_not_equal(s.m.row_count, rows);
    stage_close(&s);
}

CASE(two_files_lie_side_by_side)
{
    struct stage s;
    stage_open(&s, 0, 1, 120, 40, 0);
    for (int i = 0; i + 1 < s.m.row_count; i += 2) {
        assert_true(s.m.rows[i].file == 0 && s.m.rows[i + 1].file == 1);
        assert_true(s.m.rows[i].rank == s.m.rows[i + 1].rank &&
                    s.m.rows[i].kind == s.m.rows[i + 1].kind);
    }
    assert_true(stage_shows(&s, "B - A"));
    stage_close(&s);
}

static int begin_at_one_column(const struct stage *s, int a, int b)
{
    return s->source[0]->launches[a].start == s->source[1]->launches[b].start + s->m.shift[1];
}

/* The launch under the cursor takes the other file's along, in whichever file the cursor is; what
 * is under the cursor stays there; and a launch that is held stays, wherever one goes. */
CASE(launches_of_two_files_go_together)
{
    for (int file = 0; file < 2; file++) {
        struct stage s;
        stage_open(&s, 0, 1, 120, 40, 0);
        const struct source_launch *l = s.source[file]->launches;
        int last = s.source[file]->info.launches - 1, others = s.source[!file]->info.launches;
        assert_true(last > 0 && others > 0);
        stage_play(&s, file ? "j\n" : "");
        assert_int_equal(model_row(&s.m)->file, file);
        assert_true(begin_at_one_column(&s, 0, 0));
        for (int launch = 1; launch <= last; launch++) {
            stage_play(&s, "e\n");
            int other = launch < others ? launch : others - 1;
            assert_true(model_file_time(&s.m, file, s.m.cursor) == l[launch].start);
            assert_true(begin_at_one_column(&s, file ? other : launch, file ? launch : other));
            assert_true(s.m.t0 <= s.m.cursor && s.m.cursor <= s.m.t1);
        }
        stage_play(&s, "m\na\nE\n'\na\n"); /* a bookmark knows which lay side by side */
        assert_true(model_file_time(&s.m, file, s.m.cursor) == l[last].start);
        int held = s.m.pair[!file];
        stage_play(&s, "a\nE*9\n");
        assert_true(begin_at_one_column(&s, file ? held : last, file ? last : held));
        stage_play(&s, "a\n");
        assert_true(begin_at_one_column(&s, 0, 0));
        stage_close(&s);
    }
}

CASE(a_key_without_meaning_says_so)
{
    struct stage s;
    stage_open(&s, 0, -1, 80, 24, 0);
    stage_play(&s, "x\n");
    assert_true(s.m.failed && stage_shows(&s, "x does nothing here"));
    stage_play(&s, "n\n");
    assert_true(s.m.failed && stage_shows(&s, "nothing is searched for"));
    stage_play(&s, "?\nJ*5\n?\n");
    assert_false(s.m.help);
    stage_close(&s);
}

FIXTURE(NULL, stage_clean)
