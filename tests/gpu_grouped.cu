/*
 * The engine over groups of rows, each with a B of its own: every row of every group is right,
 * whatever the groups' sizes, and nothing outside their tiles is written; and it is as fast as
 * cuBLAS with a call for each group.
 *
 *     gpu_grouped check            every tile shape on odd groups, against an fp32 reference
 *     gpu_grouped bench [MS REST]  the products of an MoE layer (16 experts of a GPU, 32 in all,
 *                                  top-8, hidden 7168, inner 2048; 512 to 8192 tokens a rank, and
 *                                  all rows in one group), ours and cuBLAS in turn in blocks of MS
 *                                  ms, REST ms of idling before each. Default 20 and 0
 *
 * Exit status: 0 right, 1 wrong, 77 no Hopper GPU here.
 */
#include "tests/helpers/gpu_products.cuh"

#include "core/plan/gemm_tiles.h"
#include "tests/engines/gemm_grouped.h"

#include <unistd.h>

enum { MOST_GROUPS = 300, GUARD = 65536, ROUNDS = 9, TILE_M = 128 };

static const struct mk_gemm_tile tiles[] = {
#define TILE(rows, columns, cluster, stages, boxes) {rows, columns, cluster},
    MK_GROUPED_TILES(TILE)
#undef TILE
};
enum { TILES = sizeof tiles / sizeof *tiles };

struct groups {
    uint32_t count, rows[MOST_GROUPS], first[MOST_GROUPS];
    int64_t room, all; /* rows with what fills tiles up, and without */
    uint32_t *ranges;  /* on the device */
};

static void groups_place(struct groups *g)
{
    uint32_t ranges[2 * MOST_GROUPS];
    g->room = g->all = 0;
    for (uint32_t i = 0; i < g->count; i++) {
        ranges[2 * i] = g->first[i] = (uint32_t)g->room;
        ranges[2 * i + 1] = g->rows[i];
        g->room += (int64_t)mk_round_up(g->rows[i], TILE_M);
        g->all += g->rows[i];
    }
    if (!g->room)
        g->room = TILE_M;
    CUDA(cudaMalloc(&g->ranges, g->count * 8));
    CUDA(cudaMemcpy(g->ranges, ranges, g->count * 8, cudaMemcpyHostToDevice));
}

static struct gemm_grouped grouped_of(const struct groups *g, const bf16 *a, const bf16 *b, bf16 *c,
                                      int64_t n, int64_t k, enum gemm_b b_rows,
                                      struct mk_gemm_tile tile)
{
    struct gemm_grouped p = {};
    p.a = a;
    p.b = b;
    p.c = c;
    p.ranges = g->ranges;
    p.groups = g->count;
    p.rows = g->room;
    p.n = n;
    p.k = k;
    p.b_rows = b_rows;
    p.tiling = {tile.tile_m, tile.tile_n, tile.cluster};
    CUDA(cudaMalloc(&p.table, gemm_grouped_table_bytes(&p)));
    return p;
}

/* ---- check ---- */

static int check_one(const struct groups *g, int64_t n, int64_t k, enum gemm_b b_rows)
{
    bf16 *a = device_random(g->room * k, fresh_seed()),
         *b = device_random(g->count * n * k, fresh_seed()), *c;
    float *want;
    unsigned long long *changed, stray;
    int failed = 0;
    CUDA(cudaMalloc(&want, g->room * n * 4));
    CUDA(cudaMalloc(&c, (g->room * n + 2 * GUARD) * 2));
    CUDA(cudaMalloc(&changed, 8));
    for (uint32_t i = 0; i < g->count; i++)
        if (g->rows[i])
            reference<<<dim3((n + 15) / 16, (g->rows[i] + 15) / 16), dim3(16, 16)>>>(
                a + (int64_t)g->first[i] * k, b + i * n * k, want + (int64_t)g->first[i] * n,
                g->rows[i], n, k, b_rows == GEMM_KN);
    for (int t = 0; t < TILES; t++) {
        const struct mk_gemm_tile tile = tiles[t];
        struct gemm_grouped p = grouped_of(g, a, b, c + GUARD, n, k, b_rows, tile);
        p.sms = t == 1 ? 6 : 0;
        CUDA(cudaMemset(c, 0xff, (g->room * n + 2 * GUARD) * 2));
        CUDA(cudaMemset(changed, 0, 8));
        int err = gemm_grouped_run(&p, 0);
        CUDA(cudaDeviceSynchronize());
        double error = 0, norm = 0;
        unsigned long long wrong = 0;
        for (uint32_t i = 0; i < g->count; i++)
            if (g->rows[i]) {
                struct difference d =
                    device_compare(c + GUARD + (int64_t)g->first[i] * n,
                                   want + (int64_t)g->first[i] * n, g->rows[i], n, k);
                error += d.error;
                norm += d.norm;
                wrong += d.wrong;
            }
        count_changed<<<1, 1024>>>((uint16_t *)c, GUARD, changed);
        count_changed<<<1, 1024>>>((uint16_t *)c + GUARD + g->room * n, GUARD, changed);
        CUDA(cudaMemcpy(&stray, changed, 8, cudaMemcpyDeviceToHost));
        double relative = norm > 0 ? sqrt(error / norm) : 0;
        if (err || wrong || stray || !(relative <= error_bound((uint64_t)(g->all * n)))) {
            printf("WRONG %u groups, %lld rows, n %lld, k %lld, %s, tile %ux%u: returned %d, "
                   "relative error %.2e, %llu wrong, %llu stray\n",
                   g->count, (long long)g->all, (long long)n, (long long)k,
                   b_rows == GEMM_KN ? "KN" : "NK", tile.tile_m, tile.tile_n, err, relative, wrong,
                   stray);
            failed = 1;
        }
        CUDA(cudaFree(p.table));
    }
    CUDA(cudaFree(a));
    CUDA(cudaFree(b));
    CUDA(cudaFree(c));
    CUDA(cudaFree(want));
    CUDA(cudaFree(changed));
    return failed;
}

