/* The operators, one line each. From this list come `enum mk_op` and the tables of every layer, so
 * that an operator is added by its own files and one line here (docs/ADD_AN_OPERATOR.md goes
 * through it):
 *
 *   core/ops/NAME.c         what it is: struct op_descriptor (core/ops/op.h) `op_NAME`
 *   core/roles/NAME_plan.h  its plan, struct NAME_plan, and the arithmetic on it
 *   core/roles/NAME.h       its schedule, written once for all executors
 *   sim/ops/NAME.c          what the host executor and the simulator add: `sim_op_NAME`
 *   kernels/.../NAME.cu     its kernel, where the line says GPU: NAME_prepare, NAME_launch
 *   experiments/ops/NAME.c  how the command runs and checks it: `run_op_NAME`
 *
 * The third word says what runs it: HOST, the host executor and the simulator; GPU, these and a
 * GPU. What has no kernel is refused on a GPU when its plan is made. New lines go to the end: the
 * order is that of the numbers in records. */
#ifndef MK_OPS_REGISTRY_H
#define MK_OPS_REGISTRY_H

#include <stdint.h>

/* clang-format off */
#define MK_OPERATORS(X)                            \
    X(ag_gemm, AG_GEMM, GPU)                       \
    X(gemm_ar, GEMM_AR, GPU)                       \
    X(gemm_rs, GEMM_RS, GPU)                       \
    X(moe_dispatch_gemm, MOE_DISPATCH_GEMM, GPU)   \
    X(moe_ffn, MOE_FFN, GPU)                       \
    X(ring_attention, RING_ATTENTION, GPU)         \
    X(all_gather, ALL_GATHER, GPU)                 \
    X(all_to_all, ALL_TO_ALL, GPU)                 \
    X(reduce_scatter, REDUCE_SCATTER, GPU)         \
    X(moe_dispatch, MOE_DISPATCH, GPU)             \
    X(moe_combine, MOE_COMBINE, GPU)               \
    /* the list ends with an empty line, so that a new operator is one line here */

/* clang-format on */

enum mk_op {
#define MK_OPERATOR(name, NAME, where) MK_OP_##NAME,
    MK_OPERATORS(MK_OPERATOR)
#undef MK_OPERATOR
        MK_OPS
};

#ifdef __cplusplus
extern "C" {
#endif

/* All that an operator's description says, as one line of JSON: its name and help, the numbers of
 * its shape (letter, name), its arguments in the order of mk_launch (name, type, shape by letters
 * and W, the number of ranks; whether it is an output, and whether its last two dimensions may be
 * swapped, all such alike; "fp8", "bytes": with dtype=fp8 and dtype=bytes, nothing where it is
 * refused), the options of its plans, and whether dtype=fp16, causal, deterministic and an A in the
 * heap mean something to it. Writes at most `size` bytes of `text`, the ending 0 included, as
 * snprintf does, and returns the length of the whole; -EINVAL if there is no such operator. Any
 * thread, at any time. */
int mk_op_describe(uint32_t op, char *text, uint64_t size);

#ifdef __cplusplus
}
#endif

#endif
