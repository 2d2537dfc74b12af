/* mkernel: operators that compute and communicate in one launch, on several GPUs and nodes. The public header, for C
 * and C++; libmkernel exports what it declares and nothing else. Beside it only ops/registry.h is installed, the list
 * of operators.
 *
 * A communicator joins the ranks of a job, one process a rank. A plan fixes one operator on one shape; a launch runs it.
 * docs/examples has small complete programs.
 *
 * What holds for every function, where its comment says nothing else:
 *   units    numbers of a shape are elements, sizes bytes, times ns; matrices are row-major
 *   errors   0 or -errno; nothing is printed, and mk_error has the sentence
 *   threads  one thread at a time for each communicator and its plans; different communicators share nothing, but a
 *            process holds at most one with GPUs on several nodes
 *   bounds   every call ends: each of its waits lasts at most the communicator's timeout_ns, and a second or two more to hear
 *            which rank was missing. What CUDA takes to set up a GPU comes on top
 *   after    -EINVAL and -ENOSPC change nothing, and the communicator goes on. After any other error mk_error and
 *            mk_comm_close alone are of use; -EIO is that of a job that has failed, with the same sentence on every rank */
#ifndef MKERNEL_H
#define MKERNEL_H

#include <stdint.h>

#include "ops/registry.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- version ---- */

/* While MK_VERSION_MAJOR is 0 each minor version may break programs; they are compiled anew then. */
#define MK_VERSION_MAJOR 0
#define MK_VERSION_MINOR 1
#define MK_VERSION_PATCH 0
#define MK_VERSION "0.1.0"
#define MK_VERSION_NUMBER (MK_VERSION_MAJOR * 10000 + MK_VERSION_MINOR * 100 + MK_VERSION_PATCH)

/* MK_VERSION_NUMBER of the library that is loaded. Any thread. */
uint32_t mk_version(void);

/* ---- operators ---- */

/* enum mk_op is made from the list in ops/registry.h: MK_OP_ and the name in capitals, MK_OP_AG_GEMM. The functions
 * here may be called by any thread, at any time; what they return is constant. */

/* The name, "ag_gemm"; "unknown op" where there is no such number. */
const char *mk_op_name(enum mk_op op);

/* The number (enum mk_op) of an operator's name; -EINVAL where there is none. */
int mk_op_by_name(const char *name);

/* The letters of the numbers that make its shape, in their order: "M,N,K"; "" where there is no such operator. */
const char *mk_op_shape(enum mk_op op);

/* ---- communicator ---- */

struct mk_comm;

/* Where CTAs run: threads of this process on host memory, or a persistent kernel on this rank's GPU. */
enum mk_exec { MK_EXEC_HOST, MK_EXEC_CUDA, MK_EXECS };

/* 0 or "" chooses the default in every field but the first two lines. */
struct mk_config {
    uint32_t version;            /* MK_VERSION_NUMBER: the header that the program was compiled with */
    uint32_t rank, nodes, gpus;  /* this rank; nodes; ranks per node. Ranks are numbered node by node */
    enum mk_exec exec;           /* the same on all ranks */
    char host[256];              /* of rank 0: a name or an address; default 127.0.0.1 */
    uint16_t port;               /* of rank 0 */
    int listen_fd;               /* rank 0's socket, if it listens already: it is taken over, whatever comes of it */
    char token[64];              /* the job's secret, which all ranks know; one rank alone needs none */
    char fabric[16];             /* between nodes: "verbs" (the default) or "efa" */
    char nic[256];               /* "soft", or names of devices with commas between; default: the nearest to the GPU */
    uint32_t rails;              /* devices of this rank; default: as many as it has for itself */
    uint64_t heap_bytes;         /* of the symmetric heap; default 1 GiB on a GPU, 256 MiB on the host */
    uint64_t flag_bytes;         /* beside it, 8 bytes a flag; default 8 MiB on a GPU, 1 MiB on the host */
    uint64_t timeout_ns;         /* of every wait; default 10 s */
    uint32_t trace_events;       /* records kept per track; default: no tracing */
    char tuning[512];            /* the file of tuned plans, or "none"; default: MKERNEL_TUNING, else the user's own */
};

