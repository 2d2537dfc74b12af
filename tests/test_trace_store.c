/* What was recorded is what is stored, whole: every event and message of a large made-up run, long
 * intervals as one, aggregates that add up to the events, arrows that point back in time. */
#include "tests/helpers/test.h"
#include "tests/helpers/trace_parts.h"
#include "tests/helpers/generate.h"

static const struct generate_config config = {
    .events = 60000, .nodes = 2, .gpus = 3, .ctas = 24, .seed = 7, .command = "test"};
static struct trace_part *parts;
static sqlite3 *db;

static int make_trace(void **state)
{
    char error[512] = "";
    const struct trace_run run = {.source = "synthetic", .executor = "sim"};
    if (generate_parts(&parts, &config, error, sizeof error) ||
        store_parts(parts, config.nodes * config.gpus, &run, parts_path("big.db"), error,
                    sizeof error) ||
        trace_open(&db, parts_path("big.db"), error, sizeof error)) {
        fprintf(stderr, "%s\n", error);
        return 1;
    }
    return 0;
}

static int free_trace(void **state)
{
    sqlite3_close(db);
    generate_free(parts, &config);
    return parts_clean(state);
}

/* Row by row against the records: kinds, arguments, lengths; times on rank 0's clock within the
 * clock's residual. */
CASE(test_round_trip)
{
    sqlite3_stmt *q = NULL;
    uint64_t events = 0, residual;
    char text[64];
    parts_answer(db, "SELECT residual_ns FROM run", text, sizeof text);
    residual = strtoull(text, NULL, 10);
    assert_int_equal(sqlite3_prepare_v2(db,
                                        "SELECT e.kind, e.argument, e.ns, e.start, e.cause FROM "
                                        "event e JOIN track t ON t.id = e.track"
                                        " WHERE t.rank = ?1 AND t.cta = ?2 ORDER BY e.id",
                                        -1, &q, NULL),
                     SQLITE_OK);
    for (uint32_t r = 0; r < config.nodes * config.gpus; r++) {
        /* as tests/helpers/generate.h has it */
        double rate = r / config.gpus ? 4e-6 * (r / config.gpus % 2 ? 1 : -1) : 0;
        uint64_t skew = 100000000ull * (r / config.gpus);
        for (uint32_t c = 0; c < parts[r].track_count; c++) {
            const struct mk_track *t = &parts[r].tracks[c];
            sqlite3_bind_int(q, 1, (int)r);
            sqlite3_bind_int(q, 2, (int)c);
            for (uint32_t i = 0; i < t->count; i++, events++) {
                assert_int_equal(sqlite3_step(q), SQLITE_ROW);
                assert_int_equal(sqlite3_column_int64(q, 0), mk_event_kind_of(&t->events[i]));
                assert_int_equal(sqlite3_column_int64(q, 1), mk_event_argument(&t->events[i]));
                assert_int_equal(sqlite3_column_int64(q, 4),
                                 mk_event_kind_of(&t->events[i]) == MK_EV_WAIT
                                     ? mk_event_cause_of(&t->events[i])
                                     : 0);
                assert_in_range(sqlite3_column_int64(q, 2) + 10, t->events[i].ns,
                                t->events[i].ns + 20);
                double since = (double)(t->events[i].start - skew - 1000000000ull),
                       truth = since / (1 + rate);
                double origin = strtod(
                    (parts_answer(db, "SELECT origin_ns - 1000000000 FROM run", text, sizeof text),
                     text),
                    NULL);
                double off = (double)sqlite3_column_int64(q, 3) + origin - truth;
                if (off > (double)residual + 2 || off < -(double)residual - 2)
                    fail_msg("rank %u CTA %u event %u: %.0f ns off, clocks claim %llu", r, c, i,
                             off, (unsigned long long)residual);
                if (i > 20)
                    break; /* times of the first ones; the rest is counted below */
            }
            sqlite3_reset(q);
        }
    }
    sqlite3_finalize(q);
    assert_true(events > 1000);
}

