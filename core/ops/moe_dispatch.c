/* MoE dispatch: rows of tokens to their experts, for those who compute on them by themselves. What
 * it is, which shapes it takes, and where everything lies. */
#include "core/mkernel.h"
#include "core/ops/moe.h"
#include "core/roles/moe_halves_plan.h"

static int moe_dispatch_build(const struct op_descriptor *op, struct mk_plan *p, char *error,
                              size_t size)
{
    struct moe_dispatch_halves_plan *h = moe_dispatch_halves_plan_in(p);
    struct moe_dispatch_plan *m = &h->by[0], odd;
    int result = plan_size_moe_rows(op, m, p, MK_SPACE_ARG1, MK_SPACE_HEAP, error, size);
    if (result)
        return result;
    plan_moe_halves(&h->halves, &p->problem);
    m->route.summary_space = MK_SPACE_ARG3;
    result = plan_lay_out(op, p, 0, plan_moe_put_bytes(m), error, size);
    if (result)
        return result;
    p->chunks = 2 * mk_world(&m->topo) * m->chunks;
    odd = *m;
    odd.landed = h->by[1].landed;
    odd.relay = h->by[1].relay;
    h->by[1] = odd;
    return 0;
}

static void moe_dispatch_tables(struct mk_plan *p, struct op_tables *t)
{
    struct moe_dispatch_halves_plan *h = moe_dispatch_halves_plan_in(p);
    struct moe_dispatch_plan *m = &h->by[0], *odd = &h->by[1];
    const struct mk_route *r = &m->route;
    plan_moe_tables_first(m, &p->problem, t);
    plan_moe_tables(m, t);
    if (h->halves.is) /* in the order of the even ones, one behind the other */
        OP_BUFFERS(
            t, {"landed rows, odd", &odd->landed, 1, m->topo.gpus * r->landed_room, m->row_bytes},
            {"relay, odd", &odd->relay, 1, (uint64_t)m->topo.nodes * r->relay_room, m->row_bytes});
    plan_moe_halves_flags(&h->halves, t);
}

/* Tokens on their way to this rank, then to their rows: numbers from `chunks` on. */
static void moe_dispatch_describe_chunk(const struct mk_plan *p, uint32_t id, uint32_t *rank,
                                        uint32_t *number, uint64_t *bytes)
{
    const struct moe_dispatch_plan *m = moe_dispatch_plan_of(p);
    const uint32_t world = mk_world(&m->topo), at = id / m->chunks;
    *rank = at % world;
    *number = id % m->chunks + (at < world ? 0 : m->chunks);
    *bytes = m->chunk_rows * m->row_bytes;
}

static void moe_dispatch_work(const struct mk_plan *p, double *flop, uint64_t *nvlink_bytes,
                              uint64_t *network_bytes)
{
    *flop = 0;
    plan_moe_dispatch_work(moe_dispatch_plan_of(p), nvlink_bytes, network_bytes);
}

/* X and ids, and as many rows as tokens have places. */
static double moe_dispatch_memory(const struct mk_plan *p)
{
    const struct moe_dispatch_plan *m = moe_dispatch_plan_of(p);
    return m->tokens * (m->row_bytes * (1.0 + m->k) + 4.0 * m->k);
}

int mk_moe_dispatch(struct mk_plan *plan, const void *x, const uint32_t *ids, void *rows,
                    uint32_t *counts, void *stream)
{
    void *const arguments[MK_SPACES - 1] = {OP_ARGUMENT(x), OP_ARGUMENT(ids), rows, counts};
    return op_launch(plan, MK_OP_MOE_DISPATCH, arguments, stream);
}

const struct op_descriptor op_moe_dispatch = {
    .help = "sends tokens to their experts' ranks, where each expert's rows follow each other",
    .shape = &op_shape_moe_rows,
    .limit = 1,
    .choose_shape = op_choose_moe_rows,
    .arguments = {{"X", OP_TOKENS, "T,H"},
                  {"X", OP_RECORDS, "T,record"},
                  {"ids", OP_UINT32, "T,K"},
                  {"rows", OP_TOKENS, "rows,H", .output = 1},
                  {"rows", OP_RECORDS, "rows,record", .output = 1},
                  {"counts", OP_UINT32, "E/W,2", .output = 1},
                  {"count", OP_COUNT, "1"}},
    .needs =
        {[MK_INTRA_COMM] = OP_ALWAYS, [MK_INTER_SEND] = OP_IF_NODES, [MK_INTER_REDUCE] = OP_ALWAYS},
    .knobs = OP_ROLES | OP_CHUNK_ROWS,
    .loose_chunks = 1,
    .fp8 = 1,
    .halves = 1,
    .build = moe_dispatch_build,
    .tables = moe_dispatch_tables,
    .describe_chunk = moe_dispatch_describe_chunk,
    .work = moe_dispatch_work,
    .memory = moe_dispatch_memory,
    .mma = 1,
};
