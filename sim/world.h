/* The host executor, form (b): all ranks, their proxies and the network in one thread under one
 * seeded scheduler. Each step is one call of a CTA, the landing of (part of) one copy or flag, one
 * pass of a proxy, or one delivery of the network; which comes next is drawn from the seed among
 * all that could. So orders are tried that hardware shows once a month, and an order that fails is
 * had again from its seed.
 *
 * What may be reordered is what core/cta/cta.h and backends/fabric.h leave open, no less and no more:
 * copies of a CTA land in pieces, in any order, their source read as late as that; its flags land
 * in order, each after all its earlier copies. */
#pragma once

#include "core/comm/failure.h"
#include "sim/clock.h"
#include "sim/coroutine.h"
#include "sim/cta.h"

/* The order of puts from one rank to another. */
enum sim_order {
    SIM_ORDER_RC,  /* data, flag, data, flag: as posted */
    SIM_ORDER_SRD, /* any, but for a put's flag after its own data */
};

enum sim_fault_kind {
    SIM_FAULT_NONE,
    /* `rank` stops altogether, and nothing reaches or leaves it, from step `number` */
    SIM_FAULT_DROP,
    SIM_FAULT_MUTE,     /* the communication CTAs of `rank` never run */
    SIM_FAULT_FAIL_PUT, /* put `number` of `rank`, from 1, fails */
    SIM_FAULT_SLOW,     /* puts from and to `rank` take up to `number` ns longer */
    /* ranks begin late: `rank` by `number` ns, the next rank by twice as many, and so on */
    SIM_FAULT_LATE,
};

struct sim_fault {
    enum sim_fault_kind kind;
    uint32_t rank;
    uint64_t number;
};

struct sim_world_result;
struct hopper_mutation;
struct hopper_site;

struct sim_world_config {
    struct mk_problem
        problem; /* topo.rank is filled in; with a_in_heap or c_in_heap the world places A or C */
    uint32_t launches;
    uint64_t seed;
    enum sim_order order;
    uint32_t ring_capacity; /* commands, a power of two; 0: 64 */
    uint32_t in_flight;     /* puts of one proxy; 0: the proxy's default */
    uint32_t fabric_depth;  /* puts that a fabric takes before it says -EAGAIN; 0: 16 */
    uint64_t delay_ns;      /* every delivery of the network takes up to this much longer */
    struct sim_fault fault;
    const struct sim_costs *costs; /* NULL: explore */
    const struct sim_op *op;       /* NULL: the problem's; a broken one in tests */
    struct coroutine_pool *pool;   /* NULL: one of its own */
    uint32_t tracks;               /* records kept per track of emulated kernels; 0: no tracing */
    uint64_t max_steps;            /* 0: 200 million */
    uint32_t emulated; /* SMs of each rank's emulated GPU, which runs the op's kernel (sim/hopper):
                        * problem.exec is MK_EXEC_CUDA, problem.sms this. 0: CTAs are coroutines */
    uint32_t together; /* SMs of one GPU that all emulated ranks share; 0: each has its own */
    /* of the emulated kernels (sim/hopper/hopper.h); tests */
    const struct hopper_mutation *mutations;
    uint32_t mutation_count;
    int tries_end;
    /* places that could have one; NULL: not asked */
    void (*sites)(void *context, const struct hopper_site *sites, uint32_t count);
    /* emulated: results are checked, races between threads are not watched for (several times
     * faster) */
    int unwatched;

    /* Fills a rank's inputs of launch 1 .. launches, by their arguments' numbers; outputs are
     * poisoned. NULL: random by the seed. */
    void (*inputs)(void *context, const struct mk_plan *plan, uint64_t launch,
                   void *const *arguments);
    /* Verifies C after launch `launch`: 0, or non-zero with a sentence in `text`. NULL: by the
     * operator's own verification. */
    int (*check)(void *context, const struct mk_plan *plan, uint64_t launch, const uint16_t *c,
                 char *text, size_t size);
    void *context;
};

struct sim_world_result {
    struct mk_failure failure; /* kind MK_FAIL_NONE: none */
    char sentence[512];        /* what is wrong, where the return value is not 0 */
    uint64_t steps, ns;        /* scheduled steps; virtual time */
    uint64_t hash;             /* of the order of events: equal for equal runs */
};

/* Runs `launches` launches on every rank. Allocates and frees everything; blocks while it computes.
 * 0; -EIO: a CTA or a proxy failed the job (result->failure); -EBADMSG: wrong result, or a flag or
 * byte where none may be; -EDEADLK: nothing can go on; -ETIMEDOUT: the search is incomplete, for
 * the run does not end in max_steps, or the watch over memory has run out of room; -EINVAL: no
 * plan; -ENOMEM. */
int sim_world_run(const struct sim_world_config *config, struct sim_world_result *result);

/* Turns the knobs of the plan and of the machine by the seed: tiles, chunks, pieces, roles, where A
 * lies, ring, fabric, delays, order. What it does not set stays. */
void sim_world_vary(struct sim_world_config *config);

/* Draws everything but the op by the seed: cluster, shape, plan, machine, orders, and now and then
 * a fault (draw.c). */
void sim_world_draw(struct sim_world_config *config);

/* Shots of a plan whose tiles have rows of all ranks: 1, or, of an operator whose tiles may be
 * shared out, for every other `draw` 3. */
uint32_t sim_one_shot(const struct mk_problem *problem, uint64_t draw);

/* Of half of all plans of two shots blocks of columns, where the operator has them; N is made to
 * fit. */
void sim_columns(struct mk_problem *problem, uint64_t draw);

/* Whether a plan in its form of shots may have several slices. */
int sim_slices(const struct mk_problem *problem);

/* Makes a case one for emulated GPUs: of problem.sms SMs, or a few. `drawn`: sim_world_vary or
 * sim_world_draw have chosen its plan, which then becomes one that a kernel is built for, on at
 * most four ranks; else only roles are chosen where none are (emulate.c). */
void sim_world_emulate(struct sim_world_config *config, int drawn);

/* Whether a run kept what is promised for its fault: right results, or, after a fault that no job
 * survives, a failure that names the operator, a rank, and the rank that owed it what. 0, or a
 * negative value with the reason in result->sentence. */
int sim_world_promised(const struct sim_world_config *config, int rc,
                       struct sim_world_result *result);
