/* A launch of moe_dispatch or moe_combine in two halves gives what a whole one does, in every order of
 * its steps and by the kernels' own code; other plans' launches stand between them; and what is out of
 * turn is refused with a sentence. Without the second buffer, or the wait for puts of the launch
 * before, orders are found that are wrong. */
#include "tests/helpers/ops.h"

#include "core/comm/comm_parts.h"
#include "core/cta/halves.h"
#include "core/roles/moe_combine_halves.h"
#include "tests/helpers/comm_config.h"
#include "tests/helpers/hopper_moe.h"
#include "tests/helpers/job.h"
#include "tests/helpers/shell.h"
#include "core/plan/plan_fields.h"

static const enum mk_op ops[] = {MK_OP_MOE_DISPATCH, MK_OP_MOE_COMBINE};
enum { HALVED = sizeof ops / sizeof *ops };

static char error[512];

/* ---- the plan ---- */

static const char *planned(enum mk_op op, const char *options, struct mk_problem q,
                           struct mk_plan *p)
{
    struct mk_spec spec = {.op = op, .shape = {64, 64, 4, 2}, .options = options};
    struct mk_problem asked;
    error[0] = '\0';
    int result = spec_to_problem(&asked, &spec, error, sizeof error);
    asked.topo = q.topo;
    asked.exec = q.exec;
    asked.sms = q.sms;
    asked.engine = q.engine;
    if (!result)
        result = plan_build(p, &asked, 0, 0, error, sizeof error);
    return result ? error : "";
}

CASE(plan)
{
    const struct mk_problem host = {.topo = {1, 2, 0}}, gpu = {.topo = {1, 2, 0},
                                                               .exec = MK_EXEC_CUDA,
                                                               .sms = 132,
                                                               .engine = MK_ENGINE_WGMMA};
    static struct mk_plan p, whole;
    char options[256];
    for (size_t i = 0; i < HALVED; i++) {
        assert_string_equal(planned(ops[i], "launch=halves", host, &p), "");
        assert_true(op_halves(&p.problem));
        spec_options(&p, options, sizeof options);
        assert_non_null(strstr(options, "launch=halves"));
        assert_string_equal(planned(ops[i], options, host, &p), ""); /* it is what makes it again */
        assert_string_equal(planned(ops[i], "launch=whole", host, &whole), "");
        assert_false(op_halves(&whole.problem));
        assert_true(p.heap_bytes >= whole.heap_bytes + (ops[i] == MK_OP_MOE_DISPATCH));
        assert_non_null(strstr(planned(ops[i], "launch=parts", host, &p),
                               "it should be launch=whole or launch=halves"));
        /* each half has all SMs, and no more */
        const uint32_t *ctas = p.problem.tuning.split.ctas;
        assert_string_equal(planned(ops[i], "launch=halves", gpu, &p), "");
        assert_int_equal(ctas[MK_INTER_REDUCE], 132);
        assert_in_range(ctas[MK_INTRA_COMM], 12, 132);
        assert_non_null(
            strstr(planned(ops[i], "launch=halves roles=intra_comm=133,inter_reduce=4", gpu, &p),
                   "133 thread blocks"));
        assert_non_null(
            strstr(planned(ops[i], "roles=intra_comm=66,inter_reduce=67", gpu, &p), "133 thread"));
    }
    struct mk_spec spec = {
        .op = MK_OP_MOE_FFN, .shape = {64, 64, 8, 4, 2}, .options = "launch=halves"};
    struct mk_problem q;
    assert_int_equal(spec_to_problem(&q, &spec, error, sizeof error), -EINVAL);
    assert_string_equal(error,
                        "'launch=halves': moe_ffn has whole launches; it is of moe_dispatch and "
                        "moe_combine");
}

/* ---- orders ---- */

static int fails(const struct sim_world_config *c, struct sim_world_result *result)
{
    return sim_world_run(c, result);
}

static void right(const struct sim_world_config *c)
{
    struct sim_world_result result;
    if (fails(c, &result))
        fail_msg("%s on %u x %u, seed %d: %s", plan_op_name(c->problem.op), c->problem.topo.nodes,
                 c->problem.topo.gpus, (int)c->seed, result.sentence);
}

static struct sim_world_config halved(enum mk_op op, const uint32_t form[2], uint64_t seed)
{
    struct sim_world_config c = ops_config(op, form, ops_shapes[1 + 2 * (seed % 2)]);
    const uint32_t world = mk_world(&c.problem.topo);
    c.problem.moe.experts = world * (2 + seed % 3);
    c.problem.moe.k = 1 + seed % 2;
    c.seed = seed;
    sim_world_vary(&c);
    c.launches = 5;
    plan_field_set(plan_field_named("launch"), &c.problem, 1);
    return c;
}

