/* Engine mma as an operator sees it (kernels/engine/engine.cuh): struct mma_engine, whose views are
 * addresses with pitches, and maps where kernels load by TMA. Host side, but for what says
 * __device__. */
#pragma once

#include <errno.h>

#include "core/plan/gemm_tiles.h"
#include "kernels/cta/cta.cuh"
#include "kernels/hopper/tensormap.h"
#include "kernels/mma/gemm.cuh"
#include "kernels/cta/tile_track.cuh"

/* Of the block's first thread, which notes its tiles. In shared memory: consumers have no register
 * for it. */
PTX_SHARED(struct tile_track, mma_track, 1);

/* What a source of an operator derives from: free warps, and notes of when tiles were computed. */
struct mma_op_source : mma_source {
    static constexpr int auxiliary_warps = MK_MMA_AUXILIARY_WARPS;

    const struct gpu_launch *launch;

    ENGINE_MEMBER bool tracks() const
    {
        return launch->tracks && threadIdx.x == 0;
    }

    ENGINE_MEMBER void open_track()
    {
        if (tracks())
            tile_track_open(mma_track, launch, 0);
    }

    ENGINE_MEMBER void close_track()
    {
        if (tracks())
            tile_track_close(mma_track, launch);
    }

    ENGINE_MEMBER void begin(uint32_t, const struct mk_tile *)
    {
        if (tracks())
            tile_track_start(mma_track);
    }

    ENGINE_MEMBER void after(uint32_t, const struct mk_tile *tile, uint32_t)
    {
        if (tracks())
            tile_track_note(mma_track, launch, tile->id);
    }
};

/* Whether kernels on the current device load by TMA, so matrices are to have maps; on the emulated
 * GPU `emulated` says so. */
static inline bool mma_device_bulk(bool emulated)
{
#ifdef MK_EMULATED
    return emulated;
#else
    int device = 0, major = 0;
    return cudaGetDevice(&device) == cudaSuccess &&
           cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) ==
               cudaSuccess &&
           major >= 9;
#endif
}

struct mma_engine {
    typedef struct mma_matrix a_view, rows_view, view;
    typedef struct mma_operands operands;
    static constexpr int number = MK_ENGINE_MMA;
    static constexpr bool one_producer = false, consumers_scale = true;

    template <class shape> using tracked = mma_op_source;

    template <class shape, class tile_source>
    static constexpr bool gates = mma_gates<shape, tile_source>;

    /* Here it may be: code is some hundred instructions shorter. */
    template <class type> static ENGINE_MEMBER const type *fresh(const type *of)
    {
        return of;
    }

    /* These are as kernels/hopper/engine.cuh has them. */
    template <class shape, bool scaled>
    using built = typename shape::template laid<scaled ? (int)ENGINE_B_NK : (int)ENGINE_B_EITHER>;
    template <class shape, class tile_source>
    static constexpr uint32_t threads = mma_threads<shape, tile_source>;

    static ENGINE_MEMBER const a_view *gathered(const rows_view *rows)
    {
        return rows;
    }

    /* All of a block's threads: its tiles (mma_compute). */
    template <class shape, class tile_source>
    static ENGINE_MEMBER void compute(const operands *op, tile_source *source, uint8_t *memory)
    {
        mma_compute<shape>(op, source, memory);
    }

    /* Begins the CTA of a block that copies and does not compute: all its lanes. */
    static ENGINE_MEMBER bool begin_copies(struct mk_cta *cta, const struct gpu_launch *launch,
                                           uint8_t *)
    {
        cta_begin(cta, launch, gpu_cta_of_block(&launch->split, blockIdx.x), blockDim.x);
        return true;
    }

    /* Where kernels load by TMA, gives a matrix of `slabs` the map of boxes of 64 columns and so
     * many rows. 0, or what tensormap.h says; -EINVAL: an address that 16 does not divide. */
    static int map(const operands *op, view *m, uint64_t slabs, uint32_t box_rows)
    {
        const uint64_t rows = m->rows ? m->rows : 1, extent[3] = {m->columns, rows, slabs};
        const uint32_t box[2] = {64, box_rows};
        if ((uintptr_t)m->base % 16)
            return -EINVAL;
        if (!op->bulk)
            return 0;
        return tensormap_bf16(&m->map, m->base, extent, m->pitch / 2,
                              (slabs > 1 ? m->slab_pitch : rows * m->pitch) / 2, box);
    }

    /* These are as kernels/hopper/engine.cuh has them. Of e4m3 two are an element. */
    template <class shape, bool halves = false>
    static int describe_a(a_view *a, operands *op, const void *base, uint64_t row_bytes,
                          uint64_t rows, uint64_t slabs = 1, uint64_t slab_pitch = 0, uint64_t = 0)
    {
        *a = {(char *)base, row_bytes, slab_pitch, (uint32_t)rows, (uint32_t)(row_bytes / 2)};
        return map(op, a, slabs, shape::tile_m);
    }

    template <class shape>
    static int describe_rows(rows_view *a, operands *op, const void *base, uint64_t row_bytes,
                             uint64_t rows)
    {
        op->bulk = 0; /* and nothing of B comes by TMA */
        return describe_a<shape>(a, op, base, row_bytes, rows);
    }

    template <class shape>
    static int describe_b(view *b, const operands *op, const void *base, uint64_t n,
                          uint64_t row_bytes, uint64_t groups = 1, uint32_t runs = 1)
    {
        const uint64_t across = n * 2, group = n * row_bytes;
        const uint32_t k = (uint32_t)(row_bytes / 2);
        *b = shape::b_kn ? view{(char *)base, across, group, k, (uint32_t)n}
                         : view{(char *)base, row_bytes, group, (uint32_t)n, k};
        return map(op, b, groups, shape::b_kn ? shape::tile_k : shape::tile_n / runs);
    }

    template <class shape>
    static int describe_c(view *c, const operands *, const void *base, uint64_t pitch,
                          uint64_t columns, uint64_t rows, uint64_t = 1)
    {
        *c = {(char *)base, pitch, rows * pitch, (uint32_t)rows, (uint32_t)columns};
        return (uintptr_t)base % 16 ? -EINVAL : 0;
    }

    template <class shape>
    static int describe_c_as_a(view *c, const operands *op, const void *base, uint64_t row_bytes,
                               uint64_t rows)
    {
        return describe_c<shape>(c, op, base, row_bytes, row_bytes / 2, rows);
    }

    template <class shape>
    static void describe_k(operands *op, uint64_t row_bytes, uint64_t slice_bytes)
    {
        op->stages_of_k = (uint32_t)mk_ceil_div(row_bytes, shape::k_bytes);
        op->stages_of_slice = (uint32_t)mk_ceil_div(slice_bytes, shape::k_bytes);
    }
};
