/* Tuned plans: the words of a line, and which line is taken. */
#include "core/plan/tuning.h"
#include "core/base/digest.h"
#include "core/base/grow.h"
#include "core/model/choose.h"
#include "core/ops/op.h"
#include "core/plan/plan_fields.h"
#include "core/base/sentence.h"
#include "core/base/words.h"

#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const tuning_masks[TUNING_MASKS] = {"full", "causal", "causal-contiguous"};

uint32_t *tuning_value(struct mk_tuning *t, const struct plan_field *option)
{
    return (uint32_t *)(void *)((char *)t + option->offset - offsetof(struct mk_problem, tuning));
}

const struct plan_field *tuning_next(const struct plan_field *f)
{
    const uint32_t knob = f ? f->knob << 1 : OP_TILE;
    for (f = NULL; (f = plan_field_next(f, PLAN_IN_WORDS)) && f->knob != knob;)
        ;
    return f;
}

char *tuning_names(char text[TUNING_NAMES_TEXT])
{
    text[0] = '\0';
    for (const struct plan_field *f = NULL; (f = tuning_next(f));)
        mk_append(text, TUNING_NAMES_TEXT, "%s%s", *text ? ", " : "", plan_field_option(f));
    return text;
}

const struct plan_field *tuning_option(const char *word, size_t length)
{
    const struct plan_field *f = NULL;
    while ((f = tuning_next(f)))
        if (strlen(plan_field_option(f)) == length && !memcmp(word, plan_field_option(f), length))
            break;
    return f;
}

int tuning_read_roles(const char *text, struct mk_role_split *out, char *error, size_t size)
{
    struct mk_role_split split = {.ctas = {0}};
    uint32_t named = 0, warps = 0;
    const char *c = text;
    do {
        size_t length = strcspn(c, "=,");
        const char *number = c + length + 1;
        int role = 0;
        if (c[length] != '=')
            return plan_refuse(error, size, "roles are written compute=2,intra_comm=1");
        while (role < MK_ROLES && (strlen(plan_role_name(role)) != length ||
                                   memcmp(c, plan_role_name(role), length) != 0))
            role++;
        if (role == MK_ROLES)
            return plan_refuse(
                error, size,
                "there is no role %.*s (roles are compute, intra_comm, inter_send, inter_reduce)",
                (int)length, c);
        if (named >> role & 1)
            return plan_refuse(error, size, "%.*s is there twice", (int)length, c);
        named |= 1u << role;
        uint32_t count = 0, digits = 0;
        for (; number[digits] >= '0' && number[digits] <= '9' && count <= PLAN_MOST_CTAS; digits++)
            count = count * 10 + (uint32_t)(number[digits] - '0');
        const int shares = digits && role == MK_INTRA_COMM && number[digits] == 'w' && count;
        digits += (uint32_t)shares;
        if (!digits || count > (shares ? MK_AUXILIARY_WARPS : PLAN_MOST_CTAS) ||
            (number[digits] && number[digits] != ','))
            return plan_refuse(error, size, "%.*s=%.*s is not a number of CTAs from 0 to %u%s",
                               (int)length, c, (int)strcspn(number, ","), number, PLAN_MOST_CTAS,
                               role == MK_INTRA_COMM ? ", nor 1w to 3w, warps of each compute block"
                                                     : "");
        *(shares ? &warps : &split.ctas[role]) = count;
        c = number + digits + (number[digits] == ',');
    } while (c[-1] == ',');
    mk_share_blocks(&split, warps);
    if (!mk_total_ctas(&split)) /* to a plan that would say: choose */
        return plan_refuse(error, size, "it leaves no CTA");
    *out = split;
    return 0;
}

char *tuning_say_roles(const struct mk_role_split *split, char *text, size_t size)
{
    for (int role = 0, some = 0; role < MK_ROLES; role++) {
        const uint32_t warps = role == MK_INTRA_COMM ? split->intra_comm_warps : 0;
        if (split->ctas[role])
            mk_append(text, size, "%s%s=%u%s", some++ ? "," : "", plan_role_name(role),
                      warps ? warps : split->ctas[role], warps ? "w" : "");
    }
    return text;
}

struct mk_role_split tuning_old_roles(const uint32_t ctas[MK_ROLES])
{
    struct mk_role_split split = {.ctas = {0}};
    memcpy(split.ctas, ctas, sizeof split.ctas);
    const uint32_t compute = ctas[MK_COMPUTE];
    if (compute && ctas[MK_INTRA_COMM] % compute == 0 &&
        ctas[MK_INTRA_COMM] / compute <= MK_AUXILIARY_WARPS)
        mk_share_blocks(&split, ctas[MK_INTRA_COMM] / compute);
    return split;
}

