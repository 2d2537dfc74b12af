/*
 * The second engine (kernels/mma/, for every GPU of compute capability 8.0 and up) computes C = A B
 * for any shape and layout of B, writes all of C and nothing else; and it is compared with other
 * kernels that multiply by mma.sync.
 *
 *     gpu_mma check            every tile shape on odd shapes, against an fp32 reference
 *     gpu_mma bench [MS REST]  beside cuBLASLt's fastest s16816 kernel in the same run
 *
 * bench: blocks of MS ms in turn, REST ms of idling before each. Default 4 and 30.
 *
 * The program has code of several GPUs and PTX of compute_80. On a GPU that has code of its own,
 * CUDA_FORCE_PTX_JIT=1 in the environment runs the PTX: what a GPU runs that is newer than all.
 *
 * Exit status: 0 right, 1 wrong, 77 no such GPU here.
 */
#include "tests/engines/mma_gemm.cuh"

typedef int product_run(const void *a, const void *b, void *c, int64_t m, int64_t n, int64_t k,
                        uint32_t sms, cudaStream_t stream);

/* Tile, elements of K in a stage, stages, consumer warps, how many of them beside each other, warps
 * that copy, and blocks of an SM: what operators have, and tiles that reach most. */
#define TILES(X)                                                                                   \
    X(128, 128, 64, 3, 8, 2, 2, 1)                                                                 \
    X(256, 128, 64, 2, 8, 1, 4, 1)                                                                 \
    X(256, 128, 32, 4, 8, 1, 4, 1)
#ifndef GPU_MMA_MORE
#define GPU_MMA_MORE(X) /* others to be tried */
#endif

#ifdef MK_EMULATED
/* For tests/test_hopper_gemm.c: the number / 2-th of TILES, every second time by TMA; -ENOENT:
 * there are fewer. */
extern "C" int mma_products_run(uint32_t number, int kn, const void *a, const void *b, void *c,
                                int64_t m, int64_t n, int64_t k)
{
#define PRODUCT(m, n, k, s, w, c, p, b)                                                            \
    mma_gemm_run<mma_shape<m, n, 0, k, s, w, c, p, b>>,                                            \
        mma_gemm_run<mma_shape<m, n, 1, k, s, w, c, p, b>>,
    static product_run *const runs[] = {TILES(PRODUCT)};
#undef PRODUCT
    if (number >= sizeof runs / sizeof *runs)
        return -ENOENT;
    mma_gemm_bulk = number % 2;
    return runs[number / 2 * 2 + (kn != 0)](a, b, c, m, n, k, 0, NULL);
}
#else

#include "tests/helpers/gpu_products.cuh"

#include "tests/helpers/gpu_cublaslt.cuh"

#include <unistd.h>

struct contestant {
    const char *name;
    product_run *run[2];  /* by the layout of B: N x K, K x N */
    double rates, ratios; /* sums of logarithms: TF, and s16816's time over its own */
};

#define CONTESTANT(m, n, k, s, w, c, p, b)                                                         \
    {#m "x" #n "x" #k " " #s " stages, " #w "/" #c "+" #p " warps, " #b " an SM",                  \
     {mma_gemm_run<mma_shape<m, n, 0, k, s, w, c, p, b>>,                                          \
      mma_gemm_run<mma_shape<m, n, 1, k, s, w, c, p, b>>}},
static struct contestant contestants[] = {{"cuBLASLt s16816"},
                                          TILES(CONTESTANT) GPU_MMA_MORE(CONTESTANT)};
#undef CONTESTANT
enum { CONTESTANTS = sizeof contestants / sizeof *contestants, ROUNDS = 7, GUARD = 65536 };

/* ---- check ---- */

