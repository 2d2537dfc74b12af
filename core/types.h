/* The public types that the library's kernels share with mkernel.h, which includes this header. An
 * edit of mkernel.h compiles no kernel anew; an edit of this header compiles all. */
#ifndef MKERNEL_TYPES_H
#define MKERNEL_TYPES_H

/* Where CTAs run: on threads of this process, in host memory; in a persistent kernel on this rank's
 * GPU; or in that kernel's own code on a small GPU that a thread of this process emulates, in host
 * memory: to test without a GPU, thousands of times slower than one. */
enum mk_exec { MK_EXEC_HOST, MK_EXEC_CUDA, MK_EXEC_EMULATED, MK_EXECS };

/* What a result's bits depend on. FAST: on the order in which ranks' parts come, too, and parts may
 * be bf16. DETERMINISTIC: sums over ranks are fp32 and in one order, so every run of one plan gives
 * the same bits. EVERYWHERE: a row of C depends on that row of A and on B alone: not on M, on the
 * plan, or on how many ranks there are (mk_gemm_rs, mk_moe_ffn, mk_ring_attention; ag_gemm and
 * moe_dispatch_gemm). */
enum mk_deterministic { MK_FAST, MK_DETERMINISTIC, MK_EVERYWHERE };

/* The roles of CTAs. The option roles=compute=2,intra_comm=1 says how many CTAs have each;
 * intra_comm=2w: two warps of each thread block that computes are CTAs of it. */
enum mk_role { MK_COMPUTE, MK_INTRA_COMM, MK_INTER_SEND, MK_INTER_REDUCE, MK_ROLES };

/* Which elements of a matrix [rows, k] share a scale: 128 of a row; 128 x 128; a row; all; 128 of a
 * row, whose scales lie with its codes. */
enum mk_scaling {
    MK_SCALE_1X128,
    MK_SCALE_128X128,
    MK_SCALE_ROW,
    MK_SCALE_TENSOR,
    MK_SCALE_RECORDS,
    MK_SCALINGS
};

/* What is quantised. */
enum mk_input { MK_INPUT_BF16, MK_INPUT_FP32, MK_INPUTS };

#endif