const char *tuning_word_now(const char *word, char text[TUNING_WORD_TEXT])
{
    uint32_t n[MK_ROLES];
    int end = 0;
    snprintf(text, TUNING_WORD_TEXT, "roles=");
    if (!strncmp(word, "chunk_rows=", 11))
        snprintf(text, TUNING_WORD_TEXT, "chunk-rows=%s", word + 11);
    else if (!strcmp(word, "pace=1"))
        snprintf(text, TUNING_WORD_TEXT, "pace=none");
    else if (!strncmp(word, "width=", 6))
        snprintf(text, TUNING_WORD_TEXT, "fanout=%s", word + 6);
    else if (sscanf(word, "tile=%5ux%5u%n", &n[0], &n[1], &end) == 2 && end && !word[end])
        snprintf(text, TUNING_WORD_TEXT, "tile=%u,%u", n[0], n[1]);
    else if (sscanf(word, "roles=%5u+%5u+%5u+%5u%n", &n[0], &n[1], &n[2], &n[3], &end) == 4 &&
             end && !word[end]) {
        const struct mk_role_split split = tuning_old_roles(n);
        tuning_say_roles(&split, text, TUNING_WORD_TEXT);
    } else
        return word;
    return text;
}

int tuning_read_word(const char *word, enum mk_op op, struct mk_tuning *t, char *error, size_t size)
{
    char names[TUNING_NAMES_TEXT], now[TUNING_WORD_TEXT], why[160] = "";
    const size_t length = strcspn(word, "=");
    const struct plan_field *f = tuning_option(word, length);
    if (tuning_word_now(word, now) != word)
        return plan_refuse(error, size, "'%s' is written %s", word, now);
    if (!f || !word[length])
        return plan_refuse(error, size, "'%s' is no option of a plan; they are %s", word,
                           tuning_names(names));
    if (!plan_field_of(f, op))
        return plan_refuse(error, size, "'%s': %s has no %s", word, plan_op_name(op),
                           plan_field_option(f));
    if (f->knob != OP_ROLES) {
        uint64_t values[2];
        const int result = plan_field_read(f, word + length + 1, values, error, size);
        for (uint32_t part = 0; !result && (part < f->parts || !part); part++)
            tuning_value(t, f)[part] = (uint32_t)values[part];
        return result;
    }
    struct mk_role_split split = {.ctas = {0}};
    if (tuning_read_roles(word + length + 1, &split, why, sizeof why))
        return plan_refuse(error, size, "'%s': %s", word, why);
    if (!split.ctas[MK_COMPUTE] && op_of(op)->needs[MK_COMPUTE] != OP_NEVER)
        return plan_refuse(error, size, "'%s': %s needs compute CTAs", word, plan_op_name(op));
    t->split = split;
    return 0;
}

char *tuning_words(const struct mk_tuning *tuning, char *text, size_t size)
{
    struct mk_tuning t = *tuning;
    char word[PLAN_FIELD_TEXT];
    *text = '\0';
    for (const struct plan_field *f = NULL; (f = tuning_next(f));) {
        const uint32_t *v = tuning_value(&t, f), parts = f->parts ? f->parts : 1;
        uint32_t given = v[0];
        for (uint32_t part = 1; part < parts && f->knob == OP_ROLES; part++)
            given |= v[part];
        if (!given)
            continue;
        mk_append(text, size, "%s%s=", *text ? " " : "", plan_field_option(f));
        if (f->knob == OP_ROLES)
            tuning_say_roles(&t.split, text, size);
        else if (f->none && *v == f->least)
            mk_append(text, size, "%s", f->none);
        else
            for (uint32_t part = 0; part < parts; part++)
                mk_append(text, size, "%s%s", part ? "," : "",
                          plan_field_text(f + part, v[part], word));
    }
    return *text ? text : mk_append(text, size, "formula");
}

