/* AllGather+GEMM, wave by wave: core/roles/ag_gemm.h as a chain of queues. */
#include "core/model_gemm.h"

/* How the node's ranks push their shards: turns dealt out to movers, `round` ns a turn. */
struct model_push {
    uint32_t movers;
    double round; /* of one turn of all movers */
    double until; /* the last turn's end */
    double busy;  /* factor of the tiles' stages while they last */
    double first; /* when the first turn begins */
};

static struct model_push model_push_of(const struct model_walk *w, const struct mk_problem *q,
                                       const struct ag_gemm_plan *p)
{
    const struct mk_machine *m = w->machine;
    uint32_t movers = p->split.ctas[MK_INTRA_COMM],
             coresident = mk_role_coresident(&p->split, MK_INTRA_COMM);
    struct model_push push = {.movers = movers ? movers : 1, .busy = 1};
    if (p->topo.gpus < 2)
        return push;
    uint32_t turns = (p->topo.gpus - 1) * p->chunks * p->slices * p->pieces,
             at_once = turns < movers ? turns : movers;
    double bytes =
        (double)p->shard_rows * (double)p->row_bytes / ((double)p->chunks * p->slices * p->pieces);
    enum machine_mover mover = coresident ? MACHINE_WARP : MACHINE_TMA;
    push.round = machine_copy_ns(m, mover, at_once, 1, p->pace, bytes);
    if (coresident)
        push.round =
            model_later(push.round, machine_copy_ns(m, mover, 1, 1, 0, bytes) * (1 + m->under));
    push.round += m->settle;
    push.until = push.round * (double)mk_ceil_div(turns, movers);
    /* share by which the warps want more than NVLink takes, the worse where A is in memory */
    double wanted = coresident ? machine_wanted(m, movers, p->pace) : 0,
           gathered = (double)mk_world(&p->topo) * p->shard_rows * (double)p->row_bytes;
    push.busy = wanted * (1 + m->spill * machine_spilled(m, gathered));
    return push;
}

/* When a slice of a chunk of the shard at `distance` (1 ..) has arrived: all its pieces. */
static double model_arrival(const struct model_walk *w, const struct ag_gemm_plan *p,
                            const struct model_push *push, uint32_t distance, uint32_t chunk,
                            uint32_t slice)
{
    uint32_t before = (distance - 1) / p->fanout * p->fanout, left = p->topo.gpus - 1 - before,
             fanout = p->fanout < left ? p->fanout : left, head = p->chunks - p->tail;
    uint32_t step = chunk < head ? chunk * p->slices + slice
                                 : head * p->slices + slice * p->tail + chunk - head;
    uint64_t turn = (uint64_t)before * p->chunks * p->slices * p->pieces +
                    (uint64_t)(step + 1) * fanout * p->pieces;
    return push->first + push->round * (double)mk_ceil_div(turn, push->movers) + w->machine->flag;
}

/* When a chunk of a shard of this rail is here from the node at `distance`: staged by a CTA of
 * inter_send, then put, one after the other. Ranks are alike: it is here when this rank's own is
 * there. */
static double model_by_rail(const struct model_walk *w, const struct ag_gemm_plan *p,
                            uint32_t distance, uint32_t chunk)
{
    const struct mk_machine *m = w->machine;
    uint32_t rows = p->shard_rows < p->chunk_rows ? p->shard_rows : p->chunk_rows,
             senders = p->split.ctas[MK_INTER_SEND] ? p->split.ctas[MK_INTER_SEND] : 1;
    double bytes = rows * (double)p->row_bytes;
    double put = model_later(m->nic_rate > 0 ? bytes / m->nic_rate : 0,
                             model_later(m->nic_message, m->put)),
           stage =
               p->staged ? machine_copy_ns(m, MACHINE_TMA, senders, 0, 0, bytes) + m->settle : 0;
    double staged = stage * (chunk / senders + 1),
           queued = stage + put * ((double)(distance - 1) * p->chunks + chunk);
    return model_later(staged, queued) + put + m->command + m->proxy_command + m->nic_latency +
           m->nic_flag + m->receive;
}

/* ... of another rail: its rank of this node pushes it on, behind its own shard. */
static double model_by_peer(const struct model_walk *w, const struct ag_gemm_plan *p,
                            const struct model_push *push, uint32_t distance, uint32_t chunk)
{
    uint64_t chunk_turns = (uint64_t)(p->topo.gpus - 1) * p->pieces,
             turns = ((uint64_t)(distance - 1) * p->chunks + chunk + 1) * chunk_turns;
    double queued = push->until + push->round * (double)mk_ceil_div(turns, push->movers),
           here = model_by_rail(w, p, distance, chunk) + w->machine->wait +
                  push->round * (double)mk_ceil_div(chunk_turns, push->movers);
    return model_later(queued, here) + w->machine->flag;
}

