/* Products of e4m3 on the second engine: what mma.sync has added of 128 of K, which is a stage and a
 * block of scales, is promoted with the scales of its blocks to sums in fp32 registers, since the
 * tensor cores of compute capability 8.9 keep 14 bits of a sum.
 *
 * A lane loads the scales of its rows itself, when the stage is there: what brought A brought them,
 * and they are wanted behind the stage's products. */
#ifndef MK_KERNELS_MMA_GEMM_PROMOTE_CUH
#define MK_KERNELS_MMA_GEMM_PROMOTE_CUH

#include "kernels/mma/gemm.cuh"

/* Where a tile's scales lie, from its first row and column on: a + block * a_pitch + row, of `rows`
 * rows, and b + block. */
struct mma_scales {
    const float *a, *b;
    uint32_t a_pitch, rows;
};

/* Where a lane loads its next fragments of a stage from. It is turned in place: what is worked out
 * ahead would keep a register. */
struct mma_promote_lane {
    uint32_t a, b;

    template <uint32_t bits> MMA_MEMBER void turn()
    {
        mma_turn<bits>(&a);
        mma_turn<bits>(&b);
    }
};

/* The products of a stage, which are added to `sum` by a scale of each of the lane's two rows.
 * Fragments are loaded a step, of 16 columns and 32 of K, before their products. When the last are
 * loaded the stage is given back. */
template <class shape>
PTX_FN void mma_promote_stage(float (&sum)[shape::sums], struct mma_promote_lane from,
                              uint32_t empty, const float (&scale)[2])
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
                __syncwarp();
                if (threadIdx.x % 32 == 0)
                    ptx_mbar_arrive(empty);
            }
#pragma unroll
            for (int n = 0; n < 2; n++)
                mma_e4m3(&raw[(t % groups * 2 + n) * 4], a[t / groups], &b[t % 2][n * 2]);
        }
#pragma unroll
    for (int j = 0; j < shape::sums; j++)
        sum[j] = __fmaf_rn(scale[j / 2 % 2], raw[j], sum[j]);
}

template <class shape, class tile_source, class first>
PTX_FN void mma_promote(float (&sum)[shape::blocks][shape::sums], uint32_t shared,
                        const struct mma_lane *lane, struct pipeline_position *at,
                        const tile_source *source, const struct mk_tile *tile, uint32_t stages_of_k,
                        uint64_t limit_ns, const first &landed)
{
    static_assert(shape::blocks == 1 && shape::tile_k == 64 && shape::tile_n <= 128 && !shape::b_kn,
                  "a stage is a block of scales, of which a tile has one of B's");
    struct mma_scales of = source->scales(tile);
    const uint32_t row = shape::row(threadIdx.x / 32, 0) + threadIdx.x % 32 / 4,
                   last = of.rows - 1; /* rows behind it have its scales, and are dropped */
    of.a += row < last ? row : last;
    const uint32_t lower = row + 8 < last ? 8 : row < last ? last - row : 0;
    ring_wait_full<shape::stages>(shared + shape::barriers_offset, at, limit_ns);
    landed();
#pragma unroll
    for (int j = 0; j < shape::sums; j++)
        sum[0][j] = 0;
#pragma unroll 1
    for (uint32_t left = stages_of_k; left; left--) {
        const uint32_t stage = shared + at->stage * shape::stage_bytes;
        const float scale[2] = {mma_load_l2(of.a) * *of.b, mma_load_l2(of.a + lower) * *of.b};
        mma_promote_stage<shape>(
            sum[0], {stage + lane->a, stage + lane->b},
            pipeline_empty<shape::stages>(shared + shape::barriers_offset, at->stage), scale);
        of.a += of.a_pitch;
        of.b++;
        pipeline_step<shape::stages>(at);
        if (left > 1)
            ring_wait_full<shape::stages>(shared + shape::barriers_offset, at, limit_ns);
    }
}

#endif
