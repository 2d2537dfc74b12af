/* The MoE feed-forward layer is right in every order of its steps, however tokens are routed: exact
 * numbers bit by bit, real ones within their bounds and with the same bits every time, added in
 * rank order; each link carries its minimum; what it cannot do it refuses with the nearest thing
 * that works. */
#include "tests/helpers/moe_fp8.h"
#include "tests/helpers/moe_said.h"
#include "tests/helpers/ops.h"
#include "experiments/ops/check_moe_ffn.h"
#include "core/roles/moe_ffn.h"
#include "sim/cta.h"
#include "sim/ops/exact_moe.h"
#include "sim/route.h"
#include "core/plan/plan_fields.h"

CASE(test_orders)
{
    assert_true(ops_explore(MK_OP_MOE_FFN, 32) >= 768 / OPS_PART);
}

/* ---- FP8 ---- */

/* H and I with blocks of scales that are short, whole and several. */
static struct sim_world_config fp8_config(size_t form, uint64_t seed)
{
    static const uint64_t shapes[][2] = {{48, 16}, {144, 208}, {272, 48}, {128, 256}, {656, 144}};
    const uint64_t *s = shapes[seed % 5];
    struct sim_world_config c = ops_varied(MK_OP_MOE_FFN, form, seed % OPS_SHAPES, seed);
    c.problem.moe.hidden = s[0];
    c.problem.moe.inner = s[1];
    c.problem.b_transposed = c.problem.fp8 = 1;
    c.problem.tuning.tile_n = seed % 3 ? 256 : 512;
    return c;
}

/* Each activation is quantised by its own row's and columns' largest, and each sum is made of codes
 * and scales of this launch. */
CASE(test_fp8_orders)
{
    for (size_t form = 0; form < OPS_FORMS; form++)
        for (uint64_t seed = 0; seed < 40 / OPS_PART; seed++) {
            struct sim_world_config c = fp8_config(form, seed);
            world_right(&c);
        }
}

/* Sums that travel back as e4m3 are codes and scales of this launch, of whole blocks and of short
 * ones, however their bytes land. */
CASE(test_back_orders)
{
    for (size_t form = 0; form < OPS_FORMS; form++)
        for (uint64_t seed = 0; seed < 40 / OPS_PART; seed++) {
            struct sim_world_config c =
                seed & 1 ? fp8_config(form, seed)
                         : ops_varied(MK_OP_MOE_FFN, form, seed % OPS_SHAPES, seed);
            c.problem.back_fp8 = 1;
            c.problem.deterministic = 0;
            if (seed % 4 == 2)
                c.problem.moe.hidden = 64 + seed * 8;
            world_right(&c);
        }
}

/* What is no number, rows of zeros, scales far from 1. */
CASE(test_fp8_extremes)
{
    for (size_t form = 0; form < OPS_FORMS; form++)
        for (uint64_t seed = 0; seed < 8; seed++) {
            struct sim_world_config c = fp8_config(form, seed);
            struct sim_op op;
            c.problem.moe.tokens = 9;
            plan_field_set(plan_field_named("tokens"), &c.problem,
                           0); /* the first two are looked at */
            c.op = moe_fp8_op(&op, seed % 4 > 1);
            world_right(&c);
        }
}

/* ---- real numbers, and tokens that name an expert twice, none, or what is no expert ---- */

static struct check_result result_of_run;
static uint64_t bits_of_run;

static void real_ids(const struct mk_plan *plan, uint64_t launch, uint32_t rank, uint32_t *ids)
{
    const struct mk_moe *m = &plan->problem.moe;
    struct sim_random r = {sim_mix(4711 + launch) ^ rank};
    for (uint64_t i = 0; i < m->tokens * m->k; i++)
        ids[i] = sim_random_below(&r, 8)
                     ? sim_random_below(&r, (uint32_t)m->experts)
                     : (uint32_t)m->experts + sim_random_below(&r, 2) * 12345678;
}

static void real_expert(const struct mk_plan *plan, uint64_t launch, uint32_t expert, uint16_t *b1,
                        uint16_t *b2)
{
    const struct mk_moe *m = &plan->problem.moe;
    sim_fill(b1, 2 * m->hidden * m->inner, 4711, expert, launch, 1);
    sim_fill(b2, m->hidden * m->inner, 4711, expert, launch, 4);
}

