/* What an op gives to the host executors, in sim/ops/<name>.c: its roles and its tile source,
 * compiled for the host, and where a tile's operands lie. */
#pragma once

#include "core/ops/op.h"
#include "core/roles/roles.h"
#include "core/cta/sum_tree.h"

struct sim_cta;

/* What is added to a tile's products, in fp32: `count` runs [rows, cols], `pitch` bytes apart in
 * this rank's heap. They come in order; the products behind `place` of them. */
struct sim_terms {
    uint64_t source, pitch;
    uint32_t count, place;
    enum mk_dtype number;
    int tree; /* in fp32: leaves of a tree (core/cta/sum_tree.h), the products at `place` */
};
#define SIM_LEVELS 2

/* C[rows, cols] = A[rows, k] * B[k, cols], and its epilogue; with a gate, that * (A * B at `gate`).
 * Pitches in elements. */
struct sim_operands {
    enum mk_space a_space, c_space, b_space;
    uint64_t a, b, c; /* byte offset of the first element in its space */
    /* Where the rows of A lie apart: a uint32_t of the heap for each says which row it is, up to
     * a_first one of a_space, from there on one of the heap from a_rest on. 0: they do not */
    uint64_t a_list, a_rest;
    uint32_t a_first;
    uint32_t a_pitch, b_pitch, c_pitch;
    uint32_t rows, cols, k;
    /* of sums in a tree: blocks of K, the leaves, and where in K each ends; 0: there is none */
    uint32_t blocks, block_end[MK_SUM_BLOCKS];
    int b_transposed; /* B is [cols, k] */
    /* A and B are e4m3: the scale of A's first row, where those of the next 128 of K lie
     * scales_pitch floats on. B's are the last argument of scales. Where rows
     * lie apart they are records: a_pitch bytes, with their own scales from `scales` on */
    int fp8;
    enum mk_space scales_space;
    uint64_t scales;
    uint32_t scales_pitch;
    uint32_t epilogue;        /* bits of enum mk_epilogue; and with a bias the byte offset of */
    enum mk_space bias_space; /* the first column's */
    uint64_t bias;
    uint64_t
        bias_gate;    /* bytes from there to the bias of what the gated columns are multiplied by */
    uint64_t gate;    /* bytes from B to what the gated columns are multiplied by; 0: no gate */
    uint32_t c_local; /* where c_space is the heap: its local rank */
    /* MK_E4M3: C is quantised, 128 columns of a row by a scale, from the tile's first column on; of
     * 128 columns the rows' scales follow each other, those of the next lie code_pitch floats on */
    enum mk_dtype c_number;
    uint64_t code_scales;
    uint32_t code_pitch;
    struct sim_terms added[SIM_LEVELS]; /* one level after the other */
};

/* What an op's verification keeps between calls. Freed with free(). */
struct sim_reference {
    uint64_t launch; /* the launch that `memory` has the reference of; 0: none */
    void *memory;
};

/* A rank's launch, whose inputs the explorer makes and whose outputs it checks. */
struct sim_launch {
    const struct mk_plan *plan;
    uint64_t seed, launch;
    void *const *arguments; /* [MK_SPACES - 1] */
    /* where its outputs are checked */
    struct sim_reference *reference;
    char *text; /* says what is wrong */
    size_t size;
};

