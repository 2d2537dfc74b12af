#include "sim/cluster.h"
#include "sim/op.h"
#include "sim/timed/timed.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

void sim_cluster_of(struct sim_cluster *out, const struct mk_machine *m)
{
    *out = (struct sim_cluster){.flop = timed_peak(m),
                                .memory = m->movers[MACHINE_BLOCK].room,
                                .nvlink = m->nvlink_in,
                                .network = m->nic_rate,
                                .nvlink_latency = (uint64_t)m->flag,
                                .network_latency = (uint64_t)(m->nic_latency + m->nic_flag),
                                .proxy = (uint64_t)m->proxy_command};
}

void sim_cluster_default(struct sim_cluster *out)
{
    sim_cluster_of(out, machine_default());
}

/* ---- the costs ---- */

static double cluster_later(double a, double b)
{
    return a > b ? a : b;
}

/* When `bytes` that set out now are through both ends. */
static double cluster_cross(struct sim_link *from, struct sim_link *to, double now, double bytes,
                            double rate)
{
    from->out_free = cluster_later(from->out_free, now) + bytes / rate;
    to->in_free = cluster_later(to->in_free, now) + bytes / rate;
    return cluster_later(from->out_free, to->in_free);
}

static uint64_t cluster_tile_done(void *context, uint64_t now, const struct mk_plan *plan,
                                  const struct mk_tile *tile)
{
    struct sim_machine *m = context;
    const struct sim_op *op = sim_op_of(plan->problem.op);
    double flop, ctas = plan->problem.tuning.split.ctas[MK_COMPUTE];
    uint32_t dim;
    if (op->operands) {
        struct sim_operands o = {0};
        op->operands(plan, tile, 1, &o);
        flop = 2.0 * tile->rows * tile->cols * o.k * (o.gate ? 2 : 1);
    } else { /* of a step of attention, what its mask leaves */
        flop = op->flop(plan, tile, &dim) * tile->rows / plan->problem.tuning.tile_m;
    }
    __atomic_fetch_add(&m->flop, (uint64_t)flop, __ATOMIC_RELAXED);
    return now + (uint64_t)ceil(flop * ctas / m->cluster.flop);
}

static uint64_t cluster_copy_done(void *context, uint64_t now, uint32_t from, uint32_t to,
                                  uint64_t bytes)
{
    struct sim_machine *m = context;
    struct sim_link *l = &m->links[from];
    if (from == to) {
        l->memory_free =
            cluster_later(l->memory_free, (double)now) + (double)bytes / m->cluster.memory;
        return (uint64_t)ceil(l->memory_free);
    }
    m->links[to].bytes_in += bytes;
    return (uint64_t)ceil(
               cluster_cross(l, &m->links[to], (double)now, (double)bytes, m->cluster.nvlink)) +
           m->cluster.nvlink_latency;
}

static uint64_t cluster_flag_done(void *context, uint64_t now, uint32_t from, uint32_t to)
{
    const struct sim_machine *m = context;
    return from == to ? now : now + m->cluster.nvlink_latency;
}

static uint64_t cluster_put_done(void *context, uint64_t now, uint32_t from, uint32_t to,
                                 uint64_t bytes)
{
    struct sim_machine *m = context;
    m->nics[to].bytes_in += bytes;
    return (uint64_t)ceil(cluster_cross(&m->nics[from], &m->nics[to], (double)now, (double)bytes,
                                        m->cluster.network)) +
           m->cluster.network_latency;
}

static uint64_t cluster_ack_done(void *context, uint64_t now, uint32_t from, uint32_t to)
{
    const struct sim_machine *m = context;
    return now + m->cluster.network_latency;
}

static uint64_t cluster_proxy_done(void *context, uint64_t now, uint32_t rank, int did)
{
    const struct sim_machine *m = context;
    return now + (uint64_t)(did > 0 ? did : 0) * m->cluster.proxy;
}

int sim_machine_open(struct sim_machine *m, const struct sim_cluster *cluster,
                     const struct mk_topo *topo)
{
    *m = (struct sim_machine){.cluster = *cluster,
                              .topo = *topo,
                              .links = calloc(mk_world(topo), sizeof *m->links),
                              .nics = calloc(mk_world(topo), sizeof *m->nics),
                              .costs = {.context = m,
                                        .tile = cluster_tile_done,
                                        .copy = cluster_copy_done,
                                        .flag = cluster_flag_done,
                                        .put = cluster_put_done,
                                        .ack = cluster_ack_done,
                                        .proxy = cluster_proxy_done}};
    if (m->links && m->nics)
        return 0;
    sim_machine_close(m);
    return -ENOMEM;
}

void sim_machine_close(struct sim_machine *m)
{
    free(m->links);
    free(m->nics);
    m->links = m->nics = NULL;
}

double sim_cluster_ideal(const struct sim_cluster *c, const struct mk_plan *plan)
{
    double flop;
    uint64_t nvlink, network;
    plan_work(plan, &flop, &nvlink, &network);
    return cluster_later(flop / c->flop,
                         cluster_later((double)nvlink / c->nvlink, (double)network / c->network));
}
