#include "core/plan/plan_fields.h"
#include "core/plan/epilogue.h"
#include "core/base/sentence.h"
#include "core/base/words.h"
#include "core/ops/op.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
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
    return op_of(op) && op_of(op)->causal;
}

static const char *const layouts[] = {"kn", "nk"}, *const truths[] = {"false", "true"},
                         *const sums[] = {"false", "true", "everywhere"};
_Static_assert(sizeof sums / sizeof *sums == MK_PLAN_SUMS, "a word for each");

enum {
    SAID = PLAN_IN_SPEC | PLAN_IN_ROW | PLAN_IN_TRACE_SET,
    KNOB = PLAN_IN_WORDS | PLAN_IN_COMMAND_PLAN,
    ROLE_PARTS = sizeof(struct mk_role_split) / sizeof(uint32_t)
};
#define AT(type, field) .bytes = sizeof(type), .offset = offsetof(struct mk_problem, field)
#define LIMIT(number) .has = op_has_limit, AT(uint64_t, own[number])
#define WORDS(list, n) .kind = PLAN_WORD, .words = (list), .count = (n)

const struct plan_field plan_fields[PLAN_FIELDS] = {
    {"causal", .has = has_mask, .in = PLAN_IN_COMMAND | PLAN_IN_TEXT | PLAN_IN_JSON,
     .kind = PLAN_FLAG, AT(int, attention.causal),
     .help = "a row attends to itself and the rows before it"},
    {"b_layout", "b_transposed", .has = has_layout,
     .in = PLAN_IN_COMMAND | PLAN_IN_ROW | PLAN_IN_JSON | PLAN_IN_TRACE_SET, WORDS(layouts, 2),
     AT(int, b_transposed),
     .help = "kn: B is [K,N]; nk: B is [N,K], as PyTorch keeps a weight. Default kn"},
    {"sms", "most SMs", .in = PLAN_IN_SPEC | PLAN_IN_COMMAND_PLAN, .form = "100",
     .count = PLAN_MOST_CTAS, AT(uint32_t, sms_most),
     .help = "SMs of a GPU that the plan may have, so that other kernels have the others. "
             "Default: all"},
    {"dtype", .has = has_dtypes,
     .in = PLAN_IN_COMMAND | PLAN_IN_TEXT | SAID | PLAN_IN_JSON | PLAN_IN_TUNED,
     WORDS(plan_dtypes, MK_PLAN_DTYPES),
     .help = "fp16: of operators without experts and attention, in place of bf16. fp8: A and B are "
             "e4m3, with an fp32 scale for 1 x 128 of A and for 128 x 128 of B, and --b-layout nk; "
             "C is bf16. A token of a MoE has its scales behind it. Operators that only move rows "
             "take fp8 and bytes as they are. Default bf16"},
    {"b_scales", .has = op_has_b_columns,
     .in = PLAN_IN_COMMAND | PLAN_IN_TEXT_NAMED | SAID | PLAN_IN_JSON_SET | PLAN_OF_FP8,
     WORDS(plan_b_scales, 2), AT(int, b_columns),
     .help = "of fp8: B has a scale for 128 x 128, or one for each of its columns. Default blocks"},
    {"back", .has = op_has_back,
     .in = PLAN_IN_COMMAND | PLAN_IN_TEXT_NAMED | SAID | PLAN_IN_JSON | PLAN_IN_TUNED,
     WORDS(plan_backs, 2), AT(int, back_fp8),
     .help = "how sums of tokens travel back: fp8, e4m3 with an fp32 scale for each 128 of a row, "
             "half the bytes and 2.6e-2 of error for each rank or node that they come from. "
             "Default bf16"},
    {"epilogue", .has = op_has_epilogue, .in = PLAN_IN_COMMAND | PLAN_IN_TEXT | SAID | PLAN_IN_JSON,
     .kind = PLAN_EPILOGUE, .form = "none|bias|silu|..", AT(uint32_t, epilogue),
     .help = "ag_gemm: what follows the product before it is rounded, bias, silu, gelu_tanh, "
             "bias+silu, bias+gelu_tanh, and with an activation +gated (C[,j] = f(P[,j]) "
             "P[,N/2+j]: SwiGLU, GeGLU); gemm_rs and gemm_ar: what follows the sum, residual, "
             "residual+rmsnorm, residual+rmsnorm+quantize (e4m3 codes and scales of the normed "
             "rows). Default none"},
    {"eps", .has = op_has_epilogue, .in = PLAN_IN_SPEC, .kind = PLAN_REAL, AT(float, eps)},
    {"split", .has = has_mask, .lacks = "splits no sequence",
     .in = PLAN_IN_COMMAND | PLAN_IN_SPEC | PLAN_IN_ROW | PLAN_IN_TEXT | PLAN_IN_JSON,
     WORDS(plan_splits, 2), AT(int, attention.contiguous),
     .help = "with --causal, which rows of the sequence rank r of W holds: zigzag, blocks r and 2 "
             "W - 1 - r of 2 W, so that all have the same work; contiguous, block r of W, as "
             "without a mask. Default zigzag"},
    {"deterministic", .in = PLAN_IN_COMMAND | PLAN_IN_ROW | PLAN_IN_JSON, .kind = PLAN_SUMS,
     .words = sums, .count = MK_PLAN_SUMS, AT(int, deterministic),
     .help = "adds in rank order in fp32, so that every run gives the same bits"},
    {"a_in_heap", .kind = PLAN_FLAG, AT(int, a_in_heap)},
    {"a_offset", AT(uint64_t, a_offset)},
    {"c_in_heap", .in = PLAN_IN_ROW | PLAN_IN_TRACE_SET, .kind = PLAN_FLAG, .words = truths,
     .count = 2, AT(int, c_in_heap)},
    {"c_offset", AT(uint64_t, c_offset)},
    {"capacity", .lacks = "has no capacity", .form = "4096", LIMIT(MOE_CAPACITY),
     .in = PLAN_IN_COMMAND | PLAN_IN_SPEC | PLAN_IN_ROW | PLAN_IN_JSON_SET | PLAN_IN_TRACE_SET,
     .help = "rows of its experts that a rank has room for, a row for each of the K places of a "
             "token; where more come, the launch ends on all ranks with a sentence. Default: on up "
             "to 8 ranks all that can come; else twice as many as come on the average (of ranks "
             "with fewer than 8 experts four times), and six times the root of those"},
    {"logical", .lacks = "has no experts", .form = "56", LIMIT(MOE_LOGICAL),
     .in = PLAN_IN_SPEC | PLAN_IN_JSON_SET | PLAN_IN_TRACE_SET},
    {"overflow", .lacks = "has room for all", .in = PLAN_IN_COMMAND | SAID | PLAN_IN_JSON_SET,
     WORDS(op_overflows, 2), LIMIT(MOE_DROPS),
     .help = "where there is more than there is room for: end, the launch ends on all ranks; drop, "
             "each rank keeps of its tokens' places on experts of one rank the first capacity / "
             "ranks, in the order of tokens and places, so that nothing can overflow, and other "
             "places count as none. Default end"},
    {"tokens", .lacks = "has no tokens", .in = PLAN_IN_SPEC, WORDS(op_counts, 2),
     LIMIT(MOE_COUNTED)},
    {"launch", .lacks = "has whole launches", .in = PLAN_IN_COMMAND | SAID | PLAN_IN_JSON_SET,
     WORDS(op_launches, 2), .has = op_has_halves, AT(uint64_t, own[MOE_HALVES]),
     .help = "halves: a launch is two kernels, one that sends and one that takes what has come, "
             "between which a program can compute on all SMs (mk_launch_begin); here one follows "
             "the other. Default whole"},
    {"engine", .in = PLAN_IN_COMMAND | (SAID & ~PLAN_IN_ROW) | PLAN_IN_TUNED,
     WORDS(plan_engines, MK_ENGINES), .first = MK_ENGINE_WGMMA, AT(enum mk_engine, engine),
     .help = "whose kernels run on a GPU: Hopper's, by wgmma and TMA, or those of any GPU of "
             "compute capability 8.0 and up, by mma.sync. Default device: wgmma on Hopper, mma on "
             "others"},
    {"timeout", "timeout in ns", AT(uint64_t, timeout_ns)},
    {"compute", "compute CTAs", .in = PLAN_IN_PLAN | KNOB, .knob = OP_ROLES, .option = "roles",
     .parts = ROLE_PARTS, .count = PLAN_MOST_CTAS, AT(uint32_t, tuning.split.ctas[MK_COMPUTE]),
     .form = "compute=116,intra_comm=16", .value = "compute=..,...",
     .help = "CTAs of each role: compute, intra_comm, inter_send, inter_reduce"},
    {"intra_comm", "intra_comm CTAs", .in = PLAN_IN_PLAN, .knob = OP_ROLES,
     AT(uint32_t, tuning.split.ctas[MK_INTRA_COMM])},
    {"inter_send", "inter_send CTAs", .in = PLAN_IN_PLAN, .knob = OP_ROLES,
     AT(uint32_t, tuning.split.ctas[MK_INTER_SEND])},
    {"inter_reduce", "inter_reduce CTAs", .in = PLAN_IN_PLAN, .knob = OP_ROLES,
     AT(uint32_t, tuning.split.ctas[MK_INTER_REDUCE])},
    {"intra_comm_warps", .in = PLAN_IN_PLAN | PLAN_IN_TRACE, .knob = OP_ROLES,
     AT(uint32_t, tuning.split.intra_comm_warps)},
    {"tile_m", .in = PLAN_IN_PLAN | KNOB, .knob = OP_TILE, .option = "tile", .parts = 2, .least = 8,
     .count = PLAN_MOST_TILE, AT(uint32_t, tuning.tile_m), .form = "256,128", .value = "M,N",
     .help = "rows and columns of a tile"},
    {"tile_n", .in = PLAN_IN_PLAN, .knob = OP_TILE, AT(uint32_t, tuning.tile_n)},
    {"cluster", AT(uint32_t, tuning.cluster)},
    {"chunk_rows", .in = PLAN_IN_PLAN | KNOB, .knob = OP_CHUNK_ROWS, .option = "chunk-rows",
     .least = 8, .count = 1 << 24, AT(uint32_t, tuning.chunk_rows), .form = "256", .value = "ROWS",
     .help = "rows of a chunk: a multiple of the tile's rows"},
    {"slices", .in = PLAN_IN_PLAN | PLAN_IN_TRACE_SET | KNOB, .knob = OP_SLICES, .form = "4",
     .count = PLAN_MOST_SLICES, AT(uint32_t, tuning.slices),
     .help = "ag_gemm: column ranges of a chunk, which arrive one after the other (one "
             "node); moe_ffn: cuts of what a rank computes last, between which sums of "
             "what is through are made; gemm_rs: parts that K of the last wave's tiles is "
             "cut in, at most (one node)"},
    {"pieces", .in = PLAN_IN_PLAN | KNOB, .knob = OP_PIECES, .form = "8", .count = PLAN_MOST_PIECES,
     AT(uint32_t, tuning.pieces),
     .help = "parts of a chunk or slice that different CTAs push over NVLink"},
    {"pace_ns", "pace", .unit = "ns", .in = PLAN_IN_PLAN | PLAN_IN_TRACE_SET | KNOB,
     .knob = OP_PACE, .option = "pace", .least = MK_PACE_NONE, .count = PLAN_MOST_PACE,
     .none = "none", AT(uint32_t, tuning.pace), .form = "300", .value = "NS|none",
     .help = "an auxiliary warp pushes 512 bytes in this time at the fastest; none: no limit"},
    {"fanout", .in = PLAN_IN_PLAN | PLAN_IN_TRACE_SET | KNOB, .knob = OP_FANOUT, .form = "3",
     .count = MK_MAX_LOCAL, AT(uint32_t, tuning.fanout),
     .help = "how many peers of its node a rank pushes to at once"},
    {"shots", .in = PLAN_IN_PLAN | PLAN_IN_TRACE_SET | KNOB, .knob = OP_SHOTS,
     WORDS(plan_shots, MK_SHOTS), .least = MK_ONE_SHOT, AT(uint32_t, tuning.shots),
     .help = "one_shot: tiles have rows of all ranks, who exchange them at once, for few rows; "
             "two_shot: tiles are of one rank's rows; shared_columns (gemm_ar): of all ranks, each "
             "of whom adds some of a tile's columns for all; column_blocks (gemm_ar): of one "
             "rank's columns. 1 to 4 stand for them, too"},
    {"split_k", .in = PLAN_IN_PLAN | PLAN_IN_TRACE_SET | KNOB, .knob = OP_SPLIT_K,
     .option = "split-k", .first = 1, .count = 2, AT(uint32_t, tuning.split_k), .form = "2",
     .value = "1|2",
     .help = "2: two CTAs share a tile of 128x128, each multiplies by half of K (few rows in one "
             "shot, engine wgmma)"},
};
_Static_assert(ROLE_PARTS == 5, "each has a field");

