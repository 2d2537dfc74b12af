/* The MoE feed-forward layer on engine mma, for every GPU of compute capability 8.0 and up. */
#include "kernels/moe/moe_ffn_mma.cuh"

GPU_OPERATOR_BY(moe_ffn_bf16_mma, moe_ffn, moe_ffn_mma_operator<false>)