CASE(test_counts)
{
    uint64_t events = 0, messages = 0;
    char want[64];
    for (uint32_t r = 0; r < config.nodes * config.gpus; r++) {
        messages += parts[r].message_count;
        for (uint32_t c = 0; c < parts[r].track_count; c++)
            events += parts[r].tracks[c].count;
    }
    snprintf(want, sizeof want, "%llu|%llu|synthetic", (unsigned long long)events,
             (unsigned long long)messages);
    parts_ask(
        db, "SELECT (SELECT count(*) FROM event), (SELECT count(*) FROM message), source FROM run",
        want);
    parts_ask(db,
              "SELECT count(*) FROM run WHERE events = (SELECT sum(events) FROM track WHERE kind = "
              "'rank') AND"
              " events = (SELECT sum(count) FROM total)",
              "1");
    /* Ids run through a track in order of time. */
    parts_ask(
        db,
        "SELECT count(*) FROM event a JOIN event b ON b.id = a.id + 1 WHERE b.track < a.track OR "
        "(b.track = a.track AND b.start < a.start)",
        "0");
    parts_ask(db,
              "SELECT count(*) FROM track t WHERE t.first_event IS NOT NULL AND (SELECT count(*) "
              "FROM event "
              "e WHERE e.track = t.id AND e.id"
              " BETWEEN t.first_event AND t.last_event) <> t.events",
              "0");
}

/* Every level holds the same ns as the events; a parent's row is the sum of its children's; nothing
 * exceeds its bucket. */
CASE(test_levels)
{
    parts_ask(
        db,
        "SELECT count(*) FROM (SELECT v.level, v.track, sum(tile) AS tile, sum(copy) AS copy, "
        "sum(wait_data) AS data, sum(wait_network) AS"
        " net FROM level v JOIN track t ON t.id = v.track AND t.first_event IS NOT NULL GROUP BY "
        "1, 2) "
        "x JOIN (SELECT track, sum(ns) FILTER"
        " (WHERE kind = 2) AS tile, sum(ns) FILTER (WHERE kind = 4) AS copy, sum(ns) FILTER (WHERE "
        "kind = 3 AND cause = 1) AS data,"
        " sum(ns) FILTER (WHERE kind = 3 AND cause = 4) AS net FROM event GROUP BY track) y ON "
        "y.track "
        "= x.track WHERE x.tile <>"
        " coalesce(y.tile, 0) OR x.copy <> coalesce(y.copy, 0) OR x.data <> coalesce(y.data, 0) OR "
        "x.net <> coalesce(y.net, 0)",
        "0");
    parts_ask(db,
              "SELECT count(*) FROM (SELECT v.level, v.bucket, t.parent, sum(v.tile) AS tile, "
              "sum(v.wait_network) AS net FROM level v JOIN track t ON"
              " t.id = v.track WHERE t.parent IS NOT NULL GROUP BY 1, 2, 3) x LEFT JOIN level p ON "
              "p.level = "
              "x.level AND p.bucket = x.bucket AND"
              " p.track = x.parent WHERE p.tile IS NOT x.tile OR p.wait_network IS NOT x.net",
              "0");
    parts_ask(db,
              "SELECT count(*) FROM level v JOIN zoom z ON z.level = v.level JOIN track t ON t.id "
              "= v.track "
              "WHERE tile + copy + command + reduce +"
              " wait_data + wait_backpressure + wait_credit + wait_network > z.ns * t.leaves OR "
              "v.bucket >= "
              "z.buckets",
              "0");
    parts_ask(db, "SELECT min(ns & (ns - 1)), max(buckets) >= 256, min(buckets) <= 32 FROM zoom",
              "0|1|1");
    parts_ask(
        db,
        "SELECT count(*) FROM (SELECT rank, level, sum(compute_only) AS a, sum(comm_only) AS b, "
        "sum(both) AS c FROM overlap_level GROUP BY 1, 2) x"
        " JOIN overlap o ON o.rank = x.rank WHERE x.a <> o.compute_only_ns OR x.b < o.comm_only_ns "
        "OR "
        "x.c <> o.both_ns",
        "0");
    parts_ask(db,
              "SELECT count(*) FROM launch_rank WHERE compute_only + comm_only + both + idle <> "
              "end - start "
              "OR min(compute_only, comm_only, both, idle) < 0",
              "0");
}

