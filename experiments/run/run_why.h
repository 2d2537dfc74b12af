/* `bench --why`: after the timed launches a few are traced, and the time of the median one is split
 * into the parts of `mkernel trace why`. The trace is then discarded. */
#pragma once

#include "experiments/job/run.h"
#include "tracer/why.h"

struct run_why {
    int there; /* 1: there are parts; else `error` says why not, if they were asked for */
    struct trace_why parts;
    char error[256];
};

/* Launches leave no events until run_why_begin: they are timed. Once the communicator is open. */
void run_why_prepare(struct mk_comm *comm, const struct run_job *job);

/* From here on launches leave events (a CUDA graph: if it is captured from here on). Every rank
 * calls, with no launch running. 0, or -errno with the communicator's sentence. */
int run_why_begin(struct mk_comm *comm);

/* Waits for the launches since, of `plan`, and has rank 0 split the median one's time, which
 * all ranks then know. Every rank calls; blocks as mk_trace_end does. 0, also where there are no
 * parts; or -errno, with the communicator's sentence: the job has failed. */
int run_why_end(struct mk_comm *comm, const struct run_job *job, const struct mk_plan *plan,
                struct run_why *out);
