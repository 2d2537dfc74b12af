/* The walks of model_plan through the operators' schedules. */
#pragma once

#include "core/model/machine.h"
#include "core/plan/plan.h"
#include "core/roles/ag_gemm_plan.h"
#include "core/roles/gemm_ar_plan.h"
#include "core/roles/gemm_rs_plan.h"

struct model_walk {
    /* given */
    const struct mk_machine *machine;
    double slower; /* of the clock */
    double guess;  /* ns that the walk before took; 0: none was */
    /* found; ns from the launch's begin */
    double end, compute, moved, network;
    double flop, l2_bytes; /* that the launch takes power for; bytes of HBM by what they draw */
};

/* ---- what they share ---- */

static inline double model_later(double a, double b)
{
    return a > b ? a : b;
}

#define MODEL_SAMPLES                                                                              \
    256u /* waves, or turns of a role, that are looked at one by one; more go in groups */
#define MODEL_MEMBERS 4u /* of a role's CTAs that stand for all */

/* A wave of tiles at the machine's clock. */
struct model_engine {
    uint32_t engines; /* CTAs or clusters that take tiles */
    uint64_t stages;
    double begin, stage, end;
    double busy; /* factor of a stage while others push harder than NVLink takes */
};
/* beside: warps beside an engine that work, on average. */
struct model_engine model_engine_of(const struct model_walk *w, const struct mk_problem *q,
                                    double beside);

/* Bytes that all SMs together load from HBM in a stage: A and B once; or, where that is more, a
 * wave of tiles its columns of B for each chunk of rows, as far as B does not fit into L2. */
double model_fetched(const struct mk_machine *m, const struct mk_problem *q);
/* ... of a MoE: B of the experts that tokens choose, and all tokens' rows, once. */
double model_fetched_groups(const struct mk_problem *q);

/* Tiles of rows of an expert that about `mean` rows go to, on the average: they come from many
 * tokens one by one. */
double model_row_tiles(double mean, double tile);

/* What tiles draw power for: products, and loads of A and B through L2. */
void model_draw(struct model_walk *w, const struct mk_problem *q, double tiles);

/* Average of warps beside the engine that work: `ns` of work, of all of them, in a launch that took
 * guess. */
double model_beside(const struct model_walk *w, double ns, uint32_t ctas);

/* When work of `ns` is done that begins at `at`: slower while the engine beside it multiplies,
 * which it does until w->compute. */
double model_spend(const struct model_walk *w, double at, double ns, int coresident);

/* ---- the walks ---- */

void model_ag_gemm(struct model_walk *w, const struct mk_problem *q, const struct ag_gemm_plan *p);
/* gathers: gemm_ar. */
void model_gemm_rs(struct model_walk *w, const struct mk_problem *q, const struct gemm_rs_plan *p,
                   int gathers);
struct moe_dispatch_gemm_plan;
void model_moe_dispatch_gemm(struct model_walk *w, const struct mk_problem *q,
                             const struct moe_dispatch_gemm_plan *p);
struct moe_ffn_plan;
void model_moe_ffn(struct model_walk *w, const struct mk_problem *q, const struct moe_ffn_plan *p);
