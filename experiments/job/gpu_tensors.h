/* Tensors on a GPU: filled with the inputs of inputs.h, poisoned, compared. All on a stream, none
 * synchronises but gpu_compare. Return 0 or -EIO. */
#pragma once

#include <cuda_runtime_api.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The same values as inputs_fill_half and inputs_fill: elements first .. first + count - 1 (both
 * multiples of 4) of the tensor of `key`. */
int gpu_fill_half(uint32_t element, uint16_t *out, uint64_t key, uint64_t first, uint64_t count,
                  cudaStream_t stream);
int gpu_fill(uint16_t *out, uint64_t key, uint64_t first, uint64_t count, cudaStream_t stream);

/* Codes and scales that mk_quantize made, back to fp32: of 128 x 128 where `square`, else of 1 x
 * 128. The same bits as dequantize_blocks and dequantize_rows. */
int gpu_dequantize(const uint8_t *q, uint64_t rows, uint64_t k, int square, const float *scales,
                   uint64_t pitch, float *x, cudaStream_t stream);

/* GPU memory of a check: zeroed at first. err: 0, -ENOMEM or -EIO, of any gpu_take. */
struct gpu_memory {
    void *all[20];
    uint32_t count;
    int err;
};

/* So many bytes, with a copy of those at `from` in host memory, or zeros (NULL). NULL: there is
 * none. */
void *gpu_take(struct gpu_memory *memory, const void *from, uint64_t bytes);
void gpu_give_back(struct gpu_memory *memory);

/* NaN in every element. */
int gpu_poison(uint16_t *out, uint64_t count, cudaStream_t stream);

/* What gpu_compare found. */
struct gpu_difference {
    double difference2, reference2; /* sums of squares */
    unsigned long long wrong;       /* elements outside the bound, NaN among them */
};

/* Compares `c`, MK_BF16 or MK_FP16, with fp32 `reference`. Wrong: |c - ref| > check_unit(element)
 * |ref| + absolute. Blocks until done. */
int gpu_compare(uint32_t element, const uint16_t *c, const float *reference, uint64_t count,
                float absolute, struct gpu_difference *out, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
