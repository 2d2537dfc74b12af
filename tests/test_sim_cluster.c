/* The simulator's machine moves the bytes that every plan says, is never faster than its rates
 * allow, and as fast as they allow where one of them is all that counts; what it stores is a trace
 * like any other. */
#include "sim/cluster.h"
#include "sim/world.h"
#include "tests/helpers/command.h"

#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>

#include "tests/helpers/folder.h"

static struct mk_problem problem(enum mk_op op, uint32_t nodes, uint32_t gpus)
{
    uint32_t world = nodes * gpus;
    return (struct mk_problem){
        .op = op,
        .exec = MK_EXEC_HOST,
        .topo = {.nodes = nodes, .gpus = gpus},
        .m = 70 * world,
        .n = 104,
        .k = 72,
        .attention =
            {.batch = 1, .sequence = 36 * world, .heads = 2, .kv_heads = 1, .head_dim = 64},
        .moe = {.tokens = 24, .hidden = 64, .inner = 40, .experts = 2 * world, .k = 2},
        .timeout_ns = MK_TIMEOUT_NS};
}

/* Runs `launches` launches and returns what one takes, in ns. */
static double simulate(struct sim_machine *m, const struct sim_cluster *cluster,
                       const struct mk_problem *q, uint32_t launches, struct mk_plan *plan)
{
    char error[512];
    struct sim_world_result result;
    struct sim_world_config c = {
        .problem = *q, .launches = launches, .seed = 7, .ring_capacity = 1024, .fabric_depth = 256};
    assert_int_equal(plan_build(plan, q, 0, 0, error, sizeof error), 0);
    assert_int_equal(sim_machine_open(m, cluster, &q->topo), 0);
    c.costs = &m->costs;
    int rc = sim_world_run(&c, &result);
    if (rc)
        fail_msg("%s: %d %s", plan_op_name(q->op), rc, result.sentence);
    return (double)result.ns / launches;
}

static void test_bytes_and_bounds(void **state)
{
    static const uint32_t forms[][2] = {{1, 1}, {1, 4}, {2, 1}, {2, 2}, {3, 2}, {4, 1}};
    struct sim_cluster cluster;
    sim_cluster_default(&cluster);
    for (int op = 0; op < MK_OPS; op++)
        for (size_t f = 0; f < sizeof forms / sizeof *forms; f++) {
            struct mk_problem q = problem((enum mk_op)op, forms[f][0], forms[f][1]);
            struct sim_machine m;
            struct mk_plan plan;
            double flop, took = simulate(&m, &cluster, &q, 3, &plan), nvlink = 0, network = 0;
            uint64_t planned[2], world = mk_world(&q.topo);
            int moe = op == MK_OP_MOE_DISPATCH_GEMM || op == MK_OP_MOE_FFN;
            plan_work(&plan, &flop, &planned[0], &planned[1]);
            for (uint64_t r = 0; r < world; r++) {
                nvlink += (double)m.links[r].bytes_in / 3 / (double)world;
                network += (double)m.nics[r].bytes_in / 3 / (double)world;
            }
            /* Tokens go where they name: the plan says what that is at most. */
            if (moe ? nvlink > (double)planned[0] + 0.5 || network > (double)planned[1] + 0.5
                    : fabs(nvlink - (double)planned[0]) > 0.5 ||
                          fabs(network - (double)planned[1]) > 0.5)
                fail_msg("%s on %u x %u: moved %.1f and %.1f bytes, the plan says %llu and %llu",
                         plan_op_name(q.op), forms[f][0], forms[f][1], nvlink, network,
                         (unsigned long long)planned[0], (unsigned long long)planned[1]);
            if ((forms[f][1] > 1 && nvlink <= 0) || (forms[f][0] > 1 && network <= 0))
                fail_msg("%s on %u x %u: nothing moved", plan_op_name(q.op), forms[f][0],
                         forms[f][1]);
            if (!moe && took < sim_cluster_ideal(&cluster, &plan))
                fail_msg("%s on %u x %u: %.0f ns, under the ideal of %.0f", plan_op_name(q.op),
                         forms[f][0], forms[f][1], took, sim_cluster_ideal(&cluster, &plan));
            sim_machine_close(&m);
        }
}

/* AllGather+GEMM where one rate is a thousand times below the others: the launch takes what that
 * one takes. */