static void real_fill(const struct sim_launch *l)
{
    const struct mk_moe *m = &l->plan->problem.moe;
    uint32_t rank = l->plan->problem.topo.rank,
             count = (uint32_t)m->experts / mk_world(&l->plan->problem.topo);
    float *weights = l->arguments[3];
    sim_fill(l->arguments[0], m->tokens * m->hidden, 4711, rank, l->launch, 0);
    for (uint32_t i = 0; i < count; i++)
        real_expert(l->plan, l->launch, rank * count + i,
                    (uint16_t *)l->arguments[1] + 2 * i * m->hidden * m->inner,
                    (uint16_t *)l->arguments[4] + i * m->hidden * m->inner);
    real_ids(l->plan, l->launch, rank, l->arguments[2]);
    for (uint64_t i = 0; i < m->tokens * m->k; i++)
        weights[i] =
            (float)(sim_mix(l->launch << 32 ^ (uint64_t)rank << 24 ^ i) >> 40) * 0x1p-24f - 0.25f;
}

struct experts {
    const struct mk_plan *plan;
    uint64_t launch;
};

static void load_expert(void *context, uint32_t expert, uint16_t *b1, uint16_t *b2)
{
    const struct experts *e = context;
    real_expert(e->plan, e->launch, expert, b1, b2);
}

static int real_verify(const struct sim_launch *l)
{
    const struct mk_problem *q = &l->plan->problem;
    struct experts all = {l->plan, l->launch};
    const uint16_t *y = l->arguments[5];
    const struct check_moe_ffn c = {.problem = q->moe,
                                    .b_transposed = q->b_transposed,
                                    .deterministic = q->deterministic,
                                    .back_fp8 = q->back_fp8,
                                    .topo = q->topo,
                                    .x = l->arguments[0],
                                    .ids = l->arguments[2],
                                    .weights = l->arguments[3],
                                    .y = y,
                                    .expert = load_expert,
                                    .context = &all};
    uint64_t hash = l->launch << 8 ^ q->topo.rank;
    for (uint64_t i = 0; i < q->moe.tokens * q->moe.hidden; i++)
        hash = sim_mix(hash ^ y[i]);
    bits_of_run += hash;
    snprintf(l->text, l->size, "no memory");
    return check_moe_ffn(&c, NULL, &result_of_run) != 0;
}

static struct sim_world_config real_config(const uint32_t form[2], int deterministic)
{
    static struct sim_op real;
    struct sim_world_config c = ops_config(MK_OP_MOE_FFN, form, ops_shapes[0]);
    real = sim_op_moe_ffn;
    real.fill = real_fill;
    real.verify = real_verify;
    c.op = &real;
    c.launches = 2;
    c.problem.deterministic = deterministic;
    c.problem.moe = (struct mk_moe){40, 192, 104, 12, 8};
    memset(&result_of_run, 0, sizeof result_of_run);
    bits_of_run = 0;
    return c;
}

static void run_real(const struct sim_world_config *c)
{
    world_right(c);
    assert_int_equal(result_of_run.elements, c->launches * mk_world(&c->problem.topo) *
                                                 c->problem.moe.tokens * c->problem.moe.hidden);
}

CASE(test_errors)
{
    for (size_t form = 0; form < OPS_FORMS; form++)
        for (int deterministic = 0; deterministic < 2; deterministic++) {
            struct sim_world_config c = real_config(ops_forms[form], deterministic);
            run_real(&c);
            print_message(
                "moe_ffn %u x %u %s: relative error %.2e, worst element at %.2f of its bound\n",
                ops_forms[form][0], ops_forms[form][1], deterministic ? "deterministic" : "fast",
                check_error(&result_of_run), result_of_run.worst);
            assert_int_equal(result_of_run.wrong, 0);
            /* Two roundings to bf16, in fast mode up to five, of 1.66e-3 each: less would be no
             * measurement. */
            assert_true(check_error(&result_of_run) > (deterministic ? 2.2e-3 : 2.6e-3));
            assert_true(check_error(&result_of_run) <= (deterministic ? 2.5e-3 : 3.7e-3));
        }
}

/* What back=fp8 costs: a code is off by 2.6e-2 in the norm, and a sum by that where all of it has
 * crossed a link, twice where it has crossed two; of what has not, by nothing. */