/* By seeds launches read how many tokens there are, experts are copies, and places are dropped. */
CASE(every_order_is_right)
{
    static const uint32_t forms[][2] = {{1, 1}, {1, 2}, {1, 4}, {1, 8}, {2, 1},
                                        {2, 2}, {3, 1}, {2, 4}, {3, 2}};
    for (size_t i = 0; i < HALVED; i++)
        for (size_t form = 0; form < sizeof forms / sizeof *forms; form++)
            for (uint64_t seed = 1; seed <= 48 / OPS_PART + 1; seed++) {
                struct sim_world_config c = halved(ops[i], forms[form], seed);
                if (seed % 4 == 3) {
                    plan_field_set(plan_field_named("capacity"), &c.problem,
                                   8 * mk_world(&c.problem.topo));
                    plan_field_set(plan_field_named("overflow"), &c.problem, 1);
                }
                right(&c);
            }
}

/* By the kernels' own code, whose accesses are watched, of both engines. */
CASE(kernels_are_right)
{
    for (size_t i = 0; i < HALVED; i++)
        for (uint64_t seed = 0; seed < 12; seed++) {
            struct sim_world_config c =
                hopper_moe_config(ops[i], 1 + seed % 2, 1 + seed / 2 % 2, seed);
            uint32_t *ctas = c.problem.tuning.split.ctas;
            c.problem.tuning.tile_m = 64;
            c.problem.tuning.cluster = 1;
            ctas[MK_COMPUTE] = 0;
            ctas[MK_INTRA_COMM] = 1 + seed % 3;
            ctas[MK_INTER_REDUCE] = 2;
            c.emulated = c.problem.sms = ctas[MK_INTRA_COMM] + ctas[MK_INTER_SEND] + 1;
            c.problem.engine = seed % 4 == 3 ? MK_ENGINE_MMA : c.problem.engine;
            c.problem.moe.tokens = 21;
            c.launches = 4;
            plan_field_set(plan_field_named("tokens"), &c.problem, seed >> 2 & 1);
            plan_field_set(plan_field_named("launch"), &c.problem, 1);
            right(&c);
        }
}

/* ---- what it rests on ---- */

/* Tokens of every launch land in the same place. */
static int one_buffer(const struct mk_plan *plan, struct mk_cta *cta)
{
    struct moe_dispatch_halves_plan h = *moe_dispatch_halves_plan_of(plan);
    h.by[1] = h.by[0];
    return cta->role == MK_INTER_REDUCE ? moe_dispatch_end(&h, cta) : moe_dispatch_begin(&h, cta);
}

/* Nobody waits until what was put in the launch before has left. */
static int undrained(const struct mk_plan *plan, struct mk_cta *cta)
{
    struct moe_dispatch_halves_plan h = *moe_dispatch_halves_plan_of(plan);
    const struct moe_dispatch_plan *p = &h.by[cta->epoch & 1];
    h.halves.senders = 0;
    return cta->role == MK_INTER_SEND     ? moe_say(p, cta) || moe_put_tokens(p, cta)
           : cta->role == MK_INTER_REDUCE ? moe_dispatch_end(&h, cta)
                                          : moe_dispatch_begin(&h, cta);
}

/* A second half that the first one waits for: its tables. */
static int waits_for_end(const struct mk_plan *plan, struct mk_cta *cta)
{
    const struct moe_dispatch_halves_plan *h = moe_dispatch_halves_plan_of(plan);
    return cta->role == MK_INTER_REDUCE
               ? moe_dispatch_end(h, cta)
               : moe_dispatch_begin(h, cta) || moe_await_routed(&h->by[cta->epoch & 1], cta);
}

static uint32_t wrong_orders(int (*run)(const struct mk_plan *, struct mk_cta *), uint32_t nodes,
                             uint32_t gpus)
{
    struct sim_op op = *sim_op_of(MK_OP_MOE_DISPATCH);
    const uint32_t form[2] = {nodes, gpus};
    uint32_t found = 0;
    op.run = run;
    for (uint64_t seed = 1; seed <= 120 && !found; seed++) {
        struct sim_world_config c = halved(MK_OP_MOE_DISPATCH, form, seed);
        struct sim_world_result result;
        c.op = &op;
        found += fails(&c, &result) != 0;
    }
    return found;
}

