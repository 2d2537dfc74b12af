/* cuBLASLt's FP8 product with block scales. */
#include "experiments/baselines/baselines.h"
#include "core/base/sentence.h"

#include <cublasLt.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>

#define WORKSPACE ((size_t)64 << 20)

struct baseline_cublaslt {
    void *library, *workspace;
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t what;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algorithm;
    int64_t m, n, k; /* what the algorithm is for */
    cublasStatus_t (*destroy)(cublasLtHandle_t);
    cublasStatus_t (*desc_create)(cublasLtMatmulDesc_t *, cublasComputeType_t, cudaDataType_t);
    cublasStatus_t (*desc_set)(cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t, const void *,
                               size_t);
    cublasStatus_t (*desc_destroy)(cublasLtMatmulDesc_t);
    cublasStatus_t (*layout_create)(cublasLtMatrixLayout_t *, cudaDataType, uint64_t, uint64_t,
                                    int64_t);
    cublasStatus_t (*layout_destroy)(cublasLtMatrixLayout_t);
    cublasStatus_t (*preference_create)(cublasLtMatmulPreference_t *);
    cublasStatus_t (*preference_set)(cublasLtMatmulPreference_t,
                                     cublasLtMatmulPreferenceAttributes_t, const void *, size_t);
    cublasStatus_t (*preference_destroy)(cublasLtMatmulPreference_t);
    cublasStatus_t (*choose)(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                             cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                             cublasLtMatmulPreference_t, int, cublasLtMatmulHeuristicResult_t[],
                             int *);
    cublasStatus_t (*matmul)(cublasLtHandle_t, cublasLtMatmulDesc_t, const void *, const void *,
                             cublasLtMatrixLayout_t, const void *, cublasLtMatrixLayout_t,
                             const void *, const void *, cublasLtMatrixLayout_t, void *,
                             cublasLtMatrixLayout_t, const cublasLtMatmulAlgo_t *, void *, size_t,
                             cudaStream_t);
};

int baseline_cublaslt_open(struct baseline_cublaslt **out, char *error, size_t size)
{
    cublasStatus_t (*create)(cublasLtHandle_t *);
    struct baseline_cublaslt *b = calloc(1, sizeof *b);
    *out = b;
    if (!b)
        return -ENOMEM;
    b->library = dlopen("libcublasLt.so.13", RTLD_NOW | RTLD_LOCAL);
    if (!b->library)
        b->library = dlopen("libcublasLt.so.12", RTLD_NOW | RTLD_LOCAL);
    if (!b->library)
        return mk_fail(-ENOENT, error, size, "no cuBLASLt here: %s", dlerror());
    const struct {
        void *to;
        const char *name;
    } names[] = {{&create, "cublasLtCreate"},
                 {&b->destroy, "cublasLtDestroy"},
                 {&b->desc_create, "cublasLtMatmulDescCreate"},
                 {&b->desc_set, "cublasLtMatmulDescSetAttribute"},
                 {&b->desc_destroy, "cublasLtMatmulDescDestroy"},
                 {&b->layout_create, "cublasLtMatrixLayoutCreate"},
                 {&b->layout_destroy, "cublasLtMatrixLayoutDestroy"},
                 {&b->preference_create, "cublasLtMatmulPreferenceCreate"},
                 {&b->preference_set, "cublasLtMatmulPreferenceSetAttribute"},
                 {&b->preference_destroy, "cublasLtMatmulPreferenceDestroy"},
                 {&b->choose, "cublasLtMatmulAlgoGetHeuristic"},
                 {&b->matmul, "cublasLtMatmul"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!(*(void **)names[i].to = dlsym(b->library, names[i].name)))
            return mk_fail(-ENOENT, error, size, "cuBLASLt has no %s", names[i].name);
    if (create(&b->handle) || cudaMalloc(&b->workspace, WORKSPACE) != cudaSuccess)
        return mk_fail(-EIO, error, size, "cuBLASLt does not start");
    return 0;
}

static void baseline_cublaslt_forget(struct baseline_cublaslt *b)
{
    if (b->what)
        b->desc_destroy(b->what);
    const cublasLtMatrixLayout_t layouts[] = {b->a, b->b, b->c};
    for (int i = 0; i < 3; i++)
        if (layouts[i])
            b->layout_destroy(layouts[i]);
    b->what = NULL;
    b->a = b->b = b->c = NULL;
    b->m = 0;
}

/* To this product's scales. */
static int baseline_cublaslt_point(struct baseline_cublaslt *b, const struct baseline_fp8 *p)
{
    return b->desc_set(b->what, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &p->b_scales,
                       sizeof p->b_scales) ||
           b->desc_set(b->what, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &p->a_scales,
                       sizeof p->a_scales);
}

/* The fastest way by cuBLAS's own word, as PyTorch takes it. cuBLAS is column-major: it computes
 * C^T = B A^T, B being its first operand. */
static int baseline_cublaslt_describe(struct baseline_cublaslt *b, const struct baseline_fp8 *p)
{
    const uint64_t m = (uint64_t)p->m, n = (uint64_t)p->n, k = (uint64_t)p->k;
    const int32_t transposed = CUBLAS_OP_T, plain = CUBLAS_OP_N,
                  squares = CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F,
                  rows = CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
    const size_t room = WORKSPACE;
    cublasLtMatmulPreference_t preference = NULL;
    cublasLtMatmulHeuristicResult_t found = {0};
    int count = 0;
    baseline_cublaslt_forget(b);
    int failed =
        b->desc_create(&b->what, CUBLAS_COMPUTE_32F, CUDA_R_32F) ||
        b->desc_set(b->what, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed) ||
        b->desc_set(b->what, CUBLASLT_MATMUL_DESC_TRANSB, &plain, sizeof plain) ||
        b->desc_set(b->what, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &squares, sizeof squares) ||
        b->desc_set(b->what, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &rows, sizeof rows) ||
        baseline_cublaslt_point(b, p) || b->layout_create(&b->a, CUDA_R_8F_E4M3, k, n, p->k) ||
        b->layout_create(&b->b, CUDA_R_8F_E4M3, k, m, p->k) ||
        b->layout_create(&b->c, CUDA_R_16BF, n, m, p->n) || b->preference_create(&preference) ||
        b->preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &room,
                          sizeof room) ||
        b->choose(b->handle, b->what, b->a, b->b, b->c, b->c, preference, 1, &found, &count) ||
        !count;
    if (preference)
        b->preference_destroy(preference);
    if (failed)
        return -EIO;
    b->algorithm = found.algo;
    b->m = p->m;
    b->n = p->n;
    b->k = p->k;
    return 0;
}

int baseline_cublaslt_gemm(struct baseline_cublaslt *b, const struct baseline_fp8 *p,
                           cudaStream_t stream)
{
    const float one = 1, zero = 0;
    if ((b->m != p->m || b->n != p->n || b->k != p->k) && baseline_cublaslt_describe(b, p))
        return -EIO;
    return baseline_cublaslt_point(b, p) ||
                   b->matmul(b->handle, b->what, &one, p->b, b->a, p->a, b->b, &zero, p->c, b->c,
                             p->c, b->c, &b->algorithm, b->workspace, WORKSPACE, stream)
               ? -EIO
               : 0;
}

void baseline_cublaslt_close(struct baseline_cublaslt *b)
{
    if (!b)
        return;
    if (b->handle) {
        baseline_cublaslt_forget(b);
        b->destroy(b->handle);
    }
    cudaFree(b->workspace);
    if (b->library)
        dlclose(b->library);
    free(b);
}
