/* What core/model/model.h says of measured plans is near what was measured, and in the order that
 * was measured; it follows the machine; every plan gets a time, soon. */
#include "core/model/model.h"
#include "experiments/common/problem.h"
#include "experiments/sim/fit.h"
#include "experiments/sim/validate.h"
#include "sim/timed/timed.h"
#include "tests/helpers/test.h"
#include <math.h>
#include <time.h>

/* Of ag_gemm's plans that were measured on two H200s (docs/SIMULATION.md) the formula's of that
 * day, the four best and some others of each shape. (gemm_rs and gemm_ar have another schedule
 * since.) */
#define TABLE "tests/golden/measured_2xH200.csv"
#define SUMS "tests/golden/measured_2xH200_sums.csv"

static struct mk_plan planned(enum mk_op op, uint32_t nodes, uint32_t gpus, uint64_t m, uint64_t n,
                              uint64_t k, const struct mk_tuning *tuning)
{
    struct mk_problem q = {.op = op,
                           .exec = MK_EXEC_CUDA,
                           .sms = 132,
                           .topo = {.nodes = nodes, .gpus = gpus},
                           .m = m,
                           .n = n,
                           .k = k};
    struct mk_plan p;
    char error[256];
    if (tuning)
        q.tuning = *tuning;
    if (plan_build(&p, &q, 0, 0, error, sizeof error))
        fail_msg("%s", error);
    return p;
}

static void as_operator(struct mk_problem *q, const uint64_t shape[3]);

static struct mk_plan planned_other(enum mk_op op, uint32_t nodes, uint32_t gpus)
{
    static const uint64_t shape[3] = {1024, 128, 7168};
    struct mk_problem q = {
        .op = op, .exec = MK_EXEC_CUDA, .sms = 132, .topo = {.nodes = nodes, .gpus = gpus}};
    struct mk_plan p;
    char error[256];
    as_operator(&q, shape);
    if (plan_build(&p, &q, 0, 0, error, sizeof error))
        fail_msg("%s", error);
    return p;
}

static double time_of(const struct mk_machine *m, const struct mk_plan *p)
{
    struct model_time t;
    assert_int_equal(model_plan(m, p, &t), 0);
    if (!(t.ns > 0) || !isfinite(t.ns) || t.compute > t.ns || t.moved > t.ns || t.slower < 1)
        fail_msg("%s: %g ns, tiles %g, moved %g, slower %g", plan_op_name(p->problem.op), t.ns,
                 t.compute, t.moved, t.slower);
    return t.ns;
}

/* ag_gemm of FP8 on one H200, 2026-11-23 (docs/FIGURES.md): the first three were fitted to. */
CASE(fp8_as_it_was_measured)
{
    static const struct {
        uint64_t m, n, k;
        double us;
    } of[] = {{8192, 8192, 1024, 158},
              {4096, 7168, 2048, 123},
              {4096, 4096, 4096, 129},
              {16, 8192, 4096, 17}};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        struct mk_problem q = {.op = MK_OP_AG_GEMM,
                               .exec = MK_EXEC_CUDA,
                               .sms = 132,
                               .topo = {.nodes = 1, .gpus = 1},
                               .m = of[i].m,
                               .n = of[i].n,
                               .k = of[i].k,
                               .b_transposed = 1,
                               .fp8 = 1};
        struct mk_plan p;
        char error[256];
        if (plan_build(&p, &q, 0, 0, error, sizeof error))
            fail_msg("%s", error);
        double says = time_of(machine_default(), &p) / 1e3;
        if (says < 0.88 * of[i].us || says > 1.08 * of[i].us)
            fail_msg("%d,%d,%d: %g us, measured %g", (int)of[i].m, (int)of[i].n, (int)of[i].k, says,
                     of[i].us);
    }
}

