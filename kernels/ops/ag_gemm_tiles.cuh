/* AllGather+GEMM's tiles, as the tile sources of both engines have them. */
#pragma once

#include "kernels/op.h"

#include "kernels/column_scales.cuh"
#include "kernels/cta.cuh"
#include "kernels/epilogue.cuh"

#include "core/roles/ag_gemm.h"

GPU_OPERATOR(ag_gemm)
GPU_OPERATOR(ag_gemm_fp8)      /* of plans of FP8 */
GPU_OPERATOR(ag_gemm_bf16_mma) /* of plans for engine mma */
GPU_OPERATOR(ag_gemm_fp8_mma)
GPU_OPERATOR(ag_gemm_columns_fp8) /* of plans of FP8 whose B has a scale for each column */
GPU_OPERATOR(ag_gemm_columns_fp8_mma)
GPU_OPERATOR(ag_gemm_fp16) /* of plans of fp16 */
GPU_OPERATOR(ag_gemm_fp16_mma)

/* Where the scales of FP8's blocks lie, from a tile's row and its first column on: a + block *
 * a_pitch + row, of `rows` rows, and b + column / 128 * b_pitch + block. */
struct ag_gemm_tile_scales {
    const float *a, *b;
    uint32_t a_pitch, b_pitch, rows;
};

/* The tiles of this CTA (or cluster), on what the engine's tracked sources begin with. `cta` is the
 * producer thread's alone. scaled: A and B are FP8. */
template <class tracked, bool scaled> struct ag_gemm_tiles : tracked {
    const struct ag_gemm_plan *plan;
    uint32_t from, step;
    struct mk_cta cta;
    int ending;

    __device__ __forceinline__ void open()
    {
        cta_begin(&cta, this->launch, blockIdx.x, 1);
        ending = 0;
    }

    __device__ __forceinline__ void close()
    {
        cta_end(&cta);
    }

    __device__ __forceinline__ bool next(uint32_t i, struct mk_tile *tile) const
    {
        uint32_t t = from + i * step;
        if (t >= plan->tiles)
            return false;
        ag_gemm_tile(plan, t, tile);
        return true;
    }

    __device__ __forceinline__ void before(uint32_t, const struct mk_tile *tile, uint32_t slice)
    {
        if (!ending)
            ending = ag_gemm_before(plan, &cta, scaled, tile, slice);
    }

    /* row: of the tile. Of the buffer that launch number `epoch` gathers to. */
    __device__ __forceinline__ struct ag_gemm_tile_scales
    tile_scales(const struct mk_tile *tile, uint32_t row, uint64_t epoch) const
    {
        const struct gpu_launch *launch = this->launch;
        const bool own = tile->a != MK_SPACE_HEAP, joint = plan->shots == 1;
        const uint32_t chunk = own ? 0 : ag_gemm_chunk_of(plan, tile->row),
                       all = joint ? plan->m
                             : own ? plan->shard_rows
                                   : ag_gemm_chunk_rows(plan, chunk);
        uint32_t r = tile->row + row - chunk * plan->chunk_rows;
        r = r < all ? r : all - 1; /* what lies outside C has the last row's, and is dropped */
        const char *a = own ? launch->arguments[MK_SPACE_ARG3]
                            : launch->heap + ag_gemm_scales_at(plan, tile->slab, chunk, epoch);
        const uint32_t b_pitch = (plan->blocks + 3) / 4 * 4;
        return {(const float *)a + r,
                (const float *)launch->arguments[MK_SPACE_ARG4] +
                    (uint64_t)(tile->col / 128) * b_pitch,
                ((own ? plan->shard_rows : all) + 3) / 4 * 4, b_pitch, all - r};
    }

    /* Where columns are gated: from a gate's to what it lets through; else 0. */
    __device__ __forceinline__ uint32_t up() const
    {
        return plan->up;
    }

    /* Of FP8: floats, from the scales of a tile's first columns to those of the second of its two
     * runs, each of which is of one block; 0 where columns are not gated. */
    __device__ __forceinline__ uint32_t to_second(const struct mk_tile *tile) const
    {
        return ((tile->col + plan->up) / 128 - tile->col / 128) * ((plan->blocks + 3) / 4 * 4);
    }

    /* Of FP8 whose B has a scale for each column. */
    __device__ __forceinline__ struct column_scales columns(const struct mk_tile *tile) const
    {
        const struct ag_gemm_plan *p = MK_FRESH(plan);
        return {(const float *)MK_FRESH(this->launch)->arguments[MK_SPACE_ARG4] + tile->col,
                p->n - tile->col, p->up};
    }

    /* The sums of so many blocks of rows; column: of the tile, that they begin with. gates: a tile's
     * columns of B may be two runs, of which a thread has the same columns. apart: as
     * kernels/epilogue.cuh has it. */
    template <int element, bool gates, int apart, int blocks, int count>
    __device__ __forceinline__ void
    after_products(const struct mk_tile *tile, float (&sum)[blocks][count], uint32_t column) const
    {
        const struct ag_gemm_plan *p = MK_FRESH(plan);
        if (!p->epilogue)
            return;
        const uint16_t *bias =
            (const uint16_t *)MK_FRESH(this->launch)->arguments[p->bias_space] + tile->col;
#pragma unroll
        for (int m = 0; m < blocks; m++)
            epilogue_apply<element, gates, apart>(p->epilogue, bias, sum[m], column,
                                                  p->n - tile->col, p->up);
    }

    /* All lanes of a free warp, from 0 on: it pushes, where the plan has so many. */
    __device__ __forceinline__ void push(uint32_t auxiliary)
    {
        const struct mk_role_split *split = &plan->split;
        if (auxiliary >= split->intra_comm_warps)
            return;
        struct mk_cta other;
        cta_begin(&other, this->launch, (1 + auxiliary) * split->ctas[MK_COMPUTE] + blockIdx.x, 32);
        other.pace = plan->pace;
        ag_gemm_intra_comm(plan, &other, scaled);
        cta_end(&other);
    }
};

/* Runs the role of a thread block that does not compute, on the lanes of `cta`. */
template <bool scaled>
PTX_FN void ag_gemm_communicate(const struct ag_gemm_plan *p, struct mk_cta *cta)
{
    if (cta->role == MK_INTRA_COMM)
        ag_gemm_intra_comm(p, cta, scaled);
    else if (cta->role == MK_INTER_SEND && !cta_begin_commands(cta))
        ag_gemm_inter_send(p, cta, scaled);
    cta_end(cta);
}
