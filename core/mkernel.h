/* mkernel: operators that compute and communicate in one launch, on several GPUs and nodes. This is
 * the public header, for C and C++. libmkernel exports the functions below and nothing else. Two
 * more headers are installed with it: ops/registry.h, the list of operators, and types.h.
 *
 * A communicator joins the ranks of a job, one process per rank. A plan fixes one operator on one
 * shape. A launch runs the plan. docs/examples has small complete programs.
 *
 * These rules hold for every function unless its comment says otherwise:
 *   units    shapes count elements, sizes count bytes, times are in ns; matrices are row-major
 *   errors   a function returns 0 or -errno and prints nothing; mk_error has the sentence
 *   threads  one thread at a time uses a communicator and its plans. Communicators share nothing,
 *            but a process may have only one that joins GPUs of several nodes
 *   bounds   every call ends. Each of its waits lasts at most the communicator's timeout_ns, and a
 *            second or two more to learn which rank was missing. CUDA's time to set up a GPU is
 *            not bounded
 *   after    -EINVAL, -ENOSPC and -E2BIG change nothing, and the communicator can be used on. After any
 *            other error only mk_error and mk_comm_close are useful. -EIO means that the job has
 *            failed; every rank then gets the same sentence */
#ifndef MKERNEL_H
#define MKERNEL_H

#include <stdint.h>

#include "ops/registry.h"
#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- version ---- */

/* While the major version is 0, a new minor version may break programs: compile them anew. */
#define MK_VERSION_MAJOR 0
#define MK_VERSION_MINOR 1
#define MK_VERSION_PATCH 0
#define MK_VERSION "0.1.0"
#define MK_VERSION_NUMBER (MK_VERSION_MAJOR * 10000 + MK_VERSION_MINOR * 100 + MK_VERSION_PATCH)

/* MK_VERSION_NUMBER of the loaded library. Any thread. */
uint32_t mk_version(void);

/* ---- operators ---- */

/* An operator is a number of enum mk_op, which ops/registry.h makes: MK_OP_ and the name in
 * capitals, MK_OP_AG_GEMM. Any thread may call the functions of this section at any time; they
 * return constants. */

/* The name, "ag_gemm"; "unknown op" if there is no such number. */
const char *mk_op_name(uint32_t op);

/* The number (enum mk_op) of the operator with this name; -EINVAL if there is none. */
int mk_op_by_name(const char *name);

/* The letters of the numbers that make the operator's shape, in order: "M,N,K"; "" if there is no
 * such operator. */
const char *mk_op_shape(uint32_t op);

/* ---- communicator ---- */

struct mk_comm;

/* version, nodes and gpus must be set. In every other field 0 or "" chooses the default. Tuned
 * plans are the user's own (~/.config/mkernel/tuning) if neither `tuning` nor $MKERNEL_TUNING names
 * a file. */
struct mk_config {
    uint32_t version;      /* MK_VERSION_NUMBER, of the header that compiled the program */
    uint32_t rank;         /* this rank; ranks are numbered node by node */
    uint32_t nodes;        /* nodes of the job */
    uint32_t gpus;         /* ranks per node */
    enum mk_exec exec;     /* the same on all ranks */
    char host[256];        /* rank 0's name or address; default 127.0.0.1 */
    uint16_t port;         /* rank 0's port */
    int listen_fd;         /* rank 0: a socket that listens already, which is taken over */
    char token[64];        /* the job's secret, the same on all ranks; needed if they are several */
    char fabric[16];       /* between nodes: "verbs" or "efa"; default "verbs" */
    char nic[256];         /* "soft", or device names with commas; default: nearest to the GPU */
    uint32_t rails;        /* NICs of this rank; default: as many as it has for itself */
    uint64_t heap_bytes;   /* symmetric heap; default 1 GiB on a GPU, 256 MiB on the host */
    uint64_t flag_bytes;   /* flags, 8 bytes each; default 8 MiB on a GPU, 1 MiB on the host */
    uint64_t timeout_ns;   /* of every wait; default 10 s */
    uint32_t trace_events; /* records kept per track; default: tracing is off */
    char tuning[512];      /* file of tuned plans, or "none"; default: $MKERNEL_TUNING */
    uint32_t device; /* MK_EXEC_CUDA: 1 + the number of its GPU among the visible; 0: by rank */
};

