/* Where MoE plans keep what moves in the heap, and its flags: tables, tokens on their way, sums. */
#include "core/ops/moe.h"
#include "core/roles/moe_ffn_plan.h"
#include "core/roles/moe_halves_plan.h"

void plan_moe_halves(struct moe_halves *h, const struct mk_problem *q)
{
    h->is = q->own[MOE_HALVES] != 0;
    h->senders = q->tuning.split.ctas[MK_INTER_SEND];
}

void plan_moe_halves_flags(struct moe_halves *h, struct op_tables *t)
{
    if (h->is)
        OP_FLAGS(t, {"left",
                     &h->flag_left,
                     {{'x', 1, 1}},
                     "what it put in the launch before to leave",
                     .producer = 'm'});
}

void plan_moe_tables_first(struct moe_dispatch_plan *m, const struct mk_problem *q,
                           struct op_tables *t)
{
    struct mk_route *r = &m->route;
    const uint64_t tiles = r->columns ? m->row_tiles : 0; /* that a product waits for */
    OP_BUFFERS(t, {"wanted", &r->wanted, 1, tiles, 8}, {"awaited", &r->awaited, 1, tiles, 8},
               {"order_head", &r->order_head, 1, 1, sizeof(struct mk_route_head)},
               {"dropped", &r->dropped, 1, 1, 8}, {"map", &r->map, 1, r->logical, 4},
               {"order", &r->order, 1, (uint64_t)m->row_tiles * (r->columns + r->down),
                sizeof(struct mk_tile_entry)});
    t->zero_buffers = 5;
    const uint64_t words = mk_route_shared_words(&q->topo, m->experts, mk_route_stretches(r));
    if (q->exec == MK_EXEC_CUDA)
        OP_BUFFERS(t, {"scratch", &r->scratch, 1,
                       mk_route_scratch_words(&q->topo, m->experts, m->routers), 4});
    if (q->exec == MK_EXEC_CUDA && words * 4 > r->shared)
        OP_BUFFERS(t, {"spill", &r->spill, 1,
                       (m->layers > m->routers ? m->layers : m->routers) * words, 4});
}

void plan_moe_tables(struct moe_dispatch_plan *m, struct op_tables *t)
{
    struct mk_route *r = &m->route;
    uint64_t world = mk_world(&m->topo), nodes = m->topo.nodes, gpus = m->topo.gpus,
             away = nodes * r->relay_room, near = gpus * r->landed_room;
    const uint64_t said = gpus * nodes * r->said_words, record = sizeof(struct mk_route_record);
    if (r->quota) {
        OP_BUFFERS(t, {"kept", &r->ids, 1, (uint64_t)m->tokens * m->k, 4});
        r->ids_space = MK_SPACE_HEAP;
    }
    OP_BUFFERS(t, {"records", &r->records, 1, (uint64_t)m->tokens * m->k, record},
               {"say", &r->say, 1, said, 4}, {"said", m->said, 2, said, 4},
               {"telling", &r->telling, 1, near * m->k, record},
               {"landed records", m->landed_records, 2, near * m->k, record},
               {"railing", &r->railing, 1, nodes > 1 ? nodes * r->rail_pitch / 16 : 0, 16},
               {"railed", m->railed, 2, nodes > 1 ? nodes * r->rail_pitch / 16 : 0, 16},
               {"position", &r->position, 1, mk_route_sources(r), m->k * 4ull},
               {"source", &r->source, 1, r->columns ? (uint64_t)m->row_tiles * m->tile_m : 0, 4},
               {"first", &r->first, 1, m->rank_experts, 4},
               {"rows", &r->rows, 1, m->rank_experts, 4}, {"sent", &r->sent, 1, away, 4},
               {"sent_count", &r->sent_count, 1, nodes, 4},
               {"sent_at", &r->sent_at, 1, nodes > 1 ? (uint64_t)m->tokens * m->k : 0, 4},
               {"came_count", &r->came_count, 1, nodes, 4}, {"push", &r->push, 1, near, 4},
               {"push_first", &r->push_first, 1, nodes * gpus, 4},
               {"push_count", &r->push_count, 1, nodes * gpus, 4},
               {"landed_first", &r->landed_first, 1, world, 4},
               {"landed_count", &r->landed_count, 1, world, 4},
               {"packed", &m->packed, 1, away, m->row_bytes},
               {"landed rows", &m->landed, 1, near, m->row_bytes},
               {"relay", &m->relay, 1, away, m->row_bytes});
    OP_FLAGS(t,
             {"kept",
              &m->flag_kept,
              {{'x', 1, 1}},
              "which of its tokens' places it keeps",
              .producer = 'm'},
             {"counted",
              &m->flag_counted,
              {{'x', 1, 1}},
              "its counts of where tokens go",
              .producer = 'm'},
             {"placed",
              &m->flag_placed,
              {{'x', 1, 1}},
              "its tables of where its tokens go",
              .producer = 'm'},
             {"railed",
              &m->flag_railed,
              {{'n', nodes, 1}, {'c', 1, 1}},
              "what rank %R says of its tokens' experts",
              .producer = 'R'},
             {"relayed",
              &m->flag_relayed,
              {{'x', 1, 1}},
              "its tables of where its rail's tokens go",
              .producer = 'm'},
             {"told",
              &m->flag_told,
              {{'l', gpus, 1}},
              "what rank %l tells of tokens' experts",
              .producer = 'l'},
             {"routed",
              &m->flag_routed,
              {{'x', 1, 1}},
              "its tables of what comes to its experts",
              .producer = 'm'},
             {"relay",
              &m->flag_relay,
              {{'n', nodes, 1}, {'c', m->chunks, 1}},
              "chunk %c of rank %R's tokens",
              .producer = 'R'},
             {"landed", /* who brings them here: the rank of this node that is on their rail */
              &m->flag_landed,
              {{'r', world, 1}, {'c', m->chunks, 1}},
              "chunk %c of rank %r's tokens, with experts here",
              .producer = 'p'});
    if (r->columns)
        OP_FLAGS(t, {"rows", /* many ranks': none can be named */
                     &m->flag_rows,
                     {{'i', m->row_tiles, m->tile_m}},
                     "rows %i to %I of the tokens of its experts",
                     .producer = 'm'});
}

