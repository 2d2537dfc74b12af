/* For the tests of operators over the deterministic executor: orders drawn on every form of
 * cluster, error norms of sums over ranks, the bits of deterministic results, bytes per link, and
 * the hunt for a mutant. */
#pragma once

#include "tests/helpers/world.h"

#include "core/plan/epilogue.h"
#include "core/cta/half.h"
#include "core/ops/op.h"
#include "core/base/quantize.h"
#include "sim/fill.h"

#include <cblas.h>
#include <math.h>

#include "tests/helpers/test.h"

/* The thread sanitizer finds nothing in orders drawn on one thread; it and the address sanitizer
 * take long. */
#ifdef __SANITIZE_THREAD__
#define OPS_PART 20
#elif defined __SANITIZE_ADDRESS__
#define OPS_PART 8
#else
#define OPS_PART 1
#endif

static const uint32_t ops_forms[][2] = {{1, 1}, {1, 4}, {2, 1}, {2, 2}, {3, 2}, {4, 1}};
#define OPS_FORMS (sizeof ops_forms / sizeof *ops_forms)

/* M per rank, N, K: nothing divides a tile, a chunk or a cache line. */
static const uint64_t ops_shapes[][3] = {{33, 40, 72}, {65, 200, 24}, {1, 8, 8}, {17, 136, 8}};
#define OPS_SHAPES (sizeof ops_shapes / sizeof *ops_shapes)

static struct sim_world_config ops_config(enum mk_op op, const uint32_t form[2],
                                          const uint64_t shape[3])
{
    struct sim_world_config c =
        world_config(form[0], form[1], form[0] * form[1] * shape[0], shape[1], shape[2]);
    uint64_t rows = 2 * (1 + shape[0] % 11);
    c.problem.attention = (struct mk_attention){.batch = 1 + shape[1] / 8 % 2,
                                                .sequence = form[0] * form[1] * rows,
                                                .heads = 2 + 2 * (shape[2] > 70),
                                                .kv_heads = 2,
                                                .head_dim = rows > 20 ? 128 : 64};
    c.problem.moe = (struct mk_moe){.tokens = 8 * (1 + shape[0] % 3) - shape[0] % 5,
                                    .hidden = 64 * (1 + shape[0] % 2) + shape[2] % 64,
                                    .inner = shape[1],
                                    .experts = form[0] * form[1] * (1 + shape[2] / 8 % 3),
                                    .k = 1};
    while (c.problem.moe.k < 8 && 2 * c.problem.moe.k <= c.problem.moe.experts && shape[2] > 8)
        c.problem.moe.k *= 2;
    c.problem.op = op;
    op_fit(&c.problem);
    return c;
}

/* Order number `seed` of a form and a shape, with a plan and a machine of its own. */
static struct sim_world_config ops_varied(enum mk_op op, size_t form, size_t shape, uint64_t seed)
{
    struct sim_world_config c = ops_config(op, ops_forms[form], ops_shapes[shape]);
    c.problem.m -= seed % mk_world(&c.problem.topo); /* where M need not divide, it does not */
    if (op_has_bytes(op))                            /* bf16, fp16, e4m3, bytes in turn */
        plan_set_dtype(&c.problem, (int)(seed % MK_PLAN_DTYPES));
    else if (op_has_fp16(op))
        c.problem.fp16 = (int)(seed >> 1 & 1);
    op_fit(&c.problem);
    if (c.problem.attention.sequence > seed % 5) /* ranks without rows, too */
        c.problem.attention.sequence -= seed % 5;
    c.seed = seed * 7919 + shape; /* the bits that vary turns are low */
    c.problem.b_transposed = op != MK_OP_RING_ATTENTION && seed & 1;
    c.problem.attention.causal = (int)(seed >> 1 & 1);
    c.problem.attention.contiguous = (int)(seed >> 2 & 1);
    if (op_of(op)->epilogue & MK_EPILOGUE_ROWS)
        c.problem.epilogue = (uint32_t[]){0, MK_EPILOGUE_ROWS, MK_EPILOGUE_RESIDUAL}[seed % 3];
    if (c.problem.epilogue == MK_EPILOGUE_ROWS && c.problem.n % MK_QUANTIZE_DEPTH == 0)
        c.problem.epilogue |= MK_EPILOGUE_QUANTIZE;
    sim_world_vary(&c);
    return c;
}

