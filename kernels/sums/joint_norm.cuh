/* A residual, and an RMSNorm, in the registers of gemm_ar's consumers in one shot (a plan's norm_inside): what
 * core/roles/gemm_rs.h has behind all tiles, without a meeting of all CTAs, and no row is read back.
 *
 * The residual comes to L2 while the sums of other ranks are waited for, and is added to C as it is rounded. For the
 * norm, where a CTA has one tile at most, so that all tiles are under way at once:
 *
 *   squares[row][column tile]   a tile's sum of the squares of a row of the new residual: from the warp that has it
 *   scales[row]                 1 / sqrt(mean + eps): from the warp of some tile that adds a row's squares, in the
 *                               order of its tiles
 *   largest[row][column tile]   where rows are quantized, the largest of a tile's normed numbers: of two tiles that
 *                               share a block of scales, each from the warp that has the row
 *
 * All are words of this GPU's memory that carry the launch's number, so that one store and one load bring a number:
 * no fence, no counter. Rows are spread over all tiles' warps, so that a warp has one of them at most, mostly.
 *
 * Buffer reuse: a warp stores in launch e + 1 when launch e has ended on this GPU (its tile's product stands behind
 * ptx_await_launches), and then nobody looks for words of e.
 *
 * Deadlock freedom: a warp stores its squares before it waits for squares, and these before it waits for a scale; and
 * its largest, once it has the scale, before it waits for its neighbour's. All CTAs of a launch are co-resident. */
#pragma once

#include "kernels/sums/joint.cuh"

#include "kernels/cta/cta_norm.cuh"

/* A warp waits for words of launch `epoch`, each lane for those at from[i * 32] of its first `count`. All lanes go
 * the same way: behind a loop in which they may part, a write of accumulators serialises products (C7520). */
template <int most>
REDUCE_MEMBER void norm_await(uint64_t (&word)[most], const uint64_t *from, uint32_t count,
                              uint32_t epoch, uint64_t limit_ns)
{
    const uint64_t start = ptx_globaltimer();
    bool late = true;
#pragma unroll 1
    for (uint32_t tries = 1; __any_sync(0xffffffff, late); tries++) {
        late = false;
#pragma unroll
        for (int i = 0; i < most; i++)
            word[i] = i < count ? ptx_load_here(from + i * 32) : (uint64_t)epoch << 32;
#pragma unroll
        for (int i = 0; i < most; i++)
            late |= word[i] >> 32 != epoch;
        if (tries % 64 == 0 && ptx_globaltimer() - start > limit_ns)
            ptx_fail();
    }
}

REDUCE_MEMBER void norm_tell(uint64_t *at, float value, uint32_t epoch)
{
    ptx_store_here(at, (uint64_t)epoch << 32 | __float_as_uint(value));
}

/* What the consumers need for it, in shared memory: a plan's words are far away when they are first looked at, one
 * look behind the other. */
struct joint_norm_operands {
    char *c, *sum;
    const char *residual, *weight;
    uint64_t *squares, *scales, *largest;
    char *codes; /* NULL: rows are not quantized */
    float *code_scales;
    uint32_t inside, normed;
    uint32_t m, n, col_tiles,
        column_tile; /* the last: of the CTA's only tile, where rows are normed */
    uint32_t ctas;   /* with a tile */
    float eps;
};

/* (Kernels that do not do it have no room to spare.) */
PTX_SHARED(struct joint_norm_operands, joint_norm_shared, 1);