CASE(test_joins)
{
    parts_ask(db,
              "SELECT count(*) FROM message WHERE commanded IS NULL OR arrived IS NULL OR launch "
              "IS NULL OR "
              "chunk IS NULL",
              "0");
    parts_ask(db,
              "SELECT count(*) FROM message m JOIN event e ON e.id = m.command_event JOIN track t "
              "ON t.id = "
              "e.track WHERE t.rank <> m.rank OR"
              " e.argument <> m.sequence OR e.kind <> 6",
              "0");
    parts_ask(
        db,
        "SELECT count(*) FROM message, run WHERE commanded > seen OR seen > posted OR posted > "
        "completed OR arrived + residual_ns < posted",
        "0");
    /* Every wait that took time knows what ended it, and that came before its end. */
    parts_ask(db,
              "SELECT count(*) FROM event e LEFT JOIN edge d ON d.event = e.id WHERE e.kind = 3 "
              "AND e.ns > 0 "
              "AND d.event IS NULL",
              "0");
    parts_ask(db,
              "SELECT count(*) FROM edge d JOIN event e ON e.id = d.event JOIN event p ON p.id = "
              "d.producer, "
              "run WHERE p.start + p.ns >"
              " e.start + e.ns + 2 * residual_ns + 64",
              "0");
    parts_ask(db,
              "SELECT count(*) FROM edge d JOIN waits w ON w.id = d.event JOIN event p ON p.id = "
              "d.producer "
              "JOIN track t ON t.id = p.track WHERE"
              " d.message IS NULL AND (p.kind <> 5 OR p.argument <> w.flag OR p.peer <> w.rank)",
              "0");
    /* The critical path covers its launch without holes, from its first step to the end. */
    parts_ask(db,
              "SELECT count(*) FROM critical a JOIN critical b ON b.launch = a.launch AND b.step = "
              "a.step + "
              "1 WHERE a.start + a.ns <> b.start",
              "0");
    parts_ask(db,
              "SELECT count(*) FROM launches l WHERE l.end <> (SELECT max(start + ns) FROM "
              "critical c WHERE "
              "c.launch = l.launch)",
              "0");
}

/* 10 s in one wait: three records of the track, one event of the trace; as many touching waits of
 * less than 4.29 s stay apart. */
CASE(test_long)
{
    static struct parts p;
    sqlite3 *t;
    parts_make(&p);
    parts_add(&p, 3, 0, mk_event_what(MK_EV_WAIT, MK_CAUSE_BACKPRESSURE, 12), 100,
              100 + 10000000000ull);
    parts_add(&p, 3, 1, mk_event_what(MK_EV_WAIT, MK_CAUSE_BACKPRESSURE, 12), 100, 200);
    parts_add(&p, 3, 1, mk_event_what(MK_EV_WAIT, MK_CAUSE_BACKPRESSURE, 12), 200, 300);
    assert_int_equal(p.tracks[3][0].count, 5);
    parts_store(&p, t);
    parts_ask(t,
              "SELECT e.start, e.ns FROM event e JOIN track k ON k.id = e.track WHERE k.rank = 3 "
              "AND k.cta = "
              "0 AND e.kind = 3",
              "100|10000000000");
    parts_ask(t,
              "SELECT count(*) FROM event e JOIN track k ON k.id = e.track WHERE k.rank = 3 AND "
              "k.cta = 1 "
              "AND e.kind = 3",
              "2");
    parts_ask(
        t,
        "SELECT count(*) = (SELECT count(*) FROM zoom WHERE leaves), min(w) FROM (SELECT level, "
        "sum(wait_backpressure) AS "
        "w FROM level v JOIN track k ON k.id = v.track WHERE k.rank = 3 AND"
        " k.cta = 0 AND k.kind = 'cta' GROUP BY level) WHERE w = 10000000000",
        "1|10000000000");
    sqlite3_close(t);
}

/* A full track keeps what it has and counts the rest; the trace says so where a person looks. */
CASE(test_drops)
{
    static struct parts p;
    sqlite3 *t;
    parts_make(&p);
    for (int i = 0; i < 20; i++)
        parts_add(&p, 2, 1, mk_event_what(MK_EV_COPY, 0, 2), 10 * (uint64_t)i,
                  10 * (uint64_t)i + 5);
    assert_int_equal(p.tracks[2][1].dropped, 13);
    p.part[1].messages_dropped = 4;
    parts_store(&p, t);
    parts_ask(t, "SELECT dropped FROM run", "17");
    parts_ask(t, "SELECT rank, \"where\", dropped, kept FROM drops",
              "1|message log|4|;2|CTA 1|13|8");
    parts_ask(
        t, "SELECT dropped FROM track WHERE rank = 2 AND kind IN ('rank', 'role') AND dropped > 0",
        "13;13");
    sqlite3_close(t);
}

