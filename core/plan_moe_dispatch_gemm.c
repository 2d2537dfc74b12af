/* The plan of MoE dispatch+GEMM: which shapes it takes, and where everything lies. */
#include "core/command.h"
#include "core/mkernel.h"
#include "core/plan_ops.h"

#include <errno.h>
#include <stdio.h>

static int check_shape(const struct mk_problem *q, char *error, size_t size)
{
    const struct mk_moe *m = &q->moe;
    uint64_t world = mk_world(&q->topo);
    if (!m->tokens || m->tokens % 8 || m->tokens > 1 << 24)
        return plan_refuse(
            error, size,
            "room for %llu tokens a rank: a multiple of 8 up to %d; the next that works is %llu "
            "(leave places out by ids that are no expert's)",
            (unsigned long long)m->tokens, 1 << 24,
            (unsigned long long)(m->tokens ? mk_round_up(m->tokens, 8) : 8));
    if (!m->hidden || m->hidden % 64 || m->hidden > 1 << 20)
        return plan_refuse(
            error, size, "tokens of %llu elements: a multiple of 64; the next that works is %llu",
            (unsigned long long)m->hidden, (unsigned long long)(m->hidden ? mk_round_up(m->hidden, 64) : 64));
    if (!m->inner || m->inner % 8 || m->inner > 1 << 24)
        return plan_refuse(
            error, size, "I = %llu: rows of C must be 16-byte multiples; the next I that works is %llu",
            (unsigned long long)m->inner, (unsigned long long)(m->inner ? mk_round_up(m->inner, 8) : 8));
    if (!m->experts || m->experts % world || m->experts > 1 << 20)
        return plan_refuse(
            error, size,
            "%llu experts do not spread evenly over %llu ranks; the next number that does is %llu",
            (unsigned long long)m->experts, (unsigned long long)world,
            (unsigned long long)(m->experts ? mk_round_up(m->experts, world) : world));
    if (!m->k || m->k > 32 || m->k > m->experts)
        return plan_refuse(error, size, "%llu experts of a token: 1 to %llu", (unsigned long long)m->k,
                           (unsigned long long)(m->experts < 32 ? m->experts : 32));
    return 0;
}

static void choose(struct mk_problem *q)
{
    struct mk_tuning *t = &q->tuning;
    int cuda = q->exec == MK_EXEC_CUDA;
    if (!t->cluster)
        t->cluster = 1;
    if (!t->tile_m)
        t->tile_m = cuda ? 128 : 32;
    if (!t->tile_n)
        t->tile_n = cuda ? 128 : 64;
    if (!t->chunk_rows)
        t->chunk_rows = cuda ? 64 : 16;
    if (!t->pieces)
        t->pieces = 1;
    uint32_t *ctas = t->split.ctas;
    if (mk_total_ctas(&t->split))
        return;
    ctas[MK_INTRA_COMM] = cuda ? 12 : 1;
    ctas[MK_INTER_SEND] = q->topo.nodes > 1 ? (cuda ? 4 : 1) : 0;
    uint32_t others = ctas[MK_INTRA_COMM] + ctas[MK_INTER_SEND];
    ctas[MK_COMPUTE] = cuda && q->sms > others ? q->sms - others : 2;
}

static int check_tuning(struct mk_problem *q, char *error, size_t size)
{
    const uint32_t *ctas = q->tuning.split.ctas;
    if (!ctas[MK_COMPUTE] || !ctas[MK_INTRA_COMM] || (q->topo.nodes > 1) != (ctas[MK_INTER_SEND] > 0) ||
        ctas[MK_INTER_REDUCE])
        return plan_refuse(
            error, size,
            "roles compute=%u,intra_comm=%u,inter_send=%u,inter_reduce=%u: on %u nodes moe_dispatch_gemm "
            "takes "
            "at least 1 compute, at least 1 intra_comm, %s inter_send and no inter_reduce CTAs",
            ctas[0], ctas[1], ctas[2], ctas[3], q->topo.nodes, q->topo.nodes > 1 ? "at least 1" : "no");
    if (q->tuning.pieces != 1 || q->tuning.cluster != 1)
        return plan_refuse(
            error, size,
            "moe_dispatch_gemm moves whole chunks and computes tiles of one CTA: pieces and cluster "
            "are 1");
    uint32_t chunk_rows = q->tuning.chunk_rows; /* of tokens: no multiple of a tile's rows */
    q->tuning.chunk_rows = q->tuning.tile_m;
    int result = plan_check_tuning(q, error, size);
    q->tuning.chunk_rows = chunk_rows;
    return result;
}

