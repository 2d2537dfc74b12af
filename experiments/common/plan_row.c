#include "experiments/common/plan_row.h"
#include "core/plan/epilogue.h"
#include "core/ops/op.h"
#include "core/plan/tuning.h"
#include "core/base/words.h"
#include "experiments/common/options.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>

/* Rows that a rank has room for; "0": all that can come. */
static const char *plan_row_capacity(const struct mk_problem *q, char text[24])
{
    snprintf(text, 24, "%lu", op_limit_of(q));
    return op_has_limit(q->op) ? text : NULL;
}

const char *plan_row_layout(const struct mk_problem *q)
{
    return !op_of(q->op)->b_layout ? NULL : q->b_transposed ? "nk" : "kn";
}

/* The columns of a plan's options. */
static const struct {
    const char *name;
    size_t offset; /* of a uint32_t in struct mk_tuning */
} plan_row_columns[] = {
#define AT(field) offsetof(struct mk_tuning, field)
    {"compute", AT(split.ctas[MK_COMPUTE])},
    {"intra_comm", AT(split.ctas[MK_INTRA_COMM])},
    {"inter_send", AT(split.ctas[MK_INTER_SEND])},
    {"inter_reduce", AT(split.ctas[MK_INTER_REDUCE])},
    {"intra_comm_warps", AT(split.intra_comm_warps)},
    {"tile_m", AT(tile_m)},
    {"tile_n", AT(tile_n)},
    {"chunk_rows", AT(chunk_rows)},
    {"slices", AT(slices)},
    {"pieces", AT(pieces)},
    {"fanout", AT(fanout)},
    {"pace_ns", AT(pace)},
    {"shots", AT(shots)},
    {"split_k", AT(split_k)},
#undef AT
};
enum { PLAN_ROW_COLUMNS = sizeof plan_row_columns / sizeof *plan_row_columns };
_Static_assert(TUNING_KNOBS == 9, "each has its columns in plan_row_columns");
_Static_assert(MK_ROLES == 4, "each has a column");

static uint32_t *plan_row_column_in(struct mk_tuning *t, int i)
{
    return (uint32_t *)(void *)((char *)t + plan_row_columns[i].offset);
}

/* The tables' words for sums are JSON's for two of them. */
static const char *const plan_row_sums[MK_PLAN_SUMS] = {"false", "true", "everywhere"};
static const char *const plan_row_truths[] = {"false", "true"}, *const plan_row_layouts[] = {"kn",
                                                                                             "nk"};

void plan_row_problem(struct csv_table *r, const struct mk_problem *q)
{
    char words[EPILOGUE_TEXT], capacity[24];
    csv_text(r, "b_layout", plan_row_layout(q));
    csv_text(r, "dtype",
             op_has_fp8(q->op) || op_has_fp16(q->op) ? plan_dtypes[plan_dtype(q)] : NULL);
    csv_text(r, "b_scales", q->fp8 && op_of(q->op)->b_layout ? plan_b_scales[q->b_columns] : NULL);
    csv_text(r, "back", op_has_back(q->op) ? plan_backs[q->back_fp8] : NULL);
    csv_text(r, "epilogue", op_has_epilogue(q->op) ? epilogue_text(q->epilogue, words) : NULL);
    csv_text(r, "split", op_of(q->op)->causal ? plan_splits[q->attention.contiguous] : NULL);
    csv_text(r, "deterministic", plan_row_sums[q->deterministic]);
    csv_text(r, "c_in_heap", q->c_in_heap ? "true" : "false");
    csv_text(r, "capacity", plan_row_capacity(q, capacity));
    csv_text(r, "overflow", op_has_limit(q->op) ? op_overflows[op_drops(q)] : NULL);
    csv_text(r, "launch", op_has_halves(q->op) ? op_launches[op_halves(q)] : NULL);
}

