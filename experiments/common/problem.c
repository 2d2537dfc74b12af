#include "experiments/common/problem.h"
#include "experiments/common/nearest.h"
#include "core/plan/epilogue.h"
#include "core/base/sentence.h"
#include "core/plan/plan_fields.h"

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

/* Those that have the field; 0: all operators. */
static uint32_t problem_ops_of_field(enum problem_command command, const struct plan_field *f)
{
    uint32_t bits = problem_ops_where(command, NULL), all = 1;
    for (int op = 0; op < MK_OPS; op++)
        if (!plan_field_of(f, op)) {
            bits &= ~(1u << op);
            all = 0;
        }
    return all ? 0 : bits;
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

char *problem_field_option(const struct plan_field *f, uint32_t part, char text[PROBLEM_FIELD_TEXT])
{
    snprintf(text, PROBLEM_FIELD_TEXT, "--%s", plan_field_option(f));
    for (char *c = text; *c; c++)
        *c = *c == '_' ? '-' : *c;
    if (f->parts == 2) /* "M,N" */
        mk_append(text, PROBLEM_FIELD_TEXT, " %c", f->value[2 * part]);
    else if (f->parts)
        mk_append(text, PROBLEM_FIELD_TEXT, " %s", f[part].name);
    return text;
}

/* What a command adds to a field's help. */
static const char *problem_field_note(enum problem_command command, const struct plan_field *f)
{
    if (f->knob == OP_TILE && command == PROBLEM_SIM)
        return ". Default: the plan's; with --explore 16,64";
    return f->knob == OP_PACE && command != PROBLEM_SIM ? " (cuda)" : "";
}

/* The option of a field, of operators that have it. */
static void problem_add_field(struct problem_table *t, enum problem_command command, size_t at,
                              const struct plan_field *f, const char *group)
{
    static char names[PLAN_FIELDS][PROBLEM_FIELD_TEXT], values[PLAN_FIELDS][PLAN_FIELD_WORDS],
        help[PLAN_FIELDS][1000];
    static const enum option_type types[] = {
        [PLAN_NUMBER] = OPTION_NUMBERS, [PLAN_FLAG] = OPTION_FLAG,     [PLAN_WORD] = OPTION_WORD,
        [PLAN_SUMS] = OPTION_FLAG,      [PLAN_EPILOGUE] = OPTION_TEXT,
    };
    const size_t i = (size_t)(f - plan_fields);
    const uint32_t ops = problem_ops_of_field(command, f);
    const int number = f->kind == PLAN_NUMBER;
    if (f->has && !ops)
        return;
    problem_field_option(f, 0, names[i])[2 + strlen(plan_field_option(f))] = '\0'; /* one part */
    snprintf(help[i], sizeof help[0], "%s%s", f->help, problem_field_note(command, f));
    for (int op = 0, first = 1; f->knob && op < MK_OPS; op++)
        if (ops >> op & 1) {
            mk_append(help[i], sizeof help[0], "%s%s", first ? ". For " : ", ", plan_op_name(op));
            first = 0;
        }
    struct option_spec *s = problem_add(t);
    *s = (struct option_spec){.name = names[i] + 2,
                              .type = f->knob == OP_ROLES ? OPTION_ROLES : types[f->kind],
                              .offset = at + (f->knob == OP_ROLES
                                                  ? offsetof(struct problem_options, roles)
                                                  : offsetof(struct problem_options, fields[i])),
                              .value = f->value ? f->value
                                       : number ? "N"
                                                : f->form,
                              .help = help[i],
                              .min = number && !f->least ? 1 : f->least,
                              .max = number && f->count ? f->count
                                     : number           ? UINT32_MAX
                                                        : 0,
                              .parts = f->parts,
                              .words = f->none ? &f->none : NULL,
                              .contexts = ops,
                              .group = group};
    if (f->kind == PLAN_WORD) {
        s->words = f->words;
        s->word_count = f->count;
        s->value = plan_field_words(f, values[i]);
        s->max = f->least ? f->least + f->count - 1 : 0;
    }
    if (f->kind == PLAN_SUMS) {
        struct option_spec *more = problem_add(t);
        *more = problem_same_bits;
        more->offset = s->offset;
        more->contexts = ops;
        more->group = group;
    }
}

static void problem_add_fields(struct problem_table *t, enum problem_command command, size_t at,
                               uint32_t in, const char *group)
{
    for (const struct plan_field *f = NULL; (f = plan_field_next(f, in));)
        problem_add_field(t, command, at, f, group);
}

static void problem_add_copies(struct problem_table *t, enum problem_command command, size_t at)
{
    struct option_spec *s = problem_add(t);
    *s = problem_copies;
    s->offset += at;
    s->contexts = problem_ops_where(command, op_has_limit);
    s->group = PROBLEM_GROUP;
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
    problem_add_shapes(t, command, at);
    problem_add_fields(t, command, at, PLAN_IN_COMMAND, PROBLEM_GROUP);
    if (command != PROBLEM_TUNE) { /* which has no tokens to choose experts */
        problem_add_copies(t, command, at);
        problem_add_fields(t, command, at, PLAN_IN_COMMAND_PLAN, plan);
    }
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

static uint64_t problem_value_of(const struct problem_options *o, const struct plan_field *f)
{
    const union problem_value *v = &o->fields[f - plan_fields];
    return f->kind == PLAN_NUMBER || f->kind == PLAN_EPILOGUE ? v->number : (uint64_t)v->word;
}

uint64_t problem_asked(const struct problem_options *o, const char *field)
{
    return problem_value_of(o, plan_field_named(field));
}

union problem_value *problem_field(struct problem_options *o, const char *field)
{
    return &o->fields[plan_field_named(field) - plan_fields];
}

/* The bits of an epilogue in place of its words. */
static int problem_read_epilogue(union problem_value *v, char *error, size_t size)
{
    const char *words = v->text;
    uint32_t bits = 0;
    const int some = words && strcmp(words, "none") != 0;
    const int result = some ? epilogue_read("--epilogue ", words, &bits, error, size) : 0;
    v->number = bits;
    return result;
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
                  struct problem_options *o, enum mk_op *op, char *error, size_t size)
{
    int result = problem_find_op(found, op, error, size);
    if (!result)
        result = problem_check_op(t, found, *op, error, size);
    for (const struct plan_field *f = NULL; (f = plan_field_next(f, PLAN_IN_COMMAND)) && !result;)
        if (f->kind == PLAN_EPILOGUE)
            result = problem_read_epilogue(&o->fields[f - plan_fields], error, size);
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
    const uint32_t asked = PLAN_IN_COMMAND | PLAN_IN_COMMAND_PLAN;
    q->tuning = (struct mk_tuning){.chunk_rows = 0};
    for (const struct plan_field *f = NULL; (f = plan_field_next(f, asked));)
        for (uint32_t part = 0; part < f->parts || !part; part++)
            plan_field_set(f + part, q, problem_value_of(o, f + part));
    q->tuning.split = o->roles;
    if (!o->numbers[0]) {
        op_of(q->op)->choose_shape(size, mk_world(&q->topo), o->numbers);
        op_set_numbers(q, o->numbers);
        if (plan_dtype(q))
            op_fit(q);
        op_numbers(q, o->numbers);
    }
    op_set_numbers(q, o->numbers);
    if (o->replicas && o->replicas < q->moe.experts)
        plan_field_set(plan_field_named("logical"), q, q->moe.experts - o->replicas);
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

char *problem_slices(const struct mk_tuning *plan, const struct mk_tuning *asked,
                     char text[PROBLEM_SLICES_TEXT])
{
    text[0] = '\0';
    if (plan->slices > 1 || asked->slices > 1)
        snprintf(text, PROBLEM_SLICES_TEXT, "%u slice%s%s, ", plan->slices,
                 plan->slices > 1 ? "s" : "",
                 asked->slices > plan->slices ? " (there is room for no more)" : "");
    return text;
}