CASE(test_errors_of_back)
{
    for (size_t form = 0; form < OPS_FORMS; form++) {
        struct sim_world_config c = real_config(ops_forms[form], 0);
        const double links = (c.problem.topo.gpus > 1) + (c.problem.topo.nodes > 1);
        c.problem.back_fp8 = 1;
        run_real(&c);
        print_message("moe_ffn %u x %u back=fp8: relative error %.2e of %.2e, worst element at "
                      "%.2f of its bound\n",
                      ops_forms[form][0], ops_forms[form][1], check_error(&result_of_run),
                      check_bound(&result_of_run), result_of_run.worst);
        assert_int_equal(result_of_run.wrong, 0);
        assert_true(check_error(&result_of_run) <= check_bound(&result_of_run));
        assert_true(links > 0 ? check_error(&result_of_run) > 1.2e-2 &&
                                    check_error(&result_of_run) <= 2.7e-2 * sqrt(links)
                              : check_error(&result_of_run) <= 3.7e-3);
    }
}

CASE(test_bits)
{
    static const uint32_t form[2] = {3, 2};
    for (int deterministic = 0; deterministic < 2; deterministic++) {
        uint64_t first = 0;
        for (uint64_t seed = 0; seed < 8; seed++) {
            struct sim_world_config c = real_config(form, deterministic);
            c.seed = seed * 97;
            sim_world_vary(&c);
            c.problem.deterministic = deterministic;
            plan_field_set(plan_field_named("tokens"), &c.problem, 0);
            c.problem.moe = (struct mk_moe){16, 64, 40, 12, 8};
            c.problem.tuning.tile_m = 16; /* what a tile's own sums depend on */
            run_real(&c);
            if (!seed)
                first = bits_of_run;
            assert_true(bits_of_run == first);
        }
    }
}

/* ---- a CTA of one rank, its tables made by hand ---- */

struct lone {
    struct mk_plan plan;
    struct sim_rank rank;
    struct sim_cta cta;
    uint8_t *heap;
};

static void lone_open(struct lone *l, struct mk_problem q)
{
    char error[300];
    memset(l, 0, sizeof *l);
    q.op = MK_OP_MOE_FFN;
    assert_int_equal(plan_build(&l->plan, &q, 0, 0, error, sizeof error), 0);
    l->heap = calloc(1, l->plan.heap_bytes);
    l->rank.plan = &l->plan;
    l->rank.spaces[MK_SPACE_HEAP] = l->heap;
    l->cta.rank = &l->rank;
    l->cta.cta.epoch = 1;
}

static uint32_t *lone_words(const struct lone *l, uint64_t offset)
{
    return (uint32_t *)(void *)(l->heap + offset);
}

static uint8_t *lone_heap_of(void *heaps, uint32_t rank)
{
    return ((uint8_t **)heaps)[rank];
}

/* Ids of all ranks: of a token anything from none to k experts, of some experts most, of some none.
 * Then the tables. */
static void lone_route(struct lone *l, struct sim_random *r)
{
    const struct moe_dispatch_plan *d = &moe_ffn_plan_of(&l->plan)->dispatch;
    uint32_t used = 1 + sim_random_below(r, d->experts), none = sim_random_below(r, 4);
    const uint32_t own = d->topo.rank, world = mk_world(&d->topo);
    struct mk_route route = moe_route(d, l->cta.cta.epoch);
    uint32_t *ids = malloc(d->tokens * d->k * sizeof *ids);
    uint8_t *heaps[16];
    route.part = 0;
    route.parts = 1;
    for (uint32_t rank = 0; rank < world; rank++)
        heaps[rank] = rank == own ? l->heap : calloc(1, l->plan.heap_bytes);
    for (route.step = MK_ROUTE_PLACE; route.step <= MK_ROUTE_LAY_OUT; route.step++) {
        for (uint32_t rank = 0; rank < world; rank++) {
            for (uint32_t i = 0; route.step == MK_ROUTE_PLACE && i < d->tokens * d->k; i++)
                ids[i] = sim_random_below(r, 4) < none ? UINT32_MAX : sim_random_below(r, used);
            route.topo.rank = rank;
            route_make(&route, heaps[rank], ids, NULL, heaps[rank]);
        }
        for (route.topo.rank = 0; route.topo.rank < world; route.topo.rank++)
            route_hand_over(&route, lone_heap_of, heaps);
    }
    for (uint32_t rank = 0; rank < world; rank++)
        if (rank != own)
            free(heaps[rank]);
    free(ids);
}

