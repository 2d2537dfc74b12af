/* A plan: everything about one op on one shape on one cluster that is fixed before launch. Pure
 * arithmetic: no memory is allocated, nothing is sent, every rank computes the same plan but for
 * its own rank. */
#pragma once

#include "core/base.h"
#include "core/cta/cta.h"

/* The options of a plan; zero means "choose". A user says them in words (struct mk_spec,
 * core/plan/tuning.h). */
struct mk_tuning {
    struct mk_role_split split;
    uint32_t tile_m, tile_n;
    uint32_t cluster;    /* CTAs that share a tile (1 or 2), each tile_m / cluster rows */
    uint32_t chunk_rows; /* a multiple of tile_m and of 8 */
    uint32_t fanout;     /* peers that a rank pushes to at once, 1 .. gpus - 1 */
    /* 1 .. 16: ag_gemm on one node: runs of columns of a chunk of A that arrive one after the
     * other; moe_ffn: slices of what a rank computes last; gemm_rs: of K of its last tiles */
    uint32_t slices;
    /* 1 .. 64 parts of a chunk or slice pushed over NVLink by different CTAs */
    uint32_t pieces;
    uint32_t pace;  /* of an auxiliary warp that pushes: ns for 512 bytes, or MK_PACE_NONE */
    uint32_t shots; /* gemm_*: of enum mk_shots */
    /* gemm_rs and gemm_ar in one shot: CTAs of a GPU that multiply a tile of 128 x 128 by half of K
     * each (cluster is 2 then); 1: whole products */
    uint32_t split_k;
};

/* What a tile is of, and how ranks exchange it. */
enum mk_shots {
    MK_ONE_SHOT = 1,   /* rows of all ranks, who exchange them at once: for few rows */
    MK_TWO_SHOT,       /* one rank's rows */
    MK_SHARED_COLUMNS, /* gemm_ar: rows of all ranks; each adds some of a tile's columns, and sends
                          their sums to all */
    MK_COLUMN_BLOCKS,  /* gemm_ar: as MK_TWO_SHOT, but one rank's columns */
    MK_SHOTS = MK_COLUMN_BLOCKS
};

/* Parts of a tile's K, each of which a CTA multiplies; and CTAs that have rows of their own. */
static inline uint32_t plan_parts_of_k(const struct mk_tuning *t)
{
    return t->split_k > 1 ? t->split_k : 1;
}

static inline uint32_t plan_row_ctas(const struct mk_tuning *t)
{
    return t->cluster / plan_parts_of_k(t);
}

/* Whether a tile is one rank's: it is summed there, and then goes to others. */
static inline int plan_two_shots(const struct mk_tuning *t)
{
    return t->shots == MK_TWO_SHOT || t->shots == MK_COLUMN_BLOCKS;
}

/* Of ring_attention: the global problem. */
struct mk_attention {
    uint64_t batch, sequence, heads, kv_heads, head_dim; /* elements */
    int causal;
    int gather_only; /* nothing is multiplied: what `mkernel bench` measures a gather with */
    int contiguous;  /* ranks hold one run of rows each, under a causal mask too (plan_splits) */
};

/* Of moe_*: tokens is the room of one rank, a multiple of 8; experts those of all ranks; k: experts
 * of a token. */
struct mk_moe {
    uint64_t tokens, hidden, inner, experts, k;
};

#define MK_OWN_NUMBERS 6 /* as many as a shape has (OP_DIMENSIONS) */

/* What a plan is made of: what a user asked for (struct mk_spec) with its numbers by name, and what
 * the communicator adds, exec, sms and topo. */
struct mk_problem {
    uint32_t op;       /* enum mk_op: its list is not seen here, so that no kernel depends on it */
    enum mk_exec exec; /* whose plan: plan_exec of the executor */
    uint32_t sms;      /* of the device; 0 on the host: no limit on CTAs */
    uint32_t sms_most; /* of those, that the user lets the plan have; 0: all */
    enum mk_engine engine; /* of a plan for a GPU: never DEVICE */
    struct mk_topo topo;
    uint64_t m, n, k; /* elements; other ops fill in what they amount to: ring_attention's Q K^T */
    struct mk_attention attention;
    struct mk_moe moe;
    /* for an operator with other numbers: its descriptor says which is which (struct op_shape), and
     * nothing else needs to know */
    uint64_t own[MK_OWN_NUMBERS];
    int b_transposed;  /* B is [N, K] */
    uint32_t epilogue; /* bits of enum mk_epilogue (core/plan/epilogue.h) */
    float eps;         /* of its rmsnorm; 0: EPILOGUE_EPS, which the plan fills in */
    /* A and B are e4m3 with fp32 scales of blocks (core/base/quantize.h); of what only moves rows: e4m3,
     * or bytes; or all 16-bit arguments are fp16; else bf16 */
    int fp8, bytes, fp16;
    int b_columns;     /* 1: of FP8, B has a scale for each of its columns, not for 128 x 128 */
    int back_fp8;      /* 1: sums of tokens travel back as e4m3 with their scales */
    int deterministic; /* enum mk_deterministic */
    /* A or C lies in the symmetric heap, at this offset (op_heap_offset) */
    int a_in_heap, c_in_heap;
    uint64_t a_offset, c_offset;
    struct mk_tuning tuning;
    uint32_t block_shared; /* of the device: bytes that a block may have; 0: no more than any has */
    uint64_t timeout_ns;   /* of every wait; 0: MK_TIMEOUT_NS */
};

