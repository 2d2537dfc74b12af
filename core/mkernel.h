/* mkernel: fused multi-GPU, multi-node operators. The one public header; C ABI.
 *
 * A communicator joins the ranks of a job; a plan fixes one op on one shape; a launch runs it. Calls return 0 or -errno
 * and never print; mk_error gives the sentence. One thread at a time per communicator. Every call ends: the bound is
 * the communicator's timeout. */
#ifndef MKERNEL_H
#define MKERNEL_H

#include "core/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

struct mk_comm;

struct mk_config {
    enum mk_exec exec;
    uint32_t rank, nodes, gpus;  /* this rank; nodes; ranks per node */
    char host[256];              /* of rank 0 */
    uint16_t port;
    int listen_fd;               /* rank 0's listening socket, or -1 */
    char token[64];              /* the job's secret; also names its shared memory */
    char fabric[16];             /* "verbs" or "efa"; used where nodes > 1 */
    char nic[256];               /* "soft", names of devices with commas between, or "" to choose among all */
    uint32_t rails;              /* devices of this rank; 0: as many as it has for itself */
    uint64_t heap_bytes;         /* data part of the symmetric heap; 0: 1 GiB on a GPU, 256 MiB on the host */
    uint64_t flag_bytes;         /* flag part, 8 bytes a flag; 0: 8 MiB on a GPU, 1 MiB on the host */
    uint64_t timeout_ns;         /* of every wait; 0: 10 s */
    uint32_t trace_events;       /* records kept per track; 0: no tracing */
    char tuning[512];            /* file of tuned plans, or "none"; "": MKERNEL_TUNING, else the user's own (core/tuning.h) */
};

/* Joins the job and maps the peers' heaps. Blocks until all ranks did, at most timeout_ns. On error *out is still valid
 * for mk_error and mk_comm_close. Errors: -EINVAL (arguments), -ETIMEDOUT, -EPERM, -EPROTO (rendezvous), -ENODEV (no such
 * NIC or GPU), -ENOMEM, or what the provider said. */
int mk_comm_open(struct mk_comm **out, const struct mk_config *config);

/* Leaves the job and frees everything of this rank. Waits for the peers to finish reading, at most timeout_ns; after a
 * failure it does not wait. NULL is allowed. */
void mk_comm_close(struct mk_comm *comm);

/* The sentence about the last error of this communicator. Valid until the next call on it. Never NULL. */
const char *mk_error(const struct mk_comm *comm);

/* Memory of the symmetric heap: `bytes` at the same offset on every rank (every rank calls in the same order). Freed with
 * the communicator. Returns the local address (device memory under MK_EXEC_CUDA), NULL where the heap is full. */
void *mk_heap_alloc(struct mk_comm *comm, uint64_t bytes, uint64_t *offset);

/* Makes a plan; every rank calls with the same problem (topology, sms and rank are filled in here). Where it has no tuning of
 * its own, a tuned plan is taken if there is one (core/tuning.h; plan->tuned says so). On a GPU no launch of this communicator is
 * under way: loading a kernel may wait for it in the driver, and so may the copies that it needs between nodes. Freed with the communicator. -EINVAL: the shape or the role split does not work, mk_error says what does; -ENOSPC: heap too small. */
int mk_plan_create(struct mk_plan **out, struct mk_comm *comm, const struct mk_problem *problem);

/* C = gather(A) * B. A [M/W, K], B [K, N] ([N, K] where b_transposed), C [M, N], bf16, row-major, of this rank; 16-byte
 * aligned; device pointers under MK_EXEC_CUDA. `stream` is a cudaStream_t (NULL on the host). Does not synchronise and
 * allocates nothing: A and B may be reused, and C read, after the stream has passed it (host executor: after mk_wait).
 * All ranks launch the same plans in the same order. */
int mk_ag_gemm(struct mk_plan *plan, const void *a, const void *b, void *c, void *stream);