/* However tokens are routed: every tile of this rank's experts once, down after all up of its rows;
 * and up is never more than two groups of rows of tiles ahead, so that no stage is a barrier. */
CASE(test_tiles)
{
    uint32_t apart = 0;
    for (uint64_t seed = 0; seed < 200; seed++) {
        struct sim_random r = {sim_mix(seed)};
        struct lone l;
        uint32_t nodes = 1 + seed % 3, ranks = 2 * nodes, count = seed % 5 ? 24 / ranks : 1;
        lone_open(&l, (struct mk_problem){.topo = {nodes, 2, sim_random_below(&r, ranks)},
                                          .moe = {seed % 4 ? 64 : 20, 128,
                                                  8 * (1 + sim_random_below(&r, 20)), ranks * count,
                                                  count > 1 ? 8 : 2},
                                          .tuning = {.tile_m = 8, .tile_n = 32}});
        const struct moe_ffn_plan *p = moe_ffn_plan_of(&l.plan);
        const struct moe_dispatch_plan *d = &p->dispatch;
        apart += d->route.apart;
        lone_route(&l, &r);
        const uint32_t *first = lone_words(&l, d->route.first),
                       *rows = lone_words(&l, d->route.rows);
        uint32_t expected = 0, tiles = 0;
        uint8_t *seen = calloc(l.plan.tiles, 1);
        uint32_t *ups = calloc(d->row_tiles, sizeof *ups), ahead = 0;
        for (uint32_t i = 0; i < count; i++)
            expected += (uint32_t)mk_ceil_div(rows[i], 8) * (p->up_tiles + p->down_tiles);
        for (uint32_t t = 0; t < l.plan.tiles; t++) {
            struct mk_tile tile, described;
            moe_ffn_tile(p, &l.cta.cta, t, &tile);
            assert_int_equal(!tile.rows, t >= expected);
            if (!tile.rows)
                continue;
            tiles++;
            assert_true(tile.id < l.plan.tiles && !seen[tile.id]++);
            assert_true(
                tile.row >= first[tile.slab] &&
                tile.row + tile.rows <= first[tile.slab] + rows[tile.slab] &&
                (tile.rows == 8 || tile.row + tile.rows == first[tile.slab] + rows[tile.slab]));
            plan_describe_tile(&l.plan, tile.id, &described);
            assert_true(described.stage == tile.stage && described.row == tile.row &&
                        described.cols == tile.cols &&
                        described.col == tile.col + (tile.stage == MOE_FFN_UP ? 0 : p->inner));
            if (tile.stage == MOE_FFN_UP) {
                ahead += !ups[tile.row / 8]++;
                assert_true(ahead <= 2 * d->route.group_rows);
            } else {
                assert_int_equal(ups[tile.row / 8], p->up_tiles);
                ahead -= tile.col == 0;
            }
        }
        assert_int_equal(tiles, expected);
        assert_int_equal(ahead, 0);
        free(ups);
        free(seen);
        free(l.heap);
    }
    assert_true(apart > 0 && apart < 200); /* rows of a rank's own tokens apart, and not */
}

/* A token's rows are added in the order of their experts, those of one expert in the order of
 * places, each by its weight; what other ranks, and nodes, have added once each, where their
 * experts would be. */
