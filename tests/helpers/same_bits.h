/* Random cases of gemm_rs, gemm_ar and ag_gemm whose rows must have the same bits everywhere, on any executor of the explorer.
 * A row of A is known by its id alone, so that it may stand at any place of any M. */
#pragma once

#include "core/base/bf16.h"
#include "core/plan/epilogue.h"
#include "core/ops/op.h"
#include "core/cta/sum_tree.h"
#include "sim/clock.h"
#include "tests/helpers/world.h"
#include "tests/helpers/test.h"

enum { SAME_IDS = 24, SAME_MOST_N = 1088 };

/* Products whose rows are compared with each other; k: of all ranks, `most`: that it takes. */
struct same_family {
    uint32_t n, k, most;
};
static const struct same_family same_families[] = {
    {64, 512, 8}, {200, 1536, 8}, {136, 768, 4}, {8, 1408, 2}, {1088, 512, 8}};
enum {
    SAME_FAMILIES = sizeof same_families / sizeof *same_families,
    SAME_PLAIN =
        SAME_FAMILIES - 1 /* without the last, a row of which several warps of a block norm */
};

/* The reference; a row's when a case has shown it to be the same everywhere. */
struct same_rows {
    int known[SAME_IDS];
    uint16_t row[SAME_IDS][SAME_MOST_N];
};

struct same_case {
    const struct same_family *family;
    struct same_rows *rows; /* NULL: by the sums of same_sum */
    uint32_t first, step;   /* row i of A is row (first + i step) of SAME_IDS */
    uint64_t compared;
};

/* bf16 of either sign and of several magnitudes. */
static uint16_t same_drawn(uint32_t what, uint32_t of, uint32_t k)
{
    uint64_t x =
        (uint64_t)(what * 0x51ed27 + of + 1) * 0x9e3779b97f4a7c15ull + k * 0xd1342543de82ef95ull;
    x = (x ^ x >> 29) * 0xbf58476d1ce4e5b9ull;
    x ^= x >> 32;
    return (uint16_t)((x & 0x807f) | (124 + (x >> 16) % 7) << 7);
}

/* what: 0 of A, by its row's id; 1 of B, by its column. The second half of K takes back most of what the first one adds, so that
 * the order of additions shows in the upper bits of what is left; but for rows of odd ids, whose sums have bits in all places, so
 * that a root which is cut before it is rounded shows. */
static uint16_t same_number(const struct same_family *f, uint32_t what, uint32_t of, uint32_t k)
{
    const uint32_t partner = k + f->k / 2;
    if (!what && of % 2)
        return same_drawn(what, of, k);
    if (k < f->k / 2 && partner % 61 != 5)
        return same_drawn(what, of, k);
    if (k < f->k / 2)
        return 0;
    if (k % 61 == 5) /* some 2^-8 of the others */
        return (uint16_t)(same_drawn(what, of, k) - (4 << 7));
    return same_drawn(what, of, k - f->k / 2) ^ (uint16_t)(what ? 0 : 0x8000);
}

static uint32_t same_id(const struct same_case *s, uint64_t row)
{
    return (uint32_t)((s->first + row * s->step) % SAME_IDS);
}

/* Of one element: the sum over K from `from` up to `to`, from zero. */
static float same_run(const struct same_family *f, uint32_t id, uint32_t col, uint32_t from,
                      uint32_t to)
{
    float sum = 0;
    for (uint32_t k = from; k < to; k++)
        sum += mk_bf16_to_float(same_number(f, 0, id, k)) *
               mk_bf16_to_float(same_number(f, 1, col, k));
    return sum;
}

static float same_block(const struct same_family *f, uint32_t id, uint32_t col, uint32_t block)
{
    const uint32_t stages = f->k / MK_SUM_STAGE;
    return same_run(f, id, col, mk_sum_border(stages, block) * MK_SUM_STAGE,
                    mk_sum_border(stages, block + 1) * MK_SUM_STAGE);
}

