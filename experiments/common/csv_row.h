/* A row of a CSV table (RFC 4180), one cell after the other with the name of its column, so that
 * header and row cannot drift apart; and the table as a file. */
#ifndef MK_CSV_ROW_H
#define MK_CSV_ROW_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct csv_row {
    FILE *names, *cells;
    char *header, *row; /* both without an end of line, once closed */
    size_t header_bytes, row_bytes;
    int columns;
};

/* 0 or -ENOMEM; nothing is open then. */
int csv_row_open(struct csv_row *r);

/* A cell each. Text is quoted where it has to be; NULL, and a number that is not finite, is an
 * empty cell. */
void csv_text(struct csv_row *r, const char *name, const char *text);
void csv_whole(struct csv_row *r, const char *name, uint64_t value);
void csv_number(struct csv_row *r, const char *name, const char *format, double value);

/* No more cells. 0 or -ENOMEM; csv_row_free is called in both cases. */
int csv_row_close(struct csv_row *r);
void csv_row_free(struct csv_row *r);

/* Whether rows under `header` can be added to `path`, asked before anything starts: it is not there
 * or empty, or it is a regular file whose first line is that header. 0, or -EINVAL with a sentence
 * that names the first column that differs. */
int csv_check_append(const char *path, const char *header, char *error, size_t error_size);

/* Writes rows (closed, at least one, of the same columns) to `path`, in full or not at all: as a
 * new table, or with `append` behind those that are there, under the same header; others may append
 * to it at the same time. 0 or -errno. */
int csv_write(const char *path, const struct csv_row *rows, uint32_t count, int append);

#endif