static void test_one_rate_counts(void **state)
{
    static const struct {
        const char *what;
        double flop, nvlink, network;
        uint32_t nodes, gpus;
    } cases[] = {{"flop", 1, 1e3, 1e3, 2, 2},
                 {"NVLink", 1e6, 0.1, 1e3, 1, 4},
                 {"network", 1e6, 1e3, 0.1, 3, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct sim_cluster cluster = {.flop = cases[i].flop,
                                      .memory = 1e3,
                                      .nvlink = cases[i].nvlink,
                                      .network = cases[i].network};
        struct mk_problem q = problem(MK_OP_AG_GEMM, cases[i].nodes, cases[i].gpus);
        struct sim_machine m;
        struct mk_plan plan;
        q.m = 512 * mk_world(&q.topo); /* whole tiles for every CTA */
        q.n = 128;
        double took = simulate(&m, &cluster, &q, 4, &plan),
               ideal = sim_cluster_ideal(&cluster, &plan);
        if (took < ideal || took > 1.1 * ideal)
            fail_msg("%s: %.0f ns a launch where %.0f are the ideal", cases[i].what, took, ideal);
        sim_machine_close(&m);
    }
}

/* A slower network makes the launch longer, and by what crosses it. */
/* What a progress line counts ends at all of it, whatever the mask leaves. */
static void test_how_far_it_is(void **state)
{
    struct sim_cluster cluster;
    sim_cluster_default(&cluster);
    for (int causal = 0; causal < 2; causal++) {
        struct mk_problem q = problem(MK_OP_RING_ATTENTION, 1, 3);
        struct sim_machine m;
        struct mk_plan plan;
        double flop;
        uint64_t nvlink, network;
        q.attention.sequence = 3 * 352; /* 11 tiles of queries for 2 CTAs */
        q.attention.heads = 1;
        q.attention.causal = causal;
        simulate(&m, &cluster, &q, 2, &plan);
        plan_work(&plan, &flop, &nvlink, &network);
        double all = flop * 3 * 2;
        /* blocks of keys that are seen in part count whole */
        if ((double)m.flop < 0.99 * all || (double)m.flop > 1.2 * all)
            fail_msg("causal %d: %llu flop done of %.0f", causal, (unsigned long long)m.flop, all);
        sim_machine_close(&m);
    }
}

static void test_latency_shows(void **state)
{
    struct sim_cluster cluster;
    struct mk_problem q = problem(MK_OP_AG_GEMM, 2, 1);
    struct sim_machine m;
    struct mk_plan plan;
    sim_cluster_default(&cluster);
    double near = simulate(&m, &cluster, &q, 1, &plan);
    sim_machine_close(&m);
    cluster.network_latency += 100000;
    double far = simulate(&m, &cluster, &q, 1, &plan);
    sim_machine_close(&m);
    /* there, and the acknowledgement back */
    assert_true(far - near >= 100000 && far - near <= 250000);
}

static struct command_run r;

static void expect(const char *line, int status, const char *says)
{
    command_start(&r, line, NULL);
    command_finish(&r, 30);
    if (r.status != status || !strstr(status ? r.err_text : r.out_text, says))
        fail_msg("mkernel %s: status %d (want %d), \"%s\" \"%s\" lacks \"%s\"", line, r.status,
                 status, r.out_text, r.err_text, says);
}

static void test_command(void **state)
{
    char line[256], once[sizeof r.out_text];
    /* --trace changes nothing, and neither does a second time */
    for (int op = 0; op < MK_OPS; op++) {
        snprintf(line, sizeof line, "sim %s --data --launches 2", plan_op_name(op));
        expect(line, 0, "efficiency 0.");
        snprintf(once, sizeof once, "%s", r.out_text);
        snprintf(line, sizeof line, "sim %s --data --launches 2 --trace %s/t.db", plan_op_name(op),
                 folder);
        expect(line, 0, "trace     ");
        *strstr(r.out_text, "trace     ") = '\0';
        assert_string_equal(r.out_text, once);
        snprintf(line, sizeof line, "trace summary %s/t.db", folder);
        expect(line, 0, "simulated, sim executor, 2 nodes x 2 ranks");
        assert_non_null(strstr(r.out_text, "nothing dropped"));
        assert_non_null(strstr(r.out_text, "2 launches"));
    }
    expect("sim ag_gemm --trace /nonexistent/x", 2, "cannot be written");
    expect("sim ag_gemm --explore --trace t.db", 2, "--trace is not for --explore");
    expect("sim ag_gemm --vary", 2, "--vary is for --explore");
}

/* A MoE's launch is one of all the tokens that its shape says: where each has an expert on every
 * rank, those are the bytes. */
static void test_all_tokens(void **state)
{
    expect("sim moe_dispatch_gemm --data --nodes 2 --gpus 2 --moe 100,64,40,4,4 --launches 3", 0,
           /* 2 x (ids of 100 x 16, and rows of 128); once */
           "moved     28800 bytes over NVLink and 14400 over the network");
    expect("sim moe_ffn --data --nodes 2 --gpus 2 --moe 100,64,40,4,4 --launches 3 --seed 5", 0,
           /* rows there and back, weights with the ids */
           "moved     57600 bytes over NVLink and 28800 over the network");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes_and_bounds), cmocka_unit_test(test_one_rate_counts),
        cmocka_unit_test(test_how_far_it_is),    cmocka_unit_test(test_latency_shows),
        cmocka_unit_test(test_command),          cmocka_unit_test(test_all_tokens),
    };
    return cmocka_run_group_tests(tests, folder_make, folder_remove);
}
