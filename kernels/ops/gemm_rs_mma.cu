/* GEMM+ReduceScatter in two shots on engine mma, for every GPU of compute capability 8.0 and up:
 * the schedule of core/roles/gemm_rs.h, as kernels/ops/gemm_reduce.cuh runs it on the other engine,
 * with the same sums in the same places of memory. What is simpler here: consumers store what a
 * peer adds in that peer's memory themselves, and load what they add when it has come, so no tile
 * passes an outbox, and the tensor cores wait for NVLink. */
#include "kernels/op.h"

#include "kernels/cta.cuh"
#include "kernels/fragments.cuh"
#include "kernels/mma/launch.cuh"

#include "core/roles/gemm_rs.h"

GPU_OPERATOR(gemm_rs_mma)

struct gemm_rs_matrices {
    struct mma_matrix a;
};

/* Of each consumer warpgroup. In shared memory: consumers have no registers for it, and what all
 * need to know of a tile takes some forty integer divisions, which one thread does. */
struct gemm_rs_half {
    struct mk_cta cta; /* the first thread's, which waits and announces */
    int ending;
    struct mk_tile tile;
};
PTX_SHARED(struct gemm_rs_half, gemm_rs_halves, 2);

/* number: of sums that go from rank to rank, enum mk_dtype. */
template <int number> struct gemm_rs_mma_source : mma_op_source {
    static constexpr bool announces = true;

    const struct gemm_rs_plan *plan;
    const struct gemm_rs_matrices *matrices;
    uint32_t halves; /* warpgroups that multiply */

    MMA_MEMBER uint32_t number_of(uint32_t i) const
    {
        return blockIdx.x + i * MK_FRESH(plan)->batch;
    }

    /* Consumers are told only whether there is one. */
    MMA_MEMBER bool next(uint32_t i, struct mk_tile *tile) const
    {
        const struct gemm_rs_plan *p = MK_FRESH(plan);
        if (number_of(i) >= p->tiles)
            return false;
        if (threadIdx.x >= halves * 128) { /* rows as A has them, which ends with row M */
            gemm_rs_tile(p, number_of(i), tile);
            tile->row += tile->a_slab * p->shard_rows;
            tile->a_slab = 0;
        }
        return true;
    }

    MMA_MEMBER void begin(uint32_t i, const struct mk_tile *tile)
    {
        gemm_rs_tile(MK_FRESH(plan), number_of(i), &gemm_rs_halves[threadIdx.x / 128].tile);
        mma_op_source::begin(i, tile);
    }

    MMA_MEMBER const struct mma_matrix *a(const struct mk_tile *) const
    {
        return &matrices->a;
    }

    MMA_MEMBER struct mma_place place(uint32_t, const struct mk_tile *, uint32_t row) const
    {
        const struct mk_tile *tile = &gemm_rs_halves[threadIdx.x / 128].tile;
        return {(int32_t)tile->col, (int32_t)(tile->row + row), 0};
    }

    /* Adds what others have of the tile, once it is here. */
    template <class shape>
    MMA_MEMBER void add(float (&sum)[shape::blocks][shape::sums], struct gemm_rs_half *mine,
                        uint32_t half, uint32_t runs, uint64_t epoch)
    {
        const struct gemm_rs_plan *p = MK_FRESH(plan);
        if (threadIdx.x % 128 == 0 && !mine->ending)
            mine->ending = gemm_rs_before(p, &mine->cta, &mine->tile);
        ptx_bar_sync(1 + half, 128); /* what it has acquired, all load */
#pragma unroll 1
        for (uint32_t level = 0; level < GEMM_RS_LEVELS; level++) {
            const struct gemm_rs_terms terms = gemm_rs_level(p, &mine->tile, level, epoch);
#pragma unroll
            for (int m = 0; m < shape::blocks; m++) {
                const uint32_t row = shape::row(threadIdx.x / 32, m);
                if (row < mine->tile.rows)
                    fragments_add_behind<number, number == MK_FP24 ? 1 : 4>(
                        sum[m], launch->heap + terms.source + fragment_offset<number>(row, runs),
                        p->slab_pitch, terms.count, runs);
            }
        }
    }

    template <class shape>
    MMA_MEMBER bool finish(uint32_t, float (&sum)[shape::blocks][shape::sums], uint32_t half)
    {
        const struct gemm_rs_plan *p = MK_FRESH(plan);
        struct gemm_rs_half *mine = &gemm_rs_halves[half];
        ptx_bar_sync(1 + half, 128); /* the tile is described */
        const enum gemm_rs_kind kind = gemm_rs_kind_of(p, &mine->tile);
        const uint32_t runs = gemm_rs_grained_cols(p, mine->tile.cols) / p->grain_cols;
        const uint64_t epoch = cta_epoch(launch);
        static_assert(shape::warp_columns == 1, "a warp has whole rows, as fragments do");
        if (kind != GEMM_RS_PARTIAL)
            add<shape>(sum, mine, half, runs, epoch);
        if (kind == GEMM_RS_OWN)
            return false;
        char *const to = (kind == GEMM_RS_SUM ? launch->heap : launch->peers[mine->tile.c_local]) +
                         gemm_rs_tile_offset(p, &mine->tile, epoch);
#pragma unroll
        for (int m = 0; m < shape::blocks; m++) {
            const uint32_t row = shape::row(threadIdx.x / 32, m);
            if (row < mine->tile.rows)
                fragments_store<number>(to + fragment_offset<number>(row, runs), sum[m], runs);
        }
        return true;
    }

    MMA_MEMBER void after(uint32_t i, const struct mk_tile *, uint32_t half)
    {
        struct gemm_rs_half *mine = &gemm_rs_halves[half];
        gemm_rs_after(MK_FRESH(plan), &mine->cta, &mine->tile, MK_TILE_PARTS / halves);
        mma_op_source::after(i, &mine->tile, half);
    }
};

