/* A tile of ring attention on the host, in plain C: online softmax (Milakov, Gimelshein, Online
 * normalizer calculation for softmax, 2018) over blocks of K and V, everything fp32. */
#ifndef SIM_ATTENTION_H
#define SIM_ATTENTION_H

#include "core/roles/ring_attention_plan.h"

/* One step of one query tile. `k`, `v`: of the rank tile->slab, [B, S/W, kv_heads, D], or where
 * tile->a is the heap [B, kv_heads, S/W, D]; `state`: the tile's, p->state_pitch bytes, written at
 * the first step, and at the last made into `o` and `lse`, which are this rank's whole. `between`
 * is called once the first half of the rows of K and V has been read; NULL: nothing.
 */
void attention_tile(const struct ring_attention_plan *p, const struct mk_tile *tile,
                    const uint16_t *q, const uint16_t *k, const uint16_t *v, float *state,
                    uint16_t *o, float *lse, void (*between)(void));

#endif
