/* What an operator is. Each is one constant of struct op_descriptor in core/ops/<name>.c, which
 * the registry (core/ops/registry.h) finds by its name. All other code asks the descriptor, and
 * nothing outside the operator's own files knows one operator from another. docs/ADD_AN_OPERATOR.md
 * adds one step by step.
 *
 * Inside core: also the checks that plans share. */
#pragma once

#include "core/ops/registry.h"
#include "core/plan/plan.h"
#include "core/base/sentence.h"

#include <errno.h>

/* ---- the problem ---- */

#define OP_DIMENSIONS MK_OWN_NUMBERS

/* One number of a problem, a uint64_t at `offset` of struct mk_problem, 1 to `most`. `letter` is
 * what the command line and formulas call it, `name` what sentences do. It divides by what a
 * formula says (struct op_argument), and is a multiple
 * of `multiple`, or of so many elements as `bytes` are, for the reason `why`. */
struct op_dimension {
    const char *letter, *name; /* "T", "tokens" */
    size_t offset;
    uint64_t most;
    const char *divides; /* "W"; NULL: by anything */
    uint32_t multiple;   /* 0: of 1 */
    uint32_t bytes;      /* of elements that are OP_FACTOR; 0: `multiple` says it */
    const char *why;     /* "rows of A must be 16-byte multiples" */
};
#define OP_MOST (UINT32_MAX / 4) /* of most dimensions: numbers of elements have 32 bits */

/* The numbers that make a problem, in the order of the command line. Operators with the same
 * numbers share one. */
struct op_shape {
    const char *option;   /* of the command line, and the name in JSON: "shape" */
    const char *letters;  /* "M,N,K" */
    const char *heading;  /* as reports name them: "M,N,K", or with words for letters */
    const char *about;    /* what they mean, for --help */
    const char *defaults; /* in words: of a run on the host and on GPUs */
    const char *explored; /* of the explorer */
    struct op_dimension dimensions[OP_DIMENSIONS]; /* the first without a letter ends them */
};

/* What an operator with experts (op_descriptor.limit) is asked besides its shape: places in
 * mk_problem.own. CAPACITY: rows that a rank has room for; 0: the plan's to say, and in a plan that
 * all fits that can come. DROPS 1: what has no room is left out, by the operator's rule. COUNTED 1:
 * how much there is a launch reads from its OP_COUNT. LOGICAL: how many experts ids name, each of
 * which a map places (moe_map.h); 0: ids name what ranks hold. HALVES 1: launches have two halves. */
enum moe_number { MOE_CAPACITY, MOE_DROPS, MOE_COUNTED, MOE_LOGICAL, MOE_HALVES };

/* For what a default is wanted: a run on the host executor (small, so that a test has many tiles
 * and chunks), a run on GPUs, the explorer (as small as still has every case). */
enum op_size { OP_SIZE_HOST, OP_SIZE_GPU, OP_SIZE_EXPLORE };

/* ---- the arguments of a launch ---- */

/* OP_TOKENS: bf16, an argument of plans of bf16 alone; OP_RECORDS: bytes, its place in plans of
 * fp8, rows of codes with their scales (quantize_record). OP_FACTOR: of a product, or of what only
 * moves, bf16, e4m3 or bytes as the plan's dtype says. OP_SCALES: fp32, an argument of plans of fp8
 * alone, behind those of all plans; OP_BLOCK_SCALES and OP_COLUMN_SCALES are B's, where it may have
 * either. OP_BIAS: bf16, one of plans whose epilogue has a bias alone, behind all others. OP_COUNT:
 * uint32, one of plans that are counted (MOE_COUNTED), of 4 bytes that are aligned to 4. */
enum op_type {
    OP_BF16, /* or fp16, as the plan's dtype says; so are those below that say bf16 */
    OP_FP16,
    OP_FP32,
    OP_UINT32,
    OP_E4M3,
    OP_UINT8,
    OP_COUNT,
    OP_TOKENS,
    OP_RECORDS,
    OP_FACTOR,
    OP_SCALES,
    OP_BIAS,
    OP_RESIDUAL,    /* bf16, of plans whose epilogue adds a residual */
    OP_NORM,        /* bf16, of those whose epilogue has an rmsnorm */
    OP_NORMED,      /* bf16, of those whose epilogue has an rmsnorm and does not quantize */
    OP_CODES,       /* e4m3, of those that do */
    OP_CODE_SCALES, /* fp32, of those that do */
    OP_BLOCK_SCALES,
    OP_COLUMN_SCALES
};

