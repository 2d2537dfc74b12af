/* The timed executor runs every operator's schedule on every cluster without data: it moves the
 * bytes and computes the tiles that the plan says, is never faster than the machine, as fast where
 * one rate is all that counts, the same in every run, and says who waits where nothing goes on. */
#include "core/comm/comm.h"
#include "core/plan/epilogue.h"
#include "core/ops/op.h"
#include "core/plan/pipeline.h"
#include "core/roles/gemm_rs_plan.h"
#include "sim/op.h"
#include "sim/timed/queue.h"
#include "sim/timed/timed.h"

#include <math.h>

#include "tests/helpers/test.h"

static struct mk_problem problem(enum mk_op op, enum mk_exec exec, uint32_t nodes, uint32_t gpus)
{
    uint32_t world = nodes * gpus;
    struct mk_problem q = {
        .op = op,
        .exec = exec,
        .sms = exec == MK_EXEC_CUDA ? 132 : 0,
        .topo = {.nodes = nodes, .gpus = gpus},
        .m = 264 * world,
        .n = 520,
        .k = 200,
        .attention =
            {.batch = 1, .sequence = 144 * world, .heads = 2, .kv_heads = 1, .head_dim = 64},
        .moe = {.tokens = 24, .hidden = 64, .inner = 40, .experts = 2 * world, .k = 2},
        .timeout_ns = MK_TIMEOUT_NS};
    op_fit(&q);
    return q;
}

static void build(struct mk_plan *plan, const struct mk_problem *q)
{
    char error[512] = "";
    if (plan_build(plan, q, 3, 4096, error, sizeof error))
        fail_msg("%s: %s", plan_op_name(q->op), error);
}

/* ns of a launch. */
static double run(const struct mk_plan *plan, const struct mk_machine *m, uint32_t launches,
                  struct timed_result *r)
{
    const struct timed_config c = {.plan = (struct mk_plan *)(uintptr_t)plan,
                                   .machine = m,
                                   .launches = launches,
                                   .seed = 7,
                                   .max_events = 10000000};
    int rc = timed_run(&c, r);
    if (rc)
        fail_msg("%s: %d %s", plan_op_name(plan->problem.op), rc, r->sentence);
    return (double)r->ns / launches;
}

/* Events come by time and, of one time, in the order in which they were put in. */
CASE(test_queue)
{
    enum { EVENTS = 3000 };
    static uint32_t order[EVENTS];
    static uint64_t times[EVENTS];
    struct timed_queue *q = malloc(sizeof *q);
    assert_non_null(q);
    assert_int_equal(timed_queue_open(q, EVENTS), 0);
    srand(3);
    for (int round = 0; round < 20; round++) {
        uint32_t put = 0;
        for (uint32_t i = 0; i < EVENTS; i++) { /* ever farther away, and many at one time */
            times[i] = q->now + (uint64_t)rand() % (1ull << (round * 2 + 1));
            timed_queue_put(q, i, times[i]);
            order[i] = put++;
        }
        for (uint32_t i = 0; i < EVENTS; i += 3) { /* every third another time */
            timed_queue_remove(q, i);
            times[i] = q->now + (uint64_t)rand() % 2000;
            timed_queue_put(q, i, times[i]);
            order[i] = put++;
        }
        uint32_t last = TIMED_NONE;
        for (uint32_t i = 0; i < EVENTS; i++) {
            uint32_t e = timed_queue_next(q);
            assert_true(e < EVENTS);
            assert_true(q->now == times[e]);
            assert_true(last == TIMED_NONE || times[last] < times[e] ||
                        (times[last] == times[e] && order[last] < order[e]));
            last = e;
        }
        assert_int_equal(timed_queue_next(q), TIMED_NONE);
    }
    timed_queue_close(q);
    free(q);
}

static uint64_t tiles_of(const struct mk_plan *plan)
{
    return (uint64_t)plan->tiles * mk_world(&plan->problem.topo);
}

