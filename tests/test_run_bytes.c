/* Over each link of the network softnic carries, launch for launch, exactly the data that the
 * operator cannot do without: the lower bounds that its schedule's header derives, computed here
 * from the shape, or from the ids. */
#include "tests/helpers/launch.h"

#include "experiments/job/run.h"

#define LAUNCHES 3
#define SECONDS 60

static const char *const fabrics[] = {"verbs", "efa"};
static const uint32_t forms[][2] = {{2, 1}, {2, 2}, {3, 2}, {4, 1}};

static struct launch job;

/* ---- what has crossed ---- */

struct line {
    int rank;
    char from[24], to[24];
    unsigned from_qp, to_qp;
    unsigned long long messages, bytes, words, word_bytes;
};

static struct line lines[1024];
static int line_count;
static uint64_t crossed[LAUNCH_MOST][LAUNCH_MOST]; /* bytes of data, from and to */

static void read_lines(int rank, const char *path)
{
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    for (; line_count < 1024; line_count++) {
        struct line *l = &lines[line_count];
        l->rank = rank;
        if (fscanf(f, "%23s %u %23s %u %llu %llu %llu %llu", l->from, &l->from_qp, l->to, &l->to_qp,
                   &l->messages, &l->bytes, &l->words, &l->word_bytes) != 8)
            break;
    }
    assert_true(line_count < 1024);
    fclose(f);
    unlink(path);
}

/* The rank that a QP is of. */
static int rank_of(const char *device, unsigned qp)
{
    for (int i = 0; i < line_count; i++)
        if (lines[i].from_qp == qp && !strcmp(lines[i].from, device))
            return lines[i].rank;
    fail_msg("QP %u of %s is nobody's", qp, device);
    return -1;
}

static void run(const char *options, int world)
{
    char line[512], path[64], own[96];
    snprintf(line, sizeof line, "run %s --exec host --nic soft --check --warmup 0 --iters %d",
             options, LAUNCHES);
    launch_open(&job, world);
    for (int rank = 0; rank < world; rank++) {
        snprintf(own, sizeof own, "SOFTNIC=count=/tmp/mkernel_test_count_%d_%d", (int)getpid(),
                 rank);
        launch_rank(&job, rank, line, own);
    }
    for (int rank = 0; rank < world; rank++) {
        struct command_run *r = &job.ranks[rank];
        command_finish(r, SECONDS);
        if (r->status)
            fail_msg("mkernel %s: rank %d ends with %d: %s", line, rank, r->status, r->err_text);
    }
    line_count = 0;
    for (int rank = 0; rank < world; rank++) {
        snprintf(path, sizeof path, "/tmp/mkernel_test_count_%d_%d", (int)getpid(), rank);
        read_lines(rank, path);
    }
    memset(crossed, 0, sizeof crossed);
    for (int i = 0; i < line_count; i++) {
        if (!lines[i].messages && !lines[i].words)
            continue;
        crossed[lines[i].rank][rank_of(lines[i].to, lines[i].to_qp)] += lines[i].bytes;
        assert_true(lines[i].word_bytes <= 8 * lines[i].words);
    }
}

/* ---- what has to ---- */

static int on_one_rail(const struct mk_topo *t, uint32_t from, uint32_t to)
{
    return mk_node_of(t, from) != mk_node_of(t, to) && mk_local_of(t, from) == mk_local_of(t, to);
}

static void expect_links(const struct mk_topo *t, const uint64_t expected[LAUNCH_MOST][LAUNCH_MOST],
                         const char *what)
{
    for (uint32_t from = 0; from < mk_world(t); from++)
        for (uint32_t to = 0; to < mk_world(t); to++)
            if (crossed[from][to] != expected[from][to])
                fail_msg("%s: from rank %u to rank %u %llu bytes, minimum %llu", what, from, to,
                         (unsigned long long)crossed[from][to],
                         (unsigned long long)expected[from][to]);
}

/* Operators whose links all carry the same: `bytes` per launch on every rail. */
static void expect_rails(const struct mk_problem *q, const char *options, uint64_t bytes)
{
    uint64_t expected[LAUNCH_MOST][LAUNCH_MOST] = {{0}}, nvlink, network;
    double flop;
    struct mk_plan plan;
    char error[300];
    run(options, (int)mk_world(&q->topo));
    for (uint32_t from = 0; from < mk_world(&q->topo); from++)
        for (uint32_t to = 0; to < mk_world(&q->topo); to++)
            expected[from][to] = on_one_rail(&q->topo, from, to) ? LAUNCHES * bytes : 0;
    expect_links(&q->topo, expected, options);
    assert_int_equal(plan_build(&plan, q, 0, 0, error, sizeof error), 0);
    plan_work(&plan, &flop, &nvlink, &network);
    assert_int_equal(network, (q->topo.nodes - 1) * bytes); /* what `mkernel run` says it moved */
}

