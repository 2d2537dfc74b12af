/* The compute role: the engine of a CTA or a cluster (kernels/hopper/gemm.cuh) and its sender warps
 * (kernels/sums/gemm_reduce.cuh). */
#include "sim/timed/state.h"

/* ---- what stands beside an engine ---- */

static void compute_look_beside(const struct timed_world *w, const struct timed_cta *other,
                                struct machine_load *load)
{
    if (other->state == TIMED_MOVES)
        load->beside += 1.0 / w->cluster;
}

/* Warps in the engine's blocks that are busy now. */
static void compute_beside(const struct timed_cta *c, struct machine_load *load)
{
    const struct timed_rank *r = timed_rank_of(c);
    const struct timed_world *w = r->world;
    const struct mk_role_split *split = &r->plan.problem.tuning.split;
    uint32_t compute = split->ctas[MK_COMPUTE], total = mk_total_ctas(split);
    for (uint32_t i = 1; i <= split->intra_comm_warps; i++)
        for (uint32_t j = 0; j < w->cluster; j++)
            compute_look_beside(w, &r->ctas[i * compute + c->cta.index + j], load);
    for (uint32_t j = 0; j < w->cluster * w->senders; j++)
        compute_look_beside(w, &r->ctas[total + c->cta.index * w->senders + j], load);
}

/* By what share pushes exceed NVLink's rate during the tile that begins now, 0 to 1. Senders count
 * if the outbox holds a tile, other warps if they push now. */
static double compute_wanted(const struct timed_cta *c)
{
    const struct timed_rank *r = timed_rank_of(c);
    const struct timed_world *w = r->world;
    const struct timed_engine *e = &r->engines[c->cta.index];
    uint32_t compute = r->plan.problem.tuning.split.ctas[MK_COMPUTE],
             pace = r->plan.problem.tuning.pace;
    for (uint32_t i = 0; i < w->cluster * w->senders; i++)
        if (e->made > e->taken[i])
            return machine_wanted(w->machine, compute * w->senders,
                                  mk_pace_of_each(pace, w->senders));
    return w->senders ? 0 : timed_links_wanted(r) * (1 + w->machine->spill * w->spilled);
}

/* ---- tiles ---- */

/* The factor by which the warps beside it slow an engine, 1 or more. */
static double compute_slowed(const struct timed_cta *c)
{
    const struct timed_rank *r = timed_rank_of(c);
    const struct timed_world *w = r->world;
    struct machine_load load = {.slower = 1};
    if (!w->beside)
        return 1;
    compute_beside(c, &load);
    return 1 + w->machine->beside * load.beside + w->machine->beside_peer * compute_wanted(c);
}

static int compute_wide(const struct sim_operands *o)
{
    return o->c_number == MK_FP32 || o->c_number == MK_FP24;
}

/* Bytes that the rank's engines read from HBM in one stage: of tiles by tickets those engines that
 * multiply now, of others all. */
static double compute_fetched(const struct timed_rank *r)
{
    return r->world->pipeline.tickets ? r->reading : r->world->fetched;
}

/* Elements of K that a stage has. */
static uint32_t compute_stage_k(const struct timed_rank *r)
{
    const struct mk_problem *q = &r->plan.problem;
    return 128 / op_factor_bytes(q) * plan_parts_of_k(&q->tuning);
}

/* Stages of a tile. On a GPU half of a gated tile's columns of B are the gate's. */
static uint32_t compute_stages(const struct timed_rank *r, const struct sim_operands *o)
{
    const int twice = r->plan.problem.exec == MK_EXEC_HOST && o->gate;
    return (uint32_t)mk_ceil_div(o->k, compute_stage_k(r)) * (twice ? 2 : 1);
}

/* Bytes of C that a stage of a tile by a ticket stands for. */
static double compute_stored(const struct timed_rank *r, const struct sim_operands *o)
{
    return (double)o->rows * (double)mk_combine_bytes(o->cols, o->c_number) / compute_stages(r, o);
}

