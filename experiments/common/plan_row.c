#include "experiments/common/plan_row.h"
#include "core/ops/op.h"
#include "core/plan/epilogue.h"
#include "core/plan/plan_fields.h"
#include "experiments/common/options.h"

#include <errno.h>

void plan_row_problem(struct csv_table *r, const struct mk_problem *q)
{
    char text[PLAN_FIELD_TEXT];
    for (const struct plan_field *f = NULL; (f = plan_field_next(f, PLAN_IN_ROW));) {
        const int there = f->in & PLAN_OF_FP8 ? q->fp8 && op_of(q->op)->b_layout
                                              : plan_field_of(f, (enum mk_op)q->op);
        csv_text(r, f->name, there ? plan_field_text(f, plan_field_get(f, q), text) : NULL);
    }
}

void plan_row_options(struct csv_table *r, const struct mk_problem *q)
{
    char text[PLAN_FIELD_TEXT];
    for (const struct plan_field *f = NULL; (f = plan_field_next(f, PLAN_IN_PLAN));) {
        const uint64_t value = plan_field_get(f, q);
        csv_text(r, f->name, plan_field_text(f, value < f->first ? f->first : value, text));
    }
}

int plan_row_whole(const char *cell, uint32_t *out)
{
    uint64_t value;
    if (options_whole(cell, 0, UINT32_MAX, &value))
        return -EINVAL;
    *out = (uint32_t)value;
    return 0;
}

/* 0, or -EINVAL: the cell is none of the field's values. */
static int plan_row_read_field(const struct plan_field *f, struct mk_problem *q, const char *cell)
{
    char why[256];
    uint32_t value = 0;
    const int word = f->words ? plan_field_word(f, cell) : 0;
    if (word < 0 ||
        (f->kind == PLAN_EPILOGUE && epilogue_read("", cell, &value, why, sizeof why)) ||
        (f->kind == PLAN_NUMBER && plan_row_whole(cell, &value)))
        return -EINVAL;
    value = f->words ? (uint32_t)word : value;
    if (value > f->first || plan_field_of(f, (enum mk_op)q->op)) /* else all rows say the first */
        plan_field_set(f, q, value);
    return 0;
}

const char *plan_row_read(struct mk_problem *q,
                          const char *(*cell)(const void *row, const char *name), const void *row)
{
    uint32_t copies;
    const char *text;
    for (const struct plan_field *f = NULL; (f = plan_field_next(f, PLAN_IN_ROW | PLAN_IN_PLAN));)
        if (*(text = cell(row, f->name)) && plan_row_read_field(f, q, text))
            return f->name;
    if (*(text = cell(row, "replicas"))) {
        if (plan_row_whole(text, &copies) || copies > q->moe.experts)
            return "replicas";
        plan_field_set(plan_field_named("logical"), q, copies ? q->moe.experts - copies : 0);
    }
    return NULL;
}
