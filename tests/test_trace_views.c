/* Every view of a stored trace gives the answer that was worked out by hand on a trace of four
 * ranks (trace_parts.h). */
#include "tests/helpers/test.h"
#include "tests/helpers/trace_parts.h"

static sqlite3 *db;

static int open_trace(void **state)
{
    static struct parts p;
    static struct mk_flag_meaning own[4];
    parts_make(&p);
    memcpy(own, p.flags, sizeof own);
    snprintf(own[3].text, sizeof own[3].text, "the other CTAs of rank 1");
    own[3].producer = 1;
    p.plan[1].flags = own;
    p.tracks[3][1].dropped = 7;
    p.part[2].messages_dropped = 2;
    parts_store(&p, db);
    return 0;
}

static int close_trace(void **state)
{
    sqlite3_close(db);
    return parts_clean(state);
}

CASE(test_run)
{
    parts_ask(db,
              "SELECT source, executor, op, shape, nodes, gpus, origin_ns, duration_ns, events, "
              "messages, "
              "dropped, residual_ns FROM run",
              "measured|host|ag_gemm|512,64,64|2|2|1000000000|300|26|1|9|0");
    parts_ask(db, "SELECT id, node, local, host, device FROM rank WHERE id = 3",
              "3|1|1|here|paper");
    parts_ask(db, "SELECT count(*), min(compute), max(pieces) FROM plan", "1|1|1");
}

/* rank 0: a tile 200 of 250 ns, a transfer [0,180] (copy, then the put until rank 2 saw it). */
CASE(test_overlap)
{
    parts_ask(db,
              "SELECT rank, compute_only_ns, comm_only_ns, both_ns, idle_ns, total_ns FROM overlap",
              "0|70|50|130|0|250;1|30|70|70|0|170;2|150|130|20|0|300;3|40|0|0|0|40");
    parts_ask(db, "SELECT rank, exposed_ns, communication_ns, exposed FROM exposed",
              "0|50|180|27.8;1|70|140|50.0;2|130|150|86.7;3|0|0|0.0");
    parts_ask(db, "SELECT launch, epoch, start, end, ns, slowest_ns, fastest_ns FROM launches",
              "1|1|0|300|300|300|40");
    parts_ask(db, "SELECT slowest_rank, ideal_ns, efficiency, basis FROM launches",
              "2|170|56.7|trace");
    parts_ask(db, "SELECT name, value FROM figures WHERE section = 'launch' ORDER BY place",
              "median launch: slowest rank|300;median launch: ideal of that rank|170;median "
              "launch: ideal / slowest rank|"
              "56.6666666666667;median launch: first start to last end|300;slowest launch: slowest "
              "rank|300");
    parts_ask(db,
              "SELECT name, round(value, 2) FROM figures WHERE section = 'overlap' ORDER BY place",
              "compute only|38.16;compute and communication|28.95;communication only "
              "(exposed)|32.89;idle|0.0;"
              "exposed, of all communication|53.19;exposed, per launch and rank|62.5");
    parts_ask(db, "SELECT name, value FROM figures WHERE section = 'wait' ORDER BY place",
              "compute data|30.0;compute network|32.5");
    parts_ask(db,
              "SELECT name, round(value, 2) FROM figures WHERE section = 'role' AND name LIKE "
              "'compute%' ORDER BY place",
              "compute tile|67.11;compute wait|32.89");
    parts_ask(db, "SELECT rank, ns, ideal_ns, efficiency, basis FROM efficiency WHERE rank < 2",
              "0|250|200|80.0|trace;1|170|140|82.4|trace");
}

CASE(test_time)
{
    parts_ask(db, "SELECT role, kind, count, ns FROM role_time WHERE rank = 0",
              "compute|tile|2|200;compute|wait|1|50;intra_comm|copy|1|60;inter_send|command|1|10");
    parts_ask(
        db, "SELECT rank, role, cause, count, ns, longest_ns, share FROM stalls",
        "0|compute|data|1|50|50|20.0;1|compute|data|1|70|70|41.2;2|compute|network|1|130|130|43.3");
    parts_ask(db, "SELECT rank, tile, ns, slab FROM slowest_tiles LIMIT 2", "2|0|120|0;1|2|100|2");
    parts_ask(db, "SELECT rank, cta, ns, cause, waited_for, producer FROM worst_stalls",
              "2|0|130|network|chunk 0 of rank 0's A|0;1|0|70|data|chunk 0 of rank 0's "
              "A|0;0|0|50|data|chunk "
              "0 of rank 1's A|1");
}

