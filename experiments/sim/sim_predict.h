/* `mkernel sim OP` without --explore: how long the op's launches take on a cluster that is
 * described, not there. */
#ifndef MK_SIM_PREDICT_H
#define MK_SIM_PREDICT_H

#include "sim/world.h"

/* `config` has the problem, launches and seed. `cluster`: a file, NULL for the default; `trace` and
 * `json`: files, NULL for none; `quiet`: no table; `command`: as it was typed. Prints the table.
 * Returns an exit status with one sentence in `error` where it is not 0. */
int sim_predict(struct sim_world_config *config, const char *cluster, const char *trace,
                const char *json, int quiet, const char *command, char *error, size_t error_size);

#endif