/* Joins the job: returns when all ranks have, with the peers' heaps mapped. *out is the caller's, to be closed with
 * mk_comm_close, after an error too (NULL where there was no memory for it); `config` is copied. Under MK_EXEC_CUDA the
 * GPU is the one whose number is how many ranks before this one run on the same host, among those that the process sees;
 * it becomes this thread's current device.
 * Blocks: at most timeout_ns for the ranks to come, and as long again for what follows.
 * Errors: -EINVAL (arguments; a library of another version; ranks that were started differently), -ETIMEDOUT (names the ranks that
 * are missing), -EPERM (token), -EADDRINUSE, -ECONNREFUSED, -EHOSTUNREACH, -EPROTO (rendezvous), -ENODEV (no such NIC or
 * GPU, or none in this build), -ENOMEM, or what the provider said. After each of them, -EINVAL too, only mk_error and
 * mk_comm_close are of use. */
int mk_comm_open(struct mk_comm **out, const struct mk_config *config);

/* Leaves the job and frees everything of this rank: heap, plans, the communicator. NULL is allowed. Launches must have
 * ended (mk_wait, or the stream). Blocks until the peers have come here too, at most timeout_ns; after a failure it does
 * not wait for them. */
void mk_comm_close(struct mk_comm *comm);

/* The sentence about the last error of this communicator; of NULL, that memory is short. Never NULL. The communicator's:
 * valid until the next call on it. */
const char *mk_error(const struct mk_comm *comm);

/* Memory of the symmetric heap: `bytes` at the same *offset on every rank, where all make the same calls in the same
 * order (mk_plan_create checks it). 128-byte aligned; device memory under MK_EXEC_CUDA; zeros at first. It belongs to the
 * communicator and goes with it. Does not block. Returns the address on this rank; NULL where the heap is full
 * (mk_error says how much is free), and nothing has changed. */
void *mk_heap_alloc(struct mk_comm *comm, uint64_t bytes, uint64_t *offset);

/* ---- plans ---- */

#define MK_SHAPE 8 /* room for the numbers of any operator's shape */

/* What a plan is asked for; 0 and NULL choose the default. */
struct mk_spec {
    enum mk_op op;
    uint64_t shape[MK_SHAPE]; /* of the whole problem, in the order of mk_op_shape; what the operator has no use for is 0 */
    int causal;               /* ring_attention: a row sees only rows up to itself */
    int b_transposed;         /* B lies as [N, K] where its function below says [K, N]; moe: its last two sides so */
    int deterministic;        /* sums over ranks are fp32 in rank order, with the same bits on every run */
    uint64_t a_offset;        /* ag_gemm: A lies at this offset of the symmetric heap; 0: anywhere else */
    const char *options;      /* of the plan, in the words of `mkernel tune`: "tile=256x128 pace=310"; default: the tuned
                               * plan for this shape if there is one, else the formula. Read during the call only */
    uint64_t timeout_ns;      /* of its waits; default: the communicator's */
};

/* A plan of one operator on one shape. It belongs to its communicator and goes with it; a communicator has at most 64. */
struct mk_plan;

/* Makes a plan: every rank calls with the same spec. No launch of this communicator is under way: loading a kernel may
 * wait for it in the driver. Blocks until all ranks call, at most timeout_ns.
 * Errors: -EINVAL (shape, options, or ranks that ask for different plans; mk_error says what works, or who differs),
 * -ENOSPC (heap or flags are too small; mk_error says which size is enough), -EIO (the job has failed), -ENOMEM. On an
 * error *out is NULL. */
int mk_plan_create(struct mk_plan **out, struct mk_comm *comm, const struct mk_spec *spec);

