#include "backends/topology.h"
#include "core/base/scoped.h"

#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BRIDGES = 20 }; /* the deepest chain that fits a place */

static int topology_read_number(const char *path, int absent)
{
    int value = absent;
    MK_CLOSED FILE *f = fopen(path, "re");
    if (f && fscanf(f, "%d", &value) != 1)
        value = absent;
    return value;
}

/* The PCI components of a canonical path: from "/pci0000:15/" on, at any depth (a hypervisor's bus
 * has bridges too). */
static const char *topology_host_bridge(const char *path)
{
    unsigned domain, bus;
    for (const char *at = path; (at = strstr(at, "/pci")); at++)
        if (sscanf(at, "/pci%x:%x/", &domain, &bus) == 2)
            return at + 1;
    return NULL;
}

/* The place of the device that a link in sysfs leads to. */
static int topology_place_of(const char *root, const char *link, struct topology_place *out)
{
    char top[PATH_MAX], path[PATH_MAX], file[PATH_MAX + 16];
    *out = TOPOLOGY_NOWHERE;
    if (!realpath(root, top) || !realpath(link, path) || strncmp(path, top, strlen(top)))
        return -ENODEV;
    const char *chain = topology_host_bridge(path + strlen(top));
    if (!chain || strlen(chain) >= sizeof out->chain)
        return -ENODEV;
    memcpy(out->chain, chain, strlen(chain) + 1);
    snprintf(file, sizeof file, "%s/numa_node", path);
    out->numa = topology_read_number(file, -1);
    return 0;
}

int topology_pci(const char *root, const char *bus_id, struct topology_place *out)
{
    char link[PATH_MAX];
    unsigned domain, bus, device, function;
    *out = TOPOLOGY_NOWHERE;
    if (sscanf(bus_id, "%x:%x:%x.%x", &domain, &bus, &device, &function) != 4)
        return -EINVAL;
    snprintf(link, sizeof link, "%s/bus/pci/devices/%04x:%02x:%02x.%x", root, domain, bus, device,
             function);
    return topology_place_of(root, link, out);
}

int topology_rdma(const char *root, const char *name, struct topology_place *out)
{
    char link[PATH_MAX];
    snprintf(link, sizeof link, "%s/class/infiniband/%s/device", root, name);
    return topology_place_of(root, link, out);
}

/* Whether a list such as "0-55,112-167" has all CPUs of `set`. */
static int topology_list_covers(FILE *f, const cpu_set_t *set)
{
    cpu_set_t listed, both;
    unsigned from, to;
    CPU_ZERO(&listed);
    while (fscanf(f, "%u", &from) == 1) {
        int c = fgetc(f);
        to = from;
        if (c == '-' && fscanf(f, "%u", &to) == 1)
            c = fgetc(f);
        for (; from <= to && from < CPU_SETSIZE; from++)
            CPU_SET(from, &listed);
        if (c != ',')
            break;
    }
    CPU_AND(&both, &listed, set);
    return CPU_EQUAL(&both, set);
}

int topology_own_numa(const char *root)
{
    cpu_set_t own;
    if (sched_getaffinity(0, sizeof own, &own))
        return -1;
    for (int node = 0, missing = 0; missing < 64; node++) { /* numbers may have gaps */
        char path[PATH_MAX];
        snprintf(path, sizeof path, "%s/devices/system/node/node%d/cpulist", root, node);
        MK_CLOSED FILE *f = fopen(path, "re");
        missing = f ? 0 : missing + 1;
        if (f && topology_list_covers(f, &own))
            return node;
    }
    return -1;
}

/* Cuts a chain at its slashes. Returns the number of its components. */
static uint32_t topology_split(char *chain, const char *parts[BRIDGES])
{
    uint32_t count = 0;
    for (char *rest = NULL, *part = strtok_r(chain, "/", &rest); part && count < BRIDGES;
         part = strtok_r(NULL, "/", &rest))
        parts[count++] = part;
    return count;
}

