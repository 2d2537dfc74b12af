/* What the tile sources of MoE operators share on both engines: tiles are taken from the table that
 * the schedule makes (core/roles/moe_dispatch.h), and rows of A are read from where tokens lie. */
#pragma once

#include "kernels/cta/cta_route.cuh"
#include "kernels/cta/cta_rows.cuh"
#include "kernels/sums/tickets.cuh"

#include "core/roles/moe_dispatch.h"

/* Whether the block moves tokens, before it computes. */
PTX_FN bool moe_moves(const struct gpu_launch *launch)
{
    return blockIdx.x >= launch->split.ctas[MK_COMPUTE] &&
           blockIdx.x < mk_total_blocks(&launch->split) - launch->split.ctas[MK_INTER_REDUCE];
}

/* Shared memory that making tables takes. */
template <class engine>
constexpr uint32_t moe_route_shared =
    engine::number == MK_ENGINE_MMA ? MK_MMA_ROUTE_SHARED : MK_ROUTE_SHARED;

/* Tiles by tickets; rows of A are gathered. `derived` has: int await(const struct mk_tile_entry
 * *), the producer's alone: what its A is made of is here; 1 where the launch is ending. What
 * follows `dispatch` is the producer thread's. */
template <class engine, class derived> struct moe_taking : ticket_source<engine, derived> {
    static constexpr bool gathers = true;

    const struct moe_dispatch_plan *dispatch;
    struct mk_cta cta;
    uint64_t upcoming, base;
    uint32_t count, last; /* from tile `last` on the block takes no other */
    int ending;

    ENGINE_MEMBER uint64_t ask() const
    {
        return atomicAdd((unsigned long long *)this->launch->taken, 1ull);
    }

    ENGINE_MEMBER const struct mk_route_head *head() const
    {
        return (const struct mk_route_head *)(this->launch->heap + dispatch->route.order_head);
    }

    ENGINE_MEMBER void open(uint32_t thread)
    {
        if (thread)
            return;
        if (moe_moves(this->launch))
            cta_resume(&cta, this->launch, blockIdx.x, 1);
        else
            cta_begin(&cta, this->launch, blockIdx.x, 1);
        cta.role = MK_COMPUTE;
        ending = moe_await_routed(dispatch, &cta);
        if (ending)
            return;
        base = head()->begin;
        count = last = head()->count;
        static_cast<derived *>(this)->opened();
        upcoming = ask();
    }

    ENGINE_MEMBER void opened()
    {
    }

    ENGINE_MEMBER void close()
    {
        cta_end(&cta);
    }

    /* A row of X, or where another rank has brought it. */
    ENGINE_MEMBER const char *row_of_a(const struct mk_tile *tile, uint32_t row) const
    {
        const struct gpu_launch *l = this->launch;
        uint32_t source = ((const uint32_t *)(l->heap + dispatch->route.source))[tile->row + row];
        return source < dispatch->room
                   ? l->arguments[MK_SPACE_ARG0] + source * dispatch->row_bytes
                   : l->heap + dispatch->landed + (source - dispatch->room) * dispatch->row_bytes;
    }

    ENGINE_MEMBER uint32_t row_bytes() const
    {
        return (uint32_t)dispatch->row_bytes;
    }

    /* The number of the one after this is on its way while this one is loaded. Who is told of a
     * tile may read its rows. */
    ENGINE_MEMBER bool take(struct mk_tile_entry *e)
    {
        if (ending || upcoming - base >= count)
            return false;
        *e = gemm_table_load(
            (const struct mk_tile_entry *)(this->launch->heap + dispatch->route.order) +
            (upcoming - base));
        upcoming = upcoming - base >= last ? base + count : ask();
        ending = static_cast<derived *>(this)->await(e);
        return true;
    }
};

template <class engine> struct moe_taking_by {
    template <class derived> using source = moe_taking<engine, derived>;
};

/* All threads of a block: moves tokens, if that is its first role; `memory`: its shared memory.
 * Afterwards they may compute. */
PTX_FN void moe_begin_block(const struct moe_dispatch_plan *dispatch,
                            const struct gpu_launch *launch, uint8_t *memory)
{
    struct mk_cta cta;
    if (!moe_moves(launch))
        return;
    cta_begin(&cta, launch, blockIdx.x, blockDim.x);
    cta.scratch = memory;
    if (cta.role == MK_INTRA_COMM)
        moe_intra_comm(dispatch, &cta);
    else if (cta.role == MK_INTER_SEND && !cta_begin_commands(&cta))
        moe_inter_send(dispatch, &cta);
    cta_end(&cta);
    ptx_fence_async_shared(); /* TMA loads go where tables were made */
    __syncthreads();          /* and the lead's track is there */
}
