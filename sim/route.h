/* The tables of MoE routing on the host: what mk_cta_route makes (core/cta/cta_route.h). */
#pragma once

#include "core/cta/cta_route.h"
#include "core/plan/plan.h"

/* The own rank's ids `named` [tokens][k], but for those that are not kept (MK_ROUTE_KEEP), to
 * `kept`, which may be the same; `map`: the rank's, not looked at where there is none. Returns how
 * many are not, or UINT64_MAX without memory: then none is. */
uint64_t route_keep(const struct mk_route *r, const uint32_t *map, const uint32_t *named,
                    uint32_t *kept);

/* The same of any rank's ids, in place, by what the plan says: 0 where it drops none. */
uint64_t route_keep_plan(const struct mk_plan *plan, const uint32_t *map, uint32_t *ids);

/* ... and these replaced by the experts that they stand for; UINT32_MAX: none. */
uint64_t route_find_experts(const struct mk_plan *plan, const uint32_t *map, uint32_t *ids);

/* The k experts, of `used`, that a token names where all alike get tokens. `mkernel run`, `bench`
 * and `sim` draw the same ones: the key is that of tensor ROUTE_IDS + rank of a launch
 * (core/base/random.h). */
enum { ROUTE_IDS = 1000 };
void route_draw_token(uint64_t key, uint64_t token, uint32_t k, uint32_t used, uint32_t *ids);

/* A step. `heap` is this rank's, `ids` and `weights` (NULL: there are none) its own, `summary`
 * where the summary's space begins. */
void route_make(const struct mk_route *r, uint8_t *heap, const uint32_t *ids, const float *weights,
                uint8_t *summary);

/* For executors that move no bytes: what a rank has made in r->step (PLACE or RELAY) to those that
 * it is for, at once. `heap_of`: any rank's; `r` is the same for all but for the topology's
 * rank. */
void route_hand_over(const struct mk_route *r, uint8_t *(*heap_of)(void *context, uint32_t rank),
                     void *context);