CASE(test_messages)
{
    parts_ask(
        db,
        "SELECT rank, peer, commanded, seen, posted, completed, arrived, waited, ns, chunk, launch "
        "FROM message",
        "0|2|10|20|30|200|180|1|190|0|1");
    parts_ask(
        db,
        "SELECT carries, command_seen, seen_posted, posted_completed, posted_arrived FROM messages",
        "chunk 0 of rank 0's A|10|10|170|150");
    parts_ask(db, "SELECT name, count, median_ns, max_ns FROM stage",
              "command-seen|1|10|10;seen-posted|1|10|10;posted-completed|1|170|170;posted-arrived|"
              "1|150|150;"
              "whole|1|190|190");
    parts_ask(db,
              "SELECT e.kind, e.rank, e.cta, e.peer FROM message m JOIN events e ON e.id = "
              "m.command_event",
              "command|0|2|2");
    parts_ask(db,
              "SELECT e.kind, e.rank, e.cta FROM message m JOIN events e ON e.id = m.arrival_event",
              "wait|2|0");
}

/* Every wait with what ended it: rank 0's by rank 1's signal, rank 1's by rank 0's, rank 2's by the
 * put. */
CASE(test_edges)
{
    parts_ask(
        db,
        "SELECT w.rank, p.kind, p.rank, p.cta, w.message FROM waits w JOIN events p ON p.id = "
        "w.producer_event ORDER BY 1",
        "0|signal|1|1|;1|signal|0|1|;2|command|0|2|1");
    parts_ask(db, "SELECT step, rank, role, what, start, ns, text FROM critical_path",
              "0|0|inter_send|command|0|10|;1|2|compute|message|10|170|chunk 0 of rank 0's "
              "A;2|2|compute|tile|180|120|tile 0");
    parts_ask(db, "SELECT what, role, ns FROM critical_share",
              "message|compute|170;tile|compute|120;command|inter_send|10");
}

/* A flag means the same on every rank, but for those ranks that say otherwise. */
CASE(test_flags)
{
    parts_ask(db, "SELECT count(*) FROM flag", "5");
    parts_ask(db, "SELECT rank, producer, text FROM flags WHERE flag = 13",
              "0|3|chunk 0 of rank 3's A;1|1|the other CTAs of rank 1;2|3|chunk 0 of rank 3's "
              "A;3|3|chunk 0 "
              "of rank 3's A");
}

CASE(test_links)
{
    parts_ask(
        db, "SELECT kind, rank, direction, transfers, bytes, busy_ns, peak_bytes FROM busiest_link",
        "network|0|out|1|1000|150|1000;network|2|in|1|1000|150|1000;nvlink|0|in|1|1000|140|1000;"
        "nvlink|"
        "1|out|1|1000|140|1000;"
        "nvlink|0|out|1|1000|60|1000;nvlink|1|in|1|1000|60|1000");
    parts_ask(db, "SELECT kind, source, destination, bytes, busy_ns FROM traffic",
              "network|0|2|1000|150;nvlink|0|1|1000|60;nvlink|1|0|1000|140");
    parts_ask(
        db,
        "SELECT count(*) FROM (SELECT link, level, sum(bytes) AS b FROM flow GROUP BY 1, 2) WHERE "
        "abs(b - 1000) > 60",
        "0");
}

CASE(test_tree)
{
    parts_ask(db, "SELECT name, events, leaves, longest_ns, start, end FROM track WHERE rank = 0",
              "rank 0 (node 0)|9|3|100|0|250;compute|4|1|100|0|250;CTA "
              "0|4|1|100|0|250;intra_comm|3|1|60|0|60;CTA 1|3|1|60|0|60;"
              "inter_send|2|1|10|0|10;CTA 2|2|1|10|0|10");
    parts_ask(db, "SELECT rank, \"where\", dropped, kept FROM drops",
              "2|message log|2|;3|CTA 1|7|1");
}

FIXTURE(open_trace, close_trace)