/* One thread; tile: the CTA's first. */
REDUCE_MEMBER void joint_norm_describe(struct joint_norm_operands *o, const struct gemm_rs_plan *p,
                                       const struct gpu_launch *launch, const struct mk_tile *tile)
{
    o->inside = p->norm_inside;
    if (!p->norm_inside)
        return;
    o->normed = p->norm.normed;
    o->c = (char *)launch->arguments[MK_SPACE_ARG2];
    o->residual = (const char *)launch->arguments[p->norm.residual];
    o->n = p->n;
    if (!p->norm.normed)
        return;
    o->sum = (char *)launch->arguments[p->norm.sum];
    o->weight = (const char *)launch->arguments[p->norm.weight];
    o->squares = (uint64_t *)(launch->heap + p->squares);
    o->scales = o->squares + (uint64_t)p->m * p->col_tiles;
    o->largest = o->scales + p->m;
    o->codes = p->norm.rows ? (char *)launch->arguments[p->norm.codes] : NULL;
    o->code_scales = (float *)launch->arguments[p->norm.scales];
    o->m = p->m;
    o->col_tiles = p->col_tiles;
    o->column_tile = tile->col / p->tile_n;
    o->ctas = p->tiles * p->cluster;
    o->eps = p->norm.eps;
}

/* Tiles of a row whose squares a lane looks at at a time. */
enum { NORM_SQUARES = 4 };

/* A tile's consumers. A quad's lanes have two columns each of 8, and turn four such runs, so that a lane has 8 columns
 * of 32: what is loaded and stored are 16 bytes. Of 16 rows lane l has those numbered l / 4 and l / 4 + 8. */