CASE(test_order_of_a_sum)
{
    static const uint32_t named[8] = {7, 12, 4, 99, 6,
                                      /* experts 4 to 7 are on this node, 6 and 7 on this rank */
                                      4, 0, 7};
    static const uint32_t places[3] = {4, 0, 7};
    for (enum mk_reach reach = MK_REACH_RANK; reach <= MK_REACH_ALL; reach++) {
        struct lone l;
        lone_open(&l, (struct mk_problem){.topo = {3, 2, 3}, .moe = {16, 64, 8, 12, 8}});
        const struct moe_ffn_plan *p = moe_ffn_plan_of(&l.plan);
        const struct moe_dispatch_plan *d = &p->dispatch;
        const uint32_t from = reach == MK_REACH_ALL ? 3 : 5, token = 9; /* 5: of this rail */
        /* 16 tokens that all have experts here: each lies at its number's place in its list */
        const uint32_t here = from == 3 ? 0 : mk_route_relayed(&d->route, 2);
        const struct moe_ffn_list one = {here, token, 1};
        const struct moe_ffn_job job = {.reach = reach, .rank = from};
        struct mk_sums s = moe_ffn_sums(p, &l.cta.cta, &job, &one, 0);
        struct mk_sums_terms t = {.c = {.count = 0}};
        uint32_t next = 0;
        for (uint32_t i = 0; i < 8; i++) {
            uint64_t at = (token * 8 + i) * 4;
            /* token 2 of those for node 0, 11 of those for local rank 0, of which 3 come before */
            struct mk_route_record record = {named[i] < 12 ? named[i] : UINT32_MAX, 0,
                                             named[i] == 4 && i == 2 ? 8 : UINT32_MAX, (float)i};
            memcpy(l.heap + s.records + at * 4, &record, sizeof record);
            lone_words(&l, d->route.position + here * 8 * 4 + at)[0] = 100 + i;
            lone_words(&l, d->route.sent_at + at)[0] = named[i] == 0 ? 2 : UINT32_MAX;
        }
        lone_words(&l, s.parts_first)[0] = 3;
        for (uint32_t i = 0; i < 8; i++)
            mk_sums_add_place(&l.cta.cta, &s, token, i, &t);
        assert_int_equal(t.c.count, 3 + reach);
        if (reach == MK_REACH_ALL) {
            assert_int_equal(t.c.terms[next].source, p->whole + 2 * p->result_bytes);
            assert_true(t.c.terms[next++].weight == 1);
        }
        if (reach >= MK_REACH_NODE) {
            assert_int_equal(t.c.terms[next].source, p->back + 11 * p->result_bytes);
            assert_true(t.c.terms[next++].weight == 1);
        }
        for (uint32_t i = 0; i < 3; i++, next++) {
            assert_true(t.c.terms[next].weight == (float)places[i]);
            assert_int_equal(t.c.terms[next].source, p->made + (100 + places[i]) * p->result_bytes);
        }
        free(l.heap);
    }
}

/* ---- bytes: what the ids make necessary ---- */

static void expect_bytes(const struct mk_plan *plan, uint32_t rank, const uint32_t *ids,
                         struct ops_bytes *expected)
{
    const struct moe_dispatch_plan *p = &moe_ffn_plan_of(plan)->dispatch;
    uint32_t gpus = p->topo.gpus, nodes = p->topo.nodes;
    /* A token of FP8 is a byte an element and four for 128 of them, in whole 16; what comes back is
     * as of bf16. */
    const uint64_t hidden = plan->problem.moe.hidden,
                   row_bytes = plan->problem.fp8
                                   ? (hidden + (hidden + 127) / 128 * 4 + 15) / 16 * 16
                                   : hidden * 2,
                   result_bytes = plan->problem.back_fp8
                                      ? (hidden + (hidden + 127) / 128 * 4 + 15) / 16 * 16
                                      : hidden * (plan->problem.deterministic ? 4 : 2);
    for (uint32_t token = 0; token < p->tokens; token++)
        for (uint32_t node = 0; node < nodes; node++) {
            uint32_t rail =
                node * gpus + rank % gpus; /* where the token enters the node, and its sum leaves */
            uint8_t rank_has[MK_MAX_LOCAL] = {0};
            int here = 0;
            for (uint32_t place = 0; place < p->k; place++) {
                uint32_t expert = ids[token * p->k + place];
                if (expert >= p->experts || expert / (p->rank_experts * gpus) != node)
                    continue;
                here = 1;
                if (expert / p->rank_experts != rail &&
                    !rank_has[expert / p->rank_experts % gpus]++) {
                    expected->nvlink[expert / p->rank_experts] += row_bytes + moe_record(p->k);
                    expected->nvlink[rail] += result_bytes;
                }
            }
            if (here && node != rank / gpus) {
                expected->network[rail] += row_bytes + moe_record(p->k);
                expected->network[rank] += result_bytes;
            }
        }
}

static void count_bytes(struct sim_world_config *c, struct mk_plan *plan, struct ops_bytes *bytes)
{
    struct sim_costs costs = {.context = bytes, .copy = ops_count_copy, .put = ops_count_put};
    char error[300];
    c->costs = &costs;
    world_right(c);
    assert_int_equal(plan_build(plan, &c->problem, 0, 0, error, sizeof error), 0);
}

