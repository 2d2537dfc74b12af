/* Makes up a trace of AllGather+GEMM: a list schedule of the real plan with random durations, on
 * hosts whose clocks drift, which a simulator's do not. Nothing contends. Tests have millions of
 * records of the right kind quickly by it; run.source says 'synthetic'. */
#pragma once

#include "core/base/random.h"
#include "core/roles/ag_gemm_plan.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tracer/store.h"

#define GENERATE_SAMPLES 64       /* clock samples, half of them before the run, half after */
#define GENERATE_COPY_RATE 44.0   /* bytes per ns of one CTA */
#define GENERATE_PUT_RATE 50.0    /* bytes per ns of one rank */
#define GENERATE_PUT_LATENCY 3000 /* ns */
#define GENERATE_TILE_NS 20000

struct generate_config {
    uint64_t events; /* at least so many: whole launches are made until there are */
    uint32_t nodes, gpus;
    uint32_t ctas; /* of a rank; 0: 132 */
    uint64_t seed;
    const char *command; /* stored with the run; NULL: not known */
};

struct generate_rank {
    struct mk_plan plan;
    struct mk_track *tracks; /* shared with the part, which owns it */
    uint32_t capacity;       /* of every track */
    double *clock;           /* of every CTA: when it is free */
    double *arrival;         /* [shard][chunk] of this launch */
    double skew, drift;      /* of its host */
    struct mk_message *messages;
    uint64_t message_count, message_capacity;
    uint64_t *sequence; /* of every ring */
    double nic;         /* when the rail is free */
};

struct generator {
    const struct generate_config *config;
    struct generate_rank *ranks;
    uint32_t world;
    uint64_t random, events, epoch;
    int failed;
};

static double generate_jitter(struct generator *g, double ns)
{
    double u = mk_random_unit(&g->random);
    /* one in a thousand is slow: something to find */
    return ns * (0.9 + 0.2 * u + (u > 0.999 ? 5 : 0));
}

/* A moment as the rank's own clock shows it. */
static uint64_t generate_shown(const struct generate_rank *r, double t)
{
    return (uint64_t)llround(1e9 + r->skew + t * (1 + r->drift));
}

static void generate_record(struct generator *g, struct generate_rank *r, uint32_t cta,
                            uint32_t what, double start, double end)
{
    struct mk_track *t = &r->tracks[cta];
    if (t->count == t->capacity) {
        uint32_t capacity = 2 * t->capacity + 64;
        struct mk_event *more = realloc(t->events, capacity * sizeof *more);
        if (!more) {
            g->failed = 1;
            return;
        }
        t->events = more;
        t->capacity = capacity;
    }
    mk_track_add(t, what, generate_shown(r, start), generate_shown(r, end));
    g->events++;
}

static double generate_wait_until(struct generator *g, struct generate_rank *r, uint32_t cta,
                                  uint32_t flag, uint32_t cause, double ready)
{
    double now = r->clock[cta], end = ready > now ? ready : now;
    generate_record(g, r, cta, mk_event_what(MK_EV_WAIT, cause, flag), now, end);
    return r->clock[cta] = end;
}

/* One chunk to one peer of the node: copied, then its flag raised. */
static void generate_push(struct generator *g, uint32_t rank, uint32_t cta, uint32_t shard,
                          uint32_t chunk, uint32_t local)
{
    struct generate_rank *r = &g->ranks[rank];
    const struct ag_gemm_plan *p = ag_gemm_plan_of(&r->plan);
    uint64_t bytes = ag_gemm_chunk_rows(p, chunk) * p->row_bytes;
    double start = r->clock[cta],
           end = start + generate_jitter(g, (double)bytes / GENERATE_COPY_RATE);
    generate_record(g, r, cta, mk_event_what(MK_EV_COPY, local, shard * p->chunks + chunk), start,
                    end);
    generate_record(g, r, cta,
                    mk_event_what(MK_EV_SIGNAL, local, ag_gemm_arrival_flag(p, shard, chunk, 0)),
                    end, end);
    r->clock[cta] = end;
    g->ranks[mk_rank_at(&p->topo, mk_node_of(&p->topo, rank), local)]
        .arrival[shard * p->chunks + chunk] = end + 1000;
}

