/* The producer of engine wgmma: one thread loads tiles of A and B, and scales of A, to the stages of
 * the ring, and what a source adds to a tile behind them. */
#pragma once

#include "kernels/hopper/gemm_shape.cuh"

/* Loads the elements of a stage of K from `k` on, and of its second part from `step` behind them, of a
 * tile's columns of B (with a cluster: this CTA's share of them, for all). First of all it says what
 * loads will bring to the stage: `more` bytes, too. */
template <class shape, class tile_source>
PTX_FN void gemm_load_b(const struct gemm_operands *op, const tile_source *source, uint32_t stage,
                        uint32_t full, const struct mk_tile *tile, int32_t slab, int32_t k,
                        int32_t step, uint32_t rank, uint32_t more)
{
    constexpr uint16_t everyone = (1 << shape::sharers) - 1;
    constexpr int share = shape::tile_n / shape::sharers,
                  run = tile_source::two_runs || (tile_source::gates && shape::cluster == 1)
                            ? share / 2
                            : share;
    const CUtensorMap *map_b = source->b(op, tile);
    if (shape::splits)
        rank = 0;
    uint32_t b = stage + shape::a_bytes + rank * (shape::b_bytes / shape::sharers);
    int32_t column = tile->col + rank * share,
            second = tile_source::two_runs ? source->second(tile) - run : 0;
    bool both = tile_source::two_runs;
    if constexpr (tile_source::gates && shape::tile_n >= 128)
        if (const uint32_t up = source->up()) { /* a pair's second CTA has that share */
            static_assert(shape::cluster <= 2, "two runs");
            if (shape::cluster == 2)
                column = tile->col + rank * up;
            else
                second = up - run;
            both = shape::cluster == 1;
        }
    ptx_mbar_expect(full, shape::b_bytes + more);
    static_assert(!tile_source::gathers || shape::parts == 1,
                  "who copies A copies all rows of a tile");
    static_assert(!tile_source::two_runs || (shape::cluster == 1 && run % 64 == 0),
                  "boxes of B are 64 wide");
#pragma unroll
    for (int part = 0; part < shape::parts; part++, k += step, b += shape::b_part_bytes) {
        if (shape::b_kn == ENGINE_B_KN || (shape::b_kn == ENGINE_B_EITHER && op->b_kn)) {
#pragma unroll
            for (int j = 0; j < share / 64; j++) {
                int32_t at = column + j * 64 + (j * 64 >= run ? second : 0);
                if (shape::sharers > 1)
                    ptx_tma_load_3d_cluster(b + j * shape::box_bytes, map_b, full, at, k, slab,
                                            everyone);
                else
                    source->load_box(b + j * shape::box_bytes, map_b, full, at, k, slab);
            }
        } else if (shape::sharers > 1) {
            ptx_tma_load_3d_cluster(b, map_b, full, k, column, slab, everyone);
        } else {
            source->load_box(b, map_b, full, k, column, slab);
            if (both)
                source->load_box(b + shape::b_part_bytes / 2, map_b, full, k, column + run + second,
                                 slab);
        }
    }
}

/* Rows of the box that brings `left` of A. Of 64 rows, eights: one row by itself took 3 us longer of
 * 36 (gemm_ar 1,8192,4096, two H200s). */
template <class shape> __host__ __device__ constexpr uint32_t gemm_a_box(uint32_t left)
{
    return shape::tile_m == 64 ? (left + 7) / 8 * 8 : left;
}

/* What a stage has of A: the CTA's rows of a tile, by which box. */
struct gemm_a_load {
    const CUtensorMap *map; /* NULL: nothing, others copy it or there are no rows */
    uint32_t bytes;
};

template <class shape, class tile_source>
PTX_FN struct gemm_a_load gemm_a_of(const struct gemm_operands *op, const struct gemm_a *a,
                                    const struct mk_tile *tile, uint32_t rank)
{
    const uint32_t height = gemm_loaded_height<shape, tile_source>(tile),
                   row = tile->row + (shape::splits ? 0 : rank * height);
    const uint32_t left = row < op->a_rows ? op->a_rows - row : 0;
    if (left >= height)
        return {height < shape::loaded_rows ? &a->half : &a->whole,
                height < shape::loaded_rows ? shape::a_bytes / 2 : shape::a_bytes};
    if (op->a_rest < shape::loaded_rows && gemm_a_box<shape>(left) == op->a_rest)
        return {&a->rest, shape::parts * op->a_rest * 128};
    return {left ? &a->whole : nullptr, left ? shape::a_bytes : 0};
}