/* `bytes` more of the heap. */
static uint64_t take(uint64_t *next, uint64_t bytes)
{
    uint64_t at = *next;
    *next += mk_round_up(bytes, MK_HEAP_UNIT);
    return at;
}

static void lay_out(struct moe_dispatch_gemm_plan *m, uint64_t *next)
{
    uint64_t world = mk_world(&m->topo), nodes = m->topo.nodes;
    struct mk_route *r = &m->route;
    r->wanted = take(next, m->row_tiles * 8ull); /* first: what must begin as 0 */
    m->ids[0] = take(next, world * m->ids_bytes);
    m->ids[1] = take(next, world * m->ids_bytes);
    r->position = take(next, world * m->tokens * m->k * 4);
    r->first = take(next, m->experts * 4ull);
    r->rows = take(next, m->experts * 4ull);
    r->sent = take(next, nodes * m->tokens * 4);
    r->sent_count = take(next, nodes * 4);
    r->came = take(next, nodes * m->tokens * 4);
    r->came_count = take(next, nodes * 4);
    m->packed = take(next, nodes > 1 ? nodes * m->tokens * m->row_bytes : 0);
    m->relay = take(next, nodes > 1 ? nodes * m->tokens * m->row_bytes : 0);
    m->gathered = take(next, (uint64_t)m->row_tiles * m->tile_m * m->row_bytes);
}

static int build(struct mk_plan *p, char *error, size_t size)
{
    struct mk_problem *q = &p->problem;
    struct moe_dispatch_gemm_plan *m = &p->u.moe_dispatch_gemm;
    int result = check_shape(q, error, size);
    if (result)
        return result;
    choose(q);
    result = check_tuning(q, error, size);
    if (result)
        return result;
    uint64_t world = mk_world(&q->topo), next = p->heap_base;
    m->topo = q->topo;
    m->split = q->tuning.split;
    m->tokens = (uint32_t)q->moe.tokens;
    m->hidden = (uint32_t)q->moe.hidden;
    m->inner = (uint32_t)q->moe.inner;
    m->experts = (uint32_t)q->moe.experts;
    m->k = (uint32_t)q->moe.k;
    m->rank_experts = (uint32_t)(m->experts / world);
    m->tile_m = q->tuning.tile_m;
    m->tile_n = q->tuning.tile_n;
    m->cluster = q->tuning.cluster;
    m->col_tiles = (uint32_t)mk_ceil_div(m->inner, m->tile_n);
    m->chunk_rows = q->tuning.chunk_rows;
    m->chunks = (uint32_t)mk_ceil_div(m->tokens, m->chunk_rows);
    m->row_bytes = m->hidden * 2ull;
    m->ids_bytes = mk_round_up((uint64_t)m->tokens * m->k * 4, MK_HEAP_UNIT);
    /* The most: every place of every token names an expert of this rank. (The same expert may be named twice.) */
    uint64_t row_tiles = world * m->tokens * m->k / m->tile_m + m->rank_experts;
    uint64_t flags = world + 1 + (uint64_t)q->topo.nodes * m->chunks + row_tiles;
    if (row_tiles > UINT32_MAX / m->tile_m)
        return plan_take(p, UINT64_MAX, flags, 0, 0, error, size);
    m->row_tiles = (uint32_t)row_tiles;
    m->route = (struct mk_route){.topo = m->topo,
                                 .tokens = m->tokens,
                                 .k = m->k,
                                 .experts = m->experts,
                                 .rank_experts = m->rank_experts,
                                 .tile_rows = m->tile_m,
                                 .ids_pitch = m->ids_bytes,
                                 .summary_space = MK_SPACE_ARG4};
    lay_out(m, &next);
    q->m = row_tiles * m->tile_m;
    q->n = m->inner;
    q->k = m->hidden;
    result =
        plan_take(p, row_tiles * m->col_tiles, flags, next - p->heap_base,
                  m->chunk_rows * m->row_bytes > m->ids_bytes ? m->chunk_rows * m->row_bytes : m->ids_bytes,
                  error, size);
    if (result)
        return result;
    m->tiles = p->tiles;
    m->flag_ids = p->flag_base;
    m->flag_routed = m->flag_ids + (uint32_t)world;
    m->flag_relay = m->flag_routed + 1;
    m->flag_rows = m->flag_relay + q->topo.nodes * m->chunks;
    p->zero_bytes = m->row_tiles * 8ull;
    p->chunks = (uint32_t)world * m->chunks;
    return 0;
}

