#include "sim/op.h"

#include <stddef.h>

const struct sim_op *sim_op_of(enum mk_op op)
{
    switch (op) {
    case MK_OP_AG_GEMM:
        return &sim_op_ag_gemm;
    case MK_OP_GEMM_AR:
        return &sim_op_gemm_ar;
    case MK_OP_GEMM_RS:
        return &sim_op_gemm_rs;
    case MK_OP_MOE_DISPATCH_GEMM:
        return &sim_op_moe_dispatch_gemm;
    case MK_OP_MOE_FFN:
        return &sim_op_moe_ffn;
    case MK_OP_RING_ATTENTION:
        return &sim_op_ring_attention;
    default:
        return NULL;
    }
}
