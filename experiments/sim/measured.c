#include "experiments/sim/measured.h"
#include "core/grow.h"
#include "core/ops/op.h"
#include "core/scoped.h"
#include "core/tuning.h"
#include "core/sentence.h"
#include "core/words.h"
#include "experiments/common/problem.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define MOST_CELLS 64u

/* Cuts a line of a CSV table into cells, in place. Returns how many. */
static uint32_t measured_cells(char *line, char *cells[MOST_CELLS])
{
    uint32_t count = 0;
    char *to = line;
    line[strcspn(line, "\r\n")] = '\0';
    while (count < MOST_CELLS) {
        int quoted = *line == '"';
        cells[count++] = to;
        for (line += quoted; *line && (quoted || *line != ','); line++) {
            if (quoted && *line == '"' && *++line != '"')
                break;
            *to++ = *line;
        }
        int more = *line == ',';
        line += *line != '\0';
        *to++ = '\0';
        if (!more)
            break;
    }
    return count;
}

struct header {
    char text[4096], *cells[MOST_CELLS];
    uint32_t count;
};

/* -1: there is no such column. */
static int measured_column(const struct header *h, const char *name)
{
    for (uint32_t i = 0; i < h->count; i++)
        if (!strcasecmp(h->cells[i], name))
            return (int)i;
    return -1;
}

static const char *measured_cell(const struct header *h, char *const *cells, const char *name)
{
    int column = measured_column(h, name);
    return column < 0 ? "" : cells[column];
}

static uint32_t measured_whole(const struct header *h, char *const *cells, const char *name)
{
    return (uint32_t)strtoul(measured_cell(h, cells, name), NULL, 10);
}

/* `mkernel bench` calls it fused_ms. */
static const char *measured_time(const struct header *h)
{
    return measured_column(h, "ms") < 0 ? "fused_ms" : "ms";
}

/* A column that the table needs and has not; NULL: it has all. Options of the plan have a column
 * each, or are words in the column "made". */
static const char *measured_lacks(const struct header *h)
{
    static const char *const names[] = {"op",         "nodes",  "gpus",   "tile_m", "tile_n",
                                        "chunk_rows", "slices", "pieces", "fanout", "pace_ns"};
    enum { ALWAYS = 3, NAMES = sizeof names / sizeof *names };
    uint32_t count = measured_column(h, "made") < 0 ? NAMES + MK_ROLES : ALWAYS;
    for (uint32_t i = 0; i < count; i++) {
        const char *name = i < NAMES ? names[i] : plan_role_name((int)(i - NAMES));
        if (measured_column(h, name) < 0)
            return name;
    }
    return measured_column(h, measured_time(h)) < 0 ? "ms" : NULL;
}

static int measured_sums(const char *cell)
{
    return !strcmp(cell, plan_sums[MK_EVERYWHERE]) ? MK_EVERYWHERE : !strcmp(cell, "true");
}

int measured_shape_text(const char *text, struct mk_problem *q, char *error, size_t size)
{
    uint64_t numbers[OP_DIMENSIONS] = {0};
    uint32_t count = op_dimensions(op_of(q->op)->shape), i = 0;
    char *end = (char *)(uintptr_t)text;
    for (; i < count; i++) {
        numbers[i] = strtoull(end + (i && *end == ','), &end, 10);
        if (*end != (i + 1 < count ? ',' : *end) || !numbers[i])
            break;
    }
    q->attention.contiguous = !strcmp(end, " causal contiguous");
    q->attention.causal = q->attention.contiguous || !strcmp(end, " causal");
    if (i == count && (!*end || q->attention.causal)) {
        op_set_numbers(q, numbers);
        return 0;
    }
    return mk_fail(-EINVAL, error, size, "'%s' is no shape of %s", text, plan_op_name(q->op));
}

/* The column of an operator's i-th number: by its name, by its letter, or as `mkernel bench` calls
 * a name of several words ("experts of a token"); -1: there is none. */
