/* What an op gives to the host executors: its roles and its tile source, compiled for the host, and where a
 * tile's operands lie. */
#ifndef SIM_OP_H
#define SIM_OP_H

#include "core/plan.h"

/* C[rows, cols] = A[rows, k] * B[k, cols]; pitches in elements. */
struct sim_operands {
    enum mk_space a_space, c_space, b_space;
    uint64_t a, b, c; /* byte offset of the first element in its space */
    uint32_t a_pitch, b_pitch, c_pitch;
    uint32_t rows, cols, k;
    int b_transposed; /* B is [cols, k] */
};

struct sim_op {
    int (*roles[MK_ROLES])(const struct mk_plan *plan, struct mk_cta *cta); /* NULL: computes tiles */
    void (*tile)(const struct mk_plan *plan, uint32_t t, struct mk_tile *tile);
    int (*before)(const struct mk_plan *plan, struct mk_cta *cta, const struct mk_tile *tile);
    void (*computed)(const struct mk_plan *plan, struct mk_cta *cta);
    void (*operands)(const struct mk_plan *plan, const struct mk_tile *tile, uint64_t epoch,
                     struct sim_operands *out);
    /* Elements of the operands of one launch: A and C of this rank, and its B. */
    void (*extents)(const struct mk_plan *plan, uint64_t *a, uint64_t *b, uint64_t *c);
};

extern const struct sim_op sim_op_ag_gemm;

/* NULL where the op has no host form. */
const struct sim_op *sim_op_of(enum mk_op op);

#endif
