/* A CSV table (RFC 4180), one cell after the other with the name of its column, so that header and
 * rows cannot drift apart. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct csv_table {
    FILE *names, *cells;
    char *header, *rows; /* rows have an end of line between them; both are whole once written */
    size_t header_bytes, rows_bytes;
    uint32_t count, columns; /* rows; cells of the last */
};

/* A table begins with zeros, and lives until csv_free or what says so. */
void csv_free(struct csv_table *t);

/* Begins a row. All have the same columns: the first makes the header. Memory that is not there is
 * an error of what writes the table. */
void csv_row(struct csv_table *t);

/* A cell each. Text is quoted where it has to be; NULL, and a number that is not finite, is an
 * empty cell. */
void csv_text(struct csv_table *t, const char *name, const char *text);
void csv_whole(struct csv_table *t, const char *name, uint64_t value);
void csv_number(struct csv_table *t, const char *name, const char *format, double value);

/* Writes the header and the rows so far (at least one) to `path`, in full or not at all; with
 * `from`, t->rows_bytes after an earlier call, the rows since then alone. 0 or -errno. */
int csv_write(struct csv_table *t, const char *path, size_t from);

/* Writes the table as a new file, or with `append` after the rows of the file, which must have the
 * same header; other processes may append at the same time. Frees the table in any case. 0 or
 * -errno. */
int csv_end(struct csv_table *t, const char *path, int append);

/* Whether this table's rows can be appended to `path`: it does not exist, is empty, or is a regular
 * file whose first line is this header. To be called before a run. Frees the table. 0, -ENOMEM, or
 * -EINVAL with a sentence that names the first column that differs. */
int csv_check_append(struct csv_table *t, const char *path, char *error, size_t size);