/* Joins the job. Returns when all ranks have joined and the peers' heaps are mapped. The caller
 * closes *out with mk_comm_close, after an error too (*out is NULL if there was no memory for it).
 * `config` is copied. Under MK_EXEC_CUDA the rank takes the GPU that config.device says, else the
 * visible one whose number is the count of lower ranks on the same host; it becomes this thread's
 * current device.
 * Blocks at most timeout_ns until the ranks come, and as long again for what follows.
 * Errors: -EINVAL (arguments; a library of another version; ranks started differently), -ETIMEDOUT
 * (mk_error names the missing ranks), -EPERM (token), -EADDRINUSE, -ECONNREFUSED, -EHOSTUNREACH,
 * -EPROTO (rendezvous), -ENODEV (no such NIC or GPU, or this build has none), -ENOMEM, or what the
 * provider said. After every error, -EINVAL too, only mk_error and mk_comm_close are useful. */
int mk_comm_open(struct mk_comm **out, const struct mk_config *config);

/* mk_comm_open for languages that do not read this header. `version` is the MK_VERSION_NUMBER that
 * the caller was written for; `settings` are strings "NAME=VALUE" in an array that NULL ends, read
 * during the call only. A NAME is a field of struct mk_config, except version; a VALUE is text, a
 * decimal number, or for exec host, cuda or emulated. If no setting names the rank, the launcher
 * says it (torchrun, srun or mpirun, by the environment of this process), and what the settings
 * leave open of nodes, gpus, host, port and token; without a launcher the job has one rank. */
int mk_comm_open_settings(struct mk_comm **out, uint32_t version, const char *const *settings);

/* This rank, the nodes of the job and the ranks per node. Any thread, until the communicator is
 * closed. */
uint32_t mk_comm_rank(const struct mk_comm *comm);
uint32_t mk_comm_nodes(const struct mk_comm *comm);
uint32_t mk_comm_gpus(const struct mk_comm *comm);

/* Leaves the job and frees all that this rank has of it: heap, plans and the communicator. NULL is
 * allowed. The launches must have ended (mk_wait); a kernel that does not end keeps its memory
 * until the process ends. Blocks at most timeout_ns until the peers close too; does not wait for
 * them after a failure. */
void mk_comm_close(struct mk_comm *comm);

/* Ends the job: every rank, this one too, fails with a sentence that this rank could not go on and
 * `why`, in the call that it waits in or in its next one. mk_comm_close follows, and waits for no
 * rank. For a rank that leaves by an error of its own. Any thread; does not block. */
void mk_comm_abort(struct mk_comm *comm, const char *why);

/* For languages whose signal handlers run only between calls: while the calling thread waits in a
 * function of the library, `ask` is called there about ten times a second. If it returns other than
 * 0 the wait ends within a second: the job fails (mk_comm_abort), a call that opens a communicator
 * returns -EINTR. Of the process and of the thread that called last; NULL: nobody is asked. */
void mk_set_interrupt(int (*ask)(void));

/* The sentence about the last error of this communicator; if `comm` is NULL, that memory is short.
 * Never NULL. The communicator owns the text; it is valid until the next call. */
const char *mk_error(const struct mk_comm *comm);

/* Allocates `bytes` of the symmetric heap: at the same *offset on every rank, if all make the same
 * calls in the same order, mk_plan_create and mk_plan_destroy among them (mk_plan_create checks
 * it). The memory is aligned to 128 bytes, zero at first, on the GPU under MK_EXEC_CUDA, and lives
 * as long as the communicator. Does not block. Returns this rank's address, or NULL if the heap is
 * full (mk_error says how much is free); then nothing has changed. */
void *mk_heap_alloc(struct mk_comm *comm, uint64_t bytes, uint64_t *offset);

/* ---- plans ---- */

#define MK_SHAPE 8 /* room for the numbers of any operator's shape */

/* What a plan is made for. 0 and NULL choose the default. shape: the global problem in the order of
 * mk_op_shape; unused numbers are 0. options: of the plan, as `mkernel tune` writes them:
 * "tile=256,128 pace=310". The default is the tuned plan for this shape, or the formula if there is
 * none. "sms=100" among them: the plan has at most that many thread blocks, so that other kernels
 * have the other SMs; the default is all SMs. "dtype=fp16": fp16, IEEE half, stands for bf16 in all
 * that is said of mk_ag_gemm, mk_gemm_rs, mk_gemm_ar, all_gather, all_to_all and reduce_scatter
 * below; the others refuse it. "dtype=fp8": A and B are e4m3, with scales (mk_ag_gemm, mk_gemm_rs);
 * all_gather and all_to_all, which do not look at what they move, take "dtype=fp8" (without scales)
 * and "dtype=bytes". The default is bf16. "epilogue=bias+silu": what follows the product
 * (mk_ag_gemm) or the sum (mk_gemm_rs); the default is nothing. "split=contiguous": each rank of a
 * causal ring_attention has one run of rows of the sequence (mk_ring_attention_rows).
 * "capacity=4096": of a MoE, rows of its experts that a rank has room for. "logical=56": of a MoE,
 * ids name so many experts, and mk_moe_set_experts says which the ranks hold. "tokens=launch": of a
 * MoE, T is the most, and mk_launch takes one argument more, behind all others: count [1] uint32,
 * aligned to 4 bytes, of which each launch reads how many tokens this rank has, 0 to T and not the
 * same on all ranks. Those behind, their ids and weights are not read, and of Y not written. So a
 * captured CUDA graph serves every batch. Others than 0 to T end the launch on every rank, and
 * mk_wait returns -EIO with a sentence. */
