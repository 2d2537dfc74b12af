/* What a tile source of engine wgmma derives from: kernels/engine/engine.cuh says what every engine asks of
 * one, struct gemm_source what this one asks beside that, and struct gemm_operands what a kernel has
 * of matrices. */
#pragma once

#include "kernels/engine/engine.cuh"
#include "kernels/engine/half.cuh"
#include "kernels/engine/pipeline.cuh"
#include "kernels/engine/warp_roles.cuh"

/* K elements per pipeline stage: one 128-byte row of bf16, the widest swizzle. */
enum { GEMM_TILE_K = 64, GEMM_GATHER_WARPS = 3 };

enum { GEMM_THREADS = 384, GEMM_LAUNCH_REGISTERS = 65536 / GEMM_THREADS / 8 * 8 };

/* What A and B are. Of the sums of e4m3 the tensor core keeps 14 bits: every 128 of K they are added to fp32
 * registers, by a scale for 1 x 128 of A and one for 128 x 128 of B. */
enum gemm_products { GEMM_BF16, GEMM_FP16, GEMM_E4M3 };

/* Slabs of rows x K; boxes of a stage of K, and of the CTA's rows of a tile: all, half of them
 * (gemm_source.halves), or those that the last tile has (gemm_operands.a_rest). A box that reaches
 * behind the last row would bring the same, and be slow: with 448 rows in tiles of 256 a launch took
 * 64 us where it takes 50 (one H100). */
struct gemm_a {
    CUtensorMap whole, half, rest;
};

/* The stages as a thread walks them. */
struct gemm_ring {
    uint32_t shared, barriers;
    struct pipeline_position at;
};

/* What a tile source derives from: beside the calls of kernels/engine/engine.cuh those that this engine
 * alone makes. */
struct gemm_source : engine_source<struct gemm_operands, CUtensorMap> {
    /* Of a thread. A source whose auxiliary warps need more says so; a launch gives 168 to
     * each. */
    static constexpr int producer_registers = 104;
    static constexpr int consumer_registers = 200; /* 128 of which hold accumulators */

    /* A tile may have half the shape's rows, or fewer, wherever it is: each CTA of the cluster then
     * has half of its rows, which are its first consumer's, and the second computes nothing. Of such
     * a tile the consumers know `rows`. */
    static constexpr bool halves = false;

    /* Of a source whose sums are in a tree: gemm_lane (gemm_tree.cuh). */
    static constexpr bool asks_lane = false;

    /* One sum of the first consumer's and the second's, of shapes of two parts. */
    static ENGINE_MEMBER float join(float first, float second)
    {
        return first + second;
    }

    /* Of e4m3: sets of raw sums, of 64 columns, that a consumer has. With two the warpgroup's own products run while it promotes
     * (gemm_promote.cuh); with one there is room beside 128 final sums for what a source adds. */
    template <class shape> static constexpr int raw_sets = 2;

    /* Beside what the engine's warps do at its own mbarriers (gemm_roles): what they do at the
     * source's, each consumer warpgroup too; and roles of auxiliary warps that a launch's plan
     * chooses. */
    static constexpr struct warp_meeting producer_at = {}, gatherer_at = {}, consumer_at[2] = {};
    static constexpr struct warp_role chosen_roles[2] = {};

    /* What blocks without tiles do as warps beside the engine do stands in a kernel once, and the producer is that of kernels of several
     * shapes, of one too. Whether the calling block has tiles: of one that has none all threads call auxiliary_warp, with a
     * producer's registers. */
    static constexpr bool shared_code = false;
    ENGINE_MEMBER bool computes() const
    {
        return true;
    }

    /* What follows the engine has other work for all threads of the block: each has the registers
     * of the launch again. */
    static constexpr bool goes_on = false;

    /* How many boxes of 64 columns of its sums are stored. */
    template <class shape> ENGINE_MEMBER uint32_t boxes(const struct mk_tile *) const
    {
        return shape::tile_n / 64;
    }

    /* Loads of the first tile's B may begin before `open`, by bool first(struct mk_tile *), which
     * is next(0) and touches no memory, and b_slab; and those of its A, by `a`: `before` waits for
     * nothing. The tile that `first` has filled is what the producer calls next(0) with. */
    static constexpr bool b_ahead = false, a_ahead = false;

    /* A box of B; no CTA but this one has it from this load. */
    ENGINE_MEMBER void load_box(uint32_t to, const CUtensorMap *map, uint32_t full, int32_t x,
                                int32_t y, int32_t slab) const
    {
        ptx_tma_load_3d(to, map, full, x, y, slab);
    }

    /* Whether all that a consumer warpgroup has of a tile, from row `row` of it on, is outside C:
     * it then computes nothing, and calls begin, publish and after all the same. The same in all its
     * threads. */
    ENGINE_MEMBER bool idle(const struct mk_tile *, uint32_t) const
    {
        return false;
    }

    /* The producer thread, when the tile's first loads are under way: it may work out what it needs
     * to know of the next tile. It may say anew what the tile is, rather than keep it. */
    ENGINE_MEMBER void prefetch_next(uint32_t, struct mk_tile *)
    {
    }

    /* The producer thread, behind a tile's loads: whether stages follow that are added to the tile. It may wait for them. */
    ENGINE_MEMBER bool has_addends(uint32_t)
    {
        return false;
    }

    /* The same, then: fills stages with what is added to the tile.
     * All consumers call `add` for it, when the products are whole: each takes all of these stages
     * from the ring, in the same order. rank: in the cluster. */
    template <class shape> ENGINE_MEMBER void load_addends(uint32_t, struct gemm_ring *, uint32_t)
    {
    }
    template <class shape>
    ENGINE_MEMBER void add(uint32_t, float (&)[shape::blocks][shape::sums], uint32_t, uint32_t,
                           struct gemm_ring *) const
    {
    }

    /* All threads of each consumer warpgroup, before they ask for tile i: a chance to do at once
     * what `publish` would do once its first loads are there, which may wait for it. */
    ENGINE_MEMBER void publish_early(uint32_t)
    {
    }

    /* The thread that has called `after`, some products into the next tile or after the last: the
     * stores have had time to be written, so that whoever announces them to others, who calls
     * ptx_bulk_wait_all first, does not stand still. */
    ENGINE_MEMBER void publish(uint32_t, uint32_t) const
    {
    }
};

/* A kernel parameter (__grid_constant__): the TMA unit reads the maps there. */
struct gemm_operands {
    CUtensorMap b; /* N x K; box tile_n / cluster x 64. Or K x N; box 64 x 64 */
    CUtensorMap c; /* slabs of rows x columns; box 64 x 64 */
    uint32_t stages_of_k, stages_of_slice;
    uint32_t a_rows; /* of a slab of A. What lies behind them nobody loads, and what is made of it
                      * nobody stores */
    uint32_t a_rest; /* rows of the last tile's last CTA that has any */
    uint32_t b_kn;   /* of a shape of ENGINE_B_EITHER: B is K x N, else N x K */
    uint32_t shape;  /* which of a kernel's shapes (gemm_shapes) */
    struct barrier_watch watch; /* its limit is above what a source's `before` may take */
    uint64_t limit_ns; /* of consumers, longer: they have no registers to say where they stand, and
                        * whoever fills and empties their buffers stands still with them */
};
