/* Where copies of experts lie, of a MoE whose ids name logical experts (mk_moe_set_experts), and
 * which of them a rank's tokens take. */
#pragma once

#include "core/base.h"
#include "core/plan/plan.h"

#include <stddef.h>
#include <stdint.h>

/* Of `experts` logical experts the slots of up to `copies`: slots [experts][copies]; below 0: none.
 * Slot s is on rank s / rank_slots. */
struct moe_map {
    uint32_t experts, copies;
    const int32_t *slots;
};

/* Whether each is one of `slots` slots, and no two logical experts have the same. 0, -EINVAL with a
 * sentence, or -ENOMEM. */
int moe_map_check(const struct moe_map *map, uint32_t slots, char *error, size_t size);

/* The slot that tokens of topo->rank take of an expert: one of their rank, else of their node, else
 * any, such that ranks without one of their own spread evenly over them. It follows from the map,
 * the rank and the expert alone. UINT32_MAX: it has none. */
uint32_t moe_map_slot(const struct moe_map *map, const struct mk_topo *topo, uint32_t rank_slots,
                      uint32_t expert);

/* A rank's table of all experts, as mk_route_expert reads it: row [experts]. */
void moe_map_row(const struct moe_map *map, const struct mk_topo *topo, uint32_t rank_slots,
                 uint32_t *row);

/* mk_moe_balance of a problem's logical experts, with as many columns as an expert can have copies.
 * *slots, which are out's, are to be freed. 0, -EINVAL, -ENOMEM. */
int moe_map_place(struct moe_map *out, int32_t **slots, const struct mk_problem *problem,
                  const double *loads);

/* Loads [experts] where tokens choose expert e in proportion to 1 / (e + 1)^skew; INFINITY: the
 * first alone. */
void moe_map_skew(double skew, uint32_t experts, double *loads);
