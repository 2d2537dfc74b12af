#include "tracer/query.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stddef.h>

#include "tracer/bound.h"

static void query_bind(sqlite3_stmt *q, const char *types, va_list args)
{
    for (int i = 1; *types; types++, i++) {
        if (*types == 't')
            sqlite3_bind_text(q, i, va_arg(args, const char *), -1, SQLITE_TRANSIENT);
        else if (*types == 'i')
            sqlite3_bind_int64(q, i, va_arg(args, int64_t));
        else
            sqlite3_bind_double(q, i, va_arg(args, double)); /* NaN becomes NULL */
    }
}

static sqlite3_stmt *query_make(sqlite3 *db, const char *sql, const char *types, va_list args)
{
    sqlite3_stmt *q = NULL;
    if (sqlite3_prepare_v2(db, sql, -1, &q, NULL) != SQLITE_OK)
        return NULL;
    query_bind(q, types, args);
    return q;
}

sqlite3_stmt *query_ask(sqlite3 *db, const char *sql, const char *types, ...)
{
    va_list args;
    va_start(args, types);
    sqlite3_stmt *q = query_make(db, sql, types, args);
    va_end(args);
    return q;
}

void query_again(sqlite3_stmt *q, const char *types, ...)
{
    va_list args;
    sqlite3_reset(q);
    va_start(args, types);
    query_bind(q, types, args);
    va_end(args);
}

void query_end(sqlite3_stmt **q)
{
    sqlite3_finalize(*q);
}

/* 0: the number is none that a file of mkernel has. */
static int query_column(sqlite3_stmt *q, int i, char type, void *out)
{
    const int none = sqlite3_column_type(q, i) == SQLITE_NULL;
    if (type == 't') {
        const char *text =
            (const char *)sqlite3_column_text(q, i); /* NULL in a damaged file, too */
        *(const char **)out = text ? text : "";
        return 1;
    }
    if (!bound_takes(q, i, type == 'n' ? INT32_MAX : BOUND_NUMBER))
        return 0;
    switch (type) {
    case 'i':
        *(long long *)out = sqlite3_column_int64(q, i);
        break;
    case 'o':
        *(long long *)out = none ? QUERY_NONE : sqlite3_column_int64(q, i);
        break;
    case 'n':
        *(int *)out = sqlite3_column_int(q, i);
        break;
    default:
        *(double *)out = none ? NAN : sqlite3_column_double(q, i);
    }
    return 1;
}

int query_row(sqlite3_stmt *q, const char *types, ...)
{
    va_list args;
    if (sqlite3_step(q) != SQLITE_ROW)
        return 0;
    int taken = 1;
    va_start(args, types);
    for (int i = 0; types[i] && taken; i++)
        if (types[i] != '-')
            taken = query_column(q, i, types[i], va_arg(args, void *));
    va_end(args);
    return taken;
}

int64_t query_integer(sqlite3 *db, int64_t missing, const char *sql, const char *types, ...)
{
    va_list args;
    long long value;
    va_start(args, types);
    QUERY q = query_make(db, sql, types, args);
    va_end(args);
    if (query_row(q, "o", &value) && value != QUERY_NONE)
        missing = value;
    return missing;
}

double query_real(sqlite3 *db, double missing, const char *sql)
{
    QUERY q = query_ask(db, sql, "");
    double value;
    if (query_row(q, "d", &value) && !isnan(value))
        missing = value;
    return missing;
}

int query_do(sqlite3 *db, const char *sql, const char *types, ...)
{
    va_list args;
    va_start(args, types);
    QUERY q = query_make(db, sql, types, args);
    va_end(args);
    int rc = SQLITE_ROW;
    while (q && rc == SQLITE_ROW)
        rc = sqlite3_step(q);
    return q && rc == SQLITE_DONE ? 0 : -EIO;
}
