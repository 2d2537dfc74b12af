/* AllGather+GEMM: C = gather(A) * B in one launch. CTAs take roles by their number: the compute
 * role is the GEMM engine over the schedule's tile source, the others run their part of
 * core/roles/ag_gemm.h on one thread. Where there are one, two or three times as many intra_comm as
 * compute CTAs, warps that the engine leaves free run that role, so that every SM computes. */
#include "kernels/op.h"

#include "kernels/cta.cuh"
#include "kernels/hopper/gemm_launch.cuh"
#include "kernels/ops/gemm_track.cuh"

#include "core/roles/ag_gemm.h"

GPU_OPERATOR(ag_gemm)

/* Where A lies, by epoch & 1 for what has arrived. A kernel parameter. */
struct ag_gemm_maps {
    CUtensorMap own, gathered[2];
};

/* The tiles of this CTA (or cluster). `cta` is the producer thread's alone. */
struct ag_gemm_source : tracked_source {
    static constexpr bool b_ahead = true;

    const struct ag_gemm_plan *plan;
    const struct ag_gemm_maps *maps;
    uint32_t from, step;
    struct mk_cta cta;
    int ending;

    GEMM_MEMBER void open()
    {
        cta_begin(&cta, launch, blockIdx.x, 1);
        ending = 0;
    }

    GEMM_MEMBER void close()
    {
        cta_end(&cta);
    }

    GEMM_MEMBER bool next(uint32_t i, struct mk_tile *tile) const
    {
        uint32_t t = from + i * step;
        if (t >= plan->tiles)
            return false;
        ag_gemm_tile(plan, t, tile);
        return true;
    }

    GEMM_MEMBER bool first(struct mk_tile *tile) const
    {
        return next(0, tile);
    }

    GEMM_MEMBER const CUtensorMap *a(const struct mk_tile *tile) const
    {
        return tile->a == MK_SPACE_HEAP ? &maps->gathered[cta.epoch & 1] : &maps->own;
    }

    GEMM_MEMBER void before(uint32_t, const struct mk_tile *tile, uint32_t slice)
    {
        if (!ending)
            ending = ag_gemm_before(plan, &cta, tile, slice);
    }

    GEMM_MEMBER struct gemm_place place(uint32_t, const struct mk_tile *tile, uint32_t row) const
    {
        return {(int32_t)tile->col, (int32_t)(tile->row + row), (int32_t)tile->slab};
    }

    GEMM_MEMBER void auxiliary_warp(uint32_t warp)
    {
        const struct mk_role_split *split = &plan->split;
        uint32_t auxiliary = warp - 1;
        if (auxiliary >= mk_role_coresident(split, MK_INTRA_COMM))
            return;
        struct mk_cta other;
        cta_begin(&other, launch, (1 + auxiliary) * split->ctas[MK_COMPUTE] + blockIdx.x, 32);
        other.pace = plan->pace;
        ag_gemm_intra_comm(plan, &other, 0);
        cta_end(&other);
    }
};

/* For kernels/hopper/gemm_launch.cuh. */
struct ag_gemm_on_gpu {
    typedef struct ag_gemm_plan plan;
    typedef struct ag_gemm_maps maps;
    static constexpr bool fp24 = false;
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
        const uint64_t own[3] = {k, rows, 1}, all[3] = {k, block, blocks},
                       c[3] = {n, block, blocks};
        const uint32_t a_box[2] = {GEMM_TILE_K, gemm_a_rows<shape>(block)}, c_box[2] = {64, 64};
        int err = tensormap_bf16(&m->own, l->arguments[MK_SPACE_ARG0], own, k, rows * k, a_box);
        for (int i = 0; i < 2 && !err && world > 1; i++)
            err = tensormap_bf16(&m->gathered[i], l->heap + p->gathered[i], all, k,
                                 joint ? block * k : p->shard_pitch / 2, a_box);
        if (!err)
            err = gemm_describe_b<shape>(&op->b, l->arguments[MK_SPACE_ARG1], n, k);
        if (!err)
            err = tensormap_bf16(&op->c, l->arguments[MK_SPACE_ARG2], c, n, block * n, c_box);
        op->stages_of_k = (uint32_t)mk_ceil_div(k, shape::stage_k);
        op->stages_of_slice =
            joint ? op->stages_of_k
                  : (uint32_t)mk_ceil_div(p->slice_bytes, (uint64_t)shape::stage_k * 2);
        op->a_rows = a_box[1];
        return err;
    }

    template <class shape>
    static GEMM_MEMBER void compute(const plan *p, const struct gpu_launch *launch,
                                    const struct gemm_operands *op, const maps *m, uint8_t *memory)
    {
        struct ag_gemm_source source;
        source.plan = p;
        source.launch = launch;
        source.maps = m;
        source.from = blockIdx.x / shape::cluster;
        source.step = launch->split.ctas[MK_COMPUTE] / shape::cluster;
        tile_track_open(&source.track, launch);
        gemm_compute<shape>(op, &source, memory);
        tile_track_close(&source.track, launch);
    }

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
        if (cta.role == MK_INTRA_COMM)
            ag_gemm_intra_comm(p, &cta, 0);
        else if (cta.role == MK_INTER_SEND && !cta_begin_commands(&cta))
            ag_gemm_inter_send(p, &cta);
        cta_end(&cta);
    }
};

int ag_gemm_prepare(const struct mk_plan *plan, char *error, size_t error_size)
{
    return gemm_op_prepare<ag_gemm_on_gpu>(ag_gemm_plan_of(plan), &plan->problem, error,
                                           error_size);
}

int ag_gemm_launch(const struct mk_plan *plan, const struct gpu_launch *launch, cudaStream_t stream)
{
    return gemm_op_launch<ag_gemm_on_gpu>(ag_gemm_plan_of(plan), plan->problem.b_transposed, launch,
                                          stream);
}
