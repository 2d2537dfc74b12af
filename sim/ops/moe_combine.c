/* MoE combine on the host: core/roles/moe_combine.h and moe_combine_halves.h compiled by gcc,
 * behind struct sim_op. */
#include "core/cta/cta.h"
#include "core/roles/moe_combine_halves.h"
#include "sim/ops/exact_moe.h"
#include "sim/ops/exact_moe_rows.h"

SIM_OP_OF_HALVES(moe_combine, .leaves_puts = 1, .routes = 1, .start = exact_moe_start,
                 .fill = exact_moe_rows_fill_back, .verify = exact_moe_rows_verify_back);