CASE(test_bytes)
{
    for (size_t form = 0; form < OPS_FORMS; form++)
        for (uint64_t seed = 0; seed < 8; seed++)
            for (int way = 0; way < 3; way++) { /* back: bf16, fp32, e4m3 */
                struct ops_bytes bytes = {{0}, {0}}, expected = {{0}, {0}};
                struct sim_world_config c =
                    ops_config(MK_OP_MOE_FFN, ops_forms[form], ops_shapes[0]);
                struct mk_plan plan;
                uint32_t ids[1024];
                if (seed >= 4) {
                    c = fp8_config(form, seed);
                    c.problem.tuning = (struct mk_tuning){0};
                }
                c.seed = seed;
                c.problem.deterministic = way == 1;
                c.problem.back_fp8 = way == 2;
                count_bytes(&c, &plan, &bytes);
                for (uint64_t launch = 1; launch <= c.launches; launch++)
                    moe_expect_counts(&plan.problem.topo, plan.problem.moe.experts, &expected);
                for (uint64_t launch = 1; launch <= c.launches; launch++)
                    for (uint32_t rank = 0; rank < mk_world(&c.problem.topo); rank++) {
                        exact_moe_ids(&plan, seed, launch, rank, ids);
                        expect_bytes(&plan, rank, ids, &expected);
                    }
                assert_memory_equal(&bytes, &expected, sizeof bytes);
            }
}

/* Every token names experts on as many nodes, and on as many ranks of them, as it can, none on its
 * rail. */
static void worst_fill(const struct sim_launch *l)
{
    const struct mk_moe *m = &l->plan->problem.moe;
    const struct mk_topo *t = &l->plan->problem.topo;
    uint32_t count = (uint32_t)m->experts / mk_world(t), *ids = l->arguments[2];
    real_fill(l);
    for (uint64_t token = 0; token < m->tokens; token++)
        for (uint64_t place = 0; place < m->k; place++) {
            uint32_t node = (uint32_t)((mk_node_of(t, t->rank) + 1 + place) % t->nodes);
            uint32_t local =
                (mk_local_of(t, t->rank) + 1 +
                 (uint32_t)(token + place / t->nodes) % (t->gpus > 1 ? t->gpus - 1 : 1)) %
                t->gpus;
            ids[token * m->k + place] = mk_rank_at(t, node, local) * count;
        }
}

/* What a plan says is moved at most is what is moved at most. */
CASE(test_most_bytes)
{
    for (size_t form = 0; form < OPS_FORMS; form++)
        for (uint64_t k = 1; k <= 4; k++) {
            struct ops_bytes bytes = {{0}, {0}};
            struct sim_world_config c = real_config(ops_forms[form], k == 1);
            struct sim_op worst = *c.op;
            struct mk_plan plan;
            uint64_t nvlink, network;
            double flop;
            worst.fill = worst_fill;
            c.op = &worst;
            c.problem.moe = (struct mk_moe){24, 64, 8, 12, k};
            c.problem.back_fp8 = k == 2;
            count_bytes(&c, &plan, &bytes);
            plan_work(&plan, &flop, &nvlink, &network);
            assert_true(flop == 6.0 * 24 * (double)k * 64 * 8);
            uint64_t world = mk_world(&c.problem.topo), got_nvlink = 0, got_network = 0;
            for (uint32_t rank = 0; rank < world; rank++) {
                got_nvlink += bytes.nvlink[rank];
                got_network += bytes.network[rank];
            }
            assert_int_equal(got_nvlink, nvlink * c.launches * world);
            assert_int_equal(got_network, network * c.launches * world);
        }
}

/* ---- the plan ---- */

static const char *refusal_of(struct mk_moe moe, struct mk_tuning tuning, int fp8, int transposed)
{
    struct mk_problem q = {.op = MK_OP_MOE_FFN,
                           .topo = {.nodes = 2, .gpus = 2},
                           .moe = moe,
                           .tuning = tuning,
                           .fp8 = fp8,
                           .b_transposed = transposed,
                           .deterministic = 1};
    return ops_refusal(q);
}

static const char *refusal(struct mk_moe moe, struct mk_tuning tuning)
{
    return refusal_of(moe, tuning, 0, 0);
}

