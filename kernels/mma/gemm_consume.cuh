/* The consumers of engine mma: warps that multiply what is in the stages and store C. */
#pragma once

#include "kernels/mma/gemm_shape.cuh"

/* Where the rows that a lane names to ldmatrix lie in a stage: of the warp's first 16 of A and of
 * K, and of its first 16 columns of B. From there to the next 16 along a row it is 32 bytes, by
 * exclusive or as rows are swizzled; and as many rows down as there are. */
struct mma_lane {
    uint32_t a, b;
};

template <class shape> PTX_FN struct mma_lane mma_lane_of(uint32_t warp, bool b_kn)
{
    constexpr uint32_t row_bytes = shape::row_bytes;
    const uint32_t lane = threadIdx.x % 32, row = lane % 16, column = lane / 16 * 8 + lane % 8;
    struct mma_lane at;
    at.a = (shape::row(warp, 0) + row) * row_bytes + (lane / 16 * 16 ^ mma_swizzle<row_bytes>(row));
    if (b_kn)
        at.b = shape::a_bytes + shape::column(warp) / 64 * (shape::tile_k * 128) + row * 128 +
               (shape::column(warp) % 64 * 2 + lane / 16 * 16 ^ mma_swizzle<128>(row));
    else
        at.b = shape::a_bytes + (shape::column(warp) + column) * row_bytes +
               (lane / 8 % 2 * 16 ^ mma_swizzle<row_bytes>(column));
    return at;
}

/* A warp's fragments of 16 rows of A and 16 of K; and those of B for 16 of K and 16 columns. at:
 * the lane's place in the stage, of A turned to the 16 of K, and of B as N x K too. */
template <class shape> PTX_FN void mma_load_a(uint32_t (&a)[4], uint32_t at, int block)
{
    constexpr uint32_t apart = (shape::warp_columns == 1 ? 64 : 16) * shape::row_bytes;
    ptx_ldmatrix_x4(at + block * apart, a);
}

template <class shape> PTX_FN void mma_load_b(uint32_t (&b)[4], uint32_t at, int slice, int columns)
{
    static_assert(shape::b_kn != ENGINE_B_EITHER, "engine_as_laid tells");
    const uint32_t right = shape::right(columns);
    if (shape::b_kn)
        ptx_ldmatrix_x4_transposed(
            (at ^ right % 64 * 2) + right / 64 * (shape::tile_k * 128) + slice * (16 * 128), b);
    else
        ptx_ldmatrix_x4(at + right * shape::row_bytes, b);
}

/* D += A B of what the shape has (kernels/mma/mma.cuh). */
template <int element> PTX_FN void mma_half(float *d, const uint32_t *a, const uint32_t *b)
{
    if constexpr (element == MK_FP16)
        mma_f16(d, a, b);
    else
        mma_bf16(d, a, b);
}

/* A warp's fragments on their way to the tensor cores: all of A for 16 of K, and of B for the next
 * steps of 16 columns. */
template <class shape> struct mma_fragments {
    static constexpr int groups = shape::columns / 16, steps = 2 * groups, /* of 32 of K */
        ahead = shape::blocks > 2 ? 1 : 2, places = 2 * ahead;
    uint32_t a[shape::blocks][4], b[places][4];
    static_assert(steps % places == 0, "places are constants");
};

/* The first fragments of a stage. from: where it then reads. */
template <class shape>
PTX_FN void mma_load_first(struct mma_fragments<shape> *f, const struct mma_lane *lane,
                           struct mma_lane *from, uint32_t stage)
{
    from->a = stage + lane->a;
    from->b = stage + lane->b;
#pragma unroll
    for (int m = 0; m < shape::blocks; m++)
        mma_load_a<shape>(f->a[m], from->a, m);
#pragma unroll
    for (int j = 0; j < mma_fragments<shape>::ahead; j++)
        mma_load_b<shape>(f->b[j], from->b, 0, j);
}

