/* AllGather+GEMM, wave by wave: core/roles/ag_gemm.h as a chain of queues. */
#include "core/model/moves.h"
#include "core/plan/pipeline.h"

#include <math.h>

/* Rows of a whole chunk. */
static uint32_t ag_gemm_whole(const struct ag_gemm_plan *p)
{
    uint32_t rows = p->shard_rows < p->chunk_rows ? p->shard_rows : p->chunk_rows;
    return rows ? rows : 1;
}

/* Pieces of a chunk's slice that have rows, or of FP8 scales. */
static uint32_t ag_gemm_pieces(const struct ag_gemm_plan *p)
{
    uint64_t rows = ag_gemm_whole(p), scaled = p->blocks / p->slices,
             pieces = mk_ceil_div(rows, mk_ceil_div(rows, p->pieces));
    scaled = scaled < p->pieces ? scaled : p->pieces;
    return (uint32_t)(pieces > scaled ? pieces : scaled);
}

static struct model_push ag_gemm_push_of(const struct model_walk *w, const struct ag_gemm_plan *p)
{
    uint32_t rows = ag_gemm_whole(p), left = p->shard_rows % rows, pieces = ag_gemm_pieces(p);
    uint64_t turns = (uint64_t)(p->topo.gpus - 1) * p->slices * pieces;
    double row = (double)p->row_bytes / p->slices;
    struct model_turns t = {.split = &p->split,
                            .block = MACHINE_TMA,
                            .pace = p->pace,
                            .turns = turns * (p->chunks - (left > 0)),
                            .bytes = model_later(1, (double)rows / pieces) * row,
                            .mean = rows * row / pieces,
                            .wanted =
                                (double)mk_world(&p->topo) * p->shard_rows * (double)p->row_bytes};
    struct model_push push = model_push_of(w, &t);
    if (left) { /* the last chunk is shorter; its rounds come behind those of whole chunks */
        uint64_t rounds = mk_ceil_div(turns * p->chunks, push.movers),
                 whole = mk_ceil_div(t.turns, push.movers);
        t.bytes = ceil((double)left / pieces) * row;
        t.mean = left * row / pieces;
        push.until += (double)(rounds - whole) * model_push_of(w, &t).round;
        push.round = push.until / (double)rounds;
    }
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
    return model_told(w, push,
                      ag_gemm_pieces(p) * ((uint64_t)before * p->chunks * p->slices +
                                           (uint64_t)(step + 1) * fanout));
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
    struct model_push push = ag_gemm_push_of(w, p);
    uint64_t chunk_turns = (uint64_t)(p->topo.gpus - 1) * ag_gemm_pieces(p);
    struct model_rail rail = model_rail_of(w, &p->split, p->chunks,
                                           ag_gemm_whole(p) * (double)p->row_bytes, p->staged != 0);
    if (p->staged && p->topo.nodes > 2)
        rail.behind = ceil((double)p->chunks / rail.senders) * (p->topo.nodes - 2);
    double coresident = p->split.intra_comm_warps,
           working = push.until * coresident * p->split.ctas[MK_COMPUTE];
    struct model_engine e =
        model_engine_of(w, q, model_beside(w, working, p->split.ctas[MK_COMPUTE]));
    double slice_stages = (double)e.stages / p->slices;
    model_draw(w, q, p->tiles);
    w->moved = push.until;
    w->network = 0;
    w->compute = 0;
    uint64_t group = mk_ceil_div(mk_ceil_div(p->tiles, e.engines), 2 * MODEL_SAMPLES);
    /* rows of tiles of a chunk, where the last may be short */
    uint32_t high =
        p->shard_rows % p->tile_m ? (uint32_t)mk_ceil_div(ag_gemm_whole(p), p->tile_m) : 1;
    uint32_t taking = p->tiles < e.engines ? p->tiles : e.engines; /* engines that have a tile */
    for (uint32_t member = 0; member <= MODEL_MEMBERS; member++) {
        /* evenly, and the one that has the last tile */
        uint32_t index = member < MODEL_MEMBERS ? (2 * member + 1) * taking / (2 * MODEL_MEMBERS)
                                                : (p->tiles - 1) % e.engines;
        /* CTAs may have tiles of the same one all along: some of each */
        index += member < MODEL_MEMBERS ? member % high - index % high : 0;
        index = index < taking ? index : taking - 1;
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
            double stage = e.stage * (at < push.until ? 1 + (e.busy - 1) * push.busy : 1) *
                           (tile.rows * 2 <= p->tile_m && ag_gemm_halves(p) ? MK_HALF_TILE : 1);
            at += e.begin;
            for (uint32_t slice = 0; slice < p->slices; slice++) {
                uint32_t chunk = tile.row / p->chunk_rows;
                double here = nodes_away && away
                                  ? model_by_peer(w, &rail, &push, chunk_turns, nodes_away, chunk)
                              : nodes_away ? model_by_rail(&rail, nodes_away, chunk)
                              : away       ? model_arrival(w, p, &push, away, chunk, slice)
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
        pushed = model_by_peer(w, &rail, &push, chunk_turns, p->topo.nodes - 1, p->chunks - 1);
    w->moved = model_later(w->moved, pushed);
    w->end = m->launch + model_later(w->compute, pushed);
}
