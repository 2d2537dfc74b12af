/* `trace why` gives each ns of a launch's slowest rank to one part, as worked out by hand on small
 * traces; the parts of a simulated launch add up to it. */
#include <math.h>

#include "tests/helpers/command.h"
#include "tests/helpers/trace_parts.h"
#include "tracer/why.h"

static void why(struct parts *p, uint64_t launch, struct trace_why *w)
{
    sqlite3 *db;
    char error[256];
    parts_store(p, db);
    if (trace_why(db, launch, w, error, sizeof error))
        fail_msg("%s", error);
    sqlite3_close(db);
}

static void assert_parts(const struct trace_why *w, const double want[TRACE_WHY_PARTS])
{
    double sum = 0;
    for (int i = 0; i < TRACE_WHY_PARTS; i++) {
        sum += w->ns[i];
        if (fabs(w->ns[i] - want[i]) > 1e-6)
            fail_msg("%s: %.3f ns, not %.3f", trace_why_name((enum trace_why_part)i), w->ns[i],
                     want[i]);
    }
    assert_true(fabs(sum - (double)(w->end - w->start)) < 1e-6);
}

/* Rank 2 waits for the network for 130 ns between a tile of 50 ns and one of 120. */
CASE(test_waits_and_slow_products)
{
    static struct parts p;
    struct trace_why w;
    parts_make(&p);
    why(&p, 0, &w);
    assert_true(w.rank == 2 && w.launch == 1 && w.ctas == 1 && w.tiles == 2 && !w.early);
    assert_parts(
        &w, (const double[TRACE_WHY_PARTS]){
                [TRACE_WHY_PRODUCTS] = 100, [TRACE_WHY_SLOWED] = 70, [TRACE_WHY_NETWORK] = 130});
}

/* Two compute CTAs: the first has all there is between tiles, the second ends early. */
CASE(test_every_part)
{
    static struct parts p;
    struct trace_why w;
    parts_make(&p);
    for (uint32_t r = 0; r < PARTS_RANKS; r++)
        p.plan[r].problem.tuning.split = (struct mk_role_split){.ctas = {2, 1, 0, 0}};
    for (uint32_t c = 0; c < 2; c++)
        p.tracks[2][c].count = 0;
    parts_add(&p, 2, 0, mk_event_what(MK_EV_LAUNCH, 1, 1), 5, 5);
    parts_add(&p, 2, 0, mk_event_what(MK_EV_WAIT, MK_CAUSE_DATA, 10), 10, 30);
    parts_add(&p, 2, 0, mk_event_what(MK_EV_TILE, 0, 0), 40, 140);
    parts_add(&p, 2, 0, mk_event_what(MK_EV_COPY, 1, 0), 150, 160);
    parts_add(&p, 2, 0, mk_event_what(MK_EV_TILE, 0, 1), 170, 370); /* twice as long as others, */
    parts_add(&p, 2, 0, mk_event_what(MK_EV_WAIT, MK_CAUSE_DATA, 11), 200, 260); /* by a wait */
    parts_add(&p, 2, 0, mk_event_what(MK_EV_TILE, 0, 2), 370, 470);
    parts_add(&p, 2, 1, mk_event_what(MK_EV_LAUNCH, 1, 1), 0, 0);
    parts_add(&p, 2, 1, mk_event_what(MK_EV_TILE, 0, 3), 20, 120);
    parts_add(&p, 2, 1, mk_event_what(MK_EV_COPY, 1, 1), 480, 500);
    parts_add(&p, 2, 2, mk_event_what(MK_EV_COPY, 1, 2), 500, 520);
    why(&p, 1, &w);
    assert_true(w.rank == 2 && w.ctas == 2 && w.tiles == 4);
    assert_parts(&w, (const double[TRACE_WHY_PARTS]){[TRACE_WHY_LAUNCH] = 2.5,
                                                     [TRACE_WHY_PROLOGUE] = 17.5,
                                                     [TRACE_WHY_PRODUCTS] = 200,
                                                     [TRACE_WHY_SLOWED] = 20,
                                                     [TRACE_WHY_DATA] = 40,
                                                     [TRACE_WHY_OWN] = 5,
                                                     [TRACE_WHY_BETWEEN] = 10,
                                                     [TRACE_WHY_TAIL] = 175,
                                                     [TRACE_WHY_EXCHANGE_OWN] = 10,
                                                     [TRACE_WHY_EXCHANGE] = 40});
}

/* A launch whose blocks come while the one before still computes counts from that one's end. */
CASE(test_early_launch)
{
    static struct parts p;
    struct trace_why w;
    parts_make(&p);
    parts_add(&p, 3, 1, mk_event_what(MK_EV_LAUNCH, 1, 2), 30, 30); /* its tile ends at 40 */
    parts_add(&p, 3, 0, mk_event_what(MK_EV_LAUNCH, 1, 2), 45, 45);
    parts_add(&p, 3, 0, mk_event_what(MK_EV_TILE, 0, 1), 50, 90);
    why(&p, 2, &w);
    assert_true(w.rank == 3 && w.launch == 2 && w.early == 10 && w.end - w.start == 50);
    assert_parts(&w,
                 (const double[TRACE_WHY_PARTS]){
                     [TRACE_WHY_LAUNCH] = 5, [TRACE_WHY_PROLOGUE] = 5, [TRACE_WHY_PRODUCTS] = 40});
}

CASE(test_refused)
{
    static struct parts p;
    struct trace_why w;
    sqlite3 *db;
    char error[256];
    parts_make(&p);
    parts_store(&p, db);
    assert_int_equal(trace_why(db, 9, &w, error, sizeof error), -ERANGE);
    assert_string_equal(error, "there is no launch 9 in the trace");
    sqlite3_close(db);
}

static struct command_run r;

static int ran(const char *words)
{
    char line[512];
    snprintf(line, sizeof line, words, parts_path("sim.db"));
    command_start(&r, line, NULL);
    return command_finish(&r, 60);
}

/* A whole launch of the simulator, by the command: its parts add up, and most is products. */
CASE(test_simulated)
{
    assert_int_equal(ran("sim ag_gemm --cluster 1x2 --shape 4096,3584,8192 --trace %s"), 0);
    assert_int_equal(ran("trace why %s"), 0);
    assert_non_null(strstr(r.out_text, "products at full rate"));
    assert_non_null(strstr(r.out_text, "the whole"));
    assert_int_equal(ran("trace why %s --launch 77"), 2);
    assert_string_equal(r.err_text, "mkernel trace why: there is no launch 77 in the trace\n");
    assert_int_equal(ran("trace why %s --json"), 0);
    double sum = 0, whole = 0, products = 0;
    for (char *line = strtok(r.out_text, "\n"); line; line = strtok(NULL, "\n")) {
        char name[64];
        double ns;
        if (sscanf(line, " \"%63[^\"]\": %lf", name, &ns) != 2 || !strstr(name, "_ns") ||
            !strcmp(name, "early_ns"))
            continue;
        *(strcmp(name, "whole_ns") ? &sum : &whole) += ns;
        products += strcmp(name, "products_at_full_rate_ns") ? 0 : ns;
    }
    assert_true(whole > 0 && fabs(sum - whole) < 1e-6 * whole && products > 0.7 * whole);
}

FIXTURE(NULL, parts_clean)
