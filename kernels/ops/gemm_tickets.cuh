/* A tile source by tickets. The tiles stand in a table in global memory, in the order of
 * computation, and one counter hands them out: a block that is done takes the next tile. So blocks
 * may begin late, and tiles may differ in cost. The producer thread takes tickets; the consumers
 * read them in a few places of shared memory.
 *
 * It is a grouped GEMM: each group of rows has a B of its own (an expert's). Rows of all groups lie
 * in one A and one C, each group's at a multiple of the tile's rows. A tile may have fewer rows
 * than the shape's; its other rows of C are then undefined. */
#pragma once

#include "kernels/ops/gemm_track.cuh"
#include "kernels/ops/tickets.cuh"

/* One thread, before the block's first barrier. */
template <class tile_source> PTX_FN void gemm_tickets_open(void)
{
    typedef gemm_roles<false, tile_source> roles;
    for (uint32_t i = 0; i < GEMM_TICKETS; i++) {
        ptx_mbar_init(ptx_shared(&gemm_ticket_shared->given[i]),
                      warp_arrivals<roles, MBAR_TICKET>());
        ptx_mbar_init(ptx_shared(&gemm_ticket_shared->taken[i]),
                      warp_arrivals<roles, MBAR_TICKET_READ>());
    }
}

/* `derived` has: bool take(struct mk_tile_entry *), the producer's alone: the next tile, or false.
 */
template <class derived> struct ticket_source : tracked_source {
    static constexpr struct warp_meeting producer_at = ticket_producer_at,
                                         gatherer_at = ticket_reader_at,
                                         consumer_at[2] = {ticket_reader_at, ticket_reader_at};

    const struct gemm_operands *operands;
    const struct gemm_a *map_a;
    uint32_t tile_m, tile_n, columns; /* columns: tiles across C */

    /* Whether tile i is known. */
    GEMM_MEMBER bool offered(uint32_t i) const
    {
        uint32_t given = ptx_shared(&gemm_ticket_shared->given[i % GEMM_TICKETS]);
        return __all_sync(0xffffffff, ptx_mbar_test(given, mbar_phase_of_ring<GEMM_TICKETS>(i)));
    }

    /* Of tile i: the producer fills its place, another warp reads and frees it. */
    GEMM_MEMBER bool next(uint32_t i, struct mk_tile *tile)
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

    GEMM_MEMBER void describe(const struct mk_tile_entry *e, struct mk_tile *tile)
    {
        tile->a_slab = 0;
        tile->slab = e->group;
        tile->row = e->row;
        tile->rows = e->rows;
        tile->col = e->column * tile_n;
        tile->id = e->row / tile_m * columns + e->column;
    }

    GEMM_MEMBER const struct gemm_a *a(const struct mk_tile *) const
    {
        return map_a;
    }

    GEMM_MEMBER int32_t b_slab(const struct mk_tile *tile) const
    {
        return (int32_t)tile->slab;
    }

    /* A product of 64 rows uses the tensor cores as well as two of them do. */
    GEMM_MEMBER bool idle(const struct mk_tile *tile, uint32_t row) const
    {
        return row >= tile->rows;
    }

    GEMM_MEMBER struct gemm_place place(uint32_t, const struct mk_tile *tile, uint32_t row) const
    {
        return {(int32_t)tile->col, (int32_t)(tile->row + row), 0};
    }
};