static double compute_stage(const struct timed_cta *c, const struct sim_operands *o)
{
    const struct timed_rank *r = timed_rank_of(c);
    const struct timed_world *w = r->world;
    struct machine_load load = {.sms = r->plan.problem.tuning.split.ctas[MK_COMPUTE],
                                .slower = w->clock / r->slow.gpu,
                                .fp8 = o->fp8,
                                .summed = op_of(r->plan.problem.op)->sums && !w->pipeline.tickets,
                                .b_kn = !r->plan.problem.b_transposed,
                                .fp32 = compute_wide(o),
                                .grouped = w->pipeline.tickets != 0,
                                .rows = w->pipeline.tickets ? o->rows : 0,
                                .engines = r->multiply,
                                .stored = w->pipeline.tickets ? compute_stored(r, o) : 0};
    if (w->beside) {
        compute_beside(c, &load);
        load.beside_peer = compute_wanted(c);
    }
    /* copies and sums share the memory: they leave a tile a fourth of its rate at least */
    double fetched = compute_fetched(r);
    if (fetched > 0 && w->machine->hbm_rate > 0) {
        double left = 1 - timed_links_memory(r) / w->machine->hbm_rate;
        fetched /= left > 0.25 ? left : 0.25;
    }
    return machine_stage_ns(w->machine, w->tile, &load, fetched);
}

/* In a plan for the host a rank's few compute CTAs stand for all of its tensor cores. */
static double compute_flop_ns(const struct timed_cta *c, double flop)
{
    const struct timed_rank *r = timed_rank_of(c);
    return flop * r->plan.problem.tuning.split.ctas[MK_COMPUTE] / (r->world->peak * r->slow.gpu) *
           r->world->clock;
}

static int compute_before(struct timed_cta *c, const struct mk_tile *tile, uint32_t slice)
{
    const struct timed_rank *r = timed_rank_of(c);
    const struct sim_op *op = r->world->op;
    return op->before ? op->before(&r->plan, &c->cta, tile, slice) : 0;
}

static void compute_busy(struct timed_cta *c, double ns)
{
    timed_spend(c, TIMED_TILES, ns);
    timed_rank_of(c)->busy += ns;
}

/* `count` stages of `ns`, which read from HBM. */
static void compute_read(struct timed_cta *c, uint32_t count, double ns)
{
    struct timed_rank *r = timed_rank_of(c);
    const double fetched = compute_fetched(r), all = count * ns;
    if (fetched > 0 && ns > 0) {
        r->loading = fetched / ns;
        if (r->loads_until < c->at + (uint64_t)all)
            r->loads_until = c->at + (uint64_t)all;
    }
    compute_busy(c, all);
}

#define SHARED_STAGES 16u /* after so many an engine looks again who shares the memory */

/* The stages of a tile by a ticket. The first and the last of a launch have the memory for few. */
static void compute_shared(struct timed_cta *c, const struct mk_tile *tile,
                           const struct sim_operands *o, uint32_t stages, double scatter)
{
    struct timed_rank *r = timed_rank_of(c);
    const double fetched = timed_cache_fetch(r, tile, o) + compute_stored(r, o);
    r->multiply++;
    r->reading += fetched;
    for (uint32_t done = 0; done < stages; done += SHARED_STAGES) {
        const uint32_t count = stages - done < SHARED_STAGES ? stages - done : SHARED_STAGES;
        timed_sync(c);
        compute_read(c, count, compute_stage(c, o) * scatter);
        r->cache.fetched += count * fetched;
    }
    timed_sync(c);
    r->reading -= fetched;
    r->multiply--;
}

/* All products of a tile, slice by slice as they come; *start: when the first began. */
static int compute_products(struct timed_cta *c, const struct mk_tile *tile,
                            const struct sim_operands *o, uint64_t *start)
{
    const struct timed_rank *r = timed_rank_of(c);
    struct timed_world *w = r->world;
    const int host = r->plan.problem.exec == MK_EXEC_HOST;
    uint32_t stages = compute_stages(r, o), slice = 0;
    uint32_t of_slice = w->pipeline.slice_stages ? w->pipeline.slice_stages : stages;
    double scatter = timed_scatter(w), stage = 0;
    for (uint32_t done = 0; done < stages; slice++) {
        uint32_t count = stages - done < of_slice ? stages - done : of_slice;
        if (!w->pipeline.load_addends && compute_before(c, tile, slice))
            return 1;
        if (!slice) {
            *start = c->at;
            if (w->beside)
                timed_sync(c);
            if (host)
                compute_busy(
                    c, compute_flop_ns(c, 2.0 * o->rows * o->cols * compute_stage_k(r) * stages));
            else
                compute_busy(c, w->tile->begin / r->slow.gpu);
            stage = host ? 0 : compute_stage(c, o) * scatter;
            if (w->pipeline.halves && tile->rows * 2 <= r->plan.problem.tuning.tile_m)
                stage *= MK_HALF_TILE;
            if (w->beside)
                r->engines[c->cta.index].tile = stages * stage;
        }
        if (w->pipeline.tickets)
            compute_shared(c, tile, o, count, scatter);
        else
            compute_read(c, count, stage);
        done += count;
    }
    return w->pipeline.load_addends ? compute_before(c, tile, 0) : 0;
}