/* One argument, row-major, of one rank. `shape` is a formula: factors between commas, each a
 * product or quotient (: rounds it up), from the left, of numbers, the problem's letters, W
 * (ranks), runs (2 where columns of B are gated, else 1), rows (those that the plan makes room for,
 * mk_problem.m) and record (bytes of a token of FP8 with its scales): "M/W,K". */
struct op_argument {
    const char *name; /* "A": in sentences */
    enum op_type type;
    const char *shape;
    int output;   /* 1: the launch writes it */
    int in_place; /* 1: it may be the residual; other outputs share memory with no argument */
};

#define OP_ARGUMENTS 12 /* of all plans of an operator; one plan has MK_SPACES - 1 at most */

/* ---- the plan ---- */

/* When a role has CTAs. */
enum op_need {
    OP_NEVER,
    OP_ALWAYS,
    OP_IF_GPUS,  /* where a node has several ranks */
    OP_IF_NODES, /* where there are several nodes */
    OP_IF_RANKS  /* where there are several ranks */
};

/* What of struct mk_tuning an operator's plan looks at: bits; each option has one in
 * core/plan/plan_fields.c. */
enum op_knob {
    OP_TILE = 1,
    OP_ROLES = 2,
    OP_CHUNK_ROWS = 4,
    OP_SLICES = 8,
    OP_PIECES = 16,
    OP_PACE = 32,
    OP_FANOUT = 64,
    OP_SHOTS = 128,
    OP_SPLIT_K = 256
};

/* A buffer of the symmetric heap: `count` times `each` bytes. Each of its `copies` begins at a
 * multiple of MK_HEAP_UNIT, and `at` gets their offsets. */
struct op_buffer {
    const char *name;
    uint64_t *at;
    uint32_t copies;
    uint64_t count, each;
};

/* One dimension of an array of flags. Its letter says what it counts: r ranks, l ranks of this
 * node, n nodes, c chunks; any other: what the text says. An index stands for `each` of them. */
struct op_extent {
    char letter;
    uint64_t count;
    uint32_t each;
};

/* An array of flags of one meaning, the last extent the fastest. `text` says what a flag announces:
 * %x is the index of extent x, %X the last that it stands for, %x{KV} one of these letters; and as
 * ranks %r, %l, %R (of node n, on this rank's rail), %p (of this node, on r's rail), %q (r; of
 * another node, its rank on this rank's rail), %m (this one). `producer` is the letter of the rank
 * that raises the flag or whose data it announces. */
struct op_flags {
    const char *name;            /* "arrival" */
    uint32_t *first;             /* gets the number of the first */
    struct op_extent extents[6]; /* the first without a letter ends them */
    const char *text;            /* "chunk %c of rank %r's A" */
    char producer;
    uint32_t
        chunks; /* where several extents number the chunks: how many, the last of all extents */
    uint32_t chunk_base; /* what is said is this much less than the chunk's number */
};

/* How a plan lies in the heap and among the flags, one behind the other. */
#define OP_MOST_BUFFERS 40u
#define OP_MOST_FLAGS 16u
struct op_tables {
    struct op_buffer buffers[OP_MOST_BUFFERS];
    struct op_flags flags[OP_MOST_FLAGS];
    uint32_t buffer_count, flag_count;
    uint32_t
        zero_buffers; /* the first so many must be found 0 by the first launch, as a new heap is */
};

void op_add_buffers(struct op_tables *t, const struct op_buffer *buffers, size_t bytes);
void op_add_flags(struct op_tables *t, const struct op_flags *flags, size_t bytes);
#define OP_BUFFERS(t, ...)                                                                         \
    op_add_buffers(t, (const struct op_buffer[]){__VA_ARGS__},                                     \
                   sizeof((const struct op_buffer[]){__VA_ARGS__}))
#define OP_FLAGS(t, ...)                                                                           \
    op_add_flags(t, (const struct op_flags[]){__VA_ARGS__},                                        \
                 sizeof((const struct op_flags[]){__VA_ARGS__}))

struct mk_pipeline;
struct model_walk;
struct mk_gemm_tile;

struct op_descriptor {
    const char *help; /* one line: what it computes */

