/* Tile math on the host by OpenBLAS: bf16 or fp16 operands widened to float32, sgemm, a gate where
 * the op has one, rounded to what they are (to nearest, ties to even). */
#pragma once

#include "sim/cta.h"

struct compute;

/* For launches of `plan`: memory for its B in float32 and for one tile; nothing is allocated later.
 * 0, -ENOMEM, or -ENOTSUP where the op has no host form. Sets OpenBLAS to one thread, for the whole
 * process. */
int compute_create(struct compute **out, const struct mk_plan *plan);
void compute_destroy(struct compute *m);

/* Widens B ([K, N], or [N, K] where transposed) of a GEMM, once per launch; both, where the op has
 * two. *beats grows meanwhile; NULL: nothing is counted. */
void compute_load_b(struct compute *m, void *const arguments[MK_SPACES - 1], uint64_t *beats);

/* One tile, at once: reads A where the tile's operands say, stores C. */
void compute_tile(struct compute *m, struct sim_cta *cta, const struct mk_tile *tile);

/* The parts of compute_tile, for an executor that does something between them. rows [first, first +
 * count) of the tile's A are widened into `a` (count x k floats at row `first`); then the product
 * of all of it, and what is added to it, goes to C. */
uint64_t compute_scratch_floats(const struct compute *m);
void compute_load_a(const struct sim_rank *rank, const struct mk_tile *tile, uint32_t first,
                    uint32_t count, float *a);
void compute_store_c(struct compute *m, struct sim_cta *cta, const struct mk_tile *tile,
                     const float *a);
