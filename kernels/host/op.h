/* What an operator gives to the GPU executor, in kernels/.../NAME.cu: two functions, for each
 * line of the registry (core/ops/registry.h) that says GPU. */
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/engine/launch.h"

#ifdef __cplusplus
#define GPU_OPERATOR_LINKAGE extern "C"
#else
#define GPU_OPERATOR_LINKAGE
#endif

/* Declares both functions of one operator: its own file says GPU_OPERATOR(NAME) before it defines
 * them, the executor says it for all. (No list of all is here: a line more in the registry would
 * compile every kernel anew.)
 *
 * NAME_prepare: whether the kernel is built for the plan's tiles. 0, or -EINVAL with the shapes
 * that there are in `error`. Also raises the kernel's shared memory limit on the current device, so
 * that a launch does not have to.
 *
 * NAME_launch: launches on `stream`: grid and roles of the plan, arguments in launch->arguments.
 * Does not synchronise, allocates nothing; may be captured. 0, -EINVAL (a pointer that TMA cannot
 * take), -ENOSYS (no driver with tensor maps), -EIO (ask cudaGetLastError). */
#define GPU_OPERATOR(name)                                                                         \
    GPU_OPERATOR_LINKAGE int name##_prepare(const struct mk_plan *plan, char *error,               \
                                            size_t error_size);                                    \
    GPU_OPERATOR_LINKAGE int name##_launch(const struct mk_plan *plan,                             \
                                           const struct gpu_launch *launch, cudaStream_t stream);

/* Both functions, as a value: of an operator, or of those of its kernels that a plan takes. */
struct gpu_functions {
    int (*prepare)(const struct mk_plan *plan, char *error, size_t error_size);
    int (*launch)(const struct mk_plan *plan, const struct gpu_launch *launch, cudaStream_t stream);
};
#define GPU_FUNCTIONS(name)                                                                        \
    {                                                                                              \
        name##_prepare, name##_launch                                                              \
    }

#ifdef __cplusplus
/* Defines both functions, NAME's, for plans of `op`, by a type with
 *
 *   static int prepare(const struct <op>_plan *, const struct mk_kernel_choice *, char *error, size_t)
 *   static int launch(const struct <op>_plan *, const struct mk_kernel_choice *,
 *                     const struct gpu_launch *, cudaStream_t) */
#define GPU_OPERATOR_BY(name, op, ...)                                                             \
    GPU_OPERATOR(name)                                                                             \
    int name##_prepare(const struct mk_plan *plan, char *error, size_t error_size)                 \
    {                                                                                              \
        const struct mk_kernel_choice q = mk_kernel_choice_of(plan);                               \
        return __VA_ARGS__::prepare(op##_plan_of(plan), &q, error, error_size);                    \
    }                                                                                              \
                                                                                                   \
    int name##_launch(const struct mk_plan *plan, const struct gpu_launch *launch,                 \
                      cudaStream_t stream)                                                         \
    {                                                                                              \
        const struct mk_kernel_choice q = mk_kernel_choice_of(plan);                               \
        return __VA_ARGS__::launch(op##_plan_of(plan), &q, launch, stream);                        \
    }

/* And for plans that take one of several kernels: those that
 * struct gpu_functions choose(const struct mk_kernel_choice *) says. */
#define GPU_OPERATOR_OF(name, choose)                                                              \
    GPU_OPERATOR(name)                                                                             \
    int name##_prepare(const struct mk_plan *plan, char *error, size_t error_size)                 \
    {                                                                                              \
        const struct mk_kernel_choice q = mk_kernel_choice_of(plan);                               \
        return choose(&q).prepare(plan, error, error_size);                                        \
    }                                                                                              \
                                                                                                   \
    int name##_launch(const struct mk_plan *plan, const struct gpu_launch *launch,                 \
                      cudaStream_t stream)                                                         \
    {                                                                                              \
        const struct mk_kernel_choice q = mk_kernel_choice_of(plan);                               \
        return choose(&q).launch(plan, launch, stream);                                            \
    }

/* Declares the functions of NAME and NAME_mma, kernels of both engines; and of these those for the plan's engine. */
#define GPU_KERNELS(name)                                                                          \
    GPU_OPERATOR(name)                                                                             \
    GPU_OPERATOR(name##_mma)
#define GPU_FUNCTIONS_BY_ENGINE(q, name)                                                           \
    ((q)->engine == MK_ENGINE_MMA ? gpu_functions GPU_FUNCTIONS(name##_mma)                        \
                                  : gpu_functions GPU_FUNCTIONS(name))
#endif
