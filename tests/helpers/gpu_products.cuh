/* What the programs that run the GEMM engine on a GPU share: an fp32 reference and the
 * comparison with it, cuBLAS. */
#pragma once

#include "tests/engines/gemm.h"
#include "tests/helpers/gpu_inputs.cuh"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* M, N, K that an engine is checked with: rows and columns that no tile divides, few rows, K of one
 * slice and of many. */
__attribute__((unused)) static const int64_t product_shapes[][3] = {
    {1, 8, 8},         {1, 4096, 8192}, {65, 200, 328},   {390, 200, 8},    {128, 256, 64},
    {129, 264, 1000},  {390, 8, 4096},  {64, 64, 64},     {300, 3584, 520}, {1000, 1544, 2048},
    {2048, 4096, 256}, {513, 520, 16},  {4000, 136, 200}, {77, 8200, 136},  {3333, 2504, 1096},
};

/* ---- Reference, comparison
 * ------------------------------------------------------------------------------ */

/* One thread an element, in order, fp32. */
static __global__ void reference(const bf16 *a, const bf16 *b, float *c, int64_t m, int64_t n,
                                 int64_t k, int b_kn)
{
    int64_t col = blockIdx.x * 16 + threadIdx.x, row = blockIdx.y * 16 + threadIdx.y;
    if (col >= n || row >= m)
        return;
    float sum = 0;
    for (int64_t i = 0; i < k; i++)
        sum += __bfloat162float(a[row * k + i]) *
               __bfloat162float(b_kn ? b[i * n + col] : b[col * k + i]);
    c[row * n + col] = sum;
}

struct difference {
    double error, norm; /* sums of squares */
    unsigned long long wrong;
};

static __device__ float value(float x)
{
    return x;
}
static __device__ float value(bf16 x)
{
    return __bfloat162float(x);
}

/* The relative error (Frobenius) of results that are rounded to bf16 once: 1.66e-3 of many random
 * numbers, half a unit in the last place at most of a few. */
static double error_bound(uint64_t count)
{
    return count < 4096 ? 1.0 / 256 : 2e-3;
}

/* An element is wrong when it is further from the reference than rounding to bf16 (twice, where the
 * reference is bf16 too) and fp32 sums of k normal products explain. NaN is. */
template <class T>
static __global__ void compare(const bf16 *c, const T *want, uint64_t count, float slack,
                               struct difference *out)
{
    double error = 0, norm = 0;
    unsigned long long wrong = 0;
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < count;
         i += (uint64_t)gridDim.x * blockDim.x) {
        float x = value(c[i]), y = value(want[i]), d = x - y;
        error += (double)d * d;
        norm += (double)y * y;
        if (!(fabsf(d) <= fabsf(y) * (sizeof(T) == 2 ? 0.0079f : 0.004f) + slack))
            wrong++;
    }
    atomicAdd(&out->error, error);
    atomicAdd(&out->norm, norm);
    atomicAdd(&out->wrong, wrong);
}

static __global__ void count_changed(const uint16_t *p, uint64_t count, unsigned long long *changed)
{
    for (uint64_t i = threadIdx.x; i < count; i += blockDim.x)
        if (p[i] != 0xffff)
            atomicAdd(changed, 1ull);
}

static bf16 *device_random(uint64_t count, uint64_t seed)
{
    bf16 *p;
    CUDA(cudaMalloc(&p, count * 2));
    fill<<<1024, 256>>>(p, count, seed);
    CUDA(cudaGetLastError());
    return p;
}

template <class T>
static struct difference device_compare(const bf16 *c, const T *want, int64_t m, int64_t n,
                                        int64_t k)
{
    struct difference *out, host;
    CUDA(cudaMalloc(&out, sizeof *out));
    CUDA(cudaMemset(out, 0, sizeof *out));
    compare<<<512, 256>>>(c, want, (uint64_t)m * n, 1e-4f * sqrtf((float)k), out);
    CUDA(cudaMemcpy(&host, out, sizeof host, cudaMemcpyDeviceToHost));
    CUDA(cudaFree(out));
    return host;
}

static uint64_t fresh_seed(void)
{
    static uint64_t n;
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000000000 + t.tv_nsec + n++;
}

/* ---- cuBLAS ---- */

static struct {
    int (*create)(void **);
    int (*set_workspace)(void *, void *, size_t);
    int (*gemm)(void *, int, int, int, int, int, const void *, const void *, int, int, const void *,
                int, int, const void *, void *, int, int, int, int);
    void *handle;
} cublas;

static int cublas_open(void)
{
    static const char *const names[] = {"libcublas.so.13", "libcublas.so.12", "libcublas.so"};
    void *lib = NULL, *workspace;
    const char *path = getenv("CUBLAS_PATH");
    if (path)
        lib = dlopen(path, RTLD_NOW);
    for (int i = 0; !lib && i < 3; i++)
        lib = dlopen(names[i], RTLD_NOW);
    if (!lib) {
        fprintf(stderr, "%s: no cuBLAS (%s); name it in CUBLAS_PATH\n",
                program_invocation_short_name, dlerror());
        return -1;
    }
    *(void **)&cublas.create = dlsym(lib, "cublasCreate_v2");
    *(void **)&cublas.set_workspace = dlsym(lib, "cublasSetWorkspace_v2");
    *(void **)&cublas.gemm = dlsym(lib, "cublasGemmEx");
    CUDA(cudaMalloc(&workspace, 64 << 20));
    if (!cublas.create || !cublas.set_workspace || !cublas.gemm || cublas.create(&cublas.handle) ||
        cublas.set_workspace(cublas.handle, workspace, 64 << 20))
        return -1;
    return 0;
}

/* Row-major C = A B is column-major C' = B' A'. */
static int run_cublas(const bf16 *a, const bf16 *b, bf16 *c, int64_t m, int64_t n, int64_t k,
                      enum gemm_b b_rows)
{
    const float one = 1, zero = 0;
    enum { OP_N = 0, OP_T = 1, R_16BF = 14, COMPUTE_32F = 68, DEFAULT = -1 };
    int kn = b_rows == GEMM_KN;
    return cublas.gemm(cublas.handle, kn ? OP_N : OP_T, OP_N, n, m, k, &one, b, R_16BF, kn ? n : k,
                       a, R_16BF, k, &zero, c, R_16BF, n, COMPUTE_32F, DEFAULT);
}

static int by_value(const void *x, const void *y)
{
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

static double median(double *values, int count)
{
    qsort(values, count, sizeof *values, by_value);
    return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}
