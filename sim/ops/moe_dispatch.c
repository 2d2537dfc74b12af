/* MoE dispatch on the host: core/roles/moe_dispatch.h compiled by gcc, behind struct sim_op.
 * SIM_OP_NAME lets a test compile the same file over a broken copy of the CTA interface. */
#include "core/cta.h"
#ifdef SIM_OP_BROKEN_CTA
#include SIM_OP_BROKEN_CTA
#endif
#include "core/roles/moe_dispatch.h"
#include "sim/ops/exact_moe.h"
#include "sim/ops/exact_moe_rows.h"

#ifndef SIM_OP_NAME
#define SIM_OP_NAME sim_op_moe_dispatch
#endif

SIM_ROLES(moe_dispatch);

extern const struct sim_op SIM_OP_NAME;
const struct sim_op SIM_OP_NAME = {
    .run = moe_dispatch_role,
    .routes = 1,
    .start = exact_moe_start,
    .fill = exact_moe_rows_fill_out,
    .verify = exact_moe_rows_verify_out,
};
