/* AllGather+GEMM's tiles, and where its matrices lie: kernels of bf16, fp16 and FP8 on either
 * engine (kernels/engine/engine.cuh), which the file of a kernel includes. CTAs take roles by their
 * number. */
#pragma once

#include "kernels/host/op.h"

#include "kernels/cta/cta.cuh"
#include "kernels/engine/engine.cuh"
#include "kernels/engine/epilogue.cuh"

#include "core/roles/ag_gemm.h"

/* Where A lies, by epoch & 1 for what has arrived. A kernel parameter. */
template <class engine> struct ag_gemm_views {
    typename engine::a_view own, gathered[2];
};

/* The tiles of this CTA (or cluster). `cta` is the producer thread's alone. scaled: A and B are
 * FP8; by_columns: B then has a scale for each column. */
template <class engine, class tracked, bool scaled_, bool by_columns_>
struct ag_gemm_source : tracked {
    static constexpr bool scaled = scaled_, by_columns = by_columns_, gates = true, waits = true,
                          b_ahead = true, halves = !scaled; /* no registers */

    const struct ag_gemm_plan *plan;
    const struct ag_gemm_views<engine> *views;
    uint32_t from, step;
    uint32_t
        odd; /* of the launch's number: the producer's, and of consumers that load scales of A */
    struct mk_cta cta;
    int ending;

    ENGINE_MEMBER void open(uint32_t thread)
    {
        if (!engine::one_producer)
            odd = cta_epoch(this->launch) & 1;
        if (thread == 0) {
            cta_begin(&cta, this->launch, blockIdx.x, 1);
            ending = 0;
        }
        if (engine::one_producer)
            odd = cta.epoch & 1;
    }

    ENGINE_MEMBER void close()
    {
        cta_end(&cta);
    }

    ENGINE_MEMBER bool next(uint32_t i, struct mk_tile *tile) const
    {
        uint32_t t = from + i * step;
        if (t >= plan->tiles)
            return false;
        ag_gemm_tile(plan, t, tile);
        return true;
    }

    ENGINE_MEMBER bool first(struct mk_tile *tile) const
    {
        return next(0, tile);
    }

    ENGINE_MEMBER void before(uint32_t, const struct mk_tile *tile, uint32_t slice)
    {
        if (!ending)
            ending = ag_gemm_before(plan, &cta, scaled, tile, slice);
    }

    ENGINE_MEMBER const typename engine::a_view *a(const struct mk_tile *tile) const
    {
        return tile->a == MK_SPACE_HEAP ? &views->gathered[odd] : &views->own;
    }

    /* Consumers that load no scale of A take of its address only the part that is the same in both
     * buffers. */
    ENGINE_MEMBER struct engine_scales scales(uint32_t, const struct mk_tile *tile,
                                              uint32_t row) const
    {
        if (!scaled)
            return {};
        const struct gpu_launch *launch = this->launch;
        const bool own = tile->a != MK_SPACE_HEAP, joint = plan->shots == 1;
        const uint32_t chunk = own ? 0 : ag_gemm_chunk_of(plan, tile->row),
                       all = joint ? plan->m
                             : own ? plan->shard_rows
                                   : ag_gemm_chunk_rows(plan, chunk);
        uint32_t r = tile->row + row - chunk * plan->chunk_rows;
        r = r < all ? r : all - 1; /* what lies outside C has the last row's, and is dropped */
        const char *a = own ? launch->arguments[MK_SPACE_ARG3]
                            : launch->heap + ag_gemm_scales_at(plan, tile->slab, chunk, odd);
        const uint32_t b_pitch = (plan->blocks + 3) / 4 * 4;
        return {(const float *)a + r,
                (const float *)launch->arguments[MK_SPACE_ARG4] +
                    (uint64_t)(tile->col / 128) * b_pitch,
                ((own ? plan->shard_rows : all) + 3) / 4 * 4,
                b_pitch,
                all - r,
                plan->n - tile->col,
                plan->blocks};
    }

    /* Where columns are gated: from a gate's to what it lets through; else 0. */
    ENGINE_MEMBER uint32_t up() const
    {
        return plan->up;
    }

    /* 0 where columns are not gated. Each run is of one block. */
    ENGINE_MEMBER uint32_t to_second(const struct mk_tile *tile) const
    {
        return ((tile->col + plan->up) / 128 - tile->col / 128) * ((plan->blocks + 3) / 4 * 4);
    }

    ENGINE_MEMBER struct column_scales columns(uint32_t, const struct mk_tile *tile) const
    {
        const struct ag_gemm_plan *p = MK_FRESH(plan);
        return {(const float *)MK_FRESH(this->launch)->arguments[MK_SPACE_ARG4] + tile->col,
                p->n - tile->col, p->up};
    }