CASE(without_what_it_rests_on_orders_are_wrong)
{
    assert_true(wrong_orders(one_buffer, 1, 3));
    assert_true(wrong_orders(one_buffer, 2, 1));
    assert_true(wrong_orders(undrained, 2, 1));
    assert_true(wrong_orders(waits_for_end, 1, 2));
}

/* ---- the calls ---- */

enum { TOKENS = 24, HIDDEN = 64, PLACES = 2, EACH = 2, BATCHES = 2 };

struct batch {
    struct mk_plan *dispatch, *combine;
    uint16_t x[TOKENS * HIDDEN], y[TOKENS * HIDDEN];
    uint32_t ids[TOKENS * PLACES] __attribute__((aligned(16)));
    float weights[TOKENS * PLACES] __attribute__((aligned(16)));
    uint32_t counts[2 * EACH] __attribute__((aligned(16)));
    uint16_t rows[(JOB_MAX * TOKENS * PLACES + 128 * EACH) * HIDDEN] __attribute__((aligned(16)));
} __attribute__((aligned(16)));

/* Token t of a rank is all t and goes to two experts, each of which counts for a half. */
static void batch_fill(struct batch *b, uint32_t rank, uint32_t launch, uint32_t experts)
{
    for (uint32_t i = 0; i < TOKENS * HIDDEN; i++)
        b->x[i] = mk_bf16_from_float((float)(rank + launch + i / HIDDEN));
    for (uint32_t i = 0; i < TOKENS * PLACES; i++) {
        b->ids[i] =
            (uint32_t)(sim_mix(i / PLACES * 131 + launch * 17 + rank) + i % PLACES) % experts;
        b->weights[i] = 0.5f;
    }
    memset(b->y, 0xff, sizeof b->y);
}

static int create(struct mk_comm *comm, struct batch *b, uint32_t experts)
{
    struct mk_spec spec = {.op = MK_OP_MOE_DISPATCH,
                           .shape = {TOKENS, HIDDEN, experts, PLACES},
                           .options = "launch=halves"};
    int result = mk_plan_create(&b->dispatch, comm, &spec);
    spec.op = MK_OP_MOE_COMBINE;
    result = result ? result : mk_plan_create(&b->combine, comm, &spec);
    return result ? result : mk_moe_rows(b->dispatch) * HIDDEN * 2 > sizeof b->rows ? -ENOSPC : 0;
}

static int begin_dispatch(struct batch *b)
{
    void *const arguments[] = {b->x, b->ids, b->rows, b->counts};
    return mk_launch_begin(b->dispatch, arguments, 4, NULL);
}

static int begin_combine(struct batch *b)
{
    void *const arguments[] = {b->rows, b->ids, b->weights, b->y};
    return mk_launch_begin(b->combine, arguments, 4, NULL);
}

struct played {
    enum mk_exec exec;
    uint32_t nodes;
};

static struct mk_config config_for(const struct bootstrap_config *b, const struct played *played)
{
    struct mk_config config = config_of(b, played->nodes);
    config.version = MK_VERSION_NUMBER;
    config.exec = played->exec;
    config.heap_bytes = 32 << 20;
    if (played->nodes > 1)
        snprintf(config.nic, sizeof config.nic, "soft");
    return config;
}

/* Two batches are under way at once; a rank waits now and then, so that others come late. */
static int play(const struct bootstrap_config *b, char *text, size_t size, void *argument)
{
    static struct batch batches[BATCHES];
    const struct mk_config config = config_for(b, argument);
    const uint32_t experts = b->world * EACH;
    struct mk_comm *comm;
    int result = mk_comm_open(&comm, &config);
    for (uint32_t i = 0; i < BATCHES && !result; i++)
        result = create(comm, &batches[i], experts);
    for (uint32_t launch = 0; launch < 6 && !result; launch++) {
        for (uint32_t i = 0; i < BATCHES && !result; i++) {
            batch_fill(&batches[i], b->rank, launch + i, experts);
            result = begin_dispatch(&batches[i]);
            if (!result && (launch + b->rank) % 3 == 0)
                result = mk_wait(comm);
        }
        for (uint32_t i = BATCHES; i-- > 0 && !result;)
            result = mk_launch_end(batches[i].dispatch, NULL);
        for (uint32_t i = 0; i < BATCHES && !result; i++)
            result = begin_combine(&batches[i]);
        for (uint32_t i = 0; i < BATCHES && !result; i++)
            result = mk_launch_end(batches[i].combine, NULL);
        result = result ? result : mk_wait(comm);
        for (uint32_t i = 0; i < BATCHES && !result; i++)
            if (memcmp(batches[i].x, batches[i].y, sizeof batches[i].x)) {
                snprintf(text, size, "launch %u: batch %u comes back as another", launch, i);
                result = -1;
            }
    }
    for (uint32_t i = 0; i < BATCHES && !result; i++) {
        result = mk_plan_destroy(batches[i].combine);
        result = result ? result : mk_plan_destroy(batches[i].dispatch);
    }
    if (result && !*text)
        snprintf(text, size, "%s", mk_error(comm));
    mk_comm_close(comm);
    return result;
}