static int measured_number_column(const struct header *h, const struct op_dimension *d)
{
    int column = measured_column(h, d->name);
    column = column < 0 ? measured_column(h, d->letter) : column;
    return column < 0 && !strcmp(d->name, "experts of a token")
               ? measured_column(h, "experts_per_token")
               : column;
}

/* The operator's numbers, each in a column of its own. 0 or -EINVAL. */
static int measured_numbers(const struct header *h, char *const *cells, struct mk_problem *q,
                            char *error, size_t size)
{
    const struct op_shape *shape = op_of(q->op)->shape;
    uint64_t numbers[OP_DIMENSIONS] = {0};
    if (measured_column(h, "shape") >= 0)
        return measured_shape_text(measured_cell(h, cells, "shape"), q, error, size);
    for (uint32_t i = 0; i < op_dimensions(shape); i++) {
        int column = measured_number_column(h, &shape->dimensions[i]);
        if (column < 0)
            return mk_fail(-EINVAL, error, size, "it has no column for the %s of %s",
                           shape->dimensions[i].name, plan_op_name(q->op));
        numbers[i] = strtoull(cells[column], NULL, 10);
    }
    op_set_numbers(q, numbers);
    return 0;
}

int measured_words(const char *made, enum mk_op op, struct mk_tuning *tuning, char *error,
                   size_t size)
{
    char words[256], *save;
    snprintf(words, sizeof words, "%s", made);
    for (char *word = strtok_r(words, " ", &save); word; word = strtok_r(NULL, " ", &save)) {
        char now[TUNING_WORD_TEXT];
        int result = tuning_read_word(tuning_word_now(word, now), op, tuning, error, size);
        if (result)
            return result;
    }
    return 0;
}

/* The plan's options where each has a column. */
static void measured_options(const struct header *h, char *const *cells, struct mk_tuning *t)
{
    t->tile_m = measured_whole(h, cells, "tile_m");
    t->tile_n = measured_whole(h, cells, "tile_n");
    t->chunk_rows = measured_whole(h, cells, "chunk_rows");
    t->slices = measured_whole(h, cells, "slices");
    t->pieces = measured_whole(h, cells, "pieces");
    t->fanout = measured_whole(h, cells, "fanout");
    t->pace = measured_whole(h, cells, "pace_ns");
    for (int r = 0; r < MK_ROLES; r++)
        t->split.ctas[r] = measured_whole(h, cells, plan_role_name(r));
    if (measured_column(h, "intra_comm_warps") >= 0)
        t->split.intra_comm_warps = measured_whole(h, cells, "intra_comm_warps");
    else
        t->split = tuning_old_roles(t->split.ctas);
    t->shots = measured_whole(h, cells, "shots");
}

void measured_old(struct mk_problem *q)
{
    if (!q->tuning.shots && op_of(q->op)->knobs & OP_SHOTS)
        q->tuning.shots = 2;
}

/* The number of a cell's word among `count`; 0, the default, where it is none of them. */
static int measured_word(const struct header *h, char *const *cells, const char *name,
                         const char *const *words, int count)
{
    int word = mk_word(measured_cell(h, cells, name), words, (size_t)count);
    return word < 0 ? 0 : word;
}

/* The problem but its numbers. */
static void measured_kind(const struct header *h, char *const *cells, struct mk_problem *q)
{
    q->topo.nodes = measured_whole(h, cells, "nodes");
    q->topo.gpus = measured_whole(h, cells, "gpus");
    q->b_transposed = !strcmp(measured_cell(h, cells, "b_layout"), "nk");
    q->c_in_heap = !strcmp(measured_cell(h, cells, "c_in_heap"), "true");
    q->deterministic = measured_sums(measured_cell(h, cells, "deterministic"));
    q->attention.causal = !strcmp(measured_cell(h, cells, "causal"), "1");
    q->attention.contiguous = measured_word(h, cells, "split", plan_splits, 2);
    q->back_fp8 = measured_word(h, cells, "back", plan_backs, 2);
    plan_set_dtype(q, measured_word(h, cells, "dtype", plan_dtypes, MK_PLAN_DTYPES));
}

