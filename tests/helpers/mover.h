/* For the tests of operators that move blocks of rows and multiply nothing: what all of them refuse,
 * orders, bytes, faults, and the mutants of the schedule they share. A test defines `mover`, which
 * says what is the operator's own, between the roles that broken_ops.h was put before and this. */
#pragma once

#include "tests/helpers/ops.h"

#include "core/ops/move.h"

/* What a mutant breaks. From MOVER_MUTATIONS on: the operator's own. */
enum {
    NOTHING,
    DELIVERY_DOES_NOT_WAIT, /* nor do sums, where C holds them */
    FORWARDER_DOES_NOT_WAIT,
    SENDER_DOES_NOT_WAIT,
    EPOCH_REUSED,
    ONE_BUFFER,        /* both parities in one: of what comes */
    ONE_SECOND_BUFFER, /* of what is staged, or added up */
    FLAG_BEFORE_COPY,
    COPY_SHORT,
    LAST_CHUNK_NOT_SENT,
    LAST_CHUNK_NOT_DELIVERED,
    NO_DRAIN,
    MOVER_MUTATIONS,
};

struct mover_mutant {
    const char *name;
    int mutation, expected;
};

#define MOVER_MUTANT(name, expected)                                                               \
    {                                                                                              \
#name, name, expected                                                                      \
    }

struct mover {
    enum mk_op op;
    const struct sim_op *broken;
    uint64_t m, m_of_two; /* of the mutants' world, and of two nodes of one GPU */
    const struct move_plan *(*plan)(const struct mk_plan *plan);
    /* Both parities of a buffer: where each begins, and where the second ends. buffer: 1: of what is
     * staged, or added up */
    void (*parities)(const struct mk_plan *plan, int buffer, uint64_t begin[3]);
    void (*mute)(const struct sim_world_result *result); /* verifies what is said of a mute rank */
    int (*skips)(const struct mk_cta *cta, uint32_t flag); /* a wait of its own; NULL: none */
};

static const struct mover mover;
static int mutation;

/* ---- the plan ---- */

/* On 2 x 3: of M rows `m` is right, `wrong` is not and refused with `says`. */
static void mover_refusals(uint64_t m, uint64_t wrong, const char *says)
{
    const struct mk_problem ok = {.op = mover.op, .topo = {2, 3, 0}, .m = m, .k = 16};
    struct mk_problem q = ok;
    struct mk_plan p;
    char error[300];
    assert_int_equal(plan_build(&p, &q, 0, 0, error, sizeof error), 0);
    q.m = wrong;
    assert_non_null(strstr(ops_refusal(q), says));
    q = ok, q.m = 0;
    assert_non_null(strstr(ops_refusal(q), "M = 0: must be 1 to"));
    q = ok, q.k = 0;
    assert_non_null(strstr(ops_refusal(q), "K = 0: must be 1 to"));
    q = ok, q.k = 12;
    assert_non_null(strstr(ops_refusal(q), "the next K that works is 16"));
    q = ok, q.tuning.chunk_rows = 20;
    assert_non_null(strstr(ops_refusal(q), "the next that works is 24"));
    q = ok, q.tuning.split = (struct mk_role_split){.ctas = {1, 1, 1, 1}};
    assert_non_null(
        strstr(ops_refusal(q), "takes no compute, at least 1 intra_comm, at least 1 inter_send"));
}

/* ---- orders, bytes, faults ---- */

CASE(test_orders)
{
    assert_true(ops_explore(mover.op, 32) >= 768 / OPS_PART);
}

/* Its own sends, C and the network's share aside: what a rank copies to itself is no link's. */
CASE(test_bytes)
{
    ops_bytes_are_minimal(mover.op, 0);
}

CASE(test_faults)
{
    ops_faults(mover.op, ops_shapes[0], 4, mover.mute);
}

/* ---- mutants ---- */

static uint64_t mover_fold(const struct mk_cta *cta, uint64_t offset)
{
    uint64_t begin[3];
    if (mutation != ONE_BUFFER && mutation != ONE_SECOND_BUFFER)
        return offset;
    mover.parities(mutant_plan(cta), mutation == ONE_SECOND_BUFFER, begin);
    return offset >= begin[1] && offset < begin[2] ? offset - (begin[1] - begin[0]) : offset;
}

static int mover_last(const struct mk_cta *cta, uint32_t id)
{
    const struct move_plan *p = mover.plan(mutant_plan(cta));
    return id % p->chunks == p->chunks - 1;
}