CASE(test_bytes_tiles_and_bounds)
{
    static const uint32_t forms[][2] = {{1, 1}, {1, 4}, {2, 1}, {2, 2}, {3, 2}, {4, 1}, {2, 8}};
    const struct mk_machine *m = machine_default();
    for (int op = 0; op < MK_OPS; op++)
        for (size_t f = 0; f < 2 * sizeof forms / sizeof *forms; f++) {
            uint32_t nodes = forms[f / 2][0], gpus = forms[f / 2][1];
            struct mk_problem q =
                problem((enum mk_op)op, f % 2 ? MK_EXEC_CUDA : MK_EXEC_HOST, nodes, gpus);
            struct timed_result r;
            struct mk_plan plan;
            double nvlink = 0, network = 0; /* on average: where M need not divide, it does not */
            int moe = op == MK_OP_MOE_DISPATCH_GEMM || op == MK_OP_MOE_FFN ||
                      op == MK_OP_MOE_DISPATCH || op == MK_OP_MOE_COMBINE;
            q.m -= f % (nodes * gpus);
            op_fit(&q);
            for (uint32_t rank = nodes * gpus; rank-- > 0;) { /* rank 0's plan is what runs */
                uint64_t of_rank[2];
                double flop;
                q.topo.rank = rank;
                build(&plan, &q);
                plan_work(&plan, &flop, &of_rank[0], &of_rank[1]);
                nvlink += (double)of_rank[0] / (nodes * gpus);
                network += (double)of_rank[1] / (nodes * gpus);
            }
            double took = run(&plan, m, 3, &r), sum = 0;
            /* Tokens go where they name: the plan says what that is at most. */
            if (moe ? r.nvlink_bytes > nvlink + 0.5 || r.network_bytes > network + 0.5
                    : fabs(r.nvlink_bytes - nvlink) > 0.5 || fabs(r.network_bytes - network) > 0.5)
                fail_msg("%s on %u x %u: moved %.1f and %.1f bytes, the plan says %.1f and %.1f",
                         plan_op_name(q.op), nodes, gpus, r.nvlink_bytes, r.network_bytes, nvlink,
                         network);
            if ((gpus > 1 && r.nvlink_bytes <= 0) || (nodes > 1 && r.network_bytes <= 0))
                fail_msg("%s on %u x %u: nothing moved", plan_op_name(q.op), nodes, gpus);
            if (op == MK_OP_AG_GEMM || op == MK_OP_GEMM_RS || op == MK_OP_GEMM_AR)
                assert_int_equal(r.tiles, 3 * tiles_of(&plan));
            if (!moe && took < timed_ideal(m, &plan))
                fail_msg("%s on %u x %u: %.0f ns, under the ideal of %.0f", plan_op_name(q.op),
                         nodes, gpus, took, timed_ideal(m, &plan));
            for (int i = 0; i < TIMED_PARTS; i++)
                sum += r.parts[i];
            if (fabs(sum - took) > 1 + 0.001 * took)
                fail_msg("%s on %u x %u: the longest chain has %.1f of %.1f ns", plan_op_name(q.op),
                         nodes, gpus, sum, took);
        }
}

/* A machine on which everything but a few things costs nothing to speak of. */
static struct mk_machine free_machine(void)
{
    struct mk_machine m = *machine_default();
    m.launch = m.flag = m.flag_own = m.settle = m.wait = m.between = m.command = 0;
    m.proxy_command = m.proxy_completion = m.nic_latency = m.nic_flag = m.nic_message = 0;
    m.nvlink_out = m.nvlink_in = m.nic_rate = m.hbm_rate = 1e6;
    m.watts = m.beside = m.beside_peer = m.under = m.outbox = m.paced = m.send = 0;
    m.deliver = 0;
    for (int i = 0; i < MACHINE_MOVERS; i++)
        m.movers[i] = (struct machine_rate){0, 1e5, 1e5, 1e5, 1e7, 0};
    for (int i = 0; i < MACHINE_TILES && m.tiles[i].tile_m > 0; i++) {
        m.tiles[i].begin = m.tiles[i].end = 0;
        m.tiles[i].stage = 1;
    }
    return m;
}

