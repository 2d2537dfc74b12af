#include "core/plan/plan_fields.h"
#include "core/plan/epilogue.h"
#include "core/ops/op.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

static int has_layout(enum mk_op op)
{
    return op_of(op)->b_layout;
}

static int has_dtypes(enum mk_op op)
{
    return op_has_fp8(op) || op_has_fp16(op);
}

static int has_mask(enum mk_op op)
{
    return op_of(op)->causal;
}

static const char *const layouts[] = {"kn", "nk"}, *const truths[] = {"false", "true"},
                         *const sums[] = {"false", "true", "everywhere"};
_Static_assert(sizeof sums / sizeof *sums == MK_PLAN_SUMS, "a word for each");

enum { SAID = PLAN_IN_SPEC | PLAN_IN_ROW | PLAN_IN_TRACE_SET };
#define AT(type, field) .bytes = sizeof(type), .offset = offsetof(struct mk_problem, field)
#define LIMIT(field) .has = op_has_limit, .offset = offsetof(struct op_limit, field)
#define WORDS(list, n) .kind = PLAN_WORD, .words = (list), .count = (n)

const struct plan_field plan_fields[PLAN_FIELDS] = {
    {"causal", .has = has_mask, .in = PLAN_IN_JSON, .kind = PLAN_FLAG, AT(int, attention.causal)},
    {"b_layout", "b_transposed", .has = has_layout,
     .in = PLAN_IN_ROW | PLAN_IN_JSON | PLAN_IN_TRACE_SET, WORDS(layouts, 2),
     AT(int, b_transposed)},
    {"sms", "most SMs", .in = PLAN_IN_SPEC, .form = "100", .count = PLAN_MOST_CTAS,
     AT(uint32_t, sms_most)},
    {"dtype", .has = has_dtypes, .in = SAID | PLAN_IN_JSON, WORDS(plan_dtypes, MK_PLAN_DTYPES),
     .offset = (size_t)-1},
    {"b_scales", .has = op_has_b_columns, .in = SAID | PLAN_IN_JSON_SET | PLAN_OF_FP8,
     WORDS(plan_b_scales, 2), AT(int, b_columns)},
    {"back", .has = op_has_back, .in = SAID | PLAN_IN_JSON, WORDS(plan_backs, 2),
     AT(int, back_fp8)},
    {"epilogue", .has = op_has_epilogue, .in = SAID | PLAN_IN_JSON, .kind = PLAN_EPILOGUE,
     AT(uint32_t, epilogue)},
    {"eps", .has = op_has_epilogue, .in = PLAN_IN_SPEC, .kind = PLAN_REAL, AT(float, eps)},
    {"split", .has = has_mask, .lacks = "splits no sequence",
     .in = (SAID | PLAN_IN_JSON) & ~PLAN_IN_TRACE_SET, WORDS(plan_splits, 2),
     AT(int, attention.contiguous)},
    {"deterministic", .in = PLAN_IN_ROW | PLAN_IN_JSON, .kind = PLAN_SUMS, .words = sums,
     .count = MK_PLAN_SUMS, AT(int, deterministic)},
    {"a_in_heap", .kind = PLAN_FLAG, AT(int, a_in_heap)},
    {"a_offset", AT(uint64_t, a_offset)},
    {"c_in_heap", .in = PLAN_IN_ROW | PLAN_IN_TRACE_SET, .kind = PLAN_FLAG, .words = truths,
     .count = 2, AT(int, c_in_heap)},
    {"c_offset", AT(uint64_t, c_offset)},
    {"capacity", .lacks = "has no capacity", .form = "4096", LIMIT(offset),
     .in = PLAN_IN_SPEC | PLAN_IN_ROW | PLAN_IN_JSON_SET | PLAN_IN_TRACE_SET},
    {"logical", .lacks = "has no experts", .form = "56", LIMIT(logical),
     .in = PLAN_IN_SPEC | PLAN_IN_JSON_SET | PLAN_IN_TRACE_SET},
    {"overflow", .lacks = "has room for all", .in = SAID | PLAN_IN_JSON_SET, WORDS(op_overflows, 2),
     LIMIT(drops)},
    {"tokens", .lacks = "has no tokens", .in = PLAN_IN_SPEC, WORDS(op_counts, 2), LIMIT(counted)},
    {"launch", .lacks = "has whole launches", .in = SAID | PLAN_IN_JSON_SET, WORDS(op_launches, 2),
     .has = op_has_halves, .offset = offsetof(struct op_limit, halves)},
    {"engine", .in = SAID & ~PLAN_IN_ROW, WORDS(plan_engines, MK_ENGINES), .first = MK_ENGINE_WGMMA,
     AT(enum mk_engine, engine)},
    {"timeout", "timeout in ns", AT(uint64_t, timeout_ns)},
    {"compute", "compute CTAs", .in = PLAN_IN_PLAN, AT(uint32_t, tuning.split.ctas[MK_COMPUTE])},
    {"intra_comm", "intra_comm CTAs", .in = PLAN_IN_PLAN,
     AT(uint32_t, tuning.split.ctas[MK_INTRA_COMM])},
    {"inter_send", "inter_send CTAs", .in = PLAN_IN_PLAN,
     AT(uint32_t, tuning.split.ctas[MK_INTER_SEND])},
    {"inter_reduce", "inter_reduce CTAs", .in = PLAN_IN_PLAN,
     AT(uint32_t, tuning.split.ctas[MK_INTER_REDUCE])},
    {"intra_comm_warps", .in = PLAN_IN_PLAN | PLAN_IN_TRACE,
     AT(uint32_t, tuning.split.intra_comm_warps)},
    {"tile_m", .in = PLAN_IN_PLAN, AT(uint32_t, tuning.tile_m)},
    {"tile_n", .in = PLAN_IN_PLAN, AT(uint32_t, tuning.tile_n)},
    {"cluster", AT(uint32_t, tuning.cluster)},
    {"chunk_rows", .in = PLAN_IN_PLAN, AT(uint32_t, tuning.chunk_rows)},
    {"slices", .in = PLAN_IN_PLAN | PLAN_IN_TRACE_SET, AT(uint32_t, tuning.slices)},
    {"pieces", .in = PLAN_IN_PLAN, AT(uint32_t, tuning.pieces)},
    {"fanout", .in = PLAN_IN_PLAN | PLAN_IN_TRACE_SET, AT(uint32_t, tuning.fanout)},
    {"pace_ns", "pace", .unit = "ns", .in = PLAN_IN_PLAN | PLAN_IN_TRACE_SET,
     AT(uint32_t, tuning.pace)},
    {"shots", .in = PLAN_IN_PLAN | PLAN_IN_TRACE_SET, AT(uint32_t, tuning.shots)},
    {"split_k", .first = 1, .in = PLAN_IN_PLAN | PLAN_IN_TRACE_SET, AT(uint32_t, tuning.split_k)},
};
_Static_assert(MK_ROLES == 4, "each has a field");