static int check_one(int64_t m, int64_t n, int64_t k, int kn)
{
    bf16 *a = device_random(m * k, fresh_seed()), *b = device_random(n * k, fresh_seed()), *c;
    float *want;
    unsigned long long *changed, stray;
    int failed = 0;
    CUDA(cudaMalloc(&want, m * n * 4));
    CUDA(cudaMalloc(&c, (m * n + 2 * GUARD) * 2));
    CUDA(cudaMalloc(&changed, 8));
    reference<<<dim3((n + 15) / 16, (m + 15) / 16), dim3(16, 16)>>>(a, b, want, m, n, k, kn);
    for (int t = 1; t < CONTESTANTS; t++) {
        CUDA(cudaMemset(c, 0xff, (m * n + 2 * GUARD) * 2));
        CUDA(cudaMemset(changed, 0, 8));
        int err = contestants[t].run[kn](a, b, c + GUARD, m, n, k, t == 2 ? 5 : 0, 0);
        CUDA(cudaDeviceSynchronize());
        struct difference d = device_compare(c + GUARD, want, m, n, k);
        count_changed<<<1, 1024>>>((uint16_t *)c, GUARD, changed);
        count_changed<<<1, 1024>>>((uint16_t *)c + GUARD + m * n, GUARD, changed);
        CUDA(cudaMemcpy(&stray, changed, 8, cudaMemcpyDeviceToHost));
        double relative = sqrt(d.error / d.norm);
        if (err || d.wrong || stray || !(relative <= error_bound((uint64_t)m * n))) {
            printf("WRONG %lld,%lld,%lld %s %s: returned %d, relative error %.2e, %llu wrong, %llu "
                   "stray\n",
                   (long long)m, (long long)n, (long long)k, kn ? "KN" : "NK", contestants[t].name,
                   err, relative, d.wrong, stray);
            failed = 1;
        }
    }
    CUDA(cudaFree(a));
    CUDA(cudaFree(b));
    CUDA(cudaFree(c));
    CUDA(cudaFree(want));
    CUDA(cudaFree(changed));
    return failed;
}

static int check_products(void)
{
    int failed = 0, cases = sizeof product_shapes / sizeof product_shapes[0];
    for (int i = 0; i < cases; i++)
        for (int kn = 0; kn < 2; kn++)
            failed |=
                check_one(product_shapes[i][0], product_shapes[i][1], product_shapes[i][2], kn);
    bf16 *p = device_random(1 << 16, 1);
    product_run *run = contestants[1].run[0];
    failed |= run(p, p, p, 64, 60, 64, 0, 0) == 0; /* what it must refuse */
    failed |= run(p, p, p, 64, 64, 12, 0, 0) == 0;
    failed |= run(p, p, p, 0, 64, 64, 0, 0) == 0;
    failed |= run(p + 1, p, p, 64, 64, 64, 0, 0) == 0;
    CUDA(cudaFree(p));
    printf("check: %d shapes, both layouts of B, %d tile shapes: %s\n", cases, CONTESTANTS - 1,
           failed ? "WRONG" : "right");
    return failed;
}

/* ---- bench ---- */

