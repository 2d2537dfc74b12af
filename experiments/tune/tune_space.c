#include "experiments/tune/tune.h"
#include "core/plan/gemm_tiles.h"
#include "core/model/choose.h"
#include "core/base/sentence.h"
#include "experiments/common/nearest.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define TUNE_SPACE_FORM                                                                            \
    "values have : between them, options ;, as in 'tile=256,128:128,128;pace=none:300'"

static int tune_space_refuse(const char *text, size_t length, char *error, size_t size)
{
    const char *names[PLAN_KNOBS];
    char name[64], all[TUNING_NAMES_TEXT];
    for (const struct plan_field *f = NULL; (f = tuning_next(f));)
        names[plan_field_knob(f)] = plan_field_option(f);
    snprintf(name, sizeof name, "%.*s", (int)length, text);
    const char *near = nearest_word(name, names, PLAN_KNOBS);
    return mk_fail(-EINVAL, error, size, "--space: '%s' is no option of a plan%s%s%s", name,
                   near ? " (did you mean " : "; they are ", near ? near : tuning_names(all),
                   near ? "?)" : "");
}

int tune_space_parse(struct tune_space *s, enum mk_op op, const char *text, char *error,
                     size_t size)
{
    memset(s, 0, sizeof *s);
    for (uint32_t i = 0; i < PLAN_KNOBS; i++)
        s->options[i].tried = !text;
    while (text && *text) {
        size_t length = strcspn(text, "=:;");
        const struct plan_field *f = tuning_option(text, length);
        if (text[length] == ':')
            return mk_fail(-EINVAL, error, size, "--space: '%s': " TUNE_SPACE_FORM, text);
        if (!f)
            return tune_space_refuse(text, length, error, size);
        struct tune_option *o = &s->options[plan_field_knob(f)];
        o->tried = 1;
        text += length;
        while (*text && *text != ';') {
            char why[256];
            struct mk_tuning ignored;
            uint32_t value = (uint32_t)strcspn(++text, ":;");
            if (o->count == TUNE_VALUES)
                return mk_fail(-EINVAL, error, size, "--space: more than %u values of %s",
                               TUNE_VALUES, plan_field_option(f));
            char *word = o->words[o->count++];
            snprintf(word, sizeof o->words[0], "%s=%.*s", plan_field_option(f), (int)value, text);
            if (tuning_read_word(word, op, &ignored, why, sizeof why))
                return mk_fail(-EINVAL, error, size, "--space: %s; " TUNE_SPACE_FORM, why);
            text += value;
        }
        text += *text == ';';
    }
    return 0;
}

__attribute__((format(printf, 2, 3))) static void offer(struct tune_option *o, const char *format,
                                                        ...)
{
    va_list args;
    if (o->count == TUNE_VALUES)
        return;
    va_start(args, format);
    vsnprintf(o->words[o->count++], sizeof o->words[0], format, args);
    va_end(args);
}

static void tune_space_offer_split(struct tune_option *o, const struct mk_role_split *split)
{
    char text[256];
    const struct mk_tuning t = {.split = *split};
    offer(o, "%s", tuning_words(&t, text, sizeof text));
}

/* Role by role another number of CTAs. On a GPU: intra_comm as one to three warps of each compute
 * block, or blocks that take SMs away from those that compute. */
static void tune_space_offer_roles(struct tune_option *o, const struct mk_problem *q,
                                   const struct mk_tuning *made)
{
    static const uint32_t blocks[] = {1, 2, 4, 8, 16, 24, 32};
    const int cuda = q->exec == MK_EXEC_CUDA, shares = cuda && !op_of(q->op)->own_blocks;
    struct mk_role_split split;
    for (int role = MK_INTRA_COMM; role < MK_ROLES; role++) {
        const uint32_t most = shares && role == MK_INTRA_COMM ? MK_AUXILIARY_WARPS : 0,
                       sms = cuda ? q->sms : UINT32_MAX;
        for (uint32_t warps = 1; made->split.ctas[role] && warps <= most; warps++)
            if (choose_split(&made->split, sms, made->cluster, role, 0, warps, &split))
                tune_space_offer_split(o, &split);
        for (uint32_t i = 0; made->split.ctas[role] && i < sizeof blocks / sizeof *blocks; i++) {
            if (!choose_split(&made->split, sms, made->cluster, role, blocks[i], 0, &split))
                continue;
            if (!cuda) { /* CTAs take no SMs from each other */
                split.ctas[MK_COMPUTE] = made->split.ctas[MK_COMPUTE];
                mk_share_blocks(&split, split.intra_comm_warps);
            }
            if (cuda || blocks[i] <= 4)
                tune_space_offer_split(o, &split);
        }
    }
    split = made->split;
    for (uint32_t compute = 1; q->exec == MK_EXEC_HOST && compute <= 4; compute *= 2) {
        split.ctas[MK_COMPUTE] = compute;
        mk_share_blocks(&split, split.intra_comm_warps);
        tune_space_offer_split(o, &split);
    }
}

