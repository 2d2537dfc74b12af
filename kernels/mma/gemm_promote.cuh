/* Products of e4m3 on the second engine: what mma.sync has added of 128 of K, which is a stage and a
 * block of scales, is promoted with the scales of its blocks to sums in fp32 registers, since the
 * tensor cores of compute capability 8.9 keep 14 bits of a sum.
 *
 * A lane loads the scales of its rows itself, when the stage is there: what brought A brought them,
 * and they are wanted behind the stage's products. */
#pragma once

#include "kernels/engine/column_scales.cuh"
#include "kernels/mma/gemm.cuh"

/* Where the scales of a lane lie: of its upper row and of its lower one a[i] + block * a_pitch, and
 * of the tile's columns b + block; of a second run of columns `second` behind that. */
struct mma_lane_scales {
    const float *a[2], *b;
    uint32_t a_pitch, second;
};

/* Of rows `row` and row + 8 of the tile. Rows behind the last have the last one's, and are dropped.
 */
template <class tile_source>
PTX_FN struct mma_lane_scales mma_scales_of(const tile_source *source, uint32_t i,
                                            const struct mk_tile *tile, uint32_t row)
{
    const struct engine_scales s = source->scales(i, tile, 0);
    const uint32_t last = s.rows - 1, upper = row < last ? row : last,
                   lower = row + 8 < last ? row + 8 : last;
    if constexpr (tile_source::gathers)
        if (source->gathered(tile)) /* not whether s.a is NULL: kernels/engine/engine.cuh */
            return {{(const float *)(source->row_of_a(tile, upper) + source->row_bytes()),
                     (const float *)(source->row_of_a(tile, lower) + source->row_bytes())},
                    s.b,
                    1,
                    0};
    return {{s.a + upper, s.a + lower}, s.b, s.a_pitch, 0};
}

/* Where a lane loads its next fragments of a stage from. It is turned in place: what is worked out
 * ahead would keep a register. */
struct mma_promote_lane {
    uint32_t a, b;

    template <uint32_t bits> ENGINE_MEMBER void turn()
    {
        mma_turn<bits>(&a);
        mma_turn<bits>(&b);
    }
};

/* The products of a stage, which are added to `sum` by a scale of each of the lane's two rows and
 * each run of columns. Fragments are loaded a step, of 16 columns and 32 of K, before their products. When the last are
 * loaded the stage is given back. */
template <class shape, int runs>
PTX_FN void mma_promote_stage(float (&sum)[shape::sums], struct mma_promote_lane from,
                              uint32_t empty, const float (&scale)[runs][2])
{
    constexpr int groups = shape::columns / 16, steps = 2 * groups;
    float raw[shape::sums] = {};
    uint32_t a[2][4], b[2][4];
    mma_load_a<shape>(a[0], from.a, 0);
    mma_load_b<shape>(b[0], from.b, 0, 0);
#pragma unroll 1
    for (int more = 1; more >= 0; more--)
#pragma unroll
        for (int t = 0; t < steps; t++) {
            const int soon = t + 1;
            if (soon == steps)
                from.turn<96>();
            else if (soon == groups)
                from.turn<32>();
            if (soon < steps || more) {
                if (soon % groups == 0)
                    mma_load_a<shape>(a[soon / groups % 2], from.a, 0);
                mma_load_b<shape>(b[soon % 2], from.b, 0, soon % groups);
            } else {
                ring_give_back(empty);
            }
#pragma unroll
            for (int n = 0; n < 2; n++)
                mma_e4m3(&raw[(t % groups * 2 + n) * 4], a[t / groups], &b[t % 2][n * 2]);
        }
#pragma unroll
    for (int j = 0; j < shape::sums; j++)
        sum[j] = __fmaf_rn(scale[j / (shape::sums / runs)][j / 2 % 2], raw[j], sum[j]);
}

template <class shape, class tile_source, class first>
PTX_FN void mma_promote(float (&sum)[shape::blocks][shape::sums], uint32_t shared,
                        const struct mma_lane *lane, struct pipeline_position *at,
                        const tile_source *source, const struct mk_tile *tile, uint32_t i,
                        uint32_t stages_of_k, uint64_t limit_ns, const first &landed)
{
    static_assert(shape::blocks == 1 && shape::tile_k == 64 && shape::tile_n <= 128 && !shape::b_kn,
                  "a stage is a block of scales, of which a tile has one of B's");
    constexpr int runs = tile_source::two_runs || mma_gates<shape, tile_source> ? 2 : 1;
    ring_wait_full<shape::stages>(shared + shape::barriers_offset, at, limit_ns);
    landed();
    struct mma_lane_scales of =
        mma_scales_of(source, i, tile, shape::row(threadIdx.x / 32, 0) + threadIdx.x % 32 / 4);
    if constexpr (runs > 1)
        of.second = source->to_second(tile);
#pragma unroll
    for (int j = 0; j < shape::sums; j++)
        sum[0][j] = 0;
#pragma unroll 1
    for (uint32_t left = stages_of_k; left; left--) {
        const uint32_t stage = shared + at->stage * shape::stage_bytes;
        const float a[2] = {mma_load_l2(of.a[0]), mma_load_l2(of.a[1])};
        float scale[runs][2];
#pragma unroll
        for (int run = 0; run < runs; run++) {
            const float b = tile_source::by_columns ? 1 : of.b[run * of.second];
            scale[run][0] = a[0] * b;
            scale[run][1] = a[1] * b;
        }
        mma_promote_stage<shape, runs>(
            sum[0], {stage + lane->a, stage + lane->b},
            pipeline_empty<shape::stages>(shared + shape::barriers_offset, at->stage), scale);
        of.a[0] += of.a_pitch;
        of.a[1] += of.a_pitch;
        of.b++;
        pipeline_step<shape::stages>(at);
        if (left > 1)
            ring_wait_full<shape::stages>(shared + shape::barriers_offset, at, limit_ns);
    }
    if constexpr (tile_source::by_columns) {
        const struct column_scales s = source->columns(i, tile);
        column_scales_apply<(runs > 1)>(&s, sum[0], shape::column(threadIdx.x / 32));
    }
}
