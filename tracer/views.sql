-- The answers people want. docs/TRACE.md says what each column means. Every view reads aggregates or an index: none scans all
-- events, but for `events` and `waits` without a condition.

-- Where each rank's launches went. percentages are of the time inside launches.
CREATE VIEW overlap AS
SELECT rank, count(*) AS launches, sum(end - start) AS total_ns,
       sum(compute_only) AS compute_only_ns, sum(comm_only) AS comm_only_ns, sum(both) AS both_ns, sum(idle) AS idle_ns,
       round(100.0 * sum(compute_only) / max(1, sum(end - start)), 1) AS compute_only,
       round(100.0 * sum(comm_only) / max(1, sum(end - start)), 1) AS comm_only,
       round(100.0 * sum(both) / max(1, sum(end - start)), 1) AS both,
       round(100.0 * sum(idle) / max(1, sum(end - start)), 1) AS idle
FROM launch_rank GROUP BY rank;

-- Communication that no compute covered, and how much of all communication that is.
CREATE VIEW exposed AS
SELECT rank, sum(comm_only) AS exposed_ns, sum(comm_only + both) AS communication_ns,
       round(100.0 * sum(comm_only) / max(1, sum(comm_only + both)), 1) AS exposed,
       round(100.0 * sum(both) / max(1, sum(comm_only + both)), 1) AS hidden
FROM launch_rank GROUP BY rank;

-- Each launch: from its first start to its last end (ns), and its slowest rank with the ideal of that rank's part.
CREATE VIEW launches AS
SELECT l.id AS launch, l.plan, l.epoch, x.start, x.end, x.end - x.start AS ns, s.ns AS slowest_ns, x.fastest_ns,
       s.rank AS slowest_rank, s.ideal_ns, s.efficiency, s.basis
FROM launch l
     JOIN (SELECT launch, min(start) AS start, max(end) AS end, min(end - start) AS fastest_ns FROM launch_rank GROUP BY launch) x
         ON x.launch = l.id
     JOIN (SELECT *, row_number() OVER (PARTITION BY launch ORDER BY ns DESC, rank) AS place FROM efficiency) s
         ON s.launch = l.id AND s.place = 1
ORDER BY l.id;

-- How far launches differ: of the slowest rank the least and the most time, and its ideal's share (%). told: whether that share says
-- anything. Where the ideal is made of the run's own times (basis 'trace'), and what was measured differs from launch to launch by more
-- than the middle one lies above its ideal, it does not.
CREATE VIEW launch_spread AS
SELECT x.count, x.least_ns, x.most_ns, x.least_share, x.most_share,
       x.peak OR u.source <> 'measured' OR x.most_ns - x.least_ns <= m.slowest_ns - m.ideal_ns AS told
FROM (SELECT count(*) AS count, min(slowest_ns) AS least_ns, max(slowest_ns) AS most_ns,
             min(100.0 * ideal_ns / max(1, slowest_ns)) AS least_share, max(100.0 * ideal_ns / max(1, slowest_ns)) AS most_share,
             max(basis = 'peak') AS peak FROM launches) x
     CROSS JOIN run u
     LEFT JOIN (SELECT * FROM launches ORDER BY slowest_ns, launch LIMIT 1 OFFSET (SELECT count(*) / 2 FROM launch)) m ON 1;

-- The ideal is whichever takes longest: the flops at peak, the bytes at memory's rate, at NVLink's, at the network's. Where the
-- run does not know these rates (basis 'trace') it is the mean tile time of a compute track, or the time with a
-- transfer under way, whichever is longer: what this schedule would take if nothing ever waited.
CREATE VIEW efficiency AS
SELECT x.launch, x.rank, x.ns,
       CASE WHEN peak_ns IS NULL THEN max(tile_ns, comm_ns) ELSE peak_ns END AS ideal_ns,
       round(100.0 * CASE WHEN peak_ns IS NULL THEN max(tile_ns, comm_ns) ELSE peak_ns END / max(1, x.ns), 1) AS efficiency,
       CASE WHEN peak_ns IS NULL THEN 'trace' ELSE 'peak' END AS basis