    template <class shape> ENGINE_MEMBER uint32_t boxes(const struct mk_tile *) const
    {
        return shape::tile_n / (plan->up ? 128 : 64);
    }

    template <class shape>
    ENGINE_MEMBER void epilogue(const struct mk_tile *tile,
                                float (&sum)[shape::blocks][shape::sums], uint32_t column) const
    {
        const struct ag_gemm_plan *p = MK_FRESH(plan);
        if (!p->epilogue)
            return;
        const uint16_t *bias =
            (const uint16_t *)MK_FRESH(this->launch)->arguments[p->bias_space] + tile->col;
#pragma unroll
        for (int m = 0; m < shape::blocks; m++)
            epilogue_apply<shape::element, engine::template gates<shape, ag_gemm_source>,
                           shape::halved ? shape::tile_n / 2 : 0>(p->epilogue, bias, sum[m], column,
                                                                  p->n - tile->col, p->up);
    }

    ENGINE_MEMBER struct engine_place place(uint32_t, const struct mk_tile *tile,
                                            uint32_t row) const
    {
        return {(int32_t)tile->col, (int32_t)(tile->row + row), (int32_t)tile->slab};
    }

    /* It pushes, where the plan has so many. */
    ENGINE_MEMBER void auxiliary_warp(uint32_t auxiliary)
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

/* For kernels/hopper/gemm_launch.cuh, kernels/mma/launch.cuh, and what these launch of FP8 and
 * fp16. */
template <class engine, bool scaled = false, bool by_columns = false> struct ag_gemm_on {
    typedef struct ag_gemm_plan plan;
    typedef struct ag_gemm_views<engine> views;
    template <class shape>
    using source =
        ag_gemm_source<engine, typename engine::template tracked<shape>, scaled, by_columns>;
    static constexpr bool fp24 = false, splits = false, middle = true, several_shapes = false,
                          of_all_blocks = false, tree = false, gates = true;
    static constexpr uint32_t shared_bytes = GPU_COPY_SHARED_BYTES;

    static struct engine_form form(const plan *p)
    {
        return {p->tile_m, p->tile_n, p->cluster, MK_BF16};
    }

    template <class shape>
    static int describe(views *v, typename engine::operands *op, const plan *p,
                        const struct gpu_launch *l)
    {
        const uint32_t world = mk_world(&p->topo);
        const bool joint = p->shots == 1; /* all shards are one matrix */
        const uint64_t block = joint ? p->m : p->shard_rows, blocks = joint ? 1 : world;
        int err = engine::template describe_a<shape, !scaled>(
            &v->own, op, l->arguments[MK_SPACE_ARG0], p->row_bytes, p->shard_rows);
        for (int i = 0; i < 2 && !err && world > 1; i++)
            err = engine::template describe_a<shape, !scaled>(
                &v->gathered[i], op, l->heap + p->gathered[i], p->row_bytes, block, blocks,
                p->shard_pitch);
        if (!err)
            err = engine::template describe_b<shape>(&op->b, op, l->arguments[MK_SPACE_ARG1],
                                                     p->n + p->up, p->row_bytes, 1, p->up ? 2 : 1);
        if (!err)
            err = engine::template describe_c<shape>(&op->c, op, l->arguments[MK_SPACE_ARG2],
                                                     p->n * 2ull, p->n, block, blocks);
        engine::template describe_k<shape>(op, p->row_bytes,
                                           joint ? (uint64_t)p->row_bytes : p->slice_bytes);
        return err;
    }

    template <class shape>
    static ENGINE_MEMBER void compute(const plan *p, const struct gpu_launch *launch,
                                      const typename engine::operands *op, const views *v,
                                      uint8_t *memory)
    {
        source<shape> tiles;
        tiles.plan = p;
        tiles.launch = launch;
        tiles.views = v;
        tiles.from = blockIdx.x / shape::cluster;
        tiles.step = launch->split.ctas[MK_COMPUTE] / shape::cluster;
        if (engine::one_producer)
            tiles.odd = 0;
        else if (scaled)
            tiles.odd = cta_epoch(launch) & 1;
        tiles.open_track();
        engine::template compute<shape>(op, &tiles, memory);
        tiles.close_track();
    }

    /* A thread block that does not compute. */
    template <class shape>
    static ENGINE_MEMBER void communicate(const plan *p, const struct gpu_launch *launch,
                                          uint8_t *memory)
    {
        struct mk_cta cta;
        if (!engine::begin_copies(&cta, launch, memory))
            return;
        if (cta.role == MK_INTRA_COMM)
            ag_gemm_intra_comm(p, &cta, scaled);
        else if (cta.role == MK_INTER_SEND && !cta_begin_commands(&cta))
            ag_gemm_inter_send(p, &cta, scaled);
        cta_end(&cta);
    }
};