/* All rows of a table, none left out, and what is predicted of each. The caller frees both. */
static double *predictions(struct measured *m, const char *table, enum validate_by by)
{
    char error[512];
    memset(m, 0, sizeof *m);
    if (measured_read(m, table, MEASURED_ALL, 132, error, sizeof error))
        fail_msg("%s", error);
    if (m->left_out)
        fail_msg("%u rows of %s, %u left out: %s", m->count, table, m->left_out, m->left_out_why);
    double *predicted = malloc(m->count * sizeof *predicted);
    assert_non_null(predicted);
    if (validate_predict(machine_default(), m, by, predicted, error, sizeof error))
        fail_msg("%s", error);
    return predicted;
}

static const char *form(int by)
{
    return by == VALIDATE_EVENTS ? "by events" : "by the quick form";
}

CASE(near_what_was_measured)
{
    struct measured m;
    struct validate_sum all;
    double *predicted = predictions(&m, TABLE, VALIDATE_MODEL);
    assert_true(m.count > 200 && m.shapes == 9);
    assert_int_equal(validate_report(&m, predicted, NULL, &all), 0);
    double right = (double)all.right / all.apart;
    if (all.median > 0.035 || all.mean > 0.05 || all.default_worst > 0.10 || all.rank < 0.7 ||
        right < 0.88 || all.liked_within < 9)
        fail_msg("median %.3f, mean %.3f, worst default %.3f, rank %.2f, right %.2f, liked %d",
                 all.median, all.mean, all.default_worst, all.rank, right, all.liked_within);
    assert_int_equal(all.shapes, 9);
    assert_int_equal(all.defaults, 9);
    free(predicted);
    measured_free(&m);
}

/* gemm_rs and gemm_ar as they are since sums stay in registers and come there through the ring: 63
 * plans of 7 shapes, of which many differ by less than the GPUs' own spread, so that their order is
 * not held. */
CASE(near_what_was_measured_of_sums)
{
    struct measured m;
    struct validate_sum all;
    double *predicted = predictions(&m, SUMS, VALIDATE_MODEL);
    assert_true(m.count == 63 && m.shapes == 7);
    assert_int_equal(validate_report(&m, predicted, NULL, &all), 0);
    double right = (double)all.right / all.apart;
    if (all.median > 0.045 || all.mean > 0.055 || all.default_worst > 0.1 || right < 0.8 ||
        all.liked_within < 6 || all.choices != 7)
        fail_msg("median %.3f, mean %.3f, worst default %.3f, rank %.2f, right %.2f, liked %d",
                 all.median, all.mean, all.default_worst, all.rank, right, all.liked_within);
    free(predicted);
    measured_free(&m);
}

/* With two warps of intra_comm a block has one that sends, which takes twice as long for a tile: of
 * gemm_ar such a plan is up to 1.23 times as slow as one with two, and is not predicted to be as
 * fast. */
CASE(one_that_sends)
{
    for (int by = VALIDATE_MODEL; by <= VALIDATE_EVENTS; by++) {
        struct measured m;
        double *predicted = predictions(&m, SUMS, (enum validate_by)by);
        uint32_t found = 0;
        for (uint32_t i = 0; i < m.count; i++) {
            const struct mk_tuning *t = &m.rows[i].plan.problem.tuning;
            if (t->split.intra_comm_warps != 2)
                continue;
            found++;
            if (predicted[i] < 0.85 * m.rows[i].ms || predicted[i] > 1.18 * m.rows[i].ms)
                fail_msg("%s: %.3f ms, measured %.3f", m.rows[i].words, predicted[i], m.rows[i].ms);
        }
        assert_true(found > 10);
        free(predicted);
        measured_free(&m);
    }
}

/* Nine shapes that were measured after all numbers were fixed: 80 plans, of which the one that is
 * liked best is within 1.05 of the best at each shape, by both forms. The bounds are those that
 * held-out shapes are asked for; by events, which nobody fitted, the mean is 6.8. */
