#include "experiments/common/json_write.h"
#include "core/plan/epilogue.h"
#include "core/ops/op.h"

#include <math.h>

void json_number(FILE *f, const char *name, double value)
{
    if (isfinite(value))
        fprintf(f, "  \"%s\": %.9g,\n", name, value);
    else
        fprintf(f, "  \"%s\": null,\n", name);
}

/* How many bytes the UTF-8 character at `c` takes; 0 where none is. Overlong forms and surrogates
 * are none (RFC 3629). */
static int json_write_character_bytes(const unsigned char *c)
{
    int more = c[0] < 0x80                   ? 0
               : c[0] >= 0xc2 && c[0] < 0xe0 ? 1
               : c[0] >= 0xe0 && c[0] < 0xf0 ? 2
               : c[0] >= 0xf0 && c[0] < 0xf5 ? 3
                                             : -1;
    for (int i = 1; i <= more; i++)
        if ((c[i] & 0xc0) != 0x80)
            return 0;
    if ((c[0] == 0xe0 && c[1] < 0xa0) || (c[0] == 0xed && c[1] > 0x9f) ||
        (c[0] == 0xf0 && c[1] < 0x90) || (c[0] == 0xf4 && c[1] > 0x8f))
        return 0;
    return more + 1;
}

void json_string(FILE *f, const char *text)
{
    fputc('"', f);
    for (const unsigned char *c = (const unsigned char *)text; *c;) {
        int bytes = json_write_character_bytes(c);
        if (*c == '"' || *c == '\\')
            fprintf(f, "\\%c", *c);
        else if (*c < 0x20)
            fprintf(f, "\\u%04x", *c);
        else if (bytes)
            fwrite(c, 1, (size_t)bytes, f);
        else
            fputc('?', f);
        c += bytes ? bytes : 1;
    }
    fputc('"', f);
}

void json_text(FILE *f, const char *name, const char *text)
{
    fputs("  ", f);
    json_string(f, name);
    fputs(": ", f);
    json_string(f, text);
    fputs(",\n", f);
}

static void json_write_numbers(FILE *f, const char *name, const uint64_t *values, int count)
{
    fprintf(f, "  \"%s\": [", name);
    for (int i = 0; i < count; i++)
        fprintf(f, "%s%lu", i ? ", " : "", values[i]);
    fprintf(f, "],\n");
}

static void json_write_truth(FILE *f, const char *name, int value)
{
    fprintf(f, "  \"%s\": %s,\n", name, value ? "true" : "false");
}

const char *json_sums(const struct mk_problem *q)
{
    return q->deterministic == MK_EVERYWHERE ? plan_sums[MK_EVERYWHERE]
           : q->deterministic                ? "true"
                                             : "false";
}

void json_problem(FILE *f, const struct mk_problem *q)
{
    const struct op_descriptor *op = op_of(q->op);
    const struct mk_tuning *t = &q->tuning;
    char words[EPILOGUE_TEXT];
    uint64_t values[OP_DIMENSIONS];
    int count = (int)op_numbers(q, values);
    json_text(f, "op", plan_op_name(q->op));
    json_write_numbers(f, op->shape->option, values, count);
    fprintf(f, "  \"nodes\": %u,\n  \"gpus\": %u,\n", q->topo.nodes, q->topo.gpus);
    if (op->causal) {
        json_write_truth(f, "causal", q->attention.causal);
        json_text(f, "split", plan_splits[q->attention.contiguous]);
    }
    if (op->limit && op_limit_of(q)) /* 0: all that can come */
        json_write_numbers(f, op->limit->name, (uint64_t[]){op_limit_of(q)}, 1);
    if (op_logical(q))
        json_write_numbers(f, "logical", (uint64_t[]){op_logical(q)}, 1);
    if (op_drops(q))
        json_text(f, "overflow", op_overflows[1]);
    if (op_halves(q))
        json_text(f, "launch", op_launches[1]);
    if (op->b_layout)
        json_text(f, "b_layout", q->b_transposed ? "nk" : "kn");
    if (op->fp8 || op->fp16)
        json_text(f, "dtype", plan_dtypes[plan_dtype(q)]);
    if (q->b_columns)
        json_text(f, "b_scales", plan_b_scales[1]);
    if (op->back_fp8)
        json_text(f, "back", plan_backs[q->back_fp8]);
    if (op->epilogue)
        json_text(f, "epilogue", epilogue_text(q->epilogue, words));
    if (q->deterministic == MK_EVERYWHERE)
        json_text(f, "deterministic", json_sums(q));
    else
        json_write_truth(f, "deterministic", q->deterministic);
    fprintf(f, "  \"roles\": {");
    for (int i = 0; i < MK_ROLES; i++)
        fprintf(f, "%s\"%s\": %u", i ? ", " : "", plan_role_name(i), t->split.ctas[i]);
    fprintf(f, "},\n  \"intra_comm_warps\": %u,\n", t->split.intra_comm_warps);
    json_write_numbers(f, "tile", (uint64_t[]){t->tile_m, t->tile_n}, 2);
    fprintf(f, "  \"chunk_rows\": %u,\n  \"slices\": %u,\n  \"pieces\": %u,\n", t->chunk_rows,
            t->slices, t->pieces);
}
