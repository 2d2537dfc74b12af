/* MoE dispatch+GEMM: tables, tokens on their way, and tiles that whoever is free takes
 * (core/roles/moe_dispatch.h). Tokens choose evenly: which expert each names is known in a launch
 * alone. */
#include "core/model_moves.h"
#include "core/roles/moe_dispatch_gemm_plan.h"

#include <math.h>

#define MOST_TILES (1u << 15) /* that are looked at one by one */

struct walk {
    struct model_walk *w;
    const struct moe_dispatch_gemm_plan *p;
    double ready;  /* tables are there */
    double pushed; /* this rank's tokens are at the node's others */
    double rail;   /* what comes by the rail is here, and handed on */
    double first;  /* ... the first of it */
    double joins;  /* blocks that move tokens begin to multiply */
};

/* Tokens of a rank that name one of `share` of all experts or more. */
static double moe_tokens(const struct moe_dispatch_plan *d, double share)
{
    return d->tokens * (1 - pow(1 - share, d->k));
}

/* Everybody's ids to everybody, then both steps of the tables, which all routers make together. */
static double moe_tables_ns(const struct walk *a)
{
    const struct mk_machine *m = a->w->machine;
    const struct moe_dispatch_plan *d = &a->p->dispatch;
    uint32_t gpus = d->topo.gpus, nodes = d->topo.nodes, routers = d->routers ? d->routers : 1;
    double ids = (double)d->ids_bytes,
           copy = machine_copy_ns(m, MACHINE_BLOCK, 1, 1, 0, ids) + m->settle,
           own = machine_copy_ns(m, MACHINE_BLOCK, 1, 0, 0, ids),
           step = machine_add_ns(m, MACHINE_BLOCK, routers, mk_world(&d->topo) * ids / routers) +
                  m->flag_own + m->wait;
    double at = (gpus - 1) * copy + own + (gpus > 1 ? m->flag : m->flag_own) + m->wait;
    if (nodes > 1)
        at += (nodes - 1) * model_later(machine_wire_ns(m, ids), m->nic_message + m->put) +
              m->command + m->proxy_command + m->nic_latency + m->nic_flag + m->receive +
              machine_through_host_ns(m, ids) + (gpus - 1) * copy + m->wait;
    return at + 2 * step + m->route_count + m->route_place;
}

static void moe_moves(struct walk *a)
{
    const struct mk_machine *m = a->w->machine;
    const struct moe_dispatch_plan *d = &a->p->dispatch;
    double world = mk_world(&d->topo), gpus = d->topo.gpus, nodes = d->topo.nodes;
    double to_rank = moe_tokens(d, 1 / world),
           chunk = d->chunk_rows < d->tokens ? d->chunk_rows : d->tokens;
    struct model_turns t = {.split = &a->p->split,
                            .block = MACHINE_BLOCK,
                            .turns = (uint64_t)ceil(to_rank / chunk) * (d->topo.gpus - 1),
                            .bytes = chunk * (double)d->row_bytes};
    struct model_push push = model_push_of(a->w, &t);
    a->pushed = a->ready + push.until;
    /* each chunk that lands is told of to the tiles that have its rows */
    double landed = ceil(to_rank / chunk) * (world - 1) / push.movers * (m->wait + m->flag_own);
    a->joins = a->pushed + landed;
    a->first = a->rail = 0;
    if (nodes < 2)
        return;
    double to_node = moe_tokens(d, 1 / nodes);
    struct model_rail r = model_rail_of(a->w, &a->p->split, (uint32_t)ceil(to_node / chunk),
                                        chunk * (double)d->row_bytes, 1);
    r.first = a->ready;
    a->first = model_by_rail(&r, 1, 0);
    a->rail = model_by_rail(&r, d->topo.nodes - 1, r.chunks - 1);
    if (gpus > 1) {
        double forwarded = push.until * (nodes - 1);
        a->rail = model_later(a->rail, a->pushed + forwarded) + push.round + m->flag;
    }
    a->joins = model_later(a->joins, a->rail);
}

/* Tiles of rows of an expert that about `mean` rows go to: they come from many tokens one by one.
 */
static double moe_row_tiles(double mean, double tile)
{
    double tiles = 0, spread = sqrt(mean) * 1.41421356;
    for (double rows = 0; rows < mean + 4 * spread + tile; rows += tile)
        tiles += spread > 0 ? 0.5 * erfc((rows - mean) / spread) : 0;
    return tiles;
}

static void moe_tiles(const struct walk *a, const struct mk_problem *q)
{
    const struct moe_dispatch_plan *d = &a->p->dispatch;
    struct model_walk *w = a->w;
    const struct mk_machine *m = w->machine;
    const struct machine_tile *tile = machine_tile_of(m, d->tile_m, a->p->tile_n, a->p->cluster);
    struct machine_load load = {.sms = a->p->split.ctas[MK_COMPUTE],
                                .slower = w->slower,
                                .b_kn = !q->b_transposed,
                                .grouped = 1};
    double ns = machine_tile_ns(m, tile, &load, a->p->hidden, model_fetched_groups(q)),
           rows = (double)mk_world(&d->topo) * d->tokens * d->k / d->experts,
           all = d->rank_experts * moe_row_tiles(rows, d->tile_m) * a->p->col_tiles;
    uint32_t ctas = a->p->split.ctas[MK_COMPUTE], joining = a->p->split.ctas[MK_INTRA_COMM],
             tiles = (uint32_t)ceil(all), group = (uint32_t)mk_ceil_div(tiles, MOST_TILES),
             least = (uint32_t)mk_ceil_div(ctas + joining, MODEL_WORKERS);
    struct model_crew crew = {.count = 0};
    group = group > ctas ? ctas : group < least ? least : group;
    for (uint32_t i = 0; i + group / 2 < ctas || !i; i += group)
        model_crew_join(&crew, a->ready);
    for (uint32_t i = group / 2; i < joining; i += group)
        model_crew_join(&crew, a->joins);
    /* rows of this node's tokens first, then the other nodes'; of the node's own each expert's come
     * with the last of its tokens */
    double near = tiles / (double)d->topo.nodes, own = tiles / (double)mk_world(&d->topo);
    w->compute = a->ready;
    for (uint32_t i = 0; i < tiles; i += group) {
        double at = crew.free[0], here = 0;
        if (i >= near)
            here = a->first + (a->rail - a->first) * (i - near) / (tiles - near);
        else if (i >= own)
            here = a->pushed + m->flag;
        at = model_later(at, here + (here > at ? m->wait : 0)) + ns;
        model_crew_take(&crew, at);
        w->compute = model_later(w->compute, at);
    }
    w->flop = 2.0 * d->tokens * d->k * a->p->hidden * a->p->inner;
    w->l2_bytes = w->flop * (1.0 / d->tile_m + 1.0 / a->p->tile_n);
}

void model_moe_dispatch_gemm(struct model_walk *w, const struct mk_problem *q,
                             const struct moe_dispatch_gemm_plan *p)
{
    struct walk a = {.w = w, .p = p};
    a.ready = moe_tables_ns(&a);
    moe_moves(&a);
    moe_tiles(&a, q);
    w->moved = a.pushed;
    w->network = a.rail;
    w->end = w->machine->launch + model_later(w->compute, a.joins);
}
