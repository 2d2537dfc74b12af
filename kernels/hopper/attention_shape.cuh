/* What the attention engine works on, and how a CTA's shared memory is laid out. Part of
 * attention.cuh. */
#pragma once

#include "kernels/engine/attention_clean.cuh"
#include "kernels/engine/pipeline.cuh"
#include "kernels/hopper/wgmma.cuh"
#include "kernels/engine/warp_roles.cuh"

/* A run of keys: of the maps, box 64 x shape::keys. */
struct attention_keys : attention_keys_of<CUtensorMap> {
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
    static constexpr bool async_proxy = true; /* reads V from shared memory */
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
    static constexpr uint32_t notes_offset =
        tile_offset + 8; /* kernels/engine/attention_clean.cuh */
    static constexpr uint32_t shared_bytes =
        notes_offset + clean_bytes<dim> + 1024; /* to align the first */

    /* In rows of 128 bytes that TMA swizzled, `panel` bytes for each 64 columns: columns 2 * pair and
     * 2 * pair + 1 of a row. */
    static ATTENTION_MEMBER uint32_t pair_in(uint32_t panel, uint32_t row, uint32_t pair)
    {
        return pair / 32 * panel + row * 128 + (pair / 4 % 8 ^ row % 8) * 16 + pair % 4 * 4;
    }
    static ATTENTION_MEMBER uint32_t value_pair(uint32_t key, uint32_t pair)
    {
        return pair_in(keys * 128, key, pair);
    }
    static ATTENTION_MEMBER uint32_t output_pair(uint32_t row, uint32_t pair)
    {
        return pair_in(panel_bytes, row, pair);
    }

    static_assert(dim % 64 == 0 && dim <= 256 && keys % 16 == 0 && keys <= 256,
                  "what wgmma and TMA take");
    static_assert(groups >= 1 && groups <= NAMED_WARPGROUPS && shared_bytes <= 227 * 1024,
                  "what a CTA of Hopper has");
};

/* Of a run's blocks, how many first ones need no mask for any row of the tile. */
template <class shape> PTX_FN int32_t attention_clean_blocks(const struct attention_keys *keys)
{
    return max(min(keys->keys, keys->diagonal + 1), 0) / shape::keys;
}
