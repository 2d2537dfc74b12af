/* Sums of e4m3 products, for the GEMM engine (gemm.cuh): what the tensor core
 * has added of 128 of K is promoted, with the scales of its blocks, to sums in fp32 registers.
 *
 * Beside its final sums a consumer warpgroup has two sets of raw ones, of 64 x 64, which it fills
 * in turn: while it adds one, the other's products are under way. 128 x 256 sums are 128 registers
 * of a thread, the raw ones 64. A source that adds to so many has room for one set only: while it is
 * added, the other warpgroup's products are under way. Wider pieces would read A less often, and leave no room for a
 * second set: on an H200 that was slower (docs/FIGURES.md). The promotion takes one FFMA for each
 * sum and 128 of K, a quarter of the SM's issue slots at full speed. */
#pragma once

#include "kernels/engine/column_scales.cuh"
#include "kernels/hopper/gemm.cuh"

#include <type_traits>

/* The first of the two rows, eight apart, of which this thread has sums in each 64. */
PTX_FN uint32_t gemm_thread_row(void)
{
    return threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
}

/* A consumer thread's way along the scales of blocks; by_columns: of A's. */
template <class shape, bool by_columns = false> struct gemm_scale_walk {
    static constexpr int columns = shape::tile_n > 128 ? shape::tile_n / 128 : 1; /* of 128 */
    const float *b;                  /* of the next block */
    uint32_t to_second;              /* floats, to the second 128 columns' */
    uint32_t rows[shape::blocks][2]; /* bytes from the first whole 16 of a slot on */
    uint32_t left;                   /* blocks of K behind the next */
    float ahead[columns];            /* B's scales of the next block */
    static_assert(columns <= 2, "a tile has at most 256 columns");

    ENGINE_MEMBER void load(void)
    {
#pragma unroll
        for (int p = 0; p < columns; p++)
            ahead[p] = by_columns ? 1 : b[p * to_second];
    }

    /* Of blocks behind the last those of the last stand for them. Of one part a stage the caller says whether there is another. */
    ENGINE_MEMBER void skip(uint32_t count, bool more = true)
    {
        if (shape::parts == 1) {
            b += more ? count : 0;
            return;
        }
        count = left < count ? left : count;
        left -= count;
        b += count;
    }

    /* second: to_second. */
    ENGINE_MEMBER void begin(const struct engine_scales *s, uint32_t half, uint32_t second)
    {
        const uint32_t part = shape::parts == 2 ? half : 0,
                       row = shape::first_row(half) + gemm_thread_row();
        left = s->blocks - 1;
        b = s->b;
        skip(part);
        to_second = second;
#pragma unroll
        for (int i = 0; i < 2 * shape::blocks; i++) {
            uint32_t r = row + i / 2 * 64 + i % 2 * 8;
            rows[i / 2][i % 2] =
                (r < s->rows ? r : s->rows - 1) * 4 + (uint32_t)((uint64_t)s->a % 16);
        }
        load();
    }

    /* The scales of the block that lies in `slot`: a of each row, b of each 128 columns. */
    ENGINE_MEMBER void take(uint32_t slot, float (&a)[shape::blocks][2], float (&b_now)[columns],
                            bool more)
    {
#pragma unroll
        for (int i = 0; i < 2 * shape::blocks; i++)
            a[i / 2][i % 2] = __uint_as_float(ptx_load_shared(slot + rows[i / 2][i % 2]));
#pragma unroll
        for (int p = 0; p < columns; p++)
            b_now[p] = ahead[p];
        skip(shape::parts, more);
        load();
    }
};

/* Where rows of A lie apart all scales lie in the stage: a's, and behind those of its rows b's. Only
 * that a thread works out anew for each stage which are its own. */
template <class shape> struct gemm_scale_slots {
    static constexpr int columns = gemm_scale_walk<shape>::columns;
    static_assert(shape::parts == 1 && shape::blocks == 1, "of gemm_gather.cuh");

    ENGINE_MEMBER void take(uint32_t shared, uint32_t stage, float (&a)[1][2],
                            float (&b_now)[columns])
    {
        const uint32_t thread = ptx_opaque(threadIdx.x) - 128,
                       row = shared + shape::scales_offset + stage * shape::scales_part_bytes +
                             (thread / 32 * 16 + thread % 32 / 4) * 4;
        a[0][0] = __uint_as_float(ptx_load_shared(row));
        a[0][1] = __uint_as_float(ptx_load_shared(row + 8 * 4));
#pragma unroll
        for (int p = 0; p < columns; p++)
            b_now[p] = __uint_as_float(ptx_load_shared(shape::b_scales(shared, stage) + p * 4));
    }
};

