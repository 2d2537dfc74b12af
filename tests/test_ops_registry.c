/* Every operator of the registry says all of itself: what a descriptor lacks would show in a
 * command's output, or as an argument of no bytes. */
#include "core/plan/gemm_tiles.h"
#include "core/ops/op.h"
#include "core/base/random.h"
#include "core/roles/moe_dispatch_plan.h"
#include "core/plan/tuning.h"
#include "experiments/job/op.h"
#include "sim/op.h"
#include "sim/world.h"
#include "tests/helpers/test.h"

static struct mk_problem default_problem(enum mk_op op, enum op_size size, uint32_t nodes,
                                         uint32_t gpus)
{
    struct mk_problem q = {.op = op, .topo = {nodes, gpus, 0}};
    uint64_t numbers[OP_DIMENSIONS] = {0};
    op_of(op)->choose_shape(size, mk_world(&q.topo), numbers);
    op_set_numbers(&q, numbers);
    return q;
}

/* Each has what reports and commands ask for, and the number of letters in its text is that of
 * its dimensions. */
CASE(a_descriptor_is_whole)
{
    for (int i = 0; i < MK_OPS; i++) {
        const struct op_descriptor *op = op_of((enum mk_op)i);
        uint32_t letters = 1;
        assert_true(op->help && op->shape && op->build && op->tables && op->describe_chunk &&
                    op->work);
        assert_true(op->knobs & OP_ROLES);
        for (const char *c = op->shape->letters; *c; c++)
            letters += *c == ',';
        assert_int_equal(letters, op_dimensions(op->shape));
        assert_int_equal(plan_op_by_name(plan_op_name((enum mk_op)i)), i);
        assert_non_null(sim_op_of((enum mk_op)i));
    }
    assert_null(op_of(MK_OPS));
    assert_null(sim_op_of(MK_OPS));
}

/* What `sim --explore --exec emulated --random` draws is a plan that a kernel is built for. */
CASE(drawn_cases_can_be_emulated)
{
    static struct mk_plan plan;
    for (int i = 0; i < MK_OPS; i++)
        for (uint64_t seed = 1; seed <= 200; seed++) {
            struct sim_world_config c = {.problem =
                                             default_problem((enum mk_op)i, OP_SIZE_EXPLORE, 2, 2),
                                         .launches = 3,
                                         .seed = seed,
                                         .ring_capacity = 8,
                                         .in_flight = 4,
                                         .fabric_depth = 8};
            char error[512];
            sim_world_draw(&c);
            sim_world_emulate(&c, 1);
            if (plan_build(&plan, &c.problem, 0, 0, error, sizeof error))
                fail_msg("%s, seed %u: %s", plan_op_name((enum mk_op)i), (unsigned)seed, error);
        }
}

/* Where the bench cannot launch a collective beside a GEMM, an operator of the two is timed alone.
 */
CASE(what_is_compared)
{
    assert_false(run_is_compared(RUN_GEMM, RUN_ALL_TO_ALL));
    assert_false(run_is_compared(RUN_GEMM, RUN_NO_COLLECTIVE));
    for (int i = 0; i < MK_OPS; i++)
        assert_int_equal(run_op_is_compared((enum mk_op)i),
                         run_op_of((enum mk_op)i)->collective != RUN_NO_COLLECTIVE);
}

/* Runs of flags lie one behind the other and cover all that the plan takes; each has a name of its
 * own, and each of its flags a meaning. */
