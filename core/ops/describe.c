/* What a descriptor says of a problem: its dimensions, formulas, arguments and roles. An operator's
 * own files ask here, by the descriptor that they have; who has a problem alone asks op.c, which
 * looks the descriptor up. */
#include "core/ops/op.h"
#include "core/plan/epilogue.h"
#include "core/base/quantize.h"

#include <stdlib.h>
#include <string.h>

uint32_t op_dimensions(const struct op_shape *shape)
{
    uint32_t count = 0;
    while (count < OP_DIMENSIONS && shape->dimensions[count].letter)
        count++;
    return count;
}

uint64_t op_number_at(const struct mk_problem *q, size_t offset)
{
    uint64_t value;
    memcpy(&value, (const char *)q + offset, sizeof value);
    return value;
}

int op_counted_of(const struct op_descriptor *op, const struct mk_problem *q)
{
    return op->limit && q->own[MOE_COUNTED] != 0;
}

int op_needs_of(const struct op_descriptor *op, const struct mk_topo *topo, enum mk_role role)
{
    switch ((enum op_need)op->needs[role]) {
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

static uint64_t op_letter_value(const struct op_descriptor *op, const struct mk_problem *q,
                                const char *word, size_t length)
{
    const struct op_dimension *d = op->shape->dimensions;
    for (uint32_t i = 0; i < op_dimensions(op->shape); i++)
        if (strlen(d[i].letter) == length && !strncmp(d[i].letter, word, length))
            return op_number_at(q, d[i].offset);
    if (length == 1 && *word == 'W')
        return mk_world(&q->topo);
    if (length == 4 && !strncmp(word, "runs", 4))
        return q->epilogue & MK_EPILOGUE_GATED ? 2 : 1;
    if (length == 6 && !strncmp(word, "record", 6))
        return quantize_record(q->moe.hidden);
    return length == 4 && !strncmp(word, "rows", 4)
               ? q->m
               : 0; /* 0: a mistake, which a test of every formula finds */
}

/* One factor, "2*H/W", up to a comma or the end. */
static uint64_t op_factor_value(const struct op_descriptor *op, const struct mk_problem *q,
                                const char **at)
{
    uint64_t value = 1;
    char then = '*';
    if (op->shard && !strncmp(*at, "S/W", 3)) {
        *at += 3;
        return op->shard(q);
    }
    for (;; (*at)++) {
        uint64_t next;
        if (**at >= '0' && **at <= '9') {
            char *end;
            next = strtoull(*at, &end, 10);
            *at = end;
        } else {
            size_t length = strcspn(*at, "*/:,");
            next = op_letter_value(op, q, *at, length);
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

uint64_t op_formula_value(const struct op_descriptor *op, const struct mk_problem *q,
                          const char *formula)
{
    uint64_t value = op_factor_value(op, q, &formula);
    while (*formula++ == ',')
        value *= op_factor_value(op, q, &formula);
    return value;
}

uint64_t op_unit_of(const struct op_descriptor *op, const struct mk_problem *q, uint32_t i)
{
    const struct op_dimension *d = &op->shape->dimensions[i];
    uint64_t unit = d->bytes ? d->bytes / op_factor_bytes(q) : d->multiple ? d->multiple : 1;
    return d->divides ? unit * op_formula_value(op, q, d->divides) : unit;
}

/* ---- arguments ---- */

/* Whether a launch of the problem has an argument of this type. */
static int op_takes(const struct op_descriptor *op, const struct mk_problem *q, enum op_type type)
{
    const uint32_t bit = type == OP_BIAS                              ? MK_EPILOGUE_BIAS
                         : type == OP_RESIDUAL                        ? MK_EPILOGUE_RESIDUAL
                         : type == OP_NORM || type == OP_NORMED       ? MK_EPILOGUE_RMSNORM
                         : type == OP_CODES || type == OP_CODE_SCALES ? MK_EPILOGUE_QUANTIZE
                                                                      : 0;
    if (type == OP_NORMED && q->epilogue & MK_EPILOGUE_QUANTIZE)
        return 0;
    return type == OP_COUNT                          ? op_counted_of(op, q)
           : type == OP_SCALES || type == OP_RECORDS ? q->fp8
           : type == OP_BLOCK_SCALES                 ? q->fp8 && !q->b_columns
           : type == OP_COLUMN_SCALES                ? q->b_columns
           : type == OP_TOKENS                       ? !q->fp8
                                                     : !bit || (q->epilogue & bit);
}

const struct op_argument *op_argument_of(const struct op_descriptor *op, const struct mk_problem *q,
                                         uint32_t i)
{
    const struct op_argument *of = op->arguments, *end = of + OP_ARGUMENTS;
    for (; of < end && of->name; of++)
        if (op_takes(op, q, of->type) && !i--)
            return of;
    return NULL;
}

uint32_t op_arguments_of(const struct op_descriptor *op, const struct mk_problem *q)
{
    uint32_t count = 0;
    while (count < MK_SPACES - 1 && op_argument_of(op, q, count))
        count++;
    return count;
}

uint32_t op_bias_of(const struct op_descriptor *op, const struct mk_problem *q)
{
    return op_arguments_of(op, q) - 1;
}

uint32_t op_place_of(const struct op_descriptor *op, const struct mk_problem *q, enum op_type type)
{
    const uint32_t count = op_arguments_of(op, q);
    uint32_t i = 0;
    while (i < count && op_argument_of(op, q, i)->type != type)
        i++;
    return i;
}