static const char *refusal_of_back(enum mk_op op, int deterministic)
{
    static char error[400];
    const struct mk_problem q = {.op = op,
                                 .topo = {.nodes = 2, .gpus = 2},
                                 .moe = {16, 64, 16, 4, 1},
                                 .back_fp8 = 1,
                                 .deterministic = deterministic};
    struct mk_plan p;
    assert_int_equal(plan_build(&p, &q, 0, 0, error, sizeof error), -EINVAL);
    return error;
}

CASE(test_refusals)
{
    const struct mk_tuning none = {.tile_m = 0};
    assert_non_null(
        strstr(refusal((struct mk_moe){0, 64, 8, 4, 1}, none), "tokens = 0: must be 1 to"));
    assert_non_null(strstr(refusal((struct mk_moe){13, 100, 8, 4, 1}, none),
                           "the next hidden that works is 104"));
    assert_non_null(
        strstr(refusal((struct mk_moe){16, 64, 9, 4, 1}, none), "the next inner that works is 16"));
    assert_non_null(
        strstr(refusal((struct mk_moe){16, 64, 8, 6, 1}, none), "the next that does is 8"));
    assert_non_null(strstr(refusal((struct mk_moe){16, 64, 8, 4, 5}, none), "1 to 4"));
    const struct mk_moe ok = {16, 64, 8, 4, 1}, huge = {1 << 24, 1 << 20, 8, 4, 4},
                        wide = {1 << 24, 64, 1 << 24, 4, 4};
    assert_non_null(
        strstr(refusal(ok, (struct mk_tuning){.tile_n = 40}), "the next that works is 48"));
    const struct mk_moe codes = {16, 64, 16, 4, 1};
    assert_non_null(strstr(refusal_of((struct mk_moe){16, 72, 16, 4, 1}, none, 1, 1),
                           "the next hidden that works is 80"));
    assert_non_null(strstr(refusal_of((struct mk_moe){16, 64, 24, 4, 1}, none, 1, 1),
                           "the next inner that works is 32"));
    assert_non_null(strstr(refusal_of(codes, none, 1, 0), "B has to be [N,K]"));
    assert_non_null(strstr(refusal_of(codes, (struct mk_tuning){.tile_n = 128}, 1, 1),
                           "the next that works is 256"));
    assert_non_null(
        strstr(refusal(ok, (struct mk_tuning){.chunk_rows = 20}), "the next that works is 24"));
    assert_non_null(
        strstr(refusal(ok, (struct mk_tuning){.pieces = 2}), "pieces and cluster are 1"));
    assert_non_null(strstr(refusal(ok, (struct mk_tuning){.split = {.ctas = {1, 1, 1, 0}}}),
                           "at least 1 inter_reduce CTAs"));
    assert_non_null(strstr(refusal(ok, (struct mk_tuning){.split = {.ctas = {1, 1, 17, 16}}}),
                           "32 command rings"));
    assert_non_null(strstr(refusal(huge, none), "more than a command can name"));
    assert_non_null(strstr(refusal(wide, none), "more than a command can name"));
    assert_non_null(strstr(refusal_of_back(MK_OP_MOE_FFN, MK_DETERMINISTIC),
                           "back=fp8 with deterministic sums"));
    assert_non_null(strstr(refusal_of_back(MK_OP_MOE_COMBINE, MK_FAST),
                           "back=fp8: moe_combine does not take it; it is of moe_ffn"));
    /* Chunks so large that one put could not carry them. */
    assert_non_null(strstr(
        refusal((struct mk_moe){1 << 20, 4096, 8, 4, 1}, (struct mk_tuning){.chunk_rows = 1 << 20}),
        "more than a command can name"));
}

/* Of a GPU's plan: the sentence, or "". */
static const char *planned_on_mma(struct mk_plan *p, struct mk_moe moe, struct mk_tuning tuning)
{
    static char error[400];
    const struct mk_problem q = {.op = MK_OP_MOE_FFN,
                                 .exec = MK_EXEC_CUDA,
                                 .engine = MK_ENGINE_MMA,
                                 .topo = {.nodes = 1, .gpus = 2},
                                 .sms = 36,
                                 .moe = moe,
                                 .tuning = tuning};
    int result = plan_build(p, &q, 0, 0, error, sizeof error);
    assert_true(!result || result == -EINVAL);
    return result ? error : "";
}

