#include "experiments/sim/measured.h"
#include "core/base/grow.h"
#include "core/ops/op.h"
#include "core/base/scoped.h"
#include "core/plan/tuning.h"
#include "core/base/sentence.h"
#include "core/base/words.h"
#include "experiments/common/problem.h"
#include "experiments/common/plan_row.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define MOST_CELLS 128u

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
    return measured_column(h, "ms") < 0 ? "ms" : NULL;
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
        return op_read_problem(q, measured_cell(h, cells, "shape"))
                   ? mk_fail(-EINVAL, error, size, "'%.64s' is no shape of %s",
                             measured_cell(h, cells, "shape"), plan_op_name(q->op))
                   : 0;
    for (uint32_t i = 0; i < op_dimensions(shape); i++) {
        int column = measured_number_column(h, &shape->dimensions[i]);
        if (column < 0)
            return mk_fail(-EINVAL, error, size, "it has no column for the %s of %s",
                           shape->dimensions[i].name, plan_op_name(q->op));
        uint32_t number;
        if (plan_row_whole(cells[column], &number) || !number)
            return mk_fail(-EINVAL, error, size, "its column %s has '%.64s'", h->cells[column],
                           cells[column]);
        numbers[i] = number;
    }
    op_set_numbers(q, numbers);
    return 0;
}

