/* Headings of the help of `run OP`, `bench OP` and `tune OP`, for the options that each adds. */
#pragma once

#define PROBLEM PROBLEM_GROUP
#define MACHINE "ranks and network"
#define PLAN "the plan (the formula chooses what is not given; run and bench print it)"
#define LAUNCHES "launches"
#define RESULTS "results"