/* One of the six words of an entry's key. 0, or -EINVAL with a sentence. */
static int tuning_read_key_word(const char *word, uint32_t place, struct tuning_entry *e,
                                char *error, size_t size)
{
    uint64_t numbers[2];
    char list[OP_LIST_TEXT];
    int op, least = 1, number;
    switch (place) {
    case 0:
        op = plan_op_by_name(word);
        if (op < 0 || !op_is_tuned(op))
            return plan_refuse(error, size, "'%s' is not an op with tuned plans: %s", word,
                               op_list(list, sizeof list, op_is_tuned, ", ", " or "));
        e->op = op;
        return 0;
    case 1:
        if (mk_read_numbers(word, ',', op_dimensions(op_of(e->op)->shape), UINT32_MAX, e->numbers))
            return plan_refuse(error, size, "'%s' is not a shape of %s: %s", word,
                               plan_op_name(e->op), op_of(e->op)->shape->letters);
        for (uint32_t i = 0; i < op_dimensions(op_of(e->op)->shape); i++)
            least &= e->numbers[i] > 0;
        return least ? 0
                     : plan_refuse(error, size, "'%s' is not a shape: %s are at least 1", word,
                                   op_of(e->op)->shape->letters);
    case 2:
        if (op_of(e->op)->causal) {
            if ((number = mk_word(word, tuning_masks, TUNING_MASKS)) < 0)
                return plan_refuse(error, size,
                                   "'%s' is not a mask: full, causal or causal-contiguous", word);
            e->causal = number;
            return 0;
        }
        e->b_transposed = !strcmp(word, "nk");
        return e->b_transposed || !strcmp(word, "kn")
                   ? 0
                   : plan_refuse(error, size, "'%s' is not B's layout: kn or nk", word);
    case 3:
        if ((number = mk_word(word, plan_sums, MK_PLAN_SUMS)) < 0)
            return plan_refuse(error, size,
                               "'%s' is not an order of sums: fast, deterministic or everywhere",
                               word);
        e->deterministic = number;
        return 0;
    case 4:
        if (mk_read_numbers(word, 'x', 2, MK_MAX_RANKS, numbers) || !numbers[0] || !numbers[1])
            return plan_refuse(error, size, "'%s' is not nodes x ranks of a node: 1x8", word);
        e->nodes = (uint32_t)numbers[0];
        e->gpus = (uint32_t)numbers[1];
        return 0;
    default:
        if (strlen(word) >= sizeof e->device || strchr(word, '='))
            return plan_refuse(
                error, size,
                "'%s' is not a device: its name has _ for blanks, at most 63 characters, no =",
                word);
        snprintf(e->device, sizeof e->device, "%s", word);
        return 0;
    }
}

static int tuning_read_measured(const char *word, struct tuning_entry *e, char *error, size_t size)
{
    const char *value = strchr(word, '=');
    uint64_t day[3];
    if (value && !strncmp(word, "date=", 5)) {
        if (strlen(value + 1) != 10 || mk_read_numbers(value + 1, '-', 3, 9999, day))
            return plan_refuse(error, size,
                               "'%s' is not valid; it should look like date=2026-11-21", word);
        memcpy(e->date, value + 1, sizeof e->date);
        return 0;
    }
    if (value && !strncmp(word, "by=", 3)) {
        e->simulated = !strcmp(value + 1, "simulation");
        return e->simulated ? 0
                            : plan_refuse(error, size,
                                          "'%s' is not valid; it should be "
                                          "by=simulation",
                                          word);
    }
    for (const struct plan_field *f = NULL; value && (f = plan_field_next(f, PLAN_IN_TUNED));) {
        const char *said = setting_value(word, f->name);
        const int number = said ? mk_word(said, f->words, f->count) : -1;
        if (number > (int)f->first) {
            plan_field_set(f, &e->said, (uint64_t)number);
            return 0;
        }
    }
    double *to = value && !strncmp(word, "ms=", 3)            ? &e->ms
                 : value && !strncmp(word, "formula_ms=", 11) ? &e->formula_ms
                                                              : NULL;
    if (!to)
        return 1;
    char *end;
    *to = strtod(value + 1, &end);
    if (value[1] >= '0' && value[1] <= '9' && !*end && *to > 0 && *to < 1e9)
        return 0;
    return plan_refuse(error, size, "'%s' is not a time in milliseconds", word);
}

int tuning_same(const struct tuning_entry *a, const struct tuning_entry *b)
{
    int said = 1;
    for (const struct plan_field *f = NULL; (f = plan_field_next(f, PLAN_IN_TUNED));)
        said &= plan_field_get(f, &a->said) == plan_field_get(f, &b->said);
    return said && a->op == b->op && !memcmp(a->numbers, b->numbers, sizeof a->numbers) &&
           a->b_transposed == b->b_transposed && a->causal == b->causal &&
           a->deterministic == b->deterministic && a->nodes == b->nodes && a->gpus == b->gpus &&
           !strcmp(a->device, b->device);
}

