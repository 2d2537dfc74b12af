/* GEMM+ReduceScatter and GEMM+AllReduce, wave by wave: core/roles/gemm_rs.h and gemm_ar.h as chains
 * of queues. */
#include "core/model_gemm.h"

/* The way of a tile from the tensor cores to its reducer, as kernels/gemm_reduce.cuh has it: stored
 * to the CTA's outbox, taken by one or two warps to its reducer. Another way (sums that stay in
 * registers) changes this function. */
struct model_way {
    double behind; /* ns after the tile's end until the warps may begin */
    double send;   /* ns of the warps for a tile, of the CTAs that have most of it */
    double work;   /* ns that warps of one CTA work for a tile, on average */
    uint32_t room; /* tiles that the engine may be ahead */
};

static uint32_t model_common_divisor(uint32_t a, uint32_t b)
{
    while (b) {
        uint32_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static struct model_way model_way_of(const struct model_walk *w, const struct gemm_rs_plan *p,
                                     uint32_t engines)
{
    const struct mk_machine *m = w->machine;
    uint32_t gpus = p->topo.gpus, ctas = p->split.ctas[MK_COMPUTE];
    uint32_t coresident = mk_role_coresident(&p->split, MK_INTER_REDUCE) +
                          mk_role_coresident(&p->split, MK_INTRA_COMM);
    uint32_t senders = coresident < 2 ? 2 : 1;
    double bytes = (double)p->shard_rows * p->n * p->element_bytes / p->shard_tiles / p->cluster;
    uint32_t away = ctas * (gpus - 1) / gpus * senders;
    double slowed = 1 + m->under, halves = 2.0 / senders;
    double own = machine_copy_ns(m, MACHINE_WARP, ctas * senders - away, 0, 0, bytes / 2) * halves *
                 slowed,
           peer = machine_copy_ns(m, MACHINE_WARP, away, 1, p->pace * senders, bytes / 2) * halves;
    double alone = machine_copy_ns(m, MACHINE_WARP, 1, 1, 0, bytes / 2) * halves * slowed;
    own += m->send;
    peer = model_later(peer, alone) + m->settle + m->send;
    /* The i-th CTA's tiles go to every owner in turn only where the engines and the ranks have no
     * common divisor; else some CTAs have none but a peer's. */
    uint32_t owners = gpus / model_common_divisor(engines, gpus);
    struct model_way way = {.behind = m->wait, .room = GEMM_RS_OUTBOX};
    double mixed = (own + (gpus - 1) * peer) / gpus;
    way.send = gpus == 1 ? own : owners == gpus ? mixed : model_later(own, peer);
    way.work = mixed * senders;
    return way;
}

/* When all ranks' tile `t` of the order has reached its reducer: a table of waves. */
struct model_ready {
    uint32_t engines, group; /* waves of an entry */
    double at[MODEL_SAMPLES + 1];
};

static double model_ready_at(const struct model_ready *r, uint64_t t)
{
    uint64_t wave = t / r->engines;
    uint32_t entry = (uint32_t)(wave / r->group), within = (uint32_t)(wave % r->group) + 1;
    double from = entry ? r->at[entry - 1] : 0;
    return from + (r->at[entry] - from) * within / r->group;
}

/* The tile of this rank, in its order, that is the last of the node's to complete a unit of the
 * block of the node at `distance` (the last: its own). */
static uint64_t model_tile_of_unit(const struct gemm_rs_plan *p, uint32_t distance, uint32_t unit)
{
    uint32_t tile = unit / p->pieces, chunk = tile / p->chunk_tiles, within = tile % p->chunk_tiles;
    uint32_t width =
        chunk < p->full_chunks ? p->chunk_tiles : p->shard_tiles - chunk * p->chunk_tiles;
    uint32_t place = chunk & 1 ? width - 1 - within : within;
    return (uint64_t)distance * p->topo.gpus * p->shard_tiles +
           ((uint64_t)chunk * p->chunk_tiles + place) * p->topo.gpus + p->topo.gpus - 1;
}

static void model_tiles(struct model_walk *w, const struct gemm_rs_plan *p,
                        const struct model_engine *e, const struct model_way *way,
                        struct model_ready *ready)
{
    const struct mk_machine *m = w->machine;
    uint64_t waves = mk_ceil_div(p->tiles, e->engines);
    uint32_t entries;
    double tile = e->begin + (double)e->stages * e->stage + e->end + m->outbox;
    double made = 0, sent = 0;
    ready->engines = e->engines;
    ready->group = (uint32_t)mk_ceil_div(waves, MODEL_SAMPLES);
    entries = (uint32_t)mk_ceil_div(waves, ready->group);
    for (uint32_t i = 0; i < entries; i++) {
        double count =
            i + 1 < entries ? ready->group : (double)(waves - (uint64_t)i * ready->group);
        made += count * tile;
        /* the outbox is full while the warps are more than `room` tiles behind */
        double room = i >= way->room ? ready->at[i - way->room] - m->flag : 0;
        if (room + e->end > made)
            made = room + e->end;
        sent = model_later(sent + count * way->send, made + way->behind + way->send);
        ready->at[i] = sent + m->flag;
    }
    w->compute = made;
    w->moved = sent;
}

/* What the reducers and, of gemm_ar, the pushing role do behind the tiles. */
struct model_after {
    uint32_t reducers, pushers;
    double add, add_own;         /* ns of a unit's sum of another node's block, of the own one */
    double deliver;              /* ns of a unit taken to C */
    double push;                 /* ns of a unit pushed to one peer */
    double push_alone;           /* ... by one mover at no pace */
    double put;                  /* ns between two puts */
    double way;                  /* ns of a put's way */
    int add_beside, push_beside; /* 1: they share SMs with engines */
};

static struct model_after model_after_of(const struct model_walk *w, const struct gemm_rs_plan *p,
                                         int gathers)
{
    const struct mk_machine *m = w->machine;
    const uint32_t *ctas = p->split.ctas;
    double elements = (double)p->shard_rows * p->n / p->units, bytes = elements * p->element_bytes;
    enum machine_mover adder =
        mk_role_coresident(&p->split, MK_INTER_REDUCE) ? MACHINE_WARP : MACHINE_BLOCK;
    enum machine_mover pusher =
        mk_role_coresident(&p->split, MK_INTRA_COMM) ? MACHINE_WARP : MACHINE_BLOCK;
    struct model_after a = {.reducers = ctas[MK_INTER_REDUCE], .pushers = ctas[MK_INTRA_COMM]};
    uint32_t beside_add = mk_role_coresident(&p->split, MK_INTER_REDUCE),
             beside_push = mk_role_coresident(&p->split, MK_INTRA_COMM);
    a.add_beside = beside_add > 0;
    a.push_beside = beside_push > 0;
    uint32_t adding = a.reducers < p->units ? a.reducers : p->units;
    uint32_t pushing =
        adding * (p->topo.gpus - 1) < a.pushers ? adding * (p->topo.gpus - 1) : a.pushers;
    a.add = p->slots == 1 ? machine_copy_ns(m, adder, adding, 0, 0, bytes)
                          : machine_add_ns(m, adder, adding, bytes * p->slots);
    a.add_own = p->slots + p->topo.nodes == 2
                    ? a.add
                    : machine_add_ns(m, adder, adding, bytes * (p->slots + p->topo.nodes - 1));
    if (gathers) {
        a.deliver = machine_copy_ns(m, adder, adding, 0, 0, elements * 2);
        if (p->topo.gpus > 1) {
            uint32_t pace = pusher == MACHINE_WARP ? p->pace : 0;
            a.push = machine_copy_ns(m, pusher, pushing, 1, pace, elements * 2) + m->settle;
            a.push_alone = machine_copy_ns(m, pusher, 1, 1, 0, elements * 2) + m->settle;
        }
    }
    a.put =
        model_later(m->nic_rate > 0 ? bytes / m->nic_rate : 0, model_later(m->nic_message, m->put));
    a.way = m->command + m->proxy_command + m->nic_latency + m->nic_flag + m->receive;
    return a;
}

/* When `rounds` of pushes that begin at `from` are through: neither the pace nor NVLink's share is
 * slower beside an engine. */
static double model_push_done(const struct model_walk *w, const struct model_after *a, double from,
                              double rounds)
{
    return model_later(from + rounds * a->push,
                       model_spend(w, from, rounds * a->push_alone, a->push_beside));
}

/* Turns of the reducers: of each turn one unit of a block for each reducer. */
static void model_sums(struct model_walk *w, const struct gemm_rs_plan *p,
                       const struct model_after *a, const struct model_ready *ready, int gathers)
{
    const struct mk_machine *m = w->machine;
    uint32_t nodes = p->topo.nodes, gpus = p->topo.gpus, world = mk_world(&p->topo);
    uint64_t items = (uint64_t)nodes * p->units, foreign = items - p->units;
    uint64_t turns = mk_ceil_div(items, a->reducers), group = mk_ceil_div(turns, MODEL_SAMPLES);
    double at[MODEL_MEMBERS] = {0}, nic = 0, arrived = 0, pushed = 0, before = 0;
    w->network = 0;
    for (uint64_t turn = 0; turn < turns; turn += group) {
        double count = turn + group < turns ? (double)group : (double)(turns - turn), summed = 0;
        uint64_t first = turn * a->reducers, last = (turn + (uint64_t)count) * a->reducers;
        last = last < items ? last : items;
        for (uint32_t member = 0; member < MODEL_MEMBERS; member++) {
            uint64_t item = ((turn + (uint64_t)count - 1) * a->reducers) +
                            (2 * member + 1) * a->reducers / (2 * MODEL_MEMBERS);
            if (item >= items && member) {
                continue;
            }
            item = item < items ? item : items - 1;
            int own = item >= foreign;
            double here = model_ready_at(
                ready, model_tile_of_unit(p, (uint32_t)(item / p->units), item % p->units));
            if (own && nodes > 1)
                here = model_later(here, arrived);
            double add = own ? a->add_own : a->add;
            at[member] = model_spend(w, at[member], (count - 1) * add, a->add_beside);
            at[member] =
                model_spend(w, model_later(at[member], here + m->wait), add, a->add_beside) +
                (gathers && own ? m->flag_own : 0);
            summed = model_later(summed, at[member]);
            if (gathers && own) { /* of all blocks the units of the turn before */
                if (before > at[member])
                    at[member] = before;
                at[member] = model_spend(w, at[member], count * world * (a->deliver + m->wait),
                                         a->add_beside);
            }
        }
        if (first < foreign || (gathers && nodes > 1)) { /* all that leaves goes through one NIC */
            double puts = (double)(last - first) * (first < foreign ? 1 : nodes - 1);
            nic = model_later(nic, summed) + puts * a->put;
            arrived = nic + a->way;
            w->network = arrived;
        }
        if (gathers && first >= foreign) {
            double rounds = (double)(last - first) * nodes * (gpus - 1) / a->pushers;
            double from = model_later(pushed, nodes > 1 ? arrived : summed + m->flag_own);
            if (gpus > 1) {
                pushed = model_push_done(w, a, from, rounds);
                before = (rounds < 1 ? model_push_done(w, a, from, 1) : pushed) + m->flag;
                w->moved = model_later(w->moved, before);
            } else {
                before = nodes > 1 ? arrived : 0;
            }
        }
    }
    w->end = 0;
    for (uint32_t member = 0; member < MODEL_MEMBERS; member++)
        w->end = model_later(w->end, at[member]);
    if (gathers) /* the last turn's units are delivered in a turn of their own */
        w->end = model_later(w->end, before) + world * (a->deliver + m->wait);
}

void model_gemm_rs(struct model_walk *w, const struct mk_problem *q, const struct gemm_rs_plan *p,
                   int gathers)
{
    uint32_t ctas = p->split.ctas[MK_COMPUTE];
    struct model_after after = model_after_of(w, p, gathers);
    struct model_engine e = model_engine_of(w, q, 0);
    struct model_way way = model_way_of(w, p, e.engines);
    double work = way.work * p->tiles / e.engines * ctas;
    if (mk_role_coresident(&p->split, MK_INTER_REDUCE))
        work += after.add_own * p->units +
                (gathers ? after.deliver * p->units * mk_world(&p->topo) : 0);
    if (mk_role_coresident(&p->split, MK_INTRA_COMM))
        work += after.push * p->units * (p->topo.gpus - 1);
    e = model_engine_of(w, q, model_beside(w, work, ctas));
    struct model_ready ready;
    model_draw(w, q, p->tiles);
    model_tiles(w, p, &e, &way, &ready);
    model_sums(w, p, &after, &ready, gathers);
    w->end = w->machine->launch + model_later(w->end, w->compute);
}
