#include "experiments/sim/measured.h"
#include "core/grow.h"
#include "core/ops/op.h"
#include "core/tuning.h"
#include "core/sentence.h"
#include "experiments/common/problem.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

/* Those up to NEEDED every table has, and either MADE or all from PLAN on. Roles come last. */
enum {
    OP,
    NODES,
    GPUS,
    MS,
    NEEDED,
    MADE = NEEDED,
    OF_BEST,
    DEFAULT,
    WRONG,
    LAYOUT,
    SUMS,
    CAUSAL,
    EXEC,
    DEVICE,
    SHAPE,
    COMMAND,
    BURST,
    C_IN_HEAP,
    SHOTS,
    PLAN,
    TILE_M = PLAN,
    TILE_N,
    CHUNK_ROWS,
    SLICES,
    PIECES,
    FANOUT,
    PACE,
    ROLES,
    COLUMNS = ROLES + MK_ROLES
};
static const char *const names[ROLES] = {
    "op",      "nodes",    "gpus",          "ms",     "made",   "of_best", "default",
    "wrong",   "b_layout", "deterministic", "causal", "exec",   "device",  "shape",
    "command", "burst",    "c_in_heap",     "shots",  "tile_m", "tile_n",  "chunk_rows",
    "slices",  "pieces",   "fanout",        "pace_ns"};

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
    int at[COLUMNS], most; /* -1: there is no such column */
};

static int measured_column(const struct header *h, const char *name)
{
    for (uint32_t i = 0; i < h->count; i++)
        if (!strcasecmp(h->cells[i], name))
            return (int)i;
    return -1;
}

static int measured_columns(struct header *h, const char *path, char *error, size_t size)
{
    h->count = measured_cells(h->text, h->cells);
    for (int c = 0; c < COLUMNS; c++) {
        h->at[c] = measured_column(h, c < ROLES ? names[c] : plan_role_name(c - ROLES));
        if (c == MS && h->at[c] < 0)
            h->at[c] = measured_column(h, "fused_ms"); /* as `mkernel bench` calls it */
        if (h->at[c] < 0 && (c < NEEDED || (c >= PLAN && h->at[MADE] < 0)))
            return mk_fail(
                -EINVAL, error, size,
                "'%s' has no column '%s': it is no trace, and no table of today's `mkernel "
                "tune`, `bench` or `run` --csv, which say the plan of each time",
                path, c < ROLES ? names[c] : plan_role_name(c - ROLES));
        h->most = h->at[c] > h->most ? h->at[c] : h->most;
    }
    return 0;
}

static int measured_sums(const char *cell)
{
    return !strcmp(cell, plan_sums[MK_EVERYWHERE]) ? MK_EVERYWHERE : !strcmp(cell, "true");
}