static void generate_put(struct generator *g, uint32_t rank, uint32_t ring, uint32_t cta,
                         uint32_t peer, uint32_t chunk)
{
    struct generate_rank *r = &g->ranks[rank];
    const struct ag_gemm_plan *p = ag_gemm_plan_of(&r->plan);
    uint64_t bytes = ag_gemm_chunk_rows(p, chunk) * p->row_bytes;
    double commanded = r->clock[cta] + generate_jitter(g, 300);
    generate_record(g, r, cta, mk_event_what(MK_EV_COMMAND, 0, r->sequence[ring]), r->clock[cta],
                    commanded);
    r->clock[cta] = commanded;
    double seen = commanded + generate_jitter(g, 900), posted = seen + generate_jitter(g, 400);
    double start = posted > r->nic ? posted : r->nic,
           end = start + generate_jitter(g, (double)bytes / GENERATE_PUT_RATE);
    r->nic = end;
    if (r->message_count == r->message_capacity) {
        uint64_t capacity = 2 * r->message_capacity + 256;
        struct mk_message *more = realloc(r->messages, capacity * sizeof *more);
        if (!more) {
            g->failed = 1;
            return;
        }
        r->messages = more;
        r->message_capacity = capacity;
    }
    double arrived = end + generate_jitter(g, GENERATE_PUT_LATENCY);
    r->messages[r->message_count++] = (struct mk_message){
        .epoch = g->epoch,
        .bytes = bytes,
        .sequence = r->sequence[ring]++,
        .seen = generate_shown(r, seen),
        .posted = generate_shown(r, posted),
        .completed = generate_shown(r, arrived + 1000),
        .ring = ring,
        .peer = peer,
        .flag = ag_gemm_arrival_flag(p, rank, chunk, 0),
        .plan = 1,
    };
    g->ranks[peer].arrival[rank * p->chunks + chunk] = arrived;
}

static void generate_send_role(struct generator *g, uint32_t rank)
{
    const struct ag_gemm_plan *p = ag_gemm_plan_of(&g->ranks[rank].plan);
    uint32_t first = p->split.ctas[MK_COMPUTE] + p->split.ctas[MK_INTRA_COMM],
             count = p->split.ctas[MK_INTER_SEND];
    for (uint32_t distance = 1; distance < p->topo.nodes; distance++) {
        uint32_t node = (mk_node_of(&p->topo, rank) + p->topo.nodes - distance) % p->topo.nodes;
        for (uint32_t chunk = 0; chunk < p->chunks; chunk++)
            generate_put(g, rank, chunk % count, first + chunk % count,
                         mk_rank_at(&p->topo, node, mk_local_of(&p->topo, rank)), chunk);
    }
}

/* A rank's own chunks, or the forwarding of what its rail brought. */
static void generate_push_role(struct generator *g, uint32_t rank, int forward)
{
    struct generate_rank *r = &g->ranks[rank];
    const struct ag_gemm_plan *p = ag_gemm_plan_of(&r->plan);
    uint32_t gpus = p->topo.gpus, local = mk_local_of(&p->topo, rank),
             node = mk_node_of(&p->topo, rank), turn = 0;
    uint32_t first = p->split.ctas[MK_COMPUTE], count = p->split.ctas[MK_INTRA_COMM];
    for (uint32_t distance = forward ? 1 : 0; distance < (forward ? p->topo.nodes : 1);
         distance++) {
        uint32_t shard = mk_rank_at(&p->topo, (node + distance) % p->topo.nodes, local);
        for (uint32_t chunk = 0; chunk < p->chunks; chunk++)
            for (uint32_t step = 1; step < gpus; step++, turn++) {
                uint32_t cta = first + turn % count;
                if (forward)
                    generate_wait_until(g, r, cta, ag_gemm_arrival_flag(p, shard, chunk, 0),
                                        MK_CAUSE_NETWORK, r->arrival[shard * p->chunks + chunk]);
                generate_push(g, rank, cta, shard, chunk, (local + gpus - step) % gpus);
            }
    }
}

