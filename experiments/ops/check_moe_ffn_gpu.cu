#include <cuda_runtime.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "core/base/bf16.h"
#include "core/base/e4m3.h"
#include "core/mkernel.h"
#include "core/base/quantize.h"
#include "experiments/job/gpu_tensors.h"
#include "experiments/ops/check_moe_ffn_gpu.h"
#include "kernels/engine/ptx.cuh"

/* A block makes TILE x TILE elements, a thread SIDE x SIDE of them. */
enum { TILE = 32, DEPTH = 8, SIDE = 2, THREADS = TILE / SIDE * (TILE / SIDE), PANEL_ROWS = 4096 };
#define BF16 0x1p-8f
#define FP32 0x1p-23f
#define E4M3 0x1p-4f
#define E4M3_LEAST (0x1p-10 / 448)

/* A B of one expert as codes and scales, [n, k]; of B1 gate, then up, each with scales of its
 * own. */
struct factor {
    uint8_t *codes;
    float *scales;
    uint64_t n, k, pitch;
};

/* In GPU memory. */
struct layer {
    const uint16_t *x, *b1, *b2, *result; /* B1 and B2: of one expert */
    const uint8_t *records;               /* FP8: in place of x; then of B1 and B2 */
    struct factor f1, f2;
    float cut;
    const uint32_t *places; /* of the expert's rows: token * k + place */
    const float *weights;
    float *acted, *off;           /* [PANEL_ROWS, I], and its bound */
    float *y, *y_off, *y_size;    /* [T, H]: the sum, its bound, the sum of absolute values */
    uint64_t judged, k, h, inner; /* judged: tokens that have a Y */
    uint32_t rows, crosses;       /* of the panel; links that a sum crosses */
    uint32_t links;               /* that sums come back over as e4m3; 0: as bf16 or fp32 */
    int transposed, deterministic, fp8;
};

/* [depth, row or column], 0 beyond the end. */
struct slice {
    float a[2][DEPTH][TILE + 1], b[2][DEPTH][TILE + 1];
};
PTX_SHARED(struct slice, layer_slice, 1);

/* Element (row, col) of a matrix of k rows and n columns, or of its transpose. */
static __device__ float element(const uint16_t *b, uint64_t row, uint64_t col, uint64_t k,
                                uint64_t n, int transposed)
{
    return mk_bf16_to_float(b[transposed ? col * k + row : row * n + col]);
}

/* Element (k, n) of number `which` of the matrices of a factor. */
static __device__ float coded(const struct factor &f, uint32_t which, uint64_t k, uint64_t n)
{
    const uint64_t down = (f.n + MK_SCALE_BLOCK - 1) / MK_SCALE_BLOCK;
    return mk_e4m3_to_float(f.codes[(which * f.n + n) * f.k + k]) *
           f.scales[(which * down + n / MK_SCALE_BLOCK) * f.pitch + k / MK_SCALE_BLOCK];
}

/* Element `at` of a token. */
static __device__ float token_at(const struct layer &l, uint64_t token, uint64_t at)
{
    if (!l.fp8)
        return mk_bf16_to_float(l.x[token * l.h + at]);
    const uint8_t *record = l.records + token * quantize_record(l.h);
    return mk_e4m3_to_float(record[at]) * ((const float *)(record + l.h))[at / MK_SCALE_BLOCK];
}

/* What a thread makes of each of its elements: two sums. */
struct sums {
    float of[2][SIDE][SIDE], size[2][SIDE][SIDE];
};

/* Adds the slice to the sums: of[i] += a[i] b[i], size[i] += |a[i]| |b[i]|. */
static __device__ void add_slice(struct sums *s, uint32_t down, uint32_t right)
{
    const struct slice *m = layer_slice;
    for (uint32_t d = 0; d < DEPTH; d++)
        for (uint32_t n = 0; n < 2; n++)
            for (uint32_t i = 0; i < SIDE; i++)
                for (uint32_t j = 0; j < SIDE; j++) {
                    float a = m->a[n][d][down + i * (TILE / SIDE)],
                          b = m->b[n][d][right + j * (TILE / SIDE)];
                    s->of[n][i][j] = fmaf(a, b, s->of[n][i][j]);
                    s->size[n][i][j] = fmaf(fabsf(a), fabsf(b), s->size[n][i][j]);
                }
}