template <class op, class work> struct joint_norm {
    const struct joint_norm_operands *o;
    const work *w;
    uint32_t row; /* of the tile, the warp's first */

    REDUCE_MEMBER uint32_t row_of(int m, int eight) const
    {
        return row + m * joint_rows::apart + eight * 8 + threadIdx.x % 32 / 4;
    }
    static REDUCE_MEMBER uint32_t column_of(int run)
    {
        return run * 32 + threadIdx.x % 4 * 8;
    }
    REDUCE_MEMBER bool has(int m, int eight, int run) const
    {
        return row_of(m, eight) < w->tile.rows && column_of(run) < w->tile.cols;
    }
    /* Bytes from C's beginning to the thread's elements of the first run; the next are 64 further on. */
    REDUCE_MEMBER uint64_t at(int m, int eight) const
    {
        return ((uint64_t)(w->tile.row + row_of(m, eight)) * o->n + w->tile.col + column_of(0)) * 2;
    }

    /* What is loaded later comes to L2: of the residual half a tile's row by each lane. */
    template <int blocks, int count> REDUCE_MEMBER void prefetch(void) const
    {
        const uint32_t lane = threadIdx.x % 32, in = row + lane / 2, column = lane % 2 * count;
#pragma unroll
        for (int m = 0; m < blocks; m++)
            if (in + m * joint_rows::apart < w->tile.rows && column < w->tile.cols)
                ptx_prefetch_l2(o->residual +
                                ((uint64_t)(w->tile.row + in + m * joint_rows::apart) * o->n +
                                 w->tile.col + column) *
                                    2);
        if (o->normed && lane < 2 && column < w->tile.cols)
            ptx_prefetch_l2(o->weight + (w->tile.col + column) * 2ull);
    }

    /* The new residual: the thread's elements of it. squares: of each row. */
    template <int blocks, int count, int runs>
    REDUCE_MEMBER void add(const float (&sum)[blocks][count], uint4 (&x)[blocks][2][runs],
                           float (&squares)[blocks][2]) const
    {
#pragma unroll
        for (int m = 0; m < blocks; m++)
#pragma unroll
            for (int i = 0; i < 2 * runs; i++)
                x[m][i % 2][i / 2] = has(m, i % 2, i / 2)
                                         ? *(const uint4 *)(o->residual + at(m, i % 2) + i / 2 * 64)
                                         : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int m = 0; m < blocks; m++)
#pragma unroll
            for (int i = 0; i < 2 * runs; i++) {
                uint32_t word[4];
                uint4 *to = &x[m][i % 2][i / 2];
                float of = 0;
#pragma unroll
                for (int k = 0; k < 4; k++)
                    word[k] = half_pack<op::element>(sum[m][(i / 2 * 4 + k) * 4 + i % 2 * 2],
                                                     sum[m][(i / 2 * 4 + k) * 4 + i % 2 * 2 + 1]);
                quad_transpose(word, threadIdx.x % 4);
                to->x = norm_add(word[0], to->x, &of);
                to->y = norm_add(word[1], to->y, &of);
                to->z = norm_add(word[2], to->z, &of);
                to->w = norm_add(word[3], to->w, &of);
                of = has(m, i % 2, i / 2) ? of : 0;
                squares[m][i % 2] = i < 2 ? of : squares[m][i % 2] + of;
            }
    }

    /* Stores the thread's elements where C's shape begins. */
    template <int blocks, int runs>
    REDUCE_MEMBER void store(char *to, const uint4 (&x)[blocks][2][runs]) const
    {
#pragma unroll
        for (int m = 0; m < blocks; m++)
#pragma unroll
            for (int i = 0; i < 2 * runs; i++)
                if (has(m, i % 2, i / 2))
                    *(uint4 *)(to + at(m, i % 2) + i / 2 * 64) = x[m][i % 2][i / 2];
    }

    /* Tells of the tile's squares of the warp's rows. */
    template <int blocks> REDUCE_MEMBER void tell(const float (&squares)[blocks][2]) const
    {
#pragma unroll
        for (int m = 0; m < blocks; m++)
#pragma unroll
            for (int eight = 0; eight < 2; eight++) {
                float of = squares[m][eight];
                of += __shfl_xor_sync(0xffffffff, of, 1);
                of += __shfl_xor_sync(0xffffffff, of, 2);
                if (threadIdx.x % 4 == 0 && row_of(m, eight) < w->tile.rows)
                    norm_tell(o->squares +
                                  (uint64_t)(w->tile.row + row_of(m, eight)) * o->col_tiles +
                                  o->column_tile,
                              of, (uint32_t)w->epoch);
            }
    }

    /* A row's squares of all tiles, in one order. */
    REDUCE_MEMBER float total(uint32_t row_of_c, uint64_t limit_ns) const
    {
        const uint32_t lane = threadIdx.x % 32;
        const uint64_t *from = o->squares + (uint64_t)row_of_c * o->col_tiles + lane;
        float total = 0;
#pragma unroll 1
        for (uint32_t first = 0; first < o->col_tiles; first += NORM_SQUARES * 32) {
            const uint32_t left = o->col_tiles - first;
            uint64_t word[NORM_SQUARES];
            norm_await(word, from + first, lane < left ? (left - lane + 31) / 32 : 0,
                       (uint32_t)w->epoch, limit_ns);
#pragma unroll
            for (int i = 0; i < NORM_SQUARES; i++)
                total += __uint_as_float((uint32_t)word[i]);
        }
#pragma unroll
        for (int other = 16; other; other /= 2)
            total += __shfl_xor_sync(0xffffffff, total, other);
        return total;
    }

    /* Adds up the squares of every warps * CTAs-th row, and tells of its scale. */
    REDUCE_MEMBER void add_up(uint32_t warp, uint32_t warps, uint64_t limit_ns) const
    {
#pragma unroll 1
        for (uint32_t row_of_c = warp * o->ctas + blockIdx.x; row_of_c < o->m;
             row_of_c += warps * o->ctas) {
            const float mean = total(row_of_c, limit_ns) / (float)o->n;
            if (threadIdx.x % 32 == 0)
                norm_tell(o->scales + row_of_c, 1 / sqrtf(mean + o->eps), (uint32_t)w->epoch);
        }
    }

    /* x = the normed rows. */
    template <int blocks, int runs>
    REDUCE_MEMBER void norm(uint4 (&x)[blocks][2][runs], uint64_t limit_ns) const
    {
        const char *from = o->weight + (w->tile.col + column_of(0)) * 2ull;
        uint4 weight[runs];
#pragma unroll
        for (int run = 0; run < runs; run++)
            weight[run] = column_of(run) < w->tile.cols ? *(const uint4 *)(from + run * 64)
                                                        : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int m = 0; m < blocks; m++)
