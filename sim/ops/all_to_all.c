/* All-to-all on the host: core/roles/all_to_all.h compiled by gcc, behind struct sim_op. */
#include "core/cta.h"
#include "core/roles/all_to_all.h"
#include "sim/moved.h"

SIM_ROLES(all_to_all);

const struct sim_op sim_op_all_to_all = {
    .run = all_to_all_role, .fill = moved_fill, .verify = moved_verify};
