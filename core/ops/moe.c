/* What MoE operators are asked, T,H,I,E,K and a capacity, and the work that follows from it. */
#include "core/ops/moe.h"
#include "core/plan/pipeline.h"
#include "core/roles/moe_ffn_plan.h"

#include <math.h>
#include <string.h>

#define AT(field) offsetof(struct mk_problem, moe.field)
const struct op_shape op_shape_moe = {
    .option = "moe",
    .letters = "T,H,I,E,K",
    .heading = "T,H,I,experts,k",
    .about =
        "tokens per rank, elements per token, columns of an expert's B (moe_ffn: of its gate), "
        "experts of all ranks together, experts that each token names",
    .defaults = "on the host 128,256,128,4 experts per rank,2; on GPUs 4096,7168,2048,256,8",
    .explored = "16,64,40,2 experts per rank,2, and the seed varies tokens and experts",
    .dimensions =
        {{"T", "tokens", AT(tokens), 1 << 24,
          .why = "a rank that has none leaves its places out, by ids that are no expert's"},
         {"H", "hidden", AT(hidden), 1 << 20, .bytes = 16, .why = "rows must be 16-byte multiples"},
         {"I", "inner", AT(inner), 1 << 24, .multiple = 8, .why = "rows must be 16-byte multiples"},
         {"E", "experts", AT(experts), 1 << 20, .divides = "W"},
         {"K", "experts of a token", AT(k), 32, .divides = NULL}},
};

void op_choose_moe(enum op_size size, uint64_t world, uint64_t *numbers)
{
    static const uint64_t sizes[][5] = {[OP_SIZE_HOST] = {128, 256, 128, 4, 2},
                                        [OP_SIZE_GPU] = {4096, 7168, 2048, 256, 8},
                                        [OP_SIZE_EXPLORE] = {16, 64, 40, 2, 2}};
    memcpy(numbers, sizes[size], sizeof sizes[size]);
    numbers[3] = size == OP_SIZE_GPU ? mk_round_up(numbers[3], world) : numbers[3] * world;
}

/* Of those that move tokens and multiply nothing. */
const struct op_shape op_shape_moe_rows = {
    .option = "moe",
    .letters = "T,H,E,K",
    .heading = "T,H,experts,k",
    .about = "moe_dispatch, moe_combine: tokens per rank, elements per token, experts of all ranks "
             "together, experts that each token names",
    .defaults = "on the host 128,256,4 experts per rank,2; on GPUs 4096,7168,256,8",
    .explored = "16,64,2 experts per rank,2, and the seed varies tokens and experts",
    .dimensions = {{"T", "tokens", AT(tokens), 1 << 24,
                    .why =
                        "a rank that has none leaves its places out, by ids that are no expert's"},
                   {"H", "hidden", AT(hidden), 1 << 20, .bytes = 16,
                    .why = "rows must be 16-byte multiples"},
                   {"E", "experts", AT(experts), 1 << 20, .divides = "W"},
                   {"K", "experts of a token", AT(k), 32, .divides = NULL}},
};

void op_choose_moe_rows(enum op_size size, uint64_t world, uint64_t *numbers)
{
    uint64_t all[5];
    op_choose_moe(size, world, all);
    numbers[0] = all[0];
    numbers[1] = all[1];
    numbers[2] = all[3];
    numbers[3] = all[4];
}

uint64_t plan_moe_named(const struct mk_problem *q)
{
    return q->own[MOE_LOGICAL] ? q->own[MOE_LOGICAL] : q->moe.experts;
}

uint64_t plan_moe_map(const struct mk_plan *p)
{
    return moe_dispatch_plan_of(p)->route.map; /* with which all plans of MoE begin */
}

void plan_moe_sums_work(const struct moe_ffn_plan *m, uint64_t *nvlink_bytes,
                        uint64_t *network_bytes)
{
    const struct moe_dispatch_plan *d = &m->dispatch;
    uint64_t others = d->topo.nodes - 1;
    *network_bytes += (others < d->k ? others : d->k) * d->tokens * m->carried_bytes;
    *nvlink_bytes += moe_crossings(d) * m->carried_bytes;
}

uint64_t plan_moe_put_bytes(const struct moe_dispatch_plan *m)
{
    uint64_t chunk = m->chunk_rows * m->row_bytes;
    return chunk > m->route.rail_pitch ? chunk : m->route.rail_pitch;
}

void plan_moe_dispatch_work(const struct moe_dispatch_plan *m, uint64_t *nvlink_bytes,
                            uint64_t *network_bytes)
{
    uint64_t others = m->topo.nodes - 1, crossings = m->tokens * (others < m->k ? others : m->k),
             each = m->row_bytes + m->record_bytes;
    *network_bytes = others * m->route.rail_head + crossings * each;
    *nvlink_bytes = (m->topo.gpus - 1) * m->said_bytes + moe_crossings(m) * each;
}

double plan_moe_touched(const struct mk_problem *q, double own)
{
    const double tokens = (double)q->moe.tokens * mk_world(&q->topo);
    return own * (1 - pow(1 - (double)q->moe.k / (double)q->moe.experts, tokens));
}

void plan_moe_pipeline(const struct mk_plan *p, struct mk_pipeline *out)
{
    out->tickets = p->problem.exec == MK_EXEC_CUDA;
}
