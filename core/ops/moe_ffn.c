/* The MoE feed-forward layer: each token through its experts. What it is, which shapes it takes,
 * and where everything lies. */
#include "core/cta/cta_combine.h"
#include "core/plan/gemm_tiles_fp8.h"
#include "core/mkernel.h"
#include "core/model/gemm.h"
#include "core/ops/moe.h"
#include "core/plan/pipeline.h"
#include "core/base/quantize.h"
#include "core/roles/moe_ffn_plan.h"
#include "core/cta/sum_tree.h"

static int moe_ffn_check_tuning(const struct mk_problem *q, char *error, size_t size)
{
    const uint32_t blocks = 2 * MK_SCALE_BLOCK, world = mk_world(&q->topo);
    if (q->deterministic == MK_EVERYWHERE && MK_SUM_BLOCKS % world)
        return plan_refuse(error, size,
                           "the same bits everywhere on %u ranks: a token's experts are added in "
                           "%u runs, for 1, 2, 4 or 8 ranks",
                           world, MK_SUM_BLOCKS);
    if (q->deterministic == MK_EVERYWHERE && q->own[MOE_LOGICAL])
        return plan_refuse(
            error, size,
            "the same bits everywhere with a map of %lu logical experts: a token's are added "
            "in the order of where they lie, and copies lie at several places",
            q->own[MOE_LOGICAL]);
    if (q->fp8 && q->moe.inner % 16)
        return plan_refuse(error, size,
                           "inner = %lu with dtype=fp8: rows of B2 must be 16-byte multiples; the "
                           "next inner that works is %lu",
                           q->moe.inner, mk_round_up(q->moe.inner, 16));
    if (q->fp8 && q->tuning.tile_n % blocks)
        return plan_refuse(error, size,
                           "tiles of %u columns with dtype=fp8: half are of the gate, half of up, "
                           "and %u columns of the activation share a scale; the next that works "
                           "is %lu",
                           q->tuning.tile_n, MK_SCALE_BLOCK, mk_round_up(q->tuning.tile_n, blocks));
    if (q->tuning.slices > PLAN_MOST_SLICES)
        return plan_refuse(error, size, "%u slices of what is computed last: 1 to %u",
                           q->tuning.slices, PLAN_MOST_SLICES);
    if (q->tuning.tile_n % 16)
        return plan_refuse(error, size,
                           "tiles of %u columns: half are of the gate, half of up, each a multiple "
                           "of 8; the next that "
                           "works is %lu",
                           q->tuning.tile_n, mk_round_up(q->tuning.tile_n, 16));
    return plan_check_moe_tuning(q, error, size);
}

static void moe_ffn_tables(struct mk_plan *p, struct op_tables *t)
{
    struct moe_ffn_plan *m = moe_ffn_plan_in(p);
    struct moe_dispatch_plan *d = &m->dispatch;
    uint64_t rows = (uint64_t)d->row_tiles * d->tile_m;
    plan_moe_tables_first(d, &p->problem, t);
    plan_moe_tables(d, t);
    OP_BUFFERS(t, {"acted", &m->acted, 1, rows, m->act_bytes},
               {"act_scales", &m->act_scales, 1,
                p->problem.fp8 ? mk_ceil_div(m->inner, MK_SCALE_BLOCK) : 0, rows * 4},
               {"made", &m->made, 1, rows, m->result_bytes});
    OP_FLAGS(t,
             {"acted",
              &m->flag_acted,
              {{'i', d->row_tiles, d->tile_m}},
              "rows %i to %I of its activation",
              .producer = 'm'},
             {"made",
              &m->flag_made,
              {{'i', d->row_tiles, d->tile_m}},
              "rows %i to %I of its results",
              .producer = 'm'});
    plan_moe_sums_tables(m, t);
}

/* CTAs for sums on a GPU, beside those that compute first. With several nodes they alone add what
 * goes back to others: simulated, 16 of them are 2 to 26 % faster than 8 from 64 to 4096 tokens on
 * 2 x 2, 2 x 4, 2 x 8 and 4 x 8 (not measured). On one node they add while the last quarter is
 * multiplied; a token's sums are the more of its time the fewer columns its experts have
 * (docs/FIGURES.md). */
static uint32_t moe_ffn_reducers(const struct mk_problem *q)
{
    const uint64_t by_inner = 16384 / q->moe.inner;
    uint32_t most = q->topo.nodes > 1 ? 16
                    : by_inner < 8    ? 8
                    : by_inner > 24   ? 24
                                      : (uint32_t)by_inner,
             some = q->sms * most / 128;
    return some > most ? most : some ? some : 1;
}

/* Where an expert has few rows, reading its weights takes as long as its products: then all of this
 * node's come together, else they would be read once for each rank's. A group of rows of tiles is
 * large enough for all CTAs to be busy with one stage of it. */
