#include <cuda_runtime.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "core/plan/epilogue.h"
#include "core/cta/half.h"
#include "experiments/job/gpu_tensors.h"
#include "experiments/ops/check_gemm_gpu.h"
#include "kernels/engine/ptx.cuh"

/* A block makes TILE x TILE elements, a thread SIDE x SIDE of them. */
enum { TILE = 64, DEPTH = 16, SIDE = 4, THREADS = TILE / SIDE * (TILE / SIDE) };

/* What the kernel is given, in GPU memory: the A's and B's one behind the other. */
struct gemm_tensors {
    struct check_gemm of; /* with wide ones or without */
    uint64_t across;      /* columns of C */
    uint32_t products;
};

/* [depth, row of A or column of B], 0 beyond the end */
struct gemm_slice {
    float a[DEPTH][TILE + 1], b[DEPTH][TILE + 1];
};

PTX_SHARED(struct gemm_slice, gemm_shared, 1);
PTX_SHARED(struct check_result, gemm_found, THREADS);

/* The same of wide ones: one product, and B is [n, k]. */
static __device__ void gemm_load_wide(struct gemm_slice *s, const struct gemm_tensors &t,
                                      uint64_t row, uint64_t col, uint64_t depth)
{
    for (uint32_t i = threadIdx.x; i < DEPTH * TILE; i += THREADS) {
        uint64_t k = depth + i % DEPTH, r = row + i / DEPTH, c = col + i / DEPTH;
        s->a[i % DEPTH][i / DEPTH] = r < t.of.m && k < t.of.k ? t.of.a_wide[r * t.of.k + k] : 0;
        s->b[i % DEPTH][i / DEPTH] = c < t.of.n && k < t.of.k ? t.of.b_wide[c * t.of.k + k] : 0;
    }
}

static __device__ void gemm_load(struct gemm_slice *s, const struct gemm_tensors &t,
                                 uint32_t product, uint64_t row, uint64_t col, uint64_t depth)
{
    const uint16_t *a = t.of.a + product * t.of.m * t.of.k, *b = t.of.b + product * t.of.k * t.of.n;
    for (uint32_t i = threadIdx.x; i < DEPTH * TILE; i += THREADS) {
        uint64_t k = depth + i % DEPTH, r = row + i / DEPTH;
        s->a[i % DEPTH][i / DEPTH] =
            r < t.of.m && k < t.of.k ? mk_half_to_float(t.of.element, a[r * t.of.k + k]) : 0;
        uint64_t c = t.of.b_transposed ? col + i / DEPTH : col + i % TILE;
        k = t.of.b_transposed ? k : depth + i / TILE;
        s->b[k - depth][c - col] =
            c < t.of.n && k < t.of.k
                ? mk_half_to_float(t.of.element,
                                   b[t.of.b_transposed ? c * t.of.k + k : k * t.of.n + c])
                : 0;
    }
}

static __device__ float gemm_biased(const struct gemm_tensors &t, uint64_t col, float product)
{
    return product +
           (t.of.epilogue & MK_EPILOGUE_BIAS ? mk_half_to_float(t.of.element, t.of.bias[col]) : 0);
}

/* By other arithmetic than a kernel's epilogue. */
static __device__ float gemm_activated(const struct gemm_tensors &t, float x)
{
    if (t.of.epilogue & MK_EPILOGUE_SILU)
        return x / (1 + expf(-x));
    if (t.of.epilogue & MK_EPILOGUE_GELU_TANH)
        return x / (1 + expf(-1.5957691216f * (x + 0.044715f * x * x * x)));
    return x;
}

/* A product, and what its terms' sizes add up to. */
struct gemm_product {
    float sum, magnitude;
};

/* One element against its bound, added to what the thread has found. up: what it is multiplied by,
 * where it is a gate. */
static __device__ void gemm_judge(struct check_result *r, const struct gemm_tensors &t,
                                  uint64_t row, uint64_t col, struct gemm_product product,
                                  struct gemm_product up)
{
    const bool gated = t.across < t.of.n;
    const float activated = gemm_activated(t, gemm_biased(t, col, product.sum)),
                through = gated ? gemm_biased(t, col + t.across, up.sum) : 1,
                reference = activated * through;
    const double slope = t.of.epilogue & MK_EPILOGUE_ACTIVATION ? CHECK_SLOPE : 1;
    float value = mk_half_to_float(t.of.element, t.of.c[row * t.across + col]);
    double off = fabs((double)value - reference), unit = check_unit(t.of.element),
           rounding = fabs((double)reference) * unit +
                      (1 + t.of.roundings) * slope * check_step(t.of.element);
    double depth = (double)t.products * t.of.k, bound = rounding;
    if (!(off <= rounding)) {
        const double each = depth * 0x1p-23 + t.of.roundings * unit + t.of.cut,
                     of_up = gated ? each * up.magnitude : 0;
        bound += slope * each * product.magnitude * (fabs((double)through) + of_up) +
                 fabs((double)activated) * of_up;
    }
    check_within(r, row, col, value, reference, bound);
}

