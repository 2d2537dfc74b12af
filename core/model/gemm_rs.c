/* GEMM+ReduceScatter and GEMM+AllReduce, wave by wave: core/roles/gemm_rs.h and gemm_ar.h as chains
 * of queues. */
#include "core/model/gemm.h"
#include "core/plan/pipeline.h"

#include <math.h>

/* What a rank's tiles cost beside their products, by what they are (kernels/sums/gemm_reduce.cuh).
 */
struct model_way {
    uint32_t senders; /* warps of a CTA that take tiles to peers */
    double behind;    /* ns after a tile's end until these may begin */
    double send[2];   /* ns of them for a tile that goes to a peer; 1: behind the engine's last */
    double push[2];   /* ... for an own tile that goes to all peers, where sums are gathered */
    double add;       /* ns of the engine to add what the node's others have of a tile, */
    double add_nodes; /* and what other nodes have */
    double busy;      /* share by which what leaves wants more than NVLink takes */
    double outbox;    /* ns that a tile takes more by way of the CTA's outbox */
    double put, way;  /* ns between two units that are put; of a put's way */
    double deliver;   /* ns of a unit taken from the heap to C */
    double pass;      /* ... that the network brought passed on to one peer */
    uint32_t pushers, forwards; /* CTAs that do so; of a unit, how often it is passed on */
};

static struct model_way model_way_of(const struct model_walk *w, const struct gemm_rs_plan *p,
                                     const struct model_engine *e, int gathers, int apart)
{
    const struct mk_machine *m = w->machine;
    uint32_t gpus = p->topo.gpus, nodes = p->topo.nodes, ctas = p->split.ctas[MK_COMPUTE];
    uint32_t beside = p->split.intra_comm_warps;
    struct model_way way = {.senders = mk_pipeline_senders(&p->split),
                            .behind = m->wait,
                            .outbox = p->direct_store ? 0 : m->outbox,
                            .pushers = p->split.ctas[MK_INTRA_COMM],
                            .forwards = gathers ? (nodes - 1) * (gpus - 1) : 0};
    /* Elements that a sender takes of a whole tile; where a block's rows end, less. The slowest has
     * whole ones, for which it keeps its pace, while all together share NVLink with the mean. */
    uint32_t rows = p->tile_m / p->cluster / 2,
             high = (uint32_t)mk_round_up(p->block_rows, p->grain_rows),
             wide = p->tile_n < p->block_cols ? p->tile_n : p->block_cols;
    double part = (double)(rows < high ? rows : high) * wide,
           mean = (double)p->block_rows * p->block_cols / p->shard_tiles / p->cluster / 2,
           fill = mean < part ? mean / part : 1, halves = 2.0 / way.senders,
           fences = apart ? gpus - 1 : 1; /* behind which peers are told of a tile */
    /* To one peer as fast as its pace, and as NVLink takes what all push, but no faster than a warp
     * does alone beside the engine. */
    for (int whole = 0; whole < 2; whole++) {
        double bytes = part * (whole ? 2 : p->element_bytes);
        /* at a time: a tile of each CTA, but of a block no more than it has */
        uint64_t tiles = (uint64_t)p->shard_tiles * (whole ? 1 : gpus - 1) * p->cluster;
        uint32_t at_once = tiles < ctas ? (uint32_t)tiles : ctas;
        uint32_t warps = (uint32_t)(at_once * way.senders * fill);
        double together = machine_copy_ns(m, MACHINE_WARP, warps ? warps : 1, 1,
                                          mk_pace_of_each(p->pace, way.senders), bytes);
        for (int after = 0; after < 2; after++) {
            double alone = machine_send_ns(m, !after, bytes),
                   ns = model_later(together, alone) * halves;
            if (p->direct_store) /* all of its consumers' lanes, of each half */
                ns = machine_copy_ns(m, MACHINE_BLOCK, warps / way.senders, 1, MK_PACE_NONE,
                                     2 * bytes);
            (whole ? way.push : way.send)[after] =
                gpus > 1 ? ns * (whole ? gpus - 1 : 1) + m->settle * (whole ? fences : 1) : 0;
        }
    }
    /* what leaves lies in L2, as it was just made */
    way.busy =
        gpus > 1 ? machine_wanted(m, ctas * way.senders, mk_pace_of_each(p->pace, way.senders)) : 0;
    /* What is added comes through the ring of stages: two for each term, of fp32 four. */
    double added = e->stage * (p->element_bytes == 4 ? 2 : 1);
    way.add = added * (gpus - 1);
    way.add_nodes = added * (nodes - 1);
    double unit = (double)p->block_rows * p->block_cols / p->units;
    double units = (double)p->units / gemm_rs_puts(p); /* of a put */
    double put = model_later(unit * p->element_bytes, gathers ? unit * 2 : 0) * units;
    way.put = model_later(machine_wire_ns(m, put), model_later(m->nic_message, m->put)) / units;
    way.way = m->command + m->proxy_command + m->nic_latency + m->nic_flag + m->receive +
              machine_through_host_ns(m, put);
    if (way.pushers) {
        enum machine_mover mover = beside ? MACHINE_WARP : MACHINE_BLOCK;
        uint32_t movers = way.pushers < p->units ? way.pushers : p->units;
        way.deliver =
            machine_copy_ns(m, mover, movers, 0, MK_PACE_NONE, unit * 2) + m->wait + m->deliver;
        way.pass = machine_copy_ns(m, mover, movers, 1, beside ? p->pace : MK_PACE_NONE, unit * 2) +
                   m->settle + m->wait;
    }
    return way;
}