/*
 * The products of 32 of K, whose first fragments are in registers. Each fragment of B is loaded
 * some steps before its products, and one of A when the last products with the one before it in its
 * registers have begun: so ldmatrix has time while the tensor cores work, and 168 registers are
 * enough. When the last of the stage are loaded (`ends`) it is given back, and those of the next
 * stage follow, unless there are none (not `more`).
 */
template <class shape>
PTX_FN void mma_multiply_32(float (&sum)[shape::blocks][shape::sums],
                            struct mma_fragments<shape> *f, uint32_t shared,
                            const struct mma_lane *lane, struct mma_lane *from,
                            struct pipeline_position *at, bool ends, bool more, uint64_t limit_ns)
{
    constexpr int groups = mma_fragments<shape>::groups, steps = mma_fragments<shape>::steps,
                  ahead = mma_fragments<shape>::ahead, places = mma_fragments<shape>::places;
    const uint32_t barriers = shared + shape::barriers_offset;
#pragma unroll
    for (int t = 0; t < steps; t++) {
        const int soon = t + ahead;
        if (soon == steps && ends) {
            ring_give_back(pipeline_empty<shape::stages>(barriers, at->stage));
            pipeline_step<shape::stages>(at);
            from->b = shared + at->stage * shape::stage_bytes + lane->b;
            if (more)
                ring_wait_full<shape::stages>(barriers, at, limit_ns);
        } else if (soon == steps) {
            if (shape::b_kn)
                from->b += 32 * 128;
            else
                mma_turn<96>(&from->b);
        } else if (!shape::b_kn && soon == groups) {
            mma_turn<32>(&from->b);
        }
        if (soon < steps || more)
            mma_load_b<shape>(f->b[soon % places], from->b, soon % steps / groups, soon % groups);
        if (t + 1 == groups)
            mma_turn<32>(&from->a);
        else if (t + 1 == steps && ends)
            from->a = shared + at->stage * shape::stage_bytes + lane->a;
        else if (t + 1 == steps)
            mma_turn<96>(&from->a);
#pragma unroll
        for (int m = 0; m < shape::blocks; m++) {
#pragma unroll
            for (int n = 0; n < 2; n++)
                mma_half<shape::element>(&sum[m][(t % groups * 2 + n) * 4], f->a[m],
                                         &f->b[t % places][n * 2]);
            if (t + 1 == groups || (t + 1 == steps && more))
                mma_load_a<shape>(f->a[m], from->a, m);
        }
    }
}

/* The products of a tile. landed: is called when its first stage is here. */
template <class shape, class first>
PTX_FN void mma_multiply(float (&sum)[shape::blocks][shape::sums], uint32_t shared,
                         const struct mma_lane *lane, struct pipeline_position *at,
                         uint32_t stages_of_k, uint64_t limit_ns, const first &landed)
{
    constexpr uint32_t parts = shape::tile_k / 32;
    struct mma_fragments<shape> f;
    struct mma_lane from;
#pragma unroll
    for (int m = 0; m < shape::blocks; m++)
#pragma unroll
        for (int j = 0; j < shape::sums; j++)
            sum[m][j] = 0;
    ring_wait_full<shape::stages>(shared + shape::barriers_offset, at, limit_ns);
    landed();
    mma_load_first<shape>(&f, lane, &from, shared + at->stage * shape::stage_bytes);
#pragma unroll 1
    for (uint32_t left = stages_of_k * parts; left; left--)
        mma_multiply_32<shape>(sum, &f, shared, lane, &from, at, left % parts == 1 % parts,
                               left > 1, limit_ns);
}

/* The same of a source that is scaled: kernels/mma/gemm_promote.cuh. */
template <class shape, class tile_source, class first>
PTX_FN void mma_promote(float (&sum)[shape::blocks][shape::sums], uint32_t shared,
                        const struct mma_lane *lane, struct pipeline_position *at,
                        const tile_source *source, const struct mk_tile *tile, uint32_t i,
                        uint32_t stages_of_k, uint64_t limit_ns, const first &landed);