static void flags_have_names(const struct mk_plan *p)
{
    struct op_tables t;
    uint32_t next = p->flag_base;
    plan_tables(p, &t);
    assert_true(t.flag_count >= 1);
    for (uint32_t i = 0; i < t.flag_count && p->flags; i++) {
        assert_int_equal(*t.flags[i].first, next);
        next += (uint32_t)plan_flag_count(&t.flags[i]);
        for (uint32_t j = 0; j < i; j++)
            assert_string_not_equal(t.flags[i].name, t.flags[j].name);
        for (uint32_t flag = *t.flags[i].first; flag < next; flag++) {
            struct mk_flag_meaning m;
            plan_describe_flag(p, flag, &m);
            assert_null(strstr(m.text, "does not have"));
            assert_null(strchr(m.text, '%'));
            assert_true(m.producer < mk_world(&p->problem.topo));
        }
    }
    assert_int_equal(next - p->flag_base, p->flags);
}

/* Buffers lie one behind the other, each copy where no other is, and are all that the plan takes of
 * the heap. */
static void buffers_lie_apart(const struct mk_plan *p)
{
    struct op_tables t;
    uint64_t next = p->heap_base;
    plan_tables(p, &t);
    for (uint32_t i = 0; i < t.buffer_count; i++)
        for (uint32_t copy = 0; copy < t.buffers[i].copies; copy++) {
            assert_int_equal(t.buffers[i].at[copy], next);
            next += mk_round_up(t.buffers[i].count * t.buffers[i].each, MK_HEAP_UNIT);
        }
    assert_int_equal(next - p->heap_base, p->heap_bytes);
}

/* The defaults make a plan on every cluster; a role has CTAs in it where the descriptor says so;
 * every formula of an argument counts something, and at least one argument is an output. */
CASE(defaults_make_a_plan)
{
    static const uint32_t clusters[][2] = {{1, 1}, {1, 3}, {2, 1}, {2, 2}, {3, 2}};
    for (int i = 0; i < MK_OPS; i++)
        for (int size = OP_SIZE_HOST; size <= OP_SIZE_EXPLORE; size++)
            for (size_t c = 0; c < sizeof clusters / sizeof *clusters; c++) {
                struct mk_problem q = default_problem((enum mk_op)i, (enum op_size)size,
                                                      clusters[c][0], clusters[c][1]);
                struct mk_plan p;
                char error[512] = "";
                uint64_t bytes[MK_SPACES - 1];
                q.exec = size == OP_SIZE_GPU ? MK_EXEC_CUDA : MK_EXEC_HOST;
                q.sms = q.exec == MK_EXEC_CUDA ? 132 : 0;
                if (plan_build(&p, &q, 5, 0, error, sizeof error))
                    fail_msg("%s: %s", plan_op_name((enum mk_op)i), error);
                for (int role = 0; role < MK_ROLES; role++)
                    assert_int_equal(p.problem.tuning.split.ctas[role] > 0,
                                     op_needs(q.op, &q.topo, (enum mk_role)role));
                flags_have_names(&p);
                buffers_lie_apart(&p);
                assert_true(op_extents(&p.problem, bytes));
                for (uint32_t a = 0; a < MK_SPACES - 1; a++)
                    assert_int_equal(bytes[a] > 0, a < op_arguments(&p.problem));
            }
}

/* ---- every rank makes the same plan ---- */

static uint64_t seed;

static uint32_t below(uint32_t limit)
{
    return (uint32_t)(mk_random(&seed) % limit);
}

/* The default numbers, some of them cut to a part or doubled; and whatever the operator can be
 * told. Many are refused. */
static struct mk_problem drawn_problem(enum mk_op op)
{
    static const uint64_t parts[] = {1, 1, 2, 4, 8, 16, 64};
    const struct op_descriptor *of = op_of(op);
    enum op_size size = below(3) ? OP_SIZE_GPU : OP_SIZE_HOST;
    struct mk_problem q = default_problem(op, size, 1 + below(3), 1 + below(4));
    uint64_t numbers[OP_DIMENSIONS];
    for (uint32_t i = 0, count = op_numbers(&q, numbers); i < count; i++) {
        numbers[i] = numbers[i] / parts[below(7)] * (1 + below(2));
        numbers[i] += !numbers[i];
    }
    op_set_numbers(&q, numbers);
    q.exec = size == OP_SIZE_GPU ? MK_EXEC_CUDA : MK_EXEC_HOST;
    q.sms = q.exec == MK_EXEC_CUDA ? (below(2) ? 132 : 78) : 0;
    q.attention.causal = of->causal ? (int)below(2) : 0;
    q.b_transposed = of->b_layout ? (int)below(2) : 0;
    q.deterministic = of->sums ? (int)below(2) : 0;
    q.a_in_heap = of->a_in_heap ? (int)below(2) : 0;
    q.c_in_heap = of->c_in_heap ? (int)below(2) : 0;
    return q;
}

