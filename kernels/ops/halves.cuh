/* The kernels of an operator that makes tables and whose launches may have two halves (core/cta/halves.h):
 * that of whole launches (kernels/ops/move.cuh), and one for each half, with the roles of that half.
 *
 * kernels/ops/NAME.cu includes this and the schedule, whose halves are NAME_begin and NAME_end of a
 * struct NAME_halves_plan, and says GPU_ROUTER_HALVES(NAME, whether it adds). */
#pragma once

#include "kernels/ops/move.cuh"

#include "core/cta/halves.h"

/* Which blocks of the launch the kernel has: their CTAs begin with number `first`, of `all`. */
struct half_blocks {
    uint32_t first, all;
};

/* As move_kernel. `left` counts the blocks of both halves, so it says the launch's number in either, and
 * whether it is this half's turn. */
template <class half>
__global__ void __launch_bounds__(move_by_tables::threads, 1)
    half_kernel(const __grid_constant__ typename half::plan plan,
                const __grid_constant__ struct gpu_launch launch, const struct half_blocks blocks)
{
    PTX_SHARED_DYNAMIC(memory);
    struct mk_cta cta;
    ptx_launch_next();
    cta_resume(&cta, &launch, blocks.first + blockIdx.x, move_by_tables::lanes);
    const uint64_t left = ptx_load_relaxed(launch.left), launches = left / blocks.all,
                   here = left - launches * blocks.all - blocks.first; /* without a sign */
    cta.epoch = launches + 1;
    if (cta_agree(&cta, here >= gridDim.x)) {
        if (cta_leads(&cta))
            cta_report(&cta, UINT32_MAX, GPU_CAUSE_OUT_OF_TURN, 0, 0, 0);
        return;
    }
    const uint64_t now = cta_time(&cta);
    cta_record(&cta, MK_EV_LAUNCH, launch.plan & 15, cta.epoch, now, now);
    cta.scratch = memory;
    if (cta.role != MK_INTER_SEND || !cta_begin_commands(&cta))
        half::run(&plan, &cta);
    cta_end(&cta);
    cta_meet(&cta);
    if (cta_leads(&cta))
        cta_leave(&launch);
}

static struct move_by_tables half_way(const struct mk_plan *plan)
{
    return {mk_kernel_choice_of(plan).engine == MK_ENGINE_MMA ? MK_MMA_ROUTE_SHARED
                                                              : MK_ROUTE_SHARED};
}

template <class half>
static int half_prepare(const struct mk_plan *plan, enum mk_half which, char *error,
                        size_t error_size)
{
    const struct mk_kernel_choice q = mk_kernel_choice_of(plan);
    const struct mk_role_split split = mk_half_split(&q.split, which);
    return move_prepared(gpu_admit(half_kernel<half>, mk_total_blocks(&split), 1,
                                   move_by_tables::threads, half_way(plan).shared_bytes, error,
                                   error_size),
                         error, error_size);
}

/* launch->split is that of the half. */
template <class half>
static int half_launch(const struct mk_plan *plan, const typename half::plan *own,
                       const struct gpu_launch *launch, cudaStream_t stream)
{
    const struct mk_kernel_choice q = mk_kernel_choice_of(plan);
    const struct mk_role_split *all = &q.split;
    const struct half_blocks blocks = {mk_half_first(all, mk_half_of(&launch->split)),
                                       mk_total_ctas(all)};
    struct gpu_launch whole = *launch;
    whole.split = *all;
    return move_launch_kernel(half_kernel<half>, launch, MK_SPACE_ARG3,
                              {mk_total_ctas(&launch->split), move_by_tables::threads,
                               half_way(plan).shared_bytes, 0, gpu_comes_early(&q)},
                              stream, *own, whole, blocks);
}

#define GPU_HALF(name, which)                                                                      \
    struct name##_##which##_half {                                                                 \
        typedef struct name##_halves_plan plan;                                                    \
        PTX_FN void run(const plan *p, struct mk_cta *cta)                                         \
        {                                                                                          \
            name##_##which(p, cta);                                                                \
        }                                                                                          \
    };

#define GPU_ROUTER_HALVES(name, does_add)                                                          \
    GPU_OPERATOR(name)                                                                             \
    GPU_MOVER_OF(name, does_add, true)                                                             \
    GPU_HALF(name, begin)                                                                          \
    GPU_HALF(name, end)                                                                            \
    int name##_prepare(const struct mk_plan *plan, char *error, size_t error_size)                 \
    {                                                                                              \
        if (!name##_halves_plan_of(plan)->halves.is)                                               \
            return move_prepare<name##_mover>(plan, error, error_size);                            \
        int err = half_prepare<name##_begin_half>(plan, MK_BEGIN, error, error_size);              \
        return err ? err : half_prepare<name##_end_half>(plan, MK_END, error, error_size);         \
    }                                                                                              \
    int name##_launch(const struct mk_plan *plan, const struct gpu_launch *launch,                 \
                      cudaStream_t stream)                                                         \
    {                                                                                              \
        const struct name##_halves_plan *h = name##_halves_plan_of(plan);                          \
        return !h->halves.is                                                                       \
                   ? move_launch<name##_mover>(plan, name##_plan_of(plan), launch, stream)         \
               : mk_half_of(&launch->split) == MK_BEGIN                                            \
                   ? half_launch<name##_begin_half>(plan, h, launch, stream)                       \
                   : half_launch<name##_end_half>(plan, h, launch, stream);                        \
    }