    const struct op_shape *shape;
    uint8_t limit; /* 1: it has the numbers of enum moe_number */
    /* Default numbers for `world` ranks, in the order of the shape's dimensions. */
    void (*choose_shape)(enum op_size size, uint64_t world, uint64_t *numbers);
    /* In the order of MK_SPACE_ARG0 .. of those that a plan has; the first without a name ends
     * them. Ask op_argument. */
    struct op_argument arguments[OP_ARGUMENTS];

    /* Where the ranks' shards are not of one size: the rows of this rank, which the quotient S/W
     * stands for in shapes of arguments. NULL: a quotient is what it says. */
    uint64_t (*shard)(const struct mk_problem *q);

    /* Of an operator that only moves rows, argument 0's to argument 1: which row of all ranks' A,
     * one under the other, is row `row` of this rank's C. The reference of all who check it. */
    uint64_t (*moves)(const struct mk_problem *q, uint64_t row);

    uint8_t needs[MK_ROLES]; /* enum op_need */
    uint32_t knobs;          /* bits of enum op_knob */
    int pieces_are_put;      /* 1: OP_PIECES says nothing where there is one node */
    uint32_t tile_n_unit;    /* columns of a tile are multiples of it; 0: of 8 */
    uint8_t tuned;           /* 1: measured plans are kept for it (core/plan/tuning.h) */
    uint8_t well_known;      /* 1: many of its plans were measured: what the model of the machine
                                promises counts sooner, and of chunks, too (core/model/choose.c) */
    uint8_t shots_measured;  /* bit G: on G GPUs of a node the operator's own rule, one shot or
                                two, was measured; on others the model says */
    uint8_t plans_measured;  /* bit G: on G GPUs of a node the operator's own plans were measured,
                                 and the model chooses no other */
    uint8_t fp8_plans_measured; /* the same of FP8 alone */
    uint8_t most_shots;         /* with OP_SHOTS: 4 where ranks may share columns, else 2 */
    /* 1: its schedule is another where A or C lies in the heap (mk_problem.a_in_heap) */
    uint8_t a_in_heap, c_in_heap;
    uint8_t mma;          /* 1: it has a kernel on engine mma, too (enum mk_engine) */
    uint8_t loose_chunks; /* 1: chunks need not be multiples of a tile's rows */
    uint8_t causal;       /* 1: mk_problem.attention.causal means something */
    uint8_t b_layout;     /* 1: mk_problem.b_transposed means something */
    uint8_t fp16;         /* 1: mk_problem.fp16 means something */
    uint8_t fp8;          /* 1: mk_problem.fp8 means something; of what moves rows .bytes, too */
    uint8_t b_columns;    /* 1: mk_problem.b_columns means something */
    uint8_t back_fp8;     /* 1: mk_problem.back_fp8 means something */
    uint8_t epilogue;     /* bits that mk_problem.epilogue may have */
    uint8_t halves;       /* 1: its launches may have two halves (core/cta/halves.h) */
    uint8_t sums;         /* 1: it adds, so mk_problem.deterministic says how */
    /* Why its results have no bits that are the same everywhere (MK_EVERYWHERE), the end of a
     * sentence. NULL: they have, where they are asked for */
    const char *bits_vary;

    /* Checks what the shape's dimensions do not say of the problem (a refusal names the nearest
     * that works; the numbers themselves have been checked), fills in the tuning that was left
     * open, makes the operator's own plan, <name>_plan_in(p), and has it laid out (plan_lay_out).
     * `op`: the descriptor, for code that operators share. 0, or -EINVAL with a sentence. */
    int (*build)(const struct op_descriptor *op, struct mk_plan *p, char *error, size_t size);
    /* The plan's buffers and flags, by the numbers in the operator's own plan: where they lie, what
     * they take, and every sentence about a flag follow from it. The same once they are laid out.
     */
    void (*tables)(struct mk_plan *p, struct op_tables *t);
    /* Where the plan's pipeline is not the plain one (core/plan/pipeline.h). NULL: nowhere. */
    void (*pipeline)(const struct mk_plan *p, struct mk_pipeline *out);
    /* As core/plan/plan.h says; ids are the plan's. describe_tile NULL: it computes none. */
    void (*describe_tile)(const struct mk_plan *p, uint32_t id, struct mk_tile *out);
    void (*describe_chunk)(const struct mk_plan *p, uint32_t id, uint32_t *rank, uint32_t *number,
                           uint64_t *bytes);
    void (*work)(const struct mk_plan *p, double *flop, uint64_t *nvlink_bytes,
                 uint64_t *network_bytes);
    /* Bytes of the arguments that a launch reads and writes, each once. NULL: all of them. */
    double (*memory)(const struct mk_plan *p);
    /* How long a launch takes on a GPU, by arithmetic on its waves (core/model/model.h). NULL: not
     * known. */
    void (*model)(struct model_walk *w, const struct mk_plan *p);

