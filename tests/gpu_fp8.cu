/*
 * The FP8 engine computes C = (A scaled) (B scaled)^T for any shape and tile shape, scales from
 * 2^-40 to 2^40 and rows of zeros, within the bounds of the tensor core's arithmetic; a NaN reaches
 * the results it should and no others; and it is as fast as cuBLAS.
 *
 *     gpu_fp8 check            every tile shape on odd shapes, against fp64 products of the
 *                              dequantised inputs
 *     gpu_fp8 bench [MS [all|chosen]]
 *                              beside PyTorch's scaled_mm in the same run, where python3 has it;
 *                              all: every tile shape
 *
 * bench: CUDA graphs of launches for MS ms (default 20) in turn. Exit status: 0 right, 1 wrong, 77
 * no Hopper GPU here.
 */
#include "core/base/e4m3.h"
#include "tests/engines/gemm_fp8.h"
#include "tests/helpers/gpu_products.cuh"
#include "tests/helpers/gpu_torch.cuh"

static const struct gemm_tiling tilings[] = {{128, 256, 2}, {128, 256, 1}, {128, 128, 2},
                                             {128, 128, 1}, {128, 64, 1},  {64, 64, 1}};
enum { TILINGS = sizeof tilings / sizeof tilings[0], GUARD = 65536 };

/* ---- inputs ---- */

static __device__ float normal(uint64_t r)
{
    float u = ((uint32_t)r + 1.0f) * 2.3283064e-10f, v = (uint32_t)(r >> 32) * 2.3283064e-10f;
    return sqrtf(-2 * logf(fminf(u, 1.0f))) * cospif(2 * v);
}

/* Normal numbers, the largest of 128 about 448. */
static __global__ void fill_codes(uint8_t *p, uint64_t count, uint64_t seed)
{
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < count;
         i += (uint64_t)gridDim.x * blockDim.x) {
        uint64_t r = mk_mix(seed * 0x100000001b3ull + i + MK_RANDOM_STEP);
        p[i] = mk_e4m3_from_float(normal(r) * 160);
    }
}

/* From 2^-wide to 2^wide, times 1 to 2. */
static __global__ void fill_scales(float *p, uint64_t count, uint64_t seed, int wide)
{
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < count;
         i += (uint64_t)gridDim.x * blockDim.x) {
        uint64_t r = mk_mix(seed * 0x100000001b3ull + i + MK_RANDOM_STEP);
        int exponent = wide ? (int)(r >> 40) % (2 * wide + 1) - wide : 0;
        p[i] = ldexpf(1 + (uint32_t)r * 2.3283064e-10f, exponent);
    }
}

static uint8_t *device_codes(uint64_t count)
{
    uint8_t *p;
    CUDA(cudaMalloc(&p, count));
    fill_codes<<<1024, 256>>>(p, count, fresh_seed());
    CUDA(cudaGetLastError());
    return p;
}

static float *device_scales(uint64_t count, int wide)
{
    float *p;
    CUDA(cudaMalloc(&p, mk_round_up(count * 4, 16)));
    fill_scales<<<256, 256>>>(p, count, fresh_seed(), wide);
    CUDA(cudaGetLastError());
    return p;
}

/* c is the caller's; what it has of scales is as wide as `wide` says. */
static struct gemm_fp8 make_product(int64_t m, int64_t n, int64_t k, int wide)
{
    struct gemm_fp8 g = {device_codes(m * k), device_codes(n * k)};
    const int64_t blocks = (k + 127) / 128, columns = (n + 127) / 128;
    g.m = m;
    g.n = n;
    g.k = k;
    g.a_stride = (m + 3) / 4 * 4;
    g.b_stride = (blocks + 3) / 4 * 4;
    g.a_scales = device_scales(blocks * g.a_stride, wide);
    g.b_scales = device_scales(columns * g.b_stride, wide);
    return g;
}

static void free_product(const struct gemm_fp8 *g)
{
    CUDA(cudaFree((void *)g->a));
    CUDA(cudaFree((void *)g->b));
    CUDA(cudaFree((void *)g->a_scales));
    CUDA(cudaFree((void *)g->b_scales));
}

/* ---- reference, comparison ---- */