struct mk_spec {
    uint32_t op; /* enum mk_op */
    uint64_t shape[MK_SHAPE];
    int causal;          /* ring_attention: a row sees no later rows */
    int b_transposed;    /* the last two dimensions of B (moe_ffn: B1 and B2) are swapped: [N, K] */
    int deterministic;   /* 0; 1; MK_EVERYWHERE: enum mk_deterministic */
    uint64_t a_offset;   /* ag_gemm: A lies at this offset of the symmetric heap; 0: elsewhere */
    uint64_t c_offset;   /* gemm_ar: C does, so that peers store there what it ends with */
    const char *options; /* read during the call only */
    uint64_t timeout_ns; /* of the plan's waits; default: the communicator's */
};

/* A plan of one operator on one shape. The communicator owns it, until mk_plan_destroy. */
struct mk_plan;

/* Makes a plan. Every rank calls this with the same spec. No launch of this communicator may be
 * running: loading a kernel may wait for it in the driver. Blocks at most timeout_ns until all
 * ranks call.
 * Errors: -EINVAL (shape or options, and mk_error says what works; or ranks that ask for different
 * plans, and it says which; or thread blocks that do not all fit on the GPU), -ENOSPC (heap or
 * flags have too little left: mk_plan_destroy gives some back; or the plan is one too many), -E2BIG
 * (heap or flags are too small for this plan alone). mk_error says what size is enough. -EIO (the job has failed), -ENOMEM. On
 * an error *out is NULL. */
int mk_plan_create(struct mk_plan **out, struct mk_comm *comm, const struct mk_spec *spec);

/* mk_plan_create for languages that do not read this header; settings as in mk_comm_open_settings.
 * "op=ag_gemm" and "shape=M,N,K" (numbers) must be among them; the other NAMEs are fields of struct
 * mk_spec. */
int mk_plan_create_settings(struct mk_plan **out, struct mk_comm *comm,
                            const char *const *settings);

/* Gives a plan back: its heap and flags are used again by plans and allocations that follow
 * (between nodes the heap alone). Every rank calls it, in the same order among its calls of
 * mk_plan_create, mk_heap_alloc and mk_plan_destroy, since a block of the heap is the same on all
 * ranks. It waits for this rank's launches as mk_wait does, of whatever plan, then at most
 * timeout_ns for the other ranks to call. Launches that it does not see must have ended: replays of
 * CUDA graphs on streams of their own. A graph that holds a launch of the plan may not be replayed
 * any more. NULL is allowed. Errors: -EINVAL (ranks destroy different plans; or a trace is being
 * recorded, which tells of the plans: mk_trace_end first), -EIO, and what mk_wait returns. After
 * -EINVAL the plan is as it was. */
int mk_plan_destroy(struct mk_plan *plan);

/* What a plan is, with every choice made. These functions do not block and do not fail. Any thread
 * may call them while the communicator is open; the communicator owns the texts. */
uint32_t mk_plan_op(const struct mk_plan *plan);

/* The numbers of the shape; the rest of the array becomes 0. Returns how many there are. */
uint32_t mk_plan_shape(const struct mk_plan *plan, uint64_t shape[MK_SHAPE]);

/* All options, "tile=128,64 roles=compute=2,intra_comm=2,inter_send=1 chunk-rows=128 ...":
 * mk_spec.options takes them. */
const char *mk_plan_options(const struct mk_plan *plan);

/* A sentence for people about the tuned plan that was taken; "" if none was. */
const char *mk_plan_tuned(const struct mk_plan *plan);

/* CTAs of this rank with a role, and its tiles (their ids in traces are below this number). */
uint32_t mk_plan_ctas(const struct mk_plan *plan, enum mk_role role);
uint32_t mk_plan_tiles(const struct mk_plan *plan);

