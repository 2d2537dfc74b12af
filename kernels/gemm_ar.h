/* GEMM+AllReduce on a GPU: one persistent kernel, the schedule of core/roles/gemm_ar.h. Host side. */
#ifndef MK_KERNELS_GEMM_AR_H
#define MK_KERNELS_GEMM_AR_H

#include <cuda_runtime_api.h>

#include "core/plan.h"
#include "kernels/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Whether the kernel is built for the plan's tiles. 0, or -EINVAL with the shapes that there are in `error`. Also raises
 * the kernel's shared memory limit on the current device, so that a launch does not have to. */
int gemm_ar_prepare(const struct mk_plan *plan, char *error, size_t error_size);

/* Launches on `stream`: grid and roles of the plan, arguments A, B, C in launch->arguments. Does not synchronise, allocates
 * nothing; may be captured. 0, -EINVAL (a pointer that TMA cannot take), -ENOSYS (no driver with tensor maps), -EIO (ask
 * cudaGetLastError). */
int gemm_ar_launch(const struct mk_plan *plan, const struct gpu_launch *launch, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