/* A lane stores 16 bytes of its rows at a time: the lanes of a quad exchange what they have of four
 * times 8 columns, so each has 8 of its own. What lies outside C is dropped, and what does from its
 * column `end` on. columns: the first so many of the warp's. */
template <class shape, int columns = shape::columns>
PTX_FN void mma_store(const struct mma_matrix *c, const struct engine_place *place, uint32_t end,
                      const float (&sum)[shape::blocks][shape::sums], uint32_t warp)
{
    const uint32_t lane = threadIdx.x % 32, row = place->y + shape::row(warp, 0) + lane / 4,
                   column = place->x + shape::column(warp) + lane % 4 * 8;
    char *const first = c->base + place->z * c->slab_pitch + row * c->pitch + column * 2;
#pragma unroll
    for (int m = 0; m < shape::blocks; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const uint32_t down = shape::row(0, m) + half * 8;
            char *const to = first + down * c->pitch;
#pragma unroll
            for (int j = 0; j < columns / 32; j++) {
                uint32_t v[4];
#pragma unroll
                for (int n = 0; n < 4; n++) {
                    const float *d = &sum[m][(j * 4 + n) * 4 + half * 2];
                    v[n] = half_pack<shape::element>(d[0], d[1]);
                }
                mma_exchange(v);
                if (row + down < c->rows && column + shape::right(j * 2) < end)
                    *(uint4 *)(to + shape::right(j * 2) * 2) = make_uint4(v[0], v[1], v[2], v[3]);
            }
        }
}

/* kernels/mma/gemm_tree.cuh has it, which kernels of such sources include. */
template <class shape, class tile_source, class first>
PTX_FN void mma_sum_blocks(float (&sum)[shape::blocks][shape::sums], const tile_source *source,
                           uint32_t shared, const struct mma_lane *lane,
                           struct pipeline_position *at, uint32_t stages_of_k, uint64_t limit_ns,
                           const first &landed);

template <class shape, class tile_source>
PTX_FN void mma_consume(const struct mma_operands *op, tile_source *source, uint32_t shared,
                        uint32_t warp)
{
    float sum[shape::blocks][shape::sums];
    const struct mma_lane lane = mma_lane_of<shape>(warp, mma_b_kn<shape>(op));
    const uint32_t half = warp / 4;
    struct pipeline_position at = {};
    struct mk_tile tile;
    for (uint32_t i = 0; source->next(i, &tile); i++) {
        const uint32_t stages_of_k = source->stages_of_k(op, &tile);
        const auto landed = [&] {
            if (threadIdx.x % 128 == 0)
                source->begin(i, &tile);
            __syncwarp();
        };
        if constexpr (tile_source::scaled)
            mma_promote<shape>(sum, shared, &lane, &at, source, &tile, i, stages_of_k, op->limit_ns,
                               landed);
        else
            engine_as_laid<shape>(op, [&](auto laid) {
                typedef decltype(laid) as_laid;
                if constexpr (tile_source::tree)
                    mma_sum_blocks<as_laid>(sum, source, shared, &lane, &at, stages_of_k,
                                            op->limit_ns, landed);
                else
                    mma_multiply<as_laid>(sum, shared, &lane, &at, stages_of_k, op->limit_ns,
                                          landed);
            });
        source->template epilogue<shape>(&tile, sum, shape::column(threadIdx.x / 32));
        if (!source->template store_sums<shape>(i, sum, half, 0)) {
            const struct engine_place place = source->place(i, &tile, 0);
            const struct mma_matrix *c = source->c(op, &tile);
            uint32_t end = c->columns;
            if constexpr (mma_gates<shape, tile_source>)
                if (source->up()) { /* what was let through has been multiplied by */
                    const uint32_t half = place.x + shape::tile_n / 2;
                    end = end < half ? end : half;
                }
            mma_store<shape>(c, &place, end, sum, threadIdx.x / 32);
        }
        if (tile_source::announces)
            ptx_bar_sync(named_warpgroup(half));
        if (threadIdx.x % 128 == 0)
            source->after(i, &tile, half);
    }
}
