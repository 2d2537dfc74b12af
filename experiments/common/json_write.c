#include "experiments/common/json_write.h"
#include "core/ops/op.h"
#include "core/plan/plan_fields.h"

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

/* A field of a problem as JSON says it. */
static void json_write_field(FILE *out, const struct plan_field *f, uint64_t value)
{
    char text[PLAN_FIELD_TEXT];
    if (f->kind == PLAN_FLAG || (f->kind == PLAN_SUMS && value <= MK_DETERMINISTIC))
        fprintf(out, "  \"%s\": %s,\n", f->name, value ? "true" : "false");
    else if (f->kind == PLAN_NUMBER)
        json_write_numbers(out, f->name, &value, 1);
    else
        json_text(out, f->name, plan_field_text(f, value, text));
}

void json_problem(FILE *f, const struct mk_problem *q)
{
    const struct op_descriptor *op = op_of(q->op);
    const struct mk_tuning *t = &q->tuning;
    uint64_t values[OP_DIMENSIONS];
    int count = (int)op_numbers(q, values);
    json_text(f, "op", plan_op_name(q->op));
    json_write_numbers(f, op->shape->option, values, count);
    fprintf(f, "  \"nodes\": %u,\n  \"gpus\": %u,\n", q->topo.nodes, q->topo.gpus);
    for (const struct plan_field *i = NULL;
         (i = plan_field_next(i, PLAN_IN_JSON | PLAN_IN_JSON_SET));)
        if (plan_field_of(i, (enum mk_op)q->op) && (i->in & PLAN_IN_JSON || plan_field_get(i, q)))
            json_write_field(f, i, plan_field_get(i, q));
    fprintf(f, "  \"roles\": {");
    for (int i = 0; i < MK_ROLES; i++)
        fprintf(f, "%s\"%s\": %u", i ? ", " : "", plan_role_name(i), t->split.ctas[i]);
    fprintf(f, "},\n  \"intra_comm_warps\": %u,\n", t->split.intra_comm_warps);
    json_write_numbers(f, "tile", (uint64_t[]){t->tile_m, t->tile_n}, 2);
    fprintf(f, "  \"chunk_rows\": %u,\n  \"slices\": %u,\n  \"pieces\": %u,\n", t->chunk_rows,
            t->slices, t->pieces);
}
