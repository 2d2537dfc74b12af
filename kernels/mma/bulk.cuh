/* Host side of the second engine's TMA loads: maps of A and of B for the tiles of a shape. */
#pragma once

#include "kernels/hopper/tensormap.h"
#include "kernels/mma/gemm.cuh"

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

/* Where kernels load by TMA, gives a matrix of `slabs` the map of boxes of 64 columns and so many
 * rows. 0, or what tensormap.h says. */
static inline int mma_map(const struct mma_operands *op, struct mma_matrix *m, uint64_t slabs,
                          uint32_t box_rows)
{
    const uint64_t rows = m->rows ? m->rows : 1, extent[3] = {m->columns, rows, slabs};
    const uint32_t box[2] = {64, box_rows};
    if (!op->bulk)
        return 0;
    return tensormap_bf16(&m->map, m->base, extent, m->pitch / 2,
                          (slabs > 1 ? m->slab_pitch : rows * m->pitch) / 2, box);
}

template <class shape>
static int mma_map_a(const struct mma_operands *op, struct mma_matrix *a, uint64_t slabs = 1)
{
    return mma_map(op, a, slabs, shape::tile_m);
}

/* runs: of a tile's columns. */
template <class shape>
static int mma_map_b(struct mma_operands *op, uint64_t slabs = 1, uint32_t runs = 1)
{
    return mma_map(op, &op->b, slabs, shape::b_kn ? shape::tile_k : shape::tile_n / runs);
}
