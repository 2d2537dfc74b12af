/* Engine wgmma as an operator sees it (kernels/engine/engine.cuh): struct gemm_engine, whose views are
 * tensor maps. Host side, but for what says __device__. */
#pragma once

#include "core/plan/gemm_tiles.h"
#include "kernels/cta/cta.cuh"
#include "kernels/hopper/gemm.cuh"
#include "kernels/hopper/tensormap.h"

/* kernels/hopper/gemm_track.cuh has them, which kernels of such sources include. */
struct tracked_source;
template <uint32_t offset> struct tight_source;

struct gemm_engine {
    typedef struct gemm_a a_view;
    typedef CUtensorMap view;
    typedef struct gemm_operands operands;
    struct rows_view { /* who gathers them is told of each row */
    };
    static constexpr int number = MK_ENGINE_WGMMA;
    static constexpr bool one_producer = true, consumers_scale = false;

    template <class shape>
    using tracked =
        std::conditional_t<shape::tight, tight_source<shape::track_offset>, tracked_source>;

    /* Of e4m3 a run is of one block of scales: 128 columns. */
    template <class shape, class tile_source>
    static constexpr bool gates = tile_source::gates && (shape::half || shape::tile_n > 128);

    /* What derives from it is not kept from tile to tile: consumers have no registers for it. */
    template <class type> static ENGINE_MEMBER const type *fresh(const type *of)
    {
        return MK_FRESH(of);
    }

    /* The shape that a kernel of tiles by tickets is built for, and the threads of its block. */
    template <class shape, bool scaled> using built = typename shape::any_layout;
    template <class shape, class tile_source> static constexpr uint32_t threads = GEMM_THREADS;

    /* What a source that gathers says of A where no tile's rows follow each other. */
    static ENGINE_MEMBER const a_view *gathered(const rows_view *)
    {
        return nullptr;
    }

    /* All of a block's threads: its tiles (gemm_compute). */
    template <class shapes, class tile_source>
    static ENGINE_MEMBER void compute(const operands *op, tile_source *source, uint8_t *memory)
    {
        gemm_compute<shapes>(op, source, memory);
    }

    /* Begins the CTA of a block that copies and does not compute: one thread, by TMA. False: the
     * calling thread has no part in it. */
    static ENGINE_MEMBER bool begin_copies(struct mk_cta *cta, const struct gpu_launch *launch,
                                           uint8_t *memory)
    {
        if (threadIdx.x != 0)
            return false;
        cta_begin(cta, launch, gpu_cta_of_block(&launch->split, blockIdx.x), 1);
        cta_begin_copies(cta, ptx_shared(memory));
        return true;
    }

    /* tensormap_bf16, of any 16 bits, or tensormap_bytes: whichever the shape's A and B are.
     * Strides in bytes. */
    template <class shape>
    static int map(CUtensorMap *to, const void *base, const uint64_t extent[3], uint64_t row_stride,
                   uint64_t slab_stride, const uint32_t box[2])
    {
        return shape::half ? tensormap_bf16(to, base, extent, row_stride / 2, slab_stride / 2, box)
                           : tensormap_bytes(to, base, extent, row_stride, slab_stride, box);
    }

    /* Elements of so many bytes of a row of K. */
    template <class shape> static uint64_t elements(uint64_t bytes)
    {
        return shape::half ? bytes / 2 : bytes;
    }

    /* An A of `rows` rows of row_bytes bytes, which follow each other, in each of `slabs`,
     * slab_pitch bytes apart. The last tiles begin to be cut at row `from`. halves: as the
     * source's. 0, or what tensormap.h says. */
    template <class shape, bool halves = false>
    static int describe_a(a_view *a, operands *op, const void *base, uint64_t row_bytes,
                          uint64_t rows, uint64_t slabs = 1, uint64_t slab_pitch = 0,
                          uint64_t from = 0)
    {
        const uint64_t extent[3] = {elements<shape>(row_bytes), rows, slabs};
        constexpr uint32_t all = shape::loaded_rows, half = all / 2;
        const uint32_t last = (uint32_t)((rows - from) % (all * shape::sharers)), /* of a tile */
            height = halves && half % 64 == 0 && last <= half * shape::sharers ? half : all,
                       left = last % height;
        const uint32_t whole[2] = {shape::tile_k, all}, halved[2] = {shape::tile_k, half},
                       rest[2] = {shape::tile_k, left ? gemm_a_box<shape>(left) : all};
        const uint64_t pitch = slabs > 1 ? slab_pitch : rows * row_bytes;
        op->a_rows = (uint32_t)rows;
        op->a_rest = rest[1];
        int err = map<shape>(&a->whole, base, extent, row_bytes, pitch, whole);
        if (!err && halves)
            err = map<shape>(&a->half, base, extent, row_bytes, pitch, halved);
        return err ? err : map<shape>(&a->rest, base, extent, row_bytes, pitch, rest);
    }