#pragma unroll
            for (int eight = 0; eight < 2; eight++) {
                uint64_t word[1];
                norm_await(word, o->scales + w->tile.row + row_of(m, eight),
                           row_of(m, eight) < w->tile.rows, (uint32_t)w->epoch, limit_ns);
#pragma unroll
                for (int run = 0; run < runs; run++)
                    x[m][eight][run] = norm_scale_word(x[m][eight][run], weight[run],
                                                       __uint_as_float((uint32_t)word[0]));
            }
    }

    /* x, the normed rows, as codes with their scales. */
    template <int blocks, int runs>
    REDUCE_MEMBER void quantize(const uint4 (&x)[blocks][2][runs], uint64_t limit_ns) const
    {
        constexpr int share = MK_SCALE_BLOCK / (runs * 32); /* tiles that share a scale */
        static_assert(share == 1 || share == 2, "a tile has one neighbour");
        const uint32_t neighbour = o->column_tile ^ 1;
#pragma unroll
        for (int m = 0; m < blocks; m++) {
            float largest[2];
#pragma unroll
            for (int eight = 0; eight < 2; eight++) {
                largest[eight] = 0;
#pragma unroll
                for (int run = 0; run < runs; run++)
                    largest[eight] = norm_largest(x[m][eight][run], largest[eight]);
                largest[eight] = quantize_largest_of(largest[eight], 4);
                if (share > 1 && threadIdx.x % 4 == 0 && row_of(m, eight) < w->tile.rows)
                    norm_tell(largest_at(m, eight) + o->column_tile, largest[eight],
                              (uint32_t)w->epoch);
            }
#pragma unroll
            for (int eight = 0; eight < 2; eight++) {
                const bool here = row_of(m, eight) < w->tile.rows;
                uint64_t word[1];
                norm_await(word, largest_at(m, eight) + neighbour,
                           share > 1 && here && neighbour < o->col_tiles, (uint32_t)w->epoch,
                           limit_ns);
                const float amax = fmaxf(largest[eight], __uint_as_float((uint32_t)word[0])),
                            up = quantize_up(amax);
#pragma unroll
                for (int run = 0; run < runs; run++)
                    if (has(m, eight, run))
                        *(uint2 *)(o->codes + at(m, eight) / 2 + run * 32) =
                            norm_codes(x[m][eight][run], up);
                if (here && threadIdx.x % 4 == 0 && o->column_tile % share == 0)
                    o->code_scales[(uint64_t)(o->column_tile / share) * o->m + w->tile.row +
                                   row_of(m, eight)] = quantize_scale(amax);
            }
        }
    }

    /* Where a row's tiles tell of their largest. */
    REDUCE_MEMBER uint64_t *largest_at(int m, int eight) const
    {
        return o->largest + (uint64_t)(w->tile.row + row_of(m, eight)) * o->col_tiles;
    }

    /* All of it, of a warp, one of `warps` of the CTA, whose sums are C's; C is stored. (The sums stay as they are: a
     * branch that writes accumulators serialises products, C7520.) */
    template <int blocks, int count>
    REDUCE_MEMBER void apply(const float (&sum)[blocks][count], uint32_t warp, uint32_t warps,
                             uint64_t limit_ns) const
    {
        uint4 x[blocks][2][count / 16];
        float squares[blocks][2];
        add(sum, x, squares);
        if (o->normed) {
            tell(squares);
            add_up(warp, warps, limit_ns);
            store(o->sum, x);
            norm(x, limit_ns);
        }
        if (o->normed && o->codes)
            quantize(x, limit_ns);
        else
            store(o->c, x);
    }
};
