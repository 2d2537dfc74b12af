/* MoE dispatch+GEMM on engine mma, for every GPU of compute capability 8.0 and up. */
#include "kernels/ops/moe_dispatch_gemm_mma.cuh"

GPU_OPERATOR_BY(moe_dispatch_gemm_bf16_mma, moe_dispatch_gemm,
                mma_ticket_operator<moe_dispatch_gemm_on_mma<false>>)
