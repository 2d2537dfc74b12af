/* GEMM+ReduceScatter and GEMM+AllReduce on a GPU, what the kernels of both engines have alike
 * (kernels/sums/gemm_reduce.cuh, gemm_reduce_mma.cuh): where matrices lie, and what differs between
 * the two operators: a struct `op` with
 *
 *   typedef ... plan
 *       The op's plan.
 *   static constexpr bool gathers
 *       Own tiles go to others, too.
 *   static constexpr bool shares
 *       Ranks may share a tile's columns (core/roles/gemm_ar_shared.h).
 *   static constexpr bool tree
 *       Sums are those of core/cta/sum_tree.h, of plans that have `blocks`.
 *   static constexpr bool scaled
 *       A and B are e4m3, with scales of blocks.
 *   static constexpr bool by_columns
 *       Of these, B has a scale for each column.
 *   static constexpr bool shared_code
 *       Of engine wgmma: a kernel has all tiles of a layout, and roles that warps beside the engine and blocks of their own run, once
 *       (CTA_LANES_VARY is 1). Where nothing is gathered they have no role in common; of a
 *       tree and of FP8 registers are too few.
 *   static constexpr bool cuts
 *       Of engine wgmma: the plan's last tiles are cut in slices of K (gemm_cut.cuh).
 *   static constexpr int element
 *       C is MK_BF16 or MK_FP16, and so are partial sums that are rounded.
 *   const struct gemm_rs_plan *tiles(const plan *)
 *       The part of it that is gemm_rs's.
 *   void after(const plan *, struct mk_cta *, const struct mk_tile *, uint32_t first,
 *              uint32_t rows, uint32_t parts)
 *       On the GPU: rows [first, first + rows), `parts` of MK_TILE_PARTS of the tile, are stored.
 *   bool spreads(const plan *), uint64_t spread_at(const plan *, const struct mk_tile *, uint32_t row)
 *       On the GPU: whether C of every rank is in its heap, and where a row of an own tile begins there.
 *   uint64_t shared_at(const plan *, const struct mk_tile *, uint32_t row), uint32_t shared_flag(const plan *, uint32_t tile)
 *       Of tiles whose columns ranks share: where a row's sum is gathered in every rank's heap, and which flag says that
 *       this rank's columns are there.
 *   void intra_comm(const plan *, struct mk_cta *)
 *   void inter_send(const plan *, struct mk_cta *)
 *       On the GPU: run that role. */
#pragma once

#include "kernels/host/op.h"

#include "kernels/cta/cta.cuh"
#include "kernels/cta/cta_norm.cuh"
#include "kernels/engine/engine.cuh"
#include "kernels/engine/warp_roles.cuh"

#include "core/roles/gemm_ar.h"

#define REDUCE_MEMBER __device__ __forceinline__

/* Where the warp that describes tiles, and consumers, wait and arrive beside the engine's ring (struct warp_role). */
constexpr struct warp_meeting reduce_consumer_at[2] = {
    {MBAR_SET(MBAR_WORK) | MBAR_SET(MBAR_SENT), MBAR_SET(MBAR_WORK_READ) | MBAR_SET(MBAR_STORED)},
    {MBAR_SET(MBAR_WORK) | MBAR_SET(MBAR_SENT_SECOND),
     MBAR_SET(MBAR_WORK_READ) | MBAR_SET(MBAR_STORED_SECOND)}};
constexpr struct warp_role reduce_describer_role = {
    ENGINE_DESCRIBER, WARP_CHOSEN, 1, 0, {MBAR_SET(MBAR_WORK_READ), MBAR_SET(MBAR_WORK)}};

struct gemm_rs_roles {
    typedef struct gemm_rs_plan plan;
    static constexpr bool gathers = false, shares = false, tree = false, scaled = false,
                          by_columns = false, shared_code = false, cuts = false;
    static constexpr int element = MK_BF16;

    static __host__ REDUCE_MEMBER const struct gemm_rs_plan *tiles(const plan *p)
    {
        return p;
    }

    static REDUCE_MEMBER void after(const plan *p, struct mk_cta *cta, const struct mk_tile *tile,
                                    uint32_t, uint32_t, uint32_t parts)
    {
        gemm_rs_after(p, cta, tile, parts);
    }

    static REDUCE_MEMBER bool spreads(const plan *)
    {
        return false;
    }

    static REDUCE_MEMBER uint64_t spread_at(const plan *, const struct mk_tile *, uint32_t)
    {
        return 0;
    }

    static REDUCE_MEMBER void intra_comm(const plan *, struct mk_cta *)
    {
    }

    static REDUCE_MEMBER void inter_send(const plan *p, struct mk_cta *cta)
    {
        gemm_rs_inter_send(p, cta);
    }
};

struct gemm_ar_roles {
    typedef struct gemm_ar_plan plan;
    static constexpr bool gathers = true, shares = true, tree = false, scaled = false,
                          by_columns = false, shared_code = true, cuts = false;
    static constexpr int element = MK_BF16;