/* Where the limit of an operator keeps it. */
static size_t plan_field_limit(const struct plan_field *f, enum mk_op op)
{
    size_t at;
    memcpy(&at, (const char *)op_of(op)->limit + f->offset, sizeof at);
    return at;
}

uint64_t plan_field_get(const struct plan_field *f, const struct mk_problem *q)
{
    uint32_t number;
    if (f->offset == (size_t)-1)
        return plan_dtype(q);
    if (!f->bytes)
        return f->has(q->op) ? op_number_at(q, plan_field_limit(f, q->op)) : 0;
    if (f->bytes == sizeof(uint64_t))
        return op_number_at(q, f->offset);
    memcpy(&number, (const char *)q + f->offset, sizeof number);
    return number;
}

void plan_field_set(const struct plan_field *f, struct mk_problem *q, uint64_t value)
{
    const uint32_t number = (uint32_t)value;
    if (f->offset == (size_t)-1)
        plan_set_dtype(q, (int)value);
    else if (!f->bytes && f->has(q->op))
        memcpy((char *)q + plan_field_limit(f, q->op), &value, sizeof value);
    else if (f->bytes == sizeof value)
        memcpy((char *)q + f->offset, &value, sizeof value);
    else if (f->bytes)
        memcpy((char *)q + f->offset, &number, sizeof number);
}

const char *plan_field_text(const struct plan_field *f, uint64_t value, char text[PLAN_FIELD_TEXT])
{
    const uint32_t bits = (uint32_t)value;
    float real;
    _Static_assert(EPILOGUE_TEXT <= PLAN_FIELD_TEXT, "it has room for any");
    if (f->words && value < f->count)
        return f->words[value];
    if (f->kind == PLAN_EPILOGUE)
        return epilogue_text(bits, text);
    memcpy(&real, &bits, sizeof real);
    if (f->kind == PLAN_REAL)
        snprintf(text, PLAN_FIELD_TEXT, "%.9g", (double)real);
    else
        snprintf(text, PLAN_FIELD_TEXT, "%lu", value);
    return text;
}
