/* Rows by lists (core/cta/cta_rows.h) on a GPU: by all threads of a block, whose warps take rows side
 * by side. What a warp has under way is 5 KB; a dozen of warps on as many thread blocks fill a
 * link. */
#pragma once

#include "core/cta/cta_rows.h"
#include "kernels/cta/cta.cuh"

enum { ROWS_AHEAD = 10 };

/* 1: warps share rows that are fewer than they are. It takes registers, which an engine beside has
 * not. */
#ifndef CTA_SHARE_ROWS
#define CTA_SHARE_ROWS 0
#endif

/* How warps of a block share `count` rows: each takes some, or, of fewer rows than warps, a share of
 * one. Row `at` from `first` on, one in `step`; of it lane `lane` of `lanes`. */
struct rows_turn {
    uint32_t first, step, lane, lanes;
};

PTX_FN struct rows_turn rows_turn_of(const struct mk_cta *cta, uint32_t count)
{
    const uint32_t warps = cta->lanes / 32, warp = cta_lane(cta) / 32,
                   shares = CTA_SHARE_ROWS && count && count < warps ? warps / count : 1;
    return {warp / shares, warps / shares, warp % shares * 32 + threadIdx.x % 32, shares * 32};
}

/* A row, by `lanes` lanes, of which this is one. */
PTX_FN void rows_copy(const char *from, char *to, uint64_t row_bytes, uint32_t lane, uint32_t lanes)
{
    const uint32_t pieces = (uint32_t)(row_bytes / 16);
    for (uint32_t first = lane; first < pieces; first += lanes * ROWS_AHEAD) {
        uint4 v[ROWS_AHEAD];
#pragma unroll
        for (uint32_t i = 0; i < ROWS_AHEAD; i++)
            if (first + i * lanes < pieces)
                v[i] = ptx_load_16_l2(from + (first + i * lanes) * 16ull);
#pragma unroll
        for (uint32_t i = 0; i < ROWS_AHEAD; i++)
            if (first + i * lanes < pieces)
                *(uint4 *)(to + (first + i * lanes) * 16ull) = v[i];
    }
}

MK_ROLE_CALL void mk_cta_copy_listed(struct mk_cta *cta, uint32_t local, const struct mk_rows *rows)
{
    const struct gpu_launch *l = cta->launch;
    const uint32_t *list = (const uint32_t *)(l->heap + rows->list) + rows->first;
    const char *source = l->arguments[rows->space] + rows->source;
    const struct rows_turn turn = rows_turn_of(cta, rows->count);
    cta_copy_open(cta, local, rows->id);
    for (uint32_t i = turn.first; i < rows->count; i += turn.step)
        rows_copy(source + list[i] * rows->row_bytes,
                  l->peers[local] + rows->destination + i * rows->row_bytes, rows->row_bytes,
                  turn.lane, turn.lanes);
}

/* A warp loads pieces of a token once, and stores them in each row that it is. */
MK_ROLE_CALL void mk_cta_spread(struct mk_cta *cta, uint32_t local, const struct mk_spread *s)
{
    const struct gpu_launch *l = cta->launch;
    const uint32_t k = s->places.k, lane = threadIdx.x % 32,
                   *position = (const uint32_t *)(l->heap + s->places.position);
    const char *source = l->arguments[s->space] + s->source;
    char *to = (char *)l->arguments[s->to];
    const struct rows_turn turn = rows_turn_of(cta, s->count);
    const uint32_t pieces = (uint32_t)(s->row_bytes / 16);
    cta_copy_open(cta, local, s->id);
    for (uint32_t i = turn.first; i < s->count; i += turn.step) {
        const uint32_t token = s->first + i,
                       row = lane < k ? position[(uint64_t)token * k + lane] : UINT32_MAX,
                       rows = __ballot_sync(0xffffffff, row != UINT32_MAX);
        const char *from = source + token * s->row_bytes;
        for (uint32_t at = turn.lane; rows && at - turn.lane < pieces;
             at += turn.lanes * ROWS_AHEAD) {
            uint4 v[ROWS_AHEAD];
#pragma unroll
            for (uint32_t j = 0; j < ROWS_AHEAD; j++)
                if (at + j * turn.lanes < pieces)
                    v[j] = ptx_load_16_l2(from + (at + j * turn.lanes) * 16ull);
            for (uint32_t left = rows; left; left &= left - 1) {
                char *row_at =
                    to + __shfl_sync(0xffffffff, row, __ffs(left) - 1) * s->row_bytes + at * 16ull;
#pragma unroll
                for (uint32_t j = 0; j < ROWS_AHEAD; j++)
                    if (at + j * turn.lanes < pieces)
                        *(uint4 *)(row_at + j * turn.lanes * 16ull) = v[j];
            }
        }
    }
}

/* Threads tell of some each: what the caller's wait has acquired, the barrier orders before their
 * fences. A fence takes its time in each warp, one after the other: no thread has one that needs none. */
MK_ROLE_CALL void mk_cta_tell_rows(struct mk_cta *cta, uint32_t, uint32_t first, uint32_t count,
                                   const struct mk_places *places)
{
    char *heap = cta->launch->heap;
    const uint32_t k = places->k,
                   *position = (const uint32_t *)(heap + places->position) + (uint64_t)first * k;
    cta_settle(cta);
    if (cta_lane(cta) < count * k)
        __threadfence();
    for (uint32_t i = cta_lane(cta); i < count * k; i += cta->lanes) {
        uint32_t row = position[i];
        if (row != UINT32_MAX)
            atomicAdd((unsigned long long *)cta_flag(heap, places->flag + row / places->tile_rows),
                      1ull);
    }
}

PTX_SHARED(uint32_t, rows_late, 32);

/* The largest of all threads' numbers. */
PTX_FN uint32_t rows_max(uint32_t number)
{
    uint32_t of_warp = __reduce_max_sync(0xffffffff, number), warps = blockDim.x / 32;
    if (threadIdx.x % 32 == 0)
        rows_late[threadIdx.x / 32] = of_warp;
    __syncthreads();
    number = threadIdx.x % 32 < warps ? rows_late[threadIdx.x % 32] : 0;
    __syncthreads();
    return __reduce_max_sync(0xffffffff, number);
}

/* Each thread looks at the flags of some rows; the lead then waits for the last tile that was not
 * there, behind which few others are missing. */
MK_ROLE_CALL int mk_cta_wait_rows(struct mk_cta *cta, const struct mk_places *places,
                                  uint64_t wanted, uint32_t times, uint32_t first, uint32_t count,
                                  enum mk_cause cause)
{
    char *heap = cta->launch->heap;
    const uint32_t *position =
        (const uint32_t *)(heap + places->position) + (uint64_t)first * places->k;
    const uint64_t *most = (const uint64_t *)(heap + wanted);
    for (;;) {
        uint32_t late = 0;
        for (uint32_t i = cta_lane(cta); i < count * places->k; i += cta->lanes) {
            uint32_t row = position[i], tile = row / places->tile_rows;
            if (row != UINT32_MAX && tile >= late &&
                ptx_load_relaxed(cta_flag(heap, places->flag + tile)) < most[tile] * times)
                late = tile + 1;
        }
        if (cta_lane(cta) < count * places->k)
            ptx_fence_acquire();
        late = rows_max(late);
        if (!late)
            return 0;
        uint64_t target = cta_leads(cta) ? most[late - 1] * times : 0; /* who polls reads it */
        if (mk_cta_wait(cta, places->flag + late - 1, target, cause))
            return 1;
    }
}
