-- A results file: what was asked, with what it was measured, and every time that was measured. docs/EXPERIMENTS.md says what each column means.
PRAGMA application_id = 1835757170; -- "mkrr"
PRAGMA user_version = 1;

-- Each call of `mkernel sweep` that measured something into this file.
CREATE TABLE sweep (id INTEGER PRIMARY KEY, name TEXT NOT NULL, question TEXT NOT NULL, text TEXT NOT NULL, command TEXT NOT NULL,
                    seed INTEGER NOT NULL, machine INTEGER NOT NULL REFERENCES machine, begun TEXT NOT NULL, ended TEXT, how TEXT);

-- What it was measured with. `identity` is what makes two machines the same for a resumed sweep; facts is a JSON object.
CREATE TABLE machine (id INTEGER PRIMARY KEY, identity TEXT NOT NULL UNIQUE, facts TEXT NOT NULL);

CREATE TABLE point (id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE);
CREATE TABLE setting (point INTEGER NOT NULL REFERENCES point, name TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (point, name)) WITHOUT ROWID;

-- One job: a point measured once, in a process of its own. Times are in `sample`; result is what the command wrote as JSON, its plan among it.
CREATE TABLE job (id INTEGER PRIMARY KEY, point INTEGER NOT NULL REFERENCES point, repeat INTEGER NOT NULL, sweep INTEGER NOT NULL REFERENCES sweep,
                  begun TEXT NOT NULL, seconds REAL NOT NULL, command TEXT NOT NULL, status INTEGER NOT NULL,
                  verdict TEXT NOT NULL CHECK (verdict IN ('right', 'unchecked', 'wrong', 'failed', 'impossible')),
                  sentence TEXT NOT NULL, load REAL, result TEXT, UNIQUE (point, repeat));

-- ms a launch (of a burst: its mean), in the order in which they were measured. `what` is fused, or what a bench on GPUs sets beside it.
CREATE TABLE sample (job INTEGER NOT NULL REFERENCES job, what TEXT NOT NULL, rank INTEGER NOT NULL, number INTEGER NOT NULL, warmup INTEGER NOT NULL,
                     ms REAL NOT NULL, PRIMARY KEY (job, what, rank, warmup, number)) WITHOUT ROWID;

-- While the job ran, twice a second.
CREATE TABLE power (job INTEGER NOT NULL REFERENCES job, seconds REAL NOT NULL, gpu INTEGER NOT NULL, sm_mhz REAL, memory_mhz REAL, watts REAL, celsius REAL);

-- Of points whose trace was asked for.
CREATE TABLE trace (point INTEGER PRIMARY KEY REFERENCES point, path TEXT NOT NULL, command TEXT NOT NULL, sentence TEXT NOT NULL,
                    ideal REAL, exposed REAL);

-- What others have published of a point, as the sweep's file says.
CREATE TABLE published (point INTEGER NOT NULL REFERENCES point, who TEXT NOT NULL, flop_per_s REAL NOT NULL, PRIMARY KEY (point, who)) WITHOUT ROWID;

-- ---- the answers people want ----

-- A row a job, with what its result says in columns. Older files call its time ms_median, fused_ms or ms_mean, and the ideal one ms_ideal.
CREATE VIEW jobs AS
SELECT j.id AS job, j.point, p.key, j.repeat, j.verdict, j.sentence, j.seconds,
       json_extract(result, '$.op') AS op, json_extract(result, '$.exec') AS exec,
       replace(trim(coalesce(json_extract(result, '$.shape'), json_extract(result, '$.moe'), json_extract(result, '$.attention'), ''), '[]'), ', ', ',') AS shape,
       json_extract(result, '$.nodes') AS nodes, json_extract(result, '$.gpus') AS gpus,
       json_extract(result, '$.fabric') AS fabric, json_extract(result, '$.roles') AS roles,
       coalesce(json_extract(result, '$.ms'), json_extract(result, '$.ms_median'), json_extract(result, '$.fused_ms'), json_extract(result, '$.ms_mean')) AS ms,
       coalesce(json_extract(result, '$.ideal_ms'), json_extract(result, '$.ms_ideal')) AS ideal_ms,
       json_extract(result, '$.flop') AS flop, json_extract(result, '$.nvlink_bytes') AS nvlink_bytes,
       json_extract(result, '$.network_bytes') AS network_bytes, j.begun, s.machine
FROM job j JOIN point p ON p.id = j.point LEFT JOIN sweep s ON s.id = j.sweep;

-- Every timed launch of the operator: one row a rank and launch, for data frames.
CREATE VIEW samples AS
SELECT j.point, p.key, j.repeat, s.rank, s.number, s.ms
FROM sample s JOIN job j ON j.id = s.job JOIN point p ON p.id = j.point
WHERE s.what = 'fused' AND s.warmup = 0;
