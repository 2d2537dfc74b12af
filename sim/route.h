/* The tables of MoE routing on the host: what mk_cta_route makes (core/cta_route.h). */
#ifndef SIM_ROUTE_H
#define SIM_ROUTE_H

#include "core/cta_route.h"

/* `heap` is this rank's, `ids` where rank 0's are (r->ids of the heap, or memory that ranks
 * share), `summary` where the summary's space begins. */
void route_make(const struct mk_route *r, uint8_t *heap, const uint8_t *ids, uint8_t *summary);

#endif