CASE(batches_are_under_way_at_once)
{
    static const struct {
        struct played played;
        uint32_t world;
    } plays[] = {{{MK_EXEC_HOST, 1}, 1}, {{MK_EXEC_HOST, 1}, 4},     {{MK_EXEC_HOST, 2}, 4},
                 {{MK_EXEC_HOST, 3}, 3}, {{MK_EXEC_EMULATED, 1}, 2}, {{MK_EXEC_EMULATED, 2}, 2}};
    for (size_t i = 0; i < sizeof plays / sizeof *plays; i++) {
        struct played played = plays[i].played;
        struct job j;
        job_init(&j, plays[i].world, 60);
        job_start_all(&j, play, &played);
        job_finish(&j);
        for (uint32_t r = 0; r < plays[i].world; r++) {
            assert_string_equal(j.reports[r].text, "");
            assert_true(j.reports[r].came);
            assert_int_equal(j.reports[r].result, 0);
        }
    }
}

/* Says what differs. */
#define REFUSED(comm, call, says)                                                                  \
    do {                                                                                           \
        assert_int_equal(call, -EINVAL);                                                           \
        if (!strstr(mk_error(comm), says))                                                         \
            fail_msg("\"%s\", not \"%s\"", mk_error(comm), says);                                  \
    } while (0)

CASE(what_is_out_of_turn_is_refused)
{
    struct mk_config config = {.version = MK_VERSION_NUMBER, .nodes = 1, .gpus = 1};
    struct mk_spec spec = {.op = MK_OP_MOE_DISPATCH, .shape = {TOKENS, HIDDEN, EACH, PLACES}};
    static struct batch b;
    void *const arguments[] = {b.x, b.ids, b.rows, b.counts}, *const none[4] = {NULL};
    struct mk_comm *comm;
    struct mk_plan *whole;
    assert_int_equal(mk_comm_open(&comm, &config), 0);
    assert_int_equal(create(comm, &b, EACH), 0);
    assert_int_equal(mk_plan_create(&whole, comm, &spec), 0);
    batch_fill(&b, 0, 0, EACH);
    REFUSED(comm, mk_launch_begin(whole, arguments, 4, NULL), "made without launch=halves");
    REFUSED(comm, mk_launch_end(whole, NULL), "made without launch=halves");
    REFUSED(comm, mk_launch_end(b.dispatch, NULL),
            "no launch of this plan of moe_dispatch has begun: call mk_launch_begin first");
    REFUSED(comm, mk_launch_begin(b.dispatch, arguments, 3, NULL), "it takes 4");
    REFUSED(comm, mk_launch_begin(b.dispatch, none, 4, NULL), "16-byte aligned");
    assert_int_equal(begin_dispatch(&b), 0);
    REFUSED(comm, begin_dispatch(&b), "has begun and not ended: call mk_launch_end first");
    REFUSED(comm, mk_launch(b.dispatch, arguments, 4, NULL), "has begun and not ended");
    REFUSED(comm, mk_moe_dispatch(b.dispatch, b.x, b.ids, b.rows, b.counts, NULL),
            "has begun and not ended");
    REFUSED(comm, mk_plan_destroy(b.dispatch),
            "a launch of moe_dispatch has begun and not ended: call mk_launch_end before "
            "mk_plan_destroy");
    assert_int_equal(mk_launch(whole, arguments, 4, NULL), 0);
    assert_int_equal(mk_launch_end(b.dispatch, NULL), 0);
    REFUSED(comm, mk_launch_end(b.dispatch, NULL), "has begun: call mk_launch_begin first");
    assert_int_equal(mk_launch(b.dispatch, arguments, 4, NULL), 0); /* whole: both in turn */
    assert_int_equal(begin_combine(&b), 0);
    assert_int_equal(mk_launch_end(b.combine, NULL), 0);
    assert_int_equal(mk_wait(comm), 0);
    assert_memory_equal(b.x, b.y, sizeof b.x);
    assert_int_equal(mk_plan_destroy(b.dispatch), 0);
    assert_int_equal(begin_combine(&b), 0);
    mk_comm_close(comm); /* which needs no end */
}

