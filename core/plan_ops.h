/* Inside core: what an op gives to the plan. */
#ifndef MK_PLAN_OPS_H
#define MK_PLAN_OPS_H

#include "core/plan.h"

struct plan_op {
    int (*build)(struct mk_plan *p, char *error, size_t error_size);
    void (*describe_flag)(const struct mk_plan *p, uint32_t flag, struct mk_flag_meaning *out);
    void (*describe_tile)(const struct mk_plan *p, uint32_t id, struct mk_tile *out);
    void (*describe_chunk)(const struct mk_plan *p, uint32_t id, uint32_t *rank, uint32_t *number, uint64_t *bytes);
    void (*work)(const struct mk_plan *p, double *flop, uint64_t *nvlink_bytes, uint64_t *network_bytes);
};

extern const struct plan_op plan_op_ag_gemm;

#endif