    /* On a GPU: the i-th tile that its kernel is built for with the problem's numbers, on its
     * engine; NULL: those of GEMMs (core/plan/gemm_tiles.h). own_blocks: intra_comm CTAs have thread
     * blocks of their own, and are no multiple of the compute CTAs. */
    int (*gpu_tile)(const struct mk_problem *q, uint32_t i, struct mk_gemm_tile *out);
    int own_blocks;
};

#define MK_OPERATOR(name, NAME, where) extern const struct op_descriptor op_##name;
MK_OPERATORS(MK_OPERATOR)
#undef MK_OPERATOR

/* The descriptor of an operator; NULL: there is no such one. */
const struct op_descriptor *op_of(enum mk_op op);

/* Whether it has a kernel: the registry's third word. */
int op_on_gpu(enum mk_op op);

/* Whether it has one on engine mma. */
int op_on_mma(enum mk_op op);

/* Bytes of the arguments of one launch on one rank; those that it has none of get 0. Of a MoE
 * the problem is a plan's, which knows the rows. Returns a bit for each output. */
uint32_t op_extents(const struct mk_problem *problem, uint64_t bytes[MK_SPACES - 1]);

/* Arguments of a launch of the problem; argument i; and what it is: OP_BF16, OP_FP32, OP_UINT32,
 * OP_FP16, OP_E4M3 or OP_UINT8. */
uint32_t op_arguments(const struct mk_problem *problem);
const struct op_argument *op_argument(const struct mk_problem *problem, uint32_t i);
enum op_type op_argument_type(const struct mk_problem *problem, uint32_t i);

/* Of a problem whose epilogue has one: which argument the bias is. */
uint32_t op_bias_argument(const struct mk_problem *problem);

/* Of a problem whose epilogue is of rows: where the residual lies among the arguments; of an
 * rmsnorm its weight and the new residual are the next two; where it quantizes, its weight, codes
 * and scales are the next three; else, and there, C is the new residual. */
uint32_t op_residual_argument(const struct mk_problem *problem);
uint32_t op_new_residual_argument(const struct mk_problem *problem);

/* Whether it has an epilogue. */
int op_has_epilogue(enum mk_op op);

/* Whether it takes fp16; whether it multiplies e4m3, or moves it; and whether it moves bytes. */
int op_has_fp16(enum mk_op op);
int op_has_fp8(enum mk_op op);
int op_has_back(enum mk_op op);      /* and whether sums may come back so */
int op_has_b_columns(enum mk_op op); /* whether B may have a scale for each column */
int op_has_fp8_on_mma(enum mk_op op);
int op_has_bytes(enum mk_op op);

/* Bytes of an element of A and B (of what only moves: A and C). A stage of the GEMM engine has 128
 * bytes of K. */
static inline uint32_t op_factor_bytes(const struct mk_problem *q)
{
    return q->fp8 || q->bytes ? 1 : 2;
}

/* Where an argument of a launch lies in the symmetric heap: its offset, or 0 where it lies
 * elsewhere. A is the first argument, C the third, of those operators that look. */
uint64_t op_heap_offset(const struct mk_problem *problem, uint32_t argument);

/* The problem's numbers, in the order of its operator's shape; returns how many. */
uint32_t op_numbers(const struct mk_problem *problem, uint64_t numbers[OP_DIMENSIONS]);
void op_set_numbers(struct mk_problem *problem, const uint64_t numbers[OP_DIMENSIONS]);
uint32_t op_dimensions(const struct op_shape *shape);

/* The numbers and what else makes the problem, as on the command line: "1,512,4,2,64 causal".
 * Returns `text`. */
#define OP_PROBLEM_TEXT 160
const char *op_problem_text(const struct mk_problem *q, char text[OP_PROBLEM_TEXT]);

