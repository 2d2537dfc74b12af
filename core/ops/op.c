/* The table of operators, and what their descriptors say. */
#include "core/ops/op.h"
#include "core/epilogue.h"
#include "core/gemm_tiles_fp8.h"
#include "core/ops/gemm.h"
#include "core/quantize.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum where { HOST, GPU };

static const struct entry {
    const char *name;
    const struct op_descriptor *op;
    enum where where;
} entries[MK_OPS] = {
#define MK_OPERATOR(name, NAME, where) [MK_OP_##NAME] = {#name, &op_##name, where},
    MK_OPERATORS(MK_OPERATOR)
#undef MK_OPERATOR
};

const struct op_descriptor *op_of(enum mk_op op)
{
    return (unsigned)op < MK_OPS ? entries[op].op : NULL;
}

int op_on_gpu(enum mk_op op)
{
    return (unsigned)op < MK_OPS && entries[op].where == GPU;
}

int op_on_mma(enum mk_op op)
{
    return op_on_gpu(op) && entries[op].op->mma;
}

int op_gpu_tile(const struct mk_problem *q, uint32_t i, struct mk_gemm_tile *out)
{
    const struct op_descriptor *op = op_of(q->op);
    return op->gpu_tile ? op->gpu_tile(q, i, out) : plan_gemm_tile(q, i, out);
}

int op_is_tuned(enum mk_op op)
{
    return (unsigned)op < MK_OPS && entries[op].op->tuned;
}

const char *plan_op_name(uint32_t op)
{
    return op < MK_OPS ? entries[op].name : "unknown op";
}

char *op_list(char *text, size_t size, int (*wanted)(enum mk_op), const char *between,
              const char *last)
{
    const char *names[MK_OPS];
    uint32_t count = 0;
    size_t used = 0;
    text[0] = '\0';
    for (int op = 0; op < MK_OPS; op++)
        if (!wanted || wanted((enum mk_op)op))
            names[count++] = entries[op].name;
    for (uint32_t i = 0; i < count && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%s",
                                 !i              ? ""
                                 : i + 1 < count ? between
                                                 : last,
                                 names[i]);
    return text;
}

/* ---- the problem's numbers ---- */

uint32_t op_dimensions(const struct op_shape *shape)
{
    uint32_t count = 0;
    while (count < OP_DIMENSIONS && shape->dimensions[count].letter)
        count++;
    return count;
}

static uint64_t op_number_at(const struct mk_problem *q, size_t offset)
{
    uint64_t value;
    memcpy(&value, (const char *)q + offset, sizeof value);
    return value;
}

uint32_t op_numbers(const struct mk_problem *q, uint64_t numbers[OP_DIMENSIONS])
{
    const struct op_shape *shape = entries[q->op].op->shape;
    uint32_t count = op_dimensions(shape);
    for (uint32_t i = 0; i < count; i++)
        numbers[i] = op_number_at(q, shape->dimensions[i].offset);
    return count;
}

void op_set_numbers(struct mk_problem *q, const uint64_t numbers[OP_DIMENSIONS])
{
    const struct op_shape *shape = entries[q->op].op->shape;
    for (uint32_t i = 0; i < op_dimensions(shape); i++)
        memcpy((char *)q + shape->dimensions[i].offset, &numbers[i], sizeof numbers[i]);
}

uint64_t op_limit_of(const struct mk_problem *q)
{
    return op_has_limit((enum mk_op)q->op)
               ? op_number_at(q, op_of((enum mk_op)q->op)->limit->offset)
               : 0;
}

void op_set_limit(struct mk_problem *q, uint64_t limit)
{
    if (op_has_limit((enum mk_op)q->op))
        memcpy((char *)q + op_of((enum mk_op)q->op)->limit->offset, &limit, sizeof limit);
}

const char *const op_overflows[2] = {"end", "drop"};

const char *const op_counts[2] = {"plan", "launch"};

static void op_set_choice(struct mk_problem *q, size_t offset, int is)
{
    uint64_t number = is != 0;
    memcpy((char *)q + offset, &number, sizeof number);
}

