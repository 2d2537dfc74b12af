-- What the file `a` has and this one has not comes in. What is known by the same name in both has the number that it has in main; sweeps and jobs get
-- new numbers, behind those that are there.
BEGIN IMMEDIATE;
INSERT OR IGNORE INTO main.machine (identity, facts) SELECT identity, facts FROM a.machine;
INSERT OR IGNORE INTO main.point (key) SELECT key FROM a.point;
CREATE TEMP TABLE same AS SELECT p.id AS there, m.id AS here FROM a.point p JOIN main.point m ON m.key = p.key;
INSERT OR IGNORE INTO main.setting SELECT here, name, value FROM a.setting JOIN temp.same ON there = point;
INSERT OR REPLACE INTO main.published SELECT here, who, flop_per_s FROM a.published JOIN temp.same ON there = point;

-- What failed here and was measured there goes.
CREATE TEMP TABLE stale AS
SELECT j.id FROM main.job j JOIN temp.same ON here = j.point JOIN a.job o ON o.point = there AND o.repeat = j.repeat
WHERE j.verdict IN ('failed', 'impossible') AND o.verdict NOT IN ('failed', 'impossible') AND j.id NOT IN (SELECT job FROM main.sample);
DELETE FROM main.power WHERE job IN (SELECT id FROM temp.stale);
DELETE FROM main.job WHERE id IN (SELECT id FROM temp.stale);

CREATE TEMP TABLE behind AS SELECT (SELECT coalesce(max(id), 0) FROM main.sweep) AS sweeps, (SELECT coalesce(max(id), 0) FROM main.job) AS jobs;
CREATE TEMP TABLE taken AS
SELECT j.id, here AS point FROM a.job j JOIN temp.same ON there = j.point
WHERE NOT EXISTS (SELECT 1 FROM main.job o WHERE o.point = here AND o.repeat = j.repeat);
INSERT INTO main.sweep
SELECT s.id + sweeps, s.name, s.question, s.text, s.command, s.seed, m.id, s.begun, s.ended, s.how
FROM a.sweep s JOIN a.machine o ON o.id = s.machine JOIN main.machine m ON m.identity = o.identity, temp.behind
WHERE s.id IN (SELECT j.sweep FROM a.job j JOIN temp.taken t ON t.id = j.id);
INSERT INTO main.job
SELECT j.id + jobs, t.point, j.repeat, j.sweep + sweeps, j.begun, j.seconds, j.command, j.status, j.verdict, j.sentence, j.load, j.result
FROM a.job j JOIN temp.taken t ON t.id = j.id, temp.behind;
INSERT INTO main.sample
SELECT s.job + jobs, s.what, s.rank, s.number, s.warmup, s.ms FROM a.sample s JOIN temp.taken t ON t.id = s.job, temp.behind;
INSERT INTO main.power
SELECT s.job + jobs, s.seconds, s.gpu, s.sm_mhz, s.memory_mhz, s.watts, s.celsius FROM a.power s JOIN temp.taken t ON t.id = s.job, temp.behind;
INSERT OR IGNORE INTO main.trace SELECT here, path, command, sentence, ideal, exposed FROM a.trace JOIN temp.same ON there = point;
