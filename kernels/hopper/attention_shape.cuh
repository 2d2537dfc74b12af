/* What the attention engine works on: tiles of queries, runs of keys, and how a CTA's shared memory
 * is laid out. Part of attention.cuh. */
#ifndef MK_KERNELS_ATTENTION_SHAPE_CUH
#define MK_KERNELS_ATTENTION_SHAPE_CUH

#include "core/base.h"
#include "kernels/pipeline.cuh"
#include "kernels/hopper/wgmma.cuh"

enum {
    ATTENTION_NONE = -1,      /* no tile is left */
    ATTENTION_FULL = 1 << 30, /* diagonal of keys that every query sees */
};

/* Queries of one head: rows row, ... of a slab (of the maps of Q and O), at most shape::tile_rows.
 */
struct attention_tile {
    int32_t head, row, slab;
    uint32_t rows;
};

/* A run of keys: rows row, ... of a slab of the maps. The tile's query i sees key j < keys if j <=
 * i + diagonal. */
struct attention_keys {
    const CUtensorMap *k, *v; /* box 64 x shape::keys */
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
    ATTENTION_MEMBER void before(const struct attention_tile &, uint32_t,
                                 const struct attention_keys &, int32_t)
    {
    }

    /* One thread of each consumer warpgroup: the tile's first scores are there; its rows are in
     * committed TMA stores. */
    ATTENTION_MEMBER void begin(int32_t, const struct attention_tile &, uint32_t)
    {
    }
    ATTENTION_MEMBER void after(int32_t, const struct attention_tile &, uint32_t)
    {
    }

    /* All lanes of each warp that the engine leaves free (1 to 3), meanwhile: other work of the
     * block. */
    ATTENTION_MEMBER void auxiliary_warp(uint32_t)
    {
    }
};

/* A kernel parameter (__grid_constant__): the TMA unit reads the maps there. */
struct attention_operands {
    CUtensorMap q, o; /* box 64 x 64 */
    float scale;      /* of Q K^T */
    /* The producer's waits; its limit is above what a source's `before` may take. */
    struct barrier_watch watch;
    uint64_t limit_ns; /* of consumers, longer: the producer says where the block stands */
};

/*
 * dim: elements of a head, rounded up to 64 (the maps add zeros). keys: of a block. groups:
 * consumer warpgroups. Stages of K and as many of V. own_o: O leaves through memory of its own,
 * else through Q's.
 */
template <int dim_, int keys_, int groups_, int stages_, bool own_o_> struct attention_shape {
    static constexpr int dim = dim_, keys = keys_, groups = groups_, stages = stages_;
    static constexpr bool own_o = own_o_;
    static constexpr int panels =
        dim / 64; /* 64 elements of a row are 128 bytes, the widest swizzle */
    static constexpr int tile_rows = groups * 64;
    static constexpr int threads = 128 + groups * 128;
    /* Of a thread; what a launch gives to all is shared out anew. A producer that waits for other
     * GPUs needs more than 40. */
    static constexpr int producer_registers = groups < 3  ? dim > 128 ? 40 : 104
                                              : keys > 96 ? 32
                                                          : 104;
    static constexpr int consumer_registers = groups < 3  ? dim > 128 ? 232 : 200
                                              : keys > 96 ? 160
                                                          : 136;

    static constexpr uint32_t panel_bytes = 64 * 128; /* of Q and O: a warpgroup's rows */
    static constexpr uint32_t group_bytes = panels * panel_bytes;
    static constexpr uint32_t block_bytes = keys * dim * 2;
    static constexpr uint32_t k_offset = groups * group_bytes;
    static constexpr uint32_t v_offset = k_offset + stages * block_bytes;
    static constexpr uint32_t o_offset = own_o ? v_offset + stages * block_bytes : 0;
    static constexpr uint32_t k_barriers =
        v_offset + stages * block_bytes + (own_o ? groups * group_bytes : 0);
    static constexpr uint32_t v_barriers = k_barriers + 16 * stages,
                              q_barriers = v_barriers + 16 * stages;
    static constexpr uint32_t tile_offset =
        q_barriers + 16; /* the number of the tile whose Q is there */
    static constexpr uint32_t shared_bytes = tile_offset + 8 + 1024; /* to align the first */

    static_assert(dim % 64 == 0 && dim <= 256 && keys % 16 == 0 && keys <= 256,
                  "what wgmma and TMA take");
    static_assert(groups >= 1 && groups <= 3 && shared_bytes <= 227 * 1024,
                  "what a CTA of Hopper has");
};

/* Blocks of a run that the tile may see. The first run has at least one, so that a tile without any
 * key ends as others do. */
template <class shape>
PTX_FN int32_t attention_blocks(const struct attention_tile *tile, uint32_t run,
                                const struct attention_keys *keys)
{
    int32_t seen = min(keys->keys, (int32_t)tile->rows + keys->diagonal);
    int32_t least = run == 0 ? 1 : 0;
    return max((seen + shape::keys - 1) / shape::keys, least);
}

/* Of those, how many first ones need no mask for the 64 rows from `row` on. */
template <class shape>
PTX_FN int32_t attention_clean_blocks(const struct attention_keys *keys, int32_t row)
{
    return max(min(keys->keys, row + keys->diagonal + 1), 0) / shape::keys;
}

#endif