/* The terms added to a tile come through the ring of stages: two stages for each term, four if it
 * is fp32. Each is assumed to take half as long as a stage of products (not measured). */
static double compute_end(const struct timed_cta *c, const struct sim_operands *o)
{
    const struct timed_rank *r = timed_rank_of(c);
    const struct timed_world *w = r->world;
    double ns = w->tile->end * (compute_wide(o) ? w->machine->end_fp32 : 1);
    for (uint32_t level = 0; level < SIM_LEVELS; level++)
        ns += o->added[level].count * w->tile->stage * (o->added[level].number == MK_FP32 ? 2 : 1);
    return r->plan.problem.exec == MK_EXEC_HOST ? 0 : ns / r->slow.gpu;
}

/* ---- outboxes ---- */

static struct timed_cta *compute_sender(const struct timed_rank *r, uint32_t cta, uint32_t i)
{
    return &r->ctas[mk_total_ctas(&r->plan.problem.tuning.split) + cta * r->world->senders + i];
}

/* The engine puts its tile into the outbox once the slowest sender has made room. */
static int compute_to_outbox(struct timed_cta *c, const struct sim_operands *o)
{
    struct timed_rank *r = timed_rank_of(c);
    struct timed_world *w = r->world;
    struct timed_engine *e = &r->engines[c->cta.index];
    uint32_t senders = w->cluster * w->senders;
    timed_sync(c);
    for (;;) {
        uint64_t taken = UINT64_MAX;
        for (uint32_t i = 0; i < senders; i++)
            taken = e->taken[i] < taken ? e->taken[i] : taken;
        if (e->made - taken < w->pipeline.outbox)
            break;
        timed_stand(c);
        if (w->error)
            return 1;
    }
    double outbox = w->pipeline.direct_store ? 0 : w->machine->outbox / r->slow.gpu;
    timed_spend(c, TIMED_TILES, compute_end(c, o) + outbox);
    timed_sync(c);
    e->made++;
    for (uint32_t i = 0; i < senders; i++) {
        struct timed_cta *s = compute_sender(r, c->cta.index, i);
        if (s->state != TIMED_STANDS)
            continue;
        s->path = c->path;
        s->at = c->at;
        timed_wake(s);
    }
    return 0;
}

/* The work that follows a CTA's last tile. Where senders send tiles, or exchange and add them in
 * one shot, the first sender does it after that; where no tile passes them, the engine does. */
static int compute_close(struct timed_cta *c)
{
    const struct timed_rank *r = timed_rank_of(c);
    const struct timed_world *w = r->world;
    const uint32_t total = mk_total_ctas(&r->plan.problem.tuning.split),
                   number = (uint32_t)(c - r->ctas),
                   senders = mk_world(&r->plan.problem.topo) > 1 ? w->senders : 0;
    const int closes = number < total ? !senders : senders && (number - total) % senders == 0;
    return closes && w->op->close ? w->op->close(&r->plan, &c->cta) : 0;
}

