/* What `run OP`, `bench OP` and `tune OP` share: their options, this process's place in the job,
 * its operands and its launches.
 *
 *   run_start.c     starts all ranks on this host (spawn.h), or is one of them
 *   run_options.c   the options that all three take, and what they make of argv
 *   run_job.c       chooses what no option gives: executor, ranks, NIC, shape, plan
 *   run_comm.c      the job's communicator
 *   run_alike.c     checks that all ranks were started with the same options
 *   run_data.c      a launch's operands, on host or GPU
 *   run_burst.c     launches back to back, timed, then checked
 *   run_events.c    events that time them on a GPU
 *   run_live.c      publishes the job's state for viewers while it runs
 *   op.h, ../ops/   what is each operator's: its inputs, whether its results are right
 *   gpu_shape.h     operands and launches that are timed on a GPU
 *   gpu_operands.h  the same of operators that are no GEMMs
 *   bench_row.h     what a row of a result says of its plan and machine
 *
 * It knows none of the three: each gives it a struct run_subcommand. */
#pragma once

#include "core/mkernel.h"
#include "core/ops/moe_map.h"
#include "core/plan/plan.h"
#include "experiments/common/check.h"
#include "experiments/common/problem.h"
#include "experiments/common/spawn.h"

/* How the tokens of a MoE run are spread: evenly, all to expert 0, to every other expert, or none
 * on the last rank. */
enum run_routing { RUN_ROUTING_EVEN, RUN_ROUTING_ONE, RUN_ROUTING_FEW, RUN_ROUTING_NONE };
extern const char *const run_routings[]; /* their names */

enum run_mode { RUN_RUN, RUN_BENCH, RUN_TUNE };

#define RUN_SHAPES 32u
#define RUN_TOKENS 64u

/* --vs */
enum run_peer { RUN_VS_NOTHING = -1, RUN_VS_BLAS, RUN_VS_TORCH };

struct run_subcommand;

struct run_options {
    const struct run_subcommand *subcommand;
    enum run_mode mode;
    enum mk_op op;
    int exec;          /* enum mk_exec, -1: choose */
    uint64_t rails;    /* devices of a rank; 0: choose */
    const char *verbs; /* options of the verbs fabric; NULL: MK_VERBS */
    int fabric, check;
    struct problem_options ask;
    int routing;            /* enum run_routing */
    const char *skew;       /* a number; NULL: as routing says */
    const char *tokens_now; /* numbers, or "random"; NULL: all that there is room for */
    uint64_t nodes, gpus;   /* 0: choose */
    uint64_t iters, warmup, burst, seed, timeout_ns;
    int vs; /* enum run_peer */
    const char *nic, *trace, *json, *csv;
    int append;         /* to the CSV */
    int live;           /* the viewer while it runs */
    int quiet;          /* no table */
    int samples;        /* the JSON has every time of every rank */
    int dry_run;        /* all is checked, nothing is started */
    int traced;         /* bench on the GPU: record events */
    int why;            /* bench: where the time of a few traced launches goes */
    int c_elsewhere;    /* bench on the GPU: C lies outside the symmetric heap */
    const char *shapes; /* tune and bench: numbers of problems, M,N,K:M,N,K */
    const char *tuning; /* file of tuned plans, or "none"; NULL: choose */
    const char *space;  /* tune: options and their values; NULL: choose */
    uint64_t rounds;    /* tune */
    int verify;         /* tune: keep nothing */
};

/* What this process is in the job. */
struct run_identity {
    uint32_t rank, world;
    uint32_t local_world; /* ranks of this host, as the launcher says; 0: it does not */
    char host[256];       /* of rank 0 */
    uint16_t port;
    int listen_fd;
    char token[64];
    int assumed;          /* that all ranks are one node's: the environment does not say */
    int guessable;        /* the token was made from ids that others may know */
    const char *launcher; /* "torchrun"; NULL: started by `mkernel run` itself */
};

/* A run with all its choices made. */
struct run_job {
    struct run_options options;
    struct run_identity identity;
    struct mk_problem problem; /* as every rank gives it to mk_plan_create, of the first shape */
    /* the same plan, made before anything starts: shows what was chosen */
    struct mk_plan plan;
    uint64_t shapes[RUN_SHAPES][OP_DIMENSIONS]; /* all that were asked for */
    uint32_t shape_count;
    /* of a plan of any of these, at most; trace records are of a CTA in a launch */
    uint64_t records, heap_bytes;
    uint32_t flags;
    char device[64];    /* that tuned plans are for: a GPU's name, or "host" */
    uint32_t sharing;   /* ranks on a GPU, at most; 0: no GPU */
    uint32_t share;     /* SMs that each of them has at once with the others; 0: they take turns */
    int cuda_driver;    /* CUDA version of the driver, 13000 for 13.0; 0 on the host */
    double skew;        /* --skew; 0: not given */
    struct moe_map map; /* --replicas; slots NULL: not given */
    /* --tokens-now: how many a rank has, in turn by rank and launch; none given: random */
    uint32_t tokens_now[RUN_TOKENS], tokens_now_count;
    uint64_t burst;    /* launches in flight before a wait */
    char command[512]; /* as it was typed */
    /* tune --exec sim: struct sim_case; nothing is measured, and there is one process. NULL */
    const void *simulated;
    char tuning_path[512]; /* of the file of tuned plans, there or not; empty: none */
    /* of the devices of local rank 0 together; 0 on one node, or unknown */
    double nic_gbit;
    /* the devices of local rank 0 (nic_choice_words); empty on one node */
    char nic[512];
};