/* A plan's words, "tile=256,128 pace=none", into *tuning. 0, or -EINVAL with a sentence. */
static int measured_words(const char *made, enum mk_op op, struct mk_tuning *tuning, char *error,
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

void measured_old(struct mk_problem *q)
{
    if (!q->tuning.shots && op_of(q->op)->knobs & OP_SHOTS)
        q->tuning.shots = MK_TWO_SHOT;
}

struct row {
    const struct header *header;
    char *const *cells;
};

static const char *measured_row_cell(const void *row, const char *name)
{
    const struct row *r = row;
    return measured_cell(r->header, r->cells, name);
}

/* The problem but its numbers, and the plan's options where each has a column. 0, or -EINVAL. */
static int measured_problem(const struct header *h, char *const *cells, struct mk_problem *q,
                            char *error, size_t size)
{
    const char *wrong = NULL;
    if (plan_row_whole(measured_cell(h, cells, "nodes"), &q->topo.nodes))
        wrong = "nodes";
    else if (plan_row_whole(measured_cell(h, cells, "gpus"), &q->topo.gpus))
        wrong = "gpus";
    else
        wrong = plan_row_read(q, measured_row_cell, &(struct row){h, cells});
    if (wrong)
        return mk_fail(-EINVAL, error, size, "its column %s has '%.64s'", wrong,
                       measured_cell(h, cells, wrong));
    q->attention.causal |= !strcmp(measured_cell(h, cells, "causal"), "1");
    if (measured_column(h, "intra_comm_warps") < 0)
        q->tuning.split = tuning_old_roles(q->tuning.split.ctas);
    return 0;
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
    /* a table of `tune` has no `exec`, and "host" where others have a GPU's name */
    if ((measured_column(h, "exec") >= 0 && strcmp(measured_cell(h, cells, "exec"), "cuda")) ||
        !strcmp(measured_cell(h, cells, "device"), "host"))
        return mk_fail(-EINVAL, error, size, "it was not measured on GPUs");
    int result = measured_numbers(h, cells, &q, error, size);
    result = result ? result : measured_problem(h, cells, &q, error, size);
    if (!result && measured_column(h, "made") >= 0)
        result = measured_words(measured_cell(h, cells, "made"), q.op, &q.tuning, error, size);
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

/* The shape's number in its file: of all that says the problem. 0 or -ENOMEM. */
static int measured_shape(struct shape **shapes, uint32_t *count, const struct header *h,
                          char *const *cells, uint32_t *number)
{
    struct shape s;
    int op = plan_op_by_name(measured_cell(h, cells, "op"));
    struct mk_problem q = {.op = (op < 0 ? 0 : op)};
    char error[128], text[OP_PROBLEM_TEXT];
    if (measured_numbers(h, cells, &q, error, sizeof error))
        q.m = 0;
    snprintf(s.text, sizeof s.text, "%s %.100s %s %s %s %sx%s", measured_cell(h, cells, "op"),
             op_problem_text(&q, text), measured_cell(h, cells, "causal"),
             measured_cell(h, cells, "b_layout"), measured_cell(h, cells, "dtype"),
             measured_cell(h, cells, "nodes"), measured_cell(h, cells, "gpus"));
    /* mostly it is the last one */
    for (*number = *count; *number && strcmp((*shapes)[*number - 1].text, s.text);)
        --*number;
    if (*number) {
        --*number;
        return 0;
    }
    if (mk_grow(shapes, *count, sizeof s))
        return -ENOMEM;
    *number = (*count)++;
    (*shapes)[*number] = s;
    return 0;
}

static int measured_by(const struct header *h, char *const *cells, const char *command)
{
    return !strcmp(measured_cell(h, cells, "command"), command);
}

/* GPUs rest in turns of `mkernel bench`, and in `run` while the inputs of the next burst are made;
 * but not where another's products, as long as the operator's, are in between: attention (what has
 * a mask) takes turns with cuDNN's. */
static int measured_rests(const struct header *h, char *const *cells)
{
    int op = plan_op_by_name(measured_cell(h, cells, "op"));
    return (measured_by(h, cells, "bench") || measured_by(h, cells, "run")) && op >= 0 &&
           !op_of(op)->causal;
}

/* What was measured. 0, or -EINVAL with why the row is left out. */
static int measured_figures(struct measured_row *row, const struct header *h, char *const *cells,
                            char *error, size_t size)
{
    double burst, wrong;
    const struct {
        const char *column;
        double *to; /* 0 where the cell is empty, or not there */
    } figures[] = {
        {"ms", &row->ms}, {"of_best", &row->of_best}, {"burst", &burst}, {"wrong", &wrong}};
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++) {
        const char *text = measured_cell(h, cells, figures[i].column);
        char *end;
        *figures[i].to = strtod(text, &end);
        if (*end || !(*figures[i].to >= 0 && *figures[i].to < 1e12))
            return mk_fail(-EINVAL, error, size, "its column %s has '%.64s'", figures[i].column,
                           text);
    }
    row->early = measured_by(h, cells, "bench") && burst > 1;
    return row->ms > 0 && wrong < 1
               ? 0
               : mk_fail(-EINVAL, error, size, "%s", "it has no time, or wrong results");
}

static int measured_read_rows(struct measured *m, FILE *f, const char *path, const struct header *h,
                              enum measured_half half, uint32_t sms, char *error, size_t size)
{
    char line[4096], why[256], *cells[MOST_CELLS];
    MK_FREED struct shape *shapes = NULL;
    uint32_t number = 1, count = 0, first = m->shapes, shape;
    int result = 0;
    while (!result && fgets(line, sizeof line, f)) {
        number++;
        uint32_t found = measured_cells(line, cells);
        if (found < h->count) {
            snprintf(error, size, "line %u of '%s' has too few cells", number, path);
            result = -EINVAL;
            break;
        }
        result = measured_shape(&shapes, &count, h, cells, &shape);
        if (result)
            break;
        if (!measured_wanted(half, shape))
            continue;
        struct measured_row *row;
        result = measured_next(m, &row);
        if (result)
            break;
        row->is_default = !strcmp(measured_cell(h, cells, "default"), "1");
        row->shape = first + shape;
        row->rested = measured_rests(h, cells);
        if (measured_figures(row, h, cells, why, sizeof why) ||
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
        for (uint32_t i = 0; i < h.count; i++)
            if (!strcmp(h.cells[i], "fused_ms")) /* in older tables of `mkernel bench` */
                h.cells[i] = "ms";
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