int timed_send(struct timed_cta *c)
{
    struct timed_rank *r = timed_rank_of(c);
    struct timed_world *w = r->world;
    uint32_t compute = r->plan.problem.tuning.split.ctas[MK_COMPUTE];
    uint32_t leader = c->cta.index / w->cluster * w->cluster,
             own = (uint32_t)(c - compute_sender(r, leader, 0)), parts = w->cluster * w->senders;
    struct timed_engine *e = &r->engines[leader];
    struct timed_cta *engine = &r->ctas[leader];
    uint32_t part_rows = r->plan.problem.tuning.tile_m / w->cluster / 2,
             local = mk_local_of(&r->plan.problem.topo, r->plan.problem.topo.rank);
    for (uint32_t t = leader / w->cluster; t < r->plan.tiles; t += compute / w->cluster) {
        struct mk_tile tile;
        struct sim_operands o = {0};
        if (!w->op->tile(&r->plan, &c->cta, t, &tile) || !mk_pipeline_passes(&w->pipeline, &tile))
            continue;
        w->op->operands(&r->plan, &tile, c->cta.epoch, &o);
        while (e->made <= e->taken[own]) {
            timed_stand(c);
            if (w->error)
                return 1;
        }
        timed_spend(c, TIMED_FLAG, w->machine->wait);
        uint64_t start = c->at;
        int to_peer = o.c_space == MK_SPACE_HEAP && o.c_local != local;
        /* a half of its CTA's rows, or both, one after the other; but in one shot both have gone to
         * all before others' parts are waited for */
        uint32_t together = r->plan.problem.tuning.shots != MK_TWO_SHOT ? 2 / w->senders : 1;
        for (uint32_t half = 0; half < 2 / w->senders; half += together) {
            uint32_t first = (own * 2 / w->senders + half) * part_rows, most = together * part_rows,
                     rows = first >= tile.rows ? 0 : tile.rows - first;
            rows = rows < most ? rows : most;
            if (rows && to_peer &&
                timed_transfer(c, o.c_local, mk_pipeline_bytes(&w->pipeline, &tile, rows),
                               TIMED_SENDS, 0))
                return 1;
            if (!to_peer && /* it pushes to peers itself */
                w->op->publish(&r->plan, &c->cta, &tile, first, rows,
                               together * MK_TILE_PARTS / w->cluster / 2))
                return 1;
        }
        if (to_peer) /* traced under the first of the tile's chunks, as in the kernel */
            timed_record(
                c, mk_event_what(MK_EV_COPY, o.c_local, tile.id * r->plan.problem.tuning.pieces),
                start);
        timed_sync(c);
        e->taken[own]++;
        if (engine->state == TIMED_STANDS) {
            engine->path = c->path;
            engine->at = c->at;
            timed_wake(engine);
        }
        if (to_peer &&
            w->op->publish(&r->plan, &c->cta, &tile, 0, tile.rows, MK_TILE_PARTS / parts))
            return 1;
    }
    return compute_close(c);
}

/* ---- the role ---- */

/* Each CTA of a cluster sends its own part of the tile. */
static void compute_record(struct timed_cta *c, const struct mk_tile *tile, uint64_t start)
{
    const struct timed_world *w = timed_rank_of(c)->world;
    for (uint32_t i = 0; i < w->cluster && c->track; i++)
        mk_track_add(c[i].track, mk_event_what(MK_EV_TILE, MK_CAUSE_NONE, tile->id), start, c->at);
}

static int compute_tile(struct timed_cta *c, const struct mk_tile *tile)
{
    struct timed_rank *r = timed_rank_of(c);
    struct timed_world *w = r->world;
    struct sim_operands o = {0};
    uint64_t start = c->at;
    w->op->operands(&r->plan, tile, c->cta.epoch, &o);
    if (compute_products(c, tile, &o, &start))
        return 1;
    if (mk_pipeline_passes(&w->pipeline, tile)) {
        if (compute_to_outbox(c, &o))
            return 1;
    } else {
        compute_busy(c, compute_end(c, &o));
        uint32_t own = mk_local_of(&r->plan.problem.topo, r->plan.problem.topo.rank);
        if (o.c_space == MK_SPACE_HEAP && o.c_local != own &&
            timed_transfer(c, o.c_local,
                           (uint64_t)o.rows * o.cols * (o.c_number == MK_FP32 ? 4 : 2), MACHINE_TMA,
                           0))
            return 1;
        if (w->op->publish && w->op->publish(&r->plan, &c->cta, tile, 0, tile->rows, MK_TILE_PARTS))
            return 1;
    }
    compute_record(c, tile, start);
    w->tiles++;
    w->flop += 2.0 * o.rows * o.cols * o.k * (o.gate ? 2 : 1);
    return w->error != 0;
}