/* want: in fp64, and the sum of the terms' sizes. */
static __global__ void reference_fp8(const struct gemm_fp8 g, double *want, double *size)
{
    __shared__ double value_of[256];
    value_of[threadIdx.y * 16 + threadIdx.x] = mk_e4m3_to_float(threadIdx.y * 16 + threadIdx.x);
    __syncthreads();
    const int64_t j = blockIdx.x * 16 + threadIdx.x, i = blockIdx.y * 16 + threadIdx.y;
    if (j >= g.n || i >= g.m)
        return;
    const uint8_t *a = (const uint8_t *)g.a + i * g.k, *b = (const uint8_t *)g.b + j * g.k;
    double sum = 0, sizes = 0;
    for (int64_t p = 0; p < g.k; p += 128) {
        double part = 0, part_size = 0, scale;
        for (int64_t q = p; q < g.k && q < p + 128; q++) {
            double product = value_of[a[q]] * value_of[b[q]];
            part += product;
            part_size += fabs(product);
        }
        scale = (double)g.a_scales[p / 128 * g.a_stride + i] *
                g.b_scales[j / 128 * g.b_stride + p / 128];
        sum += part * scale;
        sizes += part_size * scale;
    }
    want[i * g.n + j] = sum;
    size[i * g.n + j] = sizes;
}

/*
 * The bound of an element: rounding to bf16, 2^-9 of it; and the tensor core's sums. One wgmma cuts
 * 33 terms and its result at 2^-13 of the largest, which is at most the sum of their sizes, so
 * `cut` = 34 * 2^-13 times the number of wgmmas (four of a promoted block; all of K of a fast sum).
 * Adds in fp32 are far below.
 */
static __global__ void compare_fp8(const uint16_t *c, const double *want, const double *size,
                                   uint64_t count, double cut, struct difference *out)
{
    double error = 0, norm = 0;
    unsigned long long wrong = 0;
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < count;
         i += (uint64_t)gridDim.x * blockDim.x) {
        double x = __uint_as_float((uint32_t)c[i] << 16), y = want[i], d = x - y;
        if (isnan(y)) {
            wrong += !isnan(x);
            continue;
        }
        error += d * d;
        norm += y * y;
        wrong += !(fabs(d) <= fabs(y) / 500 + size[i] * cut);
    }
    atomicAdd(&out->error, error);
    atomicAdd(&out->norm, norm);
    atomicAdd(&out->wrong, wrong);
}

static const double CUT = 34.0 / 8192 * 4;

struct checked {
    uint16_t *c;
    double *want, *size;
    struct difference *difference;
    unsigned long long *changed;
};

static struct checked make_checked(const struct gemm_fp8 *g)
{
    struct checked s;
    CUDA(cudaMalloc(&s.c, (g->m * g->n + 2 * GUARD) * 2));
    CUDA(cudaMalloc(&s.want, g->m * g->n * 8));
    CUDA(cudaMalloc(&s.size, g->m * g->n * 8));
    CUDA(cudaMalloc(&s.difference, sizeof *s.difference));
    CUDA(cudaMalloc(&s.changed, 8));
    reference_fp8<<<dim3((g->n + 15) / 16, (g->m + 15) / 16), dim3(16, 16)>>>(*g, s.want, s.size);
    CUDA(cudaGetLastError());
    return s;
}

static void free_checked(struct checked *s)
{
    CUDA(cudaFree(s->c));
    CUDA(cudaFree(s->want));
    CUDA(cudaFree(s->size));
    CUDA(cudaFree(s->difference));
    CUDA(cudaFree(s->changed));
}

/* Runs the product and compares. 0, or what the engine returned; `stray`: elements beyond C. */
static int run_checked(struct gemm_fp8 *g, struct checked *s, struct gemm_tiling tiling,
                       uint32_t sms, struct difference *d, unsigned long long *stray)
{
    const uint64_t count = g->m * g->n;
    CUDA(cudaMemset(s->c, 0xff, (count + 2 * GUARD) * 2));
    CUDA(cudaMemset(s->changed, 0, 8));
    CUDA(cudaMemset(s->difference, 0, sizeof *s->difference));
    g->c = s->c + GUARD;
    int err = gemm_fp8_run(g, tiling, sms, 0);
    compare_fp8<<<512, 256>>>(s->c + GUARD, s->want, s->size, count, CUT, s->difference);
    count_changed<<<1, 1024>>>(s->c, GUARD, s->changed);
    count_changed<<<1, 1024>>>(s->c + GUARD + count, GUARD, s->changed);
    CUDA(cudaMemcpy(d, s->difference, sizeof *d, cudaMemcpyDeviceToHost));
    CUDA(cudaMemcpy(stray, s->changed, 8, cudaMemcpyDeviceToHost));
    return err;
}

/* What a product is given beside random numbers. */
enum trap { PLAIN, ZEROS, NAN_IN_A, NAN_IN_B, NAN_SCALE };