static void generate_compute_role(struct generator *g, uint32_t rank)
{
    struct generate_rank *r = &g->ranks[rank];
    const struct ag_gemm_plan *p = ag_gemm_plan_of(&r->plan);
    for (uint32_t t = 0; t < p->tiles; t++) {
        uint32_t cta = t % p->split.ctas[MK_COMPUTE];
        struct mk_tile tile;
        ag_gemm_tile(p, t, &tile);
        uint32_t chunk = tile.row / p->chunk_rows;
        if (tile.slab != rank)
            generate_wait_until(g, r, cta, ag_gemm_arrival_flag(p, tile.slab, chunk, 0),
                                mk_node_of(&p->topo, tile.slab) == mk_node_of(&p->topo, rank)
                                    ? MK_CAUSE_DATA
                                    : MK_CAUSE_NETWORK,
                                r->arrival[tile.slab * p->chunks + chunk]);
        double end = r->clock[cta] + generate_jitter(g, GENERATE_TILE_NS);
        generate_record(g, r, cta, mk_event_what(MK_EV_TILE, 0, tile.id), r->clock[cta], end);
        r->clock[cta] = end;
    }
}

static void generate_launch(struct generator *g)
{
    double start = 0;
    for (uint32_t i = 0; i < g->world;
         i++) /* a rank starts when its last launch is over; so do its peers, about */
        for (uint32_t c = 0; c < mk_total_ctas(&ag_gemm_plan_of(&g->ranks[i].plan)->split); c++)
            start = g->ranks[i].clock[c] > start ? g->ranks[i].clock[c] : start;
    g->epoch++;
    for (uint32_t i = 0; i < g->world; i++) {
        struct generate_rank *r = &g->ranks[i];
        double mine = start + 5000 + 3000 * mk_random_unit(&g->random);
        for (uint32_t c = 0; c < mk_total_ctas(&ag_gemm_plan_of(&r->plan)->split); c++) {
            r->clock[c] = mine;
            generate_record(g, r, c, mk_event_what(MK_EV_LAUNCH, 1, g->epoch), mine, mine);
        }
    }
    for (uint32_t i = 0; i < g->world; i++)
        generate_send_role(g, i);
    for (uint32_t i = 0; i < g->world; i++)
        generate_push_role(g, i, 0);
    for (uint32_t i = 0; i < g->world; i++)
        generate_push_role(g, i, 1);
    for (uint32_t i = 0; i < g->world; i++)
        generate_compute_role(g, i);
}

static struct trace_clock_sample *generate_sample_clocks(struct generator *g, uint32_t rank,
                                                         double duration)
{
    struct trace_clock_sample *s = calloc(GENERATE_SAMPLES, sizeof *s);
    for (uint32_t i = 0; s && i < GENERATE_SAMPLES; i++) {
        double t = i < GENERATE_SAMPLES / 2 ? i * 100e3 - 10e6 : duration + 1e6 + i * 100e3;
        double bracket = 8000 + 20000 * mk_random_unit(&g->random) * mk_random_unit(&g->random),
               lean = (mk_random_unit(&g->random) - 0.5) * bracket * 0.5;
        s[i].bracket = (uint64_t)bracket;
        s[i].local = generate_shown(&g->ranks[rank], t + lean);
        s[i].remote = generate_shown(&g->ranks[0], t);
    }
    return s;
}