/* acted = silu(x gate) * (x up), and how far it may be off. */
static __device__ void act(const struct layer &l, uint64_t row, uint64_t col, float gate, float up,
                           float gate_size, float up_size)
{
    float silu = gate / (1 + expf(-gate)), acted = silu * up, sums = l.h * FP32 + l.cut;
    float off_gate = sums * gate_size, off_up = sums * up_size;
    float off = 1.1f * (fabsf(up) + off_up) * off_gate + fabsf(silu) * off_up;
    off += ((l.fp8 ? 0 : BF16) + 0x1p-20f) * (fabsf(acted) + off);
    l.acted[row * l.inner + col] = acted;
    /* of FP8 layer_quantize does the rest */
    l.off[row * l.inner + col] = l.fp8 ? off : off + l.inner * FP32 * (fabsf(acted) + off);
}

/* check_moe_ffn_quantized, in fp32: what a code says of v, and how far another may be from it. */
static __device__ float quantized(float v, float off, float amax, float off_amax, float *acted)
{
    const float size = fabsf(v), least = amax - off_amax, most = amax + off_amax;
    const float value =
        mk_e4m3_to_float(mk_e4m3_from_float(size * quantize_up(amax))) * quantize_scale(amax);
    *acted = v < 0 ? -value : value;
    if (!(least >= MK_QUANTIZE_LEAST))
        return off + 2 * most;
    const float from = mk_e4m3_to_float(
                    mk_e4m3_from_float((size - off) * (1 - 0x1p-20f) * (MK_E4M3_LARGEST / most))),
                to = mk_e4m3_to_float(
                    mk_e4m3_from_float((size + off) * (1 + 0x1p-20f) * (MK_E4M3_LARGEST / least)));
    const float below = value - from * (from < 0 ? most : least) / MK_E4M3_LARGEST,
                above = to * most / MK_E4M3_LARGEST - value;
    return fmaxf(below, above) + 0x1p-20f * value;
}

/* A thread a block of a row. */
static __global__ void layer_quantize(const struct layer l)
{
    const uint64_t across = (l.inner + MK_SCALE_BLOCK - 1) / MK_SCALE_BLOCK,
                   i = blockIdx.x * (uint64_t)THREADS + threadIdx.x,
                   col = i % across * MK_SCALE_BLOCK,
                   end = l.inner - col < MK_SCALE_BLOCK ? l.inner : col + MK_SCALE_BLOCK;
    if (i >= l.rows * across)
        return;
    float *acted = l.acted + i / across * l.inner, *off = l.off + i / across * l.inner, amax = 0,
          off_amax = 0;
    for (uint64_t c = col; c < end; c++) {
        amax = fmaxf(amax, fabsf(acted[c]));
        off_amax = fmaxf(off_amax, off[c]);
    }
    for (uint64_t c = col; c < end; c++) {
        const float most = quantized(acted[c], off[c], amax, off_amax, &acted[c]);
        off[c] = most + (l.inner * FP32 + l.cut) * (fabsf(acted[c]) + most);
    }
}

/* This block's tile of two products of `rows` rows, `cols` columns and `depths` terms. a(n, row,
 * at), b(n, at, col): elements of product n, asked for within it; keep(row, col, sums, i, j): what
 * a thread has made of its element i, j. */
