#include "kernels/tensormap.h"

#include <cuda_runtime_api.h>
#include <errno.h>

typedef CUresult (*encode_tiled)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                                 const cuuint64_t *, const cuuint32_t *, const cuuint32_t *,
                                 CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                                 CUtensorMapFloatOOBfill);

/* Asked for at run time, so that the program starts on machines without libcuda. */
static encode_tiled find_encode(void)
{
    void *function = NULL;
    cudaDriverEntryPointQueryResult found;
    cudaError_t err = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                       cudaEnableDefault, &found);
    return err == cudaSuccess && found == cudaDriverEntryPointSuccess ? (encode_tiled)function : NULL;
}

static int describe(CUtensorMap *map, CUtensorMapDataType type, uint32_t size, const void *base,
                    const uint64_t extent[3], uint64_t row_stride, uint64_t slab_stride, const uint32_t box[2])
{
    static encode_tiled encode; /* found twice if two threads come first together: the same pointer */
    if (!encode)
        encode = find_encode();
    if (!encode)
        return -ENOSYS;
    cuuint64_t sizes[3] = {extent[0], extent[1], extent[2]};
    cuuint64_t strides[2] = {row_stride * size, slab_stride * size};
    cuuint32_t boxes[3] = {box[0], box[1], 1}, steps[3] = {1, 1, 1};
    CUresult r = encode(map, type, 3, (void *)base, sizes, strides, boxes, steps,
                        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                        CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return r == CUDA_SUCCESS ? 0 : -EINVAL;
}

int tensormap_bf16(CUtensorMap *map, const void *base, const uint64_t extent[3], uint64_t row_stride,
                   uint64_t slab_stride, const uint32_t box[2])
{
    return describe(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, base, extent, row_stride, slab_stride, box);
}

int tensormap_fp32(CUtensorMap *map, const void *base, const uint64_t extent[3], uint64_t row_stride,
                   uint64_t slab_stride, const uint32_t box[2])
{
    return describe(map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 4, base, extent, row_stride, slab_stride, box);
}
