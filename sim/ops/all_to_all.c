/* All-to-all on the host: core/roles/all_to_all.h compiled by gcc, behind struct sim_op. */
#include "core/cta/cta.h"
#include "core/roles/all_to_all.h"
#include "sim/moved.h"

SIM_OP(all_to_all, .fill = moved_fill, .verify = moved_verify);