/* Says "launch L, rank R: " and what `format` says. Returns 1. */
int sim_wrong(const struct sim_launch *l, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* ... that there is no memory to check it. */
int sim_no_memory(const struct sim_launch *l);

struct sim_op {
    /* any role but compute: SIM_OP makes it */
    int (*run)(const struct mk_plan *plan, struct mk_cta *cta);
    int (*open)(const struct mk_plan *plan,
                struct mk_cta *cta); /* before a compute CTA's first tile; NULL: nothing */
    /* tile number `t`; 0: the plan leaves this turn out, else 1 (the tile may have no rows) */
    int (*tile)(const struct mk_plan *plan, struct mk_cta *cta, uint32_t t, struct mk_tile *tile);
    /* waits for a slice of a tile's operands, or for what is added to it (core/plan/pipeline.h) */
    int (*before)(const struct mk_plan *plan, struct mk_cta *cta, const struct mk_tile *tile,
                  uint32_t slice);
    /* Rows [first, first + rows) of a tile are stored, or under way: `parts` of MK_TILE_PARTS of
     * it. Says so to whoever waits for them, and moves what is not moved yet. NULL: nothing */
    int (*publish)(const struct mk_plan *plan, struct mk_cta *cta, const struct mk_tile *tile,
                   uint32_t first, uint32_t rows, uint32_t parts);
    /* Behind a compute CTA's last tile. 1: the launch is ending. NULL: nothing */
    int (*close)(const struct mk_plan *plan, struct mk_cta *cta);
    void (*operands)(const struct mk_plan *plan, const struct mk_tile *tile, uint64_t epoch,
                     struct sim_operands *out);
    /* A tile's math where it is no GEMM (then `operands` is NULL): loads, math and stores, all at
     * once but for a call of `between` (NULL: none) while inputs are being read. */
    void (*math)(struct sim_cta *cta, const struct mk_tile *tile, void (*between)(void));
    /* where a second B lies, besides that in argument 1; MK_SPACE_HEAP: there is none */
    enum mk_space second;
    /* FP8: K of a B, and its columns up to where another's scales begin; NULL: the problem's.
     * which: 1 of the second B */
    void (*factor)(const struct mk_problem *problem, uint32_t which, uint64_t *k, uint64_t *n);

    /* ---- what the events engine (sim/timed/timed.h) asks beside the plan's pipeline ---- */

    /* Tiles are handed out as thread blocks get to them, and blocks of other roles come when they
     * are through: step `step` of number `i`. 0: number i has no more steps, or there is none.
     * NULL: compute CTAs take theirs in turn */
    int (*handed)(const struct mk_plan *plan, uint32_t i, uint32_t step, struct mk_tile *tile);
    /* On a GPU, where tiles are handed out: what blocks do when no tile is left, unit by unit from
     * one counter; the tile behind which a block of inter_reduce takes no other, and what it does
     * then before it takes units, where there are several nodes. NULL: nothing */
    uint32_t (*units)(const struct mk_plan *plan);
    int (*unit)(const struct mk_plan *plan, struct mk_cta *cta, uint32_t unit);
    uint32_t (*leaves)(const struct mk_plan *plan, struct mk_cta *cta);
    int (*away)(const struct mk_plan *plan, struct mk_cta *cta);
    /* Where `operands` is NULL: what a GPU multiplies for a tile, masked parts of blocks included,
     * and the size of its heads */
    double (*flop)(const struct mk_plan *plan, const struct mk_tile *tile, uint32_t *head_dim);
    int routes; /* tokens, by tables that a launch makes of ids */

    /* A launch may end with puts in flight: their receivers wait for them (docs/MODEL.md), as of
     * every operator in two halves. Else the explorer reports them. */
    int leaves_puts;

    /* What the explorer's user says before the first launch, in this rank's heap; NULL: nothing. 0
     * or -ENOMEM */
    int (*start)(const struct mk_plan *plan, uint64_t seed, uint8_t *heap);
    /* The explorer's inputs, and what they make of them: 1, with a sentence: it is wrong */
    void (*fill)(const struct sim_launch *l);
    int (*verify)(const struct sim_launch *l);
};

/* An operator's struct sim_op: its roles (MK_ROLES_OF), and what else it says, a field each. */
#define SIM_OP(name, ...)                                                                          \
    static int name##_role(const struct mk_plan *plan, struct mk_cta *cta)                         \
    {                                                                                              \
        return name##_run(name##_plan_of(plan), cta);                                              \
    }                                                                                              \
    const struct sim_op sim_op_##name = {.run = name##_role, __VA_ARGS__}

/* The same of one whose launches may have two halves. */
#define SIM_OP_OF_HALVES(name, ...)                                                                \
    static int name##_role(const struct mk_plan *plan, struct mk_cta *cta)                         \
    {                                                                                              \
        const struct name##_halves_plan *h = name##_halves_plan_of(plan);                          \
        return !h->halves.is                  ? name##_run(name##_plan_of(plan), cta)              \
               : cta->role == MK_INTER_REDUCE ? name##_end(h, cta)                                 \
                                              : name##_begin(h, cta);                              \
    }                                                                                              \
    const struct sim_op sim_op_##name = {.run = name##_role, __VA_ARGS__}

/* A schedule's tile source: the calls that are behind struct sim_op's fields of these names, with
 * the names of the arguments there, and `p`, the operator's plan. 0: it has none. */
#define SIM_TILES_OF(name, on_open, on_tile, on_before, on_publish, on_close)                      \
    SIM_CALL(name, open, (const struct mk_plan *plan, struct mk_cta *cta), on_open)                \
    SIM_CALL(name, tile,                                                                           \
             (const struct mk_plan *plan, struct mk_cta *cta, uint32_t t, struct mk_tile *tile),   \
             on_tile)                                                                              \
    SIM_CALL(name, before,                                                                         \
             (const struct mk_plan *plan, struct mk_cta *cta, const struct mk_tile *tile,          \
              uint32_t slice),                                                                     \
             on_before)                                                                            \
    SIM_CALL(name, publish,                                                                        \
             (const struct mk_plan *plan, struct mk_cta *cta, const struct mk_tile *tile,          \
              uint32_t first, uint32_t rows, uint32_t parts),                                      \
             on_publish)                                                                           \
    SIM_CALL(name, close, (const struct mk_plan *plan, struct mk_cta *cta), on_close)              \
    struct sim_op /* so that a semicolon follows */
#define SIM_CALL(name, call, arguments, on_call)                                                   \
    static int sim_##name##_##call arguments                                                       \
    {                                                                                              \
        const struct name##_plan *p = name##_plan_of(plan);                                        \
        (void)p;                                                                                   \
        return (on_call);                                                                          \
    }

/* ... those fields. */
#define SIM_TILES(name)                                                                            \
    .open = sim_##name##_open, .tile = sim_##name##_tile, .before = sim_##name##_before,           \
    .publish = sim_##name##_publish, .close = sim_##name##_close

#define MK_OPERATOR(name, NAME, where) extern const struct sim_op sim_op_##name;
MK_OPERATORS(MK_OPERATOR)
#undef MK_OPERATOR

/* NULL: there is no such operator. */
const struct sim_op *sim_op_of(enum mk_op op);
