-- The trace of one run: one file, one schema, whether the run was measured on GPUs, measured on the host executor, or simulated.
-- docs/TRACE.md explains it with examples. Times are integer ns since the run's first event, on rank 0's clock; a length is in ns,
-- a size in bytes. Nothing is ordered inside clock.residual_ns. NULL: not known.
-- A change that an old reader would misread raises user_version (TRACE_SCHEMA_VERSION in tracer/reader.h).
PRAGMA application_id = 1835758706; -- 'mktr'
PRAGMA user_version = 1;

-- Names of the numbers that events carry.
CREATE TABLE role (id INTEGER PRIMARY KEY, name TEXT NOT NULL);
CREATE TABLE kind (id INTEGER PRIMARY KEY, name TEXT NOT NULL);
INSERT INTO kind VALUES (0, 'none'), (1, 'launch'), (2, 'tile'), (3, 'wait'), (4, 'copy'), (5, 'signal'), (6, 'command'), (7, 'reduce');
CREATE TABLE cause (id INTEGER PRIMARY KEY, name TEXT NOT NULL);
-- What a CTA is mostly doing: columns of `level`, in this order. 0 is idle.
CREATE TABLE state (id INTEGER PRIMARY KEY, name TEXT NOT NULL);
INSERT INTO state VALUES (0, 'idle'), (1, 'tile'), (2, 'copy'), (3, 'command'), (4, 'reduce'), (5, 'wait data'), (6, 'wait back-pressure'),
    (8, 'wait network');

-- One row.
CREATE TABLE run (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    source TEXT NOT NULL,          -- 'measured', 'simulated', or 'synthetic': made up by a test
    executor TEXT NOT NULL,        -- 'cuda', 'host', 'emulated', 'sim'
    op TEXT NOT NULL,
    shape TEXT NOT NULL,           -- as on the command line: '8192,8192,8192', '1,512,4,2,64 causal'
    fabric TEXT, nic TEXT,
    nodes INTEGER NOT NULL,
    gpus INTEGER NOT NULL,         -- ranks per node
    seed INTEGER,
    command TEXT,                  -- how the run was started
    version TEXT,                  -- of mkernel
    started TEXT,                  -- UTC, ISO 8601
    origin_ns INTEGER NOT NULL,    -- rank 0's CLOCK_MONOTONIC (or virtual) at time 0
    duration_ns INTEGER NOT NULL,  -- end of the last event or message
    events INTEGER NOT NULL,
    messages INTEGER NOT NULL,
    dropped INTEGER NOT NULL,      -- events and messages that did not fit: see drops
    residual_ns INTEGER NOT NULL,  -- the worst clock's; order inside it is unknown
    peak_flops REAL,               -- of one rank, per second; these four set the ideal of view efficiency
    nvlink_bytes_per_s REAL,       -- into one rank
    network_bytes_per_s REAL,      -- into one rank
    memory_bytes_per_s REAL        -- of one rank's own
);

CREATE TABLE rank (
    id INTEGER PRIMARY KEY,
    node INTEGER NOT NULL,
    local INTEGER NOT NULL,
    host TEXT,
    device TEXT                    -- GPU and NIC, in words
);

-- The rows of a timeline, a tree in display order: rank > role > cta (> warp, where a CTA has several tracks). Events hang on
-- leaves only; first_event .. last_event are their ids, in order of start.
CREATE TABLE track (
    id INTEGER PRIMARY KEY,
    parent INTEGER REFERENCES track,
    kind TEXT NOT NULL,            -- 'rank', 'role', 'cta', 'warp'
    rank INTEGER NOT NULL,
    role INTEGER,                  -- NULL on kind 'rank'
    cta INTEGER,                   -- in the launch's grid
    warp INTEGER,                  -- leaves only
    name TEXT NOT NULL,
    leaves INTEGER NOT NULL,       -- leaf tracks below it, itself included
    events INTEGER NOT NULL,       -- of all its leaves
    dropped INTEGER NOT NULL,
    first_event INTEGER, last_event INTEGER, -- leaves with events only
    longest_ns INTEGER NOT NULL,   -- no event here is longer: what overlaps t began after t - longest_ns
    start INTEGER, end INTEGER     -- first start, last end
);

CREATE TABLE plan (
    id INTEGER PRIMARY KEY,
    op TEXT NOT NULL, shape TEXT NOT NULL,
    m INTEGER, n INTEGER, k INTEGER,
    tile_m INTEGER, tile_n INTEGER, chunk_rows INTEGER, pieces INTEGER,
    compute INTEGER, intra_comm INTEGER, inter_send INTEGER, inter_reduce INTEGER, -- CTAs of a rank
    deterministic INTEGER NOT NULL,
    tiles INTEGER NOT NULL, chunks INTEGER NOT NULL, flag_base INTEGER NOT NULL, flags INTEGER NOT NULL
);
CREATE TABLE work ( -- of one launch
    plan INTEGER, rank INTEGER, flop REAL, nvlink_bytes INTEGER, network_bytes INTEGER, -- bytes received
    memory_bytes REAL,             -- of its arguments, each read or written once, what the GPU's cache cannot keep
    PRIMARY KEY (plan, rank)) WITHOUT ROWID;
