/* What the timed executor spares changes nothing that it says: moves that are done from a CTA's
 * line without its coroutine, and flags that are raised once for all adds that come together. */
#include "core/ops/op.h"
#include "core/plan/pipeline.h"
#include "core/roles/ring_attention.h"
#include "sim/op.h"
#include "sim/timed/timed.h"
#include "tests/helpers/test.h"

static void build(struct mk_plan *plan, uint32_t nodes, uint32_t gpus, uint32_t pieces)
{
    char error[512] = "";
    struct mk_problem q = {.op = MK_OP_RING_ATTENTION,
                           .exec = MK_EXEC_CUDA,
                           .sms = 132,
                           .topo = {.nodes = nodes, .gpus = gpus},
                           .attention = {.batch = 1,
                                         .sequence = 1536 * nodes * gpus,
                                         .heads = 40,
                                         .kv_heads = 40,
                                         .head_dim = 128},
                           .timeout_ns = MK_TIMEOUT_NS};
    q.tuning.pieces = pieces;
    if (plan_build(plan, &q, 3, 4096, error, sizeof error))
        fail_msg("%s", error);
}

static void run(const struct mk_plan *plan, const struct sim_op *op,
                const struct mk_pipeline *pipeline, struct timed_result *r)
{
    const struct timed_config c = {.plan = plan,
                                   .machine = machine_default(),
                                   .op = op,
                                   .pipeline = pipeline,
                                   .launches = 2,
                                   .seed = 7,
                                   .jitter = 0.03,
                                   .max_events = 10000000};
    int rc = timed_run(&c, r);
    if (rc)
        fail_msg("%d %s", rc, r->sentence);
}

static void assert_alike(const struct timed_result *a, const struct timed_result *b)
{
    assert_int_equal(a->ns, b->ns);
    assert_int_equal(a->last_rank, b->last_rank);
    for (int i = 0; i < TIMED_PARTS; i++)
        assert_true(a->parts[i] == b->parts[i]);
    for (int i = 0; i < MK_ROLES; i++)
        assert_true(a->roles[i] == b->roles[i]);
}

/* Turn by turn: a CTA that drains does first what stands in its line. */
static int turn_by_turn(const struct mk_plan *plan, struct mk_cta *cta)
{
    const struct ring_attention_plan *p = ring_attention_plan_of(plan);
    if (cta->role != MK_INTRA_COMM)
        return sim_op_of(MK_OP_RING_ATTENTION)->run(plan, cta);
    uint32_t turns = p->topo.nodes * (p->topo.gpus - 1) * p->chunks * p->pieces;
    for (uint32_t turn = cta->index; turn < turns; turn += cta->count)
        if (ring_attention_push(p, cta, turn) || mk_cta_drain(cta))
            return 1;
    return 0;
}

static const uint32_t forms[][2] = {{1, 4}, {3, 2}};
enum { FORMS = sizeof forms / sizeof *forms };

/* Runs it as it is, and as `op` or with its adds one by one, which ends alike. */
static void run_both(const uint32_t form[2], const struct sim_op *op, int one_by_one,
                     struct timed_result *plain, struct timed_result *other)
{
    struct mk_pipeline pipeline;
    struct mk_plan plan;
    build(&plan, form[0], form[1], 4);
    plan_pipeline(&plan, &pipeline);
    pipeline.together = one_by_one ? 1 : pipeline.together;
    run(&plan, NULL, NULL, plain);
    run(&plan, op, &pipeline, other);
    assert_alike(plain, other);
}

CASE(test_lines)
{
    struct sim_op op = *sim_op_of(MK_OP_RING_ATTENTION);
    op.run = turn_by_turn;
    for (size_t i = 0; i < FORMS; i++) {
        struct timed_result of_lines, of_turns;
        run_both(forms[i], &op, 0, &of_lines, &of_turns);
        assert_int_equal(of_lines.events, of_turns.events);
    }
}

/* The last of a flag's adds to arrive counts, and brings its own chain. */
CASE(test_adds_together)
{
    for (size_t i = 0; i < FORMS; i++) {
        struct timed_result at_once, one_by_one;
        run_both(forms[i], NULL, 1, &at_once, &one_by_one);
        if (at_once.events >= one_by_one.events * 95 / 100)
            fail_msg("%llu events, and %llu one by one", (unsigned long long)at_once.events,
                     (unsigned long long)one_by_one.events);
    }
}
