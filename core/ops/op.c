/* The table of operators: who has a problem, or an operator's number, asks here what its descriptor
 * says. Nothing that a descriptor leads to calls this file. */
#include "core/plan/epilogue.h"
#include "core/plan/plan_fields.h"
#include "core/ops/op.h"
#include "core/ops/gemm.h"
#include "core/base/words.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum where { HOST, GPU };

static const struct entry {
    const struct op_descriptor *op;
    enum where where;
} entries[MK_OPS] = {
#define MK_OPERATOR(name, NAME, where) [MK_OP_##NAME] = {&op_##name, where},
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

/* ---- the problem's numbers ---- */

uint32_t op_numbers(const struct mk_problem *q, uint64_t numbers[OP_DIMENSIONS])
{
    const struct op_shape *shape = entries[q->op].op->shape;
    uint32_t count = op_dimensions(shape);
    for (uint32_t i = 0; i < count; i++)
        numbers[i] = op_number_at(q, shape->dimensions[i].offset);
    return count;
}

const char *op_problem_text(const struct mk_problem *q, char text[OP_PROBLEM_TEXT])
{
    uint64_t numbers[OP_DIMENSIONS];
    uint32_t count = op_numbers(q, numbers);
    char words[PLAN_FIELD_TEXT];
    text[0] = '\0';
    for (uint32_t i = 0; i < count; i++)
        mk_append(text, OP_PROBLEM_TEXT, "%s%lu", i ? "," : "", numbers[i]);
    for (const struct plan_field *f = NULL;
         (f = plan_field_next(f, PLAN_IN_TEXT | PLAN_IN_TEXT_NAMED));) {
        const uint64_t value = plan_field_get(f, q);
        const char *word = f->kind == PLAN_FLAG ? f->name : plan_field_text(f, value, words);
        if (value && plan_field_of(f, (enum mk_op)q->op))
            mk_append(text, OP_PROBLEM_TEXT, " %s%s%s", f->in & PLAN_IN_TEXT_NAMED ? f->name : "",
                      f->in & PLAN_IN_TEXT_NAMED ? " " : "", word);
    }
    return text;
}

/* The value of the field that a word behind the numbers says, or a name and the word behind it,
 * *save; 0: it says none. */
static uint64_t op_read_field(const struct plan_field *f, const char *word, char **save)
{
    char why[256];
    uint64_t values[2];
    const int named = (f->in & PLAN_IN_TEXT_NAMED) != 0;
    if (f->kind == PLAN_FLAG)
        return !strcmp(word, f->name);
    if (named && strcmp(word, f->name) != 0)
        return 0;
    word = named ? strtok_r(NULL, " ", save) : word;
    return word && !plan_field_read(f, word, values, why, sizeof why) ? values[0] : 0;
}

/* What stands behind the numbers, word by word. */
static int op_read_words(struct mk_problem *q, char *words)
{
    char *save;
    for (char *w = strtok_r(words, " ", &save); w; w = strtok_r(NULL, " ", &save)) {
        const struct plan_field *f = NULL;
        uint64_t value = 0;
        while (!value && (f = plan_field_next(f, PLAN_IN_TEXT | PLAN_IN_TEXT_NAMED)))
            value = plan_field_of(f, (enum mk_op)q->op) ? op_read_field(f, w, &save) : 0;
        if (!value)
            return -EINVAL;
        plan_field_set(f, q, value);
    }
    return 0;
}

int op_read_problem(struct mk_problem *q, const char *text)
{
    uint64_t numbers[OP_DIMENSIONS] = {0};
    uint32_t count = op_dimensions(entries[q->op].op->shape);
    char copy[OP_PROBLEM_TEXT];
    for (uint32_t i = 0; i < count; i++) {
        char *end;
        if (*text < '0' || *text > '9')
            return -EINVAL;
        numbers[i] = strtoull(text, &end, 10);
        if (!numbers[i] || numbers[i] > INT64_MAX || (i + 1 < count && *end != ','))
            return -EINVAL;
        text = end + (i + 1 < count);
    }
    if ((*text && *text != ' ') || strlen(text) >= sizeof copy)
        return -EINVAL;
    op_set_numbers(q, numbers);
    snprintf(copy, sizeof copy, "%s", text);
    return op_read_words(q, copy);
}

void op_set_numbers(struct mk_problem *q, const uint64_t numbers[OP_DIMENSIONS])
{
    const struct op_shape *shape = entries[q->op].op->shape;
    for (uint32_t i = 0; i < op_dimensions(shape); i++)
        memcpy((char *)q + shape->dimensions[i].offset, &numbers[i], sizeof numbers[i]);
}

uint64_t op_limit_of(const struct mk_problem *q)
{
    return op_has_limit(q->op) ? q->own[MOE_CAPACITY] : 0;
}

const char *const op_overflows[2] = {"end", "drop"};

const char *const op_counts[2] = {"plan", "launch"};

const char *const op_launches[2] = {"whole", "halves"};

int op_drops(const struct mk_problem *q)
{
    return op_has_limit(q->op) && q->own[MOE_DROPS] != 0;
}

int op_counted(const struct mk_problem *q)
{
    return op_of(q->op) && op_counted_of(op_of(q->op), q);
}

uint64_t op_logical(const struct mk_problem *q)
{
    return op_has_limit(q->op) ? q->own[MOE_LOGICAL] : 0;
}

int op_halves(const struct mk_problem *q)
{
    return op_has_halves(q->op) && q->own[MOE_HALVES] != 0;
}

int op_has_halves(enum mk_op op)
{
    return op_of(op) && op_of(op)->halves;
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
    return op_needs_of(op_of(op), topo, role);
}

uint64_t op_unit(const struct mk_problem *q, uint32_t i)
{
    return op_unit_of(op_of(q->op), q, i);
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

const struct op_argument *op_argument(const struct mk_problem *q, uint32_t i)
{
    return op_argument_of(op_of(q->op), q, i);
}

uint32_t op_arguments(const struct mk_problem *q)
{
    return op_arguments_of(op_of(q->op), q);
}

uint32_t op_bias_argument(const struct mk_problem *q)
{
    return op_bias_of(op_of(q->op), q);
}

uint32_t op_residual_argument(const struct mk_problem *q)
{
    return op_place_of(op_of(q->op), q, OP_RESIDUAL);
}

uint32_t op_new_residual_argument(const struct mk_problem *q)
{
    const uint32_t apart = op_place_of(op_of(q->op), q, OP_NORMED);
    return apart < op_arguments(q) ? apart : 2;
}

enum op_type op_argument_type(const struct mk_problem *q, uint32_t i)
{
    enum op_type type = op_argument(q, i)->type;
    if (type == OP_FACTOR && (q->bytes || q->fp8))
        return q->bytes ? OP_UINT8 : OP_E4M3;
    const int scales = type == OP_SCALES || type == OP_BLOCK_SCALES || type == OP_COLUMN_SCALES ||
                       type == OP_CODE_SCALES;
    return scales                                 ? OP_FP32
           : type == OP_CODES                     ? OP_E4M3
           : type == OP_COUNT                     ? OP_UINT32
           : type == OP_RECORDS                   ? OP_UINT8
           : type == OP_BF16 || type >= OP_TOKENS ? q->fp16 ? OP_FP16 : OP_BF16
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

int op_has_b_columns(enum mk_op op)
{
    return (unsigned)op < MK_OPS && entries[op].op->b_columns;
}

int op_has_fp16(enum mk_op op)
{
    return (unsigned)op < MK_OPS && entries[op].op->fp16;
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
        const uint32_t each = type == OP_E4M3 || type == OP_UINT8  ? 1
                              : type == OP_BF16 || type == OP_FP16 ? 2
                                                                   : 4;
        bytes[i] = op_formula_value(op_of(q->op), q, op_argument(q, i)->shape) * each;
        outputs |= (uint32_t)(op_argument(q, i)->output != 0) << i;
    }
    return outputs;
}
