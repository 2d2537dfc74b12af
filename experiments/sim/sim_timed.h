/* `mkernel sim OP`: how long launches take on a machine that is described, by the timed executor.
 */
#pragma once

#include "experiments/sim/sim_case.h"

struct sim_timed {
    const struct sim_case *of;
    struct mk_problem problem; /* without exec and sms */
    uint32_t launches, ring, in_flight;
    uint64_t seed;
    const char *trace, *json; /* NULL: none */
    int quiet;
    int dry_run;         /* all is checked, nothing is started */
    const char *command; /* as it was typed */
};

/* Prints a table, and stores what is asked for. Returns an exit status with one sentence in `error`
 * where it is not 0. */
int sim_timed(const struct sim_timed *s, char *error, size_t size);