static int is_topo(const uint32_t *word, const struct mk_topo *t)
{
    return word[0] == t->nodes && word[1] == t->gpus && word[2] == t->rank;
}

/* Of MoE's plans, which begin with a struct moe_dispatch_plan, moe_dispatch's with two: what they know of
 * the rank's place. */
static int is_place(size_t at, const struct mk_problem *q, uint32_t word)
{
    const size_t known = offsetof(struct moe_dispatch_plan, route.known) / 4,
                 words = sizeof(struct moe_dispatch_plan) / 4,
                 i = q->op == MK_OP_MOE_DISPATCH && at >= words ? at - words : at;
    return op_has_limit(q->op) && ((i == known + offsetof(struct mk_route_known, node) / 4 &&
                                    word == q->topo.rank / q->topo.gpus) ||
                                   (i == known + offsetof(struct mk_route_known, local) / 4 &&
                                    word == q->topo.rank % q->topo.gpus));
}

/* Word by word, in the operator's own part, too: only the rank of a struct mk_topo may differ, and what
 * MoE's plans know of it. */
static void is_the_same_plan(const struct mk_plan *first, const struct mk_plan *p)
{
    const char *name = plan_op_name(p->problem.op);
    struct mk_plan a = *first;
    uint32_t own[2][MK_PLAN_OWN / 4];
    memcpy(own[0], first->own, sizeof first->own);
    memcpy(own[1], p->own, sizeof p->own);
    for (size_t i = 0; i < MK_PLAN_OWN / 4; i++)
        if (own[0][i] != own[1][i] && !is_place(i, &p->problem, own[1][i]) &&
            !(i >= 2 && is_topo(&own[0][i - 2], &first->problem.topo) &&
              is_topo(&own[1][i - 2], &p->problem.topo)))
            fail_msg("%s: word %zu of its own plan is %u on rank 0 and %u on rank %u of %ux%u",
                     name, i, own[0][i], own[1][i], p->problem.topo.rank, p->problem.topo.nodes,
                     p->problem.topo.gpus);
    memcpy(a.own, p->own, sizeof a.own);
    a.problem.topo.rank = p->problem.topo.rank;
    if (memcmp(&a, p, sizeof a) || plan_layout(&a) != plan_layout(p))
        fail_msg("%s: heap bytes %llu, flags %u, tiles %u on rank 0 and %llu, %u, %u on rank %u of "
                 "%ux%u",
                 name, (unsigned long long)first->heap_bytes, first->flags, first->tiles,
                 (unsigned long long)p->heap_bytes, p->flags, p->tiles, p->problem.topo.rank,
                 p->problem.topo.nodes, p->problem.topo.gpus);
}

/* All ranks of it; 0: it was refused, on all of them. And a plan that is asked for as it was made
 * comes out the same. */
