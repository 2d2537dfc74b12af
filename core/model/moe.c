/* MoE: tables, tokens on their way, and tiles that whoever is free takes
 * (core/roles/moe_dispatch.h); of the whole layer two products, and sums on their way back
 * (moe_ffn.h). Tokens choose evenly: which expert each names is known in a launch alone. */
#include "core/model/moves.h"
#include "core/ops/op.h"
#include "core/roles/moe_dispatch_gemm_plan.h"
#include "core/roles/moe_ffn_plan.h"

#include <math.h>

#define MOST_TILES (1u << 15) /* that are looked at one by one */

/* A product of all rows with their experts' B: tiles side by side, elements of K, columns, and
 * those that are stored, if not all. */
struct product {
    uint32_t across;
    uint64_t k, columns, stored;
};

struct walk {
    struct model_walk *w;
    const struct mk_problem *q;
    const struct moe_dispatch_plan *d;
    const struct mk_role_split *split;
    struct product products[2];
    uint32_t count; /* of products */
    double helpers; /* blocks of inter_reduce that multiply from the beginning */
    double row_tiles;
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

/* Both steps of what a rank has to say, along the rail and to the node, between which several
 * routers meet; then of what it is told. */
static double moe_tables_ns(const struct walk *a)
{
    const struct mk_machine *m = a->w->machine;
    const struct moe_dispatch_plan *d = a->d;
    uint32_t gpus = d->topo.gpus, nodes = d->topo.nodes, routers = d->routers ? d->routers : 1,
             layers = d->layers ? d->layers : 1;
    double ids = (double)d->tokens * d->k, record = (double)d->record_bytes,
           to_node = moe_tokens(d, 1.0 / nodes) * record + (double)d->route.rail_head,
           told = moe_tokens(d, 1.0 / mk_world(&d->topo)) * nodes * record,
           meet = m->flag_own + m->wait,
           come = (gpus * told / record - moe_tokens(d, 1.0 / mk_world(&d->topo))) * d->k *
                  m->route_id,
           relay = m->route_lay + come / routers + meet;
    double at = 2 * ids / routers * m->route_id + (routers > 1 ? 2 : 1) * meet + m->route_count +
                m->route_place;
    if (nodes > 1)
        at += (nodes - 1) * model_later(machine_wire_ns(m, to_node), m->nic_message + m->put) +
              m->command + m->proxy_command + m->nic_latency + m->nic_flag + m->receive +
              machine_through_host_ns(m, to_node) + m->wait + relay;
    if (gpus > 1) {
        const double shares = moe_told_shares(d), movers = a->split->ctas[MK_INTRA_COMM],
                     bytes = told / (shares - 1);
        at += ceil((gpus - 1) * shares / movers) *
                  (machine_copy_ns(m, MACHINE_BLOCK, (uint32_t)shares, 1, MK_PACE_NONE,
                                   bytes > (double)d->said_bytes ? bytes : (double)d->said_bytes) +
                   m->settle) +
              m->flag + m->wait;
    }
    return at + m->route_lay + come / layers + meet + (d->route.columns ? m->route_order : 0);
}

static void moe_moves(struct walk *a)
{
    const struct mk_machine *m = a->w->machine;
    const struct moe_dispatch_plan *d = a->d;
    double world = mk_world(&d->topo), gpus = d->topo.gpus, nodes = d->topo.nodes;
    double to_rank = moe_tokens(d, 1 / world),
           chunk = d->chunk_rows < d->tokens ? d->chunk_rows : d->tokens;
    struct model_turns t = {.split = a->split,
                            .block = MACHINE_BLOCK,
                            .turns = (uint64_t)ceil(to_rank / chunk) * (d->topo.gpus - 1),
                            .bytes = chunk * (double)d->row_bytes};
    struct model_push push = model_push_of(a->w, &t);
    a->pushed = a->ready + push.until;
    /* each chunk that lands is told of to the tiles that have its rows */
    double landed = ceil(to_rank / chunk) * (world - 1) / push.movers * (m->wait + m->flag_own);
    a->joins = a->pushed + landed + 2 * m->movers[MACHINE_BLOCK].start;
    a->first = a->rail = 0;
    if (nodes < 2)
        return;
    double to_node = moe_tokens(d, 1 / nodes);
    struct model_rail r = model_rail_of(a->w, a->split, (uint32_t)ceil(to_node / chunk),
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

/* Of an expert's tiles of rows those that are computed before others' rows have come, and before
 * other nodes' have, on the average: a tile of rows of two kinds belongs to the later stretch of
 * the order (core/cta/cta_route.h). */
static double moe_own(const struct walk *a, double all)
{
    const uint32_t world = mk_world(&a->d->topo);
    return world < 2 ? all : a->d->route.apart ? fmax(0, all / world - 0.5) : 0;
}

static double moe_near(const struct walk *a, double all)
{
    return a->d->route.slices ? fmax(0, all / a->d->topo.nodes - 0.5) : all;
}

/* How often an expert's B is read: in each stretch. */
static double moe_reads(const struct walk *a, double all)
{
    const double near = moe_near(a, all), own = moe_own(a, all), slices = a->d->route.slices;
    return fmax(1, fmin(1, own) + fmin(1, fmax(0, near - own)) +
                       (slices > 0 ? slices * fmin(1, (all - near) / slices) : 0));
}

/* Bytes of a stage of a tile that come from HBM or go there: B, and C, of a product. */
static double moe_fetched(const struct walk *a, const struct product *product, double stored)
{
    const double engines = mk_total_ctas(a->split),
                 tiles = a->row_tiles * (double)mk_ceil_div(a->q->n, a->q->tuning.tile_n),
                 at_once = fmin(engines, tiles),
                 reads = moe_reads(a, a->row_tiles / a->d->rank_experts);
    return model_fetched_groups(a->q) * reads / at_once + stored;
}

static uint64_t moe_stages(const struct walk *a, const struct product *product)
{
    return mk_ceil_div(product->k * op_factor_bytes(a->q), 128);
}

/* Bytes of C that a stage of a tile stands for. */
static double moe_stored(const struct walk *a, const struct product *product)
{
    const double columns = (double)(product->stored ? product->stored : product->columns);
    return (double)a->d->tokens * a->d->k * columns * 2 /
           (a->row_tiles * product->across * (double)moe_stages(a, product));
}

/* ns of a tile of a product, of which `engines` are multiplied at once. An expert's last tile of
 * rows has every number of them, and at most half of all as often as more. */
static double moe_tile_ns(const struct walk *a, const struct product *product, double engines)
{
    const struct mk_machine *m = a->w->machine;
    const struct mk_tuning *t = &a->q->tuning;
    const double stored = moe_stored(a, product),
                 rows = (double)a->d->tokens * a->d->k / a->row_tiles,
                 few = rows <= t->tile_m / 2 ? 1 : 0.5 * a->d->rank_experts / a->row_tiles;
    struct machine_load load = {.sms = a->split->ctas[MK_COMPUTE],
                                .slower = a->w->slower,
                                .fp8 = a->q->fp8,
                                .b_kn = !a->q->b_transposed,
                                .grouped = 1,
                                .engines = engines,
                                .stored = stored};
    double ns = 0;
    for (int half = 0; half < 2; half++) {
        load.rows = half ? fmin(rows, t->tile_m / 2) : 0;
        ns += (half ? few : 1 - few) *
              machine_tile_ns(m, machine_tile_of(m, t->tile_m, t->tile_n, t->cluster), &load,
                              product->k * op_factor_bytes(a->q) / 2,
                              moe_fetched(a, product, stored) * engines);
    }
    return ns;
}

/* Of all tiles, in turns of the products, group by group, `engines` at once. */
static double moe_mean_ns(const struct walk *a, double engines)
{
    double ns = 0, all = 0;
    for (uint32_t i = 0; i < a->count; i++) {
        ns += a->products[i].across * moe_tile_ns(a, &a->products[i], engines);
        all += a->products[i].across;
    }
    return ns / all;
}

/* What the products draw; how many tiles they are. */
static double moe_draw(const struct walk *a)
{
    const struct mk_machine *m = a->w->machine;
    struct model_walk *w = a->w;
    double all = 0;
    for (uint32_t i = 0; i < a->count; i++) {
        const struct product *product = &a->products[i];
        /* a product of FP8 counts half, as model_draw has it */
        double flop = (double)op_factor_bytes(a->q) * a->d->tokens * a->d->k * (double)product->k *
                      (double)product->columns,
               tiles = a->row_tiles * product->across;
        w->flop += flop;
        w->l2_bytes += flop * (1.0 / a->d->tile_m + 1.0 / a->q->tuning.tile_n);
        if (m->joule_byte > 0)
            w->l2_bytes += moe_fetched(a, product, moe_stored(a, product)) *
                           (double)moe_stages(a, product) * tiles * m->joule_hbm / m->joule_byte;
        all += tiles;
    }
    return all;
}

/* Tiles by tickets: a block holds its next tile's number from when it begins the one before. */
static void moe_tiles(struct walk *a)
{
    const struct moe_dispatch_plan *d = a->d;
    struct model_walk *w = a->w;
    double rows = (double)mk_world(&d->topo) * d->tokens * d->k / d->experts;
    a->row_tiles = d->rank_experts * model_row_tiles(rows, d->tile_m);
    const double all = moe_draw(a);
    uint32_t ctas = a->split->ctas[MK_COMPUTE] + (uint32_t)a->helpers,
             joining = a->split->ctas[MK_INTRA_COMM], tiles = (uint32_t)ceil(all),
             group = (uint32_t)mk_ceil_div(tiles, MOST_TILES),
             least = (uint32_t)mk_ceil_div(ctas + joining, MODEL_WORKERS);
    struct model_crew crew = {.count = 0};
    group = group > ctas ? ctas : group < least ? least : group;
    /* by when they ask; blocks that join have no tile then */
    uint32_t first = 0, joins = 0, engines = tiles > ctas + joining ? ctas + joining : ctas,
             left = tiles % engines;
    for (uint32_t i = 0; i + group / 2 < ctas || !i; i += group, first++)
        model_crew_join(&crew, a->ready);
    joins = joining > group / 2 ? (uint32_t)mk_ceil_div(joining - group / 2, group) : 0;
    /* rows of this node's tokens first, then the other nodes'; of the node's own each expert's come
     * with the last of its tokens */
    double of_expert = a->row_tiles / d->rank_experts,
           near = tiles * moe_near(a, of_expert) / of_expert,
           own = tiles * moe_own(a, of_expert) / of_expert,
           ns = moe_mean_ns(a, tiles < engines ? tiles : engines),
           rest = tiles > engines && left ? moe_mean_ns(a, left) : ns;
    w->compute = a->ready;
    for (uint32_t i = 0; i < tiles; i += group) {
        const int join = joins && crew.free[0] > a->joins;
        double at = join ? a->joins : crew.free[0] + (first ? 0 : ns), here = 0;
        if (i >= near)
            here = a->first + (a->rail - a->first) * (i - near) / (tiles - near);
        else if (i >= own)
            here = a->pushed + w->machine->flag;
        at = model_later(at, here + (here > at ? w->machine->wait : 0));
        if (join) {
            model_crew_join(&crew, at);
            joins--;
        } else {
            model_crew_take(&crew, at);
            first -= first > 0;
        }
        w->compute = model_later(w->compute, at + (i + left >= tiles ? rest : ns));
    }
}

static void moe_walk(struct walk *a)
{
    struct model_walk *w = a->w;
    w->flop = w->l2_bytes = 0;
    a->ready = moe_tables_ns(a);
    moe_moves(a);
    moe_tiles(a);
    w->moved = a->pushed;
    w->network = a->rail;
    w->end = model_later(w->compute, a->joins);
}

void model_moe_dispatch_gemm(struct model_walk *w, const struct mk_problem *q,
                             const struct moe_dispatch_gemm_plan *p)
{
    struct walk a = {.w = w, .q = q, .d = &p->dispatch, .split = &p->split, .count = 1};
    a.products[0] = (struct product){p->col_tiles, p->hidden, p->inner, 0};
    moe_walk(&a);
    w->end += w->machine->launch;
}

/* Of a row of tiles' time that of the first product. */
static double moe_up_share(const struct walk *a)
{
    double up = (double)a->products[0].k * (double)a->products[0].columns,
           down = (double)a->products[1].k * (double)a->products[1].columns;
    return up / (up + down);
}

/* What comes back: a rank's rows of a token are added and given to its rail's rank of the node,
 * which adds these; of another node's tokens by the blocks of inter_reduce, and put; then this
 * node's, by all blocks. parts: of a rank's tokens, which are given one by one. */
static void moe_back(struct walk *a, double row_bytes, double sum_bytes, double parts)
{
    struct model_walk *w = a->w;
    const struct mk_machine *m = w->machine;
    const struct moe_dispatch_plan *d = a->d;
    double nodes = d->topo.nodes, gpus = d->topo.gpus, world = nodes * gpus,
           mean = world * d->tokens * d->k / d->experts, /* of an expert */
        rows = (double)d->tokens * d->k / nodes,         /* of a node's tokens on this rank */
        given = gpus * moe_tokens(d, 1 / world),         /* ... of which so many tokens */
        chunk = d->chunk_rows < d->tokens ? d->chunk_rows : d->tokens;
    uint32_t reducers = a->split->ctas[MK_INTER_REDUCE] ? a->split->ctas[MK_INTER_REDUCE] : 1,
             blocks = mk_total_ctas(a->split);
    /* read of a node: rows, then what ranks gave */
    double each = rows * row_bytes + given * 2 * sum_bytes;
    if (nodes > 1) {
        /* Half of the node's own tiles first, then the others' in two slices of whole tiles, each
         * of all experts, then the rest (core/cta/cta_route.h); a group's second product comes behind
         * the next group's first. A slice's tokens are added when it is done: all ranks of the node
         * give their sums for the others, part by part, then each adds and sends its rail's. */
        double all = model_row_tiles(mean, d->tile_m),
               near = fmax(0, fmin(all, mean / nodes / d->tile_m - 0.5)), others = all - near,
               first = others > 1 ? (others - 0.5) / 2 : 0, tile = (w->compute - a->ready) / all,
               behind = moe_up_share(a) * d->route.group_rows / d->rank_experts,
               to_peers = given * (gpus - 1) / gpus, of_block = (nodes - 1) / reducers,
               adds = machine_add_ns(m, MACHINE_TMA, reducers,
                                     (rows * row_bytes + to_peers * sum_bytes) * of_block) +
                      machine_copy_ns(m, MACHINE_BLOCK, reducers, gpus > 1, MK_PACE_NONE,
                                      to_peers * sum_bytes * of_block) +
                      parts * (gpus - 1) * of_block * m->settle,
               slice = a->ready + fmin(near / 2 + first + behind, all) * tile,
               last = a->ready + fmin(near / 2 + others + behind, all) * tile,
               away = model_later(slice + first / others * adds, last) +
                      (1 - first / others) * adds + m->settle + m->flag;
        struct model_rail r =
            model_rail_of(w, a->split, 1, moe_tokens(d, 1 / nodes) * sum_bytes, 0);
        w->network = away + (nodes - 2) * r.put + r.put / ceil(d->tokens / chunk) + r.way;
        w->end = model_later(w->end, w->network);
    }
    w->end +=
        machine_add_ns(m, MACHINE_TMA, blocks, (each + nodes * d->tokens * sum_bytes) / blocks) +
        (gpus > 1 ? m->settle + m->flag : 0) + 2 * (m->movers[MACHINE_BLOCK].start + m->wait);
}

void model_moe_ffn(struct model_walk *w, const struct mk_problem *q, const struct moe_ffn_plan *p)
{
    struct walk a = {.w = w, .q = q, .d = &p->dispatch, .split = &p->split, .count = 2};
    a.products[0] = (struct product){p->up_tiles, p->hidden, 2ull * p->inner, p->inner};
    a.products[1] = (struct product){p->down_tiles, p->inner, p->hidden, 0};
    a.helpers = p->split.ctas[MK_INTER_REDUCE];
    moe_walk(&a);
    moe_back(&a, (double)p->result_bytes, (double)p->carried_bytes,
             (double)p->dispatch.chunks * moe_ffn_parts(p, 0));
    w->end += w->machine->launch;
}