int op_drops(const struct mk_problem *q)
{
    return op_has_limit((enum mk_op)q->op) &&
           op_number_at(q, op_of((enum mk_op)q->op)->limit->drops) != 0;
}

void op_set_drops(struct mk_problem *q, int drops)
{
    if (op_has_limit((enum mk_op)q->op))
        op_set_choice(q, op_of((enum mk_op)q->op)->limit->drops, drops);
}

int op_counted(const struct mk_problem *q)
{
    return op_has_limit((enum mk_op)q->op) &&
           op_number_at(q, op_of((enum mk_op)q->op)->limit->counted) != 0;
}

void op_set_counted(struct mk_problem *q, int counted)
{
    if (op_has_limit((enum mk_op)q->op))
        op_set_choice(q, op_of((enum mk_op)q->op)->limit->counted, counted);
}

uint64_t op_logical(const struct mk_problem *q)
{
    return op_has_limit((enum mk_op)q->op)
               ? op_number_at(q, op_of((enum mk_op)q->op)->limit->logical)
               : 0;
}

void op_set_logical(struct mk_problem *q, uint64_t logical)
{
    if (op_has_limit((enum mk_op)q->op))
        memcpy((char *)q + op_of((enum mk_op)q->op)->limit->logical, &logical, sizeof logical);
}

int op_has_limit(enum mk_op op)
{
    return op_of(op) && op_of(op)->limit;
}

int op_pieces(enum mk_op op, const struct mk_topo *topo)
{
    const struct op_descriptor *d = op_of(op);
    return d->knobs & OP_PIECES && !(d->pieces_are_put && topo->nodes == 1);
}

int op_needs(enum mk_op op, const struct mk_topo *topo, enum mk_role role)
{
    switch ((enum op_need)entries[op].op->needs[role]) {
    case OP_ALWAYS:
        return 1;
    case OP_IF_GPUS:
        return topo->gpus > 1;
    case OP_IF_NODES:
        return topo->nodes > 1;
    case OP_IF_RANKS:
        return mk_world(topo) > 1;
    case OP_NEVER:
        break;
    }
    return 0;
}

/* ---- formulas ---- */

static uint64_t op_letter_value(const struct mk_problem *q, const char *word, size_t length)
{
    const struct op_shape *shape = entries[q->op].op->shape;
    for (uint32_t i = 0; i < op_dimensions(shape); i++)
        if (strlen(shape->dimensions[i].letter) == length &&
            !strncmp(shape->dimensions[i].letter, word, length))
            return op_number_at(q, shape->dimensions[i].offset);
    if (length == 1 && *word == 'W')
        return mk_world(&q->topo);
    if (length == 6 && !strncmp(word, "record", 6))
        return quantize_record(q->moe.hidden);
    return length == 4 && !strncmp(word, "rows", 4)
               ? q->m
               : 0; /* 0: a mistake, which a test of every formula finds */
}

/* One factor, "2*H/W", up to a comma or the end. */
static uint64_t op_factor_value(const struct mk_problem *q, const char **at)
{
    uint64_t value = 1;
    char then = '*';
    if (entries[q->op].op->shard && !strncmp(*at, "S/W", 3)) {
        *at += 3;
        return entries[q->op].op->shard(q);
    }
    for (;; (*at)++) {
        uint64_t next;
        if (**at >= '0' && **at <= '9') {
            char *end;
            next = strtoull(*at, &end, 10);
            *at = end;
        } else {
            size_t length = strcspn(*at, "*/:,");
            next = op_letter_value(q, *at, length);
            *at += length;
        }
        value = then == '*'   ? value * next
                : !next       ? 0
                : then == ':' ? mk_ceil_div(value, next)
                              : value / next;
        then = **at;
        if (then != '*' && then != '/' && then != ':')
            return value;
    }
}

static uint64_t op_formula_value(const struct mk_problem *q, const char *formula)
{
    uint64_t value = op_factor_value(q, &formula);
    while (*formula++ == ',')
        value *= op_factor_value(q, &formula);
    return value;
}