/* The jobs of CTAs, in the order of the option: roles=compute+intra_comm+inter_send+inter_reduce. */
enum mk_role { MK_COMPUTE, MK_INTRA_COMM, MK_INTER_SEND, MK_INTER_REDUCE, MK_ROLES };

/* What a plan is, with everything chosen. They do not block and do not fail; any thread may call them while the
 * communicator is open, and texts live as long as it does. */
enum mk_op mk_plan_op(const struct mk_plan *plan);
uint32_t mk_plan_shape(const struct mk_plan *plan, uint64_t shape[MK_SHAPE]); /* returns how many numbers; the rest are 0 */
const char *mk_plan_options(const struct mk_plan *plan);            /* "tile=128x64 roles=2+2+1+0 chunk_rows=128 ..." */
const char *mk_plan_tuned(const struct mk_plan *plan);              /* the tuned plan that was taken, for people; "": none */
uint32_t mk_plan_ctas(const struct mk_plan *plan, enum mk_role role); /* 0 where there is no such role */
uint32_t mk_plan_tiles(const struct mk_plan *plan);                 /* of this rank: ids in traces are below it */
uint64_t mk_plan_heap_bytes(const struct mk_plan *plan);            /* that it took of the symmetric heap */
uint64_t mk_plan_flag_bytes(const struct mk_plan *plan);            /* and of the flags */

/* Per launch and rank: floating-point operations, bytes received over NVLink (on the host: shared memory), and over the
 * network. Of a MoE, on the average and at most: what is routed where, the ids say. */
double mk_plan_flop(const struct mk_plan *plan);
uint64_t mk_plan_nvlink_bytes(const struct mk_plan *plan);
uint64_t mk_plan_network_bytes(const struct mk_plan *plan);

/* The arguments of a launch, in the order of mk_launch: how many; and of argument i (NULL and 0 where there is no such
 * one) its name ("A"), type ("bf16", "fp32", "uint32"), bytes on this rank, and 1 where the launch writes it. */
uint32_t mk_plan_arguments(const struct mk_plan *plan);
const char *mk_plan_argument_name(const struct mk_plan *plan, uint32_t i);
const char *mk_plan_argument_type(const struct mk_plan *plan, uint32_t i);
uint64_t mk_plan_argument_bytes(const struct mk_plan *plan, uint32_t i);
int mk_plan_argument_is_output(const struct mk_plan *plan, uint32_t i);

/* Rows that C of a moe_dispatch_gemm has room for, whatever the ids say; 0 of other operators. */
uint64_t mk_moe_rows(const struct mk_plan *plan);

/* ---- launches ---- */

/* Of all launches:
 * Arguments are the caller's, 16-byte aligned, of this rank; device memory under MK_EXEC_CUDA.
 * `stream` is a cudaStream_t, in whose order the launch runs, on the device that mk_comm_open chose; NULL is the default
 * stream, and on the host, which has no streams.
 * A launch returns at once and allocates nothing; it can be captured in a CUDA graph. All ranks launch the same plans in
 * the same order, and on a GPU launches of one communicator do not overlap: they are on one stream, or ordered by events.
 * Inputs may be written again, and outputs read, after the stream has passed the launch (host: after mk_wait); what ranks
 * exchange is ordered within the launch, and needs nothing more.
 * Errors: -EINVAL (a plan of another operator, an argument that is NULL or not aligned): the other ranks miss this one, and
 * their launch ends by its timeout; -EBUSY (on a GPU: 64 other streams have unfinished launches; mk_wait helps), and nothing
 * was launched; -EIO (the job has failed, or CUDA refused the launch). What fails while it runs, mk_wait tells. */

/* C = gather(A) * B, spec.shape {M, N, K}: A [M/W, K], B [K, N], C [M, N], bf16; W is the number of ranks. Sums are fp32. */
int mk_ag_gemm(struct mk_plan *plan, const void *a, const void *b, void *c, void *stream);