uint64_t mk_moe_rows(const struct mk_plan *plan)
{
    const struct moe_dispatch_gemm_plan *m = &plan->u.moe_dispatch_gemm;
    return (uint64_t)m->row_tiles * m->tile_m;
}

static void describe_flag(const struct mk_plan *p, uint32_t flag, struct mk_flag_meaning *out)
{
    const struct moe_dispatch_gemm_plan *m = &p->u.moe_dispatch_gemm;
    if (flag >= m->flag_rows) { /* many ranks' rows: none can be named */
        snprintf(out->text, sizeof out->text, "rows %u to %u of the tokens of its experts",
                 (flag - m->flag_rows) * m->tile_m, (flag - m->flag_rows + 1) * m->tile_m - 1);
    } else if (flag >= m->flag_relay) {
        out->chunk = (flag - m->flag_relay) % m->chunks;
        out->producer =
            mk_rank_at(&m->topo, (flag - m->flag_relay) / m->chunks, mk_local_of(&m->topo, m->topo.rank));
        snprintf(out->text, sizeof out->text, "chunk %u of rank %u's tokens", out->chunk, out->producer);
    } else if (flag == m->flag_routed) {
        snprintf(out->text, sizeof out->text, "its tables of where tokens go");
    } else {
        out->chunk = 0;
        out->producer = flag - m->flag_ids;
        snprintf(out->text, sizeof out->text, "the expert ids of rank %u", out->producer);
    }
}

/* Which rows a tile has is known in a launch alone: here as if every place of its rows were taken. */
static void describe_tile(const struct mk_plan *p, uint32_t id, struct mk_tile *out)
{
    const struct moe_dispatch_gemm_plan *m = &p->u.moe_dispatch_gemm;
    out->a = MK_SPACE_HEAP;
    out->slab = m->topo.rank;
    out->row = id % m->row_tiles * m->tile_m;
    out->rows = m->tile_m;
    out->col = id / m->row_tiles * m->tile_n;
    out->cols = m->inner - out->col < m->tile_n ? m->inner - out->col : m->tile_n;
    out->c = MK_SPACE_ARG3;
}

static void describe_chunk(const struct mk_plan *p, uint32_t id, uint32_t *rank, uint32_t *number,
                           uint64_t *bytes)
{
    const struct moe_dispatch_gemm_plan *m = &p->u.moe_dispatch_gemm;
    *rank = id / m->chunks;
    *number = id % m->chunks;
    *bytes = m->chunk_rows * m->row_bytes;
}

/* Whatever is routed where, on the average of the ranks: products of all places; ids, and at most every token to every
 * other node and every place's row over NVLink. */
static void work(const struct mk_plan *p, double *flop, uint64_t *nvlink_bytes, uint64_t *network_bytes)
{
    const struct moe_dispatch_gemm_plan *m = &p->u.moe_dispatch_gemm;
    uint64_t ids = (uint64_t)m->tokens * m->k * 4, places = (uint64_t)m->tokens * m->k,
             others = m->topo.nodes - 1;
    *flop = 2.0 * (double)places * m->hidden * m->inner;
    *network_bytes = others * (ids + m->tokens * m->row_bytes);
    *nvlink_bytes = m->topo.gpus > 1 ? (m->topo.gpus - 1) * m->topo.nodes * ids + places * m->row_bytes : 0;
}

const struct plan_op plan_op_moe_dispatch_gemm = {
    .build = build,
    .describe_flag = describe_flag,
    .describe_tile = describe_tile,
    .describe_chunk = describe_chunk,
    .work = work,
};