/* None, one, some, a tile, one more; one for all; more groups than the table has threads. */
static void check_groups(struct groups *g, int which)
{
    static const uint32_t some[] = {0, 1, 65, 128, 64, 7, 0, 129, 300, 2, 1000, 63};
    memset(g, 0, sizeof *g);
    g->count = which == 3 ? MOST_GROUPS : 12;
    for (uint32_t i = 0; i < g->count; i++)
        g->rows[i] = which == 0   ? some[i]
                     : which == 1 ? (i == 7) * 4097
                     : which == 2 ? 0
                                  : mk_mix(fresh_seed()) % 150;
    groups_place(g);
}

static int check(void)
{
    static const int64_t shapes[][2] = {{8, 8},      {200, 328}, {264, 1000},
                                        {2048, 520}, {1544, 72}, {64, 2048}};
    int failed = 0, cases = 0;
    struct groups g;
    for (int which = 0; which < 4; which++) {
        check_groups(&g, which);
        for (int i = 0; i < (int)(sizeof shapes / sizeof *shapes); i++, cases += 2) {
            failed |= check_one(&g, shapes[i][0], shapes[i][1], GEMM_NK);
            failed |= check_one(&g, shapes[i][0], shapes[i][1], GEMM_KN);
        }
        CUDA(cudaFree(g.ranges));
    }
    printf("check: %d cases of groups, shapes and layouts of B: %s\n", cases,
           failed ? "WRONG" : "right");
    return failed;
}

/* ---- bench ---- */

/* Of `tokens` a rank on 2 ranks, each to 8 different ones of 32 experts, those of the first 16. */
static void bench_groups(struct groups *g, uint32_t tokens, int one)
{
    memset(g, 0, sizeof *g);
    g->count = 16;
    for (uint32_t t = 0; t < 2 * tokens; t++) {
        uint32_t taken = 0;
        for (uint32_t i = 0; i < 8; i++) {
            uint32_t e;
            uint64_t r = t * 977ull + i;
            do
                e = (uint32_t)(mk_random(&r) >> 40) % 32;
            while (taken >> e & 1);
            taken |= 1u << e;
            if (e < 16)
                g->rows[one ? 0 : e]++;
        }
    }
    groups_place(g);
}

static int in_turn(const struct groups *g, const bf16 *a, const bf16 *b, bf16 *c, int64_t n,
                   int64_t k, enum gemm_b b_rows)
{
    int err = 0;
    for (uint32_t i = 0; i < g->count && !err; i++)
        if (g->rows[i])
            err = run_cublas(a + (int64_t)g->first[i] * k, b + i * n * k,
                             c + (int64_t)g->first[i] * n, g->rows[i], n, k, b_rows);
    return err;
}

static double ratios;
static int ratio_count;

