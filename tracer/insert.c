#include "tracer/insert.h"
#include "core/base/sentence.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static sqlite3_stmt *insert_prepare(struct insert *in, int rows)
{
    char sql[64 + INSERT_ROWS * (2 * INSERT_COLUMNS + 2)];
    snprintf(sql, sizeof sql, "INSERT INTO %s VALUES", in->table);
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < in->columns; c++)
            mk_append(sql, sizeof sql, "%s?%s",
                      c   ? ","
                      : r ? ",("
                          : "(",
                      c + 1 == in->columns ? ")" : "");
    sqlite3_stmt *q = NULL;
    in->rc = sqlite3_prepare_v2(in->db, sql, -1, &q, NULL);
    return q;
}

static void insert_bind_all(struct insert *in, sqlite3_stmt *q)
{
    for (int i = 0; i < in->count; i++) {
        const struct insert_value *v = &in->values[i];
        if (v->type == INSERT_INTEGER && v->u.integer != INSERT_NULL)
            sqlite3_bind_int64(q, i + 1, v->u.integer);
        else if (v->type == INSERT_INTEGER || (v->type == INSERT_TEXT && !v->u.text))
            sqlite3_bind_null(q, i + 1);
        else if (v->type == INSERT_REAL)
            sqlite3_bind_double(q, i + 1, v->u.real);
        else
            sqlite3_bind_text(q, i + 1, v->u.text, -1, free); /* handed over */
    }
}

static void insert_flush(struct insert *in, sqlite3_stmt *q)
{
    insert_bind_all(in, q);
    in->count = 0;
    int rc = sqlite3_step(q);
    if (rc != SQLITE_DONE)
        in->rc = rc;
    sqlite3_reset(q);
}

static void insert_add(struct insert *in, struct insert_value value)
{
    if (in->rc != SQLITE_OK) {
        if (value.type == INSERT_TEXT)
            free(value.u.text);
        return;
    }
    in->values[in->count++] = value;
    if (in->count == INSERT_ROWS * in->columns)
        insert_flush(in, in->many);
}

void insert_integer(struct insert *in, int64_t value)
{
    insert_add(in, (struct insert_value){INSERT_INTEGER, {.integer = value}});
}

void insert_integers(struct insert *in, const int64_t *values, size_t count)
{
    for (size_t i = 0; i < count; i++)
        insert_integer(in, values[i]);
}

void insert_real(struct insert *in, double value)
{
    insert_add(in, (struct insert_value){INSERT_REAL, {.real = value}});
}

void insert_text(struct insert *in, const char *text)
{
    char *copy = text ? strdup(text) : NULL;
    if (text && !copy)
        in->rc = SQLITE_NOMEM;
    insert_add(in, (struct insert_value){INSERT_TEXT, {.text = copy}});
}

int insert_end(struct insert *in)
{
    if (in->rc == SQLITE_OK && in->count) {
        sqlite3_stmt *rest = insert_prepare(in, in->count / in->columns);
        if (rest)
            insert_flush(in, rest);
        sqlite3_finalize(rest);
    }
    for (int i = 0; i < in->count; i++)
        if (in->values[i].type == INSERT_TEXT)
            free(in->values[i].u.text);
    in->count = 0;
    sqlite3_finalize(in->many);
    in->many = NULL;
    return in->rc;
}

void insert_table(struct insert *in, const char *table, int columns)
{
    if (insert_end(in))
        return;
    in->table = table;
    in->columns = columns;
    in->many = insert_prepare(in, INSERT_ROWS);
}

void insert_sql(struct insert *in, const char *sql)
{
    if (!insert_end(in))
        in->rc = sqlite3_exec(in->db, sql, NULL, NULL, NULL);
}

void insert_fail(struct insert *in)
{
    in->rc = in->rc ? in->rc : SQLITE_NOMEM;
}
