/* The subcommands of `mkernel`: `command_X` is in the folder X. argv[0] is the subcommand's name;
 * what follows are its own arguments. Each returns the exit status and has printed one sentence on
 * stderr where that is not STATUS_DONE.
 *
 * A weak command may be absent from a build: main answers for it. */
#pragma once

#include "core/mkernel.h"

#define MK_WEAK __attribute__((weak))

enum status {
    STATUS_DONE = 0,   /* and right, with --check */
    STATUS_WRONG = 1,  /* wrong results */
    STATUS_USAGE = 2,  /* unusable arguments or shape; nothing was started */
    STATUS_FAILED = 3, /* something failed at run time: a peer, a device, a timeout */
};

int command_run(int argc, char **argv) MK_WEAK;
int command_bench(int argc, char **argv) MK_WEAK;
int command_sim(int argc, char **argv) MK_WEAK;
int command_calibrate(int argc, char **argv) MK_WEAK;
int command_tune(int argc, char **argv) MK_WEAK;
int command_trace(int argc, char **argv) MK_WEAK;
int command_tui(int argc, char **argv) MK_WEAK;
int command_info(int argc, char **argv) MK_WEAK;
int command_sweep(int argc, char **argv) MK_WEAK;
int command_results(int argc, char **argv) MK_WEAK;

int bench_collective(int argc, char **argv) MK_WEAK; /* sweep/sweep_collective.c */
