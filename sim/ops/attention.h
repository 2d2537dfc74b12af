/* A tile of ring attention on the host, in plain C: online softmax (Milakov, Gimelshein, Online
 * normalizer calculation for softmax, 2018) over blocks of K and V, everything fp32. */
#pragma once

#include "core/roles/ring_attention_plan.h"

/* K and V of a rank: [B, S/W, kv_heads, D], or packed [B, kv_heads, S/W, D]. */
struct attention_shard {
    const uint16_t *k, *v;
    int packed;
};

/* One step of one query tile. `shards`: of each rank, of which those that tile->slab has are read;
 * p->ordered: nothing is, but at the last step all. `state`: the tile's, p->state_pitch bytes,
 * written at the first step, and at the last made into `o` and `lse`, which are this rank's whole.
 * `between` is called once the first half of the rows of K and V has been read; NULL: nothing. */
void attention_tile(const struct ring_attention_plan *p, const struct mk_tile *tile,
                    const uint16_t *q, const struct attention_shard *shards, float *state,
                    uint16_t *o, float *lse, void (*between)(void));
