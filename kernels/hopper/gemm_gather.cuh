/* Rows of A that lie apart, for the GEMM engine: the warps that it leaves free copy them to its
 * stages, 16 bytes a lane, where TMA would want them to follow each other. Hopper's TMA unit has no
 * load of listed rows, and to lay rows together first would write and read each of them once more.
 *
 * Eight lanes take the 128 bytes that a stage has of a row; a lane has the same rows in all stages
 * of a tile, so that a stage costs it little more than its copies. Copies are by the generic proxy,
 * and wgmma reads by the asynchronous one: a lane waits for its own, fences, and then its warp
 * arrives at the stage's `full` barrier. It does so some stages later, while other copies are under
 * way; at the end of a tile at once, unless the next tile is there already. */
#pragma once

#include "kernels/hopper/gemm.cuh"

enum { GEMM_GATHER_LAG = 2 };

/* Stages that a warp has filled, in turn, and not yet told of. */
struct gather_filled {
    struct pipeline_position at;
    uint32_t count;
};

/* All but the last `pending` stages are told of. */
template <int stages, int pending>
PTX_FN void gather_tell(uint32_t barriers, struct gather_filled *filled)
{
    if (filled->count <= pending)
        return;
    ptx_copy_async_wait<pending>();
    ptx_fence_async_shared();
    __syncwarp();
    for (; filled->count > pending; filled->count--) {
        if (threadIdx.x % 32 == 0)
            ptx_mbar_arrive(pipeline_full<stages>(barriers, filled->at.stage));
        pipeline_step<stages>(&filled->at);
    }
}

/* Of a tile's B: its scales, of each 128 columns. */
struct gather_scales {
    const float *b;
    uint32_t second; /* floats to the second 128 columns' */
};

/* Block k's to a stage's slot: by two lanes of the warp that has the fewest rows. */
template <class shape>
PTX_FN void gather_scales_of(const struct gather_scales *of, uint32_t slot, uint32_t k)
{
    constexpr uint32_t columns = shape::tile_n > 128 ? 2 : 1;
    if (threadIdx.x / 32 == GEMM_GATHER_WARPS && threadIdx.x % 32 < columns)
        ptx_copy_async_4(slot + threadIdx.x % 32 * 4, of->b + threadIdx.x % 32 * of->second + k);
}

/* Stages of a tile whose A the producer loads. */
template <class shape>
PTX_FN void gather_pass(uint32_t shared, struct pipeline_position *at, uint32_t stages_of_k,
                        const struct gather_scales *scales, struct gather_filled *filled,
                        uint64_t limit_ns)
{
    const uint32_t barriers = shape::barriers(shared);
    for (uint32_t k = 0; k < stages_of_k; k++) {
        pipeline_wait_empty<shape::stages>(barriers, at, limit_ns);
        if constexpr (shape::scales_part_bytes > 0) {
            gather_scales_of<shape>(scales, shape::b_scales(shared, at->stage), k);
            ptx_copy_async_commit();
            filled->count++;
            pipeline_step<shape::stages>(at);
            gather_tell<shape::stages, GEMM_GATHER_LAG>(barriers, filled);
        } else {
            __syncwarp();
            if (threadIdx.x % 32 == 0)
                ptx_mbar_arrive(pipeline_full<shape::stages>(barriers, at->stage));
            pipeline_step<shape::stages>(at);
        }
    }
}

/* One of warps 1 to 3. The source has
 *
 *   bool offered(uint32_t i)
 *       Whether next(i) would return at once; all lanes get the same.
 *
 *   const char *row_of_a(const struct mk_tile *tile, uint32_t row)
 *       Where row `row` of a tile is.
 *
 *   uint32_t row_bytes()
 *       Of a row of A; where products have scales of blocks, those of the row lie behind it.
 *
 * Scales of B are copied, too, to where the stage has room behind those of A's rows; of tiles whose
 * A the producer loads those alone. */
template <class shape, class tile_source, class operands>
PTX_FN void gemm_gather(const operands *op, tile_source *source, uint32_t shared)
{
    constexpr uint32_t groups = shape::tile_m / 4; /* of rows, that a warp copies at once */
    constexpr uint32_t most = (groups + GEMM_GATHER_WARPS - 1) / GEMM_GATHER_WARPS;
    const uint32_t barriers = shape::barriers(shared);
    const uint32_t first = threadIdx.x / 32 - 1, lane = threadIdx.x % 32, piece = lane % 8;
    struct pipeline_position at = {};
    struct gather_filled filled = {};
    struct mk_tile tile;
    for (uint32_t i = 0;; i++) {
        const char *from[most];
        uint32_t has = 0; /* rows that the tile has, a bit for each of `from` */
        if (!source->offered(i))
            gather_tell<shape::stages, 0>(barriers, &filled);
        if (!source->next(i, &tile))
            break;
        const uint32_t stages_of_k = source->stages_of_k(op, &tile);
        struct gather_scales scales = {nullptr, 0};
        if constexpr (shape::scales_part_bytes > 0) {
            const auto of = source->scales(i, &tile, 0);
            scales = {of.b, of.columns > 128 ? of.b_pitch : 0};
        }
        if (!source->gathered(&tile)) {
            gather_tell<shape::stages, 0>(barriers, &filled);
            gather_pass<shape>(shared, &at, stages_of_k, &scales, &filled, op->limit_ns);
            if (!shape::scales_part_bytes)
                filled.at = at;
            continue;
        }
#pragma unroll
        for (uint32_t j = 0; j < most; j++) {
            uint32_t row = (first + j * GEMM_GATHER_WARPS) * 4 + lane / 8;
            from[j] = source->row_of_a(&tile, row < tile.rows ? row : 0) + piece * 16;
            has |= (row < tile.rows) << j;
        }
        for (uint32_t k = 0; k < stages_of_k; k++) {
            uint32_t stage = shared + at.stage * shape::stage_bytes;
            uint32_t in_row = k * (GEMM_TILE_K * 2);
            uint32_t inside = in_row + piece * 16 < source->row_bytes() ? has : 0;
            pipeline_wait_empty<shape::stages>(barriers, &at, op->limit_ns);
#pragma unroll
            for (uint32_t j = 0; j < most; j++) {
                uint32_t group = first + j * GEMM_GATHER_WARPS, row = group * 4 + lane / 8;
                if (group < groups) /* the 128-byte swizzle: piece p of row r lies at p ^ (r % 8) */
                    ptx_copy_async_16(stage + row * 128 + (piece ^ (row % 8)) * 16,
                                      from[j] + in_row, (inside >> j & 1) * 16);
                if (shape::scales_part_bytes && piece == 0 && group < groups)
                    ptx_copy_async_4(shared + shape::scales_offset +
                                         at.stage * shape::scales_part_bytes + row * 4,
                                     from[j] + source->row_bytes() + k * 4);
            }
            if constexpr (shape::scales_part_bytes > 0)
                gather_scales_of<shape>(&scales, shape::b_scales(shared, at.stage), k);
            ptx_copy_async_commit();
            filled.count++;
            pipeline_step<shape::stages>(&at);
            gather_tell<shape::stages, GEMM_GATHER_LAG>(barriers, &filled);
        }
    }
    gather_tell<shape::stages, 0>(barriers, &filled);
}
