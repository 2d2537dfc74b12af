/* The neighbours that `mkernel tune` tries differ from a plan in one option, fit the shape, are
 * there once, and on a GPU are plans that the kernels are built for: other role splits, tiles,
 * chunks, slices, pieces, paces and fanouts. */
#include "core/plan/gemm_tiles.h"
#include "core/ops/op.h"
#include "experiments/tune/tune.h"
#include "tests/helpers/test.h"

static struct tune_plan plans[TUNE_PLANS];
static char error[512];

static struct tune tune_of(enum mk_op op, const char *space, uint32_t nodes, uint32_t gpus)
{
    struct tune t = {.plans = plans};
    static struct run_job job;
    job.problem =
        (struct mk_problem){.op = op, .exec = MK_EXEC_CUDA, .sms = 132, .topo = {nodes, gpus, 0}};
    job.problem.m = job.problem.n = job.problem.k = 8192;
    job.problem.moe = (struct mk_moe){1024, 7168, 2048, 32, 8};
    job.problem.attention = (struct mk_attention){4, 12288, 16, 16, 128, 0, 0, 0};
    t.job = &job;
    t.shape = job;
    if (tune_space_parse(&t.space, op, space, error, sizeof error))
        fail_msg("%s", error);
    assert_int_equal(tune_add(&t, &t.shape.problem.tuning), 0);
    tune_space_extend(&t, 0);
    return t;
}

/* Options that two plans ask for differently. */
static int changed(const struct mk_tuning *a, const struct mk_tuning *b)
{
    return (a->tile_m != b->tile_m || a->tile_n != b->tile_n) +
           (memcmp(&a->split, &b->split, sizeof a->split) != 0) + (a->chunk_rows != b->chunk_rows) +
           (a->slices != b->slices) + (a->pieces != b->pieces) + (a->pace != b->pace) +
           (a->fanout != b->fanout) + (a->shots != b->shots);
}

static int has(const struct tune *t, const char *words)
{
    char text[256];
    for (uint32_t i = 0; i < t->count; i++)
        if (!strcmp(tuning_words(&t->plans[i].asked, text, sizeof text), words))
            return 1;
    return 0;
}

static int has_tile(const struct mk_tuning *t, const struct mk_gemm_tile *tile)
{
    return tile->tile_m == t->tile_m && tile->tile_n == t->tile_n && tile->cluster == t->cluster;
}

/* A GPU has kernels for the plan's tile. */
static int is_built(const struct mk_problem *problem, const struct mk_tuning *made)
{
    struct mk_problem q = *problem;
    struct mk_gemm_tile tile;
    q.tuning = *made;
    for (uint32_t i = 0; op_gpu_tile(problem, i, &tile); i++)
        if (has_tile(made, &tile))
            return 1;
    for (uint32_t i = 0; op_of(q.op)->knobs & OP_SHOTS && plan_joint_tile(&q, i, &tile); i++)
        if (has_tile(made, &tile))
            return 1;
    return 0;
}

static void judge(const struct tune *t, uint32_t center, uint32_t from)
{
    for (uint32_t i = from; i < t->count; i++) {
        const struct mk_tuning *m = &t->plans[i].made;
        char text[256];
        tuning_words(&t->plans[i].asked, text, sizeof text);
        if (changed(&t->plans[i].asked, &t->plans[center].asked) != 1)
            fail_msg("%s differs in more or less than one option", text);
        if (!is_built(&t->job->problem, m))
            fail_msg("%s: tiles of %u x %u are not built", text, m->tile_m, m->tile_n);
        if (mk_total_blocks(&m->split) > 132 || mk_total_blocks(&m->split) < 132 - 4)
            fail_msg("%s: %u thread blocks on 132 SMs", text, mk_total_blocks(&m->split));
        for (uint32_t j = 0; j < i; j++)
            if (!memcmp(m, &t->plans[j].made, sizeof *m))
                fail_msg("%s is there twice", text);
    }
}