/* What building a plan that cannot be says. */
__attribute__((unused)) static const char *ops_refusal(struct mk_problem q)
{
    static char error[400];
    struct mk_plan p;
    assert_int_equal(plan_build(&p, &q, 0, 0, error, sizeof error), -EINVAL);
    return error;
}

/* The arguments of the command that runs it again: test_interleave has them do so. */
static const char *ops_replay(const struct sim_world_config *c)
{
    static char text[256];
    const struct mk_problem *q = &c->problem;
    uint64_t numbers[OP_DIMENSIONS];
    uint32_t count = op_numbers(q, numbers);
    char shape[128], words[EPILOGUE_TEXT];
    size_t used = (size_t)snprintf(shape, sizeof shape, "--%s ", op_of(q->op)->shape->option);
    for (uint32_t i = 0; i < count; i++)
        used += (size_t)snprintf(shape + used, sizeof shape - used, "%s%d", i ? "," : "",
                                 (int)numbers[i]);
    if (op_of(q->op)->causal && q->attention.causal)
        used += (size_t)snprintf(shape + used, sizeof shape - used, " --causal");
    if (q->epilogue)
        snprintf(shape + used, sizeof shape - used, " --epilogue %s",
                 epilogue_text(q->epilogue, words));
    if (op_of(q->op)->causal && q->attention.contiguous)
        snprintf(shape + used, sizeof shape - used, " --split contiguous");
    snprintf(text, sizeof text,
             "sim %s --explore --vary --runs 1 --nodes %u --gpus %u --seed %d %s%s%s%s",
             plan_op_name(q->op), q->topo.nodes, q->topo.gpus, (int)c->seed, shape,
             op_of(q->op)->b_layout && q->b_transposed ? " --b-layout nk" : "",
             plan_dtype(q) ? " --dtype " : "", plan_dtype(q) ? plan_dtypes[plan_dtype(q)] : "");
    return text;
}

/* The order is right; else how to see it again. */
__attribute__((unused)) static void ops_right(const struct sim_world_config *c)
{
    struct sim_world_result result;
    int rc = sim_world_run(c, &result);
    if (rc)
        print_error("%s\n  replay: build/mkernel %s\n", result.sentence, ops_replay(c));
    assert_int_equal(rc, 0);
}

/* `seeds` orders of every form and shape, verified bit by bit. Returns how many. */
__attribute__((unused)) static uint32_t ops_explore(enum mk_op op, uint64_t seeds)
{
    struct coroutine_pool *pool;
    uint32_t explored = 0;
    assert_int_equal(coroutine_pool_create(&pool, 0), 0);
    for (size_t form = 0; form < OPS_FORMS; form++)
        for (size_t shape = 0; shape < OPS_SHAPES; shape++)
            for (uint64_t seed = 0; seed < (seeds + OPS_PART - 1) / OPS_PART; seed++, explored++) {
                struct sim_world_config c = ops_varied(op, form, shape, seed);
                c.pool = pool;
                ops_right(&c);
            }
    coroutine_pool_destroy(pool);
    return explored;
}

/* Tiles of 8 x 8, so that a put takes several, and neither rows nor columns end with one. */
__attribute__((unused)) static void ops_many_tiles(struct sim_world_config *c)
{
    uint32_t world = mk_world(&c->problem.topo);
    c->problem.m = 33 * world;
    c->problem.n = 136;
    c->problem.k = 8;
    c->problem.tuning.tile_m = c->problem.tuning.tile_n = 8;
    c->problem.tuning.chunk_rows = 16;
}

/* Puts of several tiles, over networks of both orders. */
__attribute__((unused)) static void ops_large_puts(enum mk_op op)
{
    static const uint32_t forms[][2] = {{2, 1}, {2, 2}, {3, 2}};
    for (uint64_t seed = 0; seed < (24 + OPS_PART - 1) / OPS_PART; seed++) {
        struct sim_world_config c = ops_config(op, forms[seed % 3], ops_shapes[0]);
        ops_many_tiles(&c);
        c.seed = seed;
        c.order = seed / 3 & 1 ? SIM_ORDER_SRD : SIM_ORDER_RC;
        c.problem.deterministic = (int)(seed / 6 & 1);
        c.problem.tuning.pieces = op == MK_OP_GEMM_AR && seed / 12 ? 2 : 1;
        world_right(&c);
    }
}