/* Where one rate is a thousand times below the others, a launch takes what that one takes. */
CASE(test_one_rate_counts)
{
    static const struct {
        const char *what;
        uint32_t nodes, gpus;
    } cases[] = {{"tiles", 1, 2},
                 {"NVLink", 1, 4},
                 {"network", 3, 1},
                 {"NVLink in", 1, 4},
                 {"NVLink out", 1, 4}};
    for (uint32_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int op = MK_OP_AG_GEMM; op <= MK_OP_GEMM_RS; op += MK_OP_GEMM_RS - MK_OP_AG_GEMM) {
            struct mk_machine m = free_machine();
            struct mk_problem q =
                problem((enum mk_op)op, MK_EXEC_CUDA, cases[i].nodes, cases[i].gpus);
            struct timed_result r;
            struct mk_plan plan;
            q.m = 4096 * mk_world(&q.topo);
            q.n = 4096;
            q.k = 512;
            q.sms = 66; /* whole tiles for all */
            if (i == 0)
                for (int t = 0; t < MACHINE_TILES; t++)
                    m.tiles[t].stage = 10000;
            if (i == 1 || i == 3)
                m.nvlink_in = 0.5;
            if (i == 1 || i == 4)
                m.nvlink_out = 0.5;
            if (i == 2)
                m.nic_rate = 0.5;
            m.sms = 66;
            build(&plan, &q);
            double took = run(&plan, &m, 2, &r);
            m.nvlink_in = m.nvlink_out < m.nvlink_in ? m.nvlink_out : m.nvlink_in;
            double ideal = timed_ideal(&m, &plan);
            if (took < 0.9999 * ideal || took > 1.12 * ideal)
                fail_msg("%s, %s: %.0f ns a launch where %.0f are the ideal", plan_op_name(q.op),
                         cases[i].what, took, ideal);
        }
}

/* Where three peers push at once two thirds of nvlink_joint are lost, of one nothing. Not all push all
 * the time. */
CASE(test_pushes_meet)
{
    for (uint32_t gpus = 2; gpus <= 4; gpus += 2) {
        struct mk_machine m = free_machine();
        struct mk_problem q = problem(MK_OP_AG_GEMM, MK_EXEC_CUDA, 1, gpus);
        struct timed_result r;
        struct mk_plan plan;
        q.m = 4096 * gpus;
        q.n = 256;
        q.k = 512;
        m.nvlink_in = m.nvlink_out = 0.5;
        build(&plan, &q);
        double free = run(&plan, &m, 2, &r);
        m.nvlink_joint = 0.3;
        double joint = run(&plan, &m, 2, &r), longer = gpus == 2 ? 1 : 1.25;
        if (joint < free * (1 + (longer - 1) / 3) || joint > free * longer)
            fail_msg("%u GPUs: %.0f ns, and %.0f where pushes meet", gpus, free, joint);
    }
}

/* The ideal has the time in it that reading the weights takes: of experts, those that are chosen.
 */
CASE(test_memory_is_in_the_ideal)
{
    struct mk_machine m = free_machine();
    m.hbm_rate = 1000;
    m.l2 = 1e6;
    for (uint32_t tokens = 1; tokens <= 64; tokens *= 8) {
        struct mk_problem q = problem(MK_OP_MOE_FFN, MK_EXEC_CUDA, 1, 1);
        struct timed_result r;
        struct mk_plan plan;
        q.moe =
            (struct mk_moe){.tokens = tokens, .hidden = 4096, .inner = 1024, .experts = 16, .k = 2};
        build(&plan, &q);
        /* one token has chosen 2, eight on the average 10.5, 64 all */
        double chosen = tokens == 1   ? 2
                        : tokens == 8 ? 16 - 16 * pow(14. / 16, 8)
                                      : 15.997,
               bytes = chosen * 3 * 2 * 4096 * 1024 + tokens * (2 * 4096 * 2 + 2 * 8);
        if (fabs(plan_memory_bytes(&plan) / bytes - 1) > 1e-4)
            fail_msg("%u tokens: %.0f bytes and not %.0f", tokens, plan_memory_bytes(&plan), bytes);
        assert_true(fabs(timed_ideal(&m, &plan) / ((bytes - 1e6) / 1000) - 1) < 1e-4);
        assert_true(run(&plan, &m, 1, &r) > 0.5 * timed_ideal(&m, &plan));
        m.l2 = bytes; /* all of it stays there */
        assert_true(timed_ideal(&m, &plan) < 1000);
        m.l2 = 1e6;
    }
    struct mk_problem q = problem(MK_OP_GEMM_AR, MK_EXEC_CUDA, 1, 2);
    struct mk_plan plan;
    build(&plan, &q);
    assert_true(plan_memory_bytes(&plan) == 2.0 * (q.m * q.k + q.k * q.n + q.m * q.n));
}

