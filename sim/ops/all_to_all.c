/* All-to-all on the host: core/roles/all_to_all.h compiled by gcc, behind struct sim_op.
 * SIM_OP_NAME lets a test compile the same file over a broken copy of the CTA interface. */
#include "core/cta.h"
#ifdef SIM_OP_BROKEN_CTA
#include SIM_OP_BROKEN_CTA
#endif
#include "core/roles/all_to_all.h"
#include "sim/moved.h"

#ifndef SIM_OP_NAME
#define SIM_OP_NAME sim_op_all_to_all
#endif

SIM_ROLES(all_to_all);

extern const struct sim_op SIM_OP_NAME;
const struct sim_op SIM_OP_NAME = {
    .run = all_to_all_role, .fill = moved_fill, .verify = moved_verify};