static int all_ranks_agree(struct mk_problem q, int formula_alone)
{
    static const struct tuning_table none;
    char error[512];
    struct mk_plan first, p;
    for (uint32_t rank = 0; rank < mk_world(&q.topo); rank++) {
        q.topo.rank = rank;
        int result = formula_alone
                         ? plan_build(&p, &q, 7, 640, error, sizeof error)
                         : tuning_build(&p, &none, &q, "any", 7, 640, error, sizeof error);
        if (!rank && result)
            return 0;
        if (result)
            fail_msg("%s: rank 0 has a plan, and rank %u none: %s", plan_op_name(q.op), rank,
                     error);
        if (!rank)
            first = p;
        is_the_same_plan(&first, &p);
    }
    struct mk_plan again;
    assert_int_equal(plan_build(&again, &p.problem, 7, 640, error, sizeof error), 0);
    assert_memory_equal(&again, &p, sizeof p);
    return 1;
}

/* Peers write by their own plan into each other's heaps. */
CASE(every_rank_makes_the_same_plan)
{
    for (int op = 0; op < MK_OPS; op++) {
        uint32_t made = 0, chosen = 0;
        seed = 20261123 + (uint64_t)op;
        for (int i = 0; i < 300; i++)
            made += (uint32_t)all_ranks_agree(drawn_problem((enum mk_op)op), 1);
        for (int i = 0; i < 150 && chosen < 12; i++)
            chosen += (uint32_t)all_ranks_agree(drawn_problem((enum mk_op)op), 0);
        if (made < 40 || chosen < 12)
            fail_msg("%s: %u and %u plans", plan_op_name((enum mk_op)op), made, chosen);
    }
    /* its mask gives ranks other tiles to wait for, and so other plans seemed best */
    struct mk_problem q = {.op = MK_OP_RING_ATTENTION, .exec = MK_EXEC_CUDA, .sms = 132};
    q.topo = (struct mk_topo){1, 2, 0};
    q.attention = (struct mk_attention){1, 2048, 32, 8, 128, .causal = 1};
    assert_int_equal(all_ranks_agree(q, 0), 1);
}

/* ---- a limit of SMs ---- */

/* With `most` of 132 SMs the plan is that of a GPU which has so many: no more blocks, and the
 * choices that suit them. */
CASE(a_limit_of_sms_is_kept)
{
    static const struct tuning_table none;
    for (int op = 0; op < MK_OPS; op++)
        for (uint32_t nodes = 1; nodes <= 2; nodes++)
            for (uint32_t most = 12; most < 132; most += 74) {
                struct mk_problem q = default_problem((enum mk_op)op, OP_SIZE_GPU, nodes, 2);
                struct mk_plan limited, smaller;
                char error[512] = "";
                q.exec = MK_EXEC_CUDA;
                q.sms = 132;
                q.sms_most = most;
                if (tuning_build(&limited, &none, &q, "any", 0, 0, error, sizeof error))
                    fail_msg("%s: %s", plan_op_name(q.op), error);
                assert_in_range(mk_total_blocks(&limited.problem.tuning.split), 1, most);
                q.sms = most;
                q.sms_most = 0;
                assert_int_equal(tuning_build(&smaller, &none, &q, "any", 0, 0, error, 512), 0);
                assert_memory_equal(&limited.problem.tuning, &smaller.problem.tuning,
                                    sizeof limited.problem.tuning);
                q.sms = 132;
                q.sms_most = most;
                q.tuning = limited.problem.tuning;
                q.sms_most -= mk_total_blocks(&q.tuning.split) == most ? 1 : 0;
                if (q.sms_most < most) {
                    assert_int_equal(plan_build(&limited, &q, 0, 0, error, sizeof error), -EINVAL);
                    assert_non_null(strstr(error, "leave to the plan, "));
                }
                q.exec = MK_EXEC_HOST;
                q.sms = 0;
                q.tuning = (struct mk_tuning){.tile_m = 0};
                assert_int_equal(plan_build(&limited, &q, 0, 0, error, sizeof error), -EINVAL);
                assert_non_null(strstr(error, "CTAs on the host take no SMs"));
            }
}

