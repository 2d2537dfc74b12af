/* Between the parent (spawn.c, spawn_wait.c) and its ranks (spawn_child.c). */
#pragma once

#include "experiments/common/spawn.h"

#include <sys/types.h>

#define SPAWN_VARIABLE "MKERNEL_SPAWNED" /* rank,world,port,listen_fd,report_fd,words_fd,token */

/* What the parent sees of a rank: a cache line each, in memory that both map. */
struct spawn_word {
    uint64_t beats;      /* grows while the rank gets things done */
    uint64_t allowed_ns; /* of silence, beyond the job's own bound */
    uint32_t stage;      /* enum spawn_stage */
} __attribute__((aligned(64)));

#define SPAWN_WORDS_BYTES (SPAWN_MAX_RANKS * sizeof(struct spawn_word))

/* A rank's report, as it goes through the pipe. */
struct spawn_last_word {
    uint32_t rank;
    int32_t status;
    char sentence[SPAWN_SENTENCE];
};

/* A job while it runs, seen by the parent. Times are ns of `now`. */
struct spawn_job {
    pid_t *pids; /* 0: has ended */
    uint32_t world, alive;
    struct spawn_end *ends;
    const struct spawn_word *words;
    uint64_t *beats;       /* as last seen */
    uint64_t *reported_at; /* 0: not yet */
    int reports, signals;  /* fds */
    uint64_t timeout_ns;
    /* A clock that does not jump if the parent was stopped or got no CPU: each round of the loop
     * advances it by the time that a round should take, at most. */
    uint64_t now, wall;
    uint64_t progress_at, first_end_at, failed_at, interrupted_at, killed_at; /* 0: not yet */
    struct spawn_how *how;
};

/* Waits until all have ended, and ends those that do not. */
void spawn_wait(struct spawn_job *j);