static int generate_make_rank(struct generator *g, struct trace_part *part, uint32_t rank,
                              char *error, size_t size)
{
    const struct generate_config *c = g->config;
    struct generate_rank *r = &g->ranks[rank];
    uint32_t world = g->world;
    struct mk_problem q = {
        .op = MK_OP_AG_GEMM,
        .exec = MK_EXEC_CUDA,
        .sms = c->ctas ? c->ctas : 132,
        .topo = {c->nodes, c->gpus, rank},
        .m = 1024ull * world,
        .n = 3584,
        .k = 4096,
    };
    int rc = plan_build(&r->plan, &q, 0, 0, error, size);
    if (rc)
        return rc;
    r->plan.id = 1;
    uint32_t node = mk_node_of(&q.topo, rank),
             ctas = mk_total_ctas(&ag_gemm_plan_of(&r->plan)->split);
    /* hosts booted at different times, and their crystals differ */
    r->skew = node ? 1e8 * node : 0;
    r->drift = node ? 4e-6 * (node % 2 ? node : -(double)node) : 0;
    r->tracks = calloc(ctas, sizeof *r->tracks);
    r->clock = calloc(ctas, sizeof *r->clock);
    r->sequence = calloc(ctas, sizeof *r->sequence);
    r->arrival = calloc(r->plan.chunks + 1, sizeof *r->arrival);
    part->plans = calloc(1, sizeof *part->plans);
    part->blocks = calloc(1, sizeof *part->blocks);
    part->tracks = r->tracks;
    if (!r->tracks || !r->clock || !r->sequence || !r->arrival || !part->plans || !part->blocks)
        return -ENOMEM;
    part->topo = q.topo;
    part->track_count = ctas;
    part->track_warps = 1;
    snprintf(part->host, sizeof part->host, "host%u", node);
    snprintf(part->device, sizeof part->device, "made up");
    part->boot[0] = (uint8_t)(node + 1), part->boot[1] = (uint8_t)(node >> 8), part->boot[2] = 1;
    rc = part_of_plan(&part->plans[0], &r->plan, &part->blocks[0]);
    part->plan_count = !rc;
    return rc;
}

__attribute__((unused)) static void generate_free(struct trace_part *parts,
                                                  const struct generate_config *config)
{
    for (uint32_t i = 0; i < config->nodes * config->gpus; i++) {
        for (uint32_t t = 0; t < parts[i].track_count; t++)
            free(parts[i].tracks[t].events);
        free((void *)(uintptr_t)parts[i].messages);
        free((void *)(uintptr_t)parts[i].host_clock);
        part_free(&parts[i]);
    }
    free(parts);
}

/* One a rank, the caller's. The same config gives the same parts. 0, -EINVAL with a sentence,
 * -ENOMEM. */
__attribute__((unused)) static int generate_parts(struct trace_part **out,
                                                  const struct generate_config *config, char *error,
                                                  size_t size)
{
    struct generator g = {
        .config = config, .random = config->seed, .world = config->nodes * config->gpus};
    struct trace_part *parts = calloc(g.world + 1, sizeof *parts);
    g.ranks = calloc(g.world + 1, sizeof *g.ranks);
    snprintf(error, size, "out of memory");
    int rc = parts && g.ranks ? 0 : -ENOMEM;
    for (uint32_t i = 0; !rc && i < g.world; i++)
        rc = generate_make_rank(&g, &parts[i], i, error, size);
    while (!rc && g.events < config->events) {
        generate_launch(&g);
        rc = g.failed ? -ENOMEM : 0;
    }
    double duration = 0;
    for (uint32_t i = 0; !rc && i < g.world; i++)
        duration = g.ranks[i].clock[0] > duration ? g.ranks[i].clock[0] : duration;
    for (uint32_t i = 0; g.ranks && i < g.world; i++) {
        struct generate_rank *r = &g.ranks[i];
        if (parts) {
            parts[i].messages = r->messages;
            parts[i].message_count = r->message_count;
            parts[i].host_clock = rc || !i ? NULL : generate_sample_clocks(&g, i, duration);
            parts[i].host_samples = parts[i].host_clock ? GENERATE_SAMPLES : 0;
            if (!rc && i && !parts[i].host_clock)
                rc = -ENOMEM;
        }
        free(r->clock);
        free(r->sequence);
        free(r->arrival);
    }
    free(g.ranks);
    if (!rc)
        *out = parts;
    else if (parts)
        generate_free(parts, config);
    return rc;
}

__attribute__((unused)) static int trace_generate(const struct generate_config *config,
                                                  const char *path, char *error, size_t size)
{
    struct trace_part *parts = NULL;
    int64_t seed = (int64_t)config->seed;
    struct trace_run run = {
        .source = "synthetic",
        .executor = "sim",
        .command = config->command,
        .fabric = config->nodes > 1 ? "verbs" : NULL,
        .seed = &seed,
        .peak_flops = 989e12,
        .nvlink_bytes_per_s = 315e9,
        .network_bytes_per_s = 50e9,
    };
    int rc = generate_parts(&parts, config, error, size);
    if (rc)
        return rc;
    rc = store_parts(parts, config->nodes * config->gpus, &run, path, error, size);
    generate_free(parts, config);
    return rc;
}