uint64_t op_unit(const struct mk_problem *q, uint32_t i)
{
    const struct op_dimension *d = &entries[q->op].op->shape->dimensions[i];
    uint64_t unit = d->bytes ? d->bytes / op_factor_bytes(q) : d->multiple ? d->multiple : 1;
    return d->divides ? unit * op_formula_value(q, d->divides) : unit;
}

void op_fit(struct mk_problem *q)
{
    uint64_t numbers[OP_DIMENSIONS];
    uint32_t count = op_numbers(q, numbers);
    for (uint32_t i = 0; i < count; i++)
        numbers[i] = mk_round_up(numbers[i], op_unit(q, i));
    op_set_numbers(q, numbers);
}

uint64_t op_heap_offset(const struct mk_problem *q, uint32_t argument)
{
    return argument == 0 && q->a_in_heap   ? q->a_offset
           : argument == 2 && q->c_in_heap ? q->c_offset
                                           : 0;
}

/* Whether a launch of the problem has an argument of this type. */
static int op_takes(const struct mk_problem *q, enum op_type type)
{
    const uint32_t bit = type == OP_BIAS       ? MK_EPILOGUE_BIAS
                         : type == OP_RESIDUAL ? MK_EPILOGUE_RESIDUAL
                         : type == OP_NORM     ? MK_EPILOGUE_RMSNORM
                                               : 0;
    return type == OP_COUNT                          ? op_counted(q)
           : type == OP_SCALES || type == OP_RECORDS ? q->fp8
           : type == OP_TOKENS                       ? !q->fp8
                                                     : !bit || (q->epilogue & bit);
}

const struct op_argument *op_argument(const struct mk_problem *q, uint32_t i)
{
    const struct op_argument *of = entries[q->op].op->arguments, *end = of + OP_ARGUMENTS;
    for (; of < end && of->name; of++)
        if (op_takes(q, of->type) && !i--)
            return of;
    return NULL;
}

uint32_t op_arguments(const struct mk_problem *q)
{
    uint32_t count = 0;
    while (count < MK_SPACES - 1 && op_argument(q, count))
        count++;
    return count;
}

uint32_t op_bias_argument(const struct mk_problem *q)
{
    return op_arguments(q) - 1;
}

uint32_t op_residual_argument(const struct mk_problem *q)
{
    return op_arguments(q) - (q->epilogue & MK_EPILOGUE_RMSNORM ? 3 : 1);
}

enum op_type op_argument_type(const struct mk_problem *q, uint32_t i)
{
    enum op_type type = op_argument(q, i)->type;
    if (type == OP_FACTOR)
        return q->bytes ? OP_UINT8 : q->fp8 ? OP_E4M3 : OP_BF16;
    return type == OP_SCALES    ? OP_FP32
           : type == OP_COUNT   ? OP_UINT32
           : type == OP_RECORDS ? OP_UINT8
           : type >= OP_TOKENS  ? OP_BF16
                                : type;
}

int op_has_epilogue(enum mk_op op)
{
    return (unsigned)op < MK_OPS && entries[op].op->epilogue;
}

int op_has_fp8_on_mma(enum mk_op op)
{
    return op_on_mma(op) && op_has_fp8(op) && entries[op].op->b_layout;
}

int op_has_back(enum mk_op op)
{
    return (unsigned)op < MK_OPS && entries[op].op->back_fp8;
}

int op_has_fp8(enum mk_op op)
{
    return (unsigned)op < MK_OPS && entries[op].op->fp8;
}

int op_has_bytes(enum mk_op op)
{
    return op_has_fp8(op) && entries[op].op->moves;
}

uint32_t op_extents(const struct mk_problem *q, uint64_t bytes[MK_SPACES - 1])
{
    uint32_t outputs = 0;
    memset(bytes, 0, (MK_SPACES - 1) * sizeof *bytes);
    for (uint32_t i = 0; i < op_arguments(q); i++) {
        enum op_type type = op_argument_type(q, i);
        const uint32_t each = type == OP_E4M3 || type == OP_UINT8 ? 1 : type == OP_BF16 ? 2 : 4;
        bytes[i] = op_formula_value(q, op_argument(q, i)->shape) * each;
        outputs |= (uint32_t)(op_argument(q, i)->output != 0) << i;
    }
    return outputs;
}