template <class of_a, class of_b, class kept>
static __device__ void layer_products(uint64_t rows, uint64_t cols, uint64_t depths, of_a a, of_b b,
                                      kept keep)
{
    struct slice *m = layer_slice;
    uint64_t tiles = (cols + TILE - 1) / TILE, row = blockIdx.x / tiles * TILE,
             col = blockIdx.x % tiles * TILE;
    uint32_t down = threadIdx.x / (TILE / SIDE), right = threadIdx.x % (TILE / SIDE);
    struct sums s = {};
    for (uint64_t depth = 0; depth < depths; depth += DEPTH) {
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < DEPTH * TILE; i += THREADS) {
            uint64_t d = i % DEPTH, at = depth + d, r = row + i / DEPTH, c = col + i / DEPTH;
            for (uint32_t n = 0; n < 2; n++) {
                m->a[n][d][i / DEPTH] = r < rows && at < depths ? a(n, r, at) : 0;
                m->b[n][d][i / DEPTH] = c < cols && at < depths ? b(n, at, c) : 0;
            }
        }
        __syncthreads();
        add_slice(&s, down, right);
    }
    for (uint32_t i = 0; i < SIDE; i++)
        for (uint32_t j = 0; j < SIDE; j++) {
            uint64_t r = row + down + i * (TILE / SIDE), c = col + right + j * (TILE / SIDE);
            if (r < rows && c < cols)
                keep(r, c, s, i, j);
        }
}

/* Gate and up of a row of x. */
static __global__ void layer_up(const struct layer l)
{
    layer_products(
        l.rows, l.inner, l.h,
        [&](uint32_t, uint64_t row, uint64_t at) { return token_at(l, l.places[row] / l.k, at); },
        [&](uint32_t n, uint64_t at, uint64_t col) {
            return l.fp8 ? coded(l.f1, n, at, col)
                         : element(l.b1, at, n * l.inner + col, l.h, 2 * l.inner, l.transposed);
        },
        [&](uint64_t row, uint64_t col, const struct sums &s, uint32_t i, uint32_t j) {
            act(l, row, col, s.of[0][i][j], s.of[1][i][j], s.size[0][i][j], s.size[1][i][j]);
        });
}

/* The activation, and how far it may be off, by the weights to the sums. */
static __global__ void layer_down(const struct layer l)
{
    layer_products(
        l.rows, l.h, l.inner,
        [&](uint32_t n, uint64_t row, uint64_t at) {
            return (n ? l.off : l.acted)[row * l.inner + at];
        },
        [&](uint32_t, uint64_t at, uint64_t col) {
            return l.fp8 ? coded(l.f2, 0, at, col)
                         : element(l.b2, at, col, l.inner, l.h, l.transposed);
        },
        [&](uint64_t row, uint64_t col, const struct sums &s, uint32_t i, uint32_t j) {
            float value = s.of[0][i][j], off = s.size[1][i][j], weight = l.weights[l.places[row]];
            uint64_t to = l.places[row] / l.k * l.h + col;
            if (!l.deterministic)
                off += (l.links ? 1 : 1 + l.crosses) * BF16 * (fabsf(value) + off);
            for (uint32_t link = 0; link < l.crosses && l.links; link++)
                off += E4M3 * (fabsf(value) + off);
            l.y[to] += weight * value;
            l.y_off[to] += fabsf(weight) * off;
            l.y_size[to] += fabsf(weight) * (fabsf(value) + off);
        });
}

/* The largest that a sum of the block may be that element `at` is in. */
static __device__ double largest(const struct layer &l, uint64_t at)
{
    const uint64_t first = at - at % l.h % MK_SCALE_BLOCK, left = l.h - first % l.h;
    float most = 0;
    for (uint64_t i = 0; i < left && i < MK_SCALE_BLOCK; i++)
        most = fmaxf(most, l.y_size[first + i]);
    return most;
}

