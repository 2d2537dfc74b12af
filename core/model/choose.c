/* From each tile on, one option after the other (roles and pace together), as far as that helps, in
 * one shot and in two; then back to the closed formula in each option that does little. */
#include "core/model/choose.h"
#include "core/plan/gemm_tiles.h"
#include "core/model/model.h"
#include "core/ops/op.h"

#include <string.h>

#define GAIN 0.995     /* what a step must promise */
#define TILE_GAIN 0.95 /* tiles are predicted less well than what moves */
#define WORTH 1.05     /* options that together promise less are left to the closed formula */
/* ... and 10 % where few plans of an operator were measured (core/ops/op.h, `well_known`). There
 * chunks stay the closed formula's: by events two of 24 choices of MoE with others were a third
 * slower. */
#define WORTH_UNKNOWN 1.1
/* ... and of FP8 on up to so many GPUs of a node, where the closed formula's plans were
 * measured. */
#define FP8_MEASURED 4
#define PASSES 3

/* The other of one shot and two must promise this: each is predicted to some percent, and where it
 * lies with two GPUs was measured. Of 366 problems on 3, 4 and 8 GPUs (1 to 2048 rows of 8192,4096
 * and 4096,8192; simulated) the plans taken so are 0.3 % slower in the mean than the better of the
 * two forms, 17 % at worst; with one shot up to 512 rows, as on two GPUs, 2.6 and 66 %. */
#define SHOTS_GAIN (1 / 1.1)
#define SHOTS_MOST_ROWS                                                                            \
    2048 /* more were never looked at, and one shot's buffers are whole products */

struct search {
    const struct mk_machine *machine;
    const struct mk_problem *problem;
    struct mk_plan plan;         /* the last that was weighed */
    struct mk_tuning best, made; /* what was asked for, and what the plan made of it */
    double ns;
    uint32_t weighed;
};

/* ns of a plan with these options; 0: there is no such plan. */
static double choose_weigh(struct search *s, const struct mk_tuning *asked)
{
    struct mk_problem q = *s->problem;
    struct model_time t;
    char error[256];
    q.tuning = *asked;
    s->weighed++;
    if (plan_build(&s->plan, &q, 0, 0, error, sizeof error) || model_plan(s->machine, &s->plan, &t))
        return 0;
    return t.ns;
}

/* Takes the options where they promise enough. */
static void choose_try(struct search *s, const struct mk_tuning *asked)
{
    double ns = choose_weigh(s, asked);
    if (ns > 0 && ns < s->ns * GAIN) {
        s->ns = ns;
        s->best = *asked;
        s->made = s->plan.problem.tuning;
    }
}

int choose_split(const struct mk_role_split *now, uint32_t sms, uint32_t cluster, enum mk_role role,
                 uint32_t ctas, uint32_t warps, struct mk_role_split *out)
{
    *out = *now;
    out->ctas[role] = ctas;
    if (role == MK_INTRA_COMM)
        out->intra_comm_warps = warps;
    uint32_t taken = out->ctas[MK_INTER_SEND] + out->ctas[MK_INTER_REDUCE] +
                     (out->intra_comm_warps ? 0 : out->ctas[MK_INTRA_COMM]);
    if (taken + cluster > sms)
        return 0;
    out->ctas[MK_COMPUTE] = sms - taken - (sms - taken) % cluster;
    mk_share_blocks(out, out->intra_comm_warps);
    return 1;
}

/* How many CTAs of a role: so many blocks of their own. */
static const uint32_t choose_blocks[] = {8, 16, 24, 32};