/* The plan of a row. 0, or -EINVAL with a sentence. */
static int measured_plan(struct measured_row *row, const struct header *h, char *const *cells,
                         uint32_t sms, char *error, size_t size)
{
    const char *name = measured_cell(h, cells, "op");
    int op = plan_op_by_name(name);
    if (op < 0)
        return mk_fail(op, error, size, "it is of an operator '%s', which there is not", name);
    struct mk_problem q = {.op = op, .exec = MK_EXEC_CUDA, .sms = sms};
    measured_kind(h, cells, &q);
    /* a table of `tune` has no `exec`, and "host" where others have a GPU's name */
    if ((measured_column(h, "exec") >= 0 && strcmp(measured_cell(h, cells, "exec"), "cuda")) ||
        !strcmp(measured_cell(h, cells, "device"), "host"))
        return mk_fail(-EINVAL, error, size, "it was not measured on GPUs");
    int result = measured_numbers(h, cells, &q, error, size);
    if (!result && measured_column(h, "made") >= 0)
        result = measured_words(measured_cell(h, cells, "made"), q.op, &q.tuning, error, size);
    else if (!result)
        measured_options(h, cells, &q.tuning);
    tuning_words(&q.tuning, row->words, sizeof row->words);
    measured_old(&q);
    return result ? result : plan_build(&row->plan, &q, 0, 0, error, size);
}

int measured_wanted(enum measured_half half, uint32_t shape)
{
    return half == MEASURED_ALL || (half == MEASURED_ODD) == (shape % 2 == 0);
}

int measured_next(struct measured *m, struct measured_row **row)
{
    if (mk_grow(&m->rows, m->count, sizeof *m->rows))
        return -ENOMEM;
    *row = &m->rows[m->count];
    memset(*row, 0, sizeof **row);
    return 0;
}

struct shape {
    char text[160];
};

/* The shape's number in its file: of all that says the problem. */
static uint32_t measured_shape(struct shape *shapes, uint32_t *count, const struct header *h,
                               char *const *cells)
{
    struct shape s;
    uint32_t i = 0;
    int op = plan_op_by_name(measured_cell(h, cells, "op"));
    struct mk_problem q = {.op = (op < 0 ? 0 : op)};
    char error[128], text[OP_PROBLEM_TEXT];
    if (measured_numbers(h, cells, &q, error, sizeof error))
        q.m = 0;
    snprintf(s.text, sizeof s.text, "%s %.100s %s %s %s %sx%s", measured_cell(h, cells, "op"),
             op_problem_text(&q, text), measured_cell(h, cells, "causal"),
             measured_cell(h, cells, "b_layout"), measured_cell(h, cells, "dtype"),
             measured_cell(h, cells, "nodes"), measured_cell(h, cells, "gpus"));
    while (i < *count && strcmp(shapes[i].text, s.text))
        i++;
    if (i == *count)
        shapes[(*count)++] = s;
    return i;
}

#define MOST_SHAPES 1024u

static int measured_by(const struct header *h, char *const *cells, const char *command)
{
    return !strcmp(measured_cell(h, cells, "command"), command);
}

/* GPUs rest in turns of `mkernel bench`, and in `run` while the inputs of the next burst are made; but
 * not where another's products, as long as the operator's, are in between: attention (what has a
 * mask) takes turns with cuDNN's. */
static int measured_rests(const struct header *h, char *const *cells)
{
    int op = plan_op_by_name(measured_cell(h, cells, "op"));
    return (measured_by(h, cells, "bench") || measured_by(h, cells, "run")) && op >= 0 &&
           !op_of(op)->causal;
}