int plan_field_of(const struct plan_field *f, enum mk_op op)
{
    return (!f->has || f->has(op)) && (!f->knob || (op_of(op) && op_of(op)->knobs & f->knob));
}

const struct plan_field *plan_field_named(const char *name)
{
    const struct plan_field *f = plan_fields;
    while (strcmp(f->name, name) != 0)
        f++;
    return f;
}

/* Whether its place is not another number's of the operator. */
static int plan_field_is_there(const struct plan_field *f, enum mk_op op)
{
    return !f->lacks || f->has(op);
}

uint64_t plan_field_get(const struct plan_field *f, const struct mk_problem *q)
{
    uint32_t number;
    if (!f->bytes)
        return plan_dtype(q);
    if (!plan_field_is_there(f, (enum mk_op)q->op))
        return 0;
    if (f->bytes == sizeof(uint64_t))
        return op_number_at(q, f->offset);
    memcpy(&number, (const char *)q + f->offset, sizeof number);
    return number;
}

void plan_field_set(const struct plan_field *f, struct mk_problem *q, uint64_t value)
{
    const uint32_t number = (uint32_t)value;
    if (!f->bytes)
        plan_set_dtype(q, (int)value);
    else if (plan_field_is_there(f, (enum mk_op)q->op))
        memcpy((char *)q + f->offset, f->bytes == sizeof value ? (const void *)&value : &number,
               f->bytes);
}