CASE(near_what_was_held_out)
{
    for (int by = VALIDATE_MODEL; by <= VALIDATE_EVENTS; by++) {
        struct measured m;
        struct validate_sum all;
        double *predicted =
            predictions(&m, "tests/golden/measured_2xH200_held_out.csv", (enum validate_by)by);
        assert_true(m.count == 80 && m.shapes == 9);
        assert_int_equal(validate_report(&m, predicted, NULL, &all), 0);
        if (all.median > 0.05 || all.mean > 0.08 || all.default_worst > 0.15 || all.rank < 0.75 ||
            all.right < 0.88 * all.apart || all.liked_within < 9 || all.taken_within < 9)
            fail_msg("%s: median %.3f, mean %.3f, worst default %.3f, rank %.2f, right %d of %d, "
                     "liked %d, taken %d",
                     form(by), all.median, all.mean, all.default_worst, all.rank, all.right,
                     all.apart, all.liked_within, all.taken_within);
        free(predicted);
        measured_free(&m);
    }
}

/* What else was measured on two H200s (docs/FIGURES.md): ring attention, both MoE, few rows in one
 * shot. Nothing was fitted to these but heat_rested and what says so in the machine file. */
CASE(near_what_was_measured_of_others)
{
    static const struct {
        const char *table;
        uint32_t rows;
        double median, mean, worst[2];
    } tables[] = {{"tests/golden/measured_2xH200_attention_moe.csv", 42, 0.05, 0.06, {0.25, 0.25}},
                  {"tests/golden/measured_2xH200_moe.csv", 41, 0.04, 0.05, {0.15, 0.13}},
                  /* which experts the ranks' one token names is known in a launch alone */
                  {"tests/golden/measured_4xH200_moe.csv", 12, 0.05, 0.09, {0.50, 0.12}},
                  {"tests/golden/measured_1xH200_decode.csv", 7, 0.04, 0.05, {0.12, 0.12}},
                  {"tests/golden/measured_2xH200_few_rows.csv", 15, 0.08, 0.08, {0.12, 0.20}},
                  {"tests/golden/measured_2xH200_evening.csv", 57, 0.04, 0.05, {0.17, 0.25}},
                  {"tests/golden/measured_2xH200_bench.csv", 47, 0.04, 0.05, {0.16, 0.24}}};
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        for (int by = VALIDATE_MODEL; by <= VALIDATE_EVENTS; by++) {
            struct measured m;
            struct validate_sum all;
            double *predicted = predictions(&m, tables[i].table, (enum validate_by)by);
            assert_int_equal(validate_report(&m, predicted, NULL, &all), 0);
            assert_int_equal(m.count, tables[i].rows);
            assert_int_equal(all.plans, tables[i].rows);
            double worst = tables[i].worst[by == VALIDATE_EVENTS];
            if (all.median > tables[i].median || all.mean > tables[i].mean || all.worst > worst)
                fail_msg("%s %s: median %.3f, mean %.3f, worst %.3f", tables[i].table, form(by),
                         all.median, all.mean, all.worst);
            free(predicted);
            measured_free(&m);
        }
}

