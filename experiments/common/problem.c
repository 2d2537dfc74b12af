#include "experiments/common/problem.h"
#include "experiments/common/nearest.h"
#include "core/plan/epilogue.h"
#include "core/base/sentence.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

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

#define AT(field) .offset = offsetof(struct problem_options, field)

/* Beside the fields, at their places in struct problem_options. */
static const struct option_spec problem_copies = {
    "replicas",
    OPTION_NUMBERS,
    AT(replicas),
    "N",
    "of the experts that ranks hold N are copies: tokens name E - N experts, of which those that "
    "most tokens choose are on several ranks, and a token takes the nearest: on its rank, else in "
    "its node, else any. Default 0",
    1,
    UINT32_MAX};

/* A flag beside --deterministic. */
static const struct option_spec problem_same_bits = {
    "same-bits", OPTION_FLAG, .value = NULL,
    .help =
        "a row of C has the same bits whatever M, the plan and the number of ranks: more than "
        "--deterministic. ag_gemm, moe_dispatch_gemm; ring_attention whose ranks' runs of rows are "
        "128s; on 1, 2, 4 or 8 ranks moe_ffn and, with a K of 64s, gemm_rs and gemm_ar",
    .max = MK_EVERYWHERE};

char *problem_field_option(const struct plan_field *f, char text[PROBLEM_KNOB_TEXT])
{
    snprintf(text, PROBLEM_KNOB_TEXT, "--%s", f->name);
    for (char *c = text; *c; c++)
        *c = *c == '_' ? '-' : *c;
    return text;
}

/* Adds `s`, of operators that `wanted` is true of. */
static void problem_add_of(struct problem_table *t, enum problem_command command, size_t at,
                           const struct option_spec *s, int (*wanted)(enum mk_op))
{
    uint32_t contexts = problem_ops_where(command, wanted);
    if (!contexts)
        return;
    struct option_spec *own = problem_add(t);
    *own = *s;
    own->offset += at;
    own->contexts = wanted ? contexts : 0;
    own->group = PROBLEM_GROUP;
}

static void problem_add_field(struct problem_table *t, enum problem_command command, size_t at,
                              const struct plan_field *f)
{
    static char names[PLAN_FIELDS][PROBLEM_KNOB_TEXT], values[PLAN_FIELDS][48];
    static const enum option_type types[] = {
        [PLAN_NUMBER] = OPTION_NUMBERS, [PLAN_FLAG] = OPTION_FLAG,     [PLAN_WORD] = OPTION_WORD,
        [PLAN_SUMS] = OPTION_FLAG,      [PLAN_EPILOGUE] = OPTION_TEXT,
    };
    const size_t i = (size_t)(f - plan_fields);
    const int number = f->kind == PLAN_NUMBER;
    struct option_spec s = {.name = problem_field_option(f, names[i]) + 2,
                            .type = types[f->kind],
                            AT(fields) + i * sizeof(union problem_value),
                            .help = f->help,
                            .value = number ? "N" : f->form,
                            .min = (uint64_t)number,
                            .max = number ? UINT32_MAX : 0};
    if (f->kind == PLAN_WORD) {
        s.words = f->words;
        s.word_count = f->count;
        s.value = values[i];
        values[i][0] = '\0';
        for (uint32_t word = 0; word < f->count; word++)
            mk_append(values[i], sizeof values[0], "%s%s", word ? "|" : "",
                      f->words[(word + f->first) % f->count]);
    }
    problem_add_of(t, command, at, &s, f->has);
    if (f->kind == PLAN_SUMS) {
        struct option_spec more = problem_same_bits;
        more.offset = s.offset;
        problem_add_of(t, command, at, &more, f->has);
    }
}

static void problem_add_problem(struct problem_table *t, enum problem_command command, size_t at)
{
    problem_add_shapes(t, command, at);
    for (const struct plan_field *f = plan_fields; f < plan_fields + PLAN_FIELDS; f++)
        if (f->help)
            problem_add_field(t, command, at, f);
    if (command != PROBLEM_TUNE) /* which has no tokens to choose experts */
        problem_add_of(t, command, at, &problem_copies, op_has_limit);
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

static const char *problem_epilogue(const struct problem_options *o, const struct plan_field *f)
{
    const char *text = f->kind == PLAN_EPILOGUE ? o->fields[f - plan_fields].text : NULL;
    return text && strcmp(text, "none") != 0 ? text : NULL;
}

static uint64_t problem_value_of(const struct problem_options *o, const struct plan_field *f)
{
    const union problem_value *v = &o->fields[f - plan_fields];
    uint32_t bits = 0;
    if (f->kind == PLAN_EPILOGUE && problem_epilogue(o, f))
        epilogue_read("", v->text, &bits, NULL, 0);
    return f->kind == PLAN_NUMBER ? v->number : f->kind == PLAN_EPILOGUE ? bits : (uint64_t)v->word;
}

uint64_t problem_asked(const struct problem_options *o, const char *field)
{
    const struct plan_field *f = plan_fields;
    while (strcmp(f->name, field) != 0)
        f++;
    return problem_value_of(o, f);
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
    for (const struct plan_field *f = plan_fields; f < plan_fields + PLAN_FIELDS && !result; f++)
        if (problem_epilogue(o, f))
            result =
                epilogue_read("--epilogue ", problem_epilogue(o, f), &(uint32_t){0}, error, size);
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
    for (const struct plan_field *f = plan_fields; f < plan_fields + PLAN_FIELDS; f++)
        if (f->help)
            plan_field_set(f, q, problem_value_of(o, f));
    if (!o->numbers[0]) {
        op_of(q->op)->choose_shape(size, mk_world(&q->topo), o->numbers);
        op_set_numbers(q, o->numbers);
        if (plan_dtype(q))
            op_fit(q);
        op_numbers(q, o->numbers);
    }
    op_set_numbers(q, o->numbers);
    if (o->replicas && o->replicas < q->moe.experts)
        op_set_logical(q, q->moe.experts - o->replicas);
    q->sms_most = (uint32_t)o->sms;
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
        mk_append(text, PROBLEM_HEAP_TEXT, " (capacity %lu)", limit);
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
