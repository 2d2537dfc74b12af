/* Where a block's producer, who takes tiles from a table in global memory, tells its consumers of
 * them; on both engines. */
#pragma once

#include "core/gemm_table.h"
#include "kernels/warp_roles.cuh"

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

/* An entry of a table that another SM has written in this launch. */
PTX_FN struct mk_tile_entry gemm_table_load(const struct mk_tile_entry *at)
{
    uint4 v = ptx_load_16_l2(at);
    return {v.x, v.y, v.z, v.w};
}