/* One shot: all of A comes, then waves of tiles. */
static void model_joint(struct model_walk *w, const struct mk_problem *q,
                        const struct ag_gemm_plan *p)
{
    const struct mk_machine *m = w->machine;
    struct model_engine e = model_engine_of(w, q, 0);
    double bytes = (double)p->shard_rows * (double)p->row_bytes * (p->topo.gpus - 1.0);
    w->moved = p->topo.gpus > 1 ? bytes / m->nvlink_out + m->settle + m->flag + m->wait : 0;
    model_draw(w, q, p->tiles);
    w->compute = w->moved + (double)mk_ceil_div(p->tiles, e.engines) *
                                (e.begin + (double)e.stages * e.stage + e.end);
    w->network = 0;
    w->end = w->compute + m->launch;
}

void model_ag_gemm(struct model_walk *w, const struct mk_problem *q, const struct ag_gemm_plan *p)
{
    const struct mk_machine *m = w->machine;
    if (p->shots == 1) {
        model_joint(w, q, p);
        return;
    }
    struct model_push push = model_push_of(w, q, p);
    double coresident = mk_role_coresident(&p->split, MK_INTRA_COMM),
           working = push.until * coresident * p->split.ctas[MK_COMPUTE];
    struct model_engine e =
        model_engine_of(w, q, model_beside(w, working, p->split.ctas[MK_COMPUTE]));
    double slice_stages = (double)e.stages / p->slices;
    model_draw(w, q, p->tiles);
    w->moved = push.until;
    w->network = 0;
    w->compute = 0;
    uint64_t group = mk_ceil_div(mk_ceil_div(p->tiles, e.engines), 2 * MODEL_SAMPLES);
    uint32_t taking = p->tiles < e.engines ? p->tiles : e.engines; /* engines that have a tile */
    for (uint32_t member = 0; member <= MODEL_MEMBERS; member++) {
        /* evenly, and the one that has the last tile */
        uint32_t index = member < MODEL_MEMBERS ? (2 * member + 1) * taking / (2 * MODEL_MEMBERS)
                                                : (p->tiles - 1) % e.engines;
        double at = 0;
        for (uint64_t wave = 0; wave * e.engines + index < p->tiles; wave += group) {
            /* of a group of waves the last tile is looked at, those before it are only multiplied
             */
            uint64_t left = (p->tiles - 1 - index) / e.engines - wave + 1,
                     count = left < group ? left : group,
                     t = (wave + count - 1) * e.engines + index;
            at += (double)(count - 1) * (e.begin + (double)e.stages * e.stage + e.end);
            struct mk_tile tile;
            ag_gemm_tile(p, (uint32_t)t, &tile);
            uint32_t node = mk_node_of(&p->topo, p->topo.rank),
                     local = mk_local_of(&p->topo, p->topo.rank);
            uint32_t nodes_away =
                (mk_node_of(&p->topo, tile.slab) + p->topo.nodes - node) % p->topo.nodes;
            uint32_t away =
                (mk_local_of(&p->topo, tile.slab) + p->topo.gpus - local) % p->topo.gpus;
            double stage = e.stage * (at < push.until ? 1 + (e.busy - 1) * push.busy : 1);
            at += e.begin;
            for (uint32_t slice = 0; slice < p->slices; slice++) {
                uint32_t chunk = tile.row / p->chunk_rows;
                double here = nodes_away && away ? model_by_peer(w, p, &push, nodes_away, chunk)
                              : nodes_away       ? model_by_rail(w, p, nodes_away, chunk)
                              : away             ? model_arrival(w, p, &push, away, chunk, slice)
                                                 : 0;
                if (nodes_away)
                    w->network = model_later(w->network, here);
                if (here > at)
                    at = here + m->wait;
                at += slice_stages * stage;
            }
            at += e.end;
        }
        w->compute = model_later(w->compute, at);
    }
    double pushed = push.until;
    if (p->topo.nodes > 1 && p->topo.gpus > 1)
        pushed = model_by_peer(w, p, &push, p->topo.nodes - 1, p->chunks - 1);
    w->moved = model_later(w->moved, pushed);
    w->end = m->launch + model_later(w->compute, pushed);
}
