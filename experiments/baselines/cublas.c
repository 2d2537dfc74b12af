#include "experiments/baselines/baselines.h"
#include "core/cta/cta.h"
#include "core/base/sentence.h"

#include <cublas_v2.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>

#define WORKSPACE ((size_t)64 << 20) /* what PyTorch gives cuBLAS on Hopper, twice */

struct baseline_cublas {
    void *library;
    cublasHandle_t handle;
    void *workspace;
    cublasStatus_t (*set_stream)(cublasHandle_t, cudaStream_t);
    cublasStatus_t (*destroy)(cublasHandle_t);
    cublasStatus_t (*gemm)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int,
                           const void *, const void *, cudaDataType, int, const void *,
                           cudaDataType, int, const void *, void *, cudaDataType, int,
                           cublasComputeType_t, cublasGemmAlgo_t);
};

int baseline_cublas_open(struct baseline_cublas **out, char *error, size_t size)
{
    cublasStatus_t (*create)(cublasHandle_t *), (*set_workspace)(cublasHandle_t, void *, size_t);
    struct baseline_cublas *b = calloc(1, sizeof *b);
    *out = b;
    if (!b)
        return -ENOMEM;
    b->library = dlopen("libcublas.so.13", RTLD_NOW | RTLD_LOCAL);
    if (!b->library)
        b->library = dlopen("libcublas.so.12", RTLD_NOW | RTLD_LOCAL);
    if (!b->library)
        return mk_fail(-ENOENT, error, size, "no cuBLAS here: %s", dlerror());
    *(void **)&create = dlsym(b->library, "cublasCreate_v2");
    *(void **)&set_workspace = dlsym(b->library, "cublasSetWorkspace_v2");
    *(void **)&b->set_stream = dlsym(b->library, "cublasSetStream_v2");
    *(void **)&b->destroy = dlsym(b->library, "cublasDestroy_v2");
    *(void **)&b->gemm = dlsym(b->library, "cublasGemmEx");
    if (!create || !set_workspace || !b->set_stream || !b->destroy || !b->gemm ||
        create(&b->handle) || cudaMalloc(&b->workspace, WORKSPACE) != cudaSuccess ||
        set_workspace(b->handle, b->workspace, WORKSPACE))
        return mk_fail(-EIO, error, size, "cuBLAS does not start");
    return 0;
}

/* cuBLAS is column-major: it computes C^T = B^T A^T. */
static int baseline_cublas_product(struct baseline_cublas *b, const void *a, const void *bm,
                                   void *c, int64_t m, int64_t n, int64_t k, int b_transposed,
                                   cudaDataType in, cudaDataType out, int add, cudaStream_t stream)
{
    const float one = 1, zero = 0;
    const float *beta = add ? &one : &zero;
    return b->set_stream(b->handle, stream) ||
                   b->gemm(b->handle, b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N, CUBLAS_OP_N, (int)n,
                           (int)m, (int)k, &one, bm, in, (int)(b_transposed ? k : n), a, in, (int)k,
                           beta, c, out, (int)n, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT)
               ? -EIO
               : 0;
}

int baseline_cublas_gemm(struct baseline_cublas *b, uint32_t element, const void *a, const void *bm,
                         void *c, int64_t m, int64_t n, int64_t k, int b_transposed, int c_float,
                         int add, cudaStream_t stream)
{
    const cudaDataType type = element == MK_FP16 ? CUDA_R_16F : CUDA_R_16BF;
    return baseline_cublas_product(b, a, bm, c, m, n, k, b_transposed, type,
                                   c_float ? CUDA_R_32F : type, add, stream);
}

int baseline_cublas_sgemm(struct baseline_cublas *b, const float *a, const float *bm, float *c,
                          int64_t m, int64_t n, int64_t k, int add, cudaStream_t stream)
{
    return baseline_cublas_product(b, a, bm, c, m, n, k, 1, CUDA_R_32F, CUDA_R_32F, add, stream);
}

void baseline_cublas_close(struct baseline_cublas *b)
{
    if (!b)
        return;
    if (b->handle)
        b->destroy(b->handle);
    cudaFree(b->workspace);
    if (b->library)
        dlclose(b->library);
    free(b);
}