/* The inverse: the numbers and words of such a text into *problem, whose op is set. 0 or -EINVAL. */
int op_read_problem(struct mk_problem *problem, const char *text);
/* Its limit (MOE_CAPACITY); 0 of an operator without one. */
uint64_t op_limit_of(const struct mk_problem *problem);
int op_drops(const struct mk_problem *problem);
int op_counted(const struct mk_problem *problem);
uint64_t op_logical(const struct mk_problem *problem);
int op_halves(const struct mk_problem *problem); /* of operators that have none: 0 */

extern const char *const op_overflows[2]; /* by op_drops: "end", "drop" */
extern const char *const op_counts[2];    /* by op_counted: "plan", "launch" */
extern const char *const op_launches[2];  /* by op_halves: "whole", "halves" */

/* Whether it has one; and whether its launches may have halves. */
int op_has_limit(enum mk_op op);
int op_has_halves(enum mk_op op);

/* What the i-th number must divide by: a multiple of its `multiple`, and of its formula. 1:
 * nothing.
 */
uint64_t op_unit(const struct mk_problem *problem, uint32_t i);

/* Rounds each number up to the next that its dimension takes. */
void op_fit(struct mk_problem *problem);

/* Whether a role has CTAs on these nodes and ranks. */
int op_needs(enum mk_op op, const struct mk_topo *topo, enum mk_role role);

/* The i-th tile that an operator's kernel is built for; 0 where there are fewer, else 1. */
int op_gpu_tile(const struct mk_problem *problem, uint32_t i, struct mk_gemm_tile *out);

/* The i-th tile that a GPU's plan of one shot, as problem->tuning says it, may have besides, of an
 * operator with OP_SHOTS; 0 where there are fewer, else 1. */
int plan_joint_tile(const struct mk_problem *problem, uint32_t i, struct mk_gemm_tile *out);

/* Whether a plan may have more than one piece. */
int op_pieces(enum mk_op op, const struct mk_topo *topo);

/* The names of all operators that `wanted` (NULL: all) is true of, with `between` between them
 * and `last` before the last: "ag_gemm, gemm_ar or gemm_rs". Returns text. */
char *op_list(char *text, size_t size, int (*wanted)(enum mk_op), const char *between,
              const char *last);
#define OP_LIST_TEXT 512
int op_is_tuned(enum mk_op op);

/* ---- what a descriptor says of a problem, for the operators' own files (describe.c) ---- */

/* As the functions of a problem alone above, whose names end so. */
int op_needs_of(const struct op_descriptor *op, const struct mk_topo *topo, enum mk_role role);
int op_counted_of(const struct op_descriptor *op, const struct mk_problem *problem);
uint64_t op_unit_of(const struct op_descriptor *op, const struct mk_problem *problem, uint32_t i);
uint32_t op_arguments_of(const struct op_descriptor *op, const struct mk_problem *problem);
const struct op_argument *op_argument_of(const struct op_descriptor *op,
                                         const struct mk_problem *problem, uint32_t i);
uint32_t op_bias_of(const struct op_descriptor *op, const struct mk_problem *problem);
uint32_t op_place_of(const struct op_descriptor *op, const struct mk_problem *problem,
                     enum op_type type); /* the first of it; how many there are, if none is */

/* A number at its offset in the problem, and what a formula of the descriptor amounts to. */
uint64_t op_number_at(const struct mk_problem *problem, size_t offset);
uint64_t op_formula_value(const struct op_descriptor *op, const struct mk_problem *problem,
                          const char *formula);

/* ---- launches ---- */

/* What the public function of an operator does: checks that `plan` is the operator's and its
 * arguments are memory, then launches. As mk_launch; core/comm/comm_launch.c. */
int op_launch(struct mk_plan *plan, enum mk_op op, void *const arguments[MK_SPACES - 1],
              void *stream);

/* A const pointer among the arguments of a launch. */
#define OP_ARGUMENT(pointer) ((void *)(uintptr_t)(pointer))

/* ---- what plans share ---- */

/* Writes the sentence of a refusal. Returns -EINVAL. */
#define plan_refuse(error, size, ...) mk_fail(-EINVAL, error, size, __VA_ARGS__)

/* Far above any real plan: sizes that are made of these do not overflow. */
#define PLAN_MOST_CTAS 65535u /* of a role */
#define PLAN_MOST_TILE (1u << 24)
#define PLAN_MOST_SLICES 16u /* of a chunk, or of K */
#define PLAN_MOST_PIECES 64u /* of a chunk or slice */
#define PLAN_MOST_PACE 100000u

