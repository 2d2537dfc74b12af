/* The simulator's machine: what tiles, copies and puts cost on a cluster that is not there. Links
 * are queues: what crosses one waits for what was sent before, at the sender's way out and at the
 * receiver's way in, and takes its bytes over the rate; a latency is added behind both. Nothing
 * else is modelled: no contention inside a switch, no cache, no clock that slows down. */
#ifndef SIM_CLUSTER_H
#define SIM_CLUSTER_H

#include <stddef.h>

#include "core/machine.h"
#include "sim/clock.h"

/* Of each rank. Rates are bytes (or flop) per ns, so GB/s; times are ns. */
struct sim_cluster {
    double flop;            /* bf16, all compute CTAs of a rank together: each gets its share */
    double memory;          /* copies and sums that stay on the rank */
    double nvlink, network; /* out of a rank, and as much into it */
    uint64_t nvlink_latency, network_latency; /* one way */
    uint64_t proxy; /* of the proxy, for each command and each completion */
};

/* The rates of a machine, as far as there are such here; and of the default one. */
void sim_cluster_of(struct sim_cluster *out, const struct mk_machine *machine);
void sim_cluster_default(struct sim_cluster *out);

/* What the links of one simulation have done. */
struct sim_link {
    /* when what was sent, came, or was moved so far will be through */
    double out_free, in_free, memory_free;
    uint64_t bytes_in;
};

struct sim_machine {
    struct sim_cluster cluster;
    struct mk_topo topo;
    struct sim_link *links; /* [ranks], over NVLink */
    struct sim_link *nics;  /* [ranks], over the network */
    struct sim_costs costs; /* for struct sim_world_config */
    /* atomic; of all tiles so far: another thread may look how far it is */
    uint64_t flop;
};

/* 0 or -ENOMEM. `machine` must stay where it is until sim_machine_close. */
int sim_machine_open(struct sim_machine *machine, const struct sim_cluster *cluster,
                     const struct mk_topo *topo);
void sim_machine_close(struct sim_machine *machine);

/* ns that one launch takes at least: the longest of its flop, NVLink bytes and network bytes (the
 * largest of all ranks, as the plan has them) at these rates. */
double sim_cluster_ideal(const struct sim_cluster *cluster, const struct mk_plan *plan);

#endif