static void choose_all_roles(struct search *s)
{
    for (int role = MK_INTRA_COMM; role < MK_ROLES; role++) {
        struct mk_tuning from = s->best;
        struct search fixed = *s; /* ways are of what stood before this role */
        const uint32_t shared = role == MK_INTRA_COMM ? MK_AUXILIARY_WARPS : 0,
                       ways = shared + sizeof choose_blocks / sizeof *choose_blocks;
        for (uint32_t way = 0; way < ways && fixed.made.split.ctas[role]; way++) {
            const uint32_t warps = way < shared ? way + 1 : 0;
            struct mk_tuning asked = from;
            if (!choose_split(&fixed.made.split, s->problem->sms, fixed.made.cluster, role,
                              warps ? 0 : choose_blocks[way - shared], warps, &asked.split))
                continue;
            choose_try(s, &asked);
            asked.pace = asked.pace == MK_PACE_NONE ? 0 : MK_PACE_NONE;
            choose_try(s, &asked);
        }
    }
}

/* An option that is a number: half, twice, four times as much, 1. */
static void choose_number(struct search *s, uint32_t *(*field)(struct mk_tuning *), uint32_t most)
{
    struct mk_tuning made = s->made;
    uint32_t now = *field(&made), values[] = {1, now / 2, now * 2, now * 4};
    for (int i = 0; i < 4; i++) {
        struct mk_tuning asked = s->best;
        if (!values[i] || values[i] > most || values[i] == now)
            continue;
        *field(&asked) = values[i];
        choose_try(s, &asked);
    }
}

static uint32_t *choose_pieces(struct mk_tuning *t)
{
    return &t->pieces;
}

static uint32_t *choose_slices(struct mk_tuning *t)
{
    return &t->slices;
}

static uint32_t *choose_chunk_rows(struct mk_tuning *t)
{
    return &t->chunk_rows;
}

static void choose_pace(struct search *s)
{
    static const uint32_t percents[] = {0, 75, 115};
    uint32_t now = s->made.pace;
    for (int i = 0; i < 3 && now != MK_PACE_NONE; i++) {
        struct mk_tuning asked = s->best;
        asked.pace = percents[i] ? now * percents[i] / 100 : MK_PACE_NONE;
        choose_try(s, &asked);
    }
}

/* From s->best on, whose time is s->ns. */
static void choose_rest(struct search *s)
{
    uint32_t knobs = op_of(s->problem->op)->knobs;
    for (int pass = 0; pass < PASSES; pass++) {
        double before = s->ns;
        choose_all_roles(s);
        if (op_pieces(s->problem->op, &s->problem->topo))
            choose_number(s, choose_pieces, 64);
        if (knobs & OP_SLICES)
            choose_number(s, choose_slices, 16);
        choose_pace(s);
        if (op_of(s->problem->op)->well_known)
            choose_number(s, choose_chunk_rows, s->made.tile_m * 4);
        if (s->ns >= before * GAIN)
            break;
    }
}

/* Gives an option back to the closed formula where that costs little, over what is best. */
static void choose_undo(struct search *s, size_t offset, size_t size)
{
    struct mk_tuning asked = s->best;
    memset((char *)&asked + offset, 0, size);
    if (!memcmp(&asked, &s->best, sizeof asked))
        return;
    double ns = choose_weigh(s, &asked);
    if (ns > 0 && ns < s->ns * WORTH)
        s->best = asked;
}

/* The best in so many shots (0: as the closed formula has it), with *plain the formula's own time
 * there. best->ns is 0 where there is no such plan. */