/* results: one of each block, of the elements that it has made. */
static __global__ void check_tile(const struct gemm_tensors t, struct check_result *results)
{
    struct gemm_slice *slice = gemm_shared;
    struct check_result *found = gemm_found;
    uint64_t tiles = (t.across + TILE - 1) / TILE;
    uint64_t row = blockIdx.x / tiles * TILE, col = blockIdx.x % tiles * TILE;
    uint32_t down = threadIdx.x / (TILE / SIDE), right = threadIdx.x % (TILE / SIDE);
    struct gemm_product made[2][SIDE][SIDE] = {};
    for (uint32_t run = 0; run < t.of.n / t.across; run++)
        for (uint32_t product = 0; product < t.products; product++)
            for (uint64_t depth = 0; depth < t.of.k; depth += DEPTH) {
                __syncthreads();
                if (t.of.a_wide)
                    gemm_load_wide(slice, t, row, col, depth);
                else
                    gemm_load(slice, t, product, row, col + run * t.across, depth);
                __syncthreads();
                for (uint32_t k = 0; k < DEPTH; k++)
                    for (uint32_t i = 0; i < SIDE; i++)
                        for (uint32_t j = 0; j < SIDE; j++) {
                            float a = slice->a[k][down + i * (TILE / SIDE)],
                                  b = slice->b[k][right + j * (TILE / SIDE)];
                            struct gemm_product *p = &made[run][i][j];
                            p->sum = fmaf(a, b, p->sum);
                            p->magnitude = fmaf(fabsf(a), fabsf(b), p->magnitude);
                        }
            }
    struct check_result mine = {};
    for (uint32_t i = 0; i < SIDE; i++)
        for (uint32_t j = 0; j < SIDE; j++) {
            uint64_t r = row + down + i * (TILE / SIDE), c = col + right + j * (TILE / SIDE);
            if (r < t.of.m && c < t.across)
                gemm_judge(&mine, t, r, c, made[0][i][j], made[1][i][j]);
        }
    found[threadIdx.x] = mine;
    __syncthreads();
    if (threadIdx.x)
        return;
    for (uint32_t i = 1; i < THREADS; i++)
        check_join(&mine, &found[i]);
    results[blockIdx.x] = mine;
}

static int gemm_make(const struct check_gemm_gpu *g, uint16_t *a, uint16_t *b)
{
    const struct check_gemm *of = &g->of;
    const void *from_a = of->a_wide ? (const void *)of->a_wide : of->a,
               *from_b = of->a_wide ? (const void *)of->b_wide : of->b;
    const uint64_t element = of->a_wide ? sizeof *of->a_wide : sizeof *of->a;
    int err = 0;
    if (from_a)
        return cudaMemcpy(a, from_a, of->m * of->k * element, cudaMemcpyHostToDevice) ==
                           cudaSuccess &&
                       cudaMemcpy(b, from_b, of->k * of->n * element, cudaMemcpyHostToDevice) ==
                           cudaSuccess
                   ? 0
                   : -EIO;
    for (uint32_t i = 0; i < g->products && !err; i++) {
        err = gpu_fill_half(of->element, a + i * of->m * of->k, g->a_key,
                            g->a_first + i * g->a_step, of->m * of->k, 0);
        if (!err)
            err = gpu_fill_half(of->element, b + i * of->k * of->n, g->b_keys[i], 0, of->k * of->n,
                                0);
    }
    return err;
}

int check_gemm_gpu(const struct check_gemm_gpu *g, struct check_result *result)
{
    const struct check_gemm *of = &g->of;
    const uint64_t across = epilogue_columns(of->epilogue, of->n);
    uint64_t tiles = (of->m + TILE - 1) / TILE * ((across + TILE - 1) / TILE);
    uint64_t c_bytes = of->m * across * sizeof *of->c;
    const uint64_t element = of->a_wide ? sizeof *of->a_wide : sizeof *of->a;
    struct gpu_memory memory = {};
    uint16_t *a = (uint16_t *)gpu_take(&memory, NULL, g->products * of->m * of->k * element);
    uint16_t *b = (uint16_t *)gpu_take(&memory, NULL, g->products * of->k * of->n * element);
    const uint16_t *c = (const uint16_t *)gpu_take(&memory, of->c, c_bytes);
    const uint16_t *bias = (const uint16_t *)gpu_take(&memory, of->bias, of->n * sizeof *bias);
    struct check_result *found =
        (struct check_result *)gpu_take(&memory, NULL, tiles * sizeof *found);
    struct check_result *host = (struct check_result *)malloc(tiles * sizeof *host);
    int err = host ? memory.err : -ENOMEM;
    err = err ? err : gemm_make(g, a, b);
    if (!err) {
        struct gemm_tensors t = {*of, across, g->products};
        t.of.c = c;
        t.of.bias = bias;
        if (of->a_wide) {
            t.of.a_wide = (const float *)a;
            t.of.b_wide = (const float *)b;
        } else {
            t.of.a = a;
            t.of.b = b;
        }
        cudaLaunchConfig_t config = {};
        config.gridDim = dim3((unsigned)tiles);
        config.blockDim = dim3(THREADS);
        if (cudaLaunchKernelEx(&config, check_tile, t, found) != cudaSuccess ||
            cudaMemcpy(host, found, tiles * sizeof *host, cudaMemcpyDeviceToHost) != cudaSuccess)
            err = -EIO;
    }
    for (uint64_t i = 0; i < tiles && !err; i++) {
        host[i].frobenius =
            (of->frobenius > 0 ? of->frobenius : CHECK_FROBENIUS) * check_share(of->element);
        check_join(result, &host[i]);
    }
    gpu_give_back(&memory);
    free(host);
    return err;
}
