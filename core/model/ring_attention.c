/* Ring attention, query tile by query tile: core/roles/ring_attention.h, where tiles are handed out
 * to whoever is free and K and V arrive head by head. */
#include "core/attention_shards.h"
#include "core/model/moves.h"
#include "core/roles/ring_attention_plan.h"

#define MOST_STEPS (1u << 16) /* steps of tiles that are looked at one by one */

struct walk {
    struct model_walk *w;
    const struct ring_attention_plan *p;
    struct model_push push;
    struct model_rail rail;
    uint64_t chunk_turns;
    double block;    /* ns of a query tile against a block of keys */
    double slowed;   /* factor of that while others push */
    double here_all; /* when everything has come */
};

static struct model_push attention_push_of(const struct model_walk *w,
                                           const struct ring_attention_plan *p)
{
    uint64_t turns = (uint64_t)(p->topo.gpus - 1) * p->chunks * p->pieces;
    double shard = 2.0 * p->batch * p->pitch_rows * (double)p->row_bytes;
    struct model_turns t = {.split = &p->split,
                            .block = MACHINE_BLOCK,
                            .pace = p->pace,
                            .turns = turns,
                            .bytes = shard / ((double)p->chunks * p->pieces)};
    return model_push_of(w, &t);
}

/* When chunk `chunk` of the rank that step `step` multiplies is here. */
static double attention_arrival(const struct walk *a, uint32_t step, uint32_t chunk)
{
    uint32_t gpus = a->p->topo.gpus, nodes_away = step / gpus, away = step % gpus;
    if (!step)
        return 0;
    if (!nodes_away)
        return model_told(a->w, &a->push, (uint64_t)(chunk + 1) * a->chunk_turns);
    return away ? model_by_peer(a->w, &a->rail, &a->push, a->chunk_turns, nodes_away, chunk)
                : model_by_rail(&a->rail, nodes_away, chunk);
}

static uint32_t attention_blocks(const struct ring_attention_plan *p, uint32_t keys)
{
    return (uint32_t)mk_ceil_div(keys, p->block_rows);
}

/* Blocks of keys that all steps of a query tile have together. */
static double attention_all_blocks(const struct ring_attention_plan *p,
                                   const struct ring_attention_query *q)
{
    if (!p->causal)
        return (double)mk_world(&p->topo) * attention_blocks(p, p->half);
    return (double)ring_attention_block(p, p->topo.rank, q->half) * attention_blocks(p, p->half) +
           attention_blocks(p, q->row + q->rows);
}

/* Blocks of one step, and the last chunk that it reads (of K and V, of all rows that it sees). */
static uint32_t attention_step(const struct ring_attention_plan *p,
                               const struct ring_attention_query *q, uint32_t step, uint32_t *chunk)
{
    uint32_t rank = ring_attention_source(p, step), blocks = 0,
             head = ring_attention_kv_head(p, q->head);
    for (uint32_t half = 0; half < p->halves; half++) {
        enum ring_attention_mask mask = ring_attention_mask(p, q->half, rank, half);
        if (mask == RING_ATTENTION_NONE)
            continue;
        blocks += attention_blocks(p, mask == RING_ATTENTION_ALL ? p->half : q->row + q->rows);
        *chunk = ring_attention_chunk(p, q->batch, head, half, p->half_chunks - 1, 1);
    }
    return blocks;
}

/* The end of a query tile that begins at `at`. */
static double attention_tile_ends(const struct walk *a, const struct ring_attention_query *q,
                                  double at)
{
    const struct ring_attention_plan *p = a->p;
    double left = attention_all_blocks(p, q);
    at += a->w->machine->attention_tile;
    for (uint32_t step = 0; step < mk_world(&p->topo) && at < a->here_all; step++) {
        uint32_t chunk = 0, blocks = attention_step(p, q, step, &chunk);
        if (!blocks)
            continue;
        double here = attention_arrival(a, step, chunk);
        if (step / p->topo.gpus)
            a->w->network = model_later(a->w->network, here);
        if (here > at)
            at = here + a->w->machine->wait;
        at += blocks * a->block * (at < a->push.until ? a->slowed : 1);
        left -= blocks;
    }
    return at + (left > 0 ? left * a->block : 0);
}

static void attention_tiles(const struct walk *a)
{
    const struct ring_attention_plan *p = a->p;
    struct model_crew crew = {.count = 0};
    uint32_t ctas = p->split.ctas[MK_COMPUTE],
             joining =
                 mk_role_coresident(&p->split, MK_INTRA_COMM) ? 0 : p->split.ctas[MK_INTRA_COMM];
    uint64_t steps = (uint64_t)p->query_tiles * mk_world(&p->topo);
    /* of many, each so many-th, on as many fewer CTAs */
    uint32_t group = (uint32_t)mk_ceil_div(steps, MOST_STEPS),
             least = (uint32_t)mk_ceil_div(ctas, MODEL_WORKERS);
    group = group > ctas ? ctas : group < least ? least : group;
    for (uint32_t i = 0; i + group / 2 < ctas || !i; i += group)
        model_crew_join(&crew, 0);
    for (uint32_t i = group / 2; i < joining; i += group)
        model_crew_join(&crew, a->push.until);
    a->w->compute = 0;
    for (uint32_t i = 0; i < p->query_tiles; i += group) {
        uint32_t last = p->query_tiles - i <= group ? p->query_tiles - 1 : i;
        struct ring_attention_query q = ring_attention_query(p, ring_attention_order(p, last));
        double end = attention_tile_ends(a, &q, crew.free[0]);
        model_crew_take(&crew, end);
        a->w->compute = model_later(a->w->compute, end);
    }
}

void model_ring_attention(struct model_walk *w, const struct mk_problem *q,
                          const struct ring_attention_plan *p)
{
    const struct mk_machine *m = w->machine;
    const struct mk_topo *t = &p->topo;
    double rate = p->head_dim <= 64 ? m->attention64 : m->attention128,
           coresident = mk_role_coresident(&p->split, MK_INTRA_COMM);
    uint32_t rows = p->half < p->chunk_rows ? p->half : p->chunk_rows;
    struct walk a = {.w = w, .p = p, .push = attention_push_of(w, p)};
    a.chunk_turns = (uint64_t)(t->gpus - 1) * p->pieces;
    a.rail = model_rail_of(w, &p->split, p->chunks, rows * (double)p->head_bytes, 1);
    a.block = rate > 0 ? 4.0 * p->tile_rows * p->block_rows * p->head_dim / rate * w->slower : 0;
    a.slowed = 1 + m->beside * coresident + m->beside_peer * a.push.busy;
    if (t->gpus > 1)
        a.here_all = model_told(w, &a.push, p->chunks * a.chunk_turns);
    w->moved = a.push.until;
    w->network = 0;
    if (t->nodes > 1) {
        a.here_all = model_later(a.here_all, model_by_rail(&a.rail, t->nodes - 1, p->chunks - 1));
        if (t->gpus > 1)
            a.here_all = w->moved =
                model_by_peer(w, &a.rail, &a.push, a.chunk_turns, t->nodes - 1, p->chunks - 1);
    }
    attention_tiles(&a);
    if (!p->query_tiles) /* nothing is multiplied: all that comes is waited for */
        w->compute = a.here_all;
    w->flop = 4.0 * p->batch * p->heads * p->head_dim *
              mk_attention_pairs(&q->attention, mk_world(t), t->rank);
    w->l2_bytes = w->flop / p->tile_rows; /* K and V, once for each tile of queries */
    w->end = m->launch + model_later(w->compute, w->moved);
}
