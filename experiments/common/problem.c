#include "experiments/common/problem.h"
#include "experiments/common/nearest.h"
#include "core/plan/epilogue.h"
#include "core/base/sentence.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static const char *const layouts[] = {"kn", "nk"};

/* ---- which operators take what ---- */

/* Those of a command that `wanted` (NULL: all) is true of, a bit each. */
static uint32_t problem_ops_where(enum problem_command command, int (*wanted)(enum mk_op))
{
    uint32_t bits = 0;
    _Static_assert(MK_OPS <= 32, "an operator is a bit of the contexts of an option");
    for (int op = 0; op < MK_OPS; op++)
        if ((command != PROBLEM_TUNE || op_is_tuned(op)) && (!wanted || wanted(op)))
            bits |= 1u << op;
    return bits;
}

static uint32_t problem_ops_of_shape(enum problem_command command, const char *option)
{
    uint32_t bits = problem_ops_where(command, NULL);
    for (int op = 0; op < MK_OPS; op++)
        if (strcmp(op_of(op)->shape->option, option))
            bits &= ~(1u << op);
    return bits;
}

static uint32_t problem_ops_of_knob(enum problem_command command, uint32_t knob)
{
    uint32_t bits = problem_ops_where(command, NULL);
    for (int op = 0; op < MK_OPS; op++)
        if (!(op_of(op)->knobs >> knob & 1))
            bits &= ~(1u << op);
    return bits;
}

static int problem_has_layout(enum mk_op op)
{
    return op_of(op)->b_layout;
}

static int problem_takes_dtype(enum mk_op op)
{
    return op_has_fp8(op) || op_has_fp16(op);
}

static int problem_has_mask(enum mk_op op)
{
    return op_of(op)->causal;
}

/* ---- the table ---- */

static struct option_spec *problem_add(struct problem_table *t)
{
    options_fit(t->table.count + 1);
    struct option_spec *s = &t->specs[t->table.count++];
    memset(s, 0, sizeof *s);
    return s;
}

/* One option for all shapes that are called so; the text has a part for each of them. */
static void problem_add_shape(struct problem_table *t, enum problem_command command, size_t at,
                              const char *option)
{
    static char help[MK_OPS][1200], value[MK_OPS][64];
    const struct op_shape *last = NULL;
    struct option_spec *s = problem_add(t);
    char *words = help[t->table.count], *letters = value[t->table.count];
    *s = (struct option_spec){.name = option,
                              .type = OPTION_NUMBERS,
                              .offset = at + offsetof(struct problem_options, numbers),
                              .value = letters,
                              .help = words,
                              .min = 1,
                              .max = UINT32_MAX,
                              .least = OP_DIMENSIONS,
                              .contexts = problem_ops_of_shape(command, option),
                              .group = PROBLEM_GROUP};
    words[0] = letters[0] = '\0';
    for (int op = 0; op < MK_OPS; op++) {
        const struct op_shape *shape = op_of(op)->shape;
        uint32_t count = op_dimensions(shape);
        if (!(s->contexts >> op & 1) || (last && !strcmp(shape->about, last->about)))
            continue;
        last = shape;
        s->parts = s->parts > count ? s->parts : count;
        s->least = s->least < count ? s->least : count;
        mk_append(letters, sizeof value[0], "%s%s", *letters ? "|" : "", shape->letters);
        mk_append(words, sizeof help[0], "%s%s. Default: %s%s", *words ? ". " : "", shape->about,
                  command == PROBLEM_SIM ? "as `mkernel run --exec cuda` (--plan host: --exec "
                                           "host); with --explore "
                                         : shape->defaults,
                  command == PROBLEM_SIM ? shape->explored : "");
    }
}

static void problem_add_shapes(struct problem_table *t, enum problem_command command, size_t at)
{
    for (int op = 0; op < MK_OPS; op++) {
        const char *option = op_of(op)->shape->option;
        int there = 0;
        for (size_t i = 0; i < t->table.count; i++)
            there |= !strcmp(t->specs[i].name, option);
        if (!there && problem_ops_of_shape(command, option))
            problem_add_shape(t, command, at, option);
    }
}

static void problem_add_limit(struct problem_table *t, enum problem_command command, size_t at)
{
    uint32_t limited = problem_ops_where(command, op_has_limit);
    const struct op_limit *limit = NULL;
    for (int op = 0; op < MK_OPS; op++)
        limit = op_of(op)->limit ? op_of(op)->limit : limit;
    if (!limited)
        return;
    *problem_add(t) = (struct option_spec){.name = limit->name,
                                           .type = OPTION_NUMBERS,
                                           .offset = at + offsetof(struct problem_options, limit),
                                           .value = "ROWS",
                                           .help = limit->about,
                                           .min = 1,
                                           .max = UINT32_MAX,
                                           .parts = 1,
                                           .contexts = limited,
                                           .group = PROBLEM_GROUP};
}

