/* The machine of `mkernel sim` and `mkernel tune --exec sim`: which one, the changes that options
 * make to it, and the plan that its GPUs would get. */
#pragma once

#include "core/plan/tuning.h"
#include "sim/timed/timed.h"

/* As on the command line; NULL where it was not given. */
struct sim_case_options {
    const char *machine; /* a name or a file */
    const char *network; /* "100GB/s" */
    const char *slow;    /* "rank=3:0.7,link=2:0.5,nic=1:0.5" */
    const char *jitter, *skew;
    const char *ids;      /* a file */
    const char *tuning;   /* a file, or "none" */
    int host;             /* the plan of the host executor */
    int staged, rested;   /* puts by way of host memory; GPUs rest between turns */
    int graph, c_in_heap; /* launches of one CUDA graph; where C lies */
};

struct sim_case {
    struct sim_case_options options;
    struct mk_machine machine;
    struct tuning_table tuning;
    double jitter, skew;
    uint32_t *ids;
    uint64_t id_count;
};

/* Reads what the options say. 0, or -EINVAL or -errno with a sentence; sim_case_close in either
 * case. */
int sim_case_open(struct sim_case *c, const struct sim_case_options *options, char *error,
                  size_t size);
void sim_case_close(struct sim_case *c);

/* Applies options.network to the machine. 0, or -EINVAL with a sentence. */
int sim_case_network(struct sim_case *c, char *error, size_t size);

/* Applies options.staged, rested and graph to the machine. */
void sim_case_differs(struct sim_case *c);

/* The plan that the machine's GPUs would get for rank 0 of `problem`, whose exec and sms it fills
 * in: a tuned one unless options of the plan were given. 0, or -EINVAL with a sentence. */
int sim_case_plan(const struct sim_case *c, struct mk_plan *plan, struct mk_problem *problem,
                  char *error, size_t size);

/* plan_work, counting only places of tokens that name an expert: with --skew one there is one a
 * token. */
void sim_case_work(const struct sim_case *c, const struct mk_plan *plan, double *flop,
                   uint64_t *nvlink_bytes, uint64_t *network_bytes);

/* Fills in what the case says of a run of `plan`; config->slow is to be freed. 0, or -EINVAL with a
 * sentence where the plan's cluster has no such rank or the ids are not its; -ENOMEM. */
int sim_case_config(const struct sim_case *c, const struct mk_plan *plan,
                    struct timed_config *config, char *error, size_t size);

/* "NODESxGPUS". 0, or -EINVAL with a sentence. */
int sim_case_cluster(const char *text, uint64_t *nodes, uint64_t *gpus, char *error, size_t size);
