/* Watching a running job from outside: every rank of `mkernel run` publishes its progress words in
 * a file that only its user can read, and that user's viewer reads it. The job never waits for a
 * viewer and never fails because of one.
 *
 * A job is a folder with a file `rank-N` of fixed size for each rank: a struct live_header, then
 * one struct live_word per CTA. A thread of the rank copies the words every LIVE_PERIOD_NS;
 * launches, waits and CTAs do nothing for it. The folder is in /dev/shm/mkernel-UID
 * (/tmp/mkernel-UID without /dev/shm), or in MKERNEL_LIVE; MKERNEL_LIVE=off publishes nothing. It
 * is named run-PID if `mkernel run` (with that PID) started the ranks itself. A rank removes its
 * file when it ends. The files of a killed job are ignored, and the next job removes them. */
#pragma once

#include "core/cta/event.h"
#include "core/plan/plan.h"

#define LIVE_PERIOD_NS 50000000u   /* between two copies of the words */
#define LIVE_SILENT_NS 1000000000u /* a rank that has copied nothing for so long does not run */
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
    uint64_t beat;   /* ns, CLOCK_MONOTONIC: when the words were last copied */
    uint64_t launch; /* launches that are done */
    uint32_t phase;  /* enum live_phase */
    uint32_t padding;
};

/* ---- a rank ---- */

struct live; /* what a rank publishes with */
struct mk_comm;

/* The folder of a job: of `mkernel run` with that PID, or of a launcher's job with that token. 0,
 * -ENOTSUP (publishing is off) or -ENAMETOOLONG. */
int live_folder(char *path, size_t size, int job_pid, const char *launcher, const char *token);

/* Begins to publish a plan of `comm`, whose progress words must not move until live_end. 0, or
 * -errno with *out NULL; every function here accepts NULL. Blocks in file system calls only. */
int live_begin(struct live **out, const char *folder, struct mk_comm *comm,
               const struct mk_plan *plan, int job_pid, uint64_t launches, const char *command);

/* Publishes the rank's phase and how many launches are done. Costs two stores. */
void live_phase(struct live *l, enum live_phase phase, uint64_t done);

/* Removes the file. Waits for the thread, which never blocks. */
void live_end(struct live *l);

/* Removes a job's folder with all that its ranks left in it. */
void live_remove(const char *folder);

/* ---- a viewer ---- */

enum live_state {
    LIVE_ABSENT, /* nothing published here: on another host, or not yet */
    LIVE_RUNS,
    LIVE_STOPPED, /* its process is stopped (SIGSTOP, a debugger) */
    LIVE_SILENT,  /* its process exists, but has copied nothing for LIVE_SILENT_NS */
    LIVE_GONE,    /* its process died and left its file */
    LIVE_ENDED,   /* it removed its file */
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
    uint64_t ns;      /* for how long, within LIVE_PERIOD_NS */
    int64_t flag;     /* that a wait is for; -1: no wait, or one for something else */
    int64_t chunk;    /* that the flag announces; -1: none */
    int64_t producer; /* rank that should raise the flag or whose data it announces; -1: none */
    int64_t relay;    /* rank of this node that forwards the producer's data; -1: none */
    char text[128];   /* "chunk 3 of rank 5's A", "tile 12" */
};

/* Finds a job by the name that the user gave: a folder, the PID of `mkernel run` or of a rank, or
 * NULL for the only job that runs. 0, or -errno with one sentence in `error` (-ENOENT: no such job;
 * -EEXIST: several, which the sentence lists). */
int live_find(char *folder, size_t size, const char *name, char *error, size_t error_size);

/* Opens a job and reads it once. 0, or -errno with a sentence. */
int live_open(struct live_job *job, const char *folder, char *error, size_t error_size);

/* Reads it again: one file per rank at most. A file that cannot be read leaves its rank as it
 * was. */
void live_read(struct live_job *job);
void live_close(struct live_job *job);

/* Makes the rank's plan from header.problem. 0, or -errno: this version cannot plan it. */
int live_plan(struct live_rank *rank);

struct live_doing live_describe(const struct live_job *job, uint32_t rank, uint32_t cta);

const char *live_phase_name(uint32_t phase);