/* Beside shapes and limits, at their places in struct problem_options. */
#define AT(field) .offset = offsetof(struct problem_options, field)
static const struct {
    int (*wanted)(enum mk_op); /* NULL: every operator */
    struct option_spec spec;
} problem_specs[] = {
    {op_has_limit,
     {"overflow", OPTION_WORD, AT(drops), "end|drop",
      "where there is more than there is room for: end, the launch ends on all ranks; drop, "
      "each rank keeps of its tokens' places on experts of one rank the first "
      "capacity / ranks, in the order of tokens and places, so that nothing can overflow, "
      "and other places count as none. Default end",
      .words = op_overflows, .word_count = 2}},
    {op_has_halves,
     {"launch", OPTION_WORD, AT(halves), "whole|halves",
      "halves: a launch is two kernels, one that sends and one that takes what has come, between "
      "which a program can compute on all SMs (mk_launch_begin); here one follows the other. "
      "Default whole",
      .words = op_launches, .word_count = 2}},
    {op_has_limit,
     {"replicas", OPTION_NUMBERS, AT(replicas), "N",
      "of the experts that ranks hold N are copies: tokens name E - N experts, of "
      "which those that most tokens choose are on several ranks, and a token takes "
      "the nearest: on its rank, else in its node, else any. Default 0",
      1, UINT32_MAX}},
    {problem_has_mask,
     {"causal", OPTION_FLAG, AT(causal), NULL, "a row attends to itself and the rows before it"}},
    {problem_has_mask,
     {"split", OPTION_WORD, AT(contiguous), "zigzag|contiguous",
      "with --causal, which rows of the sequence rank r of W holds: zigzag, blocks r and "
      "2 W - 1 - r of 2 W, so that all have the same work; contiguous, block r of W, as "
      "without a mask. Default zigzag",
      .words = plan_splits, .word_count = 2}},
    {problem_has_layout,
     {"b-layout", OPTION_WORD, AT(layout), "kn|nk",
      "kn: B is [K,N]; nk: B is [N,K], as PyTorch keeps a weight. Default kn", .words = layouts,
      .word_count = 2}},
    {problem_takes_dtype,
     {"dtype", OPTION_WORD, AT(dtype), "bf16|fp16|fp8|bytes",
      "fp16: of operators without experts and attention, in place of bf16. fp8: A and B are "
      "e4m3, with an fp32 scale for 1 x 128 of A and for 128 x 128 of B, and "
      "--b-layout nk; C is bf16. A token of a MoE has its scales behind it. "
      "Operators that only move rows take fp8 and bytes as they are. "
      "Default bf16",
      .words = plan_dtypes, .word_count = MK_PLAN_DTYPES}},
    {op_has_b_columns,
     {"b-scales", OPTION_WORD, AT(b_scales), "blocks|columns",
      "of fp8: B has a scale for 128 x 128, or one for each of its columns. Default blocks",
      .words = plan_b_scales, .word_count = 2}},
    {op_has_back,
     {"back", OPTION_WORD, AT(back), "bf16|fp8",
      "how sums of tokens travel back: fp8, e4m3 with an fp32 scale for each 128 of a row, half "
      "the bytes and 2.6e-2 of error for each rank or node that they come from. Default bf16",
      .words = plan_backs, .word_count = 2}},
    {op_has_epilogue,
     {"epilogue", OPTION_TEXT, AT(epilogue), "none|bias|silu|..",
      "ag_gemm: what follows the product before it is rounded, bias, silu, gelu_tanh, bias+silu, "
      "bias+gelu_tanh, and with an activation +gated (C[,j] = f(P[,j]) P[,N/2+j]: SwiGLU, GeGLU); "
      "gemm_rs and gemm_ar: what follows the sum, residual, residual+rmsnorm, "
      "residual+rmsnorm+quantize (e4m3 codes and scales of the normed rows). "
      "Default none"}},
    {NULL,
     {"deterministic", OPTION_FLAG, AT(deterministic), NULL,
      "adds in rank order in fp32, so that every run gives the same bits"}},
    {NULL,
     {"same-bits", OPTION_FLAG, AT(deterministic), NULL,
      "a row of C has the same bits whatever M, the plan and the number of ranks: more than "
      "--deterministic. ag_gemm, moe_dispatch_gemm; ring_attention whose ranks' runs of rows are "
      "128s; on 1, 2, 4 or 8 ranks moe_ffn and, with a K of 64s, gemm_rs and gemm_ar",
      .max = MK_EVERYWHERE}},
    {op_on_gpu,
     {"engine", OPTION_WORD, AT(engine), "wgmma|mma|device",
      "whose kernels run on a GPU: Hopper's, by wgmma and TMA, or those of any GPU of compute "
      "capability 8.0 and up, by mma.sync. Default device: wgmma on Hopper, mma on others",
      .words = plan_engines, .word_count = MK_ENGINES}},
};