/* The place in the order of a block's tiles of the last one that turn `turn` has for others: what
 * gemm_rs_turn does, the other way round. */
static uint64_t model_place_of_turn(const struct gemm_rs_plan *p, uint32_t turn)
{
    uint32_t others = p->topo.gpus - 1, all = p->shard_tiles, whole = all / p->batch * p->batch;
    uint32_t lead = p->lag * p->batch < all ? p->lag * p->batch : all,
             rounds = whole > lead ? (whole - lead) / p->batch : 0,
             last = whole > lead ? whole : lead;
    uint64_t head = (uint64_t)lead * others, round = (uint64_t)p->batch * p->topo.gpus;
    if (turn < lead)
        return (uint64_t)turn * others + others - 1;
    if (turn < last)
        return head + (turn - lead) / p->batch * round +
               (uint64_t)((turn - lead) % p->batch) * others + others - 1;
    return head + rounds * round + (uint64_t)(turn - last) * others + others - 1;
}

/* The walk of one CTA, or cluster, through its tiles: a step is a wave, or some of them. */
struct model_steps {
    uint32_t engines, group; /* waves of a step */
    double
        there[MODEL_SAMPLES * 8 + 1]; /* when a step's tile is where it goes: at a peer, a node */
};

static double model_there(const struct model_steps *s, uint64_t t)
{
    return s->there[t / s->engines / s->group];
}