/* ---- sums over ranks of real numbers ---- */

struct ops_sum {
    int whole;     /* 1: C is all of the sum, 0: this rank's rows */
    uint64_t seed; /* of the inputs */
    double difference2, reference2;
    uint64_t bits;     /* of all results of all launches, in any order */
    uint64_t same[16]; /* of the whole sum, per launch: it has the same bits on every rank */
    uint32_t checked;
};

static void ops_sum_fill(void *context, const struct mk_plan *plan, uint64_t launch,
                         void *const *arguments)
{
    const struct ops_sum *s = context;
    const struct mk_problem *q = &plan->problem;
    sim_fill(arguments[0], q->m * q->k, s->seed, q->topo.rank, launch, 0);
    sim_fill(arguments[1], q->k * q->n, s->seed, q->topo.rank, launch, 1);
}

static double *ops_widen(const struct mk_problem *q, const uint16_t *from, uint64_t count)
{
    double *to = malloc(count * sizeof *to);
    for (uint64_t i = 0; i < count; i++)
        to[i] = (double)mk_half_to_float(plan_element(q), from[i]);
    return to;
}

/* Against float64 dgemm over whole matrices. */
static int ops_sum_check(void *context, const struct mk_plan *plan, uint64_t launch,
                         const uint16_t *c, char *text, size_t size)
{
    struct ops_sum *s = context;
    const struct mk_problem *q = &plan->problem;
    uint64_t m = q->m, n = q->n, k = q->k, rows = s->whole ? m : m / mk_world(&q->topo);
    uint64_t first = s->whole ? 0 : q->topo.rank * rows,
             hash = launch << 8 ^ (s->whole ? 0 : q->topo.rank);
    uint16_t *a16 = malloc(m * k * 2), *b16 = malloc(k * n * 2);
    double *reference = calloc(rows * n, sizeof *reference);
    for (uint32_t rank = 0; rank < mk_world(&q->topo); rank++) {
        sim_fill(a16, m * k, s->seed, rank, launch, 0);
        sim_fill(b16, k * n, s->seed, rank, launch, 1);
        double *a = ops_widen(q, a16 + first * k, rows * k), *b = ops_widen(q, b16, k * n);
        cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)rows, (int)n, (int)k, 1.0, a,
                    (int)k, b, (int)n, 1.0, reference, (int)n);
        free(a);
        free(b);
    }
    for (uint64_t i = 0; i < rows * n; i++) {
        double off = (double)mk_half_to_float(plan_element(q), c[i]) - reference[i];
        s->difference2 += off * off; /* NaN stays */
        s->reference2 += reference[i] * reference[i];
        hash = sim_mix(hash ^ c[i]);
    }
    s->bits += hash;
    if (s->whole && !s->same[launch])
        s->same[launch] = hash;
    int differs = s->whole && s->same[launch] != hash;
    if (differs)
        snprintf(text, size, "rank %u has other bits than the ranks before", q->topo.rank);
    s->checked++;
    free(a16);
    free(b16);
    free(reference);
    return differs;
}

/* One order; the relative Frobenius error of all its results, their bits in *bits. */
__attribute__((unused)) static double ops_sum_error(struct sim_world_config config, int whole,
                                                    uint64_t *bits)
{
    struct ops_sum s = {.whole = whole, .seed = 4711};
    config.inputs = ops_sum_fill;
    config.check = ops_sum_check;
    config.context = &s;
    world_right(&config);
    assert_int_equal(s.checked, config.launches * mk_world(&config.problem.topo));
    if (bits)
        *bits = s.bits;
    return sqrt(s.difference2 / s.reference2);
}