/* Rows that are normed behind the sum cross memory behind everything else, in one shot, in two, on
 * either engine and on one rank. */
CASE(test_norm_comes_last)
{
    static const struct {
        uint32_t gpus, shots;
        enum mk_engine engine;
    } forms[] = {{4, 1, MK_ENGINE_WGMMA},
                 {4, 2, MK_ENGINE_WGMMA},
                 {4, 1, MK_ENGINE_MMA},
                 {4, 2, MK_ENGINE_MMA},
                 {1, 2, MK_ENGINE_WGMMA}};
    const struct mk_machine *m = machine_default();
    struct timed_result r;
    struct mk_plan plan;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        struct mk_problem q = problem(MK_OP_GEMM_AR, MK_EXEC_CUDA, 1, forms[i].gpus);
        q.m = 1320, q.n = 4096;
        q.engine = forms[i].engine;
        q.tuning.shots = forms[i].shots;
        double ns[2];
        for (int normed = 0; normed < 2; normed++) {
            q.epilogue = normed ? MK_EPILOGUE_ROWS : 0;
            build(&plan, &q);
            ns[normed] = run(&plan, m, 1, &r);
        }
        const double least = 4.0 * 1320 * 4096 * 2 / m->hbm_rate;
        print_message("%u ranks, %u shots: %.0f ns, normed %.0f, memory alone %.0f\n",
                      forms[i].gpus, forms[i].shots, ns[0], ns[1], least);
        assert_true(ns[1] > ns[0] + 0.9 * least && ns[1] < ns[0] + 3 * least + 10000);
    }
}

/* Each put takes its NIC so long, one after the other; a launch ends once its puts are
 * acknowledged. */
CASE(test_network)
{
    struct mk_machine m = free_machine();
    struct mk_problem q = problem(MK_OP_ALL_GATHER, MK_EXEC_CUDA, 2, 1);
    struct timed_result r;
    struct mk_plan plan;
    build(&plan, &q);
    uint32_t puts = plan.chunks / 2;
    assert_true(puts > 3);
    m.put = 50000;
    double took = run(&plan, &m, 1, &r);
    if (took < puts * m.put || took > 1.1 * puts * m.put)
        fail_msg("%.0f ns for %u puts of %.0f", took, puts, m.put);
    m.put = 0;
    m.nic_latency = 1e6;
    took = run(&plan, &m, 1, &r);
    if (took < 2 * m.nic_latency || took > 2.1 * m.nic_latency)
        fail_msg("%.0f ns with a latency of %.0f", took, m.nic_latency);
    assert_true(r.parts[TIMED_NETWORK] > 0.95 * took);
}

/* Staged puts also go through host memory, on both sides, each way in turn. */
CASE(test_host_memory)
{
    struct mk_machine m = free_machine();
    struct mk_problem q = problem(MK_OP_ALL_GATHER, MK_EXEC_CUDA, 2, 1);
    struct timed_result r;
    struct mk_plan plan;
    build(&plan, &q);
    uint32_t puts = plan.chunks / 2;
    m.pcie = 0.5;
    m.pcie_latency = 1e6;
    double direct = run(&plan, &m, 1, &r), bytes = r.network_bytes;
    assert_true(direct < 1e5); /* it says nothing where puts are not staged */
    m.staged = 1;
    m.pcie_latency = 0;
    double took = run(&plan, &m, 1, &r), all = bytes / m.pcie, put = all / puts;
    if (took < all + 0.2 * put || took > all + 1.5 * put + direct)
        fail_msg("%.0f ns for %.0f bytes of %u puts", took, bytes, puts);
    m.pcie = 1e6;
    m.pcie_latency = 1e6;
    took = run(&plan, &m, 1, &r);
    if (took < 2e6 || took > 2.1e6)
        fail_msg("%.0f ns with two ways of 1 ms", took);
}