static void set_trap(const struct gemm_fp8 *g, enum trap trap)
{
    const uint32_t nan_bits = 0x7fc00000;
    const int64_t row = g->m - 1, column = g->n - 5, p = g->k - 3;
    if (trap == ZEROS)
        CUDA(cudaMemset((uint8_t *)g->a + row / 2 * g->k, 0x80, g->k));
    if (trap == NAN_IN_A)
        CUDA(cudaMemset((uint8_t *)g->a + row * g->k + p, 0xff, 1));
    if (trap == NAN_IN_B)
        CUDA(cudaMemset((uint8_t *)g->b + column * g->k + p, 0x7f, 1));
    if (trap == NAN_SCALE)
        CUDA(cudaMemcpy((float *)g->a_scales + p / 128 * g->a_stride + row, &nan_bits, 4,
                        cudaMemcpyHostToDevice));
}

static int check_one(int64_t m, int64_t n, int64_t k, enum trap trap)
{
    struct gemm_fp8 g = make_product(m, n, k, trap == ZEROS ? 40 : 3);
    set_trap(&g, trap);
    struct checked s = make_checked(&g);
    int failed = 0;
    for (int t = 0; t < TILINGS; t++) {
        struct difference d;
        unsigned long long stray;
        int err = run_checked(&g, &s, tilings[t], t == 2 ? 6 : 0, &d, &stray);
        double relative = d.norm > 0 ? sqrt(d.error / d.norm) : d.error,
               bound = (uint64_t)m * n < 4096 ? 1.0 / 256 : 2.5e-3;
        if (err || d.wrong || stray || !(relative <= bound)) {
            printf("WRONG %lld,%lld,%lld trap %d tile %ux%ux%u: returned %d, relative "
                   "error %.2e, %llu wrong, %llu stray\n",
                   (long long)m, (long long)n, (long long)k, trap, tilings[t].tile_m,
                   tilings[t].tile_n, tilings[t].cluster, err, relative, d.wrong, stray);
            failed = 1;
        }
    }
    free_checked(&s);
    free_product(&g);
    return failed;
}

static int check(void)
{
    static const int64_t shapes[][3] = {
        {1, 8, 16},      {1, 4096, 8192},   {65, 200, 336},    {390, 200, 16}, {128, 256, 128},
        {129, 264, 400}, {390, 8, 4096},    {300, 3584, 528},  {64, 64, 256},  {1000, 1544, 2048},
        {513, 520, 144}, {2048, 4096, 384}, {3333, 2504, 1104}};
    int failed = 0, cases = sizeof shapes / sizeof shapes[0];
    for (int i = 0; i < cases; i++) {
        const int64_t *s = shapes[i];
        for (int trap = PLAIN; trap <= NAN_SCALE; trap++)
            failed |= check_one(s[0], s[1], s[2], (enum trap)trap);
    }
    printf("check: %d shapes, %d tile shapes: %s\n", cases, TILINGS, failed ? "WRONG" : "right");
    return failed;
}

/* ---- bench ---- */

enum { ROUNDS = 9, MAX_SETS = 16 };

static double torch_time(int64_t m, int64_t n, int64_t k, int launches)
{
    double ms;
    if (!torch_child.to)
        return NAN;
    fprintf(torch_child.to, "%lld %lld %lld blocks %d\n", (long long)m, (long long)n, (long long)k,
            launches);
    return fscanf(torch_child.from, "%lf", &ms) == 1 ? ms : NAN;
}

/* Of cuBLAS's time over its own, over the large shapes. */
struct ratios {
    double product, least;
    int count;
};

/* `launches` in a graph, on operands in rotation. */
static cudaGraphExec_t graph_of(const struct gemm_fp8 *sets, int count, struct gemm_tiling tiling,
                                int launches, cudaStream_t stream, int *err)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    *err = 0;
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < launches; i++)
        *err |= gemm_fp8_run(&sets[i % count], tiling, 0, stream);
    CUDA(cudaStreamEndCapture(stream, &graph));
    CUDA(cudaGraphInstantiate(&exec, graph, 0));
    CUDA(cudaGraphDestroy(graph));
    return exec;
}

static double replay(cudaGraphExec_t graph, cudaStream_t stream)
{
    static cudaEvent_t start, stop;
    float ms;
    if (!start) {
        CUDA(cudaEventCreate(&start));
        CUDA(cudaEventCreate(&stop));
    }
    CUDA(cudaEventRecord(start, stream));
    CUDA(cudaGraphLaunch(graph, stream));
    CUDA(cudaEventRecord(stop, stream));
    CUDA(cudaEventSynchronize(stop));
    CUDA(cudaEventElapsedTime(&ms, start, stop));
    return ms;
}