static void model_tiles(struct model_walk *w, const struct gemm_rs_plan *p,
                        const struct model_engine *e, const struct model_way *way,
                        struct model_steps *s, int gathers)
{
    const struct mk_machine *m = w->machine;
    uint64_t waves = mk_ceil_div(p->tiles, e->engines);
    uint32_t node_tiles = p->topo.gpus * p->shard_tiles, nodes = p->topo.nodes, passed = 0;
    uint32_t whole = p->cut_from + p->cut_tiles; /* tiles, where some are cut in slices */
    double tile = e->begin + (double)e->stages * e->stage + e->end, made = 0, sent = 0, nic = 0,
           first = -1, last = 0, room[GEMM_RS_OUTBOX] = {0};
    s->engines = e->engines;
    s->group = (uint32_t)mk_ceil_div(waves, MODEL_SAMPLES * 8);
    w->network = 0;
    for (uint64_t wave = 0; wave < waves; wave += s->group) {
        double count = waves - wave < s->group ? (double)(waves - wave) : s->group;
        uint64_t t = wave * e->engines + e->engines / 2, step = wave / s->group;
        t = wave + s->group < waves ? t : whole - 1; /* the last one ends the launch */
        uint32_t block = (uint32_t)(t / node_tiles), behind,
                 turn = gemm_rs_turn(p, (uint32_t)(t % node_tiles), &behind);
        int own = !behind && block + 1 == nodes, passes = gathers || !own;
        s->there[step] = sent + m->flag; /* where a tile waits for one of its own step */
        int after = wave + s->group >= waves;
        double here = 0, tiles = count * tile,
               work = behind ? way->send[after]
                      : own  ? way->push[after]
                             : 0;
        if (!behind && p->topo.gpus > 1) {
            uint64_t theirs = (uint64_t)block * node_tiles + model_place_of_turn(p, turn);
            here = theirs >= t ? 0
                   : theirs / s->engines / s->group < step
                       ? model_there(s, theirs) + m->wait
                       : made + tile + way->outbox + way->behind + way->send[0] + m->flag + m->wait;
            tiles += count * way->add;
        }
        if (own && nodes > 1) { /* the sums of the block before have come the same way */
            here = model_later(here, model_there(s, t - node_tiles) + m->wait);
            tiles += count * way->add_nodes;
        }
        tiles += behind ? count * way->outbox : 0;
        if (after && p->slices > 1) /* a slice in place of the last tile */
            tiles += 2 * m->outbox + m->settle + m->flag + m->wait -
                     (1 - 1.0 / p->slices) * (double)e->stages * e->stage;
        /* what the tile before sends while this one is multiplied stands in its way */
        tiles += (e->busy - 1) * way->busy * count * (work < tile ? work : tile) * e->stages *
                 e->stage / tile;
        double products = count * (tile - e->end); /* behind them it is waited for */
        made = model_later(made + products, here) + tiles - products;
        if (passes) { /* the outbox is full while the warps are too far behind */
            double *place = &room[passed++ % GEMM_RS_OUTBOX];
            made = model_later(made, *place + e->end);
            sent = model_later(sent + count * work, made + way->behind + work);
            *place = sent;
        }
        s->there[step] = passes ? sent + m->flag : made;
        if (!behind && nodes > 1 && (!own || gathers)) {
            double puts = count * e->engines; /* of a block no more than it has */
            puts = (puts < p->shard_tiles ? puts : p->shard_tiles) * p->pieces;
            nic = model_later(nic, s->there[step]) + puts * way->put * (own ? nodes - 1 : 1);
            s->there[step] = w->network = nic + way->way;
        }
        if (own && first < 0)
            first = s->there[step];
        last = model_later(last, s->there[step]);
    }
    w->compute = made;
    w->moved = sent;
    w->end = model_later(made, p->topo.gpus > 1 ? sent + m->flag : 0);
    if (gathers && way->pushers) { /* what comes from all others is delivered as it comes */
        double deliveries = mk_world(&p->topo) - 1.0, items = deliveries + way->forwards,
               unit = deliveries * way->deliver + way->forwards * way->pass;
        int beside = p->split.intra_comm_warps > 0;
        w->end = model_later(w->end,
                             model_spend(w, first, (double)p->units * unit / way->pushers, beside));
        /* what all others' last waves bring comes at once, so that a warp has several of it */
        uint32_t together = (p->shard_tiles - 1) % p->batch + 1;
        double burst = (double)together * p->pieces * items;
        w->end = model_later(w->end, last + (way->forwards ? way->pass : 0) +
                                         ceil(burst / way->pushers) * unit / items);
    }
}

/* One shot: waves of tiles, each with its exchange behind it. All but the last wave's bytes go
 * beside products: of the next tile where tiles pass the outbox, else of CTAs that wait at other
 * times. */