/* Rates that defaults on a GPU weigh, bytes a ns, of H200s (docs/FIGURES.md): what an operator's products are compared
 * with; what pushing warps together are held to. A machine's own (core/model/machine.h) are for the quick model. */
#define PLAN_NETWORK_RATE 50.0 /* a NIC of 400 Gb/s */
#define PLAN_STAGE_RATE 40.0   /* a CTA of inter_send stages */
#define PLAN_NVLINK_RATE 315.0 /* what chunks reach beside products */
#define PLAN_PUSH_RATE 338.0   /* chunks, just below what NVLink takes */
#define PLAN_PUSH_MOST 375.0   /* ... where pushing is the longer part */
#define PLAN_PUSH_LEAST 290.0  /* ... where loads of long products suffer from more */
#define PLAN_SUMS_RATE 355.0   /* tiles of partial sums */
/* ... of three bytes, for whose flags and rests warps stand still more often. gemm_rs 8192,8192,1024, deterministic, on two
 * H200s: 0.360 ms, and 0.409 at PLAN_SUMS_RATE, 0.375 at 450, 0.391 at 560. */
#define PLAN_SUMS_RATE_OF_RESTS 398.0

/* Whether each number of the problem is what its dimension says. 0, or -EINVAL with the nearest
 * that is. */
int plan_check_shape(const struct mk_problem *q, char *error, size_t size);

/* SMs that the plan may take: all of the device, or as many as the user lets it have. */
static inline uint32_t plan_sms(const struct mk_problem *q)
{
    return q->sms_most && q->sms_most < q->sms ? q->sms_most : q->sms;
}

/* Whether the operator multiplies what the problem's dtype says, in this shape and layout. 0, or
 * -EINVAL. */
int plan_check_dtype(const struct mk_problem *q, char *error, size_t size);

/* Whether the operator has the problem's epilogue. 0, or -EINVAL with a sentence. */
int plan_check_epilogue(const struct mk_problem *q, char *error, size_t size);

/* Whether the operator adds the way that the problem says. 0, or -EINVAL with a sentence. */
int plan_check_sums(const struct mk_problem *q, char *error, size_t size);

/* Whether what the operator brings back may be e4m3, where the problem says so. 0, or -EINVAL. */
int plan_check_back(const struct mk_problem *q, char *error, size_t size);

/* The engine of a plan for a GPU, where it is left open, and whether the operator has it. 0, or
 * -EINVAL. */
int plan_choose_engine(struct mk_problem *q, char *error, size_t size);

/* Why two CTAs cannot split a tile's K, behind "two CTAs that split K"; NULL: they can. */
const char *plan_no_split_k(const struct mk_problem *q);

/* Whether it is FP8 of an A that is gathered, and a rank's scales of its rows are no whole 16
 * bytes: then there is no one shot. */
int plan_ragged_scales(const struct mk_problem *q);

/* Roles as the descriptor says; tiles, chunks, clusters and numbers of CTAs that any executor
 * can run. 0, or -EINVAL. */
int plan_check_tuning(const struct mk_problem *q, char *error, size_t size);

/* Whether flags, heap and the largest put fit what a command can name; sets p->flags and
 * p->heap_bytes. */
int plan_take(struct mk_plan *p, uint64_t tiles, uint64_t flags, uint64_t heap_bytes,
              uint64_t put_bytes, char *error, size_t size);

/* Lays out the operator's tables from p->heap_base and p->flag_base on: offsets, first flags,
 * sizes. Refuses as plan_take. */
int plan_lay_out(const struct op_descriptor *op, struct mk_plan *p, uint64_t tiles,
                 uint64_t put_bytes, char *error, size_t size);

/* How a compute CTA of the plan works. */
void plan_pipeline(const struct mk_plan *p, struct mk_pipeline *out);

/* The tables of a plan, and how many flags an array has; UINT64_MAX: more than can be counted. */
void plan_tables(const struct mk_plan *p, struct op_tables *t);
uint64_t plan_flag_count(const struct op_flags *f);

/* What a flag is, the index-th of such an array. */
void plan_describe_flag_of(const struct mk_topo *topo, const struct op_flags *f, uint32_t index,
                           struct mk_flag_meaning *out);

/* A digest of all that ranks must have alike of one plan, since they write to each other's heaps by
 * it: options, flags, heap, ids. Two ranks with the same problem have the same. */
uint64_t plan_layout(const struct mk_plan *p);