static int bench_one(const struct groups *g, uint32_t tokens, int64_t n, int64_t k,
                     enum gemm_b b_rows, double block_ms, double rest_ms)
{
    bf16 *a = device_random(g->room * k, fresh_seed()),
         *b = device_random(g->count * n * k, fresh_seed()), *c, *want;
    CUDA(cudaMalloc(&c, g->room * n * 2));
    CUDA(cudaMalloc(&want, g->room * n * 2));
    struct gemm_grouped p = grouped_of(g, a, b, c, n, k, b_rows, tiles[0]);
    int wrong = in_turn(g, a, b, want, n, k, b_rows) || gemm_grouped_run(&p, 0);
    CUDA(cudaDeviceSynchronize());
    double error = 0, norm = 0, ms[2][ROUNDS], ratio[ROUNDS];
    for (uint32_t i = 0; i < g->count && !wrong; i++)
        if (g->rows[i]) {
            struct difference d = device_compare(c + (int64_t)g->first[i] * n,
                                                 want + (int64_t)g->first[i] * n, g->rows[i], n, k);
            error += d.error;
            norm += d.norm;
        }
    wrong |= !(sqrt(error / norm) <= 2.4e-3); /* both are rounded to bf16 */
    int launches = (int)ceil(block_ms / (2e3 * g->all * n * k / 700e12));
    cudaEvent_t start, stop;
    CUDA(cudaEventCreate(&start));
    CUDA(cudaEventCreate(&stop));
    for (int r = -1; r < ROUNDS && !wrong; r++) { /* round -1 warms up */
        for (int j = 0; j < 2; j++) {
            int who = (j + r + 1) % 2;
            float t;
            usleep((useconds_t)(rest_ms * 1000));
            for (int l = -1; l < launches; l++) {
                if (l == 0)
                    CUDA(cudaEventRecord(start));
                wrong |= who ? gemm_grouped_run(&p, 0) : in_turn(g, a, b, want, n, k, b_rows);
            }
            CUDA(cudaEventRecord(stop));
            CUDA(cudaEventSynchronize(stop));
            CUDA(cudaEventElapsedTime(&t, start, stop));
            if (r >= 0)
                ms[who][r] = t / launches;
        }
        if (r >= 0)
            ratio[r] = ms[0][r] / ms[1][r];
    }
    if (wrong) {
        printf("WRONG %lld rows, n %lld, k %lld: relative error %.2e\n", (long long)g->all,
               (long long)n, (long long)k, sqrt(error / norm));
    } else {
        double rho = median(ratio, ROUNDS), ours = median(ms[1], ROUNDS),
               theirs = median(ms[0], ROUNDS), flop = 2e-9 * g->all * n * k;
        ratios += log(rho);
        ratio_count++;
        printf("%5u tokens a rank %6lld rows, n %5lld, k %5lld %s  %8.4f ms (%.4f-%.4f) %6.1f TF  "
               "cuBLAS, a call for each group %8.4f ms %6.1f TF, %.3f of it\n",
               tokens, (long long)g->all, (long long)n, (long long)k,
               b_rows == GEMM_KN ? "KN" : "NK", ours, ms[1][0], ms[1][ROUNDS - 1], flop / ours,
               theirs, flop / theirs, rho);
    }
    fflush(stdout);
    CUDA(cudaFree(a));
    CUDA(cudaFree(b));
    CUDA(cudaFree(c));
    CUDA(cudaFree(want));
    CUDA(cudaFree(p.table));
    return wrong;
}

static int bench(double block_ms, double rest_ms)
{
    static const int64_t products[][2] = {{2048, 7168}, {4096, 7168}, {7168, 2048}};
    int wrong = 0;
    struct groups g;
    if (cublas_open())
        return 77;
    for (uint32_t tokens = 512; tokens <= 8192; tokens *= 2)
        for (int one = 0; one < 2; one++) {
            if (one && tokens != 2048)
                continue;
            bench_groups(&g, tokens, one);
            for (int i = 0; i < 3; i++)
                for (int layout = 0; layout < 2; layout++)
                    wrong |= bench_one(&g, tokens, products[i][0], products[i][1],
                                       (enum gemm_b)layout, block_ms, rest_ms);
            CUDA(cudaFree(g.ranges));
        }
    if (!wrong)
        printf("geometric mean of %d cases: %.3f of cuBLAS with a call for each group\n",
               ratio_count, exp(ratios / ratio_count));
    return wrong;
}

int main(int argc, char **argv)
{
    struct cudaDeviceProp prop;
    if (cudaGetDeviceProperties(&prop, 0) != cudaSuccess || prop.major != 9) {
        printf("gpu_grouped: skipped, no Hopper GPU here\n");
        return 77;
    }
    printf("%s, %d SMs\n", prop.name, prop.multiProcessorCount);
    if (argc >= 2 && !strcmp(argv[1], "check"))
        return check();
    if (argc >= 2 && !strcmp(argv[1], "bench"))
        return bench(argc >= 3 ? atof(argv[2]) : 20, argc >= 4 ? atof(argv[3]) : 0);
    fprintf(stderr, "usage: gpu_grouped check | bench [MS REST]\n");
    return 2;
}