/* Bytes of the symmetric heap and of the flags that the plan takes. */
uint64_t mk_plan_heap_bytes(const struct mk_plan *plan);
uint64_t mk_plan_flag_bytes(const struct mk_plan *plan);

/* Per launch and rank: floating-point operations, and bytes received over NVLink (on the host:
 * through shared memory) and over the network. For moe operators the bytes are upper bounds on the
 * average rank, as only the ids say where tokens go. */
double mk_plan_flop(const struct mk_plan *plan);
uint64_t mk_plan_nvlink_bytes(const struct mk_plan *plan);
uint64_t mk_plan_network_bytes(const struct mk_plan *plan);

/* The arguments of a launch, in the order of mk_launch: how many there are; and of argument i its
 * name ("A"), its type ("bf16", "fp16", "fp32", "uint32", "e4m3" or "uint8"), its bytes on this
 * rank, and 1 if the launch writes it. NULL or 0 if there is no argument i. */
uint32_t mk_plan_arguments(const struct mk_plan *plan);
const char *mk_plan_argument_name(const struct mk_plan *plan, uint32_t i);
const char *mk_plan_argument_type(const struct mk_plan *plan, uint32_t i);
uint64_t mk_plan_argument_bytes(const struct mk_plan *plan, uint32_t i);
int mk_plan_argument_is_output(const struct mk_plan *plan, uint32_t i);

/* Rows of C of a moe_dispatch_gemm, and of the rows of a moe_dispatch or moe_combine: enough for
 * any ids; 0 for other operators. */
uint64_t mk_moe_rows(const struct mk_plan *plan);

/* ---- launches ---- */

/* For all launches:
 * The caller owns the arguments: this rank's, aligned to 16 bytes, device memory under
 * MK_EXEC_CUDA. An output shares memory with no other argument (but see new_residual). `stream` is
 * a cudaStream_t of the communicator's GPU; NULL is the default stream, the only one on the host.
 * A launch returns at once, allocates nothing, runs in the stream's order, and can be captured in a
 * CUDA graph. All ranks launch the same plans in the same order; if they do not, every rank fails
 * within a second, and mk_error says what two of them called. On a GPU two launches of one
 * communicator must not overlap: put them on one stream, or order the streams by events.
 * All thread blocks of a launch must be resident at the same time, on every rank: they wait for
 * each other. mk_plan_create asks CUDA whether the GPU has room for them, but not what else will
 * run there. Kernels of other streams that do not end by themselves, other processes under MPS, a
 * green context with fewer SMs, and ranks that share a GPU take that room: then the launch ends by
 * its timeout. A kernel that ends is waited for, within the timeout. The option "sms=" leaves SMs
 * free. Memory order: when the stream has passed the launch (on the host: after mk_wait), inputs
 * may be overwritten and outputs read. The launch itself orders what ranks exchange. Errors:
 * -EINVAL (a plan of another operator; an argument that is NULL, misaligned or shares an output's
 * memory) and -EBUSY (64 other streams have unfinished launches; call mk_wait): nothing was launched
 * here, and the launch of the other ranks ends by its timeout. -EIO: the job has failed, or CUDA
 * refused the launch. mk_wait reports what fails later. */

/* C = gather(A) * B, spec.shape {M, N, K}: A [M/W, K], B [K, N], C [M, N], bf16, where W is the
 * number of ranks. Sums are fp32. Of a plan with "dtype=fp8" A and B are e4m3, B is [N, K]
 * (spec.b_transposed), and mk_launch takes A, B, C, A_scales [ceil(K/128), M/W], fp32, and B_scales
 * [ceil(N/128), ceil(K/128)] or, with "b_scales=columns", [N]; M/W and ceil(K/128) of B are rounded
 * up to multiples of 4. A number is its code times the scale of its 1 x 128 of A, of its 128 x 128
 * or column of B. K is a multiple of 16. With "epilogue=WORDS", bias, silu or gelu_tanh (the
 * approximation by tanh), or bias+ one of these, C = f(gather(A) * B + bias), in fp32 and rounded
 * once; of a bias mk_launch takes one argument more, behind all others: bias [N] bf16, this rank's.
 * With an activation and "gated", as in "epilogue=silu+gated" (SwiGLU), B's columns are a gate's
 * and those that it lets through, N/2 each: C [M, N/2] = f(A * gate + bias) (A * up + bias); N is a
 * multiple of 16, with scales of blocks on GPUs N/2 of 128, on engine mma of 32. */
