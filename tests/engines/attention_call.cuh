/* A tile source: the heads of one set of tensors. */
#pragma once

#include <cuda_runtime.h>
#include <errno.h>

#include "core/base.h"
#include "kernels/engine/attention_source.cuh"
#include "tests/engines/attention.h"

/*
 * The order of tiles. Heads are taken in sections whose K and V fit in L2. In a section the heads'
 * tiles come one head after the other, or where causal those with most keys of all its heads first,
 * so that short ones fill the end.
 */
struct attention_order {
    uint32_t tiles, row_tiles, heads, section;
};

/* How many tiles the CTA has taken: the producer's, not in a register. */
PTX_SHARED(int32_t, attention_call_taken, 1);

/* K and V are `tensor`s, runs of them `runs`. */
template <class runs, class tensor> struct attention_call_tiles : attention_source {
    const tensor *k, *v;
    float *lse_base;
    uint32_t *counter;
    struct attention_order order;
    int32_t queries, all_keys, heads, group; /* group: heads that share K and V */
    int32_t tile_rows, causal;

    ATTENTION_MEMBER void open()
    {
        *attention_call_taken = 0;
    }
    ATTENTION_MEMBER int32_t take()
    {
        const int32_t number = (*attention_call_taken)++;
        uint32_t id;
        if (number == 0)
            id = blockIdx.x;
        else if (!counter)
            id = blockIdx.x + number * gridDim.x;
        else {
            /* Every CTA takes until there is none, so the last number of a launch is known. */
            uint32_t taken = atomicAdd(counter, 1);
            if (taken == order.tiles - 1)
                atomicExch(counter, 0);
            id = taken + gridDim.x;
        }
        return id < order.tiles ? (int32_t)id : (int32_t)ATTENTION_NONE;
    }
    ATTENTION_MEMBER void tile(int32_t id, struct attention_tile *tile) const
    {
        uint32_t section_tiles = order.section * order.row_tiles, section = id / section_tiles;
        uint32_t heads_here = min(order.section, order.heads - section * order.section),
                 at = id % section_tiles;
        uint32_t head, row;
        if (causal) {
            head = at % heads_here;
            row = order.row_tiles - 1 - at / heads_here;
        } else {
            head = at / order.row_tiles;
            row = at % order.row_tiles;
        }
        head += section * order.section;
        tile->slab = head / heads;
        tile->head = head % heads;
        tile->row = row * tile_rows;
        tile->rows = min(tile_rows, queries - tile->row);
    }
    ATTENTION_MEMBER bool keys(const struct attention_tile &tile, uint32_t run, runs *keys) const
    {
        keys->k = k;
        keys->v = v;
        keys->head = tile.head / group;
        keys->row = 0;
        keys->slab = tile.slab;
        keys->keys = all_keys;
        keys->diagonal = causal ? tile.row + all_keys - queries : (int32_t)ATTENTION_FULL;
        return run == 0;
    }
    ATTENTION_MEMBER float *lse(const struct attention_tile &tile) const
    {
        return lse_base + ((int64_t)tile.slab * heads + tile.head) * queries + tile.row;
    }
};

/* How many heads' K and V stay in L2 (50 MB, and Q and O pass through it too); whole groups that
 * share them. */
static uint32_t attention_section(const struct attention_call *c)
{
    uint64_t pair = 4ull * c->keys * c->dim, group = c->heads / c->kv_heads,
             fit = (32u << 20) / (pair ? pair : 1), n = 1;
    while (2 * n <= fit)
        n *= 2;
    n *= group;
    uint64_t heads = c->batch * c->heads;
    return n < heads ? n : heads;
}

/* The source of a call's tiles but K and V. 0 or -EINVAL: too many tiles. */
template <class source>
static int attention_call_make(const struct attention_call *c, int32_t tile_rows, source *s)
{
    uint64_t row_tiles = mk_ceil_div(c->queries, tile_rows), heads = c->batch * c->heads;
    if (row_tiles * heads > INT32_MAX / 2)
        return -EINVAL;
    s->lse_base = c->lse;
    s->counter = c->counter;
    s->order = {(uint32_t)(row_tiles * heads), (uint32_t)row_tiles, (uint32_t)heads,
                attention_section(c)};
    s->queries = c->queries;
    s->all_keys = c->keys;
    s->heads = c->heads;
    s->group = c->heads / c->kv_heads;
    s->tile_rows = tile_rows;
    s->causal = c->causal != 0;
    return 0;
}

/* A call for heads of at most `dim` elements, and how many SMs it then uses. 0; -EINVAL, -EIO. */
static inline int attention_call_check(const struct attention_call *c, int64_t dim, uint32_t *sms)
{
    const int64_t limit = INT32_MAX / 4;
    if (c->batch < 1 || c->queries < 1 || c->keys < 1 || c->heads < 1 || c->kv_heads < 1 ||
        c->heads % c->kv_heads || c->batch > limit || c->queries > limit || c->keys > limit ||
        c->heads > limit || c->dim < 8 || c->dim % 8 || c->dim > dim || c->batch * c->heads > limit)
        return -EINVAL;
    if (((uintptr_t)c->q | (uintptr_t)c->k | (uintptr_t)c->v | (uintptr_t)c->o) % 16 ||
        ((uintptr_t)c->lse | (uintptr_t)c->counter) % 4 || !c->lse)
        return -EINVAL;
    int device, all;
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&all, cudaDevAttrMultiProcessorCount, device) != cudaSuccess)
        return -EIO;
    if (*sms == 0 || *sms > (uint32_t)all)
        *sms = all;
    return 0;
}
