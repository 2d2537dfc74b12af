/* AllGather on the host: core/roles/all_gather.h compiled by gcc, behind struct sim_op. */
#include "core/cta.h"
#include "core/roles/all_gather.h"
#include "sim/moved.h"

SIM_ROLES(all_gather);

const struct sim_op sim_op_all_gather = {
    .run = all_gather_role, .fill = moved_fill, .verify = moved_verify};