static void gemm(enum mk_op op, const uint32_t form[2], const char *fabric, int deterministic)
{
    struct mk_problem q = {.op = op, .topo = {form[0], form[1], 0}, .deterministic = deterministic};
    uint64_t shard = 33, bytes = 0;
    char options[256];
    q.m = shard * mk_world(&q.topo);
    q.n = 40;
    q.k = 72;
    if (op == MK_OP_AG_GEMM) /* a shard of A enters each other node once */
        bytes = shard * q.k * 2;
    else /* each node's sum of a block reaches the owner once */
        bytes = shard * q.n * (deterministic ? 4 : 2);
    if (op == MK_OP_GEMM_AR) /* and the whole sum each other node */
        bytes += shard * q.n * 2;
    snprintf(options, sizeof options,
             "%s --fabric %s --nodes %u --gpus %u --tile 16,40 --chunk-rows 16 --shape %d,40,72%s",
             plan_op_name(op), fabric, form[0], form[1], (int)q.m,
             deterministic ? " --deterministic" : "");
    expect_rails(&q, options, bytes);
}

/* Of e4m3: of A a byte each, and four for the scale of 128 of a row. Sums are bf16's. */
static void gemm_fp8(enum mk_op op, const uint32_t form[2], const char *fabric)
{
    struct mk_problem q = {
        .op = op, .topo = {form[0], form[1], 0}, .fp8 = 1, .b_transposed = 1, .n = 40, .k = 144};
    const uint64_t shard = 36;
    char options[256];
    q.m = shard * mk_world(&q.topo);
    snprintf(options, sizeof options,
             "%s --fabric %s --nodes %u --gpus %u --tile 16,40 --chunk-rows 16 --shape %d,40,144 "
             "--dtype fp8 --b-layout nk",
             plan_op_name(op), fabric, form[0], form[1], (int)q.m);
    expect_rails(&q, options, op == MK_OP_AG_GEMM ? shard * (q.k + 2 * 4) : shard * q.n * 2);
}

static void attention(const uint32_t form[2], const char *fabric, int causal)
{
    struct mk_problem q = {.op = MK_OP_RING_ATTENTION, .topo = {form[0], form[1], 0}};
    char options[256];
    q.attention = (struct mk_attention){2, mk_world(&q.topo) * 14ull, 6, 3, 64, causal, 0, 0};
    snprintf(options, sizeof options,
             "ring_attention --tile 8,8 --chunk-rows 8 --fabric %s --nodes %u --gpus %u "
             "--attention 2,%d,6,3,64%s",
             fabric, form[0], form[1], (int)q.attention.sequence, causal ? " --causal" : "");
    /* K and V of a shard enter each other node once */
    expect_rails(&q, options, 2 * 2 * 14 * 3 * 64 * 2);
}

/* To every rank of the rail how many rows each rank of its node gets, 4 bytes for each of its
 * experts, and tokens; and each token once to each other node where it has an expert, with 16
 * bytes for each of its experts. moe_ffn: from there one row of results of `back` bytes.
 * token_bytes: of a row. */
static void moe_minimum(const struct run_job *j, uint64_t token_bytes, uint64_t back,
                        uint64_t expected[LAUNCH_MOST][LAUNCH_MOST])
{
    static uint32_t ids[4096];
    const struct mk_moe *m = &j->problem.moe;
    const struct mk_topo *t = &j->problem.topo;
    const struct run_data d = {.job = j};
    uint32_t node_experts = (uint32_t)m->experts / t->nodes;
    for (uint32_t from = 0; from < mk_world(t); from++)
        for (uint64_t launch = 1; launch <= LAUNCHES; launch++) {
            run_data_ids(&d, from, launch, ids);
            for (uint32_t to = 0; to < mk_world(t); to++) {
                if (!on_one_rail(t, from, to))
                    continue;
                expected[from][to] +=
                    mk_round_up(t->gpus * mk_round_up((m->experts / mk_world(t) + 2) * 4, 16), 128);
                for (uint64_t token = 0; token < m->tokens; token++) {
                    int there = 0;
                    for (uint64_t place = 0; place < m->k; place++) {
                        uint32_t expert = ids[token * m->k + place];
                        there |= expert < m->experts && expert / node_experts == mk_node_of(t, to);
                    }
                    expected[from][to] += there ? token_bytes + 16 * m->k : 0;
                    expected[to][from] += there ? back : 0;
                }
            }
        }
}

