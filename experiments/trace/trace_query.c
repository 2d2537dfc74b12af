/* Small things that every report of a trace needs. */
#include "experiments/trace/trace_cli.h"

#include <errno.h>
#include <math.h>

int trace_launch(sqlite3 *db, uint64_t launch, int64_t *start, int64_t *end, char *error,
                 size_t size)
{
    QUERY q =
        query_ask(db, "SELECT start, end FROM launches WHERE launch = ?1", "i", (int64_t)launch);
    long long from, to;
    int found = query_row(q, "ii", &from, &to);
    if (found)
        *start = from, *end = to;
    if (!found)
        snprintf(error, size, "there is no launch %lu; the trace has launches 1 to %ld", launch,
                 query_integer(db, 0, "SELECT count(*) FROM launch", ""));
    return found ? 0 : -ERANGE;
}

const char *trace_plural(int64_t count)
{
    return count == 1 ? "" : "s";
}

/* The unit in which `value` is written, and the value in it. */
static int trace_query_scale(double *value, int count, double step)
{
    int unit = 0;
    /* 999.96 us would print as 1000 us */
    for (; unit + 1 < count && fabs(*value) >= step * (step == 1000 ? 0.9995 : 1); unit++)
        *value /= step;
    return unit;
}

static int trace_query_digits(int unit, double value)
{
    return unit == 0 ? 0 : fabs(value) < 10 ? 2 : fabs(value) < 100 ? 1 : 0;
}

static const char *trace_query_scaled(char text[24], double value, const char *const *units,
                                      int count, double step)
{
    int unit = trace_query_scale(&value, count, step);
    snprintf(text, 24, "%.*f %s", trace_query_digits(unit, value), value, units[unit]);
    return text;
}

static const char *const time_units[] = {"ns", "us", "ms", "s"};

const char *trace_time(char text[24], double ns)
{
    return trace_query_scaled(text, ns, time_units, 4, 1000);
}

const char *trace_time_like(char text[24], double ns, double like)
{
    int unit = trace_query_scale(&like, 4, 1000), digits = trace_query_digits(unit, like);
    for (int i = 0; i < unit; i++)
        ns /= 1000;
    snprintf(text, 24, "%.*f %s", digits, ns, time_units[unit]);
    return text;
}

const char *trace_bytes(char text[24], double bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    return trace_query_scaled(text, bytes, units, 5, 1024);
}