/* A part that is slower makes no plan faster, and one that all waits for makes it slower. */
CASE(follows_the_machine)
{
    static const struct {
        const char *name;
        double factor;
    } worse[] = {{"nvlink_out", 0.5}, {"flag", 20},   {"tile.256x256.stage", 2},
                 {"settle", 4},       {"launch", 10}, {"tile.256x256.end", 4},
                 {"nic_rate", 0.25},  {"put", 1}};
    const struct mk_plan plans[] = {planned(MK_OP_AG_GEMM, 1, 4, 8192, 1024, 8192, NULL),
                                    planned(MK_OP_GEMM_RS, 1, 4, 8192, 8192, 1024, NULL),
                                    planned(MK_OP_GEMM_AR, 1, 4, 8192, 8192, 1024, NULL),
                                    planned(MK_OP_AG_GEMM, 2, 4, 8192, 1024, 8192, NULL),
                                    planned(MK_OP_GEMM_RS, 2, 4, 8192, 8192, 1024, NULL),
                                    planned(MK_OP_GEMM_AR, 2, 4, 8192, 8192, 1024, NULL),
                                    planned_other(MK_OP_MOE_DISPATCH_GEMM, 1, 4),
                                    planned_other(MK_OP_MOE_DISPATCH_GEMM, 2, 4),
                                    planned_other(MK_OP_MOE_FFN, 1, 4),
                                    planned_other(MK_OP_MOE_FFN, 2, 4)};
    for (size_t i = 0; i < sizeof worse / sizeof *worse; i++) {
        struct mk_machine m = *machine_default();
        char name[MACHINE_NAME];
        const char *unit;
        double factor, *number, longer = 0;
        for (uint32_t n = 0; (number = machine_number(&m, n, name, &unit, &factor)); n++)
            if (!strcmp(name, worse[i].name))
                *number = *number > 0 ? *number * worse[i].factor : 5e4;
        for (size_t p = 0; p < sizeof plans / sizeof *plans; p++) {
            double before = time_of(machine_default(), &plans[p]), after = time_of(&m, &plans[p]);
            if (after < before * 0.999)
                fail_msg("%s: %s made it %.1f us from %.1f", worse[i].name,
                         plan_op_name(plans[p].problem.op), after / 1e3, before / 1e3);
            longer = fmax(longer, after / before);
        }
        if (longer < 1.02)
            fail_msg("%s makes no difference", worse[i].name);
    }
}

/* Tiles alone are a lower bound, and one rank has nobody to push to. */
CASE(one_rank_multiplies)
{
    const struct mk_machine *m = machine_default();
    struct mk_plan p = planned(MK_OP_AG_GEMM, 1, 1, 8192, 8192, 4096, NULL);
    const struct machine_tile *t = machine_tile_of(m, 256, 256, 2);
    struct machine_load load = {.slower = 1};
    double tiles = mk_ceil_div(32 * 32, 66) * machine_tile_ns(m, t, &load, 4096, 0);
    double ns = time_of(m, &p);
    if (ns < tiles || ns > 1.5 * tiles)
        fail_msg("%.0f ns, its tiles alone %.0f", ns, tiles);
    struct model_time time;
    model_plan(m, &p, &time);
    assert_true(time.moved == 0 && time.network == 0);
}

/* A MoE of about such a size has numbers of its own. */
static void as_operator(struct mk_problem *q, const uint64_t shape[3])
{
    uint64_t world = mk_world(&q->topo);
    if (q->op == MK_OP_MOE_DISPATCH_GEMM || q->op == MK_OP_MOE_FFN)
        q->moe = (struct mk_moe){.tokens = shape[0],
                                 .hidden = shape[2],
                                 .inner = shape[1],
                                 .experts = 8 * world,
                                 .k = 4};
}

