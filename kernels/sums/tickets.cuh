/* A tile source by tickets, what it has alike on both engines. The tiles stand in a table in global
 * memory, in the order of computation, and one counter hands them out: a block that is done takes
 * the next tile. So blocks may begin late, and tiles may differ in cost. The producer takes
 * tickets; the consumers read them in a few places of shared memory.
 *
 * It is a grouped GEMM: each group of rows has a B of its own (an expert's). Rows of all groups lie
 * in one A and one C, each group's at a multiple of the tile's rows. A tile may have fewer rows
 * than the shape's; its other rows of C are then undefined. */
#pragma once

#include "core/cta/gemm_table.h"
#include "kernels/host/admit.h"
#include "kernels/engine/engine.cuh"
#include "kernels/engine/warp_roles.cuh"

enum { GEMM_TICKETS = 4 };

/* given: the place holds a tile; taken: all warps that want to know it have read it. */
struct gemm_ticket_places {
    struct mk_tile_entry of[GEMM_TICKETS];
    uint64_t given[GEMM_TICKETS], taken[GEMM_TICKETS];
};
PTX_SHARED(struct gemm_ticket_places, gemm_ticket_shared, 1);

/* For the engines' tables of roles. */
constexpr struct warp_meeting ticket_producer_at = {MBAR_SET(MBAR_TICKET_READ),
                                                    MBAR_SET(MBAR_TICKET)},
                              ticket_reader_at = {MBAR_SET(MBAR_TICKET), 0,
                                                  MBAR_SET(MBAR_TICKET_READ)};

/* One thread, before the block's first barrier. roles: the table of the source's kernel. */
template <class roles> PTX_FN void tickets_open(uint32_t place)
{
    ptx_mbar_init(ptx_shared(&gemm_ticket_shared->given[place]),
                  warp_arrivals<roles, MBAR_TICKET>());
    ptx_mbar_init(ptx_shared(&gemm_ticket_shared->taken[place]),
                  warp_arrivals<roles, MBAR_TICKET_READ>());
}

/* An entry of a table that another SM has written in this launch. */
PTX_FN struct mk_tile_entry gemm_table_load(const struct mk_tile_entry *at)
{
    uint4 v = ptx_load_16_l2(at);
    return {v.x, v.y, v.z, v.w};
}

/* What such a source has beside an engine's own, `base`. */
template <class engine, class base> struct ticket_tiles : base {
    static constexpr uint32_t passes = 1; /* over all of K, of each tile */

    const typename engine::operands *operands;
    const typename engine::a_view *rows_of_a;
    uint32_t tile_m, tile_n, columns; /* columns: tiles across C */

    ENGINE_MEMBER void describe(const struct mk_tile_entry *e, struct mk_tile *tile)
    {
        tile->a_slab = 0;
        tile->slab = e->group;
        tile->row = e->row;
        tile->rows = e->rows;
        tile->col = e->column * tile_n;
        tile->id = e->row / tile_m * columns + e->column;
    }

    ENGINE_MEMBER const typename engine::a_view *a(const struct mk_tile *) const
    {
        return rows_of_a;
    }

    ENGINE_MEMBER int32_t b_slab(const struct mk_tile *tile) const
    {
        return (int32_t)tile->slab;
    }

    ENGINE_MEMBER struct engine_place place(uint32_t, const struct mk_tile *tile,
                                            uint32_t row) const
    {
        return {(int32_t)tile->col, (int32_t)(tile->row + row), 0};
    }
};

/* The source itself (gemm_tickets.cuh, mma_tickets.cuh). `derived` has: bool take(struct
 * mk_tile_entry *), the producer's alone: the next tile, or false. What a kernel calls:
 *
 *   void begin_block<shape>(launch, operands, across)
 *       All threads, before the block's first barrier. across: tiles of C. */
template <class engine, class derived> struct ticket_source;

/* For GPU_OPERATOR_BY (kernels/host/op.h). `op` has
 *
 *   typedef ... plan, views
 *       Its plan, and what its kernel takes beside operands.
 *   uint32_t threads<shape>(), shared_bytes<shape>(); auto kernel<shape>()
 *       Of a block; and its kernel: of this plan, a launch, operands and views.
 *   int describe<shape>(views *, operands *, const plan *, const struct gpu_launch *)
 *       As in kernels/hopper/gemm_launch.cuh.
 *
 * and kernels has: dispatch(plan, transposed, call), which calls `call` with an object of the shape
 * that the plan asks for and returns what it does; -EINVAL where there is none. */
template <class engine, class op, class kernels> struct ticket_operator {
    static int prepare(const typename op::plan *p, const struct mk_kernel_choice *q, char *error,
                       size_t error_size)
    {
        int err = kernels::dispatch(p, q->b_transposed, [=](auto shape) {
            typedef decltype(shape) built;
            return gpu_admit(op::template kernel<built>(), mk_total_blocks(&q->split), 1,
                             op::template threads<built>(), op::template shared_bytes<built>(),
                             error, error_size);
        });
        return gpu_prepared(err, p->dispatch.tile_m, p->tile_n, 0, error, error_size);
    }

    static int launch(const typename op::plan *p, const struct mk_kernel_choice *q,
                      const struct gpu_launch *launch, cudaStream_t stream)
    {
        return kernels::dispatch(p, q->b_transposed, [=](auto shape) {
            typedef decltype(shape) built;
            typename engine::operands operands;
            typename op::views views;
            gpu_limit_waits(&operands, launch);
            operands.b_kn = built::b_kn;
            int err = op::template describe<built>(&views, &operands, p, launch);
            return err ? err
                       : gpu_launch_grid(op::template kernel<built>(),
                                         {mk_total_blocks(&launch->split),
                                          op::template threads<built>(),
                                          op::template shared_bytes<built>()},
                                         stream, *p, *launch, operands, views);
        });
    }
};