/* Each thread: elements a grid apart. */
static __global__ void layer_judge(const struct layer l, struct check_result *results)
{
    struct check_result mine = {};
    const uint64_t step = (uint64_t)gridDim.x * THREADS;
    for (uint64_t i = blockIdx.x * (uint64_t)THREADS + threadIdx.x; i < l.judged * l.h; i += step) {
        float value = mk_bf16_to_float(l.result[i]), reference = l.y[i];
        double bound = l.y_off[i] + (double)(l.k + 1) * FP32 * l.y_size[i];
        bound += l.links ? l.links * E4M3_LEAST * largest(l, i) : 0;
        bound += BF16 * (fabs((double)reference) + bound);
        check_within(&mine, i / l.h, i % l.h, value, reference, bound);
    }
    results[blockIdx.x * THREADS + threadIdx.x] = mine;
}

template <class... parameters>
static int layer_launch(void (*kernel)(parameters...), uint64_t blocks, parameters... of)
{
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)blocks);
    config.blockDim = dim3(THREADS);
    return cudaLaunchKernelEx(&config, kernel, of...) == cudaSuccess ? 0 : -EIO;
}

/* Rows of one expert, whose B's are there, each of another token. `places`: in GPU memory, room for
 * a panel. */
static int layer_panel(struct layer *l, uint32_t *places, const uint32_t *from, uint32_t rows)
{
    uint64_t down = (rows + TILE - 1) / TILE;
    if (cudaMemcpy(places, from, rows * sizeof *from, cudaMemcpyHostToDevice) != cudaSuccess)
        return -EIO;
    l->rows = rows;
    int err = layer_launch(layer_up, down * ((l->inner + TILE - 1) / TILE), *l);
    if (!err && l->fp8)
        err = layer_launch(layer_quantize,
                           (rows * mk_ceil_div(l->inner, MK_SCALE_BLOCK) + THREADS - 1) / THREADS,
                           *l);
    return err ? err : layer_launch(layer_down, down * ((l->h + TILE - 1) / TILE), *l);
}

/* Codes and scales of `count` matrices of a factor, of what inputs_fill made. */
static int layer_quantize_factor(const struct factor *f, const uint16_t *b, uint64_t count)
{
    int err = 0;
    for (uint64_t i = 0; i < count && !err; i++) {
        const struct mk_quantize of = {MK_SCALE_128X128,
                                       MK_INPUT_BF16,
                                       b + i * f->n * f->k,
                                       f->n,
                                       f->k,
                                       f->codes + i * f->n * f->k,
                                       f->scales + i * mk_ceil_div(f->n, MK_SCALE_BLOCK) * f->pitch,
                                       f->pitch};
        err = gpu_quantize(&of, NULL);
    }
    return err;
}

static int layer_expert(const struct check_moe_ffn *c, struct layer *l, uint32_t *places,
                        uint32_t *host, uint32_t expert, const struct check_moe_ffn_expert *of)
{
    uint64_t size = l->h * l->inner;
    uint32_t at = expert / (uint32_t)(c->problem.experts / mk_world(&c->topo));
    int err = 0;
    l->crosses = (mk_local_of(&c->topo, at) != mk_local_of(&c->topo, c->topo.rank)) +
                 (mk_node_of(&c->topo, at) != mk_node_of(&c->topo, c->topo.rank));
    err = gpu_fill((uint16_t *)l->b1, of->key[0], of->first[0], 2 * size, 0);
    err = err ? err : gpu_fill((uint16_t *)l->b2, of->key[1], of->first[1], size, 0);
    if (!err && l->fp8)
        err = layer_quantize_factor(&l->f1, l->b1, 2);
    if (!err && l->fp8)
        err = layer_quantize_factor(&l->f2, l->b2, 1);
    for (uint64_t place = 0; place < l->k && !err; place++) { /* one token may name it in several */
        uint32_t rows = 0;
        for (uint64_t i = place; i < l->judged * l->k; i += l->k)
            if (c->ids[i] == expert)
                host[rows++] = (uint32_t)i;
        for (uint32_t first = 0; first < rows && !err; first += PANEL_ROWS)
            err = layer_panel(l, places, host + first,
                              rows - first < PANEL_ROWS ? rows - first : PANEL_ROWS);
    }
    return err;
}