static void model_joint(struct model_walk *w, const struct mk_problem *q,
                        const struct gemm_rs_plan *p)
{
    const struct mk_machine *m = w->machine;
    struct model_engine e = model_engine_of(w, q, 0);
    uint64_t waves = mk_ceil_div(p->tiles, e.engines);
    double rows = p->gathers ? p->m : p->shard_rows, peers = p->topo.gpus - 1.0;
    double bytes = rows * p->n * p->element_bytes * peers / (double)waves;
    /* Until a flag is on its way, and looked at. Words that say themselves that they are here take
     * as long: 9 us behind a product of 16 rows and its launch, of which the wire takes 3. */
    double late = peers > 0 ? m->settle + m->wait + m->flag + m->wait : 0;
    double link = peers > 0 ? bytes / m->nvlink_out : 0;
    model_draw(w, q, p->tiles);
    /* of a CTA's tiles a rank adds up all, where the sum goes to all, else those of its own rows */
    uint64_t added = p->gathers ? waves : mk_ceil_div(waves, p->topo.gpus);
    w->compute = (double)waves * (e.begin + (double)e.stages * e.stage + e.end) +
                 (double)added * e.end * peers;
    double wave = w->compute / (double)waves, waits = p->via_outbox ? 1 : (double)waves;
    w->compute = (double)(waves - 1) * (wave > link ? wave : link) + wave;
    w->moved = w->end = w->compute + waits * late + link;
    w->network = 0;
    w->end += m->launch;
}

/* Tiles that ranks share: a wave's parts and sums go beside the products of the next, and behind
 * the last stand its parts, the sum of what has come and its way to all. */
static void model_shared(struct model_walk *w, const struct mk_problem *q,
                         const struct gemm_rs_plan *p)
{
    const struct mk_machine *m = w->machine;
    struct model_engine e = model_engine_of(w, q, 0);
    uint64_t waves = mk_ceil_div(p->tiles, e.engines);
    double gpus = p->topo.gpus, elements = (double)p->m * p->n / (double)waves * (gpus - 1) / gpus;
    double parts = elements * p->element_bytes / m->nvlink_out, sums = elements * 2 / m->nvlink_out,
           late = m->settle + m->wait + m->flag;
    double wave = e.begin + (double)e.stages * e.stage + e.end,
           senders = mk_pipeline_senders(&p->split);
    double tile = (double)p->tile_m / p->cluster * p->tile_n, half = tile / senders;
    double add = machine_add_ns(m, MACHINE_WARP, p->split.ctas[MK_COMPUTE] * (uint32_t)senders,
                                half * p->element_bytes),
           warp = parts + late + add * (1 + m->under) + sums + m->settle; /* beside the engine */
    model_draw(w, q, p->tiles);
    double step = model_later(wave, warp);
    w->compute = (double)(waves - 1) * step + wave;
    w->moved = w->end = w->compute + late + parts + add + late + sums + m->wait;
    w->network = 0;
    if (!q->c_in_heap) /* a warp takes what has come to C */
        w->end += machine_copy_ns(m, MACHINE_WARP, p->split.ctas[MK_INTRA_COMM], 0, MK_PACE_NONE,
                                  tile * 2 * (gpus - 1) / gpus) +
                  m->deliver;
    w->end += m->launch;
}

void model_gemm_rs(struct model_walk *w, const struct mk_problem *q, const struct gemm_rs_plan *p,
                   int gathers)
{
    uint32_t ctas = p->split.ctas[MK_COMPUTE];
    if (p->shots == 1) {
        (p->shared_columns ? model_shared : model_joint)(w, q, p);
        return;
    }
    struct model_engine e = model_engine_of(w, q, 0);
    struct model_way way =
        model_way_of(w, p, &e, gathers, q->fp8 || q->deterministic == MK_EVERYWHERE);
    if (q->c_in_heap && p->topo.nodes == 1) /* nothing is delivered */
        way.pushers = 0, way.deliver = 0;
    double own = (double)p->shard_tiles,
           others = own * (mk_world(&p->topo) - (double)p->topo.nodes);
    double work =
        (others * way.send[0] + (gathers ? own * way.push[0] : 0)) * way.senders / e.engines * ctas;
    if (p->split.intra_comm_warps)
        work += (way.deliver * (mk_world(&p->topo) - 1) + way.pass * way.forwards) * p->units;
    e = model_engine_of(w, q, model_beside(w, work, ctas));
    struct model_steps steps;
    model_draw(w, q, p->tiles);
    model_tiles(w, p, &e, &way, &steps, gathers);
    w->end += w->machine->launch;
}
