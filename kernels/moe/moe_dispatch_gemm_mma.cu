/* MoE dispatch+GEMM on engine mma, for every GPU of compute capability 8.0 and up. */
#include "kernels/moe/moe_dispatch_gemm.cuh"

#include "kernels/sums/mma_tickets.cuh"

GPU_OPERATOR_BY(moe_dispatch_gemm_bf16_mma, moe_dispatch_gemm,
                ticket_operator<mma_engine, moe_dispatch_gemm_on<mma_engine, false>,
                                mma_ticket_kernels<false, false>>)