/* What moves over NVLink and what tiles load share a GPU's memory. */
CASE(test_memory_is_shared)
{
    struct mk_problem q = problem(MK_OP_AG_GEMM, MK_EXEC_CUDA, 1, 2);
    struct timed_result r;
    struct mk_plan plan;
    double took[3];
    q.m = 8192;
    q.n = 256;
    q.k = 4096;
    q.tuning.split = (struct mk_role_split){.ctas = {[MK_COMPUTE] = 32, [MK_INTRA_COMM] = 33}};
    build(&plan, &q);
    /* a memory that takes next to no time; one that moves alone wait for; one for both */
    for (int i = 0; i < 3; i++) {
        struct mk_machine m = free_machine();
        m.hbm_rate = i ? 1 : 1e6;
        struct mk_problem none = q;
        none.n = 8;
        struct mk_plan little;
        build(&little, &none);
        took[i] = run(i == 1 ? &little : &plan, &m, 1, &r);
    }
    /* half of A leaves and half comes: a byte of each is one of memory's */
    double moved = 2.0 * 8192 / 2 * 4096 * 2, loaded = (8192 + 256.0) * 4096 * 2;
    if (took[0] > 0.1 * moved || took[1] < moved || took[2] < moved + loaded / 2 ||
        took[2] > 1.5 * (moved + loaded))
        fail_msg("%.0f, %.0f and %.0f ns, where %.0f are moved and %.0f loaded", took[0], took[1],
                 took[2], moved, loaded);
}

/* The last tile's products come behind the last bytes, slice by slice. */
CASE(test_tiles_behind_bytes)
{
    struct mk_machine m = free_machine();
    struct mk_problem q = problem(MK_OP_AG_GEMM, MK_EXEC_CUDA, 1, 2);
    struct timed_result r;
    struct mk_plan plan;
    q.m = 1024;
    q.n = 256;
    q.k = 4096;
    q.tuning.slices = 4;
    q.tuning.split = (struct mk_role_split){.ctas = {[MK_COMPUTE] = 128, [MK_INTRA_COMM] = 1}};
    m.nvlink_in = m.nvlink_out = 1;
    for (int t = 0; t < MACHINE_TILES; t++)
        m.tiles[t].stage = 10000;
    build(&plan, &q);
    double moves = timed_ideal(&m, &plan), tile = 64 * 10000, took = run(&plan, &m, 1, &r);
    if (took < moves + 0.24 * tile || took > moves + 0.5 * tile)
        fail_msg("%.0f ns, where bytes take %.0f and a tile %.0f", took, moves, tile);
}

static int outbox_tiles;

/* Of a CTA's tiles for others (a rank's own pass no outbox): tile i + 2 ends once tile i has been
 * taken away. */
static int check_outbox(void *context, struct mk_comm *const *comms, uint32_t count)
{
    const struct gemm_rs_plan *p = context;
    const struct mk_comm *c = comms[0];
    const struct mk_track *engine = &c->tracks[0], *sender = &c->tracks[1];
    uint64_t taken[64];
    uint32_t copies = 0, tiles = 0;
    assert_int_equal(c->track_warps, 2);
    for (uint32_t i = 0; i < sender->count && copies < 64; i++)
        if (mk_event_kind_of(&sender->events[i]) == MK_EV_COPY)
            taken[copies++] = sender->events[i].start + sender->events[i].ns;
    for (uint32_t i = 0; i < engine->count && tiles < copies; i++)
        if (mk_event_kind_of(&engine->events[i]) == MK_EV_TILE &&
            mk_event_argument(&engine->events[i]) / p->shard_tiles != p->topo.rank) {
            if (tiles >= 2)
                assert_true(engine->events[i].start + engine->events[i].ns >= taken[tiles - 2]);
            tiles++;
        }
    assert_true(tiles == copies);
    outbox_tiles = (int)tiles;
    return 0;
}

CASE(test_outbox)
{
    struct mk_machine m = free_machine();
    struct mk_problem q = problem(MK_OP_GEMM_RS, MK_EXEC_CUDA, 1, 2);
    struct timed_result r;
    struct mk_plan plan;
    q.m = 8192;
    q.n = 16384;
    m.movers[MACHINE_WARP].peer = 0.01;
    build(&plan, &q);
    struct timed_config c = {.plan = &plan,
                             .machine = &m,
                             .launches = 1,
                             .trace_events = 10000,
                             .finished = check_outbox,
                             .context = (void *)(uintptr_t)gemm_rs_plan_of(&plan)};
    assert_int_equal(timed_run(&c, &r), 0);
    assert_true(outbox_tiles > 4);
}

/* When the rank's last record ends, and how often it waited for room in a ring. */
struct seen {
    uint64_t last;
    uint32_t full;
};