void plan_moe_sums_size(struct moe_ffn_plan *m, const struct mk_problem *q)
{
    const struct moe_dispatch_plan *d = &m->dispatch;
    uint32_t list = d->tokens < d->route.landed_room ? d->tokens : d->route.landed_room;
    m->part_rows = plan_moe_part(q);
    m->list_chunks = (uint32_t)mk_ceil_div(list, d->chunk_rows);
    m->chunk_parts = (uint32_t)mk_ceil_div(d->chunk_rows, m->part_rows);
}

void plan_moe_sums_tables(struct moe_ffn_plan *m, struct op_tables *t)
{
    struct moe_dispatch_plan *d = &m->dispatch;
    const struct mk_route *r = &d->route;
    uint64_t nodes = d->topo.nodes, gpus = d->topo.gpus, away = nodes * r->relay_room;
    OP_BUFFERS(t, {"back", &m->back, 1, gpus * r->landed_room, m->carried_bytes},
               {"sums", &m->sums, 1, away, m->carried_bytes},
               {"whole", &m->whole, 1, away, m->carried_bytes});
    OP_FLAGS(t,
             {"back",
              &m->flag_back,
              {{'n', nodes, 1}, {'l', gpus, 1}, {'c', m->list_chunks, 1}, {'i', m->chunk_parts, 1}},
              "rank %l's sums for chunk %c of rank %R's tokens",
              .producer = 'l',
              .chunk_base = d->chunks},
             {"sum",
              &m->flag_sum,
              {{'n', nodes, 1}, {'c', d->chunks, 1}},
              "node %n's sums for chunk %c of its tokens",
              .producer = 'R',
              .chunk_base = d->chunks});
}

uint32_t plan_moe_part(const struct mk_problem *q)
{
    const struct mk_role_split *s = &q->tuning.split;
    const int multiplies = s->ctas[MK_COMPUTE] > 0, mma = multiplies && q->engine == MK_ENGINE_MMA;
    uint32_t blocks =
        q->topo.nodes > 1 || !multiplies ? s->ctas[MK_INTER_REDUCE] : mk_total_ctas(s);
    uint64_t each = mk_ceil_div(q->moe.tokens * mk_world(&q->topo), blocks ? blocks : 1);
    uint32_t warps = mma ? q->tuning.tile_m / 16 + 2 : 12;
    if (q->exec != MK_EXEC_CUDA)
        return 8;
    if (each < warps)
        return (uint32_t)each;
    /* A unit takes as long beside its rows as with a token of each warp: where a block has two
     * units even so, a warp takes several tokens. Parts of a chunk are about equal. */
    const uint64_t turns = multiplies && !mma ? each / (2 * warps) : 0;
    return turns < 2 ? warps
                     : (uint32_t)mk_ceil_div(q->tuning.chunk_rows,
                                             mk_ceil_div(q->tuning.chunk_rows, turns * warps));
}
