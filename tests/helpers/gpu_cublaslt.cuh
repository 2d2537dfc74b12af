/* cuBLASLt's algorithms that multiply by mma.sync (kernels called ...s16816...), on GPUs where
 * cuBLAS itself takes others: each that does a product is timed once, and the fastest is kept. */
#pragma once

#include "tests/helpers/gpu_inputs.cuh"

#include <cublasLt.h>
#include <cuda.h>
#include <dlfcn.h>
#include <string.h>

#define LT_CALLS(X)                                                                                \
    X(Create)                                                                                      \
    X(MatmulDescCreate)                                                                            \
    X(MatmulDescSetAttribute)                                                                      \
    X(MatrixLayoutCreate)                                                                          \
    X(MatmulAlgoGetIds)                                                                            \
    X(MatmulAlgoInit)                                                                              \
    X(MatmulAlgoCapGetAttribute)                                                                   \
    X(MatmulAlgoConfigSetAttribute)                                                                \
    X(MatmulAlgoCheck)                                                                             \
    X(Matmul)

enum { LT_KEPT = 12, LT_WORKSPACE = 32 << 20 };

/* An algorithm that was fast once is tried first with the next product. */
struct lt_choice {
    int id;
    uint32_t tile, stages, swizzle;
    float ms;
    char kernel[200];
};

static struct {
#define LT_MEMBER(name) decltype(&cublasLt##name) name;
    LT_CALLS(LT_MEMBER)
#undef LT_MEMBER
    CUresult (*nodes)(CUgraph, CUgraphNode *, size_t *);
    CUresult (*parameters)(CUgraphNode, CUDA_KERNEL_NODE_PARAMS *);
    CUresult (*function_name)(const char **, CUfunction);
    CUresult (*kernel_name)(const char **, CUkernel);
    cublasLtHandle_t handle;
    void *workspace;
    cudaStream_t stream;
    struct lt_choice kept[2][LT_KEPT]; /* by the layout of B */
    int kept_count[2];
} lt;

struct lt_product {
    const bf16 *a, *b;
    bf16 *c;
    int64_t m, n, k;
    int kn;
    cublasLtMatmulDesc_t description;
    cublasLtMatrixLayout_t first, second, result; /* B, A and C: columns follow each other there */
    cublasLtMatmulAlgo_t algorithm;
};