/* For kernels/mma/launch.cuh. */
template <int number> struct gemm_rs_on_mma {
    typedef struct gemm_rs_plan plan;
    typedef struct gemm_rs_mma_source<number> source;
    typedef struct gemm_rs_matrices matrices;

    template <class shape>
    static int describe(matrices *m, struct mma_operands *op, const plan *p,
                        const struct gpu_launch *l)
    {
        char *const a = (char *)l->arguments[MK_SPACE_ARG0];
        char *const b = (char *)l->arguments[MK_SPACE_ARG1];
        char *const c = (char *)l->arguments[MK_SPACE_ARG2];
        const uint64_t pitch = p->k * 2ull, c_pitch = p->n * 2ull;
        m->a = {a, pitch, 0, p->m, p->k};
        op->b = shape::b_kn ? mma_matrix{b, c_pitch, 0, p->k, p->n}
                            : mma_matrix{b, pitch, 0, p->n, p->k};
        op->c = {c, c_pitch, 0, gemm_rs_rows(p, p->topo.rank, 0, p->shard_rows), p->n};
        op->stages_of_k = op->stages_of_slice = (uint32_t)mk_ceil_div(p->k, shape::tile_k);
        return ((uintptr_t)a | (uintptr_t)b | (uintptr_t)c) % 16 ? -EINVAL : 0;
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
        tiles.halves = shape::warps / 4;
        if (threadIdx.x == 0 || threadIdx.x == 128)
            gemm_rs_halves[threadIdx.x / 128].ending = 0;
        if (threadIdx.x == 0)
            cta_begin(&gemm_rs_halves[0].cta, launch, blockIdx.x, 1);
        else if (threadIdx.x == 128)
            cta_identify(&gemm_rs_halves[1].cta, launch, blockIdx.x, 1);
        mma_op_source::run<shape>(op, &tiles, memory);
        if (threadIdx.x == 0)
            cta_end(&gemm_rs_halves[0].cta);
    }

    static MMA_MEMBER void communicate(const plan *p, const struct gpu_launch *launch)
    {
        struct mk_cta cta;
        cta_begin(&cta, launch, gpu_cta_of_block(&launch->split, blockIdx.x), blockDim.x);
        if (cta.role == MK_INTER_SEND && !cta_begin_commands(&cta))
            gemm_rs_inter_send(p, &cta);
        cta_end(&cta);
    }
};

int gemm_rs_mma_prepare(const struct mk_plan *plan, char *error, size_t error_size)
{
    const struct mk_problem *q = &plan->problem;
    return gemm_rs_plan_of(plan)->number == MK_FP24
               ? mma_op_prepare<gemm_rs_on_mma<MK_FP24>>(q, error, error_size)
               : mma_op_prepare<gemm_rs_on_mma<MK_BF16>>(q, error, error_size);
}

int gemm_rs_mma_launch(const struct mk_plan *plan, const struct gpu_launch *launch,
                       cudaStream_t stream)
{
    const struct gemm_rs_plan *p = gemm_rs_plan_of(plan);
    return p->number == MK_FP24
               ? mma_op_launch<gemm_rs_on_mma<MK_FP24>>(p, &plan->problem, launch, stream)
               : mma_op_launch<gemm_rs_on_mma<MK_BF16>>(p, &plan->problem, launch, stream);
}