/* A wait that began after its flag was there (the put had completed) took its time for another
 * reason: no arrival is read from it, and the critical path stays on its CTA. */
CASE(test_flag_was_there)
{
    static struct parts p;
    sqlite3 *t;
    parts_make(&p);
    p.message.completed = PARTS_BEGIN + 60;
    p.events[2][0][2].start = PARTS_BEGIN + 150; /* rank 2's wait is [150,180] */
    p.events[2][0][2].ns = 30;
    parts_store(&p, t);
    parts_ask(t, "SELECT arrived, waited, ns FROM message", "180|0|50");
    parts_ask(t, "SELECT count FROM stage WHERE name = 'posted-arrived'", "0");
    parts_ask(t, "SELECT what, rank, start, ns FROM critical ORDER BY step",
              "tile|2|0|50;gap|2|50|100;wait|2|150|30;tile|2|180|120");
    parts_ask(t, "SELECT w.rank, w.message FROM waits w WHERE w.rank = 2", "2|1");
    sqlite3_close(t);
}

/* Several CTAs wait for one put: it arrived when the first of them saw it, whichever track that is
 * on. */
CASE(test_first_to_see)
{
    static struct parts p;
    sqlite3 *t;
    parts_make(&p);
    parts_add(&p, 2, 1, mk_event_what(MK_EV_WAIT, MK_CAUSE_NETWORK, 10), 40, 170);
    parts_add(&p, 2, 2, mk_event_what(MK_EV_WAIT, MK_CAUSE_NETWORK, 10), 60, 190);
    parts_store(&p, t);
    parts_ask(t, "SELECT m.arrived, e.cta FROM message m JOIN events e ON e.id = m.arrival_event",
              "170|1");
    parts_ask(t, "SELECT count(*) FROM edge WHERE message = 1", "3");
    sqlite3_close(t);
}

/* A signal of an earlier launch ends no wait. */
CASE(test_launches_apart)
{
    static struct parts p;
    sqlite3 *t;
    parts_make(&p);
    parts_add(&p, 1, 0, mk_event_what(MK_EV_LAUNCH, 1, 2), 400, 400);
    parts_add(&p, 1, 0, mk_event_what(MK_EV_WAIT, MK_CAUSE_DATA, 10), 400, 450);
    parts_store(&p, t);
    parts_ask(t,
              "SELECT w.cause, w.epoch, w.producer_event IS NOT NULL FROM waits w WHERE w.start >= "
              "400 ORDER BY 1",
              "data|2|0");
    sqlite3_close(t);
}

/* On a GPU a CTA has a track for the warp that waits and one for the math. A CTA that used both is
 * a row above two; one that used one is itself the leaf; tracks beyond the launch's CTAs are
 * unused. The load warp's wait explains the math warp's tile. */