FROM (SELECT r.launch, r.rank, r.end - r.start AS ns, r.tile_ns / max(1, r.compute_tracks) AS tile_ns,
             r.comm_only + r.both AS comm_ns,
             CASE WHEN u.peak_flops > 0 THEN CAST(1e9 * max(w.flop / u.peak_flops,
                       coalesce(w.memory_bytes / nullif(u.memory_bytes_per_s, 0), 0),
                       coalesce(w.nvlink_bytes / nullif(u.nvlink_bytes_per_s, 0), 0),
                       coalesce(w.network_bytes / nullif(u.network_bytes_per_s, 0), 0)) AS INTEGER) END AS peak_ns
      FROM launch_rank r JOIN launch l ON l.id = r.launch CROSS JOIN run u
           LEFT JOIN work w ON w.plan = l.plan AND w.rank = r.rank) x;

-- What the CTAs of each role did, summed over CTAs. share: of the CTAs' time in launches; the warps of a CTA may add up to more than 100.
CREATE VIEW role_time AS
SELECT t.rank, o.name AS role, k.name AS kind, sum(s.count) AS count, sum(s.ns) AS ns,
       round(100.0 * sum(s.ns) / max(1, (SELECT count(*) FROM track p
           WHERE p.rank = t.rank AND p.role = t.role AND p.kind = 'cta' AND p.start IS NOT NULL) *
           (SELECT sum(l.end - l.start) FROM launch_rank l WHERE l.rank = t.rank)), 1) AS share
FROM total s JOIN track t ON t.id = s.track JOIN role o ON o.id = t.role JOIN kind k ON k.id = s.kind
WHERE k.name NOT IN ('launch', 'signal') GROUP BY t.rank, t.role, s.kind;

-- The same over all ranks. share: of the time that all CTAs of the role had in launches.
CREATE VIEW role_share AS
SELECT t.role AS role_id, o.name AS role, s.kind AS kind_id, k.name AS kind, sum(s.count) AS count, sum(s.ns) AS ns,
       100.0 * sum(s.ns) / c.ns AS share
FROM total s JOIN track t ON t.id = s.track JOIN role o ON o.id = t.role JOIN kind k ON k.id = s.kind
     JOIN (SELECT p.role, max(1, sum(l.ns)) AS ns
           FROM track p JOIN (SELECT rank, sum(end - start) AS ns FROM launch_rank GROUP BY rank) l ON l.rank = p.rank
           WHERE p.kind = 'cta' AND p.start IS NOT NULL GROUP BY p.role) c ON c.role = t.role
WHERE k.name NOT IN ('launch', 'signal') GROUP BY t.role, s.kind;

-- Its waits by cause: their shares add up to the role's share of waits there.
CREATE VIEW stall_share AS
SELECT r.role_id, r.role, c.id AS cause_id, c.name AS cause, sum(s.count) AS count, sum(s.ns) AS ns,
       r.share * sum(s.ns) / max(1, r.ns) AS share
FROM role_share r JOIN track t ON t.role = r.role_id JOIN total s ON s.track = t.id AND s.kind = r.kind_id
     JOIN cause c ON c.id = s.cause
WHERE r.kind_id = 3 GROUP BY r.role_id, s.cause;

-- Waiting, by role and cause.
CREATE VIEW stalls AS
SELECT t.rank, o.name AS role, c.name AS cause, sum(s.count) AS count, sum(s.ns) AS ns, max(s.longest_ns) AS longest_ns,
       round(100.0 * sum(s.ns) / max(1, (SELECT count(*) FROM track p
           WHERE p.rank = t.rank AND p.role = t.role AND p.kind = 'cta' AND p.start IS NOT NULL) *
           (SELECT sum(l.end - l.start) FROM launch_rank l WHERE l.rank = t.rank)), 1) AS share
FROM total s JOIN track t ON t.id = s.track JOIN role o ON o.id = t.role JOIN cause c ON c.id = s.cause
WHERE s.kind = 3 GROUP BY t.rank, t.role, s.cause;

-- The meaning of every rank's every flag.
CREATE VIEW flags AS
SELECT r.id AS rank, f.plan, f.id AS flag, coalesce(o.producer, f.producer) AS producer, coalesce(o.chunk, f.chunk) AS chunk,
       coalesce(o.text, f.text) AS text
FROM flag f CROSS JOIN rank r LEFT JOIN flag o ON o.plan = f.plan AND o.id = f.id AND o.rank = r.id
WHERE f.rank = -1;

-- Events in words. Ask with a condition on id, or on track and start.
CREATE VIEW events AS
SELECT e.id, t.rank, o.name AS role, t.cta, t.warp, l.epoch, e.start, e.ns, k.name AS kind,
       CASE WHEN e.kind = 3 THEN c.name END AS cause, e.argument, e.peer, e.track, e.launch