/* Values that suit the operator, about those of a plan. */
static void tune_space_offer_values(struct tune_option *o, const struct plan_field *f,
                                    const struct mk_problem *q, const struct mk_tuning *made)
{
    int cuda = q->exec == MK_EXEC_CUDA, slices = op_of(q->op)->knobs & OP_SLICES,
        fanout = op_of(q->op)->knobs & OP_FANOUT, shots = op_of(q->op)->knobs & OP_SHOTS;
    struct mk_gemm_tile tile;
    struct mk_problem planned = *q;
    planned.tuning = *made;
    switch (f->knob) {
    case OP_TILE:
        for (uint32_t i = 0; cuda && op_gpu_tile(q, i, &tile); i++)
            offer(o, "tile=%u,%u", tile.tile_m, tile.tile_n);
        for (uint32_t i = 0; cuda && shots && plan_joint_tile(&planned, i, &tile); i++)
            offer(o, "tile=%u,%u", tile.tile_m, tile.tile_n);
        for (uint32_t edge = 32; !cuda && edge <= 256; edge *= 2)
            offer(o, "tile=%u,%u", edge, edge);
        break;
    case OP_ROLES:
        tune_space_offer_roles(o, q, made);
        break;
    case OP_CHUNK_ROWS:
        for (uint32_t rows = 8; op_of(q->op)->loose_chunks && rows <= 256; rows *= 2)
            offer(o, "chunk-rows=%u", rows);
        for (uint32_t tiles = 1; !op_of(q->op)->loose_chunks && tiles <= 4; tiles *= 2)
            offer(o, "chunk-rows=%u", made->tile_m * tiles);
        for (uint32_t rows = made->chunk_rows / 2;
             !op_of(q->op)->loose_chunks && made->chunk_rows > 4 * made->tile_m &&
             rows <= 2 * made->chunk_rows;
             rows *= 4) /* half of a large one, and twice as much */
            offer(o, "chunk-rows=%u", (uint32_t)mk_round_up(rows, made->tile_m));
        break;
    case OP_SLICES:
        for (uint32_t n = 1; slices && n <= f->count; n *= 2)
            offer(o, "slices=%u", n);
        break;
    case OP_PIECES:
        if (!op_pieces(q->op, &q->topo))
            break;
        offer(o, "pieces=1");
        for (uint32_t n = made->pieces > 1 ? made->pieces / 2 : 2;
             n <= 4 * made->pieces && n <= f->count; n *= 2)
            offer(o, "pieces=%u", n);
        break;
    case OP_PACE:
        if (!cuda)
            break;
        offer(o, "pace=none");
        for (uint32_t percent = 60; percent <= 180 && made->pace != MK_PACE_NONE;
             percent += percent < 120 ? 15 : 30)
            offer(o, "pace=%u", made->pace * percent / 100);
        break;
    case OP_SPLIT_K:
        for (uint32_t n = 1; !plan_no_split_k(&planned) && n <= 2; n++)
            offer(o, "split-k=%u", n);
        break;
    case OP_SHOTS:
        for (uint32_t n = MK_ONE_SHOT; cuda && q->m <= 4096 && n <= op_of(q->op)->most_shots; n++)
            if (q->topo.nodes == 1 || n == MK_TWO_SHOT || n == MK_COLUMN_BLOCKS)
                offer(o, "shots=%s", plan_shots[n - MK_ONE_SHOT]);
        break;
    default:
        for (uint32_t n = 1; fanout && n < q->topo.gpus; n = n < 2 ? 2 : 2 * n - 1)
            offer(o, "fanout=%u", n);
    }
}

int tune_add(struct tune *t, const struct mk_tuning *asked)
{
    struct mk_problem q = t->shape.problem;
    struct mk_plan p;
    char why[256];
    q.tuning = *asked;
    int result = plan_build(&p, &q, 0, 0, why, sizeof why);
    if (result && !t->unfit++)
        snprintf(t->unfit_why, sizeof t->unfit_why, "%s", why);
    if (result)
        return result;
    for (uint32_t i = 0; i < t->count; i++)
        if (!memcmp(&t->plans[i].made, &p.problem.tuning, sizeof p.problem.tuning))
            return (int)i;
    if (t->count == TUNE_PLANS)
        return -EINVAL;
    t->plans[t->count] = (struct tune_plan){.asked = *asked, .made = p.problem.tuning};
    return (int)t->count++;
}

struct mk_problem tune_problem(const struct tune *t, uint32_t plan)
{
    struct mk_problem q = t->shape.problem;
    q.tuning = t->plans[plan].made;
    return q;
}

void tune_space_extend(struct tune *t, uint32_t center)
{
    struct mk_tuning from = t->plans[center].asked, made = t->plans[center].made;
    for (const struct plan_field *f = NULL; (f = tuning_next(f));) {
        struct tune_option o = t->space.options[plan_field_knob(f)];
        if (!o.tried)
            continue;
        if (!o.count)
            tune_space_offer_values(&o, f, &t->shape.problem, &made);
        struct mk_tuning asked = from;
        memset(tuning_value(&asked, f), 0, (f->parts ? f->parts : 1) * sizeof(uint32_t));
        tune_add(t, &asked);
        for (uint32_t v = 0; v < o.count; v++) {
            char why[256];
            asked = from;
            if (!tuning_read_word(o.words[v], t->job->problem.op, &asked, why, sizeof why))
                tune_add(t, &asked);
        }
    }
}