static void choose_in_shots(const struct mk_machine *machine, const struct mk_problem *problem,
                            uint32_t shots, struct search *best, double *plain)
{
    struct search s = {.machine = machine, .problem = problem, .best = {.shots = shots}};
    struct mk_gemm_tile tile;
    *plain = s.ns = choose_weigh(&s, &s.best);
    s.made = s.plan.problem.tuning;
    *best = s;
    /* the rest was measured there, or simulated */
    if (s.ns <= 0 || (s.made.shots && !plan_two_shots(&s.made)))
        return;
    choose_rest(best);
    double tile_ns = best->ns * TILE_GAIN; /* another tile has to promise this */
    for (uint32_t i = 0; op_gpu_tile(problem, i, &tile); i++) {
        struct search from = {.machine = machine, .problem = problem, .weighed = best->weighed};
        if (tile.tile_m == s.made.tile_m && tile.tile_n == s.made.tile_n)
            continue;
        from.best.shots = shots;
        from.best.tile_m = tile.tile_m;
        from.best.tile_n = tile.tile_n;
        from.ns = choose_weigh(&from, &from.best);
        from.made = from.plan.problem.tuning;
        if (from.ns > 0)
            choose_rest(&from);
        best->weighed = from.weighed;
        if (from.ns > 0 && from.ns < tile_ns && from.ns < best->ns)
            *best = from;
    }
}

/* The operator's own plans were measured on such a cluster, and stay. */
static int choose_is_measured(const struct mk_problem *q)
{
    const struct op_descriptor *op = op_of(q->op);
    uint32_t measured = op->plans_measured | (q->fp8 ? op->fp8_plans_measured : 0);
    return q->topo.nodes == 1 && q->topo.gpus <= MK_MAX_LOCAL && measured >> q->topo.gpus & 1;
}

/* What the model promises counts as of an operator of which many plans were measured. */
static int choose_is_known(const struct mk_problem *q)
{
    return op_of(q->op)->well_known &&
           !(q->fp8 && q->topo.nodes == 1 && q->topo.gpus <= FP8_MEASURED);
}

/* Which form of shots is the model's to say. */
static int choose_has_forms(const struct mk_problem *q)
{
    const struct op_descriptor *op = op_of(q->op);
    uint32_t measured = op->shots_measured & (q->fp8 ? 1 << 2 : ~0u); /* of FP8 on two alone */
    return (op->knobs & OP_SHOTS) && q->topo.nodes == 1 && q->topo.gpus > 1 &&
           !(measured >> q->topo.gpus & 1) && q->m <= SHOTS_MOST_ROWS;
}

uint32_t model_choose(const struct mk_machine *machine, const struct mk_problem *asked,
                      struct mk_tuning *chosen)
{
    struct mk_problem of_one = *asked, *problem = &of_one; /* plans of all ranks must be alike */
    problem->topo.rank = 0;
    problem->sms = plan_sms(asked);
    struct search best;
    double plain, unused;
    memset(chosen, 0, sizeof *chosen);
    /* a machine's times are those of engine wgmma */
    if (problem->exec != MK_EXEC_CUDA || problem->engine == MK_ENGINE_MMA ||
        !model_knows(problem->op) || choose_is_measured(problem))
        return 0;
    choose_in_shots(machine, problem, 0, &best, &plain);
    const struct search formula = best;
    for (uint32_t shots = MK_ONE_SHOT;
         formula.ns > 0 && choose_has_forms(problem) && shots <= op_of(problem->op)->most_shots;
         shots++) {
        struct search other;
        if (shots == formula.made.shots)
            continue;
        choose_in_shots(machine, problem, shots, &other, &unused);
        other.weighed += best.weighed;
        best.weighed = other.weighed;
        if (other.ns > 0 && other.ns < formula.ns * SHOTS_GAIN && other.ns < best.ns)
            best = other;
    }
    if (best.ns <= 0 || (!choose_is_known(problem) && best.ns * WORTH_UNKNOWN > plain))
        return best.weighed;
    choose_undo(&best, offsetof(struct mk_tuning, chunk_rows), sizeof best.best.chunk_rows);
    choose_undo(&best, offsetof(struct mk_tuning, slices), sizeof best.best.slices);
    choose_undo(&best, offsetof(struct mk_tuning, pace), sizeof best.best.pace);
    choose_undo(&best, offsetof(struct mk_tuning, pieces), sizeof best.best.pieces);
    choose_undo(&best, offsetof(struct mk_tuning, split), sizeof best.best.split);
    *chosen = best.best;
    return best.weighed;
}