int mutant_wait(struct mk_cta *cta, uint32_t flag, uint64_t target, enum mk_cause cause)
{
    if ((mutation == DELIVERY_DOES_NOT_WAIT && cta->role == MK_INTER_REDUCE) ||
        (mutation == FORWARDER_DOES_NOT_WAIT && cta->role == MK_INTRA_COMM) ||
        (mutation == SENDER_DOES_NOT_WAIT && cta->role == MK_INTER_SEND) ||
        (mover.skips && mover.skips(cta, flag)))
        return 0;
    return mk_cta_wait(cta, flag, mutation == EPOCH_REUSED ? 1 : target, cause);
}

static struct mk_chunk held; /* of the CTA whose flag goes first */
static uint32_t held_local;

void mutant_copy(struct mk_cta *cta, uint32_t local, const struct mk_chunk *chunk)
{
    struct mk_chunk c = *chunk;
    c.destination = mover_fold(cta, c.destination);
    c.source = c.space == MK_SPACE_HEAP ? mover_fold(cta, c.source) : c.source;
    held = c;
    held_local = local;
    if (mutation == COPY_SHORT)
        c.bytes -= 16;
    if (mutation != FLAG_BEFORE_COPY)
        mk_cta_copy(cta, local, &c);
}

/* Nothing yields between a copy and its signal, so what is held is this CTA's. */
void mutant_signal(struct mk_cta *cta, uint32_t local, uint32_t flag, uint64_t value)
{
    struct mk_chunk c = held;
    uint32_t to = held_local;
    mk_cta_signal(cta, local, flag, value);
    if (mutation == FLAG_BEFORE_COPY && cta->role == MK_INTRA_COMM)
        mk_cta_copy(cta, to, &c);
}

int mutant_put(struct mk_cta *cta, uint32_t rank, const struct mk_chunk *chunk, uint32_t flag)
{
    struct mk_chunk c = *chunk;
    c.source = mover_fold(cta, c.source);
    c.destination = mover_fold(cta, c.destination);
    return mutation == LAST_CHUNK_NOT_SENT && mover_last(cta, c.id)
               ? 0
               : mk_cta_put(cta, rank, &c, flag);
}

void mutant_deliver(struct mk_cta *cta, enum mk_space space, const struct mk_chunk *chunk,
                    uint32_t rows, uint64_t pitch)
{
    struct mk_chunk c = *chunk;
    c.source = mover_fold(cta, c.source);
    if (mutation != LAST_CHUNK_NOT_DELIVERED || !mover_last(cta, c.id))
        mk_cta_deliver(cta, space, &c, rows, pitch);
}

int mutant_drain(struct mk_cta *cta)
{
    return mutation == NO_DRAIN ? 0 : mk_cta_drain(cta);
}

static struct sim_world_config mover_config(uint64_t seed)
{
    static const uint32_t form[2] = {3, 2};
    struct sim_world_config c = ops_config(mover.op, form, ops_shapes[1]);
    c.op = mover.broken;
    c.seed = seed;
    c.problem.m = mover.m;
    c.problem.tuning.chunk_rows = 16;
    return c;
}

/* Puts of two launches under way at once, in any order: small shards, so that launches follow each
 * other fast. */
static struct sim_world_config mover_srd_config(uint64_t seed)
{
    struct sim_world_config c = mover_config(seed);
    c.problem.topo = (struct mk_topo){.nodes = 2, .gpus = 1};
    c.problem.m = mover.m_of_two;
    c.problem.k = 8;
    c.order = SIM_ORDER_SRD;
    c.launches = 12;
    return c;
}

/* Those that break the schedule which all share, then the operator's own. */
static void mover_mutants(const struct mover_mutant *own, size_t count)
{
    static const struct mover_mutant shared[] = {
        MOVER_MUTANT(NOTHING, 0),
        MOVER_MUTANT(DELIVERY_DOES_NOT_WAIT, -EBADMSG),
        MOVER_MUTANT(SENDER_DOES_NOT_WAIT, -EBADMSG),
        MOVER_MUTANT(EPOCH_REUSED, -EBADMSG),
        MOVER_MUTANT(ONE_BUFFER, -EBADMSG),
        MOVER_MUTANT(FLAG_BEFORE_COPY, -EBADMSG),
        MOVER_MUTANT(COPY_SHORT, -EBADMSG),
        MOVER_MUTANT(LAST_CHUNK_NOT_SENT, -EIO),
        MOVER_MUTANT(LAST_CHUNK_NOT_DELIVERED, -EBADMSG),
    };
    enum { SHARED = sizeof shared / sizeof *shared };
    for (size_t i = 0; i < SHARED + count; i++) {
        const struct mover_mutant *m = i < SHARED ? &shared[i] : &own[i - SHARED];
        mutation = m->mutation;
        ops_hunt(mover_config, m->name, m->expected);
    }
    mutation = NOTHING;
    ops_hunt(mover_srd_config, "NOTHING, over SRD", 0);
    mutation = NO_DRAIN;
    ops_hunt(mover_srd_config, "NO_DRAIN", -EBADMSG);
}
