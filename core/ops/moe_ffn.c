/* The MoE feed-forward layer: each token through its experts. What it is, which shapes it takes,
 * and where everything lies. */
#include "core/mkernel.h"
#include "core/model_gemm.h"
#include "core/ops/moe.h"
#include "core/roles/moe_ffn_plan.h"

#include <stdio.h>

static int moe_ffn_check_tuning(const struct mk_problem *q, char *error, size_t size)
{
    if (q->tuning.tile_n % 16)
        return plan_refuse(error, size,
                           "tiles of %u columns: half are of the gate, half of up, each a multiple "
                           "of 8; the next that "
                           "works is %llu",
                           q->tuning.tile_n, (unsigned long long)mk_round_up(q->tuning.tile_n, 16));
    return plan_check_moe_tuning(q, error, size);
}

/* In the heap from *next on; what must begin as 0 comes first. */
static void moe_ffn_lay_out(struct mk_plan *p, struct moe_ffn_plan *m, uint64_t *next)
{
    struct moe_dispatch_plan *d = &m->dispatch;
    uint64_t nodes = d->topo.nodes, rows = (uint64_t)d->row_tiles * d->tile_m, begin = *next;
    uint64_t away = nodes > 1 ? nodes * d->room * m->result_bytes : 0;
    struct mk_route *r = &d->route;
    plan_lay_out_moe_counts(d, next);
    p->zero_bytes = *next - begin;
    r->columns = m->up_tiles;
    r->down = m->down_tiles;
    r->tile_columns = m->tile_n;
    plan_lay_out_moe_order(d, &p->problem, next);
    r->sent_before = plan_take_moe(next, nodes * (d->tokens + 1ull) * 4);
    r->came_before = plan_take_moe(next, nodes * (d->tokens + 1ull) * 4);
    r->summary_space = MK_SPACE_HEAP;
    plan_lay_out_moe(d, p->flag_base, 1, next);
    m->acted = plan_take_moe(next, rows * m->act_bytes);
    m->made = plan_take_moe(next, rows * m->result_bytes);
    m->back = plan_take_moe(
        next, d->topo.gpus > 1 ? nodes * d->topo.gpus * d->tokens * m->result_bytes : 0);
    m->sums = plan_take_moe(next, away);
    m->whole = plan_take_moe(next, away);
}

/* CTAs for sums on a GPU, beside those that compute first. With several nodes they alone add what
 * goes back to others: simulated, 16 of them are 2 to 26 % faster than 8 from 64 to 4096 tokens on
 * 2 x 2, 2 x 4, 2 x 8 and 4 x 8 (not measured). */
static uint32_t moe_ffn_reducers(const struct mk_problem *q)
{
    uint32_t most = q->topo.nodes > 1 ? 16 : 8, some = q->sms * most / 128;
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
    r->late = 1;
    r->apart =
        mk_world(&q->topo) * q->moe.tokens * q->moe.k / q->moe.experts >= 4 * q->tuning.tile_m;
    r->group_rows = q->exec != MK_EXEC_CUDA ? 2 : group > 16 ? group : 16;
}

static int moe_ffn_build(struct mk_plan *p, char *error, size_t size)
{
    struct mk_problem *q = &p->problem;
    struct moe_ffn_plan *m = moe_ffn_plan_in(p);
    int result = plan_check_moe(q, error, size);
    if (result)
        return result;
    plan_choose_moe(q, 256, moe_ffn_reducers(q));
    result = moe_ffn_check_tuning(q, error, size);
    if (!result && q->exec == MK_EXEC_CUDA)
        result = plan_check_moe_gpu(q, error, size);
    if (result)
        return result;
    struct moe_dispatch_plan *d = &m->dispatch;
    uint64_t row_tiles, flags = plan_size_moe(d, q, &row_tiles), next = p->heap_base;
    uint64_t chunks = (uint64_t)q->topo.nodes * d->chunks;
    flags += 2 * row_tiles + (q->topo.gpus + 1) * chunks;
    m->split = q->tuning.split;
    m->hidden = (uint32_t)q->moe.hidden;
    m->inner = (uint32_t)q->moe.inner;
    m->tile_n = q->tuning.tile_n;
    m->up_cols = m->tile_n / 2;
    m->up_tiles = (uint32_t)mk_ceil_div(m->inner, m->up_cols);
    m->down_tiles = (uint32_t)mk_ceil_div(m->hidden, m->tile_n);
    m->part_rows = q->exec == MK_EXEC_CUDA ? 12 : 8; /* a token for each warp of a block */
    moe_ffn_choose_order(m, q);
    m->number = q->deterministic ? MK_FP32 : MK_BF16;
    m->act_bytes = m->inner * 2ull;
    m->result_bytes = m->hidden * (q->deterministic ? 4ull : 2ull);
    q->m = row_tiles * d->tile_m;
    q->n = 2 * q->moe.inner;
    q->k = q->moe.hidden > q->moe.inner ? q->moe.hidden : q->moe.inner; /* the longest sum */
    if (row_tiles > UINT32_MAX / d->tile_m || flags > UINT32_MAX)
        return plan_take(p, UINT64_MAX, flags, 0, 0, error, size);
    d->row_tiles = (uint32_t)row_tiles;
    moe_ffn_lay_out(p, m, &next);
    uint64_t put = d->chunk_rows * m->result_bytes;
    result = plan_take(p, row_tiles * (m->up_tiles + m->down_tiles), flags, next - p->heap_base,
                       put > plan_moe_put_bytes(d) ? put : plan_moe_put_bytes(d), error, size);
    if (result)
        return result;
    m->tiles = p->tiles;
    m->flag_acted = d->flag_rows + d->row_tiles;
    m->flag_made = m->flag_acted + d->row_tiles;
    m->flag_back = m->flag_made + d->row_tiles;
    m->flag_sum = m->flag_back + (uint32_t)chunks * q->topo.gpus;
    p->chunks = 2 * mk_world(&q->topo) * d->chunks;
    return 0;
}