/* One line without its comment. 1: an entry, 0: there is none, or -EINVAL with a sentence. */
static int tuning_read_line(char *line, struct tuning_entry *e, char *error, size_t size)
{
    uint32_t place = 0;
    char *save;
    memset(e, 0, sizeof *e);
    for (char *word = strtok_r(line, " \t\r", &save); word;
         word = strtok_r(NULL, " \t\r", &save), place++) {
        int result = place < 6 ? tuning_read_key_word(word, place, e, error, size)
                               : tuning_read_measured(word, e, error, size);
        char now[TUNING_WORD_TEXT];
        if (result > 0)
            result = tuning_read_word(tuning_word_now(word, now), e->op, &e->tuning, error, size);
        if (result)
            return result;
    }
    if (place && place < 6)
        return plan_refuse(error, size,
                           "%u words where a plan has at least 6: op %s %s "
                           "fast|deterministic|everywhere NODESxGPUS DEVICE",
                           place, op_of(e->op)->shape->letters,
                           op_of(e->op)->causal ? "full|causal|causal-contiguous" : "kn|nk");
    return place > 0;
}

static int tuning_add(struct tuning_table *t, const struct tuning_entry *e)
{
    if (mk_grow(&t->entries, t->count, sizeof *t->entries))
        return -ENOMEM;
    t->entries[t->count++] = *e;
    return 0;
}

int tuning_parse(struct tuning_table *t, const char *text, const char *name, int shipped,
                 char *error, size_t size)
{
    uint32_t first = t->count;
    struct tuning_entry e;
    char line[512], why[256];
    for (uint32_t number = 1; *text; number++) {
        size_t length = strcspn(text, "\n"), used = strcspn(text, "#\n");
        if (used >= sizeof line)
            return plan_refuse(error, size, "%s:%u: more than %zu characters in a line", name,
                               number, sizeof line - 1);
        memcpy(line, text, used);
        line[used] = '\0';
        text += length + (text[length] == '\n');
        int result = tuning_read_line(line, &e, why, sizeof why);
        if (result < 0)
            return plan_refuse(error, size, "%s:%u: %s", name, number, why);
        if (!result)
            continue;
        e.shipped = shipped;
        e.line = number;
        for (uint32_t i = first; i < t->count; i++)
            if (tuning_same(&t->entries[i], &e))
                return plan_refuse(error, size, "%s:%u: a second plan for the problem of line %u",
                                   name, number, t->entries[i].line);
        result = tuning_add(t, &e);
        if (result)
            return mk_fail(result, error, size, "no memory for the tuned plans of %s", name);
    }
    return 0;
}

void tuning_key(struct tuning_entry *e, const struct mk_problem *q, const char *device)
{
    memset(e, 0, sizeof *e);
    e->op = q->op;
    op_numbers(q, e->numbers);
    e->b_transposed = q->b_transposed != 0;
    e->causal = !op_of(q->op)->causal || !q->attention.causal ? 0 : q->attention.contiguous ? 2 : 1;
    e->deterministic = q->deterministic;
    for (const struct plan_field *f = NULL; (f = plan_field_next(f, PLAN_IN_TUNED));)
        if (plan_field_get(f, q) > f->first)
            plan_field_set(f, &e->said, plan_field_get(f, q));
    e->nodes = q->topo.nodes;
    e->gpus = q->topo.gpus;
    snprintf(e->device, sizeof e->device, "%s", device);
    for (char *c = e->device; *c; c++)
        if (*c <= ' ' || *c == '=' || *c == '#')
            *c = '_';
}

/* Of two shapes of one op, whose numbers are not 0. */
static double tuning_distance(const struct tuning_entry *a, const struct tuning_entry *b)
{
    double sum = 0;
    for (uint32_t i = 0; i < op_dimensions(op_of(a->op)->shape); i++)
        sum += fabs(log2((double)a->numbers[i] / (double)b->numbers[i]));
    return sum;
}

char *tuning_shape(const struct tuning_entry *e, char text[TUNING_SHAPE_TEXT])
{
    text[0] = '\0';
    for (uint32_t i = 0; i < op_dimensions(op_of(e->op)->shape); i++)
        mk_append(text, TUNING_SHAPE_TEXT, "%s%lu", i ? "," : "", e->numbers[i]);
    return text;
}