static float same_cut(float x)
{
    union {
        float f;
        uint32_t u;
    } v = {.f = x};
    v.u &= 0xffffff00;
    return v.f;
}

/* What an element must be, written out; ag_gemm's K is one block. */
static float same_sum(enum mk_op op, const struct same_family *f, uint32_t id, uint32_t col)
{
    float b[8];
    if (op == MK_OP_AG_GEMM)
        return same_run(f, id, col, 0, f->k);
    for (uint32_t i = 0; i < 8; i++)
        b[i] = same_cut(same_block(f, id, col, i));
    for (uint32_t i = 0; i < 8; i += 2)
        b[i] = same_cut(b[i] + b[i + 1]);
    return same_cut(b[0] + b[2]) + same_cut(b[4] + b[6]);
}

static void same_fill(void *context, const struct mk_plan *plan, uint64_t launch,
                      void *const *arguments)
{
    uint16_t *a = arguments[0], *b = arguments[1];
    const struct same_case *s = context;
    const struct mk_problem *q = &plan->problem;
    const int gathers = q->op == MK_OP_AG_GEMM;
    const uint32_t first_k = gathers ? 0 : q->topo.rank * (uint32_t)q->k;
    const uint64_t rows = gathers ? q->m / mk_world(&q->topo) : q->m,
                   before = gathers ? q->topo.rank * rows : 0;
    for (uint64_t row = 0; row < rows; row++)
        for (uint32_t k = 0; k < q->k; k++)
            a[row * q->k + k] = same_number(s->family, 0, same_id(s, before + row), first_k + k);
    for (uint32_t col = 0; col < q->n; col++)
        for (uint32_t k = 0; k < q->k; k++)
            b[q->b_transposed ? col * q->k + k : k * q->n + col] =
                same_number(s->family, 1, col, first_k + k);
    if (!(q->epilogue & MK_EPILOGUE_RMSNORM))
        return;
    uint16_t *const *behind = (uint16_t *const *)arguments + op_residual_argument(q);
    const uint64_t of = q->op == MK_OP_GEMM_RS ? q->m / mk_world(&q->topo) : q->m,
                   from = q->op == MK_OP_GEMM_RS ? q->topo.rank * of : 0;
    for (uint64_t row = 0; row < of; row++)
        for (uint32_t col = 0; col < q->n; col++)
            behind[0][row * q->n + col] = same_drawn(2, same_id(s, from + row), col);
    for (uint32_t col = 0; col < q->n; col++)
        behind[1][col] = same_drawn(3, 0, col);
}

static int same_check(void *context, const struct mk_plan *plan, uint64_t launch, const uint16_t *c,
                      char *text, size_t size)
{
    struct same_case *s = context;
    const struct mk_problem *q = &plan->problem;
    const int scatters = q->op == MK_OP_GEMM_RS;
    const uint64_t rows = scatters ? q->m / mk_world(&q->topo) : q->m,
                   before = scatters ? q->topo.rank * rows : 0;
    for (uint64_t row = 0; row < rows; row++) {
        const uint32_t id = same_id(s, before + row);
        if (!s->rows->known[id])
            memcpy(s->rows->row[id], c + row * q->n, q->n * 2);
        s->rows->known[id] = 1;
        for (uint32_t col = 0; col < q->n; col++, s->compared++)
            if (c[row * q->n + col] != s->rows->row[id][col]) {
                snprintf(text, size, "row %llu, column %u is %04x, and was %04x elsewhere",
                         (unsigned long long)(before + row), col, c[row * q->n + col],
                         s->rows->row[id][col]);
                return 1;
            }
    }
    return 0;
}