static int look_at_first(void *context, struct mk_comm *const *comms, uint32_t count)
{
    struct seen *seen = context;
    for (uint32_t t = 0; t < comms[0]->track_count; t++)
        for (uint32_t i = 0; i < comms[0]->tracks[t].count; i++) {
            const struct mk_event *e = &comms[0]->tracks[t].events[i];
            seen->last = e->start + e->ns > seen->last ? e->start + e->ns : seen->last;
            seen->full +=
                mk_event_kind_of(e) == MK_EV_WAIT && mk_event_cause_of(e) == MK_CAUSE_BACKPRESSURE;
        }
    return 0;
}

/* Who adds waits for every rank's part, not for the first alone. */
CASE(test_all_parts)
{
    struct mk_problem q = problem(MK_OP_GEMM_RS, MK_EXEC_CUDA, 1, 2);
    struct timed_slow slow[2] = {{1, 1, 1}, {0.05, 1, 1}};
    struct timed_result r;
    struct mk_plan plan;
    struct seen seen = {0};
    q.m = 8192;
    q.n = 4096;
    build(&plan, &q);
    struct timed_config c = {.plan = &plan,
                             .machine = machine_default(),
                             .launches = 1,
                             .slow = slow,
                             .trace_events = 10000,
                             .finished = look_at_first,
                             .context = &seen};
    assert_int_equal(timed_run(&c, &r), 0);
    /* its parts come before rank 1 has added its own */
    if ((double)seen.last < 0.2 * (double)r.ns)
        fail_msg("rank 0 ends at %llu ns, rank 1 at %llu", (unsigned long long)seen.last,
                 (unsigned long long)r.ns);
}

CASE(test_full_ring)
{
    struct mk_problem q = problem(MK_OP_ALL_GATHER, MK_EXEC_CUDA, 2, 1);
    struct mk_machine m = *machine_default();
    struct timed_result r;
    struct mk_plan plan;
    struct seen narrow = {0}, wide = {0};
    m.proxy_command = 10000;
    build(&plan, &q);
    struct timed_config c = {.plan = &plan,
                             .machine = &m,
                             .launches = 1,
                             .ring = 2,
                             .trace_events = 10000,
                             .finished = look_at_first,
                             .context = &narrow};
    assert_int_equal(timed_run(&c, &r), 0);
    c.ring = 1024;
    c.context = &wide;
    assert_int_equal(timed_run(&c, &r), 0);
    assert_true(narrow.full > 0 && wide.full == 0);
}

/* All ranks push to all: each GPU's way out is shared by its peers, and a GPU whose NVLink is
 * slow slows those alone that need it. */
CASE(test_slow_parts)
{
    struct mk_machine m = free_machine();
    struct mk_problem q = problem(MK_OP_ALL_GATHER, MK_EXEC_CUDA, 1, 4);
    struct timed_slow slow[4] = {{1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}};
    struct timed_result r;
    struct mk_plan plan;
    q.m = 16384 * 4;
    m.nvlink_out = m.nvlink_in = 10;
    build(&plan, &q);
    struct timed_config c = {.plan = &plan, .machine = &m, .launches = 1, .slow = slow};
    assert_int_equal(timed_run(&c, &r), 0);
    double even = (double)r.ns;
    slow[2].nvlink = 0.25;
    assert_int_equal(timed_run(&c, &r), 0);
    if ((double)r.ns < 3.7 * even || (double)r.ns > 4.4 * even)
        fail_msg("%.0f ns, and %.0f where one rank's links have a quarter", even, (double)r.ns);
    assert_true(r.parts[TIMED_NVLINK] > 0.8 * (double)r.ns);
}

CASE(test_equal_runs_and_jitter)
{
    struct mk_problem q = problem(MK_OP_GEMM_AR, MK_EXEC_CUDA, 2, 2);
    struct timed_result one, two, other;
    struct mk_plan plan;
    build(&plan, &q);
    struct timed_config c = {
        .plan = &plan, .machine = machine_default(), .launches = 4, .seed = 5, .jitter = 0.05};
    assert_int_equal(timed_run(&c, &one), 0);
    assert_int_equal(timed_run(&c, &two), 0);
    c.seed = 6;
    assert_int_equal(timed_run(&c, &other), 0);
    assert_true(one.ns == two.ns && one.events == two.events);
    assert_true(one.ns != other.ns);
    c.jitter = 0;
    assert_int_equal(timed_run(&c, &one), 0);
    c.seed = 7;
    assert_int_equal(timed_run(&c, &two), 0);
    assert_true(one.ns == two.ns);
}