static void layer_alloc_factor(struct factor *f, uint64_t count, uint64_t n, uint64_t k,
                               struct gpu_memory *memory)
{
    f->n = n;
    f->k = k;
    f->pitch = mk_round_up(mk_ceil_div(k, MK_SCALE_BLOCK), 4);
    f->codes = (uint8_t *)gpu_take(memory, NULL, count * n * k);
    f->scales = (float *)gpu_take(
        memory, NULL, count * mk_ceil_div(n, MK_SCALE_BLOCK) * f->pitch * sizeof(float));
}

int check_moe_ffn_gpu(const struct check_moe_ffn *c,
                      void (*where)(void *context, uint32_t expert,
                                    struct check_moe_ffn_expert *out),
                      struct check_result *result)
{
    enum { BLOCKS = 66, RESULTS = BLOCKS * THREADS };
    const struct mk_moe *m = &c->problem;
    uint64_t all = m->tokens * m->k, out = m->tokens * m->hidden,
             panel = (uint64_t)PANEL_ROWS * m->inner * sizeof(float);
    uint32_t *host = (uint32_t *)malloc(all * sizeof *host);
    struct check_result *found = (struct check_result *)malloc(RESULTS * sizeof *found);
    struct gpu_memory memory = {};
    struct layer l = {};
    l.judged = m->tokens - c->behind;
    l.k = m->k;
    l.h = m->hidden;
    l.inner = m->inner;
    l.transposed = c->b_transposed;
    l.deterministic = c->deterministic;
    l.fp8 = c->fp8;
    l.cut = (float)c->cut;
    l.links = c->back_fp8 ? check_moe_ffn_links(c) : 0;
    const void *x =
        gpu_take(&memory, c->x, c->fp8 ? m->tokens * quantize_record(m->hidden) : out * 2);
    l.x = (const uint16_t *)x;
    l.records = (const uint8_t *)x;
    if (c->fp8) {
        layer_alloc_factor(&l.f1, 2, l.inner, l.h, &memory);
        layer_alloc_factor(&l.f2, 1, l.h, l.inner, &memory);
    }
    l.result = (const uint16_t *)gpu_take(&memory, c->y, out * 2);
    l.weights = (const float *)gpu_take(&memory, c->weights, all * 4);
    l.b1 = (const uint16_t *)gpu_take(&memory, NULL, l.h * l.inner * 4);
    l.b2 = (const uint16_t *)gpu_take(&memory, NULL, l.h * l.inner * 2);
    uint32_t *places = (uint32_t *)gpu_take(&memory, NULL, PANEL_ROWS * 4);
    l.places = places;
    l.acted = (float *)gpu_take(&memory, NULL, panel);
    l.off = (float *)gpu_take(&memory, NULL, panel);
    l.y = (float *)gpu_take(&memory, NULL, out * 4);
    l.y_off = (float *)gpu_take(&memory, NULL, out * 4);
    l.y_size = (float *)gpu_take(&memory, NULL, out * 4);
    struct check_result *results =
        (struct check_result *)gpu_take(&memory, NULL, RESULTS * sizeof *results);
    int err = host && found ? memory.err : -ENOMEM;
    for (uint32_t expert = 0; expert < m->experts && !err; expert++) {
        struct check_moe_ffn_expert of;
        where(c->context, expert, &of);
        err = layer_expert(c, &l, places, host, expert, &of);
    }
    err = err ? err : layer_launch(layer_judge, BLOCKS, l, results);
    if (!err &&
        cudaMemcpy(found, results, RESULTS * sizeof *found, cudaMemcpyDeviceToHost) != cudaSuccess)
        err = -EIO;
    for (uint32_t i = 0; i < RESULTS && !err; i++) {
        found[i].frobenius = check_moe_ffn_frobenius(c);
        if (found[i].elements)
            check_join(result, &found[i]);
    }
    gpu_give_back(&memory);
    free(host);
    free(found);
    return err;
}
