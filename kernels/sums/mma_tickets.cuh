/* A tile source by tickets (kernels/sums/tickets.cuh) of engine mma: rows of A are gathered. */
#pragma once

#include "kernels/mma/launch_fp8.cuh"
#include "kernels/sums/tickets.cuh"

/* The first thread of the producer takes, its other lanes learn from it at their barrier, the
 * consumers through the places. */
template <class derived>
struct ticket_source<mma_engine, derived> : ticket_tiles<mma_engine, mma_op_source> {
    static constexpr int auxiliary_warps = 0;
    static constexpr struct warp_meeting producer_at = ticket_producer_at,
                                         consumer_at[2] = {ticket_reader_at, ticket_reader_at};

    uint32_t producer; /* its first thread */

    template <class shape>
    ENGINE_MEMBER void begin_block(const struct gpu_launch *launch_, const struct mma_operands *op,
                                   uint32_t across)
    {
        launch = launch_;
        operands = op;
        producer = shape::warps * 32;
        tile_m = shape::tile_m;
        tile_n = shape::tile_n * derived::passes;
        columns = across;
        if (threadIdx.x < GEMM_TICKETS)
            tickets_open<mma_roles<shape, derived, false>>(threadIdx.x);
    }

    ENGINE_MEMBER bool next(uint32_t i, struct mk_tile *tile)
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
};

/* For ticket_operator. scaled: e4m3; whole_rows, passes: as the source has them. */
template <bool whole_rows, bool scaled, uint32_t passes = 1> struct mma_ticket_kernels {
    template <class plan, class function>
    static int dispatch(const plan *p, int transposed, function call)
    {
        if constexpr (scaled)
            return mma_fp8_dispatch<whole_rows>(p->dispatch.tile_m, p->tile_n / passes, call);
        else
            return mma_op_dispatch<whole_rows>(p->dispatch.tile_m, p->tile_n / passes, transposed,
                                               call);
    }
};