/* C = rows of rank r of the sum over ranks of A * B, spec.shape {M, N, K}: A [M, K], B [K, N], C [M/W, N], bf16. Where
 * spec.deterministic is 0 partial sums may be bf16 and added in any order. */
int mk_gemm_rs(struct mk_plan *plan, const void *a, const void *b, void *c, void *stream);

/* C = the whole sum over ranks of A * B, the same bits on every rank; spec.shape {M, N, K}: A [M, K], B [K, N], C [M, N],
 * bf16; sums as in mk_gemm_rs. */
int mk_gemm_ar(struct mk_plan *plan, const void *a, const void *b, void *c, void *stream);

/* O = softmax(Q K^T / sqrt(D)) V, spec.shape {B, S, H, G, D}: batch, sequence, heads, heads of K and V, head size. Q and O
 * [B, S/W, H, D], K and V [B, S/W, G, D] bf16: this rank's rows of the sequence; lse [B, H, S/W] fp32, natural
 * logarithm. Causal: the rows of rank r are block r of 2 W, then block 2 W - 1 - r. The same bits on every run. */
int mk_ring_attention(struct mk_plan *plan, const void *q, const void *k, const void *v, void *o, float *lse, void *stream);

/* C = the tokens of each of this rank's experts * its B, spec.shape {T, H, I, E, K}: tokens of one rank, hidden and inner
 * size, experts of all ranks, experts of a token. X [T, H], B [E/W, H, I] bf16; ids [T, K]: the experts of each
 * token, a number of E or more for none. C [mk_moe_rows(plan), I] bf16: rows of one expert after the other; rows
 * [E/W, 2]: first row and number of each. An expert's rows come in the order of source rank, token, place; what lies
 * between experts is left as it was. */
int mk_moe_dispatch_gemm(struct mk_plan *plan, const void *x, const void *b, const uint32_t *ids, void *c, uint32_t *rows,
                         void *stream);

/* Y = each token through its experts: the sum over its K of weight * (silu(x G) * (x U)) B2. spec.shape, X and ids as in
 * mk_moe_dispatch_gemm; Y [T, H] bf16; weights [T, K] fp32; B1 [E/W, H, 2 I] bf16: columns of G, then those of U; B2
 * [E/W, I, H] bf16. A token that names no expert gets zeros. Sums are fp32 in one order, with the same bits on every
 * run; where spec.deterministic is 0 what is sent is rounded to bf16. */
int mk_moe_ffn(struct mk_plan *plan, const void *x, const void *b1, const uint32_t *ids, const float *weights, const void *b2,
               void *y, void *stream);

/* A launch of any operator: its `count` arguments (mk_plan_arguments) in the order in which its function takes them; the
 * array is read during the call only. -EINVAL also where the operator takes another number of arguments. */
int mk_launch(struct mk_plan *plan, void *const *arguments, uint32_t count, void *stream);

/* Waits for the launches so far. On a GPU: until all has ended that is on the streams which launches were given since the last
 * mk_wait, replays of graphs included, and whatever else the caller has put there. So these streams exist until then; at most 64
 * of them may have unfinished launches at once. A launch that was captured runs where its graph is replayed: where that is
 * another stream, mk_wait_stream waits for it. Blocks until they have ended, each wait in them at most timeout_ns. After 0
 * this thread may read outputs (on a GPU: copy them).
 * -EIO: one failed, here or elsewhere, and mk_error names operator, rank, CTA, role, chunk, the value seen and wanted, and
 * the rank that should have produced it. */
int mk_wait(struct mk_comm *comm);

/* The same for what is on `stream` (a cudaStream_t) alone, whoever put it there: graphs that hold launches of this communicator
 * and were captured elsewhere. Waiting for them in any other way is allowed, but a failure then ends the job only after its
 * timeout, and is told by the next of these calls. The host executor has no streams: as mk_wait. */
int mk_wait_stream(struct mk_comm *comm, void *stream);

#ifdef __cplusplus
}
#endif

#endif
