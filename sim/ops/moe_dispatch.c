/* MoE dispatch on the host: core/roles/moe_dispatch.h and moe_dispatch_halves.h compiled by gcc,
 * behind struct sim_op. */
#include "core/cta/cta.h"
#include "core/roles/moe_dispatch_halves.h"
#include "sim/ops/exact_moe.h"
#include "sim/ops/exact_moe_rows.h"

SIM_OP_OF_HALVES(moe_dispatch, .routes = 1, .start = exact_moe_start,
                 .fill = exact_moe_rows_fill_out, .verify = exact_moe_rows_verify_out);