CASE(test_warps)
{
    static struct parts p;
    static struct mk_track tracks[8];
    static struct mk_event events[2][4];
    sqlite3 *t;
    parts_make(&p);
    tracks[0] = (struct mk_track){events[0], 4, 0, 0}; /* CTA 0, warp 0 */
    tracks[1] = (struct mk_track){events[1], 4, 0, 0};
    tracks[2] = p.tracks[2][1]; /* CTA 1, warp 0 */
    tracks[4] = p.tracks[2][2];
    p.part[2].tracks = tracks;
    p.part[2].track_count = 8;
    p.part[2].track_warps = 2;
    mk_track_add(&tracks[0], mk_event_what(MK_EV_LAUNCH, 1, 1), PARTS_BEGIN, PARTS_BEGIN);
    mk_track_add(&tracks[0], mk_event_what(MK_EV_WAIT, MK_CAUSE_NETWORK, 10), PARTS_BEGIN,
                 PARTS_BEGIN + 180);
    mk_track_add(&tracks[1], mk_event_what(MK_EV_LAUNCH, 1, 1), PARTS_BEGIN, PARTS_BEGIN);
    mk_track_add(&tracks[1], mk_event_what(MK_EV_TILE, 0, 0), PARTS_BEGIN + 180, PARTS_BEGIN + 360);
    parts_store(&p, t);
    parts_ask(t,
              "SELECT kind, name, leaves, warp, first_event IS NOT NULL FROM track WHERE rank = 2 "
              "AND kind IN "
              "('cta', 'warp')",
              "cta|CTA 0|2||0;warp|CTA 0 warp 0|1|0|1;warp|CTA 0 warp 1|1|1|1;cta|CTA "
              "1|1|0|1;cta|CTA 2|1|0|1");
    parts_ask(t, "SELECT what, rank, start, ns FROM critical ORDER BY step",
              "command|0|0|10;message|2|10|170;tile|2|180|180");
    parts_ask(t, "SELECT kind, ns, share FROM role_time WHERE rank = 2",
              "tile|180|50.0;wait|180|50.0");
    parts_ask(t, "SELECT compute_tracks, tile_ns FROM launch_rank WHERE rank = 2", "1|180");
    sqlite3_close(t);
}

/* All ranks have the plan of p twice, plans[0] and, to be changed, plans[1]. */
static void have_two_plans(struct parts *p, struct trace_plan plans[2])
{
    plans[0] = plans[1] = p->plan[0];
    for (uint32_t r = 0; r < PARTS_RANKS; r++) {
        p->part[r].plans = plans;
        p->part[r].plan_count = 2;
    }
}

/* Two plans split the CTAs differently: CTA 1 of rank 0 has a row in each of its roles. */
CASE(test_two_plans)
{
    static struct parts p;
    static struct trace_plan plans[2];
    sqlite3 *t;
    parts_make(&p);
    have_two_plans(&p, plans);
    plans[1].id = 2;
    plans[1].problem.tuning.split = (struct mk_role_split){.ctas = {2, 0, 1, 0}};
    parts_add(&p, 0, 1, mk_event_what(MK_EV_LAUNCH, 2, 1), 400, 400);
    parts_add(&p, 0, 1, mk_event_what(MK_EV_TILE, 0, 3), 400, 500);
    parts_store(&p, t);
    parts_ask(t,
              "SELECT k.name, t.events FROM track t JOIN role k ON k.id = t.role WHERE t.rank = 0 "
              "AND t.cta "
              "= 1 AND t.kind = 'cta'",
              "compute|2;intra_comm|3");
    parts_ask(t, "SELECT id, plan, epoch FROM launch", "1|1|1;2|2|1");
    parts_ask(t,
              "SELECT l.plan FROM event e JOIN launch l ON l.id = e.launch WHERE e.kind = 2 AND "
              "e.start = 400",
              "2");
    sqlite3_close(t);
}

/* Records name a plan by four bits of its id. Of plans that have these alike a launch is of the one
 * whose flags its track waits for or raises, and on tracks without flags of the nearest such launch. */
CASE(test_plans_with_the_same_bits)
{
    static struct parts p;
    static struct trace_plan plans[2];
    sqlite3 *t;
    parts_make(&p);
    have_two_plans(&p, plans);
    plans[1].id = 16 * 16 * 16 + 1;
    plans[1].flag_base = 30;
    for (uint32_t c = 0; c < 2; c++) {
        parts_add(&p, 0, c, mk_event_what(MK_EV_LAUNCH, 1, 1), 400 + c, 400 + c);
        parts_add(&p, 0, c, mk_event_what(MK_EV_TILE, 0, 3), 410, 500);
    }
    parts_add(&p, 0, 0, mk_event_what(MK_EV_WAIT, MK_CAUSE_DATA, 31), 500, 510);
    parts_store(&p, t);
    parts_ask(t, "SELECT id, plan, epoch FROM launch", "1|1|1;2|4097|1");
    parts_ask(
        t,
        "SELECT e.launch, count(*) FROM event e JOIN track t ON t.id = e.track WHERE t.rank = 0 "
        "AND e.kind = 2 GROUP BY 1",
        "1|2;2|2");
    sqlite3_close(t);
}

FIXTURE(make_trace, free_trace)