static int lt_open(void)
{
    static const char *const names[] = {"libcublasLt.so.13", "libcublasLt.so.12"};
    void *lib = NULL;
    for (int i = 0; !lib && i < 2; i++)
        lib = dlopen(names[i], RTLD_NOW);
    if (!lib)
        return -1;
#define LT_LOOK(name)                                                                              \
    lt.name = (decltype(lt.name))dlsym(lib, "cublasLt" #name);                                     \
    if (!lt.name)                                                                                  \
        return -1;
    LT_CALLS(LT_LOOK)
#undef LT_LOOK
    cudaDriverEntryPointQueryResult found;
#define LT_DRIVER(to, name)                                                                        \
    CUDA(cudaGetDriverEntryPointByVersion(name, (void **)&lt.to, 12030, 0, &found))
    LT_DRIVER(nodes, "cuGraphGetNodes");
    LT_DRIVER(parameters, "cuGraphKernelNodeGetParams");
    LT_DRIVER(function_name, "cuFuncGetName");
    LT_DRIVER(kernel_name, "cuKernelGetName");
#undef LT_DRIVER
    CUDA(cudaMalloc(&lt.workspace, LT_WORKSPACE));
    CUDA(cudaStreamCreate(&lt.stream));
    return lt.Create(&lt.handle) == CUBLAS_STATUS_SUCCESS ? 0 : -1;
}

/* Row-major C = A B is column-major C' = B' A'. */
static struct lt_product lt_describe(const bf16 *a, const bf16 *b, bf16 *c, int64_t m, int64_t n,
                                     int64_t k, int kn)
{
    struct lt_product p = {a, b, c, m, n, k, kn};
    cublasOperation_t turned = kn ? CUBLAS_OP_N : CUBLAS_OP_T;
    lt.MatmulDescCreate(&p.description, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    lt.MatmulDescSetAttribute(p.description, CUBLASLT_MATMUL_DESC_TRANSA, &turned, sizeof turned);
    lt.MatrixLayoutCreate(&p.first, CUDA_R_16BF, kn ? n : k, kn ? k : n, kn ? n : k);
    lt.MatrixLayoutCreate(&p.second, CUDA_R_16BF, k, m, k);
    lt.MatrixLayoutCreate(&p.result, CUDA_R_16BF, n, m, n);
    return p;
}

static int lt_run(const struct lt_product *p, const bf16 *a, const bf16 *b, cudaStream_t stream)
{
    const float one = 1, zero = 0;
    return lt.Matmul(lt.handle, p->description, &one, b, p->first, a, p->second, &zero, p->c,
                     p->result, p->c, p->result, &p->algorithm, lt.workspace, LT_WORKSPACE,
                     stream) != CUBLAS_STATUS_SUCCESS;
}

/* The name of the kernel that does the product; "" where there are none or several. */
static void lt_kernel(const struct lt_product *p, char *name, size_t size)
{
    cudaGraph_t graph;
    CUgraphNode node[4];
    CUDA_KERNEL_NODE_PARAMS of = {};
    const char *said = NULL;
    size_t count = 4;
    name[0] = 0;
    CUDA(cudaStreamBeginCapture(lt.stream, cudaStreamCaptureModeRelaxed));
    int failed = lt_run(p, p->a, p->b, lt.stream);
    cudaError_t ended = cudaStreamEndCapture(lt.stream, &graph);
    if (ended != cudaSuccess)
        cudaGetLastError();
    if (ended == cudaSuccess && !failed && !lt.nodes(graph, node, &count) && count == 1 &&
        !lt.parameters(node[0], &of)) {
        if (!(of.func ? lt.function_name(&said, of.func) : lt.kernel_name(&said, of.kern)) && said)
            snprintf(name, size, "%s", said);
    }
    if (ended == cudaSuccess)
        cudaGraphDestroy(graph);
}

static int lt_configure(struct lt_product *p, struct lt_choice *choice)
{
    cublasLtMatmulHeuristicResult_t result;
#define LT_SET(what, value)                                                                        \
    lt.MatmulAlgoConfigSetAttribute(&p->algorithm, CUBLASLT_ALGO_CONFIG_##what, &(value),          \
                                    sizeof(value))
    if (lt.MatmulAlgoInit(lt.handle, CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_16BF, CUDA_R_16BF,
                          CUDA_R_16BF, CUDA_R_16BF, choice->id, &p->algorithm))
        return -1;
    LT_SET(TILE_ID, choice->tile);
    LT_SET(STAGES_ID, choice->stages);
    LT_SET(CTA_SWIZZLING, choice->swizzle);
#undef LT_SET
    return lt.MatmulAlgoCheck(lt.handle, p->description, p->first, p->second, p->result, p->result,
                              &p->algorithm, &result) == CUBLAS_STATUS_SUCCESS &&
                   result.workspaceSize <= LT_WORKSPACE
               ? 0
               : -1;
}

/* Of three launches, the shortest. */
static float lt_time(const struct lt_product *p)
{
    static cudaEvent_t start, stop;
    float best = INFINITY, ms;
    if (!start) {
        CUDA(cudaEventCreate(&start));
        CUDA(cudaEventCreate(&stop));
    }
    for (int i = 0; i < 3; i++) {
        CUDA(cudaEventRecord(start, lt.stream));
        if (lt_run(p, p->a, p->b, lt.stream))
            return INFINITY;
        CUDA(cudaEventRecord(stop, lt.stream));
        CUDA(cudaEventSynchronize(stop));
        CUDA(cudaEventElapsedTime(&ms, start, stop));
        best = fminf(best, ms);
    }
    return best;
}

static int lt_by_time(const void *x, const void *y)
{
    float a = ((const struct lt_choice *)x)->ms, b = ((const struct lt_choice *)y)->ms;
    return (a > b) - (a < b);
}

/* Tries every algorithm, tile, depth and order of blocks. */
static int lt_search(struct lt_product *p, struct lt_choice *found, int most)
{
    int ids[512], id_count = 0, count = 0;
    lt.MatmulAlgoGetIds(lt.handle, CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_16BF, CUDA_R_16BF,
                        CUDA_R_16BF, CUDA_R_16BF, 512, ids, &id_count);
    for (int i = 0; i < id_count; i++) {
        uint32_t tiles[256], stages[256];
        size_t tile_bytes = 0, stage_bytes = 0;
        struct lt_choice choice = {ids[i]};
        if (lt.MatmulAlgoInit(lt.handle, CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_16BF, CUDA_R_16BF,
                              CUDA_R_16BF, CUDA_R_16BF, ids[i], &p->algorithm))
            continue;
        lt.MatmulAlgoCapGetAttribute(&p->algorithm, CUBLASLT_ALGO_CAP_TILE_IDS, tiles, sizeof tiles,
                                     &tile_bytes);
        lt.MatmulAlgoCapGetAttribute(&p->algorithm, CUBLASLT_ALGO_CAP_STAGES_IDS, stages,
                                     sizeof stages, &stage_bytes);
        for (size_t t = 0; t < tile_bytes / 4; t++)
            for (size_t s = 0; s < stage_bytes / 4; s++)
                for (uint32_t swizzle = 0; swizzle < 2; swizzle++) {
                    choice.tile = tiles[t];
                    choice.stages = stages[s];
                    choice.swizzle = swizzle;
                    if (count == most || lt_configure(p, &choice))
                        continue;
                    lt_kernel(p, choice.kernel, sizeof choice.kernel);
                    if (!strstr(choice.kernel, "16816"))
                        continue;
                    choice.ms = lt_time(p);
                    found[count++] = choice;
                }
    }
    qsort(found, count, sizeof *found, lt_by_time);
    return count;
}

/* The fastest for this product: of all for the first of a layout, and of those that were fastest
 * there for the others. 0, or -1 where there is none. */
static int lt_choose(struct lt_product *p, struct lt_choice *best)
{
    enum { MOST = 4096 };
    struct lt_choice *kept = lt.kept[p->kn];
    if (!lt.kept_count[p->kn]) {
        struct lt_choice *all = (struct lt_choice *)calloc(MOST, sizeof *all);
        int count = all ? lt_search(p, all, MOST) : 0;
        printf("cuBLASLt, B %s: %d ways by s16816\n", p->kn ? "KN" : "NK", count);
        lt.kept_count[p->kn] = count < LT_KEPT ? count : LT_KEPT;
        for (int i = 0; i < lt.kept_count[p->kn]; i++)
            kept[i] = all[i];
        free(all);
    }
    best->ms = INFINITY;
    for (int i = 0; i < lt.kept_count[p->kn]; i++) {
        if (lt_configure(p, &kept[i]))
            continue;
        kept[i].ms = lt_time(p);
        if (kept[i].ms < best->ms)
            *best = kept[i];
    }
    return best->ms < INFINITY ? lt_configure(p, best) : -1;
}