/* Fast and deterministic errors keep to their bounds on every form. */
__attribute__((unused)) static void ops_sum_errors(enum mk_op op, int whole)
{
    static const uint64_t shape[3] = {65, 136, 264};
    for (size_t form = 0; form < OPS_FORMS; form++)
        for (int i = 0; i < (ops_forms[form][0] == 1 ? 8 : 4); i++) {
            struct sim_world_config c = ops_config(op, ops_forms[form], shape);
            int deterministic = i % 2, fp16 = i / 2 % 2;
            c.problem.deterministic = deterministic;
            c.problem.fp16 = fp16;
            c.problem.tuning.shots = 2 - (uint32_t)i / 4;
            c.launches = 2;
            c.seed = form;
            double error = ops_sum_error(c, whole, NULL);
            print_message("%s %u x %u %s %s, shots %u: relative error %.2e\n", plan_op_name(op),
                          ops_forms[form][0], ops_forms[form][1], fp16 ? "fp16" : "bf16",
                          deterministic ? "deterministic" : "fast", c.problem.tuning.shots, error);
            /* one rounding to bf16 makes 1.66e-3, to fp16 an eighth: less would be no measurement */
            error *= fp16 ? 8 : 1;
            assert_true(error > 1e-3);
            assert_true(error <= (deterministic ? 2e-3 : 5e-3));
        }
}

/* The same bits in every order and with every role split, in two shots and in one, and where a rank's blocks are of columns. */
__attribute__((unused)) static void ops_sum_bits(enum mk_op op, int whole)
{
    static const uint64_t shape[3] = {33, 72, 40};
    static const uint32_t all_shots[] = {2, 1, 4};
    for (size_t i = 0; i < 3 * OPS_FORMS; i++) {
        const uint32_t *form = ops_forms[i / 3], shots = all_shots[i % 3];
        uint64_t first = 0, bits;
        for (uint64_t seed = 0;
             seed < 8 && (shots != 1 || form[0] == 1) && shots <= op_of(op)->most_shots; seed++) {
            struct sim_world_config c = ops_config(op, form, shape);
            c.seed = seed * 97;
            sim_world_vary(&c);
            c.problem.tuning.shots = shots; /* each has an order of its own */
            c.problem.n = shots == 4 ? 96 : shape[1];
            c.problem.deterministic = 1;
            /* what a tile's own sums depend on */
            c.problem.tuning.tile_m = c.problem.tuning.chunk_rows = 16;
            c.problem.tuning.slices = 1;
            ops_sum_error(c, whole, &bits);
            if (!seed)
                first = bits;
            assert_true(bits == first);
        }
    }
}

/* ---- faults ---- */

/* On 3 x 2: rank 3's communication never runs, rank 1 is lost, one of the first `puts` puts of rank
 * 2 fails, rank 4's network is slow. `mute` verifies what is said of the first. */
__attribute__((unused)) static void ops_faults(enum mk_op op, const uint64_t shape[3],
                                               uint32_t puts,
                                               void (*mute)(const struct sim_world_result *result))
{
    static const uint32_t form[2] = {3, 2};
    struct sim_world_result result;
    for (uint64_t seed = 0; seed < 12; seed++) {
        struct sim_world_config c = ops_config(op, form, shape);
        c.seed = seed;
        c.fault = (struct sim_fault){SIM_FAULT_MUTE, 3, 0};
        assert_int_equal(sim_world_run(&c, &result), -EIO);
        assert_int_equal(result.failure.kind, MK_FAIL_TIMEOUT);
        assert_int_equal(result.failure.op, op);
        mute(&result);
        c.fault = (struct sim_fault){SIM_FAULT_DROP, 1, 200 + 30 * seed};
        assert_int_equal(sim_world_run(&c, &result), -EIO);
        assert_int_not_equal(result.failure.rank, 1);
        c.fault = (struct sim_fault){SIM_FAULT_FAIL_PUT, 2, 1 + seed % puts};
        assert_int_equal(sim_world_run(&c, &result), -EIO);
        assert_int_equal(result.failure.kind, MK_FAIL_NETWORK);
        assert_int_equal(result.failure.rank, 2);
        c.fault = (struct sim_fault){SIM_FAULT_SLOW, 4, 100000};
        assert_int_equal(sim_world_run(&c, &result), 0);
    }
}

/* Of a MoE: for what rank 3 says, or passes on, of tokens' experts, or, on itself, for the tables
 * that come of it. */
