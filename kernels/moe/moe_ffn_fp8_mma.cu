/* The MoE feed-forward layer of FP8 on engine mma, for every GPU of compute capability 8.9 and up. */
#include "kernels/moe/moe_ffn_mma.cuh"

GPU_OPERATOR_BY(moe_ffn_fp8_mma, moe_ffn, moe_ffn_mma_operator<true>)