static void moe_ffn_choose_order(struct moe_ffn_plan *m, const struct mk_problem *q)
{
    struct mk_route *r = &m->dispatch.route;
    uint32_t running = 2 * mk_total_ctas(&q->tuning.split),
             group = (uint32_t)mk_ceil_div(running, m->up_tiles);
    r->late = 1 + q->tuning.slices;
    r->apart =
        mk_world(&q->topo) * q->moe.tokens * q->moe.k / q->moe.experts >= 4 * q->tuning.tile_m;
    r->group_rows = q->exec != MK_EXEC_CUDA ? 2 : group > 16 ? group : 16;
}

static int moe_ffn_build(const struct op_descriptor *op, struct mk_plan *p, char *error,
                         size_t size)
{
    struct mk_problem *q = &p->problem;
    struct moe_ffn_plan *m = moe_ffn_plan_in(p);
    if (q->engine == MK_ENGINE_MMA && q->fp8 && !q->tuning.tile_m)
        q->tuning.tile_m = 64;
    if (q->engine == MK_ENGINE_MMA) /* gate and up are columns side by side */
        plan_choose_moe_mma_tile(q, 2 * q->moe.inner, q->fp8 ? 2 * MK_SCALE_BLOCK : 0);
    if (q->fp8 && !q->tuning.tile_n)
        q->tuning.tile_n = 2 * MK_SCALE_BLOCK;
    plan_choose_moe(q, 256, moe_ffn_reducers(q));
    if (!q->tuning.slices)
        q->tuning.slices = 1;
    int result = moe_ffn_check_tuning(q, error, size);
    if (!result && q->exec == MK_EXEC_CUDA)
        result = plan_check_moe_gpu(op, q, error, size);
    if (result)
        return result;
    struct moe_dispatch_plan *d = &m->dispatch;
    m->split = q->tuning.split;
    m->hidden = (uint32_t)q->moe.hidden;
    m->inner = (uint32_t)q->moe.inner;
    m->tile_n = q->tuning.tile_n;
    m->up_cols = m->tile_n / 2;
    m->up_tiles = (uint32_t)mk_ceil_div(m->inner, m->up_cols);
    m->down_tiles = (uint32_t)mk_ceil_div(m->hidden, m->tile_n);
    moe_ffn_choose_order(m, q);
    result = plan_size_moe(op, d, p, MK_SPACE_ARG2, MK_SPACE_ARG3, error, size);
    if (result)
        return result;
    plan_moe_sums_size(m, q);
    m->number = q->deterministic ? MK_FP32 : MK_BF16;
    m->tree = q->deterministic == MK_EVERYWHERE;
    m->carried = q->back_fp8 ? MK_E4M3 : m->number;
    m->staged = q->exec == MK_EXEC_CUDA && q->engine != MK_ENGINE_MMA && m->carried == MK_BF16
                    ? d->route.shared /* where tables were made, and stages are no more */
                    : 0;
    m->made_space = MK_SPACE_HEAP;
    m->y_space = MK_SPACE_ARG5;
    m->act_bytes = m->inner * op_factor_bytes(q);
    m->result_bytes = mk_combine_bytes(m->hidden, m->number);
    m->carried_bytes = mk_combine_bytes(m->hidden, m->carried);
    d->route.columns = m->up_tiles;
    d->route.down = m->down_tiles;
    d->route.tile_columns = m->tile_n;
    d->route.summary_space = MK_SPACE_HEAP;
    q->m = (uint64_t)d->row_tiles * d->tile_m;
    q->n = 2 * q->moe.inner;
    q->k = q->moe.hidden > q->moe.inner ? q->moe.hidden : q->moe.inner; /* the longest sum */
    uint64_t put = d->chunk_rows * m->carried_bytes;
    result = plan_lay_out(op, p, (uint64_t)d->row_tiles * (m->up_tiles + m->down_tiles),
                          put > plan_moe_put_bytes(d) ? put : plan_moe_put_bytes(d), error, size);
    if (result)
        return result;
    m->tiles = p->tiles;
    p->chunks = 2 * mk_world(&q->topo) * d->chunks;
    return 0;
}

/* Which rows a tile has is known in a launch alone: here as if every place of its rows were taken.
 * Columns: those of the activation, then those of results. */
static void moe_ffn_describe_tile(const struct mk_plan *p, uint32_t id, struct mk_tile *out)
{
    const struct moe_ffn_plan *m = moe_ffn_plan_of(p);
    uint32_t across = m->up_tiles + m->down_tiles, col = id % across;
    if (col < m->up_tiles)
        moe_ffn_columns(m, MOE_FFN_UP, col, out);
    else
        moe_ffn_columns(m, MOE_FFN_DOWN, col - m->up_tiles, out);
    out->col += col < m->up_tiles ? 0 : m->inner;
    out->slab = m->dispatch.topo.rank;
    out->row = id / across * m->dispatch.tile_m;
    out->rows = m->dispatch.tile_m;
}

