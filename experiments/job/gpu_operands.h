/* One shape of an operator that is no GEMM on this rank's GPU: operands that rotate through more
 * memory than L2 holds, made and checked as `run` does, and plans on them as CUDA graphs. What
 * gpu_shape.h is to GEMMs; `bench` and `tune` measure with it.
 *
 * Functions return 0 or -errno, with a sentence in the bench's error. One thread. */
#pragma once

#include "experiments/job/gpu_shape.h"

struct gpu_operands {
    struct gpu_bench *bench;
    struct run_job job;   /* of this shape; its burst: how many sets of operands */
    struct run_data data; /* a slot for each set */
    double bound;         /* of the relative error, as the last check says */
};

/* Operands of `plan`, not yet filled; other plans of its shape take them, too, if their arguments
 * are no larger. gpu_operands_close in either case. */
int gpu_operands_open(struct gpu_operands *o, struct gpu_bench *b, const struct mk_plan *plan);
void gpu_operands_close(struct gpu_operands *o);

/* Fills a set with the inputs of launch number `launch`, and poison. */
int gpu_operands_fill(struct gpu_operands *o, uint32_t set, uint64_t launch);

/* g->plan as graphs. gpu_graphs_close in either case. */
int gpu_operands_capture(struct gpu_operands *o, struct gpu_graphs *g);
int gpu_operands_launch(const struct gpu_operands *o, const struct gpu_graphs *g, uint32_t number);

/* One launch of g->plan on a set that has the inputs of launch number `launch`, into poison; adds
 * to *sum. Collective. */
int gpu_operands_check(struct gpu_operands *o, const struct gpu_graphs *g, uint32_t set,
                       uint64_t launch, struct gpu_check *sum);