/* One shot or two, of gemm_ar also blocks of columns. */
static uint32_t same_shots(struct sim_random *r, const struct mk_problem *q)
{
    const uint32_t drawn = sim_random_below(r, 4);
    if (q->op == MK_OP_GEMM_AR && drawn == 0 && q->n % (8ull * mk_world(&q->topo)) == 0)
        return 4;
    return q->topo.nodes == 1 && drawn % 2 ? 1 : 2;
}

/* `count` cases of an operator, every plan as `draw_plan` says, compared with the rule, or with
 * an epilogue, whose rule is an executor's own, with the first that had the row. emulate: makes
 * the case one for emulated GPUs; NULL: the host's. */
static void same_cases(enum mk_op op, uint32_t epilogue, uint32_t count,
                       void (*draw_plan)(struct sim_random *, struct mk_problem *),
                       void (*emulate)(struct sim_random *, struct sim_world_config *))
{
    static struct same_rows known[SAME_FAMILIES];
    uint32_t of_world[9] = {0}, of_shots[5] = {0}, of_nodes[3] = {0};
    uint64_t compared = 0;
    memset(known, 0, sizeof known);
    for (uint32_t family = 0; family < SAME_PLAIN && !epilogue; family++)
        for (uint32_t id = 0; id < SAME_IDS; id++) {
            known[family].known[id] = 1;
            for (uint32_t col = 0; col < same_families[family].n; col++)
                known[family].row[id][col] =
                    mk_bf16_from_float(same_sum(op, &same_families[family], id, col));
        }
    for (uint32_t i = 0; i < count; i++) {
        struct sim_random r = {i * 2 + 1};
        struct sim_world_result result;
        for (int j = 0; j < 5; j++)
            sim_random(&r);
        const uint32_t family = epilogue ? SAME_PLAIN : sim_random_below(&r, SAME_PLAIN);
        const struct same_family *f = &same_families[family];
        uint32_t world = 1u << sim_random_below(&r, 4), nodes = 1 + sim_random_below(&r, 2);
        world = world > f->most ? f->most : world;
        nodes = nodes > world ? 1 : nodes;
        struct same_case s = {
            .family = f, .rows = &known[family], .first = sim_random_below(&r, SAME_IDS)};
        s.step = 1 + sim_random_below(&r, 5);
        uint64_t m = 1 + sim_random_below(&r, emulate ? 40 : i % 4 ? 80 : 300);
        if (op != MK_OP_GEMM_AR)
            m = mk_round_up(m, world);
        struct sim_world_config c =
            world_config(nodes, world / nodes, m, f->n, op == MK_OP_AG_GEMM ? f->k : f->k / world);
        c.problem.op = op;
        c.problem.deterministic = MK_EVERYWHERE;
        c.problem.epilogue = epilogue;
        c.seed = i;
        c.launches = 2;
        c.inputs = same_fill;
        c.check = same_check;
        c.context = &s;
        draw_plan(&r, &c.problem);
        if (emulate)
            emulate(&r, &c);
        int rc = sim_world_run(&c, &result);
        if (rc)
            fail_msg("%s case %u, %llu,%u,%u on %u x %u ranks, tiles of %ux%u, %u shots: %s",
                     plan_op_name(op), i, (unsigned long long)m, f->n, f->k, nodes, world / nodes,
                     c.problem.tuning.tile_m, c.problem.tuning.tile_n, c.problem.tuning.shots,
                     result.sentence);
        of_world[world]++;
        of_shots[c.problem.tuning.shots]++;
        of_nodes[nodes]++;
        compared += s.compared;
    }
    print_message(
        "%s: %u cases on 1, 2, 4, 8 ranks %u, %u, %u, %u; 1 shot %u, columns %u; 2 nodes %u; "
        "%llu numbers\n",
        plan_op_name(op), count, of_world[1], of_world[2], of_world[4], of_world[8], of_shots[1],
        of_shots[4], of_nodes[2], (unsigned long long)compared);
    assert_true(op != MK_OP_GEMM_AR || of_shots[4]);
}
