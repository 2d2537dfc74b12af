/* A fabric that is a model: puts land in the peers' heaps in this process, by steps that the
 * world's scheduler takes. */
#pragma once

#include "sim/world_state.h"

/* The fabric of `rank`. 0 or -ENOMEM. Closed by its own close. */
int model_fabric_create(struct fabric **out, struct sim_world *world, uint32_t rank);

/* Whether a delivery could happen now. */
int model_fabric_ready(const struct fabric *f);

/* When the next delivery may happen; SIM_NEVER: nothing is on its way, or it will never arrive. */
uint64_t model_fabric_due(const struct fabric *f);

/* When the oldest put that has not completed was posted; SIM_NEVER: none. */
uint64_t model_fabric_oldest(const struct fabric *f);

/* One delivery, drawn among those that could happen: bytes, a flag or an acknowledgement. */
void model_fabric_step(struct fabric *f);