/* This rank's own tiles. */
static void moe_ffn_describe_own(const struct moe_ffn_plan *m, uint32_t index, const char *what,
                                 struct mk_flag_meaning *out)
{
    uint32_t row = index * m->dispatch.tile_m;
    snprintf(out->text, sizeof out->text, "rows %u to %u of its %s", row,
             row + m->dispatch.tile_m - 1, what);
}

static void moe_ffn_describe_acted(const void *of, uint32_t index, struct mk_flag_meaning *out)
{
    moe_ffn_describe_own(of, index, "activation", out);
}

static void moe_ffn_describe_made(const void *of, uint32_t index, struct mk_flag_meaning *out)
{
    moe_ffn_describe_own(of, index, "results", out);
}

static void moe_ffn_describe_back(const void *of, uint32_t index, struct mk_flag_meaning *out)
{
    const struct moe_ffn_plan *m = of;
    const struct mk_topo *t = &m->dispatch.topo;
    uint32_t chunk = index / t->gpus % m->dispatch.chunks,
             rank = mk_rank_at(t, index / t->gpus / m->dispatch.chunks, mk_local_of(t, t->rank));
    out->chunk = m->dispatch.chunks + chunk;
    out->producer = mk_rank_at(t, mk_node_of(t, t->rank), index % t->gpus);
    snprintf(out->text, sizeof out->text, "rank %u's sums for chunk %u of rank %u's tokens",
             out->producer, chunk, rank);
}

static void moe_ffn_describe_sum(const void *of, uint32_t index, struct mk_flag_meaning *out)
{
    const struct moe_ffn_plan *m = of;
    const struct mk_topo *t = &m->dispatch.topo;
    uint32_t chunk = index % m->dispatch.chunks, node = index / m->dispatch.chunks;
    out->chunk = m->dispatch.chunks + chunk;
    out->producer = mk_rank_at(t, node, mk_local_of(t, t->rank));
    snprintf(out->text, sizeof out->text, "node %u's sums for chunk %u of its tokens", node, chunk);
}

static uint32_t flags(const struct mk_plan *p, struct op_flag_range *ranges)
{
    const struct moe_ffn_plan *m = moe_ffn_plan_of(p);
    uint32_t count = plan_moe_flags(&m->dispatch, ranges), tiles = m->dispatch.row_tiles,
             chunks = m->dispatch.topo.nodes * m->dispatch.chunks;
    ranges[count++] =
        (struct op_flag_range){"acted", m->flag_acted, tiles, m, moe_ffn_describe_acted};
    ranges[count++] = (struct op_flag_range){"made", m->flag_made, tiles, m, moe_ffn_describe_made};
    ranges[count++] = (struct op_flag_range){"back", m->flag_back, chunks * m->dispatch.topo.gpus,
                                             m, moe_ffn_describe_back};
    ranges[count++] = (struct op_flag_range){"sum", m->flag_sum, chunks, m, moe_ffn_describe_sum};
    return count;
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
             (id / m->dispatch.chunks < world ? m->dispatch.row_bytes : m->result_bytes);
}

/* Whatever is routed where, on the average of the ranks: products of all places; at most what
 * dispatch moves, and as many rows back. */
static void moe_ffn_work(const struct mk_plan *p, double *flop, uint64_t *nvlink_bytes,
                         uint64_t *network_bytes)
{
    const struct moe_ffn_plan *m = moe_ffn_plan_of(p);
    const struct moe_dispatch_plan *d = &m->dispatch;
    uint64_t others = d->topo.nodes - 1, places = (uint64_t)d->tokens * d->k;
    plan_moe_dispatch_work(d, nvlink_bytes, network_bytes);
    *flop = 6.0 * (double)places * m->hidden * m->inner;
    *network_bytes += (others < d->k ? others : d->k) * d->tokens * m->result_bytes;
    *nvlink_bytes += moe_crossings(d) * m->result_bytes;
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
    return mk_gated_tile(i, out);
}

const struct op_descriptor op_moe_ffn = {
    .help = "a whole MoE layer: tokens go to their experts' gated layers and come back weighted",
    .shape = &op_shape_moe,
    .choose_shape = op_choose_moe,
    .arguments = {{"X", OP_BF16, "T,H"},
                  {"B1", OP_BF16, "E/W,H,2*I"},
                  {"ids", OP_UINT32, "T,K"},
                  {"weights", OP_FP32, "T,K"},
                  {"B2", OP_BF16, "E/W,I,H"},
                  {"Y", OP_BF16, "T,H", .output = 1}},
    .needs = {[MK_COMPUTE] = OP_ALWAYS,
              [MK_INTRA_COMM] = OP_ALWAYS,
              [MK_INTER_SEND] = OP_IF_NODES,
              [MK_INTER_REDUCE] = OP_ALWAYS},
    .knobs = OP_MOE_KNOBS,
    .tuned = 1,
    .tile_n_unit = 16, /* half are of the gate */
    .loose_chunks = 1,
    .b_layout = 1,
    .sums = 1,
    .build = moe_ffn_build,
    .flags = flags,
    .describe_tile = moe_ffn_describe_tile,
    .describe_chunk = moe_ffn_describe_chunk,
    .work = moe_ffn_work,
    .model = moe_ffn_model,
    .gpu_tile = moe_ffn_built,
    .own_blocks = 1,
};