/* As of graphs that are replayed so: no call sees it, and the kernel does. */
static void out_of_turn(int ends, const char *says)
{
    struct mk_config config = {
        .version = MK_VERSION_NUMBER, .nodes = 1, .gpus = 1, .exec = MK_EXEC_EMULATED};
    static struct batch b;
    struct mk_comm *comm;
    assert_int_equal(mk_comm_open(&comm, &config), 0);
    assert_int_equal(create(comm, &b, EACH), 0);
    batch_fill(&b, 0, 0, EACH);
    struct plan_handle *h = (struct plan_handle *)(void *)b.dispatch;
    assert_int_equal(begin_dispatch(&b), 0);
    assert_int_equal(ends ? mk_launch_end(b.dispatch, NULL) : 0, 0);
    h->begun = ends;
    assert_int_equal(ends ? mk_launch_end(b.dispatch, NULL) : begin_dispatch(&b), 0);
    assert_int_equal(mk_wait(comm), -EIO);
    assert_non_null(strstr(mk_error(comm), says));
    mk_comm_close(comm);
}

CASE(a_kernel_sees_that_it_is_out_of_turn)
{
    out_of_turn(0,
                "rank 0 could not go on: the first half of a launch of moe_dispatch was replayed");
    out_of_turn(1,
                "rank 0 could not go on: the second half of a launch of moe_dispatch was replayed");
}

/* A rank that never begins: the others' second halves end by their timeout, and name it. */
static int lacks_one(const struct bootstrap_config *b, char *text, size_t size, void *argument)
{
    static struct batch batch;
    struct mk_config config = config_for(b, argument);
    struct mk_comm *comm;
    config.timeout_ns = 1500000000;
    int result = mk_comm_open(&comm, &config);
    result = result ? result : create(comm, &batch, b->world * EACH);
    batch_fill(&batch, b->rank, 0, b->world * EACH);
    if (!result && b->rank == 0) {
        result = begin_dispatch(&batch);
        result = result ? result : mk_wait(comm); /* the first half waits for nobody */
        result = result ? -1000 : mk_launch_end(batch.dispatch, NULL);
    }
    for (double end = test_seconds() + 20; !result && test_seconds() < end; job_sleep(0.01))
        result = mk_wait(comm);
    snprintf(text, size, "%s", mk_error(comm));
    mk_comm_close(comm);
    return result;
}

CASE(a_rank_that_never_begins_is_named)
{
    struct played played = {MK_EXEC_HOST, 1};
    struct job j;
    job_init(&j, 2, 60);
    job_start_all(&j, lacks_one, &played);
    job_finish(&j);
    for (uint32_t r = 0; r < 2; r++) {
        assert_true(j.reports[r].came);
        assert_int_equal(j.reports[r].result, -EIO);
        assert_non_null(strstr(j.reports[r].text, "rank 1 should have produced it"));
    }
}

/* ---- the command ---- */

CASE(the_command)
{
    char command[512];
    for (size_t i = 0; i < HALVED; i++) {
        const char *op = plan_op_name(ops[i]);
        for (uint32_t nodes = 1; nodes <= 2; nodes++) {
            snprintf(command, sizeof command,
                     "mkernel run %s --exec host --nodes %u --gpus 2 --moe 24,64,8,2 --launch "
                     "halves --tokens-now random --iters 4 --check 2>&1",
                     op, nodes);
            shell_says(command, 0, "all right", 1);
        }
        /* both halves of a launch are one launch of the trace */
        snprintf(command, sizeof command,
                 "f=$(mktemp -u).db; mkernel run %s --exec host --gpus 2 --moe 24,64,8,2 --launch "
                 "halves --iters 3 --trace $f >/dev/null 2>&1; sqlite3 $f 'SELECT count(*) || \" "
                 "launches of \" || (SELECT count(*) FROM launch_rank) || \" parts\" FROM launch' "
                 "2>&1; rm -f $f",
                 op);
        shell_says(command, 0, "4 launches of 8 parts", 1);
        snprintf(command, sizeof command,
                 "mkernel sim %s --gpus 2 --nodes 1 --moe 128,7168,64,8 --launch halves 2>&1", op);
        shell_says(command, 0, "us a launch", 1);
    }
    shell_says("mkernel run moe_dispatch --exec host --nodes 2 --gpus 2 --moe 64,64,8,2 --launch "
               "halves --skew one --capacity 40 --iters 2 2>&1",
               3, "nothing was computed: ask for more (--capacity)", 1);
    shell_says("mkernel run moe_ffn --exec host --launch halves 2>&1", 2, "--launch", 1);
}