int mk_ag_gemm(struct mk_plan *plan, const void *a, const void *b, void *c, void *stream);

/* C = rank's rows of the sum over ranks of A * B, spec.shape {M, N, K}: A [M, K], B [K, N], C [M/W,
 * N], bf16. Unless spec.deterministic is set, partial sums may be bf16 and may be added in any
 * order. With MK_EVERYWHERE K of all ranks is cut in 8 blocks, summed each for itself, and added in
 * one tree: the same bits of 1, 2, 4 and 8 ranks. With "dtype=fp8" as in mk_ag_gemm, but M is any,
 * and A_scales [ceil(K/128), M rounded up to a multiple of 4]; nobody looks at those behind M. With
 * "epilogue=residual" mk_launch takes one argument more, behind all others: residual, bf16 and of
 * C's shape, and C = bf16(sum) + residual. With "epilogue=residual+rmsnorm" it takes three more,
 * residual, norm_weight [N] and new_residual, bf16 and of C's shape: new_residual is that sum, and
 * C = new_residual * norm_weight / sqrt(mean(new_residual^2 of a row) + eps), in fp32, rounded
 * once. "eps=1e-5": above 0 and 1 at most; the default is 1e-6. new_residual may be residual. With
 * "epilogue=residual+rmsnorm+quantize" it takes four more: residual, norm_weight, normed, e4m3 and
 * of C's shape, and normed_scales [ceil(N/128), rows of C], fp32. They are, to the bit, what
 * mk_quantize makes (MK_SCALE_1X128, a pitch of C's rows) of the C that residual+rmsnorm has; C is
 * the new residual. N is a multiple of 16. */
int mk_gemm_rs(struct mk_plan *plan, const void *a, const void *b, void *c, void *stream);

/* C = the sum over ranks of A * B, the same bits on every rank, spec.shape {M, N, K}: A [M, K], B
 * [K, N], C [M, N], bf16; any M from 1. Sums, "dtype=fp8" and epilogues as in mk_gemm_rs; residual
 * is alike on all ranks. */
int mk_gemm_ar(struct mk_plan *plan, const void *a, const void *b, void *c, void *stream);

/* O = softmax(Q K^T / sqrt(D)) V, spec.shape {B, S, H, G, D}: batch, sequence of any length, heads,
 * heads of K and V, head size. Q and O [B, R, H, D], K and V [B, R, G, D] bf16, where R are the
 * rows of the sequence that this rank holds (mk_ring_attention_rows), S/W where W divides S; lse
 * [B, H, R] fp32, natural logarithm. The sequence is cut into W blocks of ceil(S/W) rows, the last
 * of fewer or none, and rank r holds block r. Causal: into 2 W of ceil(S/2W), and it holds block r,
 * then block 2 W - 1 - r, so that all ranks have the same work (zigzag); with "split=contiguous"
 * among the plan's options block r of W, and the last rank has the most to do. A rank without rows
 * launches too; its arguments may be NULL. The same bits on every run. With MK_EVERYWHERE a row
 * depends on its query and on the keys and values that it sees, not on the ranks or on which of
 * them has what; a rank's blocks are of a multiple of 128 rows (on one rank that has one block, of
 * any number). */
int mk_ring_attention(struct mk_plan *plan, const void *q, const void *k, const void *v, void *o,
                      float *lse, void *stream);

/* The rows of a sequence of `sequence` rows that rank `rank` of `world` holds in ring_attention:
 * run i begins at row begin[i] and has count[i] rows; the second lies behind the first in the
 * rank's tensors. causal is that of the spec; contiguous: 1 with "split=contiguous". Returns the
 * number of runs, 1 or 2, and sets what is behind them to 0. -EINVAL: a rank that is not below
 * `world`. Does not block; any thread, at any time. */
int mk_ring_attention_rows(uint64_t sequence, uint32_t world, uint32_t rank, int causal,
                           int contiguous, uint64_t begin[2], uint64_t count[2]);

/* C = the tokens of each of this rank's experts * its B, spec.shape {T, H, I, E, K}: tokens per
 * rank, hidden and inner size, experts of all ranks, experts per token. X [T, H] and B [E/W, H, I]
 * bf16; ids [T, K]: the experts of each token, E or more for none. C [mk_moe_rows(plan), I] bf16:
 * the rows of one expert after those of another; rows [E/W, 2]: first row and number of rows of
 * each. An expert's rows are ordered by source rank, token and place. Rows of C between experts
 * hold anything. With "dtype=fp8" X are records of e4m3 [T, record] (MK_SCALE_RECORDS), H is a
 * multiple of 16, B is e4m3 [E/W, I, H] (spec.b_transposed), and there is one argument more, which
 * mk_launch takes behind `rows`: B_scales fp32 [E/W, ceil(I/128), ceil(H/128) rounded up to a
 * multiple of 4], of each expert's B as MK_SCALE_128X128 has them. */