static void problem_add_problem(struct problem_table *t, enum problem_command command, size_t at)
{
    problem_add_shapes(t, command, at);
    problem_add_limit(t, command, at);
    for (size_t i = 0; i < sizeof problem_specs / sizeof *problem_specs; i++) {
        int (*wanted)(enum mk_op) = problem_specs[i].wanted;
        uint32_t contexts = problem_ops_where(command, wanted);
        if (!contexts ||
            (command == PROBLEM_TUNE && /* which has no tokens to choose experts */
             problem_specs[i].spec.offset == offsetof(struct problem_options, replicas)))
            continue;
        struct option_spec *s = problem_add(t);
        *s = problem_specs[i].spec;
        s->offset += at;
        s->contexts = wanted ? contexts : 0;
        s->group = PROBLEM_GROUP;
    }
}

/* What the help says of an option of the plan, whose name and range are core's (core/plan/tuning.h). */
static const struct {
    const char *value, *help;
} problem_knobs[TUNING_KNOBS] = {
    [TUNING_TILE] = {"M,N", "rows and columns of a tile"},
    [TUNING_ROLES] = {"compute=..,...",
                      "CTAs of each role: compute, intra_comm, inter_send, inter_reduce"},
    [TUNING_CHUNK_ROWS] = {"ROWS", "rows of a chunk: a multiple of the tile's rows"},
    [TUNING_SLICES] =
        {"N", "ag_gemm: column ranges of a chunk, which arrive one after the other (one "
              "node); moe_ffn: cuts of what a rank computes last, between which sums of "
              "what is through are made; gemm_rs: parts that K of the last wave's tiles is "
              "cut in, at most (one node)"},
    [TUNING_PIECES] = {"N", "parts of a chunk or slice that different CTAs push over NVLink"},
    [TUNING_PACE] =
        {"NS|none",
         "an auxiliary warp pushes 512 bytes in this time at the fastest; none: no limit"},
    [TUNING_FANOUT] = {"N", "how many peers of its node a rank pushes to at once"},
    [TUNING_SHOTS] =
        {"1|2|3|4", "1: tiles have rows of all ranks, who exchange them at once, for few rows; 2: "
                    "tiles are of one rank's rows; 3 (gemm_ar): of all ranks, each of whom adds "
                    "some of a tile's columns for all; 4 (gemm_ar): of one rank's columns"},
    [TUNING_SPLIT_K] = {"1|2", "2: two CTAs share a tile of 128x128, each multiplies by half of K "
                               "(few rows in one shot, engine wgmma)"},
};

/* What a command adds to that. */
static const char *problem_knob_note(enum problem_command command, uint32_t knob)
{
    if (knob == TUNING_TILE && command == PROBLEM_SIM)
        return ". Default: the plan's; with --explore 16,64";
    if (knob == TUNING_PACE)
        return command == PROBLEM_SIM ? "" : " (cuda)";
    return "";
}

char *problem_knob_option(uint32_t knob, uint32_t part, char text[PROBLEM_KNOB_TEXT])
{
    snprintf(text, PROBLEM_KNOB_TEXT, "--%s", tuning_knobs[knob].name);
    if (tuning_knobs[knob].parts == 2) /* "M,N" */
        mk_append(text, PROBLEM_KNOB_TEXT, " %c", problem_knobs[knob].value[2 * part]);
    return text;
}