/* sum += raw, by a's scale of each row and b of all columns. */
template <int count>
PTX_FN void gemm_add_raw(float *sum, const float (&raw)[count], const float (&a)[2], float b)
{
    const float scale[2] = {a[0] * b, a[1] * b};
#pragma unroll
    for (int i = 0; i < count; i++)
        sum[i] = __fmaf_rn(scale[i / 2 % 2], raw[i], sum[i]);
}

/* The stage at which the tile before is told of. */
PTX_FN uint32_t gemm_later(uint32_t stages_of_k)
{
    return stages_of_k > 2 ? 2 : stages_of_k - 1;
}

/* What gemm_multiply does, with promotion after every 128 of K. */
template <class shape, class tile_source>
PTX_FN void gemm_promote(const struct gemm_operands *op, tile_source *source,
                         struct gemm_ring *ring, float (&sum)[shape::blocks][shape::sums],
                         const struct mk_tile *tile, uint32_t i, uint32_t half, uint32_t rank)
{
    constexpr int across = shape::tile_n / 64, pieces = shape::blocks * across;
    const uint32_t stages_of_k = source->stages_of_k(op, tile), later = gemm_later(stages_of_k),
                   lane = threadIdx.x % 32, part = shape::parts == 2 ? half : 0;
    std::conditional_t<tile_source::gathers, gemm_scale_slots<shape>,
                       gemm_scale_walk<shape, tile_source::by_columns>>
        walk;
    constexpr int sets = tile_source::template raw_sets<shape>;
    float raw[sets][32], a[shape::blocks][2] = {}, b[gemm_scale_walk<shape>::columns] = {};
    if constexpr (!tile_source::gathers) {
        const struct engine_scales scales = source->scales(i, tile, rank * shape::tile_m);
        uint32_t second = scales.columns > 128 ? scales.b_pitch : 0;
        if constexpr (tile_source::gates && shape::tile_n > 128)
            second = source->up() ? source->to_second(tile) : second;
        walk.begin(&scales, half, second);
    }
#pragma unroll
    for (int m = 0; m < shape::blocks; m++)
#pragma unroll
        for (int j = 0; j < shape::tile_n / 2; j++)
            sum[m][j] = 0;
    for (uint32_t k = 0; k < stages_of_k; k++) {
        pipeline_wait_full<shape::stages>(ring->barriers, &ring->at, op->limit_ns);
        if (k == 0 && threadIdx.x % 128 == 0)
            source->begin(i, tile);
        if (i > 0 &&
            k ==
                (gemm_tightest<shape, tile_source> ? gemm_later(ptx_opaque(stages_of_k)) : later) &&
            threadIdx.x % 128 == 0)
            source->publish(i - 1, half);
        const uint32_t stage = ring->shared + ring->at.stage * shape::stage_bytes;
        if constexpr (tile_source::gathers)
            walk.take(ring->shared, ring->at.stage, a, b);
        else
            walk.take(ring->shared + shape::scales_offset +
                          (ring->at.stage * shape::parts + part) * shape::scales_part_bytes,
                      a, b, k + 1 < stages_of_k);
        /* a source that gathers has no register for where its rows begin */
        const uint32_t first =
            shape::first_row(tile_source::gathers ? gemm_half<shape, tile_source>(half) : half);
        const uint64_t rows = wgmma_descriptor(stage + part * shape::a_part_bytes + first * 128, 0);
        const uint64_t columns =
            wgmma_descriptor(stage + shape::a_bytes + part * shape::b_part_bytes, 0);
        auto start = [&](float(&to)[32], int j) {
            wgmma_settle(to);
            wgmma_fence();
#pragma unroll
            for (int q = 0; q < 4; q++)
                wgmma_e4m3(to, wgmma_advance(rows, j / across * 64 * 128 + q * 32),
                           wgmma_advance(columns, j % across * 64 * 128 + q * 32), q > 0);
            wgmma_commit();
        };
        start(raw[0], 0);
#pragma unroll
        for (int j = 0; j < pieces; j++) {
            if (sets == 2 && j + 1 < pieces) {
                start(raw[(j + 1) % sets], j + 1);
                wgmma_wait<1>();
            } else {
                wgmma_wait<0>();
            }
            if (j + 1 == pieces) {
                __syncwarp();
                pipeline_release_own<shape::stages, shape::cluster>(ring->barriers, ring->at.stage,
                                                                    lane, rank);
            }
            wgmma_settle(raw[j % sets]);
            gemm_add_raw(&sum[j / across][j % across * 32], raw[j % sets], a[j / across],
                         b[j % across / 2]);
            if (sets == 1 && j + 1 < pieces)
                start(raw[0], j + 1);
        }
        pipeline_step<shape::stages>(&ring->at);
    }
    if constexpr (tile_source::by_columns) {
        const struct column_scales s = source->columns(i, tile);
#pragma unroll
        for (int m = 0; m < shape::blocks; m++)
            column_scales_apply<tile_source::gates && (shape::tile_n > 128)>(&s, sum[m], 0);
    }
}
