/* `mkernel sim OP --data`: launches with their data on a virtual clock, every result checked. What
 * things take is but a few of the machine's rates (sim/cluster.h). */
#ifndef MK_SIM_PREDICT_H
#define MK_SIM_PREDICT_H

#include "core/machine.h"
#include "sim/world.h"

/* `config` has the problem, launches and seed. `trace` and
 * `json`: files, NULL for none; `quiet`: no table; `command`: as it was typed. Prints the table.
 * Returns an exit status with one sentence in `error` where it is not 0. */
int sim_predict(struct sim_world_config *config, const struct mk_machine *machine,
                const char *trace, const char *json, int quiet, const char *command, char *error,
                size_t error_size);

#endif
