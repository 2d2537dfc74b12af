/* Rows by lists (core/cta_rows.h) on a GPU: by all threads of a block, whose warps take rows side
 * by side. What a warp has under way is 5 KB; a dozen of warps on as many thread blocks fill a
 * link. */
#ifndef MK_KERNELS_CTA_ROWS_CUH
#define MK_KERNELS_CTA_ROWS_CUH

#include "core/cta_rows.h"
#include "kernels/cta.cuh"

enum { ROWS_AHEAD = 10 };

/* A warp: a row. */
PTX_FN void rows_copy(const char *from, char *to, uint64_t row_bytes)
{
    const uint32_t pieces = (uint32_t)(row_bytes / 16);
    for (uint32_t first = threadIdx.x % 32; first < pieces; first += 32 * ROWS_AHEAD) {
        uint4 v[ROWS_AHEAD];
#pragma unroll
        for (uint32_t i = 0; i < ROWS_AHEAD; i++)
            if (first + i * 32 < pieces)
                v[i] = ptx_load_16_l2(from + (first + i * 32) * 16ull);
#pragma unroll
        for (uint32_t i = 0; i < ROWS_AHEAD; i++)
            if (first + i * 32 < pieces)
                *(uint4 *)(to + (first + i * 32) * 16ull) = v[i];
    }
}

MK_ROLE_CALL void mk_cta_copy_listed(struct mk_cta *cta, uint32_t local, const struct mk_rows *rows)
{
    const struct gpu_launch *l = cta->launch;
    const uint32_t *list = (const uint32_t *)(l->heap + rows->list) + rows->first;
    const char *source = l->arguments[rows->space] + rows->source;
    cta_copy_open(cta, local, rows->id);
    for (uint32_t i = cta_lane(cta) / 32; i < rows->count; i += cta->lanes / 32)
        rows_copy(source + list[i] * rows->row_bytes,
                  l->peers[local] + rows->destination + i * rows->row_bytes, rows->row_bytes);
}

MK_ROLE_CALL void mk_cta_gather(struct mk_cta *cta, uint32_t local, const struct mk_gather *g)
{
    const struct gpu_launch *l = cta->launch;
    const uint32_t *list = (const uint32_t *)(l->heap + g->list) + g->first;
    char *to = (char *)l->arguments[g->to] + g->destination;
    cta_copy_open(cta, local, g->id);
    for (uint32_t i = cta_lane(cta) / 32; i < g->count; i += cta->lanes / 32) {
        uint32_t row = list[i];
        const char *from = row < g->near ? l->arguments[g->space] + row * g->row_bytes
                                         : l->heap + g->far + (row - g->near) * g->row_bytes;
        rows_copy(from, to + i * g->row_bytes, g->row_bytes);
    }
}

/* Each thread tells of some: what the caller's wait has acquired, the barrier orders before every
 * thread's fence. */
MK_ROLE_CALL void mk_cta_tell_rows(struct mk_cta *cta, uint32_t, uint32_t first, uint32_t count,
                                   const struct mk_places *places)
{
    char *heap = cta->launch->heap;
    const uint32_t k = places->k,
                   *position = (const uint32_t *)(heap + places->position) + (uint64_t)first * k;
    cta_settle(cta);
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
        ptx_fence_acquire();
        late = rows_max(late);
        if (!late)
            return 0;
        uint64_t target = cta_leads(cta) ? most[late - 1] * times : 0; /* who polls reads it */
        if (mk_cta_wait(cta, places->flag + late - 1, target, cause))
            return 1;
    }
}

#endif
