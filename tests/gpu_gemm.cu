/*
 * The GEMM engine computes C = A B for any shape, layout of B and tile shape, writes all of C and
 * nothing else; and it is as fast as cuBLAS.
 *
 *     gpu_gemm check            every tile shape on odd shapes, against an fp32 reference
 *     gpu_gemm bench [MS REST]  against cuBLAS in the same run
 *     gpu_gemm few [MS REST]    the same for few rows, with each tile shape that suits them
 *
 * bench: blocks of MS ms in turn, REST ms of idling before each. Default 20 and 0, which heats the
 * GPU to its power limit; 4 and 30 keep its clocks up.
 *
 * Exit status: 0 right, 1 wrong, 77 no Hopper GPU here.
 */
#include "tests/helpers/gpu_products.cuh"

#include <unistd.h>

/* ---- check
 *
 * ------------------------------------------------------------------------------------------------------
 */

static const struct gemm_tiling tilings[] = {
    {128, 256, 2}, {256, 128, 2}, {128, 128, 2}, {128, 192, 1},
    {128, 128, 1}, {128, 64, 1},  {64, 64, 1},
};
enum { TILINGS = sizeof tilings / sizeof tilings[0], GUARD = 65536 };

static int check_one(int64_t m, int64_t n, int64_t k, enum gemm_b b_rows)
{
    bf16 *a = device_random(m * k, fresh_seed()), *b = device_random(n * k, fresh_seed()), *c;
    float *want;
    unsigned long long *changed, stray;
    int failed = 0;
    CUDA(cudaMalloc(&want, m * n * 4));
    CUDA(cudaMalloc(&c, (m * n + 2 * GUARD) * 2));
    CUDA(cudaMalloc(&changed, 8));
    reference<<<dim3((n + 15) / 16, (m + 15) / 16), dim3(16, 16)>>>(a, b, want, m, n, k,
                                                                    b_rows == GEMM_KN);
    for (int t = 0; t < TILINGS; t++) {
        CUDA(cudaMemset(c, 0xff, (m * n + 2 * GUARD) * 2));
        CUDA(cudaMemset(changed, 0, 8));
        int err = gemm_run(a, b, c + GUARD, m, n, k, b_rows, tilings[t], t == 2 ? 6 : 0, 0);
        CUDA(cudaDeviceSynchronize());
        struct difference d = device_compare(c + GUARD, want, m, n, k);
        count_changed<<<1, 1024>>>((uint16_t *)c, GUARD, changed);
        count_changed<<<1, 1024>>>((uint16_t *)c + GUARD + m * n, GUARD, changed);
        CUDA(cudaMemcpy(&stray, changed, 8, cudaMemcpyDeviceToHost));
        double relative = sqrt(d.error / d.norm);
        if (err || d.wrong || stray || !(relative <= error_bound((uint64_t)m * n))) {
            printf("WRONG %lld,%lld,%lld %s tile %dx%dx%d: returned %d, relative error %.2e, %llu "
                   "wrong, "
                   "%llu stray\n",
                   (long long)m, (long long)n, (long long)k, b_rows == GEMM_KN ? "KN" : "NK",
                   tilings[t].tile_m, tilings[t].tile_n, tilings[t].cluster, err, relative, d.wrong,
                   stray);
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

static int check(void)
{
    int failed = 0, cases = sizeof product_shapes / sizeof product_shapes[0];
    for (int i = 0; i < cases; i++) {
        failed |=
            check_one(product_shapes[i][0], product_shapes[i][1], product_shapes[i][2], GEMM_NK);
        failed |=
            check_one(product_shapes[i][0], product_shapes[i][1], product_shapes[i][2], GEMM_KN);
    }
    /* What it must refuse. */
    const struct gemm_tiling none = {64, 32, 1};
    bf16 *p = device_random(1 << 16, 1);
    failed |= gemm_run(p, p, p, 64, 60, 64, GEMM_NK, tilings[0], 0, 0) == 0;
    failed |= gemm_run(p, p, p, 64, 64, 12, GEMM_NK, tilings[0], 0, 0) == 0;
    failed |= gemm_run(p, p, p, 0, 64, 64, GEMM_NK, tilings[0], 0, 0) == 0;
    failed |= gemm_run(p, p, p, 64, 64, 64, GEMM_NK, none, 0, 0) == 0;
    failed |= gemm_run(p + 1, p, p, 64, 64, 64, GEMM_NK, tilings[0], 0, 0) == 0;
    CUDA(cudaFree(p));
    printf("check: %d shapes, both layouts of B, %d tile shapes: %s\n", cases, TILINGS,
           failed ? "WRONG" : "right");
    return failed;
}

/* ---- bench
 *
 * ------------------------------------------------------------------------------------------------------
 */

static int run_chosen(const bf16 *a, const bf16 *b, bf16 *c, int64_t m, int64_t n, int64_t k,
                      enum gemm_b b_rows)
{
    static int sms;
    if (!sms)
        CUDA(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
    return gemm_run(a, b, c, m, n, k, b_rows, gemm_choose_tiling(m, n, k, sms), 0, 0);
}

struct contestant {
    const char *name;
    int (*run)(const bf16 *, const bf16 *, bf16 *, int64_t, int64_t, int64_t, enum gemm_b);
    double ratios; /* logarithms of cuBLAS's time over its own, summed over shapes */
};

template <uint32_t tile_m, uint32_t tile_n, uint32_t cluster>
static int run_tiles(const bf16 *a, const bf16 *b, bf16 *c, int64_t m, int64_t n, int64_t k,
                     enum gemm_b b_rows)
{
    return gemm_run(a, b, c, m, n, k, b_rows, {tile_m, tile_n, cluster}, 0, 0);
}

static struct contestant contestants[] = {{"cuBLAS", run_cublas, 0},
                                          {"mkernel", run_chosen, 0},
#ifdef GPU_GEMM_MORE
                                          GPU_GEMM_MORE
#endif
};
enum { CONTESTANTS = sizeof contestants / sizeof contestants[0], ROUNDS = 9, MAX_SETS = 32 };
static struct contestant few_rows[] = {{"cuBLAS", run_cublas, 0},
                                       {"mkernel", run_chosen, 0},
                                       {"64x64", run_tiles<64, 64, 1>, 0},
                                       {"128x64", run_tiles<128, 64, 1>, 0},
                                       {"128x128", run_tiles<128, 128, 1>, 0},
                                       {"128x128 of 2", run_tiles<128, 128, 2>, 0},
                                       {"128x192", run_tiles<128, 192, 1>, 0},
                                       {"128x256 of 2", run_tiles<128, 256, 2>, 0}};
enum { FEW_ROWS = sizeof few_rows / sizeof few_rows[0], MOST = FEW_ROWS + CONTESTANTS };

/* Times all contestants in turn, ROUNDS times, over sets of inputs that together exceed L2 many
 * times over. */
static int bench_shape(struct contestant *of, int count, int64_t m, int64_t n, int64_t k,
                       enum gemm_b b_rows, double block_ms, double rest_ms)
{
    bf16 *a[MAX_SETS], *b[MAX_SETS], *c, *want;
    int sets = 2, wrong = 0;
    while (sets < MAX_SETS && sets * (m + n) * k * 2 < 400e6)
        sets++;
    for (int s = 0; s < sets; s++) {
        a[s] = device_random(m * k, fresh_seed());
        b[s] = device_random(n * k, fresh_seed());
    }
    CUDA(cudaMalloc(&c, m * n * 2));
    CUDA(cudaMalloc(&want, m * n * 2));
    int bad = run_cublas(a[0], b[0], want, m, n, k, b_rows);
    double relative[MOST], ms[MOST][ROUNDS], ratio[MOST][ROUNDS];
    for (int i = 0; i < count; i++) {
        CUDA(cudaMemset(c, 0xff, m * n * 2));
        int err = of[i].run(a[0], b[0], c, m, n, k, b_rows);
        CUDA(cudaDeviceSynchronize());
        struct difference d = device_compare(c, want, m, n, k);
        relative[i] = sqrt(d.error / d.norm);
        if (bad || err || !(relative[i] <= error_bound((uint64_t)m * n))) {
            printf("WRONG %s: returned %d, relative error %.2e, %llu wrong\n", of[i].name, err,
                   relative[i], d.wrong);
            wrong = 1;
        }
    }
    double multiply = 2e3 * m * n * k / 750e12, read = 2e3 * (m + n) * k / 4e12;
    int launches = (int)ceil(block_ms / (multiply > read ? multiply : read));
    cudaEvent_t start, stop;
    CUDA(cudaEventCreate(&start));
    CUDA(cudaEventCreate(&stop));
    for (int r = -1; r < ROUNDS && !wrong; r++) { /* round -1 warms up */
        for (int j = 0; j < count; j++) {
            int i = (j + r + 1) % count;
            float t;
            usleep((useconds_t)(rest_ms * 1000));
            of[i].run(a[0], b[0], c, m, n, k, b_rows);
            CUDA(cudaEventRecord(start));
            for (int l = 0; l < launches; l++)
                of[i].run(a[(l + 1) % sets], b[(l + 1) % sets], c, m, n, k, b_rows);
            CUDA(cudaEventRecord(stop));
            CUDA(cudaEventSynchronize(stop));
            CUDA(cudaEventElapsedTime(&t, start, stop));
            if (r >= 0)
                ms[i][r] = t / launches;
        }
        for (int i = 0; r >= 0 && i < count; i++)
            ratio[i][r] = ms[0][r] / ms[i][r];
    }
    for (int i = 0; i < count && !wrong; i++) {
        double rho = median(ratio[i], ROUNDS), t = median(ms[i], ROUNDS);
        of[i].ratios += log(rho);
        printf("%5lld %5lld %5lld %s  %-22s %8.4f ms (%.4f-%.4f) %6.1f TF  %.3f of cuBLAS  error "
               "%.1e\n",
               (long long)m, (long long)n, (long long)k, b_rows == GEMM_KN ? "KN" : "NK",
               of[i].name, t, ms[i][0], ms[i][ROUNDS - 1], 2e-9 * m * n * k / t, rho, relative[i]);
    }
    fflush(stdout);
    for (int s = 0; s < sets; s++) {
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
        {4096, 4096, 4096},   {8192, 8192, 8192},   {8192, 3584, 8192},  {2048, 4096, 8192},
        {16384, 2048, 16384}, {16384, 16384, 2048}, {32768, 4096, 8192},
    };
    int wrong = 0, cases = sizeof shapes / sizeof shapes[0];
    if (cublas_open())
        return 77;
    for (int layout = 0; layout < 2; layout++)
        for (int i = 0; i < cases; i++)
            wrong |= bench_shape(contestants, CONTESTANTS, shapes[i][0], shapes[i][1], shapes[i][2],
                                 (enum gemm_b)layout, block_ms, rest_ms);
    for (int i = 0; i < CONTESTANTS && !wrong; i++)
        printf("geometric mean over %d shapes, both layouts: %-22s %.3f of cuBLAS\n", cases,
               contestants[i].name, exp(contestants[i].ratios / (2 * cases)));
    return wrong;
}

static int bench_few_rows(double block_ms, double rest_ms)
{
    static const int64_t rows[] = {1, 16, 64, 128, 256, 384, 512, 768},
                         nk[][2] = {{8192, 4096}, {4096, 8192}};
    int wrong = 0;
    if (cublas_open())
        return 77;
    for (int layout = 1; layout >= 0; layout--)
        for (int shape = 0; shape < 2; shape++)
            for (int i = 0; i < (int)(sizeof rows / sizeof rows[0]); i++)
                wrong |= bench_shape(few_rows, FEW_ROWS, rows[i], nk[shape][0], nk[shape][1],
                                     (enum gemm_b)layout, block_ms, rest_ms);
    return wrong;
}

int main(int argc, char **argv)
{
    struct cudaDeviceProp prop;
    if (cudaGetDeviceProperties(&prop, 0) != cudaSuccess || prop.major != 9) {
        printf("gpu_gemm: skipped, no Hopper GPU here\n");
        return 77;
    }
    printf("%s, %d SMs\n", prop.name, prop.multiProcessorCount);
    if (argc >= 2 && !strcmp(argv[1], "check"))
        return check();
    if (argc >= 2 && !strcmp(argv[1], "bench"))
        return bench(argc >= 3 ? atof(argv[2]) : 20, argc >= 4 ? atof(argv[3]) : 0);
    if (argc >= 2 && !strcmp(argv[1], "few"))
        return bench_few_rows(argc >= 3 ? atof(argv[2]) : 2, argc >= 4 ? atof(argv[3]) : 0);
    fprintf(stderr, "usage: gpu_gemm check | bench [MS REST] | few [MS REST]\n");
    return 2;
}