static int measured_read_rows(struct measured *m, FILE *f, const char *path, const struct header *h,
                              enum measured_half half, uint32_t sms, char *error, size_t size)
{
    char line[4096], why[256], *cells[MOST_CELLS];
    MK_FREED struct shape *shapes = malloc(MOST_SHAPES * sizeof *shapes);
    uint32_t number = 1, count = 0, first = m->shapes;
    int result = shapes ? 0 : -ENOMEM;
    while (!result && fgets(line, sizeof line, f)) {
        number++;
        uint32_t found = measured_cells(line, cells);
        if (found < h->count) {
            snprintf(error, size, "line %u of '%s' has too few cells", number, path);
            result = -EINVAL;
            break;
        }
        uint32_t shape = count < MOST_SHAPES ? measured_shape(shapes, &count, h, cells) : 0;
        if (!measured_wanted(half, shape))
            continue;
        struct measured_row *row;
        result = measured_next(m, &row);
        if (result)
            break;
        row->ms = strtod(measured_cell(h, cells, measured_time(h)), NULL);
        row->of_best = strtod(measured_cell(h, cells, "of_best"), NULL);
        row->is_default = !strcmp(measured_cell(h, cells, "default"), "1");
        row->shape = first + shape;
        row->rested = measured_rests(h, cells);
        row->early = measured_by(h, cells, "bench") && measured_whole(h, cells, "burst") > 1;
        snprintf(why, sizeof why, "it has no time, or wrong results");
        if (!(row->ms > 0) || strtoull(measured_cell(h, cells, "wrong"), NULL, 10) ||
            measured_plan(row, h, cells, sms, why, sizeof why)) {
            measured_leave_out(m, why);
            continue;
        }
        m->count++;
    }
    m->shapes = first + count;
    return result;
}

void measured_leave_out(struct measured *m, const char *why)
{
    if (!m->left_out++)
        snprintf(m->left_out_why, sizeof m->left_out_why, "%s", why);
}

int measured_read(struct measured *m, const char *path, enum measured_half half, uint32_t sms,
                  char *error, size_t size)
{
    struct header h = {.count = 0};
    int result = 0;
    MK_CLOSED FILE *f = fopen(path, "re");
    error[0] = '\0';
    if (f && measured_is_trace(f))
        return measured_read_trace(m, path, half, sms, error, size);
    if (!f || !fgets(h.text, sizeof h.text, f)) {
        result = !f || ferror(f) ? -errno : -EINVAL;
        snprintf(error, size, "the table '%s' cannot be read: %s", path,
                 result == -EINVAL ? "it is empty" : strerror(-result));
    } else {
        h.count = measured_cells(h.text, h.cells);
        if (measured_lacks(&h))
            result =
                mk_fail(-EINVAL, error, size,
                        "'%s' has no column '%s': it is no trace, and no table of today's "
                        "`mkernel tune`, `bench` or `run` --csv, which say the plan of each time",
                        path, measured_lacks(&h));
    }
    result = result ? result : measured_read_rows(m, f, path, &h, half, sms, error, size);
    if (result && !error[0])
        snprintf(error, size, "the table '%s': %s", path, strerror(-result));
    return result;
}

/* How much of `list` is its first file: up to a comma, or to a later one where names have commas in
 * them, as those of shapes do. */
static size_t measured_first(const char *list, char path[1024])
{
    size_t least = strcspn(list, ","), length = least;
    for (;; length += 1 + strcspn(list + length + 1, ",")) {
        snprintf(path, 1024, "%.*s", (int)length, list);
        if (!access(path, F_OK))
            return length;
        if (!list[length])
            break;
    }
    snprintf(path, 1024, "%.*s", (int)least, list);
    return least;
}

int measured_read_list(struct measured *m, const char *list, enum measured_half half, uint32_t sms,
                       char *error, size_t size)
{
    char path[1024];
    int result = 0;
    while (*list && !result) {
        size_t length = measured_first(list, path);
        result = measured_read(m, path, half, sms, error, size);
        list += length + (list[length] == ',');
    }
    return result;
}

void measured_free(struct measured *m)
{
    free(m->rows);
    memset(m, 0, sizeof *m);
}
