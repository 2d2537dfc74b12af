/* MoE combine: what experts have made of tokens, summed by weight where the tokens are from. What
 * it is, which shapes it takes, and where everything lies. */
#include "core/mkernel.h"
#include "core/ops/moe.h"
#include "core/roles/moe_halves_plan.h"

static struct moe_ffn_plan *moe_combine_layer_in(struct mk_plan *p)
{
    return &moe_combine_plan_in(p)->layer;
}

static int moe_combine_build(const struct op_descriptor *op, struct mk_plan *p, char *error,
                             size_t size)
{
    struct mk_problem *q = &p->problem;
    struct moe_ffn_plan *m = moe_combine_layer_in(p);
    struct moe_dispatch_plan *d = &m->dispatch;
    int result = plan_size_moe_rows(op, d, p, MK_SPACE_ARG1, MK_SPACE_ARG2, error, size);
    if (result)
        return result;
    d->row_bytes = 0;
    d->route.summary_space = MK_SPACE_HEAP;
    m->split = q->tuning.split;
    m->hidden = (uint32_t)q->moe.hidden;
    plan_moe_sums_size(m, q);
    m->number = m->carried = MK_BF16;
    m->staged = q->engine == MK_ENGINE_MMA ? 0 : d->route.shared; /* where tables were made */
    m->made_space = MK_SPACE_ARG0;
    m->y_space = MK_SPACE_ARG3;
    m->result_bytes = m->carried_bytes = m->hidden * 2ull;
    plan_moe_halves(&moe_combine_halves_plan_in(p)->halves, q);
    uint64_t put = d->chunk_rows * m->carried_bytes, said = plan_moe_put_bytes(d);
    result = plan_lay_out(op, p, 0, put > said ? put : said, error, size);
    if (!result)
        p->chunks = 2 * mk_world(&q->topo) * d->chunks;
    return result;
}

static void moe_combine_tables(struct mk_plan *p, struct op_tables *t)
{
    struct moe_ffn_plan *m = moe_combine_layer_in(p);
    plan_moe_tables_first(&m->dispatch, &p->problem, t);
    plan_moe_tables(&m->dispatch, t);
    plan_moe_sums_tables(m, t);
    plan_moe_halves_flags(&moe_combine_halves_plan_in(p)->halves, t);
}

/* What a rank says, as its first chunk; then sums: numbers from `chunks` on. */
static void moe_combine_describe_chunk(const struct mk_plan *p, uint32_t id, uint32_t *rank,
                                       uint32_t *number, uint64_t *bytes)
{
    const struct moe_ffn_plan *m = &moe_combine_plan_of(p)->layer;
    const struct moe_dispatch_plan *d = &m->dispatch;
    uint32_t world = mk_world(&d->topo), at = id / d->chunks;
    *rank = at % world;
    *number = id % d->chunks + (at < world ? 0 : d->chunks);
    *bytes = at < world ? d->tokens * d->record_bytes : d->chunk_rows * m->carried_bytes;
}

static void moe_combine_work(const struct mk_plan *p, double *flop, uint64_t *nvlink_bytes,
                             uint64_t *network_bytes)
{
    *flop = 0;
    plan_moe_dispatch_work(&moe_combine_plan_of(p)->layer.dispatch, nvlink_bytes, network_bytes);
    plan_moe_sums_work(&moe_combine_plan_of(p)->layer, nvlink_bytes, network_bytes);
}

/* As many rows as tokens have places, ids and weights, and Y. */
static double moe_combine_memory(const struct mk_plan *p)
{
    const struct moe_ffn_plan *m = &moe_combine_plan_of(p)->layer;
    const struct moe_dispatch_plan *d = &m->dispatch;
    return d->tokens * (2.0 * m->hidden * (1.0 + d->k) + 8.0 * d->k);
}

int mk_moe_combine(struct mk_plan *plan, const void *rows, const uint32_t *ids,
                   const float *weights, void *y, void *stream)
{
    void *const arguments[MK_SPACES - 1] = {OP_ARGUMENT(rows), OP_ARGUMENT(ids),
                                            OP_ARGUMENT(weights), y};
    return op_launch(plan, MK_OP_MOE_COMBINE, arguments, stream);
}

const struct op_descriptor op_moe_combine = {
    .help = "adds what experts have made of each token by weight, where the token is from",
    .bits_vary = "adds what the experts of one rank make of a token before others, so bits follow "
                 "from where experts lie",
    .shape = &op_shape_moe_rows,
    .limit = 1,
    .choose_shape = op_choose_moe_rows,
    .arguments = {{"rows", OP_BF16, "rows,H"},
                  {"ids", OP_UINT32, "T,K"},
                  {"weights", OP_FP32, "T,K"},
                  {"Y", OP_BF16, "T,H", .output = 1},
                  {"count", OP_COUNT, "1"}},
    .needs =
        {[MK_INTRA_COMM] = OP_ALWAYS, [MK_INTER_SEND] = OP_IF_NODES, [MK_INTER_REDUCE] = OP_ALWAYS},
    .knobs = OP_ROLES | OP_CHUNK_ROWS,
    .loose_chunks = 1,
    .halves = 1,
    .build = moe_combine_build,
    .tables = moe_combine_tables,
    .describe_chunk = moe_combine_describe_chunk,
    .work = moe_combine_work,
    .memory = moe_combine_memory,
    .mma = 1,
};