FROM event e JOIN track t ON t.id = e.track JOIN role o ON o.id = t.role JOIN kind k ON k.id = e.kind
     JOIN cause c ON c.id = e.cause LEFT JOIN launch l ON l.id = e.launch;

-- Waits in words, with what ended them.
CREATE VIEW waits AS
SELECT e.id, t.rank, o.name AS role, t.cta, l.epoch, e.start, e.ns, c.name AS cause, e.argument AS flag,
       coalesce(f.text, g.text, CASE WHEN e.argument = 16777215 THEN
           CASE e.cause WHEN 2 THEN 'room in its command ring' WHEN 4 THEN 'its puts to leave their source' END END) AS waited_for,
       coalesce(f.producer, g.producer) AS producer,
       d.producer AS producer_event, d.message
FROM event e JOIN track t ON t.id = e.track JOIN role o ON o.id = t.role JOIN cause c ON c.id = e.cause
     LEFT JOIN launch l ON l.id = e.launch
     LEFT JOIN flag f ON f.plan = l.plan AND f.id = e.argument AND f.rank = t.rank
     LEFT JOIN flag g ON g.plan = l.plan AND g.id = e.argument AND g.rank = -1
     LEFT JOIN edge d ON d.event = e.id
WHERE e.kind = 3;

CREATE VIEW worst_stalls AS
SELECT w.* FROM longest x CROSS JOIN waits w ON w.id = x.event WHERE x.kind = 3 ORDER BY x.ns DESC;

CREATE VIEW slowest_tiles AS
SELECT e.id, t.rank, t.cta, l.epoch, e.start, e.ns, e.argument AS tile, i.slab, i.row, i.col, i.rows, i.cols
FROM longest x CROSS JOIN event e ON e.id = x.event JOIN track t ON t.id = e.track LEFT JOIN launch l ON l.id = e.launch
     LEFT JOIN tile i ON i.plan = l.plan AND i.id = e.argument
WHERE x.kind = 2 ORDER BY x.ns DESC;

-- Messages in words, with the length of each stage.
CREATE VIEW messages AS
SELECT m.id, m.rank, m.peer, m.epoch, m.bytes, coalesce(f.text, g.text) AS carries, m.ns, m.commanded,
       m.seen - m.commanded AS command_seen, m.posted - m.seen AS seen_posted,
       m.completed - m.posted AS posted_completed, m.arrived - m.posted AS posted_arrived, m.waited,
       m.flag, m.chunk, m.command_event, m.arrival_event
FROM message m LEFT JOIN flag f ON f.plan = m.plan AND f.id = m.flag AND f.rank = m.peer
     LEFT JOIN flag g ON g.plan = m.plan AND g.id = m.flag AND g.rank = -1;

CREATE VIEW slowest_messages AS
SELECT m.* FROM messages m ORDER BY m.ns DESC;

-- Links by how full they were: bytes over the time with anything under way.
CREATE VIEW busiest_link AS
SELECT l.kind, l.rank, l.direction, l.transfers, l.bytes, l.busy_ns,
       round(100.0 * l.busy_ns / max(1, u.duration_ns), 1) AS busy, round(1.0 * l.bytes / max(1, l.busy_ns), 3) AS gb_per_s,
       l.peak_bytes
FROM link l CROSS JOIN run u WHERE l.transfers > 0 ORDER BY l.busy_ns DESC;

-- What fixed the end of each launch, step by step: walks from each wait to what ended it.
CREATE VIEW critical_path AS
SELECT c.launch, c.step, c.rank, o.name AS role, t.cta, c.what, c.start, c.ns,
       CASE WHEN c.what = 'message' THEN coalesce(f.text, g.text)
            WHEN c.what = 'tile' THEN 'tile ' || e.argument
            WHEN c.what IN ('copy', 'reduce') THEN 'chunk ' || h.number || ' of rank ' || h.rank END AS text,
       c.event, c.message
FROM critical c JOIN launch l ON l.id = c.launch LEFT JOIN track t ON t.id = c.track LEFT JOIN role o ON o.id = t.role
     LEFT JOIN event e ON e.id = c.event LEFT JOIN message m ON m.id = c.message
     LEFT JOIN flag f ON f.plan = m.plan AND f.id = m.flag AND f.rank = m.peer
     LEFT JOIN flag g ON g.plan = m.plan AND g.id = m.flag AND g.rank = -1
     LEFT JOIN chunk h ON h.plan = l.plan AND h.id = e.argument