/* The same of the CTA's rows of A. */
template <class shape, class tile_source>
PTX_FN void gemm_load_a(const struct gemm_a_load *a, uint32_t stage, uint32_t full,
                        const struct mk_tile *tile, int32_t k, int32_t step, uint32_t rank)
{
#pragma unroll
    for (int part = 0; part < shape::parts; part++)
        ptx_tma_load_3d(stage + part * shape::a_part_bytes, a->map, full, k + part * step,
                        tile->row +
                            (shape::splits ? 0 : rank * gemm_height<shape, tile_source>(tile)),
                        tile->a_slab);
}

/* A's scales of stage k of a tile go to its stage of the ring: the bytes of that, or the copies
 * themselves. Of a block behind the last of K, which a stage of two parts may have, those of the
 * last stand for it. */
template <class shape>
PTX_FN const char *gemm_scales_at(const struct engine_scales *scales, uint32_t block,
                                  uint32_t *bytes)
{
    if (shape::parts > 1 && block >= scales->blocks)
        block = scales->blocks - 1;
    uint64_t at = (uint64_t)(scales->a + (uint64_t)block * scales->a_pitch);
    uint32_t rows = scales->rows < shape::tile_m ? scales->rows : shape::tile_m;
    *bytes = ((uint32_t)(at % 16) + rows * 4 + 15) & ~15u;
    return (const char *)(at & ~15ull);
}

template <class shape>
PTX_FN uint32_t gemm_scales_bytes(const struct engine_scales *scales, uint32_t k)
{
    uint32_t sum = 0, bytes;
#pragma unroll
    for (uint32_t part = 0; part < shape::parts; part++) {
        gemm_scales_at<shape>(scales, k * shape::parts + part, &bytes);
        sum += bytes;
    }
    return sum;
}

template <class shape>
PTX_FN void gemm_load_scales(const struct engine_scales *scales, uint32_t shared, uint32_t stage,
                             uint32_t full, uint32_t k)
{
    uint32_t bytes;
#pragma unroll
    for (uint32_t part = 0; part < shape::parts; part++) {
        const char *from = gemm_scales_at<shape>(scales, k * shape::parts + part, &bytes);
        ptx_bulk_load(shared + shape::scales_offset +
                          (stage * shape::parts + part) * shape::scales_part_bytes,
                      from, bytes, full);
    }
}

/* The producer: one thread. */
template <class shape, class tile_source>
PTX_FN void gemm_produce(const struct gemm_operands *op, tile_source *source, uint32_t shared,
                         uint32_t rank)
{
    struct gemm_ring ring = {shared, shape::barriers(shared), {}};
    const uint32_t filled =
        op->stages_of_k < shape::stages ? op->stages_of_k - 1 : shape::stages - 1;
    constexpr bool blocks = !shape::half;
    constexpr int32_t stage_step = gemm_steps<shape, tile_source>::stage;
    const int32_t part_step = gemm_steps<shape, tile_source>::part(source);
    const uint32_t begin = gemm_first_stage<shape>(op, rank);
    struct engine_scales scales = {};
    struct gemm_a_load a = {};
    struct mk_tile tile;
    uint32_t i, ahead = 0; /* stages that the first tile's B is on its way to */
    bool begins = false;
    if constexpr (tile_source::b_ahead) {
        begins = source->first(&tile);
        if (begins)
            a = gemm_a_of<shape, tile_source>(op, source->a(&tile), &tile, rank);
    }
    ptx_await_launches();
    if (blocks && begins)
        scales = source->scales(0, &tile, rank * gemm_height<shape, tile_source>(&tile));
    if constexpr (tile_source::b_ahead)
        for (; begins && ahead <= filled; ahead++) {
            uint32_t stage = shared + ahead * shape::stage_bytes,
                     full = pipeline_full<shape::stages>(ring.barriers, ahead);
            gemm_load_b<shape>(op, source, stage, full, &tile, source->b_slab(&tile),
                               (begin + ahead) * stage_step, part_step, rank,
                               a.bytes + (blocks ? gemm_scales_bytes<shape>(&scales, ahead) : 0));
            if (blocks && tile_source::a_ahead)
                gemm_load_scales<shape>(&scales, shared, ahead, full, ahead);
            if (tile_source::a_ahead && a.map)
                gemm_load_a<shape, tile_source>(&a, stage, full, &tile,
                                                (begin + ahead) * stage_step, part_step, rank);
        }
    source->open(0);
    for (i = 0; source->next(i, &tile); i++) {
        const int32_t slab = source->b_slab(&tile);
        const uint32_t stages_of_k = source->stages_of_k(op, &tile);
        /* whoever copies A copies its scales */
        const bool here = !tile_source::gathers || !source->gathered(&tile),
                   scaled = blocks && here;
        a = {};
        if (here)
            a = gemm_a_of<shape, tile_source>(op, source->a(&tile), &tile, rank);
        if (scaled)
            scales = source->scales(i, &tile, rank * gemm_height<shape, tile_source>(&tile));
        for (uint32_t k = 0, slice = 0, left = 0; k < stages_of_k; k++, left--) {
            const bool begun = i == 0 && k < ahead;
            if (!begun)
                pipeline_wait_empty<shape::stages>(ring.barriers, &ring.at, &op->watch, i);
            if (!left) {
                source->before(i, &tile, slice++);
                left = op->stages_of_slice;
            }
            uint32_t stage = shared + ring.at.stage * shape::stage_bytes,
                     full = pipeline_full<shape::stages>(ring.barriers, ring.at.stage);
            if (!begun)
                gemm_load_b<shape>(op, source, stage, full, &tile, slab, (begin + k) * stage_step,
                                   part_step, rank,
                                   a.bytes + (scaled ? gemm_scales_bytes<shape>(&scales, k) : 0));
            if (scaled && !(tile_source::a_ahead && begun))
                gemm_load_scales<shape>(&scales, shared, ring.at.stage, full, k);
            if (a.map && !(tile_source::a_ahead && begun))
                gemm_load_a<shape, tile_source>(&a, stage, full, &tile, (begin + k) * stage_step,
                                                part_step, rank);
            pipeline_step<shape::stages>(&ring.at);
            if (k == filled)
                source->prefetch_next(i, &tile);
        }
        if (source->has_addends(i))
            source->template load_addends<shape>(i, &ring, rank);
    }
    pipeline_drain<shape::stages>(ring.barriers, &ring.at, &op->watch,
                                  i); /* nothing of A is read any more */
    source->close();
}