CASE(test_all_options)
{
    const struct {
        enum mk_op op;
        uint32_t nodes, gpus;
        const char *some[8];
    } cases[] = {
        {MK_OP_AG_GEMM,
         1,
         8,
         {"tile=128,128", "roles=compute=124,intra_comm=8", "roles=compute=132,intra_comm=1w",
          "slices=1", "pace=none", "fanout=1", "chunk-rows=512"}},
        {MK_OP_AG_GEMM,
         2,
         4,
         {"tile=256,128", "roles=compute=128,intra_comm=2w,inter_send=4", "fanout=1"}},
        {MK_OP_GEMM_RS, 1, 4, {"tile=256,128", "pace=none", "chunk-rows=512"}},
        {MK_OP_GEMM_RS,
         2,
         2,
         {"tile=256,128", "roles=compute=124,inter_send=8", "roles=compute=130,inter_send=1",
          "pieces=2"}},
        {MK_OP_GEMM_AR,
         1,
         4,
         {"tile=256,128", "roles=compute=124,intra_comm=8", "roles=compute=132,intra_comm=2w",
          "pieces=2", "pace=none"}},
        {MK_OP_MOE_DISPATCH_GEMM, /* thread blocks of their own, chunks of any 8 tokens */
         1,
         2,
         {"tile=128,128", "tile=128,64", "roles=compute=124,intra_comm=8",
          "roles=compute=100,intra_comm=32", "chunk-rows=8", "chunk-rows=256"}},
        {MK_OP_RING_ATTENTION,
         1,
         2,
         {"roles=compute=124,intra_comm=8", "roles=compute=132,intra_comm=1w", "chunk-rows=1024",
          "chunk-rows=4096", "pieces=1", "pieces=64", "pace=none"}},
        {MK_OP_RING_ATTENTION,
         2,
         2,
         {"roles=compute=128,intra_comm=2w,inter_send=4",
          "roles=compute=131,intra_comm=2w,inter_send=1"}},
        {MK_OP_MOE_DISPATCH_GEMM,
         2,
         1,
         {"roles=compute=112,intra_comm=12,inter_send=8",
          "roles=compute=118,intra_comm=12,inter_send=2"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct tune t = tune_of(cases[i].op, NULL, cases[i].nodes, cases[i].gpus);
        judge(&t, 0, 1);
        for (uint32_t j = 0; j < 8 && cases[i].some[j]; j++)
            if (!has(&t, cases[i].some[j]))
                fail_msg("%s on %u x %u: %s is not tried", plan_op_name(cases[i].op),
                         cases[i].nodes, cases[i].gpus, cases[i].some[j]);
        uint32_t before = t.count, center = before - 1; /* and on from there: back, too */
        tune_space_extend(&t, center);
        assert_true(t.count > before);
        judge(&t, center, before);
    }
}

CASE(test_given_values)
{
    struct tune t = tune_of(MK_OP_AG_GEMM, "tile=256,128:128,128;pace=77;fanout", 1, 4);
    judge(&t, 0, 1);
    assert_true(has(&t, "tile=256,128") && has(&t, "tile=128,128") && has(&t, "pace=77") &&
                has(&t, "fanout=1"));
    assert_int_equal(t.plans[0].made.fanout, 3); /* fanout=3 is the formula's own: not again */
    assert_int_equal(t.count, 6);
    t = tune_of(MK_OP_GEMM_AR, "tile=256,64;roles=compute=100,intra_comm=1w", 1, 4);
    assert_true(has(&t, "roles=compute=100,intra_comm=1w"));
    /* no multiple of a tile: does not fit, and is told */
    t = tune_of(MK_OP_GEMM_RS, "chunk-rows=100", 1, 4);
    assert_int_equal(t.count, 1);
    assert_int_equal(t.unfit, 1);
    assert_non_null(strstr(t.unfit_why, "chunks of 100 rows"));
}

CASE(test_bad_space)
{
    static const char *const bad[] = {"tiles", "tile=",           "tile=256,128:", "pace=none;=3",
                                      ";",     "tile=1,1 pace=3", "cluster=2"};
    struct tune_space s;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (tune_space_parse(&s, MK_OP_AG_GEMM, bad[i], error, sizeof error) != -EINVAL ||
            strncmp(error, "--space: ", 9))
            fail_msg("%s: %s", bad[i], error);
    char many[1024] = "pace=none";
    for (uint32_t i = 0; i < TUNE_VALUES; i++)
        strcat(many, ":2");
    assert_int_equal(tune_space_parse(&s, MK_OP_AG_GEMM, many, error, sizeof error), -EINVAL);
    assert_non_null(strstr(error, "more than 32 values of pace"));
}

/* A plan takes the default's place only where launches of one plan differ by less than the two do:
 * 1.451 times as fast by medians may be noise. */
CASE(test_noise)
{
    struct tune_plan calm = {.ms = 14.51, .low = 14.3, .high = 14.7, .launches = 16},
                     noisy = {.ms = 14.51, .low = 9.1, .high = 19.8, .launches = 16},
                     best = {.ms = 10.0, .low = 8.9, .high = 12.2, .launches = 16};
    assert_true(tune_is_apart(&best, &calm));
    assert_false(tune_is_apart(&best, &noisy));
    assert_false(tune_is_apart(&calm, &best));
    noisy.launches = best.launches = 400; /* more of them tell more */
    assert_true(tune_is_apart(&best, &noisy));
}

/* What a communicator makes of a measured plan is what the tuner reckoned its heap with, also where the plan
 * asks for nothing and the model has other defaults than the closed formula. */
CASE(test_measured)
{
    static const struct tuning_table none;
    uint32_t others = 0;
    struct mk_plan p;
    struct tune t = tune_of(MK_OP_GEMM_AR, "shots=1:2;tile", 1, 8);
    for (t.shape.problem.m = 512; t.shape.problem.m <= 1536; t.shape.problem.m += 256) {
        t.count = 0;
        assert_int_equal(tune_add(&t, &(struct mk_tuning){0}), 0);
        tune_space_extend(&t, 0);
        for (uint32_t i = 0; i < t.count; i++) {
            struct mk_problem q = tune_problem(&t, i);
            if (tuning_build(&p, &none, &q, NULL, 0, 0, error, sizeof error))
                fail_msg("%s", error);
            assert_memory_equal(&p.problem.tuning, &t.plans[i].made, sizeof p.problem.tuning);
        }
        assert_int_equal(tuning_build(&p, &none, &t.shape.problem, NULL, 0, 0, error, sizeof error),
                         0);
        others += memcmp(&p.problem.tuning, &t.plans[0].made, sizeof p.problem.tuning) != 0;
    }
    assert_true(others > 0); /* or nothing was shown */
}
