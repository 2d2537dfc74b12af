/* Rows into SQLite, many to a statement: 32 rows in one step cost a third of 32 steps. */
#pragma once

#include <sqlite3.h>
#include <stddef.h>
#include <stdint.h>

#define INSERT_ROWS 32
#define INSERT_COLUMNS 32
#define INSERT_NULL INT64_MIN /* of an integer: stored as NULL */

enum insert_type { INSERT_INTEGER, INSERT_REAL, INSERT_TEXT };

struct insert_value {
    enum insert_type type;
    union {
        int64_t integer;
        double real;
        char *text;
    } u;
};

/* Rows of one table after another. Errors stick: after the first, everything is ignored and
 * insert_end returns it. Begun with a `db` and zeros. */
struct insert {
    sqlite3 *db;
    sqlite3_stmt *many;
    const char *table;
    int columns, count; /* count: values waiting */
    int rc;             /* SQLite's */
    struct insert_value values[INSERT_ROWS * INSERT_COLUMNS];
};

/* Writes what waits; what follows are whole rows of a table with that many columns. `table`
 * outlives them. */
void insert_table(struct insert *in, const char *table, int columns);
/* The next column of the row under way, or the next several; a row is complete with its last
 * column. Text (NULL: NULL) is copied. */
void insert_integers(struct insert *in, const int64_t *values, size_t count);
#define INSERT_INTEGERS(in, ...)                                                                   \
    insert_integers(in, (const int64_t[]){__VA_ARGS__},                                            \
                    sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t))
void insert_integer(struct insert *in, int64_t value);
void insert_real(struct insert *in, double value);
void insert_text(struct insert *in, const char *text);
/* Writes what waits, and runs a statement that looks at it. */
void insert_sql(struct insert *in, const char *sql);
/* There is no memory: SQLITE_NOMEM, where no error came before. */
void insert_fail(struct insert *in);
/* Writes what waits and frees. Returns SQLite's first error, or SQLITE_OK. */
int insert_end(struct insert *in);
