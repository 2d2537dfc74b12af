/* A running job seen from outside: every rank of `mkernel run` publishes its progress words in a
 * file that only its user may read, and that user's viewer reads it. The job never waits for a
 * viewer and never fails because of one.
 *
 * A job is a folder, a rank a file of it, `rank-N`, of fixed size: struct live_header and then one
 * struct live_word per CTA. A thread of the rank copies the words every LIVE_PERIOD_NS; no launch,
 * wait or CTA takes part. The folder lies in /dev/shm/mkernel-UID (/tmp/mkernel-UID where there is
 * no /dev/shm), or where MKERNEL_LIVE says; "off" publishes nothing. It is named run-PID where
 * `mkernel run` (that PID) started the ranks itself. Files go with their rank; what a killed job
 * left is ignored, and taken away by the next one. */
#pragma once

#include "core/event.h"
#include "core/plan.h"

#define LIVE_PERIOD_NS 50000000u   /* between two looks at the words */
#define LIVE_SILENT_NS 1000000000u /* a rank that has not looked for so long does not run */
#define LIVE_MAX_CTAS 1024u
#define LIVE_VERSION 1u

/* What the rank's own thread does. LIVE_MEETS: it is ready and waits for the others. Launches last
 * from the first call to the end of mk_wait. */
enum live_phase {
    LIVE_STARTS,
    LIVE_FILLS,
    LIVE_MEETS,
    LIVE_LAUNCHES,
    LIVE_CHECKS,
    LIVE_ENDS,
    LIVE_PHASES
};

struct live_word {
    uint64_t word;  /* as mk_comm.progress: epoch << 32 | mk_event_what */
    uint64_t since; /* ns on this host's CLOCK_MONOTONIC: when it was first seen so */
};

struct live_header {
    char magic[8];
    uint32_t version, bytes; /* of this struct */
    uint32_t plan_bytes;     /* of struct mk_plan: the reader must have been built with the same */
    uint32_t exec;           /* enum mk_exec of the executor */
    int32_t pid, job_pid;    /* job_pid: the `mkernel run` that started it, 0 for none */
    uint64_t pid_start;      /* as in /proc/PID/stat: a PID may be used again */
    struct mk_problem problem;
    uint64_t heap_base;
    uint32_t flag_base, ctas;
    uint64_t launches; /* of the whole run */
    char command[256];
    uint64_t beat;   /* ns, CLOCK_MONOTONIC: the last look */
    uint64_t launch; /* that are done */
    uint32_t phase;  /* enum live_phase */
    uint32_t padding;
};

/* ---- a rank ---- */

struct live; /* what a rank publishes with */
struct mk_comm;

/* The job's folder: of `mkernel run` with that PID, or of a job that a launcher started, known by
 * its token. 0, or -ENOTSUP where nothing is to be published, -ENAMETOOLONG. */
int live_folder(char *path, size_t size, int job_pid, const char *launcher, const char *token);

/* Begins to publish a plan of `comm`, whose progress words must stay where they are until live_end.
 * Returns 0 or -errno; *out is NULL then, which every function here takes. Blocks for file system
 * calls alone. */
int live_begin(struct live **out, const char *folder, struct mk_comm *comm,
               const struct mk_plan *plan, int job_pid, uint64_t launches, const char *command);

/* Says what the rank does; `done` launches are. Two stores. */
void live_phase(struct live *l, enum live_phase phase, uint64_t done);

/* Takes the file away. Waits for the thread, which blocks nowhere. */
void live_end(struct live *l);

/* Takes a job's folder away with whatever its ranks left. */
void live_remove(const char *folder);

/* ---- a viewer ---- */

enum live_state {
    LIVE_ABSENT, /* nothing published here: on another host, or not yet */
    LIVE_RUNS,
    LIVE_STOPPED, /* its process is stopped (SIGSTOP, a debugger) */
    LIVE_SILENT,  /* its process is there, but has not looked for LIVE_SILENT_NS */
    LIVE_GONE,    /* its process died and left its file */
    LIVE_ENDED,   /* took its file away */
    LIVE_STATES
};

struct live_rank {
    enum live_state state;
    struct live_header header;
    struct live_word *words; /* [LIVE_MAX_CTAS]; NULL until it was seen once */
    struct mk_plan *plan;    /* made anew from header.problem; NULL until it was seen once */
};

struct live_job {
    char folder[256];
    uint64_t now; /* ns, CLOCK_MONOTONIC, of the last reading */
    uint32_t world;
    struct live_rank *ranks; /* [world] */
    int ended;               /* every rank that was seen here has ended or is gone */
};

/* What a CTA does now. */
struct live_doing {
    int role, index; /* index among the CTAs of its role */
    /* enum mk_event_kind (MK_EV_NONE: nothing, or nothing that lasts), enum mk_cause */
    int kind, cause;
    uint32_t epoch;
    uint64_t ns;      /* for how long, as far as the rank's looks can tell */
    int64_t flag;     /* a wait's; -1: none, or what is waited for is no flag */
    int64_t chunk;    /* that the flag announces; -1 */
    int64_t producer; /* rank that should raise it or whose data it announces; -1 */
    int64_t relay;    /* rank of this node that forwards what the producer sends to it; -1 */
    char text[128];   /* "chunk 3 of rank 5's A", "tile 12" */
};

/* A job by what a person calls it: a folder, the PID of `mkernel run` or of a rank, or NULL for the
 * only one that runs. 0, or -errno with one sentence in `error` (-ENOENT: no such job; -EEXIST:
 * several, the sentence lists them). */
int live_find(char *folder, size_t size, const char *name, char *error, size_t error_size);

/* Opens a job and reads it once. 0, or -errno with a sentence. */
int live_open(struct live_job *job, const char *folder, char *error, size_t error_size);

/* Reads it again: at most a file per rank. What cannot be read keeps what it showed. */
void live_read(struct live_job *job);
void live_close(struct live_job *job);

/* Makes the rank's plan from header.problem. 0 or -errno: it is no problem of this version. */
int live_plan(struct live_rank *rank);

void live_describe(const struct live_job *job, uint32_t rank, uint32_t cta, struct live_doing *out);

const char *live_phase_name(uint32_t phase);