    static __host__ REDUCE_MEMBER const struct gemm_rs_plan *tiles(const plan *p)
    {
        return &p->rs;
    }

    static REDUCE_MEMBER void after(const plan *p, struct mk_cta *cta, const struct mk_tile *tile,
                                    uint32_t first, uint32_t rows, uint32_t parts)
    {
        gemm_ar_after(p, cta, tile, first, rows, parts, 0);
    }

    static REDUCE_MEMBER bool spreads(const plan *p)
    {
        return p->direct && p->rs.topo.gpus > 1;
    }

    static REDUCE_MEMBER uint64_t spread_at(const plan *p, const struct mk_tile *tile, uint32_t row)
    {
        return p->c_offset +
               (((uint64_t)tile->slab * p->rs.shard_rows + tile->row + row) * p->rs.n + tile->col) *
                   2;
    }

    static REDUCE_MEMBER uint64_t shared_at(const plan *p, const struct mk_tile *tile, uint32_t row)
    {
        return gemm_ar_shared_at(p, tile, row);
    }

    static REDUCE_MEMBER uint32_t shared_flag(const plan *p, uint32_t tile)
    {
        return gemm_ar_shared_flag(p, tile, p->rs.topo.rank);
    }

    static REDUCE_MEMBER void intra_comm(const plan *p, struct mk_cta *cta)
    {
        gemm_ar_intra_comm_of_rows(p, cta, 1);
    }

    static REDUCE_MEMBER void inter_send(const plan *p, struct mk_cta *cta)
    {
        gemm_ar_inter_send(p, cta);
    }
};

/* What a block without tiles does, or a warp of a kernel that has both in one place: all lanes, which have begun. */
template <class op> REDUCE_MEMBER void reduce_roles(const typename op::plan *p, struct mk_cta *cta)
{
    if (cta->role != MK_INTER_SEND)
        op::intra_comm(p, cta);
    else if (!cta_begin_commands(cta))
        op::inter_send(p, cta);
    cta_end(cta);
}

/* A block without tiles: all its threads, `lanes`. */
template <class op>
REDUCE_MEMBER void reduce_communicate(const typename op::plan *p, const struct gpu_launch *launch,
                                      uint32_t lanes)
{
    struct mk_cta cta;
    cta_begin(&cta, launch, gpu_cta_of_block(&launch->split, blockIdx.x), lanes);
    reduce_roles<op>(p, &cta);
}

/* What core/roles/gemm_rs.h has behind C, where the plan asks for it: all threads of a compute
 * block whose tiles are stored. The block's roles have ended when it has met: sending warps have
 * pushed from C, too. Then a row is a block's. */
template <class op>
REDUCE_MEMBER void reduce_norm(const typename op::plan *plan, const struct gpu_launch *launch)
{
    const struct gemm_rs_plan *p = op::tiles(plan);
    struct mk_cta own;
    if (!p->norm.columns || p->norm_inside)
        return;
    ptx_bulk_wait_all(); /* the thread's stores by TMA, of C among them */
    ptx_fence_async();
    __syncthreads();
    cta_identify(&own, launch, blockIdx.x, blockDim.x);
    gemm_rs_ended(p, &own);
    gemm_rs_norm_rows(p, &own);
}

/* Of kernels no plan of which has tiles that ranks share: of engine mma, FP8 and a tree. */
template <class roles> struct reduce_unshared : roles {
    static constexpr bool shares = false;

    static REDUCE_MEMBER void intra_comm(const typename roles::plan *p, struct mk_cta *cta)
    {
        if constexpr (roles::gathers)
            gemm_ar_intra_comm_of_rows(p, cta, 0);
    }
};

/* Of kernels whose registers are few: each peer is told of an own tile behind its own copy. */
template <class roles> struct reduce_apart : reduce_unshared<roles> {
    static REDUCE_MEMBER void after(const typename roles::plan *p, struct mk_cta *cta,
                                    const struct mk_tile *tile, uint32_t first, uint32_t rows,
                                    uint32_t parts)
    {
        if constexpr (roles::gathers)
            gemm_ar_after(p, cta, tile, first, rows, parts, 1);
        else
            roles::after(p, cta, tile, first, rows, parts);
    }
};

/* Either with sums in a tree: a type of its own, as its kernels are others. */
template <class roles> struct reduce_in_tree : reduce_apart<roles> {
    static constexpr bool tree = true, shared_code = false;
};

/* Of fp16. */
template <class roles> struct reduce_of_fp16 : roles {
    static constexpr int element = MK_FP16;
};

/* And of FP8. */
template <class roles> struct reduce_of_fp8 : reduce_apart<roles> {
    static constexpr bool scaled = true, shared_code = false;
};

/* Whose B has a scale for each column. */
template <class roles> struct reduce_by_columns : reduce_of_fp8<roles> {
    static constexpr bool by_columns = true;
};

/* Kernels of tiles that are too wide to be shared, or of FP8 to have norms behind the sum that is gathered: code
 * for it would take registers. joint: their plans have one shot alone (MK_MIDDLE_TILES). */