/* C = rows r of the sum over ranks of A * B, on rank r. A [M, K], B [K, N] ([N, K] where b_transposed), C [M/W, N]; the rest
 * as in mk_ag_gemm. Where the plan is deterministic the sum is fp32 in rank order, with the same bits on every run; else
 * partial sums are bf16 and may be added in any order. */
int mk_gemm_rs(struct mk_plan *plan, const void *a, const void *b, void *c, void *stream);

/* C = the whole sum over ranks of A * B, the same bits on every rank. C [M, N]; the rest as in mk_gemm_rs. */
int mk_gemm_ar(struct mk_plan *plan, const void *a, const void *b, void *c, void *stream);

/* O = softmax(Q K^T / sqrt(D)) V. Q and O [B, S/W, heads, D], K and V [B, S/W, kv_heads, D] bf16: this rank's rows of the
 * sequence; lse [B, heads, S/W] float, natural logarithm. Causal: the rows of rank r are block r of 2 W, then block
 * 2 W - 1 - r. The same bits on every run. The rest as in mk_ag_gemm. */
int mk_ring_attention(struct mk_plan *plan, const void *q, const void *k, const void *v, void *o, float *lse, void *stream);

/* C = the tokens of each of this rank's experts * its B. X [T, H] bf16, T: room for tokens of the plan; ids [T, k]: the
 * experts of each token, a number of `experts` or more for none; B [E/W, H, I] ([E/W, I, H] where b_transposed). C
 * [mk_moe_rows(plan), I]: rows of one expert after the other; rows [E/W, 2]: first row and number of each. An expert's rows
 * come in the order of source rank, token, place; what lies between experts is left as it was. The rest as in mk_ag_gemm. */
int mk_moe_dispatch_gemm(struct mk_plan *plan, const void *x, const void *b, const uint32_t *ids, void *c, uint32_t *rows,
                         void *stream);

/* Rows that C of such a plan has room for, whatever the ids say. */
uint64_t mk_moe_rows(const struct mk_plan *plan);

/* Y = each token through its experts: the sum over its k of weight * (silu(x G) * (x U)) B2. X, Y [T, H] bf16; ids as in
 * mk_moe_dispatch_gemm; weights [T, k] float; B1 [E/W, H, 2 I] ([E/W, 2 I, H] where b_transposed): columns of G, then those of
 * U; B2 [E/W, I, H] ([E/W, H, I] where b_transposed). A token that names no expert gets zeros. Sums are fp32 in one order,
 * with the same bits on every run; where the plan is not deterministic what is sent is rounded to bf16. The rest as in
 * mk_ag_gemm. */
int mk_moe_ffn(struct mk_plan *plan, const void *x, const uint32_t *ids, const float *weights, const void *b1, const void *b2,
               void *y, void *stream);

/* A launch of any operator: its `count` arguments in the order in which the functions above take them, but for a moe_ffn's: X, B1,
 * ids, weights, B2, Y. As the function of the plan's operator; -EINVAL also where it takes another number of arguments. */
int mk_launch(struct mk_plan *plan, void *const *arguments, uint32_t count, void *stream);

/* Waits for the launches so far: until all has ended that is on the streams which launches were given since the last mk_wait,
 * replays of graphs included, and whatever else the caller has put there. So these streams exist until then; at most 64 of them
 * may have unfinished launches at once (a launch on one more returns -EBUSY). A launch that was recorded into a graph runs where
 * the graph is replayed: where that is another stream, mk_wait_stream waits for it. 0, or -EIO where one failed: mk_error names the op, rank, CTA, role, chunk, the value
 * seen and wanted, and the rank that should have produced it. Afterwards only mk_error and mk_comm_close are allowed. */
int mk_wait(struct mk_comm *comm);

/* The same for what is on `stream` (a cudaStream_t) alone, whoever put it there: graphs that hold launches of this communicator
 * and were captured elsewhere. Waiting for them in any other way is allowed, but a failure then ends the job only after its
 * timeout, and is told by the next of these calls. The host executor has no streams: as mk_wait. */
int mk_wait_stream(struct mk_comm *comm, void *stream);

#ifdef __cplusplus
}
#endif

#endif
