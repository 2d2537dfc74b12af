/*
 * The seam between a GEMM engine and an operator: what an engine gives and takes. An engine
 * computes C = A B tile by tile, as the compute role of a persistent kernel; an operator says which
 * tiles there are, what a tile waits for and what follows its stores. There are two engines: wgmma
 * (kernels/hopper/gemm.cuh, struct gemm_engine) and mma (kernels/mma/gemm.cuh, struct mma_engine).
 * An operator has one tile source and one description of its matrices, as templates over these.
 *
 * Operands. An engine has the types
 *
 *   view, a_view, rows_view
 *       How a source names a B or C, an A, and an A whose rows are gathered: a tensor map, or an
 *       address with pitches. Kernel parameters (__grid_constant__), filled on the host by
 *       describe_a, describe_rows, describe_b, describe_c.
 *   operands
 *       B, C, the number of stages of K (describe_k) and the bounds of waits. A kernel parameter.
 *   number
 *       enum mk_engine.
 *   tracked<shape>
 *       What a source derives from whose tiles are noted in the trace: a struct engine_source with
 *       `launch`, open_track and close_track.
 *   gates<shape, tile_source>
 *       Whether a tile's columns may be two runs, and a thread then has sums of both.
 *   one_producer, consumers_scale
 *       One thread loads. Consumers load scales of A themselves.
 *   built<shape, scaled>, threads<shape, tile_source>, compute<shape>(operands, source, memory)
 *       Of a kernel: its shape, which may be of either layout of B; the threads of a block; and what
 *       all of them call.
 *   gathered(rows_view), fresh(parameter), begin_copies(cta, launch, memory)
 *       The A of a source that gathers; a kernel parameter, again; and how a block begins that
 *       copies and does not compute.
 *
 * and of a shape: tile_m, tile_n, cluster (CTAs that share a tile), k_bytes (of a row of A, in a
 * stage), blocks and sums (a consumer thread has `blocks` times `sums` sums), element (of C),
 * halved (the second half of a thread's columns begin tile_n / 2 behind the first). In all that the
 * host describes a row of K is counted in bytes, since an engine may take two e4m3 for one element.
 *
 * Calls and the threads that make them. A source is what struct engine_source says, and must have
 *
 *   bool next(uint32_t i, struct mk_tile *tile)
 *       The i-th tile of this CTA or, with a cluster, of its cluster; false when there is none. The
 *       producer (of engine mma, as the source has it, all its lanes) and every consumer thread
 *       call it, for i = 0, 1, ... once each, and get the same: it is a pure function, or hands on
 *       what the producer has got (kernels/sums/tickets.cuh). To consumers, who load nothing, it
 *       need not say which tile, where `place` and the like do not look
 *       (kernels/sums/gemm_reduce.cuh). Only at the end of a slab may a tile have fewer rows than
 *       the shape's.
 *
 *   const a_view *a(const struct mk_tile *tile) const
 *       Where the tile's A lies.
 *
 *   struct engine_place place(uint32_t i, const struct mk_tile *tile, uint32_t row) const
 *       Where in C the CTA's part of a tile goes; `row`: its first row in the tile.
 *
 * Each thread has its own copy of a source. What a consumer keeps there costs registers beside the
 * accumulators. What one engine alone asks stands in its own source: struct gemm_source,
 * mma_source.
 *
 * Memory order. Who calls `before` has acquired what it waited for; the engine orders the tile's
 * loads behind it, by a proxy fence where they are TMA's. All of a warpgroup's stores of a tile
 * come before `after` where the engine says so (mma: a source that `announces`; wgmma: those of its
 * own TMA stores are committed, and `publish` waits for them).
 *
 * Bounds of waits. Copies complete, consumers wait for nothing else, and a source's waits are
 * bounded; the engine's own limits (`watch`, `limit_ns`) are longer than these.
 */
#pragma once

#include <stdint.h>

#include "core/cta/cta.h"
#include "kernels/engine/ptx.cuh"

#define ENGINE_MEMBER __device__ __forceinline__

/* Where a part of a tile begins in C: column, row, slab. */
struct engine_place {
    int32_t x, y, z;
};

/* How B lies, of a shape: N x K, K x N, or either, as the operands say. The last has both main
 * loops and all else once, where kernels of both layouts would have all twice. */
enum engine_layout { ENGINE_B_NK, ENGINE_B_KN, ENGINE_B_EITHER };

/* Which of an operator's kernels a plan wants. tile_m: of a cluster. number: enum mk_dtype of
 * partial sums. */
struct engine_form {
    uint32_t tile_m, tile_n, cluster, number;
};

/* Where the scales are that belong to a CTA's part of a tile, from its first row and column on.
 *
 * Of blocks: a + block * a_pitch + row, b + column / 128 * b_pitch + block, with `blocks` of K.
 * a is copied 16 bytes at a time, and a_pitch is a multiple of 4: what is read begins and ends
 * with a whole one. Of a tile that is gathered `a` is nothing: a row's scales lie behind its
 * codes. (Nobody tests `a` for NULL: ptxas 13.0 makes a pair of registers 0 by CS2R, which takes some
 * 15 cycles, and where a predicated write of the pair follows, it reads the pair after 5.)
 * rows, columns: that there are from there on, more than 0. */
struct engine_scales {
    const float *a, *b;
    uint32_t a_pitch, b_pitch, rows, columns, blocks;
};

/* FP8 whose B has a scale for each column: scales of a tile's columns. first: of the tile's first one. columns: of C
 * from there on. up: floats from the gate's scales to those of the up projection; 0 without gating. */
