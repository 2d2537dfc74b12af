/* The baselines: cuBLAS and NCCL, loaded at run time (dlopen), so that nothing here is linked
 * against them. */
#pragma once

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

struct baseline_cublas;

/* Opens libcublas (13, 12) on the current device. 0, -ENOENT with a sentence (no such library),
 * -EIO. */
int baseline_cublas_open(struct baseline_cublas **out, char *error, size_t size);

/* C = A * B on `stream`: A [m, k], B [k, n] or [n, k] where b_transposed, row-major, of `element`
 * (MK_BF16 or MK_FP16); C [m, n] likewise, or float where c_float. C += A * B where `add`. fp32
 * accumulation. Does not synchronise. 0 or -EIO. */
int baseline_cublas_gemm(struct baseline_cublas *b, uint32_t element, const void *a, const void *bm,
                         void *c, int64_t m, int64_t n, int64_t k, int b_transposed, int c_float,
                         int add, cudaStream_t stream);

/* The same of fp32 A, B [n, k] and C. */
int baseline_cublas_sgemm(struct baseline_cublas *b, const float *a, const float *bm, float *c,
                          int64_t m, int64_t n, int64_t k, int add, cudaStream_t stream);

void baseline_cublas_close(struct baseline_cublas *b);

/* FP8 with block scales: C [m, n] bf16 = A [m, k] * B [n, k]^T of e4m3 codes, whose scales lie as
 * struct mk_spec has them: of A [ceil(k / 128), m], of B [ceil(n / 128), ceil(k / 128) rounded up
 * to 4]. All dense, on the GPU. */
struct baseline_cublaslt;

struct baseline_fp8 {
    const void *a, *b;
    const float *a_scales, *b_scales;
    void *c;
    int64_t m, n, k;
};

/* Opens libcublasLt (13, 12) on the current device. 0, -ENOENT with a sentence, -EIO; close in any
 * case. */
int baseline_cublaslt_open(struct baseline_cublaslt **out, char *error, size_t size);

/* On `stream`, as baseline_cublas_gemm. 0 or -EIO (where cuBLAS has no such product, too). */
int baseline_cublaslt_gemm(struct baseline_cublaslt *b, const struct baseline_fp8 *product,
                           cudaStream_t stream);
void baseline_cublaslt_close(struct baseline_cublaslt *b);

struct baseline_nccl;

/* The id that rank 0 makes and every rank needs. */
struct baseline_nccl_id {
    char bytes[128];
};

/* Opens libnccl.so.2. Sets NCCL_NVLS_ENABLE=0 for this process where it is not set: no multicast.
 * 0, -ENOENT, -EIO. */
int baseline_nccl_open(struct baseline_nccl **out, char *error, size_t size);
int baseline_nccl_make_id(struct baseline_nccl *b, struct baseline_nccl_id *id);

/* Collective: joins `world` ranks. 0 or -EIO. */
int baseline_nccl_join(struct baseline_nccl *b, const struct baseline_nccl_id *id, int rank,
                       int world);

/* All-gather of `bytes` from each rank into `all`, on `stream`. Does not synchronise. 0 or -EIO. */
int baseline_nccl_allgather(struct baseline_nccl *b, const void *mine, void *all, size_t bytes,
                            cudaStream_t stream);

/* Sum of `count` elements, MK_BF16 or MK_FP16, a rank gets, of `all` (count * ranks elements) of
 * each. 0 or -EIO. */
int baseline_nccl_reducescatter(struct baseline_nccl *b, uint32_t element, const void *all,
                                void *mine, size_t count, cudaStream_t stream);

/* Sum of `count` such elements, on every rank. 0 or -EIO. */
int baseline_nccl_allreduce(struct baseline_nccl *b, uint32_t element, const void *in, void *out,
                            size_t count, cudaStream_t stream);

void baseline_nccl_close(struct baseline_nccl *b);

/* cuDNN's attention, by PyTorch in a process of its own on GPU number `gpu` (as CUDA numbers them
 * here). open starts it and does not wait for it; version does, at most a minute. 0, -ENOENT
 * (python3 or the script is not there), or -EIO, with what Python said. One thread. */
struct baseline_cudnn;

struct baseline_attention {
    uint64_t batch, heads, kv_heads, queries, keys, dim; /* elements */
    int causal;
};

int baseline_cudnn_open(struct baseline_cudnn **out, int gpu, char *error, size_t size);
int baseline_cudnn_version(struct baseline_cudnn *b, char *error, size_t size);

/* Launches that follow each other without a pause: `launches` times in ms. Blocks, at most a
 * minute. 0, or -EIO with what Python said. */
int baseline_cudnn_attention(struct baseline_cudnn *b, const struct baseline_attention *shape,
                             uint32_t launches, float *ms, char *error, size_t size);
void baseline_cudnn_close(struct baseline_cudnn *b);
