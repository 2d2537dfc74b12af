/* A tile source by tickets (kernels/sums/tickets.cuh) of engine wgmma: its producer is one
 * thread, and warps that gather read tickets as consumers do. */
#pragma once

#include "kernels/hopper/engine.cuh"
#include "kernels/hopper/gemm_gather.cuh"
#include "kernels/hopper/gemm_track.cuh"
#include "kernels/sums/tickets.cuh"

template <class derived>
struct ticket_source<gemm_engine, derived> : ticket_tiles<gemm_engine, tracked_source> {
    static constexpr struct warp_meeting producer_at = ticket_producer_at,
                                         gatherer_at = ticket_reader_at,
                                         consumer_at[2] = {ticket_reader_at, ticket_reader_at};

    template <class shape>
    ENGINE_MEMBER void begin_block(const struct gpu_launch *launch_, const struct gemm_operands *op,
                                   uint32_t across)
    {
        launch = launch_;
        operands = op;
        tile_m = shape::tile_m;
        tile_n = shape::tile_n;
        columns = across;
        if (threadIdx.x == 0)
            for (uint32_t i = 0; i < GEMM_TICKETS; i++)
                tickets_open<gemm_roles<false, derived>>(i);
    }

    /* Whether tile i is known. */
    ENGINE_MEMBER bool offered(uint32_t i) const
    {
        uint32_t given = ptx_shared(&gemm_ticket_shared->given[i % GEMM_TICKETS]);
        return __all_sync(0xffffffff, ptx_mbar_test(given, mbar_phase_of_ring<GEMM_TICKETS>(i)));
    }

    /* Of tile i: the producer fills its place, another warp reads and frees it. */
    ENGINE_MEMBER bool next(uint32_t i, struct mk_tile *tile)
    {
        uint32_t place = i % GEMM_TICKETS;
        struct mbar_phase lap = mbar_phase_of_ring<GEMM_TICKETS>(i);
        uint32_t given = ptx_shared(&gemm_ticket_shared->given[place]),
                 taken = ptx_shared(&gemm_ticket_shared->taken[place]);
        struct mk_tile_entry e = {0, 0, 0, 0};
        if (threadIdx.x < 32) {
            bool any = static_cast<derived *>(this)->take(&e);
            if (!any)
                e.rows = 0;
            ptx_mbar_wait(taken, mbar_phase_before(lap), operands->limit_ns);
            gemm_ticket_shared->of[place] = e;
            ptx_mbar_arrive(given);
        } else {
            ptx_mbar_wait(given, lap, operands->limit_ns);
            e = gemm_ticket_shared->of[place];
            __syncwarp();
            if (threadIdx.x % 32 == 0)
                ptx_mbar_arrive(taken);
        }
        static_cast<derived *>(this)->describe(&e, tile);
        return e.rows > 0;
    }

    /* A product of 64 rows uses the tensor cores as well as two of them do. */
    ENGINE_MEMBER bool idle(const struct mk_tile *tile, uint32_t row) const
    {
        return row >= tile->rows;
    }
};