int mk_moe_dispatch_gemm(struct mk_plan *plan, const void *x, const void *b, const uint32_t *ids,
                         void *c, uint32_t *rows, void *stream);

/* Each of this rank's tokens to the ranks of its experts, for those who compute there by
 * themselves. spec.shape {T, H, E, K}; X and ids as in mk_moe_dispatch_gemm. rows
 * [mk_moe_rows(plan), H] bf16: the rows of one of this rank's experts after those of another, in
 * the order of source rank, token and place; counts [E/W, 2]: first row, a multiple of 128 on a GPU
 * and of 32 on the host, and number of rows of each. Rows between experts are not written. The same
 * bits on every run. With "dtype=fp8" X and rows are records of e4m3 [.., record]
 * (MK_SCALE_RECORDS), and H is a multiple of 16. */
int mk_moe_dispatch(struct mk_plan *plan, const void *x, const uint32_t *ids, void *rows,
                    uint32_t *counts, void *stream);

/* Y = for each of this rank's tokens the sum over its K experts of weight * row, where rows
 * [mk_moe_rows(plan), H] bf16 lie as mk_moe_dispatch of the same shape and the same ids has laid
 * out this rank's: what its experts have made of them. ids [T, K] as there, weights [T, K] fp32, Y
 * [T, H] bf16; spec.shape {T, H, E, K}. A token without experts gets zeros. Rows of no token are
 * not read. Sums are fp32 in one order, with the same bits on every run; what is sent is rounded to
 * bf16. Nothing is kept from the dispatch: where everything lies follows from the ids, which all
 * ranks exchange again. */
int mk_moe_combine(struct mk_plan *plan, const void *rows, const uint32_t *ids,
                   const float *weights, void *y, void *stream);

/* Y = each token through its experts: the sum over its K of weight * (silu(x G) * (x U)) B2.
 * spec.shape, X and ids as in mk_moe_dispatch_gemm; Y [T, H] bf16; weights [T, K] fp32; B1 [E/W, H,
 * 2 I] bf16: the columns of G, then those of U; B2 [E/W, I, H] bf16. A token without experts gets
 * zeros. Sums are fp32 in one order, with the same bits on every run; unless spec.deterministic is
 * set, what is sent is rounded to bf16. With MK_EVERYWHERE experts are cut in 8 runs by their
 * numbers, a token's experts of a run are added in their order, and the runs in one tree: a token's
 * Y follows from the token, its experts and weights, on 1, 2, 4 or 8 ranks, without "overflow=drop"
 * or "logical=". With "dtype=fp8" X are records (MK_SCALE_RECORDS), H and I are multiples of 16, B1
 * [E/W, 2 I, H] and B2 [E/W, H, I] are e4m3 (spec.b_transposed), the activation is quantised as
 * MK_SCALE_1X128 has it, and there are two arguments more, which mk_launch takes behind Y:
 * B1_scales fp32 [E/W, 2, ceil(I/128), ceil(H/128) rounded up to a multiple of 4], of each expert's
 * G and of its U by themselves, and B2_scales [E/W, ceil(H/128), ceil(I/128) rounded up to a
 * multiple of 4], each as MK_SCALE_128X128 has them. "back=fp8" (fast sums alone): what is sent
 * back is e4m3 with scales as of MK_SCALE_1X128, 2.6e-2 of error where bf16 has 1.7e-3. */
int mk_moe_ffn(struct mk_plan *plan, const void *x, const void *b1, const uint32_t *ids,
               const float *weights, const void *b2, void *y, void *stream);