static void its_tile_is_built(const struct mk_problem *q)
{
    struct mk_gemm_tile tile;
    for (uint32_t i = 0; op_of(q->op)->knobs & OP_TILE; i++) {
        assert_true(op_gpu_tile(q, i, &tile)); /* none of them has its rows */
        if (tile.tile_m == q->tuning.tile_m && tile.tile_n == q->tuning.tile_n)
            break;
    }
}

/* Engine mma: a plan with tiles and free warps of its own, or a sentence that says who has it; on
 * the host there is no engine. */
CASE(an_engine_is_taken_or_refused)
{
    for (int op = 0; op < MK_OPS; op++)
        for (uint32_t nodes = 1; nodes <= 2; nodes++) {
            struct mk_problem q = default_problem((enum mk_op)op, OP_SIZE_GPU, nodes, 2);
            struct mk_plan p;
            char error[512] = "";
            q.exec = MK_EXEC_CUDA;
            q.sms = 132;
            assert_int_equal(plan_build(&p, &q, 0, 0, error, sizeof error), 0);
            assert_int_equal(p.problem.engine, MK_ENGINE_WGMMA);
            q.engine = MK_ENGINE_MMA;
            int result = plan_build(&p, &q, 0, 0, error, sizeof error);
            assert_int_equal(result, op_on_mma(q.op) ? 0 : -EINVAL);
            if (result)
                assert_non_null(strstr(error, "has no kernel on it yet"));
            if (!result)
                its_tile_is_built(&p.problem);
            if (!result)
                assert_in_range(p.problem.tuning.split.intra_comm_warps, 0, MK_MMA_AUXILIARY_WARPS);
            q.fp8 = 1;
            q.b_transposed = op_of(q.op)->b_layout;
            result = plan_build(&p, &q, 0, 0, error, sizeof error);
            assert_int_equal(result, op_has_fp8(q.op) ? 0 : -EINVAL);
            if (!result)
                its_tile_is_built(&p.problem);
            q.fp8 = q.b_transposed = 0;
            q.exec = MK_EXEC_HOST;
            q.sms = 0;
            assert_int_equal(plan_build(&p, &q, 0, 0, error, sizeof error), -EINVAL);
            assert_non_null(strstr(error, "CTAs on the host have no engine"));
        }
    assert_true(op_on_mma(MK_OP_AG_GEMM));
}

/* A tuned line that was measured on all SMs gives way where it does not fit. */
CASE(tuned_lines_give_way)
{
    struct tuning_table t = {.entries = NULL};
    struct mk_problem q = {.op = MK_OP_AG_GEMM, .exec = MK_EXEC_CUDA, .sms = 132, .sms_most = 64};
    struct mk_plan p;
    char error[512] = "";
    q.topo = (struct mk_topo){1, 2, 0};
    q.m = q.n = q.k = 4096;
    assert_int_equal(
        tuning_parse(&t, "ag_gemm 4096,4096,4096 kn fast 1x2 any roles=compute=120,intra_comm=12\n",
                     "lines", 0, error, sizeof error),
        0);
    assert_int_equal(tuning_build(&p, &t, &q, "any", 0, 0, error, sizeof error), 0);
    assert_in_range(mk_total_blocks(&p.problem.tuning.split), 1, 64);
    q.sms_most = 0;
    assert_int_equal(tuning_build(&p, &t, &q, "any", 0, 0, error, sizeof error), 0);
    assert_int_equal(mk_total_blocks(&p.problem.tuning.split), 132);
    tuning_close(&t);
}

