/* Inside `mkernel sim OP`: its arguments, and its forms.
 *
 *   sim_options.c  the options, and which go together
 *   sim_explore.c  --explore: random orders of every step, with data
 *   sim_timed.c    by itself: how long a launch takes, without data
 *   sim_case.c     the machine, and what of it is different */
#pragma once

#include "experiments/common/problem.h"
#include "experiments/sim/sim_case.h"
#include "sim/world.h"

struct sim_arguments {
    int explore, vary, random, order, fault, exec, plan;
    struct problem_options ask;
    uint64_t nodes, gpus, launches, seed, runs;
    uint64_t fault_rank, fault_number, ring, in_flight, depth, delay_ns, timeout_ns;
    const char *cluster, *trace, *json;
    struct sim_case_options of;
    int quiet, dry_run;
};

/* Parses and checks the command line; prints the help where it is asked for. 0, STATUS_USAGE (a
 * sentence in `error`), or -1 where nothing is left to do. */
int sim_options(int argc, char **argv, struct sim_arguments *a, enum mk_op *op, char *error,
                size_t size);

/* What the explorer gets. */
struct sim_world_config sim_configure(const struct sim_arguments *a, enum mk_op op, uint64_t seed);

/* Whether such a run with its data fits this machine. 0, or -EINVAL with a sentence. */
int sim_check_memory(const struct sim_arguments *a, enum mk_op op, char *error, size_t size);

/* Returns an exit status and has printed its sentence. */
int sim_explore(const struct sim_arguments *a, enum mk_op op, int argc, char **argv);
