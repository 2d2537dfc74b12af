/* Tile sources of engine mma whose tiles stand in a table and are taken from a counter: what
 * kernels/ops/gemm_tickets.cuh is for the other engine. Rows of A are gathered. */
#pragma once

#include "kernels/mma/launch_fp8.cuh"
#include "kernels/ops/tickets.cuh"

/* All threads, before the block's first barrier. */
template <class roles> PTX_FN void mma_tickets_open(void)
{
    if (threadIdx.x < GEMM_TICKETS) {
        ptx_mbar_init(ptx_shared(&gemm_ticket_shared->given[threadIdx.x]),
                      warp_arrivals<roles, MBAR_TICKET>());
        ptx_mbar_init(ptx_shared(&gemm_ticket_shared->taken[threadIdx.x]),
                      warp_arrivals<roles, MBAR_TICKET_READ>());
    }
}

/* The first thread of the producer takes, its other lanes learn from it at their barrier, the
 * consumers through the places. `derived` has: bool take(struct mk_tile_entry *), the producer's
 * alone: the next tile, or false. */
template <class derived> struct mma_ticket_source : mma_op_source {
    static constexpr int auxiliary_warps = 0;
    static constexpr bool gathers = true;
    static constexpr uint32_t passes = 1; /* over all of K, of each tile */
    static constexpr struct warp_meeting producer_at = ticket_producer_at,
                                         consumer_at[2] = {ticket_reader_at, ticket_reader_at};

    const struct mma_operands *operands;
    const struct mma_matrix *rows_of_a;
    uint32_t producer;                /* its first thread */
    uint32_t tile_m, tile_n, columns; /* columns: tiles across C */

    /* All threads, before the block's first barrier. across: tiles of C. */
    template <class shape>
    MMA_MEMBER void begin_block(const struct gpu_launch *launch_, const struct mma_operands *op,
                                uint32_t across)
    {
        launch = launch_;
        operands = op;
        producer = shape::warps * 32;
        tile_m = shape::tile_m;
        tile_n = shape::tile_n * derived::passes;
        columns = across;
        mma_tickets_open<mma_roles<shape, derived, false>>();
    }

    MMA_MEMBER bool next(uint32_t i, struct mk_tile *tile)
    {
        const uint32_t place = i % GEMM_TICKETS;
        const struct mbar_phase lap = mbar_phase_of_ring<GEMM_TICKETS>(i);
        const uint32_t given = ptx_shared(&gemm_ticket_shared->given[place]),
                       taken = ptx_shared(&gemm_ticket_shared->taken[place]);
        struct mk_tile_entry e = {0, 0, 0, 0};
        if (threadIdx.x < producer) {
            ring_wait(given, lap, operands->limit_ns);
            e = gemm_ticket_shared->of[place];
            __syncwarp();
            if (threadIdx.x % 32 == 0)
                ptx_mbar_arrive(taken);
        } else {
            if (threadIdx.x == producer) {
                if (!static_cast<derived *>(this)->take(&e))
                    e.rows = 0;
                ring_wait(taken, mbar_phase_before(lap), operands->limit_ns);
                gemm_ticket_shared->of[place] = e;
                ptx_mbar_arrive(given);
            }
            ptx_bar_sync(named_producers(MMA_OP_PRODUCERS)); /* what it has acquired, all copy */
            e = gemm_ticket_shared->of[place];
        }
        static_cast<derived *>(this)->describe(&e, tile);
        return e.rows > 0;
    }

    MMA_MEMBER void describe(const struct mk_tile_entry *e, struct mk_tile *tile)
    {
        tile->a_slab = 0;
        tile->slab = e->group;
        tile->row = e->row;
        tile->rows = e->rows;
        tile->col = e->column * tile_n;
        tile->id = e->row / tile_m * columns + e->column;
    }

    /* Of FP8, whose rows have their scales behind k codes. Rows behind the tile's have the last one's,
     * and are dropped. */
    MMA_MEMBER struct mma_scales scales_of_tokens(const struct mk_tile *tile, uint32_t row,
                                                  uint32_t k, const float *b) const
    {
        const derived *of = static_cast<const derived *>(this);
        const uint32_t last = tile->rows - 1;
        return {{(const float *)(of->row_of_a(tile, row < last ? row : last) + k),
                 (const float *)(of->row_of_a(tile, row + 8 < last ? row + 8 : last) + k)},
                b,
                1,
                0};
    }

    MMA_MEMBER const struct mma_matrix *a(const struct mk_tile *) const
    {
        return rows_of_a;
    }

    MMA_MEMBER int32_t b_slab(const struct mk_tile *tile) const
    {
        return (int32_t)tile->slab;
    }

    MMA_MEMBER struct mma_place place(uint32_t, const struct mk_tile *tile, uint32_t row) const
    {
        return {(int32_t)tile->col, (int32_t)(tile->row + row), 0};
    }
};

/* For GPU_OPERATOR_BY (kernels/op.h). `op` has
 *
 *   typedef ... plan, source, matrices
 *       Its plan; its tile source, a mma_ticket_source; and of matrices what its kernel takes.
 *   static constexpr bool scaled, whole_rows
 *       As mma_any_dispatch has them.
 *   auto kernel<shape>()
 *       Its kernel: of this plan, a launch, operands and matrices.
 *   int describe<shape>(matrices *, struct mma_operands *, const plan *, const struct gpu_launch *)
 *       As in kernels/mma/launch.cuh. */

/* The shape that the kernel is built for: of bf16, of either layout of B; of FP8 there is one. */
template <class op, class shape>
using mma_ticket_shape =
    typename shape::template laid<op::scaled ? (int)MMA_B_NK : (int)MMA_B_EITHER>;

template <class op, class function>
static int mma_ticket_dispatch(const typename op::plan *p, const struct mk_problem *q,
                               function call)
{
    return mma_any_dispatch<op::whole_rows, op::scaled>(
        p->dispatch.tile_m, p->tile_n / op::source::passes, q->b_transposed, call);
}

template <class op> struct mma_ticket_operator {
    static int prepare(const typename op::plan *p, const struct mk_problem *q, char *error,
                       size_t error_size)
    {
        int err = mma_ticket_dispatch<op>(p, q, [=](auto shape) {
            typedef decltype(shape) built;
            return gpu_admit(op::template kernel<mma_ticket_shape<op, built>>(),
                             mk_total_blocks(&q->tuning.split), 1,
                             mma_threads<built, typename op::source>, built::shared_bytes, error,
                             error_size);
        });
        return gpu_prepared(err, p->dispatch.tile_m, p->tile_n, 0, error, error_size);
    }

    static int launch(const typename op::plan *p, const struct mk_problem *q,
                      const struct gpu_launch *launch, cudaStream_t stream)
    {
        return mma_ticket_dispatch<op>(p, q, [=](auto shape) {
            typedef decltype(shape) built;
            struct mma_operands operands;
            typename op::matrices matrices;
            gpu_limit_waits(&operands, launch);
            operands.b_kn = built::b_kn;
            int err = op::template describe<built>(&matrices, &operands, p, launch);
            return err ? err
                       : gpu_launch_blocks(op::template kernel<mma_ticket_shape<op, built>>(),
                                           mk_total_blocks(&launch->split),
                                           mma_threads<built, typename op::source>,
                                           built::shared_bytes, stream, *p, *launch, operands,
                                           matrices);
        });
    }
};