void plan_row_options(struct csv_table *r, const struct mk_problem *q)
{
    struct mk_tuning t = q->tuning;
    for (int i = 0; i < PLAN_ROW_COLUMNS; i++) {
        uint32_t value = *plan_row_column_in(&t, i);
        int whole_k = plan_row_columns[i].offset == offsetof(struct mk_tuning, split_k) && !value;
        csv_whole(r, plan_row_columns[i].name, whole_k ? 1 : value);
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

/* A column's word among `count`: its number, -1: there is no such column, -2: none of them. */
static int plan_row_word(const char *cell, const char *const *words, size_t count)
{
    int word = mk_word(cell, words, count);
    return word >= 0 ? word : *cell ? -2 : -1;
}

static const char *plan_row_read_kind(struct mk_problem *q,
                                      const char *(*cell)(const void *row, const char *name),
                                      const void *row)
{
    enum { LAYOUT, DTYPE, B_SCALES, BACK, SPLIT, SUMS, C_IN_HEAP, OVERFLOW, LAUNCH, KINDS };
    static const struct {
        const char *name;
        const char *const *words;
        size_t count;
    } kinds[KINDS] = {[LAYOUT] = {"b_layout", plan_row_layouts, 2},
                      [DTYPE] = {"dtype", plan_dtypes, MK_PLAN_DTYPES},
                      [B_SCALES] = {"b_scales", plan_b_scales, 2},
                      [BACK] = {"back", plan_backs, 2},
                      [SPLIT] = {"split", plan_splits, 2},
                      [SUMS] = {"deterministic", plan_row_sums, MK_PLAN_SUMS},
                      [C_IN_HEAP] = {"c_in_heap", plan_row_truths, 2},
                      [OVERFLOW] = {"overflow", op_overflows, 2},
                      [LAUNCH] = {"launch", op_launches, 2}};
    int word[KINDS];
    for (int i = 0; i < KINDS; i++) {
        word[i] = plan_row_word(cell(row, kinds[i].name), kinds[i].words, kinds[i].count);
        if (word[i] == -2)
            return kinds[i].name;
    }
    int *const fields[KINDS] = {[LAYOUT] = &q->b_transposed, [B_SCALES] = &q->b_columns,
                                [BACK] = &q->back_fp8,       [SPLIT] = &q->attention.contiguous,
                                [SUMS] = &q->deterministic,  [C_IN_HEAP] = &q->c_in_heap};
    for (int i = 0; i < KINDS; i++)
        if (fields[i] && word[i] >= 0)
            *fields[i] = word[i];
    if (word[DTYPE] >= 0)
        plan_set_dtype(q, word[DTYPE]);
    if (word[OVERFLOW] >= 0)
        op_set_drops(q, word[OVERFLOW]);
    if (word[LAUNCH] >= 0)
        op_set_halves(q, word[LAUNCH]);
    return NULL;
}

const char *plan_row_read(struct mk_problem *q,
                          const char *(*cell)(const void *row, const char *name), const void *row)
{
    char why[256];
    uint32_t number;
    const char *text, *wrong = plan_row_read_kind(q, cell, row);
    if (wrong)
        return wrong;
    if (*(text = cell(row, "epilogue")) && epilogue_read("", text, &q->epilogue, why, sizeof why))
        return "epilogue";
    if (*(text = cell(row, "replicas"))) {
        if (plan_row_whole(text, &number) || number > q->moe.experts)
            return "replicas";
        op_set_logical(q, number ? q->moe.experts - number : 0);
    }
    if (*(text = cell(row, "capacity"))) {
        if (plan_row_whole(text, &number))
            return "capacity";
        op_set_limit(q, number);
    }
    for (int i = 0; i < PLAN_ROW_COLUMNS; i++)
        if (*(text = cell(row, plan_row_columns[i].name)) &&
            plan_row_whole(text, plan_row_column_in(&q->tuning, i)))
            return plan_row_columns[i].name;
    if (!(op_of(q->op)->knobs & OP_SPLIT_K)) /* which all rows say */
        q->tuning.split_k = 0;
    return NULL;
}