const char *plan_field_text(const struct plan_field *f, uint64_t value, char text[PLAN_FIELD_TEXT])
{
    const uint32_t bits = (uint32_t)value;
    float real;
    _Static_assert(EPILOGUE_TEXT <= PLAN_FIELD_TEXT, "it has room for any");
    if (f->words && value - f->least < f->count)
        return f->words[value - f->least];
    if (f->kind == PLAN_EPILOGUE)
        return epilogue_text(bits, text);
    memcpy(&real, &bits, sizeof real);
    if (f->kind == PLAN_REAL)
        snprintf(text, PLAN_FIELD_TEXT, "%.9g", (double)real);
    else
        snprintf(text, PLAN_FIELD_TEXT, "%lu", value);
    return text;
}

int plan_field_word(const struct plan_field *f, const char *word)
{
    const int at = mk_word(word, f->words, f->count);
    if (at >= 0)
        return at + (int)f->least;
    if (f->knob && *word >= '0' && *word < '0' + (int)(f->count + f->least) && !word[1])
        return *word - '0';
    return -1;
}

static int plan_field_read_word(const struct plan_field *f, const char *text, uint64_t *value,
                                char *error, size_t size)
{
    const char *name = plan_field_option(f);
    const int said = plan_field_word(f, text);
    char list[128] = "";
    if (said >= (int)f->least) {
        *value = (uint64_t)said;
        return 0;
    }
    for (uint32_t i = 0; i < f->count; i++) {
        mk_append(list, sizeof list, "%s", !i ? "" : i + 1 == f->count ? " or " : ", ");
        if (!i || f->count == 2)
            mk_append(list, sizeof list, "%s=", name);
        mk_append(list, sizeof list, "%s", f->words[(i + f->first) % f->count]);
    }
    return plan_refuse(error, size, "'%s=%s' is not valid; it should be %s", name, text, list);
}