/* One rank's result; ranks exchange it as bytes. */
struct run_result {
    double ms, ms_min, ms_max; /* per launch; of times as run_burst measures them */
    /* --vs blas: the same product by OpenBLAS alone, median; 0: not asked */
    double gemm_ms;
    uint64_t launches, first_wrong; /* first_wrong: number of the launch, from 1; 0: none */
    struct check_result check;
    uint64_t bits; /* of all checked results: the same for the same bits */
};

/* What a subcommand adds to the job: one value for each of `run`, `bench` and `tune`. */
struct run_subcommand {
    enum run_mode mode;
    const char *name;                 /* "bench" */
    const struct option_table *table; /* the options that it alone takes, into struct run_options */
    int takes_launches;               /* --burst, --warmup, --json and --routing, too */
    uint64_t iters, warmup;           /* what they are by default */
    int check;                        /* results are checked without --check */
    /* Refuses a job that the subcommand cannot do, after planning and before anything starts. NULL:
     * it can do all. 0, or -EINVAL with a sentence. */
    int (*refuse)(const struct run_job *job, char *error, size_t size);
    /* Called before and after the ranks, in the process that starts them. NULL: nothing. */
    void (*before)(const struct run_job *job);
    void (*after)(void);
    /* Runs this process's rank to its end and reports on rank 0. Returns an exit status and its
     * sentence. */
    int (*rank)(const struct run_job *job, char *sentence, size_t sentence_size);
};

/* The whole of a subcommand: reads the arguments, then starts the ranks or is one. Returns an exit
 * status; the sentence is on stderr. */
int run_start(int argc, char **argv, const struct run_subcommand *subcommand);

/* Fills *o from the arguments. 0; 1: help was printed; -EINVAL with a sentence. */
int run_options_parse(int argc, char **argv, const struct run_subcommand *subcommand,
                      struct run_options *o, char *error, size_t size);

/* Lists job->shapes by job->options and job->problem, which gets the numbers of the first. 0, or
 * -EINVAL with a sentence. */
int run_job_list_shapes(struct run_job *job, char *error, size_t size);

/* Chooses what no option gives, and makes the plan. `launched`: the identity under a launcher, or
 * NULL. 0, or -EINVAL with a sentence. */
int run_job_prepare(struct run_job *job, const struct run_options *o,
                    const struct run_identity *launched, char *error, size_t size);

/* The configuration of a job's communicator. */
void run_configure(const struct run_job *job, struct mk_config *config);

/* Trace records of a CTA in a launch, at most. */
uint64_t run_comm_records(const struct mk_plan *plan);

/* Launches that --why traces, behind the timed ones; in all at most twice as many. */
#define RUN_WHY_LAUNCHES 8u

/* Opens the communicator (mk_comm_open). If the ranks were started with different options, its
 * error names one that differs. */
int run_open(struct mk_comm **out, const struct mk_config *config, const struct run_job *job);
void run_close(struct mk_comm *comm);

/* Makes a plan (comm_make_plan) with the job's map of experts, if it has one. */
int run_make_plan(struct mk_plan **out, struct mk_comm *comm, const struct run_job *job,
                  const struct mk_problem *problem);

/* Reports how this rank ends, before it closes anything, because closing may hang. If the rank has
 * failed, the process ends by itself 1.5 s later, with status 3. May be called again with the same
 * arguments. */
void run_last_word(const struct run_job *job, int status, const char *sentence);

#define RUN_ARGUMENTS (MK_SPACES - 1)

/* The operands of `burst` launches. */
struct run_data {
    const struct run_job *job;
    int cuda;
    uint64_t bytes[RUN_ARGUMENTS]; /* of each argument of a launch; 0: it has none */
    uint32_t arguments, outputs;   /* how many; a bit for each that is an output */
    void **memory;                 /* [burst][RUN_ARGUMENTS], on the host or on the GPU */
    void *host[RUN_ARGUMENTS];     /* host copies of one launch's, if `memory` is on a GPU */
};