/* Tokens that all want the same experts take longer than those that spread evenly. */
CASE(test_uneven_experts)
{
    struct mk_problem q = problem(MK_OP_MOE_DISPATCH_GEMM, MK_EXEC_CUDA, 1, 4);
    struct timed_result even, uneven;
    struct mk_plan plan;
    q.sms = 132;
    q.moe = (struct mk_moe){.tokens = 512, .hidden = 4096, .inner = 4096, .experts = 32, .k = 2};
    build(&plan, &q);
    struct timed_config c = {.plan = &plan, .machine = machine_default(), .launches = 1, .seed = 5};
    assert_int_equal(timed_run(&c, &even), 0);
    c.skew = 2;
    assert_int_equal(timed_run(&c, &uneven), 0);
    assert_true((double)uneven.ns > 1.2 * (double)even.ns);
    uint32_t *ids = malloc(4 * 512 * 2 * sizeof *ids);
    assert_non_null(ids);
    for (uint32_t i = 0; i < 4 * 512 * 2; i++)
        ids[i] = i % 2; /* all of them on rank 0 */
    c.ids = ids;
    assert_int_equal(timed_run(&c, &uneven), 0);
    assert_true((double)uneven.ns > 1.2 * (double)even.ns);
    free(ids);
}

static int publishes_nothing(const struct mk_plan *plan, struct mk_cta *cta,
                             const struct mk_tile *t, uint32_t first, uint32_t rows, uint32_t parts)
{
    return 0;
}

/* A warp that takes tiles from an outbox is slower while the engine beside it works. With one of
 * them instead of two, beside two of intra_comm, gemm_ar 16384,16384,2048 took 1.19 times as long
 * on 2 GPUs (tests/golden/measured_2xH200_sums.csv). */
CASE(test_one_sender)
{
    struct timed_result r;
    struct mk_plan plan;
    double took[2];
    for (uint32_t i = 0; i < 2; i++) {
        struct mk_problem q = problem(MK_OP_GEMM_AR, MK_EXEC_CUDA, 1, 2);
        q.m = q.n = 16384;
        q.k = 2048;
        q.tuning =
            (struct mk_tuning){.split = {{132, 132 * (i + 1)}, i + 1}, .pieces = 1, .pace = 1};
        build(&plan, &q);
        took[i] = run(&plan, machine_default(), 1, &r);
    }
    if (took[1] < 1.05 * took[0] || took[1] > 1.3 * took[0])
        fail_msg("two senders %.0f ns, one %.0f", took[0], took[1]);
}

/* What moe_ffn adds up for another node needs parts of all ranks of this one. None of them makes
 * its own sums before it has given those parts: else each waits for the one before, and of eight
 * ranks a node takes a third longer than of four. */
CASE(test_sums_of_a_node)
{
    struct timed_result r;
    struct mk_plan plan;
    double took[2];
    for (uint32_t i = 0; i < 2; i++) {
        struct mk_problem q = problem(MK_OP_MOE_FFN, MK_EXEC_CUDA, 2, 4 * (i + 1));
        q.moe = (struct mk_moe){512, 7168, 2048, 128 * (i + 1), 8};
        build(&plan, &q);
        took[i] = run(&plan, machine_default(), 1, &r);
    }
    if (took[1] > 1.15 * took[0])
        fail_msg("2 x 4: %.0f ns, 2 x 8: %.0f", took[0], took[1]);
}

/* A tile that nobody announces: who waits for what is said. */
CASE(test_nothing_goes_on)
{
    struct mk_problem q = problem(MK_OP_GEMM_RS, MK_EXEC_CUDA, 1, 2);
    struct sim_op op = *sim_op_of(MK_OP_GEMM_RS);
    struct timed_result r;
    struct mk_plan plan;
    op.publish = publishes_nothing;
    q.tuning.shots = 2; /* in one, the exchange announces */
    build(&plan, &q);
    struct timed_config c = {
        .plan = &plan, .machine = machine_default(), .op = &op, .launches = 1, .seed = 5};
    assert_int_equal(timed_run(&c, &r), -EDEADLK);
    assert_non_null(strstr(r.sentence, "(compute) waits for rank"));
}

