/* The seam of both attention engines: tiles of queries, runs of keys, and the source that names
 * them. */
#pragma once

#include "kernels/engine/ptx.cuh"

#include "core/base.h"

enum {
    ATTENTION_NONE = -1,      /* no tile is left */
    ATTENTION_FULL = 1 << 30, /* diagonal of keys that every query sees */
};

/* Queries of one head: rows row, ... of a slab (of Q and O), at most shape::tile_rows. */
struct attention_tile {
    int32_t head, row, slab;
    uint32_t rows;
};

/* A run of keys: rows row, ... of a slab of two tensors, as an engine names these. The tile's query
 * i sees key j < keys if j <= i + diagonal. */
template <class tensor> struct attention_keys_of {
    const tensor *k, *v;
    int32_t head, row, slab;
    int32_t keys, diagonal;
};

#define ATTENTION_MEMBER __device__ __forceinline__

/*
 * What a tile source derives from: the calls that it need not have. Those that it must have are
 *
 *   int32_t take()
 *       The number of this CTA's next tile, or ATTENTION_NONE. The producer thread calls it.
 *
 *   void tile(int32_t id, struct attention_tile *tile) const
 *       A pure function: the producer and every consumer thread call it.
 *
 *   bool keys(const struct attention_tile &tile, uint32_t run, struct attention_keys *keys) const
 *       (struct mma_attention_keys for the second engine.)
 *       The tile's runs of keys, in the order in which they are taken; false after the last. There
 *       is at least one. A pure function, likewise.
 *
 *   float *lse(const struct attention_tile &tile) const
 *       Where the logarithm for the tile's first row goes; those of the other rows follow.
 */
struct attention_source {
    /* The producer thread, first and last of all; at close all loads have been consumed. */
    ATTENTION_MEMBER void open()
    {
    }
    ATTENTION_MEMBER void close()
    {
    }

    /* The producer thread, before the loads of a block of K and V that begins at key `first` of a
     * run. It may wait (within bounds) for them to arrive. If that fails, it notes so and returns
     * all the same, at once from then on: the launch ends over whatever the memory holds, and fails
     * as a whole. */
    template <class tensor>
    ATTENTION_MEMBER void before(const struct attention_tile &, uint32_t,
                                 const attention_keys_of<tensor> &, int32_t)
    {
    }

    /* One thread of each consumer warpgroup: the tile's first scores are there (of the second
     * engine: its first block is on its way); its rows are in committed TMA stores (all threads
     * have stored them). */
    ATTENTION_MEMBER void begin(int32_t, const struct attention_tile &, uint32_t)
    {
    }
    ATTENTION_MEMBER void after(int32_t, const struct attention_tile &, uint32_t)
    {
    }

    /* The tensor that takes the tile's rows of O, and drops what lies behind them: that of all
     * tiles, where no tile ends before its slab does. */
    template <class tensor>
    ATTENTION_MEMBER const tensor *output(const tensor *of_all, const struct attention_tile &) const
    {
        return of_all;
    }

    /* All lanes of each warp that the engine leaves free (1 to 3), meanwhile: other work of the
     * block. */
    ATTENTION_MEMBER void auxiliary_warp(uint32_t)
    {
    }
};

/* Blocks of a run that the tile may see. The first run has at least one, so that a tile without any
 * key ends as others do. */
template <class shape, class tensor>
PTX_FN int32_t attention_blocks(const struct attention_tile *tile, uint32_t run,
                                const attention_keys_of<tensor> *keys)
{
    int32_t seen = min(keys->keys, (int32_t)tile->rows + keys->diagonal);
    int32_t least = run == 0 ? 1 : 0;
    return max((seen + shape::keys - 1) / shape::keys, least);
}