/* Formulas count what the operators' own words say, computed by hand. */
CASE(formulas_count)
{
    uint64_t b[MK_SPACES - 1];
    struct mk_problem q = {
        .op = (enum mk_op)plan_op_by_name("gemm_rs"), .topo = {2, 3, 0}, .m = 60, .n = 16, .k = 24};
    assert_int_equal(op_extents(&q, b), 1u << 2);
    assert_int_equal(b[0], 60 * 24 * 2);
    assert_int_equal(b[1], 24 * 16 * 2);
    assert_int_equal(b[2], 10 * 16 * 2);
    assert_int_equal(b[3] + b[4] + b[5], 0);
    q.op = (enum mk_op)plan_op_by_name("ring_attention");
    q.attention = (struct mk_attention){
        .batch = 2, .sequence = 36, .heads = 6, .kv_heads = 3, .head_dim = 64};
    assert_int_equal(op_extents(&q, b), 1u << 3 | 1u << 4);
    assert_int_equal(b[0], 2 * 6 * 6 * 64 * 2);
    assert_int_equal(b[1], 2 * 6 * 3 * 64 * 2);
    assert_int_equal(b[4], 2 * 6 * 6 * 4);
    q.op = (enum mk_op)plan_op_by_name("moe_ffn");
    q.moe = (struct mk_moe){.tokens = 5, .hidden = 16, .inner = 8, .experts = 12, .k = 3};
    assert_int_equal(op_extents(&q, b), 1u << 5);
    assert_int_equal(b[1], 2 * 16 * 2 * 8 * 2);
    assert_int_equal(b[3], 5 * 3 * 4);
    q.op = (enum mk_op)plan_op_by_name("moe_dispatch_gemm");
    q.m = 96; /* what the plan makes room for */
    op_extents(&q, b);
    assert_int_equal(b[3], 96 * 8 * 2);
    assert_int_equal(b[4], 2 * 2 * 4);
}

/* What a flag announces, in the explorer's plan on 3 x 2 ranks, rank 3: a text of each kind of
 * word, by hand. */
CASE(a_flag_says_what_it_announces)
{
    static const struct {
        const char *op, *name;
        uint32_t number;
        struct mk_flag_meaning says;
    } flags[] = {
        {"ring_attention", "arrival", 5, {"chunk 1 (head 0 of batch 0) of rank 1's V", 1, 1}},
        {"gemm_rs", "partial", 4, {"rank 2's part of chunk 0 of rank 5's rows", 2, 0}},
        {"gemm_rs", "sum", 2, {"node 2's sum of chunk 0 of rank 3's rows", 5, 0}},
        {"moe_ffn", "landed", 5, {"chunk 0 of rank 5's tokens, with experts here", 3, 0}},
        {"moe_ffn", "made", 1, {"rows 32 to 63 of its results", 3, UINT32_MAX}},
        {"moe_ffn", "back", 8, {"rank 2's sums for chunk 0 of rank 5's tokens", 2, 1}},
    };
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        struct mk_problem q =
            default_problem((enum mk_op)plan_op_by_name(flags[i].op), OP_SIZE_EXPLORE, 3, 2);
        struct mk_flag_meaning m = {.text = ""};
        struct mk_plan p;
        struct op_tables t;
        char error[512];
        q.topo.rank = 3;
        assert_int_equal(plan_build(&p, &q, 5, 0, error, sizeof error), 0);
        plan_tables(&p, &t);
        for (uint32_t f = 0; f < t.flag_count; f++)
            if (!strcmp(t.flags[f].name, flags[i].name))
                plan_describe_flag(&p, *t.flags[f].first + flags[i].number, &m);
        assert_string_equal(m.text, flags[i].says.text);
        assert_int_equal(m.producer, flags[i].says.producer);
        assert_int_equal(m.chunk, flags[i].says.chunk);
    }
}

CASE(lists_are_sentences)
{
    char text[OP_LIST_TEXT], small[8];
    assert_string_equal(op_list(text, sizeof text, op_is_tuned, ", ", " or "),
                        "ag_gemm, gemm_ar, gemm_rs, moe_dispatch_gemm, moe_ffn or "
                        "ring_attention");
    assert_true(strstr(op_list(text, sizeof text, NULL, " ", " "), "ring_attention") != NULL);
    assert_string_equal(op_list(small, sizeof small, NULL, " ", " "), "ag_gemm");
}
