#include "sim/cluster.h"
#include "sim/op.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void sim_cluster_default(struct sim_cluster *out)
{
    *out = (struct sim_cluster){.flop = 750e3,
                                .memory = 2000,
                                .nvlink = 355,
                                .network = 50,
                                .nvlink_latency = 1200,
                                .network_latency = 3000,
                                .proxy = 100};
}

/* ---- the file ---- */

enum unit { UNIT_FLOP, UNIT_RATE, UNIT_TIME };

static const struct {
    const char *name;
    enum unit unit;
    size_t offset;
} keys[] = {
    {"flop", UNIT_FLOP, offsetof(struct sim_cluster, flop)},
    {"memory", UNIT_RATE, offsetof(struct sim_cluster, memory)},
    {"nvlink", UNIT_RATE, offsetof(struct sim_cluster, nvlink)},
    {"network", UNIT_RATE, offsetof(struct sim_cluster, network)},
    {"nvlink_latency", UNIT_TIME, offsetof(struct sim_cluster, nvlink_latency)},
    {"network_latency", UNIT_TIME, offsetof(struct sim_cluster, network_latency)},
    {"proxy", UNIT_TIME, offsetof(struct sim_cluster, proxy)},
};
enum { KEYS = sizeof keys / sizeof *keys };

static const struct {
    const char *name;
    enum unit unit;
    double factor;
} units[] = {{"TF/s", UNIT_FLOP, 1e3},
             {"GB/s", UNIT_RATE, 1},
             {"ns", UNIT_TIME, 1},
             {"us", UNIT_TIME, 1e3},
             {"ms", UNIT_TIME, 1e6}};

/* One line without its comment. NULL, or what it should be. */
static const char *cluster_read_line(struct sim_cluster *out, const char *line, uint32_t *seen)
{
    char name[32], unit[8], more;
    double value;
    if (sscanf(line, " %31[a-z_] = %lf %7s %c", name, &value, unit, &more) != 3)
        return "a line is written: nvlink = 355 GB/s";
    for (int k = 0; k < KEYS; k++) {
        if (strcmp(keys[k].name, name))
            continue;
        if (*seen >> k & 1)
            return "it is there twice";
        *seen |= 1u << k;
        for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
            if (units[u].unit != keys[k].unit || strcmp(units[u].name, unit))
                continue;
            value *= units[u].factor;
            char *field = (char *)out + keys[k].offset;
            if (!isfinite(value) || value < 0 || value > 1e9 ||
                (keys[k].unit != UNIT_TIME && value < 1e-6))
                return "the value is out of range";
            if (keys[k].unit == UNIT_TIME)
                *(uint64_t *)(void *)field = (uint64_t)value;
            else
                *(double *)(void *)field = value;
            return NULL;
        }
        return keys[k].unit == UNIT_FLOP   ? "its unit is TF/s"
               : keys[k].unit == UNIT_RATE ? "its unit is GB/s"
                                           : "its unit is ns, us or ms";
    }
    return "names are flop, memory, nvlink, network, nvlink_latency, network_latency and proxy";
}

int sim_cluster_read(struct sim_cluster *out, const char *path, char *error, size_t size)
{
    struct sim_cluster read = *out;
    char line[256];
    uint32_t seen = 0, number = 0;
    int rc = 0;
    FILE *f = fopen(path, "re");
    if (!f || fgets(line, sizeof line, f) == NULL) { /* a folder opens, and does not read */
        rc = f && !ferror(f) ? -EINVAL : -errno;
        snprintf(error, size, "the cluster file '%s'%s", path, f && !ferror(f) ? " is empty" : "");
        if (!f || ferror(f))
            snprintf(error + strlen(error), size - strlen(error), ": %s", strerror(-rc));
        if (f)
            fclose(f);
        return rc;
    }
    do {
        number++;
        line[strcspn(line, "#\n")] = '\0';
        if (!line[strspn(line, " \t\r")])
            continue;
        const char *wrong = cluster_read_line(&read, line, &seen);
        if (!wrong)
            continue;
        snprintf(error, size, "line %u of the cluster file '%s': %s", number, path, wrong);
        rc = -EINVAL;
    } while (!rc && fgets(line, sizeof line, f));
    fclose(f);
    if (!rc)
        *out = read;
    return rc;
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
    uint64_t nvlink, network;
    if (op->operands) {
        struct sim_operands o = {0};
        op->operands(plan, tile, 1, &o);
        flop = 2.0 * tile->rows * tile->cols * o.k * (o.gate ? 2 : 1);
    } else { /* attention: what a launch has, in even parts */
        plan_work(plan, &flop, &nvlink, &network);
        flop /= plan->tiles;
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