/* Any plan that can be made, of any cluster; and how long that takes. */
CASE(every_plan_soon)
{
    static const uint32_t clusters[][2] = {{1, 1}, {1, 2}, {1, 3}, {1, 8},
                                           {2, 1}, {2, 8}, {4, 4}, {16, 8}};
    static const uint64_t shapes[][3] = {
        {1, 8, 8}, {7, 264, 520}, {128, 4096, 512}, {256, 32768, 1024}};
    static const char *const roles[] = {"compute=132,intra_comm=1w", "compute=100,intra_comm=32",
                                        "compute=68,intra_comm=32,inter_reduce=32",
                                        "compute=1,intra_comm=1,inter_send=1,inter_reduce=1"};
    struct timespec from, to;
    double slowest = 0;
    for (int op = 0; op < MK_OPS; op++)
        for (size_t c = 0; c < sizeof clusters / sizeof *clusters; c++)
            for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
                for (size_t r = 0; r <= sizeof roles / sizeof *roles; r++) {
                    struct mk_problem q = {
                        .op = (enum mk_op)op,
                        .exec = MK_EXEC_CUDA,
                        .sms = 132,
                        .topo = {.nodes = clusters[c][0], .gpus = clusters[c][1]},
                        .m = shapes[s][0] * clusters[c][0] * clusters[c][1],
                        .n = shapes[s][1],
                        .k = shapes[s][2]};
                    as_operator(&q, shapes[s]);
                    struct mk_plan p;
                    char error[256];
                    if (r)
                        assert_int_equal(
                            tuning_read_roles(roles[r - 1], &q.tuning.split, error, sizeof error),
                            0);
                    if (!model_knows(q.op) || plan_build(&p, &q, 0, 0, error, sizeof error))
                        continue;
                    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
                    time_of(machine_default(), &p);
                    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &to);
                    slowest = fmax(slowest, (double)(to.tv_sec - from.tv_sec) * 1e3 +
                                                (double)(to.tv_nsec - from.tv_nsec) / 1e6);
                }
    assert_true(slowest > 0);
    if (slowest > 50) /* under sanitizers and load; 1 ms without */
        fail_msg("a plan took %.1f ms", slowest);
    struct mk_plan other = {.problem = {.op = MK_OP_RING_ATTENTION}};
    struct model_time t;
    assert_int_equal(model_plan(machine_default(), &other, &t), -ENOTSUP);
    assert_false(model_knows(MK_OP_RING_ATTENTION) || model_knows(MK_OP_ALL_GATHER));
}

/* The quick form against events. */
static void both_forms_say(const struct mk_problem *q, double near)
{
    struct mk_plan p;
    struct timed_result r;
    char error[256], text[OP_PROBLEM_TEXT];
    if (plan_build(&p, q, 0, 0, error, sizeof error))
        fail_msg("%s", error);
    struct timed_config c = {.plan = &p, .machine = machine_default(), .launches = 1, .seed = 1};
    if (timed_run(&c, &r))
        fail_msg("%s", r.sentence);
    double quick = time_of(machine_default(), &p);
    if (quick < (1 - near) * (double)r.ns || quick > (1 + near) * (double)r.ns)
        fail_msg("%s %s, %u x %u ranks: %.0f ns by the quick form, %llu by events",
                 plan_op_name(q->op), op_problem_text(q, text), q->topo.nodes, q->topo.gpus, quick,
                 (unsigned long long)r.ns);
}

/* Where nothing was measured, on one node, both forms say about the same. */
CASE(as_the_simulator_says)
{
    static const enum mk_op ops[] = {MK_OP_MOE_DISPATCH_GEMM, MK_OP_MOE_FFN};
    static const uint64_t shapes[][3] = {{512, 1024, 7168}, {4096, 2048, 7168}};
    for (size_t i = 0; i < 2 * 2 * 3; i++) {
        struct mk_problem q = {.op = ops[i % 2],
                               .exec = MK_EXEC_CUDA,
                               .sms = 132,
                               .topo = {.nodes = 1, .gpus = 2u << i / 4},
                               .timeout_ns = MK_TIMEOUT_NS};
        as_operator(&q, shapes[i / 2 % 2]);
        both_forms_say(&q, 0.25);
    }
}

/* ... and of the whole MoE layer on two nodes, few tokens to many, where sums for the other node
 * are added when the last tiles of its rows are through. */
CASE(as_the_simulator_says_of_two_nodes)
{
    for (uint32_t gpus = 1; gpus <= 8; gpus *= 2)
        for (uint64_t tokens = 512; tokens <= 4096; tokens *= 2) {
            struct mk_problem q = {.op = MK_OP_MOE_FFN,
                                   .exec = MK_EXEC_CUDA,
                                   .sms = 132,
                                   .topo = {.nodes = 2, .gpus = gpus},
                                   .timeout_ns = MK_TIMEOUT_NS,
                                   .moe = {tokens, 7168, 2048, 32ull * gpus, 8}};
            both_forms_say(&q, 0.2);
        }
}

