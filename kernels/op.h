/* What an operator gives to the GPU executor, in kernels/ops/<name>.cu: two functions, for each
 * line of the registry (core/ops/registry.h) that says GPU. */
#ifndef MK_KERNELS_OP_H
#define MK_KERNELS_OP_H

#include <cuda_runtime_api.h>

#include "core/plan.h"
#include "kernels/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* NAME_prepare: whether the kernel is built for the plan's tiles. 0, or -EINVAL with the shapes
 * that there are in `error`. Also raises the kernel's shared memory limit on the current device, so
 * that a launch does not have to.
 *
 * NAME_launch: launches on `stream`: grid and roles of the plan, arguments in launch->arguments.
 * Does not synchronise, allocates nothing; may be captured. 0, -EINVAL (a pointer that TMA cannot
 * take), -ENOSYS (no driver with tensor maps), -EIO (ask cudaGetLastError). */
#define GPU_OPERATOR_HOST(name)
#define GPU_OPERATOR_GPU(name)                                                                     \
    int name##_prepare(const struct mk_plan *plan, char *error, size_t error_size);                \
    int name##_launch(const struct mk_plan *plan, const struct gpu_launch *launch,                 \
                      cudaStream_t stream);
#define MK_OPERATOR(name, NAME, where) GPU_OPERATOR_##where(name)
MK_OPERATORS(MK_OPERATOR)
#undef MK_OPERATOR
#undef GPU_OPERATOR_HOST
#undef GPU_OPERATOR_GPU

#ifdef __cplusplus
}
#endif

#endif