static int plan_field_read_numbers(const struct plan_field *f, const char *text, uint64_t values[2],
                                   char *error, size_t size)
{
    const char *name = plan_field_option(f);
    const uint32_t least = f->least ? f->least : 1, parts = f->parts ? f->parts : 1;
    char most[24] = " or more";
    int valid = !mk_read_numbers(text, ',', parts, f->count ? f->count : UINT64_MAX, values);
    for (uint32_t i = 0; i < parts && valid; i++)
        valid = values[i] >= least;
    if (!valid && f->none && !strcmp(text, f->none)) {
        values[0] = least;
        return 0;
    }
    if (f->count)
        snprintf(most, sizeof most, " to %u", f->count);
    return valid ? 0
                 : plan_refuse(error, size, "'%s=%s' is not valid; it should look like %s=%s, %u%s",
                               name, text, name, f->form, least, most);
}

/* "1e-5". */
static int plan_field_read_real(const struct plan_field *f, const char *text, uint64_t *value,
                                char *error, size_t size)
{
    char *end;
    const float real = strtof(text, &end);
    uint32_t bits;
    if (end == text || *end || !(real > 0 && real <= 1))
        return plan_refuse(error, size,
                           "'%s=%s' is not valid; it should look like %s=1e-6, above 0 and 1 at "
                           "most",
                           f->name, text, f->name);
    memcpy(&bits, &real, sizeof bits);
    *value = bits;
    return 0;
}

int plan_field_read(const struct plan_field *f, const char *text, uint64_t values[2], char *error,
                    size_t size)
{
    uint32_t bits = 0;
    if (f->words)
        return plan_field_read_word(f, text, values, error, size);
    if (f->kind == PLAN_REAL)
        return plan_field_read_real(f, text, values, error, size);
    if (f->kind != PLAN_EPILOGUE)
        return plan_field_read_numbers(f, text, values, error, size);
    const int result = epilogue_read("epilogue=", text, &bits, error, size);
    values[0] = bits;
    return result;
}

char *plan_field_words(const struct plan_field *f, char text[PLAN_FIELD_WORDS])
{
    text[0] = '\0';
    for (uint32_t i = 0; i < f->count; i++)
        mk_append(text, PLAN_FIELD_WORDS, "%s%s", i ? "|" : "",
                  f->words[(i + f->first) % f->count]);
    return text;
}
