/* What an op gives to the host executors, in sim/ops/<name>.c: its roles and its tile source, compiled for the host, and where a
 * tile's operands lie. */
#ifndef SIM_OP_H
#define SIM_OP_H

#include "core/ops/op.h"

struct sim_cta;

/* What is added to a tile's products, in fp32: `count` runs [rows, cols], `pitch` bytes apart in this rank's heap. They come in
 * order; the products behind `place` of them. */
struct sim_terms {
    uint64_t source, pitch;
    uint32_t count, place;
    enum mk_number number;
};
#define SIM_LEVELS 2

/* C[rows, cols] = A[rows, k] * B[k, cols]; with a gate, silu(A * B) * (A * B at `gate`). Pitches in elements. */
struct sim_operands {
    enum mk_space a_space, c_space, b_space;
    uint64_t a, b, c; /* byte offset of the first element in its space */
    uint32_t a_pitch, b_pitch, c_pitch;
    uint32_t rows, cols, k;
    int b_transposed; /* B is [cols, k] */
    uint64_t gate;    /* bytes from B to what the gated columns are multiplied by; 0: no gate */
    uint32_t c_local; /* where c_space is the heap: whose */
    enum mk_number c_number;
    struct sim_terms added[SIM_LEVELS]; /* one level after the other */
};

/* What an op's judge keeps between calls. Freed with free(). */
struct sim_reference {
    uint64_t launch; /* whose reference `memory` holds; 0: none */
    void *memory;
};

struct sim_op {
    int (*roles[MK_ROLES])(const struct mk_plan *plan, struct mk_cta *cta); /* NULL: computes tiles */
    int (*open)(const struct mk_plan *plan,
                struct mk_cta *cta); /* before a compute CTA's first tile; NULL: nothing */
    void (*tile)(const struct mk_plan *plan, struct mk_cta *cta, uint32_t t, struct mk_tile *tile);
    int (*before)(const struct mk_plan *plan, struct mk_cta *cta, const struct mk_tile *tile);
    void (*after)(const struct mk_plan *plan, struct mk_cta *cta,
                  const struct mk_tile *tile); /* NULL: nothing */
    void (*operands)(const struct mk_plan *plan, const struct mk_tile *tile, uint64_t epoch,
                     struct sim_operands *out);
    /* A tile's math where it is no GEMM (then `operands` is NULL): loads, math and stores, all at once but
     * for a call of `between` (NULL: none) while inputs are being read. */
    void (*math)(struct sim_cta *cta, const struct mk_tile *tile, void (*between)(void));
    enum mk_space second; /* where a second B lies, beside that in argument 1; MK_SPACE_HEAP: there is none */

    /* The explorer's inputs and verdict with the op's own math; NULL: the probe's (sim/probe.h) */
    void (*fill)(const struct mk_plan *plan, uint64_t seed, uint64_t launch,
                 void *const arguments[MK_SPACES - 1]);
    int (*judge)(const struct mk_plan *plan, uint64_t seed, uint64_t launch,
                 void *const arguments[MK_SPACES - 1], struct sim_reference *reference, char *text,
                 size_t size);
};

#define MK_OPERATOR(name, NAME, where) extern const struct sim_op sim_op_##name;
MK_OPERATORS(MK_OPERATOR)
#undef MK_OPERATOR

/* NULL: there is no such operator. */
const struct sim_op *sim_op_of(enum mk_op op);

#endif
