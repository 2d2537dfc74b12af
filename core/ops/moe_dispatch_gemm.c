/* MoE dispatch+GEMM: the tokens of each of this rank's experts, times its B. What it is, which
 * shapes it takes, and where everything lies. */
#include "core/plan/gemm_tiles_fp8.h"
#include "core/mkernel.h"
#include "core/model/gemm.h"
#include "core/ops/moe.h"
#include "core/plan/pipeline.h"
#include "core/roles/moe_dispatch_gemm_plan.h"

static int moe_dispatch_gemm_built(const struct mk_problem *q, uint32_t i, struct mk_gemm_tile *out)
{
    if (q->engine == MK_ENGINE_MMA)
        return q->fp8 ? mk_mma_fp8_tile(i, out) : mk_mma_tile(i, out);
    return q->fp8 ? mk_fp8_grouped_tile(i, out) : mk_grouped_tile(i, out);
}

/* Of bf16 on wgmma: rows of an expert, at most, where tiles of 128 columns may be better than of
 * 256; and from how many tiles of 256 on, in waves of compute CTAs, to how many. Two H200s
 * (docs/FIGURES.md): where a second wave is nearly empty (16 to 128 tokens, 7168,2048,32,8: 1.07
 * waves) 1.25 to 1.32 times as fast, at 1.4 to 1.6 waves 1.02 to 1.05, at 1.9 .92. */
#define MOE_NARROW_ROWS 96
#define MOE_NARROW_FROM 0.9
#define MOE_NARROW_TO 1.67

static int moe_dispatch_gemm_narrow(const struct mk_problem *q, uint64_t rows)
{
    const double waves = plan_moe_touched(q, (double)q->moe.experts / mk_world(&q->topo)) *
                         (double)mk_ceil_div(q->moe.inner, 256) / (q->sms - q->sms / 11.0);
    return q->exec == MK_EXEC_CUDA && q->engine != MK_ENGINE_MMA && rows <= MOE_NARROW_ROWS &&
           waves > MOE_NARROW_FROM && waves <= MOE_NARROW_TO;
}

/* Of the tiles that are built, the narrowest that has all columns; else the widest. Of FP8 no more
 * than 128 columns where an expert's rows fill no tile: reading B then takes the time, and more
 * tiles share it more evenly (two H200s, 16 to 128 tokens: 18 to 21 % less time;
 * docs/FIGURES.md). */
static uint32_t moe_dispatch_gemm_columns(const struct mk_problem *q)
{
    const uint64_t rows = q->moe.tokens * mk_world(&q->topo) * q->moe.k / q->moe.experts;
    const uint32_t most =
        (q->fp8 ? rows <= 128 : moe_dispatch_gemm_narrow(q, rows)) ? 128 : UINT32_MAX;
    struct mk_gemm_tile tile;
    uint32_t columns = 0;
    for (uint32_t i = 0; moe_dispatch_gemm_built(q, i, &tile); i++)
        if (tile.tile_n <= most && (!columns || tile.tile_n >= q->moe.inner))
            columns = tile.tile_n;
    return columns;
}

static int moe_dispatch_gemm_build(const struct op_descriptor *op, struct mk_plan *p, char *error,
                                   size_t size)
{
    struct mk_problem *q = &p->problem;
    struct moe_dispatch_gemm_plan *m = moe_dispatch_gemm_plan_in(p);
    if (q->engine == MK_ENGINE_MMA)
        plan_choose_moe_mma_tile(q, q->moe.inner, q->fp8 ? 64 : 0);
    plan_choose_moe(q, moe_dispatch_gemm_columns(q), 0);
    int result = plan_check_moe_tuning(q, error, size);
    if (!result && q->exec == MK_EXEC_CUDA)
        result = plan_check_moe_gpu(op, q, error, size);
    if (result)
        return result;
    struct moe_dispatch_plan *d = &m->dispatch;
    result = plan_size_moe(op, d, p, MK_SPACE_ARG2, MK_SPACE_HEAP, error, size);
    if (result)
        return result;
    m->split = q->tuning.split;
    m->hidden = (uint32_t)q->moe.hidden;
    m->inner = (uint32_t)q->moe.inner;
    m->tile_n = q->tuning.tile_n;
    m->cluster = q->tuning.cluster;
    m->col_tiles = (uint32_t)mk_ceil_div(m->inner, m->tile_n);
    d->route.summary_space = MK_SPACE_ARG4;
    d->route.columns = m->col_tiles;
    d->route.tile_columns = m->tile_n;
    d->route.apart = 1;
    q->m = (uint64_t)d->row_tiles * d->tile_m;
    q->n = m->inner;
    q->k = m->hidden;
    result = plan_lay_out(op, p, (uint64_t)d->row_tiles * m->col_tiles, plan_moe_put_bytes(d),
                          error, size);
    if (result)
        return result;
    m->tiles = p->tiles;
    p->chunks = mk_world(&q->topo) * m->dispatch.chunks;
    return 0;
}

