/* Rows by lists (core/cta_rows.h) on a GPU: by all threads of a block, whose warps take rows side
 * by side. What a warp has under way is 4 KB; a dozen of warps on as many thread blocks fill a
 * link. */
#ifndef MK_KERNELS_CTA_ROWS_CUH
#define MK_KERNELS_CTA_ROWS_CUH

#include "core/cta_rows.h"
#include "kernels/cta.cuh"

enum { ROWS_AHEAD = 8 };
#define ROWS_NOWHERE UINT32_MAX

/* A warp: `pieces` of 16 bytes from `from` to row `row` of `destination` of each lane of `lanes`.
 */
PTX_FN void rows_copy(const char *from, char *destination, uint64_t row_bytes, uint32_t row,
                      uint32_t lanes)
{
    const uint32_t pieces = (uint32_t)(row_bytes / 16);
    for (uint32_t first = threadIdx.x % 32; lanes && first - threadIdx.x % 32 < pieces;
         first += 32 * ROWS_AHEAD) {
        uint4 v[ROWS_AHEAD];
#pragma unroll
        for (uint32_t i = 0; i < ROWS_AHEAD; i++)
            if (first + i * 32 < pieces)
                v[i] = ptx_load_16_l2(from + (first + i * 32) * 16ull);
        for (uint32_t left = lanes; left; left &= left - 1) {
            uint32_t to = __shfl_sync(0xffffffff, row, __ffs(left) - 1);
            char *at = destination + to * row_bytes;
#pragma unroll
            for (uint32_t i = 0; i < ROWS_AHEAD; i++)
                if (first + i * 32 < pieces)
                    *(uint4 *)(at + (first + i * 32) * 16ull) = v[i];
        }
    }
}

MK_ROLE_CALL void mk_cta_copy_listed(struct mk_cta *cta, uint32_t local, const struct mk_rows *rows)
{
    const struct gpu_launch *l = cta->launch;
    const uint32_t *list = (const uint32_t *)(l->heap + rows->list) + rows->first;
    const char *source = l->arguments[rows->space] + rows->source;
    cta_copy_open(cta, local, rows->id);
    for (uint32_t i = cta_lane(cta) / 32; i < rows->count; i += cta->lanes / 32)
        rows_copy(source + list[i] * rows->row_bytes, l->peers[local] + rows->destination,
                  rows->row_bytes, i, 1);
}

MK_ROLE_CALL void mk_cta_fan_out(struct mk_cta *cta, uint32_t local, const struct mk_rows *rows,
                                 const struct mk_places *places)
{
    const struct gpu_launch *l = cta->launch;
    const uint32_t *list = (const uint32_t *)(l->heap + rows->list),
                   *position = (const uint32_t *)(l->heap + places->position);
    const char *source = l->arguments[rows->space] + rows->source;
    const uint32_t end = rows->first + rows->count, k = places->k, lane = threadIdx.x % 32;
    cta_copy_open(cta, local, rows->id);
    for (uint32_t i = rows->first + cta_lane(cta) / 32; i < end; i += cta->lanes / 32) {
        uint64_t token = rows->list ? list[i] : i;
        uint32_t row = lane < k ? position[token * k + lane] : ROWS_NOWHERE;
        rows_copy(source + i * rows->row_bytes, l->heap + rows->destination, rows->row_bytes, row,
                  __ballot_sync(0xffffffff, row != ROWS_NOWHERE));
    }
    /* Of all rows each thread tells some: the barrier orders them before every thread's fence. */
    cta_settle(cta);
    __threadfence();
    for (uint32_t i = cta_lane(cta); i < rows->count * k; i += cta->lanes) {
        uint32_t at = rows->first + i / k;
        uint32_t row = position[(rows->list ? list[at] : at) * (uint64_t)k + i % k];
        if (row != ROWS_NOWHERE)
            atomicAdd(
                (unsigned long long *)cta_flag(l->heap, places->flag + row / places->tile_rows),
                1ull);
    }
}

#endif
