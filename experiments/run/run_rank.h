/* One rank of `run OP` and, on the host, of `bench OP`: launches, then the results of all ranks.
 *
 *   run_rank.c     communicator, plan, launches, the end
 *   run_trace.c    --trace
 *   run_why.c      --why
 *   run_report.c   the table
 *   run_files.c    the JSON and the CSV */
#pragma once

#include "experiments/common/csv_table.h"
#include "experiments/job/run.h"

/* Runs this process's rank to its end, prints the report on rank 0. Returns an exit status and its
 * sentence. */
int run_rank(const struct run_job *job, char *sentence, size_t sentence_size);

/* The joined result of all ranks. */
struct run_summary {
    const struct run_job *job;
    const struct run_result *ranks; /* [world] */
    struct check_result check;
    uint64_t bits;       /* of all checked results of all ranks */
    uint32_t slowest;    /* rank of the largest median */
    uint32_t wrong_rank; /* of the first wrong launch; UINT32_MAX: none */
    int checked, right;
    char fabric[RUN_FABRIC_TEXT]; /* run_fabric */
    /* --samples: of every rank its `bursts`, one rank after the other; NULL: not asked */
    const double *bursts;
    uint64_t warmup_count, burst_count; /* times of a rank, the warm-ups among them */
    const char
        *trace_lost; /* why there is no trace; NULL or empty: there is one, or none was asked for */
    const struct run_why *why; /* NULL: not asked for */
};

/* --trace: takes clock samples before the first launch; after the last one gathers and stores the
 * trace. Every rank calls both; the caller frees *out. `lost`: one sentence where the trace could
 * not be kept, else empty; the run stands. */
int run_trace_begin(struct run_trace **out, struct mk_comm *comm);
void run_trace_end(struct run_trace *t, const struct run_job *job, struct mk_comm *comm,
                   const struct run_result *result, char *lost, size_t lost_size);

void run_summarise(struct run_summary *s, const struct run_job *job,
                   const struct run_result *ranks);
/* The table, where output_table says. 0 or -errno. */
int run_print(const struct run_summary *s);

/* GFLOP/s of a rank; 0 where the result is wrong. */
double run_gflops(const struct run_summary *s, double flop);

/* Whether the CSV can be added to the file that is there, asked before anything starts. 0, or
 * -EINVAL with a sentence. */
int run_check_append(const struct run_job *job, char *error, size_t size);

/* Writes --json. 0 or -errno. */
int run_write_json(const struct run_summary *s);

/* Begins a row of --csv, and fills it. */
void run_fill_row(struct csv_table *row, const struct run_summary *s);
