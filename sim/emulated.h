/* Operators' kernels that are compiled for the emulated GPU (sim/hopper), by operator. */
#pragma once

#include "core/mkernel.h"
#include "kernels/engine/launch.h"
#include "core/plan/plan.h"

/* SMs of a GPU that runs whole jobs: enough for the plans that formulas make, few enough for two
 * mappings of memory for each thread of each block. */
#define EMULATED_SMS 20u
#define EMULATED_BLOCK_SHARED (227u * 1024) /* bytes of shared memory that a block may have there */

struct emulated_op {
    int (*prepare)(const struct mk_plan *plan, char *error, size_t size);
    /* on the machine that is current (sim/hopper/hopper.h) */
    int (*launch)(const struct mk_plan *plan, const struct gpu_launch *launch, void *stream);
};

/* NULL: it has no kernel, or this build has none (emulated_built is 0). */
extern const int emulated_built;
const struct emulated_op *emulated_op_of(enum mk_op op);

/* Fills what is the same for all launches of a job: the split, where the heap and those of the
 * node's ranks lie, and the rings. */
struct mk_ring;
void emulated_launch_begin(struct gpu_launch *l, const struct mk_plan *plan, void *heap,
                           void *const *peers, struct mk_ring *const *rings, uint32_t ring_count,
                           void *const *arguments);