static const char *measured_cell(const struct header *h, char *const *cells, int column)
{
    return h->at[column] < 0 ? "" : cells[h->at[column]];
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
    if (h->at[SHAPE] >= 0)
        return measured_shape_text(cells[h->at[SHAPE]], q, error, size);
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

static uint32_t measured_whole(const struct header *h, char *const *cells, int column)
{
    return (uint32_t)strtoul(cells[h->at[column]], NULL, 10);
}

/* The plan's options where each has a column. */
static void measured_options(const struct header *h, char *const *cells, struct mk_tuning *t)
{
    t->tile_m = measured_whole(h, cells, TILE_M);
    t->tile_n = measured_whole(h, cells, TILE_N);
    t->chunk_rows = measured_whole(h, cells, CHUNK_ROWS);
    t->slices = measured_whole(h, cells, SLICES);
    t->pieces = measured_whole(h, cells, PIECES);
    t->fanout = measured_whole(h, cells, FANOUT);
    t->pace = measured_whole(h, cells, PACE);
    for (int r = 0; r < MK_ROLES; r++)
        t->split.ctas[r] = measured_whole(h, cells, ROLES + r);
    t->shots = (uint32_t)strtoul(measured_cell(h, cells, SHOTS), NULL, 10);
}

void measured_old(struct mk_problem *q)
{
    if (!q->tuning.shots && op_of(q->op)->knobs & OP_SHOTS)
        q->tuning.shots = 2;
}

/* The plan of a row. 0, or -EINVAL with a sentence. */
static int measured_plan(struct measured_row *row, const struct header *h, char *const *cells,
                         uint32_t sms, char *error, size_t size)
{
    int op = plan_op_by_name(cells[h->at[OP]]);
    if (op < 0) {
        snprintf(error, size, "it is of an operator '%s', which there is not", cells[h->at[OP]]);
        return op;
    }
    struct mk_problem q = {.op = (enum mk_op)op,
                           .exec = MK_EXEC_CUDA,
                           .sms = sms,
                           .topo = {.nodes = (uint32_t)strtoul(cells[h->at[NODES]], NULL, 10),
                                    .gpus = (uint32_t)strtoul(cells[h->at[GPUS]], NULL, 10)},
                           .b_transposed = !strcmp(measured_cell(h, cells, LAYOUT), "nk"),
                           .c_in_heap = !strcmp(measured_cell(h, cells, C_IN_HEAP), "true"),
                           .deterministic = measured_sums(measured_cell(h, cells, SUMS))};
    q.attention.causal = !strcmp(measured_cell(h, cells, CAUSAL), "1");
    /* a table of `tune` has no `exec`, and "host" where others have a GPU's name */
    if ((h->at[EXEC] >= 0 && strcmp(cells[h->at[EXEC]], "cuda")) ||
        !strcmp(measured_cell(h, cells, DEVICE), "host"))
        return mk_fail(-EINVAL, error, size, "it was not measured on GPUs");
    int result = measured_numbers(h, cells, &q, error, size);
    if (!result && h->at[MADE] >= 0)
        result = measured_words(cells[h->at[MADE]], q.op, &q.tuning, error, size);
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
    int op = plan_op_by_name(cells[h->at[OP]]);
    struct mk_problem q = {.op = (enum mk_op)(op < 0 ? 0 : op)};
    char error[128], text[PROBLEM_TEXT];
    if (measured_numbers(h, cells, &q, error, sizeof error))
        q.m = 0;
    snprintf(s.text, sizeof s.text, "%s %.100s %s %s %sx%s", cells[h->at[OP]],
             problem_text(&q, text), measured_cell(h, cells, CAUSAL),
             measured_cell(h, cells, LAYOUT), cells[h->at[NODES]], cells[h->at[GPUS]]);
    while (i < *count && strcmp(shapes[i].text, s.text))
        i++;
    if (i == *count)
        shapes[(*count)++] = s;
    return i;
}

#define MOST_SHAPES 1024u

static int measured_by_bench(const struct header *h, char *const *cells)
{
    return !strcmp(measured_cell(h, cells, COMMAND), "bench");
}

/* GPUs rest in turns of `mkernel bench`, but not where another's products, as long as the
 * operator's, are in between: attention (what has a mask) takes turns with cuDNN's. */
static int measured_rests(const struct header *h, char *const *cells)
{
    int op = plan_op_by_name(cells[h->at[OP]]);
    return measured_by_bench(h, cells) && op >= 0 && !op_of((enum mk_op)op)->causal;
}

static int measured_read_rows(struct measured *m, FILE *f, const char *path, const struct header *h,
                              enum measured_half half, uint32_t sms, char *error, size_t size)
{
    char line[4096], why[256], *cells[MOST_CELLS];
    struct shape *shapes = malloc(MOST_SHAPES * sizeof *shapes);
    uint32_t number = 1, count = 0, first = m->shapes;
    int result = shapes ? 0 : -ENOMEM;
    while (!result && fgets(line, sizeof line, f)) {
        number++;
        uint32_t found = measured_cells(line, cells);
        if ((int)found <= h->most || found < h->count) {
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
        row->ms = strtod(cells[h->at[MS]], NULL);
        row->of_best = strtod(measured_cell(h, cells, OF_BEST), NULL);
        row->is_default = !strcmp(measured_cell(h, cells, DEFAULT), "1");
        row->shape = first + shape;
        row->rested = measured_rests(h, cells);
        row->early =
            measured_by_bench(h, cells) && strtoul(measured_cell(h, cells, BURST), NULL, 10) > 1;
        snprintf(why, sizeof why, "it has no time, or wrong results");
        if (!(row->ms > 0) || strtoull(measured_cell(h, cells, WRONG), NULL, 10) ||
            measured_plan(row, h, cells, sms, why, sizeof why)) {
            measured_leave_out(m, why);
            continue;
        }
        m->count++;
    }
    m->shapes = first + count;
    free(shapes);
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
    FILE *f = fopen(path, "re");
    error[0] = '\0';
    if (f && measured_is_trace(f)) {
        fclose(f);
        return measured_read_trace(m, path, half, sms, error, size);
    }
    if (!f || !fgets(h.text, sizeof h.text, f)) {
        result = !f || ferror(f) ? -errno : -EINVAL;
        snprintf(error, size, "the table '%s' cannot be read: %s", path,
                 result == -EINVAL ? "it is empty" : strerror(-result));
    } else {
        result = measured_columns(&h, path, error, size);
    }
    result = result ? result : measured_read_rows(m, f, path, &h, half, sms, error, size);
    if (f)
        fclose(f);
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
