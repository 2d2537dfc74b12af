/* AllGather on the host: core/roles/all_gather.h compiled by gcc, behind struct sim_op. */
#include "core/cta/cta.h"
#include "core/roles/all_gather.h"
#include "sim/moved.h"

SIM_OP(all_gather, .fill = moved_fill, .verify = moved_verify);