/* A step of a tile that is no GEMM. */
static int compute_step(struct timed_cta *c, const struct mk_tile *tile)
{
    struct timed_rank *r = timed_rank_of(c);
    struct timed_world *w = r->world;
    uint32_t dim;
    if (w->op->before && w->op->before(&r->plan, &c->cta, tile, 0))
        return 1;
    uint64_t start = c->at;
    double flop = w->op->flop(&r->plan, tile, &dim);
    double rate = dim <= 64 ? w->machine->attention64 : w->machine->attention128;
    if (w->beside)
        timed_sync(c);
    compute_busy(c,
                 r->plan.problem.exec == MK_EXEC_HOST || rate <= 0
                     ? compute_flop_ns(c, flop)
                     : flop / rate * w->clock / r->slow.gpu * timed_scatter(w) * compute_slowed(c));
    timed_record(c, mk_event_what(MK_EV_TILE, MK_CAUSE_NONE, tile->id), start);
    w->tiles++;
    w->flop += flop * tile->rows / r->plan.problem.tuning.tile_m;
    return w->error != 0;
}

static int compute_handed(struct timed_cta *c)
{
    struct timed_rank *r = timed_rank_of(c);
    struct mk_tile tile;
    for (;;) {
        timed_sync(c); /* whoever comes first takes the next */
        uint32_t i = r->taken++, step = 0;
        while (r->world->op->handed(&r->plan, i, step, &tile)) {
            if (!step && r->plan.problem.exec == MK_EXEC_CUDA)
                compute_busy(c, r->world->machine->attention_tile / r->slow.gpu);
            if (compute_step(c, &tile))
                return 1;
            step++;
        }
        if (!step)
            return 0;
    }
}

/* The next number of the counter that all CTAs share. */
static uint32_t compute_ask(struct timed_cta *c)
{
    timed_sync(c); /* whoever comes first gets the next */
    return timed_rank_of(c)->taken++;
}

/* Takes tiles by tickets. A CTA holds the number of its next tile from when it begins to load the
 * one before, as kernels/moe/moe_take.cuh does: of the last tiles none is left for a CTA that joins
 * while others still multiply what they took first. */
static int compute_tickets(struct timed_cta *c)
{
    struct timed_rank *r = timed_rank_of(c);
    const struct sim_op *op = r->world->op;
    struct mk_tile tile;
    if (c->cta.role == MK_INTRA_COMM ||
        c->cta.role == MK_INTER_SEND) /* leaves one, begins another */
        timed_spend(c, TIMED_FLAG, 2 * r->world->machine->movers[MACHINE_BLOCK].start);
    if (op->open && op->open(&r->plan, &c->cta))
        return 1;
    const uint32_t last =
        op->leaves && c->cta.role == MK_INTER_REDUCE ? op->leaves(&r->plan, &c->cta) : UINT32_MAX;
    uint32_t upcoming = compute_ask(c);
    timed_spend(c, TIMED_FLAG, r->world->machine->wait); /* the first number's way */
    while (upcoming < r->plan.tiles && op->tile(&r->plan, &c->cta, upcoming, &tile)) {
        upcoming = upcoming >= last ? UINT32_MAX : compute_ask(c);
        if (compute_tile(c, &tile))
            return 1;
    }
    return 0;
}

int timed_compute(struct timed_cta *c)
{
    struct timed_rank *r = timed_rank_of(c);
    struct timed_world *w = r->world;
    struct mk_tile tile;
    if (w->by_hand)
        return w->op->handed ? compute_handed(c) : compute_tickets(c);
    if (c->cta.index % w->cluster)
        return compute_close(c); /* of tiles the cluster's first stands for all of it */
    if (w->op->open && w->op->open(&r->plan, &c->cta))
        return 1;
    for (uint32_t t = c->cta.index / w->cluster; t < r->plan.tiles;
         t += c->cta.count / w->cluster) {
        if (!w->op->tile(&r->plan, &c->cta, t, &tile))
            continue;
        if (w->beside)
            r->engines[c->cta.index].left = (r->plan.tiles - 1 - t) / (c->cta.count / w->cluster);
        if (w->op->operands ? compute_tile(c, &tile) : compute_step(c, &tile))
            return 1;
    }
    return compute_close(c);
}