template <class roles, bool too_wide, bool joint_> struct reduce_of_tiles : roles {
    static constexpr bool shares = roles::shares && !too_wide && !joint_,
                          norms = !(roles::scaled && roles::gathers && too_wide), wide = too_wide,
                          joint = joint_;
};

/* A kernel parameter. */
template <class engine> struct reduce_views {
    typename engine::a_view a;
};

/* What the tile sources of both engines derive from, on the engine's own. */
template <class engine, class op, class base> struct reduce_tiles : base {
    static constexpr bool tree = op::tree, scaled = op::scaled, by_columns = op::by_columns;

    const typename op::plan *plan;
    const typename engine::operands *operands;
    const struct reduce_views<engine> *views;

    REDUCE_MEMBER const struct gemm_rs_plan *reduction() const
    {
        return MK_FRESH(op::tiles(plan));
    }

    REDUCE_MEMBER uint32_t blocks() const
    {
        return reduction()->blocks;
    }

    REDUCE_MEMBER uint32_t block_end(uint32_t block) const
    {
        return gemm_rs_block_end(reduction(), block);
    }

    REDUCE_MEMBER const typename engine::a_view *a(const struct mk_tile *) const
    {
        return &views->a;
    }

    /* Of row `row` of A on, and a tile's columns from `col` on. */
    REDUCE_MEMBER struct engine_scales scales_from(const struct gpu_launch *launch, uint32_t row,
                                                   uint32_t col) const
    {
        const struct gemm_rs_plan *p = reduction();
        const uint32_t r = row < p->m ? row : p->m - 1, /* what lies outside C is dropped */
            blocks = (p->k + 127) / 128, b_pitch = (blocks + 3) / 4 * 4;
        return {(const float *)launch->arguments[MK_SPACE_ARG3] + r,
                (const float *)launch->arguments[MK_SPACE_ARG4] + (uint64_t)(col / 128) * b_pitch,
                (p->m + 3) / 4 * 4,
                b_pitch,
                p->m - r,
                p->n - col,
                blocks};
    }

    REDUCE_MEMBER struct column_scales columns_from(const struct gpu_launch *launch,
                                                    uint32_t col) const
    {
        return {(const float *)launch->arguments[MK_SPACE_ARG4] + col, reduction()->n - col, 0};
    }

    /* Of a tile as it is described. C has the rows of this rank, or all, and ends with this rank's.
     * Of columns it has this rank's, or all. */
    REDUCE_MEMBER struct engine_place place_of(const struct mk_tile *tile, uint32_t row) const
    {
        const struct gemm_rs_plan *p = reduction();
        const uint32_t before = op::gathers     ? tile->a_slab * p->shard_rows
                                : p->shots == 1 ? 0 - p->topo.rank * p->shard_rows
                                                : 0;
        return {(int32_t)(tile->col - gemm_rs_own_col(p)), (int32_t)(before + tile->row + row), 0};
    }
};

/* Fills both for a launch. 0, or what the engine says of a matrix. */
template <class engine, class op, class shape>
static int reduce_describe(struct reduce_views<engine> *v, typename engine::operands *operands,
                           const typename op::plan *whole, const struct gpu_launch *l)
{
    const struct gemm_rs_plan *p = op::tiles(whole);
    const uint64_t n = p->n, rows = p->m, shard = p->shard_rows,
                   own_end = (p->topo.rank + 1) * shard; /* behind M on the last ranks */
    const bool whole_rows = p->shots == 1 || p->shard_cols;
    const uint64_t c_rows = !op::gathers ? shard : whole_rows || own_end > rows ? rows : own_end;
    /* the last ranks may have no columns, and store none */
    const uint64_t columns = gemm_rs_block(p, p->topo.rank).cols,
                   last = whole_rows ? 0 : (mk_ceil_div(rows, shard) - 1) * shard;
    const uint64_t element = op::scaled ? 1 : 2, row_bytes = p->k * element;
    int err;
    if constexpr (op::cuts) { /* slices of K are slabs, which overlap */
        const uint64_t apart = p->cut_k * element;
        err = engine::template describe_a<shape>(&v->a, operands, l->arguments[MK_SPACE_ARG0],
                                                 row_bytes, rows, p->slices, apart, last);
        if (!err)
            err = engine::template describe_slices<shape>(&operands->b, l->arguments[MK_SPACE_ARG1],
                                                          n, row_bytes, p->slices, apart);
    } else {
        err = engine::template describe_a<shape>(&v->a, operands, l->arguments[MK_SPACE_ARG0],
                                                 row_bytes, rows, 1, 0, last);
        if (!err)
            err = engine::template describe_b<shape>(&operands->b, operands,
                                                     l->arguments[MK_SPACE_ARG1], n, row_bytes);
    }
    if (!err)
        err = engine::template describe_c<shape>(
            &operands->c, operands, l->arguments[MK_SPACE_ARG2] + gemm_rs_own_col(p) * 2, n * 2,
            columns ? columns : n, c_rows);
    engine::template describe_k<shape>(operands, row_bytes, row_bytes);
    return err;
}