static void problem_add_plan(struct problem_table *t, enum problem_command command, size_t at,
                             const char *group)
{
    static char names[TUNING_KNOBS][PROBLEM_KNOB_TEXT], help[TUNING_KNOBS][400];
    uint32_t all = problem_ops_of_knob(command, TUNING_ROLES);
    for (uint32_t i = 0; i < TUNING_KNOBS; i++) {
        const struct tuning_knob *k = &tuning_knobs[i];
        struct option_spec *s = problem_add(t);
        problem_knob_option(i, 0, names[i])[2 + strlen(k->name)] = '\0'; /* without " M" */
        *s = (struct option_spec){.name = names[i] + 2,
                                  .type = OPTION_NUMBERS,
                                  AT(knobs) + at +
                                      i * sizeof(((struct problem_options *)0)->knobs[0]),
                                  .value = problem_knobs[i].value,
                                  .help = help[i],
                                  .min = k->min,
                                  .max = k->max,
                                  .parts = k->parts,
                                  .words = k->word ? &k->word : NULL,
                                  .contexts = problem_ops_of_knob(command, i),
                                  .group = group};
        if (i == TUNING_ROLES) {
            s->type = OPTION_ROLES;
            s->offset = at + offsetof(struct problem_options, roles);
        }
        snprintf(help[i], sizeof help[0], "%s%s", problem_knobs[i].help,
                 problem_knob_note(command, i));
        for (int op = 0, first = 1; s->contexts != all && op < MK_OPS; op++)
            if (s->contexts >> op & 1) {
                mk_append(help[i], sizeof help[0], "%s%s", first ? ". For " : ", ",
                          plan_op_name(op));
                first = 0;
            }
    }
    *problem_add(t) = (struct option_spec){
        .name = "sms",
        .type = OPTION_NUMBERS,
        AT(sms) + at,
        .value = "N",
        .help = "SMs of a GPU that the plan may have, so that other kernels have the others. "
                "Default: all",
        .min = 1,
        .max = PLAN_MOST_CTAS,
        .parts = 1,
        .contexts = all,
        .group = group};
#undef AT
}

void problem_table(struct problem_table *t, const struct option_table *own,
                   enum problem_command command, size_t at, const char *plan)
{
    char ops[OP_LIST_TEXT];
    t->table = *own;
    t->table.specs = t->specs;
    t->table.about = t->about;
    t->table.count = 0;
    snprintf(t->about, sizeof t->about, "%s%sOP: %s", own->about,
             own->about[strlen(own->about) - 1] == '\n' ? "" : " ",
             op_list(ops, sizeof ops, command == PROBLEM_TUNE ? op_is_tuned : NULL, " ", " "));
    problem_add_problem(t, command, at);
    if (command != PROBLEM_TUNE)
        problem_add_plan(t, command, at, plan);
    for (size_t i = 0; i < own->count; i++)
        *problem_add(t) = own->specs[i];
}

void problem_restrict(struct problem_table *t, const char *name, int (*wanted)(enum mk_op op))
{
    for (size_t i = 0; i < t->table.count; i++) {
        if (strcmp(t->specs[i].name, name))
            continue;
        t->specs[i].contexts = 0;
        for (int op = 0; op < MK_OPS; op++)
            t->specs[i].contexts |= (uint32_t)(wanted(op) != 0) << op;
    }
}

void problem_help(const struct problem_table *t, const struct options_found *found, FILE *out)
{
    struct problem_table of = *t;
    int op = found->word_count == 1 ? plan_op_by_name(found->words[0]) : -1;
    of.table.specs = of.specs;
    of.table.about = of.about;
    if (op >= 0) {
        of.table.count = 0;
        for (size_t i = 0; i < t->table.count; i++)
            if (!t->specs[i].contexts || t->specs[i].contexts >> op & 1)
                of.specs[of.table.count++] = t->specs[i];
        snprintf(of.about, sizeof of.about, "%s: %s. Without %s: the options of all.",
                 plan_op_name(op), op_of(op)->help, plan_op_name(op));
    }
    options_help(&of.table, out);
}

static int problem_find_op(const struct options_found *found, enum mk_op *op, char *error,
                           size_t size)
{
    const char *names[MK_OPS];
    char list[OP_LIST_TEXT];
    for (int i = 0; i < MK_OPS; i++)
        names[i] = plan_op_name(i);
    int named = found->word_count == 1 ? plan_op_by_name(found->words[0]) : -1;
    if (!found->word_count)
        snprintf(error, size, "which op is missing (%s, for one)", names[0]);
    else if (found->word_count > 1)
        snprintf(error, size, "%s is one argument too many", found->words[1]);
    else if (named < 0) {
        const char *near = nearest_word(found->words[0], names, MK_OPS);
        snprintf(error, size, "there is no op %s (%s%s%s)", found->words[0],
                 near ? "did you mean " : "ops are ",
                 near ? near : op_list(list, sizeof list, NULL, ", ", ", "), near ? "?" : "");
    }
    if (named < 0)
        return -EINVAL;
    *op = named;
    return 0;
}

int problem_has_epilogue(const struct problem_options *o)
{
    return o->epilogue && strcmp(o->epilogue, "none") != 0;
}