/* ... and of products on nodes of eight: rows that fill no tile, ranks with fewer rows than pieces, blocks of columns, tiles
 * that leave straight from registers, and own tiles, of which there are fewer than CTAs, that go to seven peers. */
CASE(as_the_simulator_says_of_products)
{
    static const struct {
        enum mk_op op;
        uint32_t nodes;
        uint64_t m, n, k;
        uint32_t shots, fp8;
    } of[] = {
        {MK_OP_AG_GEMM, 1, 1184, 1664, 16384, 2, 0}, {MK_OP_AG_GEMM, 2, 2848, 192, 16384, 2, 0},
        {MK_OP_AG_GEMM, 4, 192, 128, 16384, 2, 0},   {MK_OP_GEMM_RS, 2, 9280, 7168, 1152, 2, 0},
        {MK_OP_GEMM_RS, 4, 1600, 16384, 256, 2, 0},  {MK_OP_GEMM_AR, 1, 1056, 7168, 2304, 4, 0},
        {MK_OP_GEMM_AR, 1, 1728, 3072, 384, 2, 1},   {MK_OP_GEMM_AR, 2, 384, 4096, 896, 4, 0},
        {MK_OP_GEMM_AR, 2, 4096, 8192, 8192, 2, 0},  {MK_OP_GEMM_AR, 4, 640, 8192, 256, 4, 0}};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        struct mk_problem q = {.op = of[i].op,
                               .exec = MK_EXEC_CUDA,
                               .sms = 132,
                               .topo = {.nodes = of[i].nodes, .gpus = 8},
                               .timeout_ns = MK_TIMEOUT_NS,
                               .m = of[i].m,
                               .n = of[i].n,
                               .k = of[i].k,
                               .fp8 = of[i].fp8,
                               .b_transposed = of[i].fp8,
                               .tuning = {.shots = of[i].shots}};
        both_forms_say(&q, 0.22);
    }
}

/* From times that a machine says, a fit that begins at another machine finds it again. */
CASE(fit_finds_the_machine)
{
    struct mk_machine truth = *machine_default(), m = truth;
    struct measured rows = {.rows = NULL};
    char error[512];
    assert_int_equal(measured_read(&rows, TABLE, MEASURED_ODD, 132, error, sizeof error), 0);
    double *weights = malloc(rows.count * sizeof *weights);
    for (uint32_t i = 0; i < rows.count; i++) {
        struct model_time t;
        assert_int_equal(model_plan(&truth, &rows.rows[i].plan, &t), 0);
        rows.rows[i].ms = t.ns / 1e6;
        weights[i] = 1;
    }
    m.nvlink_out *= 1.5;
    m.settle *= 2;
    m.tiles[0].stage *= 1.3;
    struct fit fit = {.machine = &m,
                      .measured = &rows,
                      .weights = weights,
                      .keep = "heat,watts",
                      .rounds = 40,
                      .pull = 0.001};
    double heat = m.heat;
    assert_int_equal(fit_machine(&fit), 0);
    if (fit.before < 0.05 || fit.after > 0.01 ||
        fabs(m.tiles[0].stage / truth.tiles[0].stage - 1) > 0.12)
        fail_msg("%u numbers: error %.4f to %.4f; nvlink_out %.1f for %.1f, stage %.1f for %.1f",
                 fit.moved, fit.before, fit.after, m.nvlink_out, truth.nvlink_out, m.tiles[0].stage,
                 truth.tiles[0].stage);
    assert_true(m.heat == heat && m.nic_rate == truth.nic_rate);
    free(weights);
    measured_free(&rows);
}
