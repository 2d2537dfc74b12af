/* MoE dispatch+GEMM of bf16 on the GPU. */
#include "kernels/moe/moe_dispatch_gemm.cuh"

#include "kernels/sums/gemm_tickets.cuh"

struct moe_dispatch_gemm_kernels {
    template <class function>
    static int dispatch(const struct moe_dispatch_gemm_plan *p, int transposed, function call)
    {
#define MOE_TRY(rows, columns, cluster_, stages, boxes)                                            \
    if (p->dispatch.tile_m == rows && p->tile_n == columns && p->cluster == cluster_)              \
        return transposed ? call(gemm_shape<rows, columns, cluster_, 0, stages, boxes>())          \
                          : call(gemm_shape<rows, columns, cluster_, 1, stages, boxes>());
        MK_GROUPED_TILES(MOE_TRY)
#undef MOE_TRY
        return -EINVAL;
    }
};

GPU_KERNELS(moe_dispatch_gemm_bf16)
GPU_KERNELS(moe_dispatch_gemm_fp8)
GPU_OPERATOR_BY(moe_dispatch_gemm_bf16, moe_dispatch_gemm,
                ticket_operator<gemm_engine, moe_dispatch_gemm_on<gemm_engine, false>,
                                moe_dispatch_gemm_kernels>)

static struct gpu_functions moe_dispatch_gemm_choose(const struct mk_kernel_choice *q)
{
    if (q->fp8)
        return GPU_FUNCTIONS_BY_ENGINE(q, moe_dispatch_gemm_fp8);
    return GPU_FUNCTIONS_BY_ENGINE(q, moe_dispatch_gemm_bf16);
}

GPU_OPERATOR_OF(moe_dispatch_gemm, moe_dispatch_gemm_choose)
