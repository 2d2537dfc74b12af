#include "kernels/hopper/tensormap.h"

#include <cuda_runtime_api.h>
#include <errno.h>

typedef CUresult (*encode_tiled)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                                 const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                                 const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                                 CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

/* Asked for at run time, so that the program starts on machines without libcuda. */
static encode_tiled find_encode(void)
{
    void *function = NULL;
    cudaDriverEntryPointQueryResult found;
    cudaError_t err = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                       cudaEnableDefault, &found);
    return err == cudaSuccess && found == cudaDriverEntryPointSuccess ? (encode_tiled)function
                                                                      : NULL;
}

static int describe(CUtensorMap *map, CUtensorMapDataType type, uint32_t rank, const void *base,
                    const cuuint64_t *extent, const cuuint64_t *stride_bytes, const cuuint32_t *box)
{
    /* found twice if two threads come first together: the same pointer */
    static encode_tiled encode;
    const cuuint32_t steps[5] = {1, 1, 1, 1, 1};
    if (!encode)
        encode = find_encode();
    if (!encode)
        return -ENOSYS;
    CUresult r = encode(map, type, rank, (void *)base, extent, stride_bytes, box, steps,
                        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                        CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return r == CUDA_SUCCESS ? 0 : -EINVAL;
}

int tensormap_bf16(CUtensorMap *map, const void *base, const uint64_t extent[3],
                   uint64_t row_stride, uint64_t slab_stride, const uint32_t box[2])
{
    const cuuint64_t sizes[3] = {extent[0], extent[1], extent[2]};
    const cuuint64_t strides[2] = {row_stride * 2, slab_stride * 2};
    const cuuint32_t boxes[3] = {box[0], box[1], 1};
    return describe(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, base, sizes, strides, boxes);
}

int tensormap_bytes(CUtensorMap *map, const void *base, const uint64_t extent[3],
                    uint64_t row_stride, uint64_t slab_stride, const uint32_t box[2])
{
    const cuuint64_t sizes[3] = {extent[0], extent[1], extent[2]};
    const cuuint64_t strides[2] = {row_stride, slab_stride};
    const cuuint32_t boxes[3] = {box[0], box[1], 1};
    return describe(map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 3, base, sizes, strides, boxes);
}

int tensormap_heads(CUtensorMap *map, const void *base, const uint64_t extent[4],
                    const uint64_t stride[3], uint32_t box_rows)
{
    const cuuint64_t sizes[4] = {extent[0], extent[1], extent[2], extent[3]};
    const cuuint64_t strides[3] = {stride[0] * 2, stride[1] * 2, stride[2] * 2};
    const cuuint32_t boxes[4] = {64, 1, box_rows, 1};
    return describe(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, base, sizes, strides, boxes);
}
