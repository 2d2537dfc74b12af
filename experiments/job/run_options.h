/* Headings of the help of `run OP`, `bench OP` and `tune OP`, for the options that each adds. */
#ifndef MK_RUN_OPTIONS_H
#define MK_RUN_OPTIONS_H

#define PROBLEM PROBLEM_GROUP
#define MACHINE "ranks and network"
#define PLAN "the plan (the formula chooses what is not given; run and bench print it)"
#define LAUNCHES "launches"
#define RESULTS "results"

#endif