static inline void ops_moe_expect_mute(const struct sim_world_result *r)
{
    assert_int_equal(r->failure.producer % 2, 1);
    assert_true(strstr(r->sentence, "tokens' experts") || r->failure.rank == 3);
}

__attribute__((unused)) static void ops_moe_faults(enum mk_op op)
{
    ops_faults(op, ops_shapes[3], 3, ops_moe_expect_mute);
}

/* ---- bytes per link ---- */

struct ops_bytes {
    uint64_t nvlink[64], network[64]; /* into each rank */
};

static uint64_t ops_count_copy(void *context, uint64_t now, uint32_t from, uint32_t to,
                               uint64_t bytes)
{
    struct ops_bytes *b = context;
    b->nvlink[to] += from == to ? 0 : bytes;
    return now + 100;
}

static uint64_t ops_count_put(void *context, uint64_t now, uint32_t from, uint32_t to,
                              uint64_t bytes)
{
    struct ops_bytes *b = context;
    b->network[to] += bytes;
    return now + 1000;
}

/* Each rank receives what plan_work says is the minimum, neither more nor less. rows: M; 0: 33 for
 * each rank. */
__attribute__((unused)) static void ops_bytes_are_minimal(enum mk_op op, uint64_t rows)
{
    int one_shot = op_of(op)->knobs & OP_SHOTS && op_of(op)->sums;
    for (size_t form = 0; form < OPS_FORMS; form++)
        for (int i = 0; i < (one_shot && ops_forms[form][0] == 1 ? 4 : 2); i++) {
            struct ops_bytes bytes = {{0}, {0}};
            struct sim_costs costs = {
                .context = &bytes, .copy = ops_count_copy, .put = ops_count_put};
            struct sim_world_config c = ops_config(op, ops_forms[form], ops_shapes[0]);
            struct sim_world_result result;
            struct mk_plan plan;
            char error[300];
            uint64_t nvlink, network;
            double flop;
            int deterministic = i % 2;
            c.problem.m = rows ? rows : c.problem.m;
            c.costs = &costs;
            c.problem.tuning.shots = one_shot ? 2 - (uint32_t)i / 2 : 0;
            c.problem.deterministic = deterministic;
            c.problem.tuning.tile_m = c.problem.tuning.chunk_rows = 16;
            c.problem.tuning.pieces = op_pieces(op, &c.problem.topo) ? 3 : 1;
            c.problem.attention.causal = deterministic;
            assert_int_equal(sim_world_run(&c, &result), 0);
            for (uint32_t rank = 0; rank < mk_world(&c.problem.topo); rank++) {
                c.problem.topo.rank = rank;
                assert_int_equal(plan_build(&plan, &c.problem, 0, 0, error, sizeof error), 0);
                plan_work(&plan, &flop, &nvlink, &network);
                assert_int_equal(bytes.nvlink[rank], nvlink * c.launches);
                assert_int_equal(bytes.network[rank], network * c.launches);
            }
        }
}

/* ---- mutants ---- */

#define OPS_HUNT 64
#define OPS_ANY 1 /* instead of an expected error: any failure */

/* Runs seeds until one fails, then that seed again. The orders of a mutant that breaks nothing all
 * pass. */
__attribute__((unused)) static void ops_hunt(struct sim_world_config (*config_for)(uint64_t seed),
                                             const char *name, int expected)
{
    struct sim_world_result result, again;
    uint64_t seed = 0;
    int rc = 0;
    for (; seed < OPS_HUNT && !rc; seed++) {
        struct sim_world_config c = config_for(seed);
        rc = sim_world_run(&c, &result);
    }
    if (!expected) {
        if (rc)
            print_error("%s, seed %d: %s\n", name, (int)seed - 1, result.sentence);
        assert_int_equal(rc, 0);
        return;
    }
    if (!rc)
        fail_msg("%s survived %d seeds", name, OPS_HUNT);
    print_message("%-28s seed %2d: %s\n", name, (int)seed - 1, result.sentence);
    assert_true(rc == expected || expected == OPS_ANY);
    struct sim_world_config c = config_for(seed - 1);
    assert_int_equal(sim_world_run(&c, &again), rc);
    assert_true(again.hash == result.hash && again.steps == result.steps);
    assert_string_equal(again.sentence, result.sentence);
}