/* Which experts of ranks the logical experts are that ids name, of a MoE plan with "logical=L"
 * among its options: so that several ranks hold the same expert, and a token takes the nearest. Of
 * such a plan E are the ranks' experts, slots; slot s is on rank s / (E/W), and B and all tables go
 * by slots; ids are 0 to L-1, L or more for none; L is up to 2^20. slots [experts][copies]: those
 * that hold each logical expert, the same weights, by their numbers 0 to E-1; below 0: none, so
 * experts may have different numbers of copies. experts is L. A token of an expert without a slot
 * leaves its place out, as with an id that is none; a slot that is not named gets no rows. No slot
 * is of two experts. Before the first call each logical expert below E is the slot of its number. A
 * rank's tokens take a slot of the rank, else one of its node, else any; those ranks that have none
 * of their own take the copies in turn, by a rule in which nothing but the map, the rank and the
 * expert counts: so the same inputs give the same bits in every run. Without logical= nothing is
 * looked up. What a rank has said stands for its own tokens, from its next launch on, and can be
 * said again between any two launches: ranks need not call together, nor say the same, but all that
 * they say must be of weights that lie there. The plan of a mk_moe_combine is told what that of its
 * mk_moe_dispatch was when it made the rows. Captured CUDA graphs go by it too. The array is host
 * memory and read during the call only. Blocks as mk_wait, which it does first; launches that
 * mk_wait does not see must have ended. The thread that launches calls. Errors: -EINVAL (no such
 * plan; a slot that no rank has, or of two experts: the map is as it was), -ENOMEM, and what
 * mk_wait returns. */
int mk_moe_set_experts(struct mk_plan *plan, const int32_t *slots, uint32_t experts,
                       uint32_t copies);

/* Places logical experts: slots [experts][copies] for mk_moe_set_experts, of slot_count slots on
 * `ranks` ranks of `nodes` nodes. loads [experts]: what each has to do, in any unit, such as the
 * rows of the last launches; 0 or more. Each gets a slot; those that are left go to the expert
 * whose copies have the most to do, one after the other, up to `copies` an expert and one a rank.
 * Then the heaviest copies go first, each to a node with the fewest copies of its expert, so that
 * tokens find one without the network, and there to the rank with the least to do that has a slot
 * left and no copy of it. (Greedy, as expert-parallel load balancers do it; a slot is left over
 * where all ranks that have one hold the expert.) The caller owns both arrays. Any thread, with no
 * communicator; takes experts * copies steps for each slot at most. Errors: -EINVAL (fewer slots
 * than experts, slots that the ranks do not divide, ranks that the nodes do not, a load below 0 or
 * not finite, a number that is 0: nothing is written), -ENOMEM. */
int mk_moe_balance(const double *loads, uint32_t experts, uint32_t slot_count, uint32_t nodes,
                   uint32_t ranks, uint32_t copies, int32_t *slots);

/* Launches any operator with its `count` arguments (mk_plan_arguments), in the order of the
 * operator's own function; the array is read during the call only. -EINVAL also if the operator
 * takes another number of arguments. */
int mk_launch(struct mk_plan *plan, void *const *arguments, uint32_t count, void *stream);

/* Waits for all launches so far. On a GPU it waits for all work on the streams that launches were
 * given since the last mk_wait, graph replays and the caller's own work included, so these streams
 * must exist until then. A captured launch runs where its graph is replayed: if that is another
 * stream, call mk_wait_stream. Blocks until the work has ended; each wait in a launch lasts at most
 * timeout_ns.
 * After 0 this thread may read outputs (on a GPU: copy them). -EIO: a launch failed, here or
 * elsewhere. mk_error names operator, rank, CTA, role, chunk, the value seen and wanted, and the
 * rank that should have produced it. */
int mk_wait(struct mk_comm *comm);

/* The same for all work on `stream` (a cudaStream_t) alone, for instance graphs that were captured
 * elsewhere. A caller may wait in any other way: the job's failure ends the launches all the same,
 * but the next of these calls reports it, and a wait that times out here is told to the others only
 * then. On the host: as mk_wait. */
int mk_wait_stream(struct mk_comm *comm, void *stream);

/* ---- launches in two halves ---- */

/* Of a plan of moe_dispatch or moe_combine with "launch=halves" among its options: the first half
 * of a launch sends, the second takes what has come. Each is a kernel of its own, so between them
 * the caller's kernels have all SMs, on the same stream, while links and the network go on. (A
 * whole launch, mk_launch, of such a plan is both in turn.)
 *
 * mk_launch_begin launches the first half, with the arguments of mk_launch. That of moe_dispatch
 * waits for no other rank; that of moe_combine waits until the other ranks have begun theirs. It
 * returns at once, and all that is said of mk_launch holds. When the stream has passed it, no
 * argument may be changed yet and no output read: the second half reads and writes the same ones.
 *
 * mk_launch_end launches the second half of the launch that was begun last, on the same stream or
 * one that is ordered behind it by events. When the stream has passed it, outputs are there.
 *
 * Every rank calls both, in the same order among its launches. Launches of other plans may stand
 * between them: two plans of one operator have two batches under way. Of the plan itself none may.
 * Both can be captured in CUDA graphs, in one or each in its own, whose replays must alternate: a
 * half that is replayed out of turn ends the launch on every rank, and mk_wait returns -EIO with a
 * sentence. mk_wait between them waits for the first half alone. Errors, beside those of mk_launch:
 * -EINVAL (a plan that was made without "launch=halves"; begun twice; ended and not begun;
 * mk_launch or mk_plan_destroy of a plan that has begun: nothing has changed). */