struct mk_plan {
    /* the operator's: struct <name>_plan. First: MK_PLAN_OF finds it there */
    unsigned char own[MK_PLAN_OWN] __attribute__((aligned(16)));
    uint32_t id;               /* of its communicator, from 1: names it in commands and traces */
    uint32_t slot;             /* among those that the communicator has now, from 0 */
    struct mk_problem problem; /* with what was chosen filled in */
    uint32_t flag_base, flags; /* indexes in the flag region */
    uint64_t heap_base, heap_bytes;
    /* of the heap, from heap_base on, that the first launch must find 0, as a new heap is */
    uint64_t zero_bytes;
    uint32_t tiles, chunks; /* ids of tiles and chunks are below these */
    /* the tuned plan that was taken (core/plan/tuning.h), to tell a person; empty: none */
    char tuned[768];
};

/* What a flag stands for, to tell a person: "chunk 3 of rank 5's A". */
struct mk_flag_meaning {
    char text[96];
    uint32_t producer; /* rank that raises it or whose data it announces */
    uint32_t chunk;    /* UINT32_MAX: no chunk */
};

/* Makes the plan of `problem`. `flag_base` is the first free flag, `heap_base` the first free byte
 * of the heap (rounded up to 128 here), the same on every rank; p->flags and p->heap_bytes say what
 * it took. Returns 0, or -EINVAL with one sentence in `error` (what does not fit, and the nearest
 * thing that does). */
int plan_build(struct mk_plan *p, const struct mk_problem *problem, uint32_t flag_base,
               uint64_t heap_base, char *error, size_t size);

/* Names as on the command line, "host", by enum mk_exec. And whose plans an executor runs: the
 * emulated GPU runs the GPU's kernels, by the GPU's plans. */
enum { MK_PLAN_DTYPES = 4 };
extern const char *const plan_execs[MK_EXECS];
extern const char *const plan_dtypes[MK_PLAN_DTYPES]; /* "bf16", "fp16", "fp8", "bytes" */
extern const char *const plan_splits[2]; /* by mk_attention.contiguous: "zigzag", "contiguous" */
extern const char *const plan_engines[MK_ENGINES]; /* "mma" */
extern const char *const plan_shots[MK_SHOTS];     /* from MK_ONE_SHOT on: "one_shot", .. */
extern const char *const plan_backs[2];            /* by mk_problem.back_fp8: "bf16", "fp8" */
extern const char *const plan_b_scales[2]; /* by mk_problem.b_columns: "blocks", "columns" */
enum { MK_PLAN_SUMS = MK_EVERYWHERE + 1 };
extern const char *const plan_sums[MK_PLAN_SUMS]; /* by enum mk_deterministic: "fast", .. */

/* A problem's dtype: its number in plan_dtypes. */
static inline uint32_t plan_dtype(const struct mk_problem *q)
{
    return q->bytes ? 3 : q->fp8 ? 2 : q->fp16 ? 1 : 0;
}
static inline void plan_set_dtype(struct mk_problem *q, int dtype)
{
    q->fp16 = dtype == 1;
    q->fp8 = dtype == 2;
    q->bytes = dtype == 3;
}
/* Of its 16-bit numbers, of C at least: MK_FP16 or MK_BF16 (core/cta/half.h). */
static inline enum mk_dtype plan_element(const struct mk_problem *q)
{
    return q->fp16 ? MK_FP16 : MK_BF16;
}
static inline enum mk_exec plan_exec(enum mk_exec exec)
{
    return exec == MK_EXEC_EMULATED ? MK_EXEC_CUDA : exec;
}

/* Op names as on the command line: "ag_gemm". plan_op_by_name returns -EINVAL for none. */
const char *plan_op_name(uint32_t op);
int plan_op_by_name(const char *name);
const char *plan_role_name(enum mk_role role);
const char *plan_cause_name(enum mk_cause cause);

/* Meanings of the ids that records carry. They never fail: an id that is not the plan's gets a text
 * that says so. */
void plan_describe_flag(const struct mk_plan *p, uint32_t flag, struct mk_flag_meaning *out);
void plan_describe_tile(const struct mk_plan *p, uint32_t id, struct mk_tile *out);

/* Chunk `id`: the rank whose data it is (of A that it comes from, of C that it goes to), its number
 * there, its bytes. */
void plan_describe_chunk(const struct mk_plan *p, uint32_t id, uint32_t *rank, uint32_t *number,
                         uint64_t *bytes);

/* Per launch and rank: floating-point operations, bytes that it receives over NVLink and over the
 * network. */
void plan_work(const struct mk_plan *p, double *flop, uint64_t *nvlink_bytes,
               uint64_t *network_bytes);
/* Bytes of its arguments that it reads and writes, each once: what no cache saves it in a first
 * launch. Of experts' weights those that tokens choose, on the average, where they choose evenly.
 */
double plan_memory_bytes(const struct mk_plan *p);
