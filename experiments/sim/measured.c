#include "experiments/sim/measured.h"
#include "core/tuning.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OP, M, N, K, NODES, GPUS, MS, MADE, OF_BEST, DEFAULT, WRONG, COLUMNS, NEEDED = OF_BEST };
static const char *const names[COLUMNS] = {"op", "m",    "n",       "k",       "nodes", "gpus",
                                           "ms", "made", "of_best", "default", "wrong"};

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

/* Where each column is; -1: it is not there. */
static int measured_columns(char *header, int at[COLUMNS], const char *path, char *error,
                            size_t size)
{
    char *cells[MOST_CELLS];
    uint32_t count = measured_cells(header, cells);
    for (int c = 0; c < COLUMNS; c++) {
        at[c] = -1;
        for (uint32_t i = 0; i < count; i++)
            if (!strcmp(cells[i], names[c]))
                at[c] = (int)i;
        if (at[c] < 0 && c < NEEDED) {
            snprintf(error, size,
                     "'%s' has no column '%s': it is no table that `mkernel tune --csv` wrote",
                     path, names[c]);
            return -EINVAL;
        }
    }
    return 0;
}

/* The plan of a row. 0, or -EINVAL with a sentence. */
static int measured_plan(struct measured_row *row, char *const *cells, const int at[COLUMNS],
                         uint32_t sms, char *error, size_t size)
{
    char words[sizeof row->words], *save;
    int op = plan_op_by_name(cells[at[OP]]);
    if (op < 0)
        return op;
    struct mk_problem q = {.op = (enum mk_op)op,
                           .exec = MK_EXEC_CUDA,
                           .sms = sms,
                           .topo = {.nodes = (uint32_t)strtoul(cells[at[NODES]], NULL, 10),
                                    .gpus = (uint32_t)strtoul(cells[at[GPUS]], NULL, 10)},
                           .m = strtoull(cells[at[M]], NULL, 10),
                           .n = strtoull(cells[at[N]], NULL, 10),
                           .k = strtoull(cells[at[K]], NULL, 10)};
    snprintf(row->words, sizeof row->words, "%s", cells[at[MADE]]);
    snprintf(words, sizeof words, "%s", cells[at[MADE]]);
    for (char *word = strtok_r(words, " ", &save); word; word = strtok_r(NULL, " ", &save)) {
        char renamed[64];
        if (!strncmp(word, "width=", 6)) { /* fanout's name until 2026-11-22 */
            snprintf(renamed, sizeof renamed, "fanout=%.32s", word + 6);
            word = renamed;
        }
        int result = tuning_read_word(word, q.op, &q.tuning, error, size);
        if (result)
            return result;
    }
    return plan_build(&row->plan, &q, 0, 0, error, size);
}

static int measured_room(struct measured *m)
{
    if (m->count & (m->count - 1))
        return 0;
    struct measured_row *more = realloc(m->rows, (m->count ? 2ull * m->count : 1) * sizeof *more);
    if (!more)
        return -ENOMEM;
    m->rows = more;
    return 0;
}

struct shape {
    char text[96];
};

/* The shape's number in its file. */
static uint32_t measured_shape(struct shape *shapes, uint32_t *count, char *const *cells,
                               const int at[COLUMNS])
{
    struct shape s;
    uint32_t i = 0;
    snprintf(s.text, sizeof s.text, "%s %s,%s,%s %sx%s", cells[at[OP]], cells[at[M]], cells[at[N]],
             cells[at[K]], cells[at[NODES]], cells[at[GPUS]]);
    while (i < *count && strcmp(shapes[i].text, s.text))
        i++;
    if (i == *count)
        shapes[(*count)++] = s;
    return i;
}

#define MOST_SHAPES 1024u

static int measured_read_rows(struct measured *m, FILE *f, const char *path, const int at[COLUMNS],
                              enum measured_half half, uint32_t sms, char *error, size_t size)
{
    char line[4096], why[256], *cells[MOST_CELLS];
    struct shape *shapes = malloc(MOST_SHAPES * sizeof *shapes);
    uint32_t number = 1, count = 0, first = m->shapes;
    int result = shapes ? 0 : -ENOMEM, most = 0;
    for (int c = 0; c < COLUMNS; c++)
        most = at[c] > most ? at[c] : most;
    while (!result && fgets(line, sizeof line, f)) {
        number++;
        if ((int)measured_cells(line, cells) <= most) {
            snprintf(error, size, "line %u of '%s' has too few cells", number, path);
            result = -EINVAL;
            break;
        }
        uint32_t shape = count < MOST_SHAPES ? measured_shape(shapes, &count, cells, at) : 0;
        if ((half == MEASURED_ODD && shape % 2) || (half == MEASURED_EVEN && shape % 2 == 0))
            continue;
        result = measured_room(m);
        if (result)
            break;
        struct measured_row *row = &m->rows[m->count];
        memset(row, 0, sizeof *row);
        row->ms = strtod(cells[at[MS]], NULL);
        row->of_best = at[OF_BEST] < 0 ? 0 : strtod(cells[at[OF_BEST]], NULL);
        row->is_default = at[DEFAULT] >= 0 && !strcmp(cells[at[DEFAULT]], "1");
        row->shape = first + shape;
        snprintf(why, sizeof why, "it has no time, or wrong results");
        if (!(row->ms > 0) || (at[WRONG] >= 0 && strtoull(cells[at[WRONG]], NULL, 10)) ||
            measured_plan(row, cells, at, sms, why, sizeof why)) {
            if (!m->left_out++)
                snprintf(m->left_out_why, sizeof m->left_out_why, "%s", why);
            continue;
        }
        m->count++;
    }
    m->shapes = first + count;
    free(shapes);
    return result;
}

int measured_read(struct measured *m, const char *path, enum measured_half half, uint32_t sms,
                  char *error, size_t size)
{
    char header[4096];
    int at[COLUMNS], result = 0;
    FILE *f = fopen(path, "re");
    error[0] = '\0';
    if (!f || !fgets(header, sizeof header, f)) {
        result = !f || ferror(f) ? -errno : -EINVAL;
        snprintf(error, size, "the table '%s' cannot be read: %s", path,
                 result == -EINVAL ? "it is empty" : strerror(-result));
    } else {
        result = measured_columns(header, at, path, error, size);
    }
    if (!result)
        result = measured_read_rows(m, f, path, at, half, sms, error, size);
    if (f)
        fclose(f);
    if (result && !error[0])
        snprintf(error, size, "the table '%s': %s", path, strerror(-result));
    return result;
}

int measured_read_list(struct measured *m, const char *list, enum measured_half half, uint32_t sms,
                       char *error, size_t size)
{
    char path[1024];
    int result = 0;
    while (*list && !result) {
        size_t length = strcspn(list, ",");
        snprintf(path, sizeof path, "%.*s", (int)length, list);
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