/* Times all in turn, ROUNDS times, over sets of inputs that together exceed L2 many times over. */
static int bench_product(int64_t m, int64_t n, int64_t k, int kn, double block_ms, double rest_ms)
{
    enum { SETS = 4 };
    bf16 *a[SETS], *b[SETS], *c, *want;
    int wrong = 0;
    for (int s = 0; s < SETS; s++) {
        a[s] = device_random(m * k, fresh_seed());
        b[s] = device_random(n * k, fresh_seed());
    }
    CUDA(cudaMalloc(&c, m * n * 2));
    CUDA(cudaMalloc(&want, m * n * 2));
    int bad = run_cublas(a[0], b[0], want, m, n, k, kn ? GEMM_KN : GEMM_NK);
    struct lt_product product = lt_describe(a[0], b[0], c, m, n, k, kn);
    struct lt_choice choice;
    if (lt_choose(&product, &choice)) {
        printf("gpu_mma: cuBLASLt has no s16816 kernel for this product\n");
        wrong = 1;
    }
    double relative[CONTESTANTS], ms[CONTESTANTS][ROUNDS], ratio[CONTESTANTS][ROUNDS];
    for (int i = 0; i < CONTESTANTS && !wrong; i++) {
        CUDA(cudaMemset(c, 0xff, m * n * 2));
        int err = i ? contestants[i].run[kn](a[0], b[0], c, m, n, k, 0, 0)
                    : lt_run(&product, a[0], b[0], 0);
        CUDA(cudaDeviceSynchronize());
        struct difference d = device_compare(c, want, m, n, k);
        relative[i] = sqrt(d.error / d.norm);
        if (bad || err || !(relative[i] <= error_bound((uint64_t)m * n))) {
            printf("WRONG %s: returned %d, relative error %.2e, %llu wrong\n", contestants[i].name,
                   err, relative[i], d.wrong);
            wrong = 1;
        }
    }
    int launches = (int)ceil(block_ms / (2e3 * m * n * k / 450e12));
    cudaEvent_t start, stop;
    CUDA(cudaEventCreate(&start));
    CUDA(cudaEventCreate(&stop));
    for (int r = -1; r < ROUNDS && !wrong; r++) { /* round -1 warms up */
        for (int j = 0; j < CONTESTANTS; j++) {
            int i = (j + r + 1) % CONTESTANTS;
            float t;
            usleep((useconds_t)(rest_ms * 1000));
            for (int l = -1; l < launches; l++) {
                if (l == 0)
                    CUDA(cudaEventRecord(start));
                int s = (l + 1) % SETS;
                if (i)
                    contestants[i].run[kn](a[s], b[s], c, m, n, k, 0, 0);
                else
                    lt_run(&product, a[s], b[s], 0);
            }
            CUDA(cudaEventRecord(stop));
            CUDA(cudaEventSynchronize(stop));
            CUDA(cudaEventElapsedTime(&t, start, stop));
            if (r >= 0)
                ms[i][r] = t / launches;
        }
        for (int i = 0; r >= 0 && i < CONTESTANTS; i++)
            ratio[i][r] = ms[0][r] / ms[i][r];
    }
    for (int i = 0; i < CONTESTANTS && !wrong; i++) {
        double rho = median(ratio[i], ROUNDS), t = median(ms[i], ROUNDS),
               rate = 2e-9 * m * n * k / t;
        contestants[i].ratios += log(rho);
        contestants[i].rates += log(rate);
        printf("%5lld %5lld %5lld %s  %-42s %8.4f ms (%.4f-%.4f) %6.1f TF  %.3f of s16816\n",
               (long long)m, (long long)n, (long long)k, kn ? "KN" : "NK", contestants[i].name, t,
               ms[i][0], ms[i][ROUNDS - 1], rate, rho);
    }
    if (!wrong)
        printf("    s16816: %.100s\n", choice.kernel);
    fflush(stdout);
    for (int s = 0; s < SETS; s++) {
        CUDA(cudaFree(a[s]));
        CUDA(cudaFree(b[s]));
    }
    CUDA(cudaFree(c));
    CUDA(cudaFree(want));
    return wrong;
}

static int bench(double block_ms, double rest_ms)
{
    static const int64_t shapes[][3] = {
        {8192, 8192, 8192},   {4096, 4096, 4096},   {8192, 3584, 8192},  {2048, 4096, 8192},
        {16384, 2048, 16384}, {16384, 16384, 2048}, {32768, 4096, 8192},
    };
    int wrong = 0, cases = sizeof shapes / sizeof shapes[0];
    if (cublas_open() || lt_open())
        return 77;
    for (int kn = 0; kn < 2; kn++)
        for (int i = 0; i < cases; i++)
            wrong |= bench_product(shapes[i][0], shapes[i][1], shapes[i][2], kn, block_ms, rest_ms);
    for (int i = 0; i < CONTESTANTS && !wrong; i++)
        printf("geometric mean over %d shapes, both layouts: %-42s %.1f TF, %.3f of s16816\n",
               cases, contestants[i].name, exp(contestants[i].rates / (2 * cases)),
               exp(contestants[i].ratios / (2 * cases)));
    return wrong;
}

int main(int argc, char **argv)
{
    struct cudaDeviceProp prop;
    struct cudaFuncAttributes of;
    if (cudaGetDeviceProperties(&prop, 0) != cudaSuccess || prop.major < 8) {
        printf("gpu_mma: skipped, no GPU of compute capability 8.0 or more here\n");
        return 77;
    }
    CUDA(cudaFuncGetAttributes(&of, mma_matrix_kernel<mma_shape<256, 128, 0, 64, 2>>));
    printf("%s, %d SMs; PTX of compute_%d, code of sm_%d\n", prop.name, prop.multiProcessorCount,
           of.ptxVersion, of.binaryVersion);
    if (argc >= 2 && !strcmp(argv[1], "check"))
        return check_products();
    if (argc >= 2 && !strcmp(argv[1], "bench"))
        return bench(argc >= 3 ? atof(argv[2]) : 4, argc >= 4 ? atof(argv[3]) : 30);
    fprintf(stderr, "usage: gpu_mma check | bench [MS REST]\n");
    return 2;
}
#endif
