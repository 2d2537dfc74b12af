/* The timed executor: a discrete-event simulation of a plan's schedule on a machine that is only
 * described. The roles of core/roles/ run; no byte moves and nothing is multiplied. Tiles, copies,
 * sums, flags and puts take the times of core/machine.h. Flows share NVLink and a GPU's memory
 * max-min fair; proxies and NICs serve in order of arrival. A MoE's routing tables are made, since
 * the schedule depends on them.
 *
 * A run is one thread and shares nothing with other runs: several may go on at once, and equal
 * configurations give equal results. */
#pragma once

#include "core/machine.h"
#include "core/plan.h"

struct mk_comm;
struct sim_op;

/* Parts of the critical path. */
enum timed_part {
    TIMED_LAUNCH,  /* launches begin and end */
    TIMED_TILES,   /* tensor cores */
    TIMED_NVLINK,  /* a copy to a peer, at the rate that its mover and NVLink leave it */
    TIMED_MEMORY,  /* a copy or a sum in a GPU's own memory */
    TIMED_FLAG,    /* from a store until the waiting CTA sees its flag */
    TIMED_PROXY,   /* a command's way to the NIC */
    TIMED_NETWORK, /* a put's bytes and their way */
    TIMED_PARTS
};
extern const char *const timed_part_names[TIMED_PARTS];

/* Parts of the machine that are slower than it says: a factor on a rate, 1 for none. */
struct timed_slow {
    double gpu;    /* its tiles, copies and sums */
    double nvlink; /* in and out */
    double nic;
};

struct timed_config {
    const struct mk_plan *plan; /* as plan_build made it for rank 0, all else follows; only read */
    const struct mk_machine *machine;
    const struct sim_op *op;            /* NULL: the problem's; a broken one in tests */
    const struct mk_pipeline *pipeline; /* NULL: the plan's; another in tests */
    uint32_t launches;
    uint64_t seed;
    double jitter;                 /* share by which tiles and puts scatter; 0: none */
    const struct timed_slow *slow; /* [ranks]; NULL: none */
    double skew; /* of a MoE's experts: 0 tokens choose evenly; INFINITY: all the first, and no
                  * other; s: expert e in proportion to 1 / (e + 1)^s. Of logical experts copies
                  * are placed by it, or by `ids` */
    const uint32_t *ids;   /* a MoE's, [ranks][tokens][k]; NULL: drawn, with `skew` */
    uint32_t ring;         /* commands that a ring holds; 0: 1024 */
    uint32_t in_flight;    /* puts of a proxy; 0: the machine's */
    uint64_t max_events;   /* 0: no bound */
    uint32_t trace_events; /* records kept per track; 0: no tracing */
    /* Once, when all is over and before anything is freed, as struct sim_world_config's. */
    int (*finished)(void *context, struct mk_comm *const *comms, uint32_t count);
    void *context;
    uint64_t *beat; /* atomic, grows while it goes on: flop done, of plan_work's for all ranks and
                     * launches; NULL: not kept */
};

struct timed_result {
    char sentence[512]; /* what is wrong, where the return value is not 0 */
    uint64_t ns;        /* virtual, of all launches */
    uint64_t events;
    uint64_t tiles;                     /* that were computed, of all ranks */
    double seconds, cpu_seconds;        /* it took, and the processor's share of them */
    double nvlink_bytes, network_bytes; /* into a rank in a launch, mean */
    double slower;                      /* what the clock did to tiles: 1 or more */
    /* ns of a launch (mean) on the critical path, by part and by role: from the last CTA to end
     * back to the begin of the first launch */
    double parts[TIMED_PARTS], roles[MK_ROLES];
    double busy;        /* share of the last launch in which tensor cores multiplied, mean */
    uint32_t last_rank; /* that ended last */
};

/* Blocks while it computes. 0; -EDEADLK: nothing can go on; -ETIMEDOUT: a wait was longer than the
 * plan's timeout; -EINVAL, -ENOMEM; what `finished` returned. */
int timed_run(const struct timed_config *config, struct timed_result *result);

/* 0, or -EINVAL with a sentence where a run of the plan needs more memory than the machine has. */
int timed_memory_check(const struct mk_plan *plan, char *error, size_t error_size);

/* peak: bf16 flop/ns of a rank if its tensor cores never wait. The others are ns of a launch.
 * products: its products alone (of an engine of its own at that rate, and at the clock that power
 * then leaves). memory: reading and writing those bytes of its arguments that l2 cannot keep.
 * ideal: the longest of products, memory, NVLink bytes and network bytes. */
double timed_peak(const struct mk_machine *machine);
double timed_products(const struct mk_machine *machine, const struct mk_plan *plan);
double timed_memory(const struct mk_machine *machine, const struct mk_plan *plan);
double timed_ideal(const struct mk_machine *machine, const struct mk_plan *plan);
