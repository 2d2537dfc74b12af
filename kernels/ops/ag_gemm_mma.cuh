/* AllGather+GEMM on engine mma. The tiles, what they wait for and what pushes are those of
 * kernels/ops/ag_gemm.cu; A, B and C are matrices in memory, and blocks that only communicate copy by
 * all their lanes. Of bf16, fp16, and FP8, whose rows count as bf16 of half as many elements. */
#pragma once

#include "kernels/ops/ag_gemm_tiles.cuh"

#include "kernels/mma/gemm_promote.cuh"
#include "kernels/mma/launch.cuh"

/* Where A lies, by epoch & 1 for what has arrived. A kernel parameter. */
struct ag_gemm_matrices {
    struct mma_matrix own, gathered[2];
};

template <bool scaled_, bool by_columns_>
struct ag_gemm_mma_source : ag_gemm_tiles<mma_op_source, scaled_> {
    static constexpr bool waits = true, scaled = scaled_, gates = true, by_columns = by_columns_;

    typedef ag_gemm_tiles<mma_op_source, scaled_> tiles;
    using tiles::launch;

    const struct ag_gemm_matrices *matrices;
    uint32_t odd; /* of the launch's number: the producer's, of FP8 the consumers', too */

    MMA_MEMBER void open(uint32_t thread)
    {
        odd = cta_epoch(launch) & 1;
        if (thread == 0)
            tiles::open();
    }

    MMA_MEMBER struct mma_scales scales(const struct mk_tile *tile, uint32_t row) const
    {
        const struct ag_gemm_tile_scales s = tiles::tile_scales(tile, 0, odd);
        struct mma_scales of = mma_scales_of_rows(s.a, s.a_pitch, row, s.rows, s.b);
        of.second = tiles::to_second(tile);
        return of;
    }

    MMA_MEMBER const struct mma_matrix *a(const struct mk_tile *tile) const
    {
        return tile->a == MK_SPACE_HEAP ? &matrices->gathered[odd] : &matrices->own;
    }

    template <class shape>
    MMA_MEMBER void epilogue(const struct mk_tile *tile, float (&sum)[shape::blocks][shape::sums],
                             uint32_t column) const
    {
        tiles::template after_products<shape::element, mma_gates<shape, ag_gemm_mma_source>,
                                       shape::halved ? shape::tile_n / 2 : 0>(tile, sum, column);
    }

    MMA_MEMBER struct mma_place place(uint32_t, const struct mk_tile *tile, uint32_t row) const
    {
        return {(int32_t)tile->col, (int32_t)(tile->row + row), (int32_t)tile->slab};
    }

    MMA_MEMBER void auxiliary_warp(uint32_t warp)
    {
        tiles::push(warp);
    }
};

/* For kernels/mma/launch.cuh. by_columns: FP8 whose B has a scale for each column. */
template <bool scaled, bool by_columns = false> struct ag_gemm_on_mma {
    typedef struct ag_gemm_plan plan;
    typedef struct ag_gemm_mma_source<scaled, by_columns> source;
    typedef struct ag_gemm_matrices matrices;

    template <class shape>
    static int describe(matrices *m, struct mma_operands *op, const plan *p,
                        const struct gpu_launch *l)
    {
        const bool joint = p->shots == 1; /* all shards are one matrix */
        const uint32_t block = joint ? p->m : p->shard_rows;
        const uint64_t pitch = p->row_bytes, c_pitch = p->n * 2ull;
        const uint32_t k = (uint32_t)(pitch / 2), n = p->n + p->up;
        char *const b = (char *)l->arguments[MK_SPACE_ARG1];
        char *const c = (char *)l->arguments[MK_SPACE_ARG2];
        m->own = {(char *)l->arguments[MK_SPACE_ARG0], pitch, 0, p->shard_rows, k};
        for (int i = 0; i < 2; i++)
            m->gathered[i] = {l->heap + p->gathered[i], pitch, p->shard_pitch, block, k};
        op->b = shape::b_kn ? mma_matrix{b, n * 2ull, 0, k, n} : mma_matrix{b, pitch, 0, n, k};
        op->c = {c, c_pitch, block * c_pitch, block, p->n};
        op->stages_of_k = (uint32_t)mk_ceil_div(k, shape::tile_k);
        op->stages_of_slice =
            joint ? op->stages_of_k : (uint32_t)mk_ceil_div(p->slice_bytes, shape::tile_k * 2);
        if (((uintptr_t)m->own.base | (uintptr_t)b | (uintptr_t)c) % 16)
            return -EINVAL;
        int err = mma_map_b<shape>(op, 1, p->up ? 2 : 1);
        err = err ? err : mma_map_a<shape>(op, &m->own);
        for (int i = 0; i < 2 && !err; i++)
            err = mma_map_a<shape>(op, &m->gathered[i], joint ? 1 : mk_world(&p->topo));
        return err;
    }

    template <class shape>
    static MMA_MEMBER void compute(const plan *p, const struct gpu_launch *launch,
                                   const struct mma_operands *op, const matrices *m,
                                   uint8_t *memory)
    {
        source tiles;
        tiles.plan = p;
        tiles.launch = launch;
        tiles.matrices = m;
        tiles.from = blockIdx.x;
        tiles.step = launch->split.ctas[MK_COMPUTE];
        if (scaled)
            tiles.odd = cta_epoch(launch) & 1;
        mma_op_source::run<shape>(op, &tiles, memory);
    }

    static MMA_MEMBER void communicate(const plan *p, const struct gpu_launch *launch)
    {
        struct mk_cta cta;
        cta_begin(&cta, launch, gpu_cta_of_block(&launch->split, blockIdx.x), blockDim.x);
        ag_gemm_communicate<scaled>(p, &cta);
    }
};