static void moe_dispatch_gemm_tables(struct mk_plan *p, struct op_tables *t)
{
    struct moe_dispatch_plan *d = &moe_dispatch_gemm_plan_in(p)->dispatch;
    plan_moe_tables_first(d, &p->problem, t);
    plan_moe_tables(d, t);
}

/* Which rows a tile has is known in a launch alone: here as if every place of its rows were
 * taken. */
static void moe_dispatch_gemm_describe_tile(const struct mk_plan *p, uint32_t id,
                                            struct mk_tile *out)
{
    const struct moe_dispatch_gemm_plan *m = moe_dispatch_gemm_plan_of(p);
    const struct moe_dispatch_plan *d = &m->dispatch;
    out->a = MK_SPACE_HEAP;
    out->slab = d->topo.rank;
    out->row = id / m->col_tiles * d->tile_m;
    out->rows = d->tile_m;
    out->col = id % m->col_tiles * m->tile_n;
    out->cols = m->inner - out->col < m->tile_n ? m->inner - out->col : m->tile_n;
    out->c = MK_SPACE_ARG3;
}

static void moe_dispatch_gemm_describe_chunk(const struct mk_plan *p, uint32_t id, uint32_t *rank,
                                             uint32_t *number, uint64_t *bytes)
{
    const struct moe_dispatch_plan *m = &moe_dispatch_gemm_plan_of(p)->dispatch;
    *rank = id / m->chunks;
    *number = id % m->chunks;
    *bytes = m->chunk_rows * m->row_bytes;
}

/* Whatever is routed where, on the average of the ranks: products of all places; ids, and at most
 * every token to as many other nodes as it names experts and every place's row over NVLink. */
static void moe_dispatch_gemm_work(const struct mk_plan *p, double *flop, uint64_t *nvlink_bytes,
                                   uint64_t *network_bytes)
{
    const struct moe_dispatch_gemm_plan *m = moe_dispatch_gemm_plan_of(p);
    *flop = 2.0 * m->dispatch.tokens * m->dispatch.k * m->hidden * m->inner;
    plan_moe_dispatch_work(&m->dispatch, nvlink_bytes, network_bytes);
}

/* X and ids, the experts' B, and as many rows of C as tokens have places. */
static double moe_dispatch_gemm_memory(const struct mk_plan *p)
{
    const struct moe_dispatch_gemm_plan *m = moe_dispatch_gemm_plan_of(p);
    const struct moe_dispatch_plan *d = &m->dispatch;
    return d->tokens * ((double)d->row_bytes + d->k * (4 + 2.0 * m->inner)) +
           plan_moe_touched(&p->problem, d->rank_experts) * op_factor_bytes(&p->problem) *
               (double)m->hidden * m->inner;
}

static void moe_dispatch_gemm_model(struct model_walk *w, const struct mk_plan *p)
{
    model_moe_dispatch_gemm(w, &p->problem, moe_dispatch_gemm_plan_of(p));
}

int mk_moe_dispatch_gemm(struct mk_plan *plan, const void *x, const void *b, const uint32_t *ids,
                         void *c, uint32_t *rows, void *stream)
{
    void *const arguments[MK_SPACES - 1] = {OP_ARGUMENT(x), OP_ARGUMENT(b), OP_ARGUMENT(ids), c,
                                            rows};
    return op_launch(plan, MK_OP_MOE_DISPATCH_GEMM, arguments, stream);
}

const struct op_descriptor op_moe_dispatch_gemm = {
    .help = "sends tokens to their experts' ranks and multiplies them by the expert's B",
    .shape = &op_shape_moe,
    .limit = 1,
    .choose_shape = op_choose_moe,
    .arguments = {{"X", OP_TOKENS, "T,H"},
                  {"X", OP_RECORDS, "T,record"},
                  {"B", OP_FACTOR, "E/W,H,I"},
                  {"ids", OP_UINT32, "T,K"},
                  {"C", OP_BF16, "rows,I", .output = 1},
                  {"rows", OP_UINT32, "E/W,2", .output = 1},
                  {"B_scales", OP_SCALES, "E/W,I:128,H:128:4*4"},
                  {"count", OP_COUNT, "1"}},
    .needs =
        {
            [MK_COMPUTE] = OP_ALWAYS,
            [MK_INTRA_COMM] = OP_ALWAYS,
            [MK_INTER_SEND] = OP_IF_NODES,
        },
    .knobs = OP_MOE_KNOBS,
    .tuned = 1,
    .loose_chunks = 1,
    .b_layout = 1,
    .fp8 = 1,
    .build = moe_dispatch_gemm_build,
    .tables = moe_dispatch_gemm_tables,
    .pipeline = plan_moe_pipeline,
    .describe_tile = moe_dispatch_gemm_describe_tile,
    .describe_chunk = moe_dispatch_gemm_describe_chunk,
    .work = moe_dispatch_gemm_work,
    .memory = moe_dispatch_gemm_memory,
    .model = moe_dispatch_gemm_model,
    .plans_measured = 1 << 2,
    .gpu_tile = moe_dispatch_gemm_built,
    .own_blocks = 1,
    .mma = 1,
};