enum topology_distance topology_distance(const struct topology_place *a,
                                         const struct topology_place *b)
{
    struct topology_place copy[2] = {*a, *b};
    const char *parts[2][BRIDGES];
    uint32_t counts[2], common = 0;
    for (int i = 0; i < 2; i++)
        counts[i] = topology_split(copy[i].chain, parts[i]);
    while (common < counts[0] && common < counts[1] && !strcmp(parts[0][common], parts[1][common]))
        common++;
    if (common > 1) /* below a switch's upstream port: its downstream port, and the device */
        return counts[0] - common <= 2 && counts[1] - common <= 2 ? TOPOLOGY_PIX : TOPOLOGY_PXB;
    if (common == 1)
        return TOPOLOGY_PHB;
    if (a->numa < 0 || b->numa < 0)
        return counts[0] && counts[1] ? TOPOLOGY_SYS : TOPOLOGY_UNKNOWN;
    return a->numa == b->numa ? TOPOLOGY_NODE : TOPOLOGY_SYS;
}

const char *topology_name(enum topology_distance distance)
{
    static const char *const names[] = {"PIX", "PXB", "PHB", "NODE", "SYS"};
    return (unsigned)distance < sizeof names / sizeof *names ? names[distance] : "unknown";
}

/* ---- choice ---- */

#define NO_RANK UINT32_MAX

/* One round deals one NIC to each rank. */
struct deal {
    uint32_t ranks, nics;
    /* [ranks][nics]: equal where NICs are alike to a rank, less where one is better */
    const double *cost;
    const uint8_t *taken; /* [ranks][nics]: in an earlier round */
    double *bound;        /* [ranks]: the cost of this round's NIC */
    uint32_t *given;      /* [ranks]: in this round, or NO_RANK */
    uint32_t *queue;      /* [ranks] */
    uint32_t *load;       /* [nics] */
    uint32_t *via;        /* [nics]: the rank that leads there, or NO_RANK */
};

static int topology_may_have(const struct deal *d, uint32_t rank, uint32_t nic)
{
    size_t at = (size_t)rank * d->nics + nic;
    return !d->taken[at] && d->cost[at] == d->bound[rank];
}

/* Gives `rank` a NIC so that loads stay as even as they can be: of all NICs that it may have, or
 * that a rank with one of those could move to, and so on, the one with the fewest ranks gets one
 * more (Harvey, Ladner, Lovasz, Tamir, Semi-Matchings for Bipartite Graphs and Load Balancing,
 * 2003). NICs near in that search come first: no rank moves without need. */
static void topology_give(struct deal *d, uint32_t rank)
{
    uint32_t head = 0, tail = 0, best = NO_RANK;
    for (uint32_t nic = 0; nic < d->nics; nic++)
        d->via[nic] = NO_RANK;
    for (d->queue[tail++] = rank; head < tail; head++)
        for (uint32_t nic = 0; nic < d->nics; nic++) {
            if (d->via[nic] != NO_RANK || !topology_may_have(d, d->queue[head], nic))
                continue;
            d->via[nic] = d->queue[head];
            best = best == NO_RANK || d->load[nic] < d->load[best] ? nic : best;
            for (uint32_t other = 0; other < d->ranks; other++)
                if (d->given[other] == nic)
                    d->queue[tail++] = other;
        }
    d->load[best]++;
    for (uint32_t nic = best, mover = NO_RANK; mover != rank;) {
        uint32_t before = d->given[mover = d->via[nic]];
        d->given[mover] = nic;
        nic = before;
    }
}

/* The least cost of a NIC that the rank does not have yet. Only NICs of this cost are candidates:
 * nearness comes before evenness. */
static double topology_next_cost(const struct deal *d, uint32_t rank)
{
    double least = -1;
    for (uint32_t nic = 0; nic < d->nics; nic++) {
        size_t at = (size_t)rank * d->nics + nic;
        if (!d->taken[at] && (least < 0 || d->cost[at] < least))
            least = d->cost[at];
    }
    return least;
}