/* Whether the operator takes what was given; else who does. */
static int problem_check_op(const struct problem_table *t, const struct options_found *found,
                            enum mk_op op, char *error, size_t size)
{
    const struct option_spec *s =
        options_check(&t->table, found, 1u << op, plan_op_name(op), error, size);
    for (int i = 0, first = 1; i < MK_OPS && s; i++)
        if (s->contexts >> i & 1) {
            mk_append(error, size, "%s%s", first ? ", which is for " : ", ", plan_op_name(i));
            first = 0;
        }
    return s ? -EINVAL : 0;
}

int problem_check(const struct problem_table *t, const struct options_found *found,
                  const struct problem_options *o, enum mk_op *op, char *error, size_t size)
{
    int result = problem_find_op(found, op, error, size);
    if (!result)
        result = problem_check_op(t, found, *op, error, size);
    if (!result && problem_has_epilogue(o))
        result = epilogue_read("--epilogue ", o->epilogue, &(uint32_t){0}, error, size);
    if (result)
        return result;
    const struct op_shape *shape = op_of(*op)->shape;
    uint32_t count = 0;
    while (count < OP_DIMENSIONS && o->numbers[count])
        count++;
    if (!count || count == op_dimensions(shape))
        return 0;
    char given[OP_DIMENSIONS * 21] = "";
    for (uint32_t i = 0; i < count; i++)
        mk_append(given, sizeof given, "%s%lu", i ? "," : "", o->numbers[i]);
    return mk_fail(-EINVAL, error, size, "--%s %s: of %s it is %s", shape->option, given,
                   plan_op_name(*op), shape->letters);
}

/* ---- problems ---- */

void problem_fill(struct problem_options *o, enum op_size size, struct mk_problem *q)
{
    plan_set_dtype(q, o->dtype);
    if (!o->numbers[0]) {
        op_of(q->op)->choose_shape(size, mk_world(&q->topo), o->numbers);
        op_set_numbers(q, o->numbers);
        if (plan_dtype(q))
            op_fit(q);
        op_numbers(q, o->numbers);
    }
    op_set_numbers(q, o->numbers);
    q->attention.causal = o->causal;
    q->attention.contiguous = o->contiguous;
    op_set_limit(q, o->limit);
    op_set_drops(q, o->drops);
    op_set_halves(q, o->halves);
    if (o->replicas && o->replicas < q->moe.experts)
        op_set_logical(q, q->moe.experts - o->replicas);
    q->b_transposed = o->layout;
    q->b_columns = o->b_scales;
    q->back_fp8 = o->back;
    q->deterministic = o->deterministic;
    if (problem_has_epilogue(o))
        epilogue_read("", o->epilogue, &q->epilogue, NULL, 0);
    q->sms_most = (uint32_t)o->sms;
    q->engine = o->engine;
    q->tuning = (struct mk_tuning){.split = o->roles};
    for (uint32_t i = 0; i < TUNING_KNOBS; i++)
        for (uint32_t part = 0; i != TUNING_ROLES && part < tuning_knobs[i].parts; part++)
            tuning_value(&q->tuning, i)[part] = (uint32_t)o->knobs[i][part];
}

int problem_check_replicas(const struct problem_options *o, const struct mk_problem *q, char *error,
                           size_t size)
{
    const uint64_t world = mk_world(&q->topo), most = q->moe.experts - q->moe.experts / world;
    if (o->replicas <= most)
        return 0;
    return mk_fail(-EINVAL, error, size,
                   "--replicas %lu: of %lu experts on %lu rank%s at most %lu are copies, one of an "
                   "expert on each other rank",
                   o->replicas, q->moe.experts, world, world == 1 ? "" : "s", most);
}

const char *problem_heap_text(const struct mk_plan *plan, char text[PROBLEM_HEAP_TEXT])
{
    double bytes = (double)plan->heap_bytes;
    uint64_t limit = op_limit_of(&plan->problem);
    snprintf(text, PROBLEM_HEAP_TEXT, "%.3g %s of each rank's heap",
             bytes / (bytes < 1e9 ? 1e6 : 1e9), bytes < 1e9 ? "MB" : "GB");
    if (limit)
        mk_append(text, PROBLEM_HEAP_TEXT, " (%s %lu)", op_of(plan->problem.op)->limit->name,
                  limit);
    return text;
}

int problem_has(const struct mk_problem *q, const uint64_t *number)
{
    const struct op_shape *shape = op_of(q->op)->shape;
    for (uint32_t i = 0; i < op_dimensions(shape); i++)
        if (shape->dimensions[i].offset == (size_t)((const char *)number - (const char *)q))
            return 1;
    return 0;
}