static int bench_shape(struct ratios *of_large, int64_t m, int64_t n, int64_t k, double block_ms,
                       int all)
{
    struct gemm_fp8 sets[MAX_SETS];
    struct gemm_tiling of[TILINGS + 1] = {gemm_fp8_choose_tiling(m, n, k, 132)};
    cudaGraphExec_t graphs[TILINGS + 1];
    double ms[TILINGS + 2][ROUNDS], ratio[ROUNDS];
    int count = 0, contestants = 1, wrong = 0, large = m > 64;
    while (count < 2 || (count < MAX_SETS && count * (m + n) * k < 400e6)) {
        sets[count] = make_product(m, n, k, 0);
        CUDA(cudaMalloc(&sets[count].c, m * n * 2));
        count++;
    }
    for (int t = 0; all && t < TILINGS; t++)
        if ((tilings[t].tile_m == 64) == !large || (!large && tilings[t].tile_n <= 128))
            of[contestants++] = tilings[t];
    double multiply = 2e3 * m * n * k / 1100e12, read = 1e3 * (m + n) * k / 3e12;
    int launches = (int)ceil(block_ms / (multiply > read ? multiply : read));
    cudaStream_t stream;
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CUDA(cudaDeviceSynchronize());
    for (int i = 0; i < contestants; i++) {
        int err;
        graphs[i] = graph_of(sets, count, of[i], launches, stream, &err);
        wrong |= err;
    }
    for (int r = -1; r < ROUNDS && !wrong; r++) /* round -1 warms up */
        for (int j = 0; j <= contestants; j++) {
            int i = (j + r + 1) % (contestants + 1);
            double t = i == contestants ? torch_time(m, n, k, launches)
                                        : replay(graphs[i], stream) / launches;
            if (r >= 0)
                ms[i][r] = t;
        }
    for (int r = 0; r < ROUNDS; r++)
        ratio[r] = ms[contestants][r] / ms[0][r];
    for (int i = 0; i <= contestants && !wrong; i++) {
        double t = median(ms[i], ROUNDS);
        printf("%5lld %5lld %5lld ", (long long)m, (long long)n, (long long)k);
        if (i == contestants)
            printf("%-14s", "cuBLAS");
        else
            printf("%ux%u of %u %-4s", of[i].tile_m, of[i].tile_n, of[i].cluster, i ? "" : "(*)");
        printf(" %9.2f us (%.2f-%.2f) %6.0f TF  %5.2f TB/s\n", 1e3 * t, 1e3 * ms[i][0],
               1e3 * ms[i][ROUNDS - 1], 2e-9 * m * n * k / t,
               ((m + n) * k + 2.0 * m * n) / t * 1e-9);
    }
    double rho = median(ratio, ROUNDS);
    if (!wrong)
        printf("%5lld %5lld %5lld %.3f of cuBLAS\n", (long long)m, (long long)n, (long long)k, rho);
    fflush(stdout);
    if (large && rho == rho) {
        of_large->product += log(rho);
        of_large->least = of_large->count++ && of_large->least < rho ? of_large->least : rho;
    }
    for (int i = 0; i < contestants; i++)
        CUDA(cudaGraphExecDestroy(graphs[i]));
    for (int i = 0; i < count; i++) {
        free_product(&sets[i]);
        CUDA(cudaFree(sets[i].c));
    }
    CUDA(cudaStreamDestroy(stream));
    return wrong;
}

static int bench(const char *self, double block_ms, int all)
{
    static const int64_t shapes[][3] = {
        {8192, 8192, 8192}, {16384, 2048, 16384}, {8192, 8192, 1024}, {8192, 3584, 8192},
        {4096, 7168, 2048}, {4096, 4096, 7168},   {16, 8192, 4096},   {64, 8192, 4096}};
    struct ratios large = {};
    int wrong = 0;
    if (torch_open(self, "torch_scaled_mm.py", "TORCH_SCALED_MM", NULL))
        fprintf(stderr, "gpu_fp8: no PyTorch here: times without cuBLAS's beside them\n");
    else
        printf("PyTorch, CUDA: %s\n", torch_child.version);
    for (uint32_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
        wrong |= bench_shape(&large, shapes[s][0], shapes[s][1], shapes[s][2], block_ms, all);
    if (large.count)
        printf("blocks of cuBLAS over %d large shapes: geometric mean %.3f, least %.3f\n",
               large.count, exp(large.product / large.count), large.least);
    return wrong;
}

int main(int argc, char **argv)
{
    struct cudaDeviceProp prop;
    if (cudaGetDeviceProperties(&prop, 0) != cudaSuccess || prop.major != 9) {
        printf("gpu_fp8: skipped, no Hopper GPU here\n");
        return 77;
    }
    printf("%s, %d SMs\n", prop.name, prop.multiProcessorCount);
    if (argc >= 2 && !strcmp(argv[1], "check"))
        return check();
    if (argc >= 2 && !strcmp(argv[1], "bench"))
        return bench(argv[0], argc >= 3 ? atof(argv[2]) : 20, argc >= 4 && !strcmp(argv[3], "all"));
    fprintf(stderr, "usage: gpu_fp8 check | bench [MS [all|chosen]]\n");
    return 2;
}