static void topology_deal_round(struct deal *d)
{
    for (uint32_t rank = 0; rank < d->ranks; rank++) {
        d->given[rank] = NO_RANK;
        d->bound[rank] = topology_next_cost(d, rank);
    }
    for (uint32_t rank = 0; rank < d->ranks; rank++)
        topology_give(d, rank);
}

/* Distance before speed. */
static double topology_cost_of(const struct topology_place *rank, const struct topology_nic *nic)
{
    double slowness = 1 / (1 + (nic->gbit > 0 ? nic->gbit : 0)); /* over 0, up to 1 */
    return (double)topology_distance(rank, &nic->place) + slowness / 2;
}

/* NICs that are a rank's own, divided among the ranks that have any of them as their own. */
static uint32_t topology_share(const struct deal *d, uint32_t rank)
{
    uint32_t own = 0, sharers = 0;
    const double *cost = &d->cost[(size_t)rank * d->nics];
    if (d->bound[rank] >= TOPOLOGY_PHB)
        return 1;
    for (uint32_t nic = 0; nic < d->nics; nic++)
        own += cost[nic] == d->bound[rank];
    for (uint32_t other = 0; other < d->ranks; other++)
        for (uint32_t nic = 0; nic < d->nics; nic++)
            if (cost[nic] == d->bound[rank] &&
                d->cost[(size_t)other * d->nics + nic] == d->bound[other]) {
                sharers++;
                break;
            }
    return own > sharers ? own / sharers : 1;
}

/* Every rank gets the same number: a rank with more would only wait for the others. */
static uint32_t topology_choose_rails(struct deal *d)
{
    uint32_t rails = TOPOLOGY_RAILS_MAX;
    for (uint32_t rank = 0; rank < d->ranks; rank++)
        d->bound[rank] = topology_next_cost(d, rank);
    for (uint32_t rank = 0; rank < d->ranks; rank++) {
        uint32_t own = topology_share(d, rank);
        rails = own < rails ? own : rails;
    }
    return rails;
}

int topology_choose(const struct topology_place *ranks, uint32_t rank_count,
                    const struct topology_nic *nics, uint32_t nic_count, uint32_t rails,
                    struct topology_choice *out)
{
    if (!rank_count || !nic_count)
        return -EINVAL;
    size_t pairs = (size_t)rank_count * nic_count;
    MK_FREED double *cost = calloc(pairs, sizeof *cost), *bound = calloc(rank_count, sizeof *bound);
    MK_FREED uint8_t *taken = calloc(pairs, 1);
    MK_FREED uint32_t *words = calloc(2 * ((size_t)rank_count + nic_count), sizeof *words);
    int result = cost && bound && taken && words ? 0 : -ENOMEM;
    if (!result) {
        struct deal d = {rank_count,
                         nic_count,
                         cost,
                         taken,
                         bound,
                         words,
                         words + rank_count,
                         words + 2 * rank_count,
                         words + 2 * rank_count + nic_count};
        for (uint32_t rank = 0; rank < rank_count; rank++)
            for (uint32_t nic = 0; nic < nic_count; nic++)
                cost[(size_t)rank * nic_count + nic] = topology_cost_of(&ranks[rank], &nics[nic]);
        if (!rails)
            rails = topology_choose_rails(&d);
        rails = rails > TOPOLOGY_RAILS_MAX ? TOPOLOGY_RAILS_MAX : rails;
        rails = rails > nic_count ? nic_count : rails;
        memset(out, 0, rank_count * sizeof *out);
        for (uint32_t round = 0; round < rails; round++) {
            topology_deal_round(&d);
            for (uint32_t rank = 0; rank < rank_count; rank++) {
                out[rank].nics[out[rank].count++] = d.given[rank];
                taken[(size_t)rank * nic_count + d.given[rank]] = 1;
            }
        }
    }
    return result;
}