int run_data_open(struct run_data *d, const struct run_job *job);
void *run_data_at(const struct run_data *d, uint64_t slot, uint32_t argument);
/* fresh inputs, poisoned output */
int run_data_fill(struct run_data *d, uint64_t slot, uint64_t launch);
int run_data_poison_outputs(struct run_data *d, uint64_t slot);
int run_data_check(struct run_data *d, uint64_t slot, uint64_t launch,
                   const struct check_pace *pace, struct check_result *result);
uint64_t run_data_bits(const struct run_data *d, uint64_t slot); /* of what has been checked */

/* Elements [first, first + count) of any rank's input `argument`. */
void run_data_input(const struct run_data *d, uint32_t argument, uint32_t rank, uint64_t launch,
                    uint64_t first, uint64_t count, uint16_t *out);

/* The number of tokens of a rank in a launch, which may vary if the plan is counted. */
uint32_t run_data_tokens(const struct run_data *d, uint32_t rank, uint64_t launch);

/* The experts of a rank's tokens, uint32_t [tokens, k]: a MoE's argument 2. */
void run_data_ids(const struct run_data *d, uint32_t rank, uint64_t launch, uint32_t *ids);
/* The same for a reference: as experts of ranks, and with no expert for places that the plan drops
 * and for tokens beyond the count. Returns how many such places there are. */
uint64_t run_data_kept_ids(const struct run_data *d, uint32_t rank, uint64_t launch, uint32_t *ids);
/* Of all ranks' tokens: how many places name an expert, and how many of them the plan drops. */
int run_data_dropped(const struct run_job *job, uint64_t launch, uint64_t *dropped,
                     uint64_t *named);

/* Milliseconds of OpenBLAS for the last filled slot's product, without the conversion from bf16.
 * Host only. 0: no memory. */
double run_data_blas(struct run_data *d, uint64_t slot);
void run_data_close(struct run_data *d);

/* What one rank holds while it runs. */
struct csv_table;
struct run_trace;
struct run_why;
struct run_events;
struct run_rank {
    const struct run_job *job;
    struct mk_comm *comm;
    struct mk_plan *plan;
    struct run_data data;
    struct run_result result;
    double *bursts; /* as run_burst has measured, the warm-ups first */
    uint64_t burst_count, warmup_count;
    struct run_events *events; /* of the launches of a burst; NULL: the host's clock is read */
    struct run_trace *trace;
    struct run_why *why;    /* NULL: not asked for */
    struct csv_table *rows; /* of --csv: of the shapes that have been measured */
    struct live *live;
    char trace_lost[300];
};

/* Runs `count` launches back to back, then checks each into r->result if the job asks for it.
 * `first`: the number of the first, from 1. ms[count] gets *times times: with r->events that of
 * each launch, else one, the burst's by the host's clock divided by its launches. Collective. 0 or
 * -errno. */
int run_burst(struct run_rank *r, uint64_t first, uint64_t count, double *ms, uint64_t *times);

/* run_events.c: marks 0 to `launches` on the stream that launches run on, mark i behind launch i;
 * read once all have ended. Closed in either case. 0, -ENOMEM or -EIO. */
int run_events_open(struct run_events **out, uint64_t launches) __attribute__((weak));
int run_events_mark(struct run_events *e, uint64_t number) __attribute__((weak));
int run_events_read(const struct run_events *e, uint64_t launches, double *ms)
    __attribute__((weak));
void run_events_close(struct run_events *e) __attribute__((weak));

/* For tests. MKERNEL_TEST_TOKENS=RANK,N: with --tokens-now the rank's count is N in every launch,
 * even if there is no room for so many. MKERNEL_TEST_DIE=RANK,LAUNCH kills the rank before that
 * launch; LAUNCH one beyond the last: before the end; two beyond: after the table.
 * MKERNEL_TEST_STOP=RANK,LAUNCH stops it there. */
void run_die(const struct run_rank *r, uint64_t launch);

/* Begins to publish this rank's progress words for viewers. NULL: that is not possible, and the run
 * goes on. live_end ends it, before the communicator is closed. */
struct live;
struct live *run_live_begin(const struct run_job *job, struct mk_comm *comm,
                            const struct mk_plan *plan);

/* For the process that starts the ranks. run_live_open: with --live starts the viewer, and holds
 * back what the ranks print until it ends; run_live_close removes what killed ranks have left. 0,
 * or
 * -EINVAL with a sentence. */
struct run_live {
    char folder[256];
    int output, saved[2]; /* -1: no viewer */
    int viewer;           /* its process */
};
int run_live_open(struct run_live *l, const struct run_job *job, char *error, size_t size);
void run_live_close(struct run_live *l);

/* What joins the nodes, "verbs over soft0 (SOFTNIC=bw=5GB/s)"; empty on one node. Returns `text`.
 */
#define RUN_FABRIC_TEXT 528
const char *run_fabric(const struct run_job *job, char text[RUN_FABRIC_TEXT]);