-- The meaning of ids, once per plan.
CREATE TABLE tile (
    plan INTEGER, id INTEGER, slab INTEGER, row INTEGER, col INTEGER, rows INTEGER, cols INTEGER,
    PRIMARY KEY (plan, id)) WITHOUT ROWID;
CREATE TABLE chunk (
    plan INTEGER, id INTEGER, rank INTEGER, number INTEGER, bytes INTEGER, -- the rank it comes from, its number there
    PRIMARY KEY (plan, id)) WITHOUT ROWID;
CREATE TABLE flag (
    plan INTEGER, id INTEGER,
    rank INTEGER,                  -- the rank that has it; -1: the same on every rank that has no row of its own (view flags)
    producer INTEGER,              -- rank that raises it, or that has the data it announces
    chunk INTEGER,                 -- id in table chunk
    text TEXT NOT NULL,            -- 'chunk 3 of rank 5''s A'
    PRIMARY KEY (plan, id, rank)) WITHOUT ROWID;

CREATE TABLE launch (id INTEGER PRIMARY KEY, plan INTEGER, epoch INTEGER NOT NULL);
-- A rank's part of a launch, and what it did in it. compute_only + comm_only + both + idle = end - start.
CREATE TABLE launch_rank (
    launch INTEGER, rank INTEGER, start INTEGER, end INTEGER,
    compute_only INTEGER,          -- a tile was under way, no transfer
    comm_only INTEGER,             -- a transfer was under way, no tile: exposed communication
    both INTEGER, idle INTEGER,
    tile_ns INTEGER, compute_tracks INTEGER, -- sum over its compute tracks, and how many these are
    PRIMARY KEY (launch, rank)) WITHOUT ROWID;

-- One thing that a CTA did. argument: 'launch' epoch, 'tile' tile, 'wait' and 'signal' flag, 'copy' and 'reduce' chunk,
-- 'command' number of the command in its ring (24 bits). 16777215 for a wait: no flag (room in the ring, own puts to leave).
CREATE TABLE event (
    id INTEGER PRIMARY KEY,
    track INTEGER NOT NULL, launch INTEGER, -- launch NULL: before the first
    start INTEGER NOT NULL, ns INTEGER NOT NULL,
    kind INTEGER NOT NULL, cause INTEGER NOT NULL, -- cause: of a wait
    argument INTEGER NOT NULL,
    peer INTEGER                   -- rank it went to: copy, signal, command
);

-- One put, from command to arrival. NULL: not reached, or not seen.
CREATE TABLE message (
    id INTEGER PRIMARY KEY,
    plan INTEGER, launch INTEGER, epoch INTEGER NOT NULL,
    rank INTEGER NOT NULL, peer INTEGER NOT NULL,
    ring INTEGER NOT NULL, sequence INTEGER NOT NULL,
    flag INTEGER NOT NULL,         -- at the peer; with peer and epoch it names the message
    chunk INTEGER,                 -- id in table chunk
    bytes INTEGER NOT NULL,        -- 0: the flag alone
    commanded INTEGER,             -- the CTA posted the command: end of command_event
    seen INTEGER,                  -- the proxy read it
    posted INTEGER,                -- its last work request went to the QP
    completed INTEGER,             -- its last work request completed at the sender
    arrived INTEGER,               -- a CTA of the peer first saw the flag: end of arrival_event
    waited INTEGER,                -- 1: a CTA was waiting when it came, so `arrived` is exact; 0: it came earlier
    ns INTEGER,                    -- first known stage to last known stage, `arrived` only where waited
    command_event INTEGER, arrival_event INTEGER
);

-- What ended a wait: one row per wait of more than 0 ns whose producer is in the trace.
CREATE TABLE edge (
    event INTEGER PRIMARY KEY,     -- the wait
    producer INTEGER,              -- the event that ended it: signal or command
    message INTEGER                -- the put that carried it, where it came over the network
);
-- The chain of waits and work that fixed a launch's end, in order of time (steps from 0).
CREATE TABLE critical (
    launch INTEGER, step INTEGER, rank INTEGER, track INTEGER,
    what TEXT NOT NULL,            -- a kind, 'message', or 'gap': nothing recorded
    start INTEGER, ns INTEGER, event INTEGER, message INTEGER,
    PRIMARY KEY (launch, step)) WITHOUT ROWID;