int mk_launch_begin(struct mk_plan *plan, void *const *arguments, uint32_t count, void *stream);
int mk_launch_end(struct mk_plan *plan, void *stream);

/* ---- FP8 ---- */

/* Quantises x [rows, k] (type: enum mk_input) to q [rows, k] in e4m3 and fp32 scales: x = q *
 * scale. x and q are dense. Of the elements that share a scale, amax is the largest finite |x|, and
 * in fp32, each operation rounded to nearest, ties to even:
 *   scale = amax / 448        q = e4m3(x * (448 / amax))
 * Where amax is below 2^-110, zero included, scale is 1 and q zeros. What is not finite becomes NaN
 * (0x7f) in its own element and changes no scale. The same bits on the host and on a GPU.
 * k is a multiple of 16; blocks at the ends of rows and columns may be smaller.
 * scaling (enum mk_scaling) and where the scale of element [r, c] lies:
 *   MK_SCALE_1X128     scales[c / 128 * pitch + r], pitch at least rows, 0: rows. A of operators of
 *                      FP8; transposed, what PyTorch's scaled_mm takes for BlockWise1x128
 *   MK_SCALE_128X128   scales[r / 128 * pitch + c / 128], pitch at least ceil(k/128), 0: that
 *                      rounded up to a multiple of 4. B of operators of FP8, by its rows [N, K];
 *                      transposed, BlockWise128x128
 *   MK_SCALE_ROW       scales[r] (RowWise)
 *   MK_SCALE_TENSOR    scales[0] (TensorWise)
 *   MK_SCALE_RECORDS   in q, whose rows are records of k + 4 ceil(k/128) bytes rounded up to a
 *                      multiple of 16: k codes, then the row's scales, then bytes that are not
 *                      written. scales and pitch are not looked at. X of a MoE of FP8
 * Other scales are not written. exec: MK_EXEC_CUDA: x, q and scales are device memory of the
 * current GPU, x and q aligned to 16 bytes; the call returns at once, runs in the order of `stream`
 * (a cudaStream_t), allocates nothing and can be captured in a CUDA graph. It is one kernel that
 * reads each element once, but of rows beyond 16384 elements what lies behind those is read twice,
 * and MK_SCALE_TENSOR is four small steps that read x twice. Else the arrays are in host memory,
 * and the calling thread has quantised them when the call returns; `stream` is NULL. The caller
 * owns all memory. Any thread, with no communicator. Errors: -EINVAL (k, pitch, alignment, NULL or
 * an unknown number: nothing is written), -ENODEV (this build has no CUDA), -EIO (CUDA refused the
 * launch). */
int mk_quantize(uint32_t exec, uint32_t scaling, uint32_t type, const void *x, uint64_t rows,
                uint64_t k, void *q, float *scales, uint64_t pitch, void *stream);

/* ---- traces ---- */

/* Begins a trace: what launches recorded before is forgotten, and the ranks' clocks are compared.
 * Every rank calls, with no launch running elsewhere in the job that was made before. Waits for
 * this rank's launches as mk_wait does, then at most timeout_ns for the other ranks.
 * Errors: -EINVAL (config.trace_events was 0), -ENOMEM, -EIO (the job has failed). */
int mk_trace_begin(struct mk_comm *comm);

/* Ends it: waits for this rank's launches, and rank 0 stores what all ranks have recorded in an
 * SQLite file at `path` (docs/TRACE.md), over what was there. Every rank calls; only rank 0's path
 * and `command` (how the program was started; NULL: not known) count, and both are read during the
 * call only. Blocks until rank 0 has stored the file, which goes on saying that it does.
 * Errors: -EINVAL (no mk_trace_begin before), -EIO (the job has failed), or what rank 0's disk said
 * (-EACCES, -ENOENT, -ENOSPC ...): then the file is as it was, the trace is lost, rank 0 alone is
 * told, and the communicator can be used on. */
int mk_trace_end(struct mk_comm *comm, const char *path, const char *command);

#ifdef __cplusplus
}
#endif

#endif