ORDER BY c.launch, c.step;
CREATE VIEW critical_share AS
SELECT c.what, o.name AS role, count(*) AS steps, sum(c.ns) AS ns,
       round(100.0 * sum(c.ns) / max(1, (SELECT sum(ns) FROM critical)), 1) AS share
FROM critical c LEFT JOIN track t ON t.id = c.track LEFT JOIN role o ON o.id = t.role
GROUP BY c.what, t.role ORDER BY ns DESC;

CREATE VIEW drops AS
SELECT d.rank, coalesce(t.name, 'message log') AS "where", d.dropped, t.events AS kept, d.track
FROM "drop" d LEFT JOIN track t ON t.id = d.track WHERE d.dropped > 0;

CREATE VIEW clock_quality AS
SELECT rank, domain, residual_ns, offset_ns, round(drift * 1e6, 3) AS drift_ppm, samples, used FROM clock;

-- The figures that `mkernel trace summary`, `mkernel trace diff` and the viewer's panel of differences show: each is defined here and
-- nowhere else, and docs/TRACE.md says it in words. place: in which order. unit: 'ns' or '%'. value NULL: not known.
CREATE VIEW figures AS
WITH middle AS (SELECT * FROM launches ORDER BY slowest_ns, launch LIMIT 1 OFFSET (SELECT count(*) / 2 FROM launch)),
     time AS (SELECT count(*) AS parts, sum(end - start) AS ns, sum(compute_only) AS compute_only, sum(both) AS both,
                     sum(comm_only) AS comm_only, sum(idle) AS idle FROM launch_rank)
SELECT 100 AS place, 'launch' AS section, 'median launch: slowest rank' AS name, 'ns' AS unit, slowest_ns AS value FROM middle
UNION ALL SELECT 101, 'launch', 'median launch: ideal of that rank', 'ns', ideal_ns FROM middle
UNION ALL SELECT 102, 'launch', 'median launch: ideal / slowest rank', '%', 100.0 * ideal_ns / max(1, slowest_ns) FROM middle
UNION ALL SELECT 103, 'launch', 'median launch: first start to last end', 'ns', ns FROM middle
UNION ALL SELECT 104, 'launch', 'slowest launch: slowest rank', 'ns', max(slowest_ns) FROM launches
UNION ALL SELECT 200, 'overlap', 'compute only', '%', 100.0 * compute_only / max(1, ns) FROM time WHERE parts
UNION ALL SELECT 201, 'overlap', 'compute and communication', '%', 100.0 * both / max(1, ns) FROM time WHERE parts
UNION ALL SELECT 202, 'overlap', 'communication only (exposed)', '%', 100.0 * comm_only / max(1, ns) FROM time WHERE parts
UNION ALL SELECT 203, 'overlap', 'idle', '%', 100.0 * idle / max(1, ns) FROM time WHERE parts
UNION ALL SELECT 204, 'overlap', 'exposed, of all communication', '%', 100.0 * comm_only / (comm_only + both) FROM time
    WHERE comm_only + both > 0
UNION ALL SELECT 205, 'overlap', 'exposed, per launch and rank', 'ns', 1.0 * comm_only / parts FROM time WHERE parts
UNION ALL SELECT 300 + 16 * role_id + kind_id, 'role', role || ' ' || kind, '%', share FROM role_share
UNION ALL SELECT 400 + 16 * t.role + s.cause, 'wait', o.name || ' ' || c.name, 'ns', 1.0 * sum(s.ns) / max(1, (SELECT parts FROM time))
    FROM total s JOIN track t ON t.id = s.track JOIN role o ON o.id = t.role JOIN cause c ON c.id = s.cause
    WHERE s.kind = 3 GROUP BY t.role, s.cause HAVING sum(s.ns) > 0
UNION ALL SELECT 500 + s.kind, 'work', k.name || ', mean', 'ns', 1.0 * sum(s.ns) / sum(s.count)
    FROM total s JOIN kind k ON k.id = s.kind WHERE s.kind IN (2, 4, 7) GROUP BY s.kind
UNION ALL SELECT 510 + s.kind, 'work', k.name || ', longest', 'ns', max(s.longest_ns)
    FROM total s JOIN kind k ON k.id = s.kind WHERE s.kind IN (2, 3, 4, 7) GROUP BY s.kind
UNION ALL SELECT 600 + 2 * id, 'message', name || ', median', 'ns', median_ns FROM stage WHERE count > 0
UNION ALL SELECT 601 + 2 * id, 'message', name || ', p99', 'ns', p99_ns FROM stage WHERE count > 0;
