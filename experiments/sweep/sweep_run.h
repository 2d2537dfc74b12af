/* A sweep while it runs: its jobs (sweep_run.c), and their rows in the results file
 * (sweep_store.c). */
#pragma once

#include "experiments/results/results_file.h"
#include "experiments/sweep/sweep.h"

#include <pthread.h>

struct running {
    struct sweep *sweep;
    const struct sweep_how *how;
    sqlite3 *db;
    sqlite3 *whole;    /* the file that this one is a part of, while jobs are chosen; or NULL */
    int64_t id;        /* of this sweep */
    int64_t *points;   /* ids of the points */
    double *seconds;   /* mean time of a job of each point; 0: not known */
    uint32_t *counted; /* jobs in the mean */
    char folder[64];   /* where commands leave their JSON */
    uint32_t right, wrong, failed, impossible; /* jobs of this call */
    uint64_t began;
    const struct sweep_job *jobs; /* to do */
    uint32_t count, next, done;
    int over, rc;         /* the budget is spent; how it ended */
    pthread_mutex_t lock; /* of all of this, but not while a job runs */
};

/* The outcome of a job. */
struct outcome {
    const char *verdict, *command, *begun, *sentence;
    double seconds, load;
    int status;
    char *result; /* JSON; NULL: none */
    struct sweep_power_sample *power;
    uint32_t power_count;
};

/* The time as the file has it. */
void sweep_now(char text[32]);

/* `work` on so many threads, this one among them. */
void sweep_threads(uint64_t most, void *(*work)(void *), void *argument);

/* Enters the points, the machine and this sweep into the file. 0, or -EINVAL or -EIO with a
 * sentence. */
int sweep_store_begin(struct running *r, char *error, size_t size);
int sweep_store_has(struct running *r, const struct sweep_job *j);
/* Stores a job in one transaction. */
int sweep_store_job(struct running *r, const struct sweep_job *j, const struct outcome *o);
/* The JSON that a command left at `path`, malloc'd; a bench on GPUs writes a list of rows, here of
 * one shape, which becomes one object. NULL: nothing, or no JSON. */
char *sweep_store_result(struct running *r, const char *path);
/* Of a traced launch: the ideal time's share of it, and the share of communication that compute did
 * not hide; NaN: the trace does not say. */
void sweep_store_weigh(const char *path, double *ideal, double *exposed);