static void moe(enum mk_op op, const uint32_t form[2], const char *fabric, int routing,
                int deterministic)
{
    static const char *const names[] = {"even", "one", "few", "none"};
    struct run_job j = {.options = {.op = op, .seed = 1, .routing = routing},
                        .problem = {.op = op, .topo = {form[0], form[1], 0}}};
    uint64_t expected[LAUNCH_MOST][LAUNCH_MOST] = {{0}};
    char options[256];
    j.problem.moe = (struct mk_moe){21, 72, 40, 2 * mk_world(&j.problem.topo), 2};
    snprintf(options, sizeof options,
             "%s --fabric %s --nodes %u --gpus %u --moe 21,72,40,%d,2 --routing %s%s",
             plan_op_name(op), fabric, form[0], form[1], (int)j.problem.moe.experts, names[routing],
             deterministic ? " --deterministic" : "");
    run(options, (int)mk_world(&j.problem.topo));
    moe_minimum(&j, 72 * 2, op != MK_OP_MOE_FFN ? 0 : 72 * (deterministic ? 4 : 2), expected);
    expect_links(&j.problem.topo, expected, options);
}

/* A token is a record of e4m3 and its scales, 160 + 8 bytes in whole 16; so is a sum on its way
 * back, if asked for. */
static void moe_fp8(enum mk_op op, const uint32_t form[2], const char *fabric, int back)
{
    struct run_job j = {
        .options = {.op = op, .seed = 1},
        .problem = {.op = op, .topo = {form[0], form[1], 0}, .fp8 = 1, .b_transposed = 1}};
    uint64_t expected[LAUNCH_MOST][LAUNCH_MOST] = {{0}};
    char options[256];
    j.problem.moe = (struct mk_moe){21, 160, 48, 2 * mk_world(&j.problem.topo), 2};
    snprintf(options, sizeof options,
             "%s --fabric %s --nodes %u --gpus %u --moe 21,160,48,%d,2 --dtype fp8 --b-layout nk%s",
             plan_op_name(op), fabric, form[0], form[1], (int)j.problem.moe.experts,
             back ? " --back fp8" : "");
    run(options, (int)mk_world(&j.problem.topo));
    moe_minimum(&j, 176, op != MK_OP_MOE_FFN ? 0 : back ? 176 : 160 * 2, expected);
    expect_links(&j.problem.topo, expected, options);
}

/* ---- tests ---- */

#define EACH(call)                                                                                 \
    for (size_t form = 0; form < sizeof forms / sizeof *forms; form++)                             \
        for (size_t fabric = 0; fabric < sizeof fabrics / sizeof *fabrics; fabric++)               \
            for (int way = 0; way < 2; way++)                                                      \
    call

CASE(test_ag_gemm)
{
    EACH(gemm(MK_OP_AG_GEMM, forms[form], fabrics[fabric], way));
}

CASE(test_gemm_rs)
{
    EACH(gemm(MK_OP_GEMM_RS, forms[form], fabrics[fabric], way));
}

CASE(test_gemm_ar)
{
    EACH(gemm(MK_OP_GEMM_AR, forms[form], fabrics[fabric], way));
}

CASE(test_ring_attention)
{
    EACH(attention(forms[form], fabrics[fabric], way));
}

CASE(test_moe_dispatch_gemm)
{
    EACH(moe(MK_OP_MOE_DISPATCH_GEMM, forms[form], fabrics[fabric], way + 2 * (int)(form % 2), 0));
}

CASE(test_moe_ffn)
{
    EACH(moe(MK_OP_MOE_FFN, forms[form], fabrics[fabric], way + 2 * (int)(form % 2), way));
}

/* Half of bf16's bytes and the scales, where what is multiplied crosses. */
CASE(test_fp8)
{
    for (size_t form = 0; form < 2; form++) {
        const char *fabric = fabrics[form];
        gemm_fp8(MK_OP_AG_GEMM, forms[form], fabric);
        gemm_fp8(MK_OP_GEMM_RS, forms[form], fabric);
        moe_fp8(MK_OP_MOE_DISPATCH_GEMM, forms[form], fabric, 0);
        moe_fp8(MK_OP_MOE_FFN, forms[form], fabric, 0);
        moe_fp8(MK_OP_MOE_FFN, forms[form], fabric, 1);
    }
}
