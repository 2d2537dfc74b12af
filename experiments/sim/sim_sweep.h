/* `mkernel sim OP --sweep`: every combination of some values, on several cores. */
#ifndef MK_SIM_SWEEP_H
#define MK_SIM_SWEEP_H

#include "experiments/sim/sim.h"
#include "experiments/sim/sim_timed.h"

/* `s` has what all combinations share, without the problem's numbers. Prints the table, writes
 * --csv and --plot. Returns an exit status with one sentence in `error` where it is not 0. */
int sim_sweep(const struct sim_timed *s, const struct sim_arguments *a, char *error,
              size_t error_size);

#endif
