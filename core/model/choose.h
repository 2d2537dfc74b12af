/* The formula's plan on a GPU: the one that core/model/model.h says is fastest on the machine, of
 * those that differ from an operator's closed formula (core/ops/) in tile, roles, chunks, pieces,
 * slices and pace. So it is about right for GPU counts and NICs that were never tuned. */
#pragma once

#include "core/model/machine.h"
#include "core/plan/plan.h"

/* Fills in *chosen: options that differ from the closed formula, 0 for the others, so that it can
 * be a line of a file of tuned plans. All 0 where nothing better was found, the operator has no
 * such form, or the problem is not for a GPU. Takes some milliseconds at most; the same on every
 * rank. Returns the number of plans that were weighed. */
uint32_t model_choose(const struct mk_machine *machine, const struct mk_problem *problem,
                      struct mk_tuning *chosen);

/* The roles of `now` with `role` another way, as `ctas` thread blocks of its own or (intra_comm) as
 * `warps` of each compute block; compute takes what is left of `sms`. 0: they do not fit. */
int choose_split(const struct mk_role_split *now, uint32_t sms, uint32_t cluster, enum mk_role role,
                 uint32_t ctas, uint32_t warps, struct mk_role_split *out);