/* Blocks that have sent their tokens compute as well: with many of them a launch whose products are
 * long is sooner over than where they end. */
CASE(test_who_is_through_computes)
{
    struct mk_problem q = problem(MK_OP_MOE_DISPATCH_GEMM, MK_EXEC_CUDA, 1, 2);
    struct mk_pipeline alone;
    struct timed_result r, of_alone;
    struct mk_plan plan;
    q.moe.tokens = 8192;
    q.moe.hidden = 4096;
    q.moe.inner = 2048;
    q.tuning.split.ctas[MK_COMPUTE] = 100;
    q.tuning.split.ctas[MK_INTRA_COMM] = 32;
    build(&plan, &q);
    plan_pipeline(&plan, &alone);
    alone.tickets = 0;
    struct timed_config c = {
        .plan = &plan, .machine = machine_default(), .pipeline = &alone, .launches = 1, .seed = 5};
    assert_int_equal(timed_run(&c, &of_alone), 0);
    c.pipeline = NULL;
    assert_int_equal(timed_run(&c, &r), 0);
    assert_int_equal(r.tiles, of_alone.tiles);
    if ((double)r.ns >= 0.95 * (double)of_alone.ns)
        fail_msg("%.0f ns, and %.0f where they end", (double)r.ns, (double)of_alone.ns);
}

/* How far a run is, is told in what plans say is to be done: at the end, all of it. Of attention
 * blocks of keys count whole, whatever of them is there and seen. */
CASE(test_how_far_it_is)
{
    for (int op = 0; op < MK_OPS; op++)
        for (int causal = 0; causal <= (op == MK_OP_RING_ATTENTION); causal++) {
            struct mk_problem q = problem((enum mk_op)op, MK_EXEC_CUDA, 2, 4);
            struct timed_result r;
            struct mk_plan plan;
            uint64_t done = 0, nvlink, network;
            double flop;
            q.attention.causal = causal;
            q.attention.sequence = 8 * 4096;
            q.attention.heads = 12;
            build(&plan, &q);
            plan_work(&plan, &flop, &nvlink, &network);
            struct timed_config c = {.plan = &plan,
                                     .machine = machine_default(),
                                     .launches = 2,
                                     .seed = 7,
                                     .beat = &done};
            assert_int_equal(timed_run(&c, &r), 0);
            double all = 2 * 8 * flop;
            if (fabs((double)done - all) > (op == MK_OP_RING_ATTENTION ? 0.05 : 1e-6) * all)
                fail_msg("%s%s: %llu flop done of %.0f", plan_op_name(q.op),
                         causal ? ", causal" : "", (unsigned long long)done, all);
        }
}

/* The ideal of attention is by its own engine's rate and by the clock that power leaves its
 * products, as what `bench` compares with is: cuDNN's 16.56 ms where 12288 rows a rank see 24576
 * (FIGURES.md). And on two nodes of one GPU, 50 GB/s between them, K and V come under the products.
 */
CASE(test_attention_between_nodes)
{
    struct mk_machine m;
    char error[300] = "";
    assert_int_equal(machine_read(&m, "experiments/machines/softnic", error, sizeof error), 0);
    for (int causal = 0; causal < 2; causal++)
        for (uint32_t nodes = 1; nodes < 3; nodes++) {
            struct mk_problem q = problem(MK_OP_RING_ATTENTION, MK_EXEC_CUDA, nodes, 3 - nodes);
            struct timed_result r;
            struct mk_plan plan;
            q.attention = (struct mk_attention){4, 24576, 16, 16, 128, causal, 0, 0};
            build(&plan, &q);
            double ideal = timed_ideal(&m, &plan), took = run(&plan, &m, 1, &r);
            if (fabs(timed_products(&m, &plan) / (causal ? 8.28e6 : 16.56e6) - 1) > 0.1)
                fail_msg("products alone: %.0f ns", timed_products(&m, &plan));
            /* a launch that waits somewhere draws less than its products alone: a higher clock */
            if (ideal / took > 1.03 || ideal / took < (nodes > 1 ? 0.85 : 0.95))
                fail_msg("%u nodes%s: %.0f ns, ideal %.0f, efficiency %.2f", nodes,
                         causal ? ", causal" : "", took, ideal, ideal / took);
        }
}
