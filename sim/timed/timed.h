/* The timed executor: a discrete-event simulation of a plan's schedule on a described machine
 * (core/model/machine.h). It runs the roles of core/roles/, but moves no bytes and multiplies nothing:
 * tiles, copies, sums, flags and puts only take the machine's times. Flows share NVLink and a GPU's
 * memory max-min fair; proxies and NICs serve in order of arrival. A MoE's routing tables are
 * computed, because the schedule depends on them.
 *
 * A run is one thread and shares nothing with other runs: several may go on at once, and equal
 * configurations give equal results. */
#pragma once

#include "core/model/machine.h"
#include "core/plan/plan.h"

struct mk_comm;
struct sim_op;

/* Parts of the critical path. */
enum timed_part {
    TIMED_LAUNCH,  /* launches begin and end */
    TIMED_TILES,   /* tensor cores */
    TIMED_NVLINK,  /* a copy to a peer */
    TIMED_MEMORY,  /* a copy or a sum in a GPU's own memory */
    TIMED_FLAG,    /* from a store until the waiting CTA sees its flag */
    TIMED_PROXY,   /* from posting a command until the NIC has it */
    TIMED_NETWORK, /* a put: its bytes and its latency */
    TIMED_PARTS
};
extern const char *const timed_part_names[TIMED_PARTS];

/* How much slower parts of one rank's machine are: a factor on a rate, 1 for not slower. */
struct timed_slow {
    double gpu;    /* tiles, copies and sums */
    double nvlink; /* in and out */
    double nic;
};

struct timed_config {
    const struct mk_plan *plan; /* as plan_build made it for rank 0 */
    const struct mk_machine *machine;
    const struct sim_op *op;            /* NULL: the problem's; tests give a broken one */
    const struct mk_pipeline *pipeline; /* NULL: the plan's; tests give another */
    uint32_t launches;
    uint64_t seed;
    double jitter;                 /* relative spread of the times of tiles and puts; 0: none */
    const struct timed_slow *slow; /* [ranks]; NULL: none */
    double skew; /* how a MoE's tokens choose experts. 0: evenly; INFINITY: all choose the first
                  * alone; s: expert e in proportion to 1 / (e + 1)^s. It, or `ids`, also decides
                  * which logical experts get copies */
    const uint32_t *ids;   /* a MoE's expert ids, [ranks][tokens][k]; NULL: drawn by `skew` */
    uint32_t ring;         /* capacity of a command ring; 0: 1024 */
    uint32_t in_flight;    /* puts that a proxy has in flight at most; 0: the machine's */
    uint64_t max_events;   /* 0: no limit */
    uint32_t trace_events; /* records kept per track; 0: no tracing */
    /* Called once, at the end of the run and before anything is freed, as in
     * struct sim_world_config. */
    int (*finished)(void *context, struct mk_comm *const *comms, uint32_t count);
    void *context;
    uint64_t *beat; /* progress, atomic: the flop done so far of all ranks and launches (in all
                     * plan_work's); NULL: not wanted */
};

struct timed_result {
    char sentence[512]; /* the error, if timed_run did not return 0 */
    uint64_t ns;        /* simulated time of all launches */
    uint64_t events;
    uint64_t tiles;                     /* computed, of all ranks */
    double seconds, cpu_seconds;        /* wall and CPU time of the simulation */
    double nvlink_bytes, network_bytes; /* received by a rank in a launch, mean */
    double slower;                      /* factor of the power limit on tiles: 1 or more */
    /* ns of a launch (mean) on the critical path, by part and by role. The path leads from the CTA
     * that ended last back to the begin of the first launch. */
    double parts[TIMED_PARTS], roles[MK_ROLES];
    double busy;        /* share of the last launch in which tensor cores multiplied, mean */
    uint32_t last_rank; /* the rank that ended last */
};

/* Runs a simulation to its end. Returns 0; -EDEADLK: no CTA can go on; -ETIMEDOUT: a wait was
 * longer than the plan's timeout; -EINVAL, -ENOMEM; or what `finished` returned. */
int timed_run(const struct timed_config *config, struct timed_result *result);

/* Whether this host has enough memory to simulate the plan: 0, or -EINVAL and a sentence. */
int timed_memory_check(const struct mk_plan *plan, char *error, size_t size);

/* Lower bounds. timed_peak: bf16 flop/ns of a rank whose tensor cores never wait. The others are ns
 * of a launch. timed_products: its products alone, at that rate and the clock under the power limit
 * (an operator with an engine of its own: at that engine's). timed_memory: reading and writing the
 * bytes of its arguments that the L2 cache cannot keep. timed_ideal: the longest of products,
 * memory, NVLink bytes and network bytes. */
double timed_peak(const struct mk_machine *machine);
double timed_products(const struct mk_machine *machine, const struct mk_plan *plan);
double timed_memory(const struct mk_machine *machine, const struct mk_plan *plan);
double timed_ideal(const struct mk_machine *machine, const struct mk_plan *plan);