/* The same of a kernel that has several shapes, where only loads are a shape's. All of the first tile's are ahead, and nothing is
 * waited for before those of A. */
template <class shape, class tile_source>
PTX_FN void gemm_produce_stages(const struct gemm_operands *op, const tile_source *source,
                                struct gemm_ring *ring, const struct mk_tile *tile, uint32_t i,
                                uint32_t k, uint32_t end, uint32_t rank)
{
    static_assert(tile_source::b_ahead && tile_source::a_ahead && !tile_source::gathers &&
                      shape::half,
                  "gemm_produce has all of it");
    constexpr int32_t stage_step = gemm_steps<shape, tile_source>::stage;
    const int32_t part_step = gemm_steps<shape, tile_source>::part(source);
    const struct gemm_a_load a = gemm_a_of<shape, tile_source>(op, source->a(tile), tile, rank);
    const uint32_t begin = gemm_first_stage<shape>(op, rank);
    for (; k < end; k++) {
        pipeline_wait_empty<shape::stages>(ring->barriers, &ring->at, &op->watch, i);
        uint32_t stage = ring->shared + ring->at.stage * shape::stage_bytes,
                 full = pipeline_full<shape::stages>(ring->barriers, ring->at.stage);
        gemm_load_b<shape>(op, source, stage, full, tile, source->b_slab(tile),
                           (begin + k) * stage_step, part_step, rank, a.bytes);
        if (a.map)
            gemm_load_a<shape, tile_source>(&a, stage, full, tile, (begin + k) * stage_step,
                                            part_step, rank);
        pipeline_step<shape::stages>(&ring->at);
    }
}

template <class shapes, class tile_source>
PTX_FN void gemm_produce_several(const struct gemm_operands *op, tile_source *source,
                                 uint32_t shared, uint32_t rank)
{
    struct gemm_ring ring = {shared, 0, {}};
    struct mk_tile tile;
    uint32_t i, first = 0; /* stages of a tile that the ring has */
    const bool begins = source->first(&tile);
    shapes::choose(op->shape, [&](auto of) {
        typedef decltype(of) shape;
        ring.barriers = shape::barriers(shared);
        first = op->stages_of_k < shape::stages ? op->stages_of_k : shape::stages;
        ptx_await_launches();
        if (begins)
            gemm_produce_stages<shape>(op, source, &ring, &tile, 0, 0, first, rank);
    });
    source->open(0);
    for (i = 0; source->next(i, &tile); i++) {
#pragma unroll 1
        for (uint32_t k = 0, end = first; k < op->stages_of_k; k = end, end = op->stages_of_k) {
            if (i > 0 || k > 0)
                shapes::choose(op->shape, [&](auto shape) {
                    gemm_produce_stages<decltype(shape)>(op, source, &ring, &tile, i, k, end, rank);
                });
            if (k == 0)
                source->prefetch_next(i, &tile);
        }
        tile = {}; /* not kept */
        if (source->has_addends(i))
            shapes::choose(op->shape, [&](auto shape) {
                source->template load_addends<decltype(shape)>(i, &ring, rank);
            });
    }
    shapes::choose(op->shape, [&](auto shape) {
        pipeline_drain<decltype(shape)::stages>(ring.barriers, &ring.at, &op->watch, i);
    });
    source->close();
}