-- Totals per leaf track; the longest 256 events of each kind per rank.
CREATE TABLE total (
    track INTEGER, kind INTEGER, cause INTEGER, count INTEGER, ns INTEGER, longest_ns INTEGER,
    PRIMARY KEY (track, kind, cause)) WITHOUT ROWID;
CREATE TABLE longest (kind INTEGER, ns INTEGER, event INTEGER, PRIMARY KEY (kind, ns, event)) WITHOUT ROWID;
-- Messages by stage: 'command-seen', 'seen-posted', 'posted-completed', 'posted-arrived', 'whole'.
CREATE TABLE stage (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL, count INTEGER NOT NULL,
    median_ns INTEGER, p99_ns INTEGER, max_ns INTEGER);

-- Occupancy, aggregated before: bucket b of a level covers [b * ns, (b + 1) * ns). Level 0 is the finest. Ranks and roles have
-- rows on every level, CTAs and warps where zoom.leaves is 1 (buckets in which a track did nothing have no row); a parent's are
-- sums, so idle = ns * leaves - the sum of a row.
CREATE TABLE zoom (level INTEGER PRIMARY KEY, ns INTEGER NOT NULL, buckets INTEGER NOT NULL, leaves INTEGER NOT NULL);
CREATE TABLE level (
    level INTEGER, track INTEGER, bucket INTEGER,
    busiest INTEGER NOT NULL,      -- state with the most ns, idle counted
    tile INTEGER, copy INTEGER, command INTEGER, reduce INTEGER, -- ns
    wait_data INTEGER, wait_backpressure INTEGER,
    wait_credit INTEGER,           -- 0; in old traces waits of cause 3, which is gone
    wait_network INTEGER,
    PRIMARY KEY (level, track, bucket)) WITHOUT ROWID;

-- Overlap over time, as launch_rank counts it, on the grid of zoom: ns of a bucket in which the rank had a tile under way
-- and no transfer, a transfer and no tile, and both. Buckets with none of these have no row. The viewer's rank rows.
CREATE TABLE overlap_level (
    level INTEGER, rank INTEGER, bucket INTEGER, compute_only INTEGER NOT NULL, comm_only INTEGER NOT NULL, both INTEGER NOT NULL,
    PRIMARY KEY (level, rank, bucket)) WITHOUT ROWID;

-- A rank's ways in and out, and the bytes under way on them over time.
CREATE TABLE link (
    id INTEGER PRIMARY KEY, rank INTEGER NOT NULL,
    kind TEXT NOT NULL,            -- 'nvlink', 'network'
    direction TEXT NOT NULL,       -- 'out', 'in'
    name TEXT NOT NULL,
    transfers INTEGER NOT NULL, bytes INTEGER NOT NULL,
    busy_ns INTEGER NOT NULL,      -- with anything under way
    peak_bytes INTEGER NOT NULL    -- under way at once
);
CREATE TABLE flow (
    level INTEGER, link INTEGER, bucket INTEGER,
    bytes INTEGER,                 -- moved in this bucket (a transfer is spread evenly over its time)
    in_flight INTEGER,             -- under way, mean over the bucket
    PRIMARY KEY (level, link, bucket)) WITHOUT ROWID;
CREATE TABLE traffic (
    kind TEXT, source INTEGER, destination INTEGER, transfers INTEGER, bytes INTEGER, busy_ns INTEGER,
    PRIMARY KEY (kind, source, destination)) WITHOUT ROWID;

-- Clocks. rank 0's time = local + offset_ns + drift * (local - reference), fitted to bracketed samples.
CREATE TABLE clock (
    rank INTEGER, domain TEXT,     -- 'host' against rank 0's host, 'gpu' against its own host
    reference_ns INTEGER, offset_ns INTEGER, drift REAL,
    residual_ns INTEGER NOT NULL,  -- how far two clocks may be apart after the fit
    samples INTEGER NOT NULL, used INTEGER NOT NULL,
    PRIMARY KEY (rank, domain)) WITHOUT ROWID;
CREATE TABLE clock_sample (
    rank INTEGER, domain TEXT, number INTEGER,
    local INTEGER, remote INTEGER, bracket INTEGER, used INTEGER, -- ns on the clocks themselves
    PRIMARY KEY (rank, domain, number)) WITHOUT ROWID;

-- What was lost: a full track (track) or message log (NULL).
CREATE TABLE "drop" (rank INTEGER NOT NULL, track INTEGER, dropped INTEGER NOT NULL);
-- What the run itself says: 'launch_median', 'tflops', 'relative_error'.
CREATE TABLE metric (name TEXT NOT NULL, rank INTEGER, value REAL NOT NULL, unit TEXT NOT NULL);
