/* Between the public header and the plan: what a user asks for becomes a problem, and a plan
 * answers what a user asks about it. */
#include "core/base/c_numbers.h"
#include "core/comm/comm_parts.h"
#include "core/plan/epilogue.h"
#include "core/mkernel.h"
#include "core/ops/op.h"
#include "core/plan/plan_fields.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(OP_DIMENSIONS <= MK_SHAPE, "mk_spec.shape has room for every operator's numbers");

uint32_t mk_version(void)
{
    return MK_VERSION_NUMBER;
}

const char *mk_op_name(uint32_t op)
{
    return plan_op_name(op);
}

int mk_op_by_name(const char *name)
{
    return plan_op_by_name(name);
}

const char *mk_op_shape(uint32_t op)
{
    return op_of(op) ? op_of(op)->shape->letters : "";
}

static const char *const spec_types[] = {
    [OP_BF16] = "bf16",     [OP_FP16] = "fp16", [OP_FP32] = "fp32",
    [OP_UINT32] = "uint32", [OP_E4M3] = "e4m3", [OP_UINT8] = "uint8"};

/* A text that grows as far as there is room, and its whole length. */
struct spec_text {
    char *text;
    size_t size, length;
};

__attribute__((format(printf, 2, 3))) static void spec_say(struct spec_text *t, const char *format,
                                                           ...)
{
    va_list args;
    va_start(args, format);
    t->length += (size_t)vsnprintf(t->length < t->size ? t->text + t->length : NULL,
                                   t->length < t->size ? t->size - t->length : 0, format, args);
    va_end(args);
}

/* "M,N/runs": how many that is is the problem's to say. */
static void spec_say_shape(struct spec_text *t, const struct mk_problem *q, const char *shape)
{
    const char *runs = strstr(shape, "/runs");
    spec_say(t, "%.*s%s%s", runs ? (int)(runs - shape) : (int)strlen(shape), shape,
             runs && q->epilogue & MK_EPILOGUE_GATED ? "/2" : "", runs ? runs + 5 : "");
}

static void spec_say_arguments(struct spec_text *t, const struct op_descriptor *op,
                               const struct mk_problem *q)
{
    for (uint32_t i = 0; i < op_arguments(q); i++) {
        const struct op_argument *a = op_argument(q, i);
        spec_say(t, "%s{\"name\":\"%s\",\"type\":\"%s\",\"shape\":\"", i ? "," : "", a->name,
                 spec_types[op_argument_type(q, i)]);
        spec_say_shape(t, q, a->shape);
        spec_say(t, "\",\"output\":%d,\"swaps\":%d}", a->output,
                 op->b_layout && a->name[0] == 'B' && a->type == OP_FACTOR);
    }
}

/* The same operator with other arguments: of another type, with what follows it, with a count. */
static const struct spec_variant {
    const char *name;
    uint32_t epilogue;
    int fp8, bytes, counted;
} spec_variants[] = {
    {.name = "fp8", .fp8 = 1},
    {.name = "bytes", .bytes = 1},
    {.name = "bias", .epilogue = MK_EPILOGUE_BIAS},
    {.name = "bias_fp8", .epilogue = MK_EPILOGUE_BIAS, .fp8 = 1},
    {.name = "gated", .epilogue = MK_EPILOGUE_GATED},
    {.name = "gated_fp8", .epilogue = MK_EPILOGUE_GATED, .fp8 = 1},
    {.name = "gated_bias", .epilogue = MK_EPILOGUE_GATED | MK_EPILOGUE_BIAS},
    {.name = "gated_bias_fp8", .epilogue = MK_EPILOGUE_GATED | MK_EPILOGUE_BIAS, .fp8 = 1},
    {.name = "residual", .epilogue = MK_EPILOGUE_RESIDUAL},
    {.name = "residual_fp8", .epilogue = MK_EPILOGUE_RESIDUAL, .fp8 = 1},
    {.name = "rmsnorm", .epilogue = MK_EPILOGUE_ROWS},
    {.name = "rmsnorm_fp8", .epilogue = MK_EPILOGUE_ROWS, .fp8 = 1},
    {.name = "quantize", .epilogue = MK_EPILOGUE_ROWS | MK_EPILOGUE_QUANTIZE},
    {.name = "quantize_fp8", .epilogue = MK_EPILOGUE_ROWS | MK_EPILOGUE_QUANTIZE, .fp8 = 1},
    {.name = "counted", .counted = 1},
    {.name = "counted_fp8", .fp8 = 1, .counted = 1}};

/* The arguments of a variant; none where the operator has no such. */
static void spec_say_variant(struct spec_text *t, const struct op_descriptor *op, uint32_t number,
                             const struct spec_variant *v)
{
    struct mk_problem q = {.op = number, .fp8 = v->fp8, .bytes = v->bytes, .epilogue = v->epilogue};
    plan_field_set(plan_field_named("tokens"), &q, (uint64_t)v->counted);
    spec_say(t, ",\"%s\":[", v->name);
    if ((!v->fp8 || op->fp8) && (!v->bytes || op_has_bytes(number)) && (!v->counted || op->limit) &&
        !(v->epilogue & ~(uint32_t)op->epilogue))
        spec_say_arguments(t, op, &q);
    spec_say(t, "]");
}