/* Engine mma: its tiles, the small one where an expert has few rows or gate and up few columns; a
 * token for each warp of a block that adds; and what it does not have. */
CASE(test_plans_on_mma)
{
    static const struct {
        struct mk_moe moe;
        uint32_t tile, part;
    } cases[] = {{{4096, 256, 128, 8, 2}, 128, 10},
                 {{100, 256, 128, 8, 2}, 64, 6},
                 {{4096, 256, 32, 8, 2}, 64, 6},
                 {{4096, 256, 40, 8, 2}, 128, 10},
                 {{3, 256, 128, 8, 2}, 64, 1}};
    const struct mk_tuning none = {.tile_m = 0};
    struct mk_plan p;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_string_equal(planned_on_mma(&p, cases[i].moe, none), "");
        const struct moe_ffn_plan *m = moe_ffn_plan_of(&p);
        assert_int_equal(m->dispatch.tile_m, cases[i].tile);
        assert_int_equal(m->tile_n, cases[i].tile);
        assert_int_equal(m->up_cols, cases[i].tile / 2);
        assert_int_equal(m->part_rows, cases[i].part);
        assert_int_equal(m->dispatch.route.shared, MK_MMA_ROUTE_SHARED);
    }
    const struct mk_moe ok = {4096, 256, 128, 8, 2}, many = {64, 64, 8, 4600, 2};
    assert_non_null(strstr(planned_on_mma(&p, ok, (struct mk_tuning){.tile_m = 128, .tile_n = 256}),
                           "tiles of 128 x 256 are not built for the GPU; 128x128, 64x64 are"));
    /* what a block counts lies in shared memory, or, of more experts than fit there, in the heap */
    assert_int_equal(moe_ffn_plan_of(&p)->dispatch.route.spill, 0);
    assert_string_equal(planned_on_mma(&p, many, none), "");
    assert_int_not_equal(moe_ffn_plan_of(&p)->dispatch.route.spill, 0);
}

/* Engine wgmma, two ranks: the more blocks add beside those that multiply the fewer columns experts
 * have; of many tokens more blocks make tables, and a warp adds several, one behind the other; rows of
 * bf16 come by TMA. */
CASE(test_plans_on_wgmma)
{
    static const struct {
        struct mk_moe moe;
        int fp8, back_fp8, deterministic;
        uint32_t movers, reducers, part, staged;
    } cases[] = {{{8192, 2048, 768, 128, 8}, 0, 0, 0, 24, 21, 32, MK_ROUTE_SHARED},
                 {{8192, 7168, 2048, 32, 8}, 1, 0, 0, 24, 8, 32, MK_ROUTE_SHARED},
                 {{8192, 7168, 2048, 32, 8}, 1, 1, 0, 24, 8, 32, 0},
                 {{2048, 7168, 2048, 32, 8}, 0, 0, 1, 24, 8, 12, 0},
                 {{4096, 4096, 256, 64, 8}, 0, 0, 0, 24, 24, 22, MK_ROUTE_SHARED},
                 {{16, 7168, 2048, 64, 8}, 0, 0, 0, 12, 8, 1, MK_ROUTE_SHARED}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct mk_problem q = {.op = MK_OP_MOE_FFN,
                               .exec = MK_EXEC_CUDA,
                               .engine = MK_ENGINE_WGMMA,
                               .topo = {.nodes = 1, .gpus = 2},
                               .sms = 132,
                               .moe = cases[i].moe,
                               .fp8 = cases[i].fp8,
                               .b_transposed = cases[i].fp8,
                               .back_fp8 = cases[i].back_fp8,
                               .deterministic = cases[i].deterministic};
        char error[400] = "";
        struct mk_plan p;
        plan_build(&p, &q, 0, 0, error, sizeof error);
        assert_string_equal(error, "");
        const struct moe_ffn_plan *m = moe_ffn_plan_of(&p);
        assert_int_equal(p.problem.tuning.split.ctas[MK_INTRA_COMM], cases[i].movers);
        assert_int_equal(p.problem.tuning.split.ctas[MK_INTER_REDUCE], cases[i].reducers);
        assert_int_equal(m->part_rows, cases[i].part);
        assert_int_equal(m->staged, cases[i].staged);
    }
}