/* Tokens on their way to their experts, then what comes back for them: numbers from `chunks` on. */
static void moe_ffn_describe_chunk(const struct mk_plan *p, uint32_t id, uint32_t *rank,
                                   uint32_t *number, uint64_t *bytes)
{
    const struct moe_ffn_plan *m = moe_ffn_plan_of(p);
    uint32_t world = mk_world(&m->dispatch.topo);
    *rank = id / m->dispatch.chunks % world;
    *number = id % m->dispatch.chunks + (id / m->dispatch.chunks < world ? 0 : m->dispatch.chunks);
    *bytes = m->dispatch.chunk_rows *
             (id / m->dispatch.chunks < world ? m->dispatch.row_bytes : m->carried_bytes);
}

/* Whatever is routed where, on the average of the ranks: products of all places; at most what
 * dispatch moves, and as many rows back. */
static void moe_ffn_work(const struct mk_plan *p, double *flop, uint64_t *nvlink_bytes,
                         uint64_t *network_bytes)
{
    const struct moe_ffn_plan *m = moe_ffn_plan_of(p);
    const struct moe_dispatch_plan *d = &m->dispatch;
    uint64_t places = (uint64_t)d->tokens * d->k;
    plan_moe_dispatch_work(d, nvlink_bytes, network_bytes);
    plan_moe_sums_work(m, nvlink_bytes, network_bytes);
    *flop = 6.0 * (double)places * m->hidden * m->inner;
}

/* X and Y, ids and weights, the experts' B1 and B2. */
static double moe_ffn_memory(const struct mk_plan *p)
{
    const struct moe_ffn_plan *m = moe_ffn_plan_of(p);
    const struct moe_dispatch_plan *d = &m->dispatch;
    return d->tokens * ((double)d->row_bytes + 2.0 * m->hidden + d->k * 8.0) +
           plan_moe_touched(&p->problem, d->rank_experts) * 3.0 * op_factor_bytes(&p->problem) *
               m->hidden * m->inner;
}

static void moe_ffn_model(struct model_walk *w, const struct mk_plan *p)
{
    model_moe_ffn(w, &p->problem, moe_ffn_plan_of(p));
}

int mk_moe_ffn(struct mk_plan *plan, const void *x, const void *b1, const uint32_t *ids,
               const float *weights, const void *b2, void *y, void *stream)
{
    void *const arguments[MK_SPACES - 1] = {OP_ARGUMENT(x),       OP_ARGUMENT(b1), OP_ARGUMENT(ids),
                                            OP_ARGUMENT(weights), OP_ARGUMENT(b2), y};
    return op_launch(plan, MK_OP_MOE_FFN, arguments, stream);
}

static int moe_ffn_built(const struct mk_problem *q, uint32_t i, struct mk_gemm_tile *out)
{
    if (q->engine == MK_ENGINE_MMA)
        return q->fp8 ? mk_mma_fp8_gated_tile(i, out) : mk_mma_tile(i, out);
    return q->fp8 ? mk_fp8_gated_tile(i, out) : mk_gated_tile(i, out);
}

const struct op_descriptor op_moe_ffn = {
    .help = "a whole MoE layer: tokens go to their experts' gated layers and come back weighted",
    .shape = &op_shape_moe,
    .limit = 1,
    .choose_shape = op_choose_moe,
    .arguments = {{"X", OP_TOKENS, "T,H"},
                  {"X", OP_RECORDS, "T,record"},
                  {"B1", OP_FACTOR, "E/W,H,2*I"},
                  {"ids", OP_UINT32, "T,K"},
                  {"weights", OP_FP32, "T,K"},
                  {"B2", OP_FACTOR, "E/W,I,H"},
                  {"Y", OP_BF16, "T,H", .output = 1},
                  {"B1_scales", OP_SCALES, "E/W,2,I:128,H:128:4*4"},
                  {"B2_scales", OP_SCALES, "E/W,H:128,I:128:4*4"},
                  {"count", OP_COUNT, "1"}},
    .needs = {[MK_COMPUTE] = OP_ALWAYS,
              [MK_INTRA_COMM] = OP_ALWAYS,
              [MK_INTER_SEND] = OP_IF_NODES,
              [MK_INTER_REDUCE] = OP_ALWAYS},
    .knobs = OP_MOE_KNOBS | OP_SLICES,
    .tuned = 1,
    .tile_n_unit = 16, /* half are of the gate */
    .loose_chunks = 1,
    .b_layout = 1,
    .fp8 = 1,
    .back_fp8 = 1,
    .sums = 1,
    .build = moe_ffn_build,
    .tables = moe_ffn_tables,
    .pipeline = plan_moe_pipeline,
    .describe_tile = moe_ffn_describe_tile,
    .describe_chunk = moe_ffn_describe_chunk,
    .work = moe_ffn_work,
    .memory = moe_ffn_memory,
    .model = moe_ffn_model,
    .gpu_tile = moe_ffn_built,
    .own_blocks = 1,
    .mma = 1,
};