int mk_op_describe(uint32_t number, char *text, uint64_t size)
{
    MK_C_NUMBERS;
    const struct op_descriptor *op = op_of(number);
    const struct mk_problem plain = {.op = number};
    struct spec_text t = {text, size, 0};
    if (!op)
        return -EINVAL;
    spec_say(&t, "{\"name\":\"%s\",\"help\":\"%s\",\"shape\":[", plan_op_name(number), op->help);
    for (uint32_t i = 0; i < op_dimensions(op->shape); i++)
        spec_say(&t, "%s{\"letter\":\"%s\",\"name\":\"%s\"}", i ? "," : "",
                 op->shape->dimensions[i].letter, op->shape->dimensions[i].name);
    spec_say(&t, "],\"arguments\":[");
    spec_say_arguments(&t, op, &plain);
    spec_say(&t, "]");
    for (uint32_t i = 0; i < sizeof spec_variants / sizeof *spec_variants; i++)
        spec_say_variant(&t, op, number, &spec_variants[i]);
    spec_say(&t, ",\"options\":[");
    int some = 0;
    for (const struct plan_field *f = NULL; (f = tuning_next(f));)
        if (plan_field_of(f, (enum mk_op)number))
            spec_say(&t, "%s\"%s\"", some++ ? "," : "", plan_field_option(f));
    for (const struct plan_field *f = NULL; (f = plan_field_next(f, PLAN_IN_SPEC));)
        if (plan_field_of(f, (enum mk_op)number))
            spec_say(&t, "%s\"%s\"", some++ ? "," : "", f->name);
    spec_say(&t, "],\"fp16\":%d,\"causal\":%d,\"deterministic\":%d,\"a_in_heap\":%d}", op->fp16,
             op->causal, op->sums, op->a_in_heap);
    return (int)t.length;
}

/* ---- what is asked ---- */

/* The field that a word of options says. 1: it says one; 0: it may be one of the plan's own. */
static int spec_read_field(const char *word, struct mk_problem *q, char *error, size_t size)
{
    const struct plan_field *f = NULL;
    char list[OP_LIST_TEXT];
    uint64_t values[2];
    while ((f = plan_field_next(f, PLAN_IN_SPEC)) && !setting_value(word, f->name))
        ;
    if (!f)
        return 0;
    if (f->lacks && !f->has((enum mk_op)q->op))
        return plan_refuse(error, size, "'%s': %s %s; it is of %s", word, plan_op_name(q->op),
                           f->lacks, op_list(list, sizeof list, f->has, ", ", " and "));
    const int result = plan_field_read(f, setting_value(word, f->name), values, error, size);
    if (!result) /* of an epilogue one word after the other may be said */
        plan_field_set(f, q, values[0] | (f->kind == PLAN_EPILOGUE ? plan_field_get(f, q) : 0));
    return result ? result : 1;
}

/* Behind the names of the plan's own: the other options that the operator has. */
static void spec_name_others(const struct mk_problem *q, char *error, size_t size)
{
    const char *between = "; besides them ";
    for (const struct plan_field *f = NULL; (f = plan_field_next(f, PLAN_IN_SPEC));)
        if (plan_field_of(f, (enum mk_op)q->op)) {
            mk_append(error, size, "%s%s", between, f->name);
            between = ", ";
        }
}

static int spec_read_options(struct mk_problem *q, const char *options, char *error, size_t size)
{
    char text[SPEC_OPTIONS], *save;
    if (strlen(options) >= sizeof text)
        return plan_refuse(error, size, "options of %zu letters: at most %zu", strlen(options),
                           sizeof text - 1);
    memcpy(text, options, strlen(options) + 1);
    for (char *word = strtok_r(text, " ", &save); word; word = strtok_r(NULL, " ", &save)) {
        int result = spec_read_field(word, q, error, size);
        if (!result && (result = tuning_read_word(word, q->op, &q->tuning, error, size)) &&
            !tuning_option(word, strcspn(word, "=")))
            spec_name_others(q, error, size);
        if (result < 0)
            return result;
    }
    return 0;
}

int spec_to_problem(struct mk_problem *q, const struct mk_spec *spec, char *error, size_t size)
{
    const struct op_descriptor *op = op_of(spec->op);
    memset(q, 0, sizeof *q);
    q->op = spec->op;
    q->attention.causal = spec->causal != 0;
    q->b_transposed = spec->b_transposed != 0;
    q->deterministic = spec->deterministic;
    q->a_in_heap = spec->a_offset != 0;
    q->a_offset = spec->a_offset;
    q->c_in_heap = spec->c_offset != 0;
    q->c_offset = spec->c_offset;
    q->timeout_ns = spec->timeout_ns;
    if (!op)
        return plan_refuse(error, size, "there is no operator number %d", (int)spec->op);
    for (uint32_t i = op_dimensions(op->shape); i < MK_SHAPE; i++)
        if (spec->shape[i])
            return plan_refuse(error, size, "shape[%u] is %lu: that of %s has %u numbers, %s", i,
                               spec->shape[i], plan_op_name(spec->op), op_dimensions(op->shape),
                               op->shape->letters);
    op_set_numbers(q, spec->shape);
    if (spec->deterministic < MK_FAST || spec->deterministic > MK_EVERYWHERE)
        return plan_refuse(error, size, "deterministic is %d: 0, 1, or 2, the same bits everywhere",
                           spec->deterministic);
    if (q->b_transposed && !op->b_layout)
        return plan_refuse(error, size, "b_transposed: %s has no B", plan_op_name(spec->op));
    int a = q->a_in_heap && !op->a_in_heap, c = q->c_in_heap && !op->c_in_heap;
    if (a || c)
        return plan_refuse(error, size, "%s: %s does not look whether %s lies in the heap",
                           a ? "a_offset" : "c_offset", plan_op_name(spec->op), a ? "A" : "C");
    return spec->options ? spec_read_options(q, spec->options, error, size) : 0;
}