struct column_scales {
    const float *first;
    uint32_t columns, up;
};

/* What a tile source derives from: the calls that it need not have. operands, view: an engine's. */
template <class operands, class view> struct engine_source {
    /* Rows of A lie apart: const char *row_of_a(const struct mk_tile *, uint32_t row) const is
     * where row `row` of the tile is, of as many as the tile has, and uint32_t row_bytes() const
     * how many bytes of it are multiplied, behind which its scales lie. That is so of the tiles that
     * `gathered` says; others have an A whose rows follow each other. (On engine wgmma warps 1 to 3
     * copy such rows instead of auxiliary_warp: gemm_gather.cuh.) */
    static constexpr bool gathers = false;
    ENGINE_MEMBER bool gathered(const struct mk_tile *) const
    {
        return true;
    }

    /* A tile's columns of B are two runs, half of them each: the second begins `second` columns
     * behind the first. Of e4m3 uint32_t to_second(const struct mk_tile *) const is how many floats
     * lie from the scales of the first to those of the second. */
    static constexpr bool two_runs = false;
    ENGINE_MEMBER uint32_t second(const struct mk_tile *) const
    {
        return 0;
    }

    /* A plan may have a tile's columns be two runs: uint32_t up() const is then how far behind the
     * first the second begins, else 0. Of shapes that the engine's `gates` says. */
    static constexpr bool gates = false;

    /* Sums are those of blocks of K, added in a tree: uint32_t blocks() const, 1, 2, 4 or 8, and
     * uint32_t block_end(uint32_t) const, of a tile's stages the first behind a block
     * (gemm_tree.cuh of either engine). */
    static constexpr bool tree = false;

    /* B of e4m3 has a scale for each of its columns: of blocks `scales` says those of A alone,
     * and the finished sums take struct column_scales columns(uint32_t i, const struct mk_tile
     * *) const. */
    static constexpr bool by_columns = false;

    /* Where tiles are those of several products: stages of K, B and C. */
    ENGINE_MEMBER uint32_t stages_of_k(const operands *op, const struct mk_tile *) const
    {
        return op->stages_of_k;
    }
    ENGINE_MEMBER const view *b(const operands *op, const struct mk_tile *) const
    {
        return &op->b;
    }
    ENGINE_MEMBER const view *c(const operands *op, const struct mk_tile *) const
    {
        return &op->c;
    }

    /* Where the tile's B lies: 0, or the number of its slab. */
    ENGINE_MEMBER int32_t b_slab(const struct mk_tile *) const
    {
        return 0;
    }

    /* The producer, first of all: each of its threads, by its number. And the first of them, last,
     * when every load has been consumed. */
    ENGINE_MEMBER void open(uint32_t)
    {
    }
    ENGINE_MEMBER void close()
    {
    }

    /* The producer's first thread, when the stage for a slice of the tile's K is free, before the
     * loads of A to it. It may wait (within bounds) for A to arrive. If that fails, it notes so and
     * returns all the same, at once from then on: the launch ends over whatever the memory holds,
     * and fails as a whole. */
    ENGINE_MEMBER void before(uint32_t, const struct mk_tile *, uint32_t)
    {
    }

    /* One thread of each consumer warpgroup, when the tile's first stage has landed. */
    ENGINE_MEMBER void begin(uint32_t, const struct mk_tile *)
    {
    }

    /* Of products of e4m3: where the i-th tile's scales lie, from row `row` of it on. Producer and
     * consumers call it, behind `begin`; where rows lie apart, who gathers them. */
    ENGINE_MEMBER struct engine_scales scales(uint32_t, const struct mk_tile *, uint32_t) const
    {
        return {};
    }

    /* All consumer threads, when the products of a tile are done: what follows them before they are
     * rounded. column: of the tile, that the thread's warp begins with. */
    template <class shape>
    ENGINE_MEMBER void epilogue(const struct mk_tile *, float (&)[shape::blocks][shape::sums],
                                uint32_t) const
    {
    }

    /* All consumer threads, behind that (half 0 and 1: the warpgroup; rank: the CTA's in its
     * cluster): what is left in the sums is stored. True: the source has stored them itself, and
     * the engine does not. */
    template <class shape>
    ENGINE_MEMBER bool store_sums(uint32_t, float (&)[shape::blocks][shape::sums], uint32_t,
                                  uint32_t) const
    {
        return false;
    }

    /* One thread of each warpgroup (half), when what it has of the tile is stored, or in committed
     * TMA stores: it may release the tile to others. */
    ENGINE_MEMBER void after(uint32_t, const struct mk_tile *, uint32_t)
    {
    }

    /* All lanes of each warp that the engine leaves free (from 0), meanwhile: other work of the
     * block. */
    ENGINE_MEMBER void auxiliary_warp(uint32_t)
    {
    }
};

/* Calls `call` with an object of the shape for the layout that B has; op: an engine's. */
template <class shape, class operands, class function>
PTX_FN void engine_as_laid(const operands *op, const function &call)
{
    if constexpr (shape::b_kn != ENGINE_B_EITHER)
        call(shape());
    else if (op->b_kn)
        call(typename shape::template laid<ENGINE_B_KN>());
    else
        call(typename shape::template laid<ENGINE_B_NK>());
}

/* Threads of a block whose tiles are those of such a source. (nvcc takes no member of a template
 * parameter for the bounds of a launch.) */
template <class engine, class shape, class tile_source>
constexpr uint32_t engine_threads = engine::template threads<shape, tile_source>;