    /* The same of an A whose rows are gathered. */
    template <class shape>
    static int describe_rows(rows_view *, operands *op, const void *, uint64_t, uint64_t rows)
    {
        op->a_rows = (uint32_t)rows;
        op->a_rest = shape::tile_m;
        return 0;
    }

    /* The B's of several groups, of n columns and a K of row_bytes bytes in a row of A; [k, n] or
     * [n, k] each as the shape has it. runs: of a tile's columns, 1 or 2. */
    template <class shape>
    static int describe_b(view *b, const operands *, const void *base, uint64_t n,
                          uint64_t row_bytes, uint64_t groups = 1, uint32_t runs = 1)
    {
        const uint64_t k = elements<shape>(row_bytes), nk[3] = {k, n, groups},
                       kn[3] = {n, k, groups};
        const uint32_t nk_box[2] = {shape::tile_k,
                                    shape::tile_n / (runs > 1 ? runs : shape::sharers)},
                       kn_box[2] = {64, GEMM_TILE_K};
        return shape::b_kn ? map<shape>(b, base, kn, n * 2, n * k * 2, kn_box)
                           : map<shape>(b, base, nk, row_bytes, n * row_bytes, nk_box);
    }

    /* A B whose groups are slices of K, each `apart` bytes of a row of A behind the one before:
     * they overlap. Of 16 bits. */
    template <class shape>
    static int describe_slices(view *b, const void *base, uint64_t n, uint64_t row_bytes,
                               uint64_t slices, uint64_t apart)
    {
        const uint64_t k = row_bytes / 2, nk[3] = {k, n, slices}, kn[3] = {n, k, slices};
        const uint32_t nk_box[2] = {shape::tile_k, shape::tile_n / shape::cluster},
                       kn_box[2] = {64, GEMM_TILE_K};
        return shape::b_kn ? tensormap_bf16(b, base, kn, n, n * (apart / 2), kn_box)
                           : tensormap_bf16(b, base, nk, k, apart / 2, nk_box);
    }

    /* A C of `columns` columns of 16 bits in rows that are `pitch` bytes apart, and of so many
     * slabs of these, which follow each other. */
    template <class shape>
    static int describe_c(view *c, const operands *, const void *base, uint64_t pitch,
                          uint64_t columns, uint64_t rows, uint64_t slabs = 1)
    {
        const uint64_t extent[3] = {columns, rows, slabs};
        const uint32_t box[2] = {64, 64};
        return tensormap_bf16(c, base, extent, pitch / 2, rows * pitch / 2, box);
    }

    /* A C that is the A of another product: rows of row_bytes bytes, which follow each other. */
    template <class shape>
    static int describe_c_as_a(view *c, const operands *, const void *base, uint64_t row_bytes,
                               uint64_t rows)
    {
        const uint64_t extent[3] = {elements<shape>(row_bytes), rows, 1};
        const uint32_t box[2] = {shape::tile_k, 64};
        return map<shape>(c, base, extent, row_bytes, rows * row_bytes, box);
    }

    /* Stages of K, of row_bytes bytes in a row of A, and of a slice of it: before each the source's
     * `before` is called. */
    template <class shape>
    static void describe_k(operands *op, uint64_t row_bytes, uint64_t slice_bytes)
    {
        constexpr uint32_t bytes = shape::k_bytes * (shape::splits ? 2 : 1);
        op->stages_of_k = (uint32_t)mk_ceil_div(row_bytes, bytes);
        op->stages_of_slice = (uint32_t)mk_ceil_div(slice_bytes, bytes);
    }
};