const struct tuning_entry *tuning_find(const struct tuning_table *t, const struct mk_problem *q,
                                       const char *device, int *exact)
{
    const struct tuning_entry *found = NULL;
    struct tuning_entry key, shape;
    double nearest = TUNING_NEAR;
    int is = 1;
    tuning_key(&key, q, device);
    for (uint32_t i = 0; i < op_dimensions(op_of(q->op)->shape); i++)
        is &= key.numbers[i] > 0;
    for (uint32_t i = 0; i < t->count && is; i++) {
        const struct tuning_entry *e = &t->entries[i];
        shape = key;
        memcpy(shape.numbers, e->numbers, sizeof shape.numbers);
        if (!tuning_same(e, &shape))
            continue;
        double d = tuning_distance(e, &key);
        if (found ? d < nearest : d <= nearest) {
            found = e;
            nearest = d;
        }
    }
    *exact = found && tuning_same(found, &key);
    return found;
}

static int tuning_asks_nothing(const struct mk_tuning *t)
{
    static const struct mk_tuning nothing;
    return !memcmp(t, &nothing, sizeof nothing);
}

/* The formula's plan: an operator's closed formula, with what the model of the machine chooses
 * where nothing was asked for. */
static int tuning_build_formula(struct mk_plan *p, const struct mk_problem *problem,
                                uint32_t flag_base, uint64_t heap_base, char *error, size_t size)
{
    struct mk_problem q = *problem;
    if (tuning_asks_nothing(&q.tuning))
        model_choose(machine_default(), problem, &q.tuning);
    return plan_build(p, &q, flag_base, heap_base, error, size);
}

int tuning_build(struct mk_plan *p, const struct tuning_table *t, const struct mk_problem *problem,
                 const char *device, uint32_t flag_base, uint64_t heap_base, char *error,
                 size_t size)
{
    int exact;
    const struct tuning_entry *e =
        tuning_asks_nothing(&problem->tuning) && !op_halves(problem) /* of whole launches */
            ? tuning_find(t, problem, device, &exact)
            : NULL;
    struct mk_problem q = *problem;
    char why[256];
    if (!e && problem->fp16 && tuning_asks_nothing(&problem->tuning)) { /* as fast as bf16 */
        q.fp16 = 0;
        e = tuning_find(t, &q, device, &exact);
        q.fp16 = 1;
        exact = 0;
    }
    if (!e)
        return tuning_build_formula(p, problem, flag_base, heap_base, error, size);
    if (tuning_asks_nothing(&e->tuning)) /* it was measured that the closed formula's is best */
        return plan_build(p, problem, flag_base, heap_base, error, size);
    q.tuning = e->tuning;
    if (plan_build(p, &q, flag_base, heap_base, why, sizeof why)) {
        int result = tuning_build_formula(p, problem, flag_base, heap_base, error, size);
        /* it was measured on all SMs, and of a product alone: not all tiles have an epilogue */
        if (result || !exact || problem->sms_most || problem->epilogue)
            return result;
        return plan_refuse(error, size, "%s:%u: its plan does not fit: %s",
                           e->shipped ? "core/plan/tuning.plans" : t->path, e->line, why);
    }
    char words[128], shape[TUNING_SHAPE_TEXT];
    snprintf(p->tuned, sizeof p->tuned, "%s as %s at %s%s%s%s%s%s (%s:%u)",
             tuning_words(&e->tuning, words, sizeof words), e->simulated ? "simulated" : "measured",
             tuning_shape(e, shape), e->causal ? " " : "", e->causal ? tuning_masks[e->causal] : "",
             plan_dtype(problem) != plan_dtype(&e->said) ? " of bf16" : "", *e->date ? " on " : "",
             e->date, e->shipped ? "core/plan/tuning.plans" : t->path, e->line);
    return 0;
}

uint64_t tuning_hash(const struct tuning_table *t, uint32_t nodes, uint32_t gpus)
{
    uint64_t h = MK_DIGEST;
    for (uint32_t i = 0; i < t->count; i++) {
        struct tuning_entry e = t->entries[i];
        if (e.nodes != nodes || e.gpus != gpus)
            continue;
        const uint64_t numbers[] = {(uint64_t)e.op, (uint64_t)e.b_transposed, (uint64_t)e.causal,
                                    (uint64_t)e.deterministic};
        h = mk_digest(h, numbers, sizeof numbers);
        for (const struct plan_field *f = NULL; (f = plan_field_next(f, PLAN_IN_TUNED));) {
            const uint64_t said = plan_field_get(f, &e.said);
            h = mk_digest(h, &said, sizeof said);
        }
        h = mk_digest(h, e.numbers, sizeof e.numbers);
        h = mk_digest(h, e.device, strlen(e.device));
        h = mk_digest(h, &e.tuning, sizeof e.tuning);
    }
    return h;
}
