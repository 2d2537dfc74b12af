/* AllGather+GEMM's tiles, and where its matrices lie, of kernels of bf16, fp16 and FP8. */
#pragma once

#include "kernels/ops/ag_gemm_tiles.cuh"

#include "kernels/hopper/gemm_launch.cuh"
#include "kernels/ops/gemm_track.cuh"

#include <type_traits>

/* Where A lies, by epoch & 1 for what has arrived. A kernel parameter. */
struct ag_gemm_maps {
    struct gemm_a own, gathered[2];
};

template <bool scaled, class tracked, bool by_columns_>
struct ag_gemm_source : ag_gemm_tiles<tracked, scaled> {
    static constexpr bool b_ahead = true, halves = !scaled, /* no registers */
        gates = true, by_columns = by_columns_;

    typedef ag_gemm_tiles<tracked, scaled> tiles;
    using tiles::cta;
    using tiles::launch;
    using tiles::plan;

    const struct ag_gemm_maps *maps;

    GEMM_MEMBER bool first(struct mk_tile *tile) const
    {
        return tiles::next(0, tile);
    }

    GEMM_MEMBER const struct gemm_a *a(const struct mk_tile *tile) const
    {
        return tile->a == MK_SPACE_HEAP ? &maps->gathered[cta.epoch & 1] : &maps->own;
    }

    /* Consumers, who load no scale of A, take of its address only the part that is the same in both
     * buffers. */
    GEMM_MEMBER struct gemm_scales scales(uint32_t, const struct mk_tile *tile, uint32_t row) const
    {
        if (!scaled)
            return {};
        const struct ag_gemm_tile_scales s = tiles::tile_scales(tile, row, cta.epoch);
        return {s.a, s.b, s.a_pitch, s.b_pitch, s.rows, plan->n - tile->col, plan->blocks};
    }

    GEMM_MEMBER struct column_scales columns(uint32_t, const struct mk_tile *tile) const
    {
        return tiles::columns(tile);
    }

    template <class shape> GEMM_MEMBER uint32_t boxes(const struct mk_tile *) const
    {
        return shape::tile_n / (plan->up ? 128 : 64);
    }

    template <class shape>
    GEMM_MEMBER void epilogue(const struct mk_tile *tile,
                              float (&sum)[shape::blocks][shape::tile_n / 2]) const
    {
        /* of FP8 a run is of one block of scales: 128 columns */
        tiles::template after_products<shape::element, !scaled || (shape::tile_n > 128), 0>(tile,
                                                                                            sum, 0);
    }

    GEMM_MEMBER struct gemm_place place(uint32_t, const struct mk_tile *tile, uint32_t row) const
    {
        return {(int32_t)tile->col, (int32_t)(tile->row + row), (int32_t)tile->slab};
    }

    GEMM_MEMBER void auxiliary_warp(uint32_t warp)
    {
        tiles::push(warp - 1);
    }
};

/* For kernels/hopper/gemm_launch.cuh and gemm_launch_fp8.cuh. by_columns: FP8 whose B has a scale for
 * each column. */
template <bool scaled, bool by_columns = false> struct ag_gemm_on_gpu {
    typedef struct ag_gemm_plan plan;
    typedef struct ag_gemm_maps maps;
    static constexpr bool fp24 = false, splits = false, middle = true;
    static constexpr uint32_t shared_bytes = GPU_COPY_SHARED_BYTES;

    static struct gemm_form form(const plan *p)
    {
        return {p->tile_m, p->tile_n, p->cluster, MK_BF16};
    }

    template <class shape>
    static int describe(maps *m, struct gemm_operands *op, const plan *p,
                        const struct gpu_launch *l)
    {
        const uint64_t rows = p->shard_rows, world = mk_world(&p->topo), n = p->n, k = p->k;
        const bool joint = p->shots == 1; /* all shards are one matrix */
        const uint64_t block = joint ? p->m : rows, blocks = joint ? 1 : world;
        const uint64_t c[3] = {n, block, blocks};
        const uint64_t element = shape::half ? 2 : 1;
        const uint32_t c_box[2] = {64, 64};
        int err = gemm_describe_a<shape, !scaled>(&m->own, op, l->arguments[MK_SPACE_ARG0], k, rows,
                                                  1, rows * k, 0);
        for (int i = 0; i < 2 && !err && world > 1; i++)
            err = gemm_describe_a<shape, !scaled>(&m->gathered[i], op, l->heap + p->gathered[i], k,
                                                  block, blocks,
                                                  joint ? block * k : p->shard_pitch / element, 0);
        if (!err)
            err = gemm_describe_groups<shape>(&op->b, l->arguments[MK_SPACE_ARG1], n + p->up, k, 1,
                                              shape::tile_n / (p->up ? 2 : shape::cluster));
        if (!err)
            err = tensormap_bf16(&op->c, l->arguments[MK_SPACE_ARG2], c, n, block * n, c_box);
        op->stages_of_k = (uint32_t)mk_ceil_div(k, shape::stage_k);
        op->stages_of_slice = joint
                                  ? op->stages_of_k
                                  : (uint32_t)mk_ceil_div(p->slice_bytes, shape::stage_k * element);
        return err;
    }

    template <class shape>
    static GEMM_MEMBER void compute(const plan *p, const struct gpu_launch *launch,
                                    const struct gemm_operands *op, const maps *m, uint8_t *memory)
    {
        typedef std::conditional_t<shape::tight, tight_source<shape::track_offset>, tracked_source>
            tracked;
        struct ag_gemm_source<scaled, tracked, by_columns> source;
        source.cta.epoch = 0;
        source.plan = p;
        source.launch = launch;
        source.maps = m;
        source.from = blockIdx.x / shape::cluster;
        source.step = launch->split.ctas[MK_COMPUTE] / shape::cluster;
        source.open_track();
        gemm_compute<shape>(op, &source, memory);
        source.close_track();
    }

    static constexpr bool of_all_blocks = false, several_shapes = false;

    /* One thread, which copies by TMA. */
    template <class shape>
    static GEMM_MEMBER void communicate(const plan *p, const struct gpu_launch *launch,
                                        uint8_t *memory)
    {
        struct mk_cta cta;
        if (threadIdx.x != 0)
            return;
        cta_begin(&cta, launch, gpu_cta_of_block(&launch->split, blockIdx.x), 1);
        cta_begin_copies(&cta, ptx_shared(memory));
        ag_gemm_communicate<scaled>(p, &cta);
    }
};