/* What has one value in such a plan is no option of its operator, and would be refused as one. */
int spec_options(const struct mk_plan *p, char *text, size_t size)
{
    const struct mk_problem *q = &p->problem;
    char words[SPEC_OPTIONS], error[256], *save;
    struct mk_tuning none;
    *text = '\0';
    for (const struct plan_field *f = NULL; (f = plan_field_next(f, PLAN_IN_SPEC));) {
        const uint64_t value = plan_field_get(f, q);
        if (value > f->first)
            mk_append(text, size, "%s%s=%s", *text ? " " : "", f->name,
                      plan_field_text(f, value, words));
    }
    tuning_words(&q->tuning, words, sizeof words);
    for (char *word = strtok_r(words, " ", &save); word; word = strtok_r(NULL, " ", &save))
        if (!tuning_read_word(word, q->op, &none, error, sizeof error))
            mk_append(text, size, "%s%s", *text ? " " : "", word);
    return strlen(text) + 1 < size ? 0 : -ENOSPC;
}

/* ---- what was made ---- */

uint32_t mk_plan_op(const struct mk_plan *p)
{
    return p->problem.op;
}

uint32_t mk_plan_shape(const struct mk_plan *p, uint64_t shape[MK_SHAPE])
{
    memset(shape, 0, MK_SHAPE * sizeof *shape);
    return op_numbers(&p->problem, shape);
}

const char *mk_plan_options(const struct mk_plan *p)
{
    return COMM_HANDLE(p)->options;
}

const char *mk_plan_tuned(const struct mk_plan *p)
{
    return p->tuned;
}

uint32_t mk_plan_ctas(const struct mk_plan *p, enum mk_role role)
{
    return (unsigned)role < MK_ROLES ? p->problem.tuning.split.ctas[role] : 0;
}

uint32_t mk_plan_tiles(const struct mk_plan *p)
{
    return p->tiles;
}

uint64_t mk_plan_heap_bytes(const struct mk_plan *p)
{
    return p->heap_bytes;
}

uint64_t mk_plan_flag_bytes(const struct mk_plan *p)
{
    return (uint64_t)p->flags * 8;
}

struct work {
    double flop;
    uint64_t nvlink_bytes, network_bytes;
};

static struct work spec_work_of(const struct mk_plan *p)
{
    struct work w;
    plan_work(p, &w.flop, &w.nvlink_bytes, &w.network_bytes);
    return w;
}

double mk_plan_flop(const struct mk_plan *p)
{
    return spec_work_of(p).flop;
}

uint64_t mk_plan_nvlink_bytes(const struct mk_plan *p)
{
    return spec_work_of(p).nvlink_bytes;
}

uint64_t mk_plan_network_bytes(const struct mk_plan *p)
{
    return spec_work_of(p).network_bytes;
}

/* ---- arguments ---- */

uint32_t mk_plan_arguments(const struct mk_plan *p)
{
    return op_arguments(&p->problem);
}

static const struct op_argument *spec_argument_of(const struct mk_plan *p, uint32_t i)
{
    return op_argument(&p->problem, i);
}

uint64_t mk_moe_rows(const struct mk_plan *plan)
{
    for (uint32_t i = 0; i < op_arguments(&plan->problem); i++)
        if (!strncmp(op_argument(&plan->problem, i)->shape, "rows,", 5))
            return plan->problem.m;
    return 0;
}

const char *mk_plan_argument_name(const struct mk_plan *p, uint32_t i)
{
    return spec_argument_of(p, i) ? spec_argument_of(p, i)->name : NULL;
}

const char *mk_plan_argument_type(const struct mk_plan *p, uint32_t i)
{
    return spec_argument_of(p, i) ? spec_types[op_argument_type(&p->problem, i)] : NULL;
}

uint64_t mk_plan_argument_bytes(const struct mk_plan *p, uint32_t i)
{
    uint64_t bytes[MK_SPACES - 1];
    op_extents(&p->problem, bytes);
    return spec_argument_of(p, i) ? bytes[i] : 0;
}

int mk_plan_argument_is_output(const struct mk_plan *p, uint32_t i)
{
    return spec_argument_of(p, i) && spec_argument_of(p, i)->output;
}
