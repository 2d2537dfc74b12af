/* Fits a line through bracketed clock samples. */
#include "tracer/clock.h"
#include "core/base/scoped.h"
#include "core/base/sorted.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The least brackets are sought in each of so many parts of the time, so that both ends keep
 * some. */
#define WINDOWS 16
/* More than adjtime's 500 ppm and two bad crystals: the samples are false. */
#define MAX_DRIFT 2e-3

static int clock_compare_u64(const void *a, const void *b)
{
    return MK_ORDER(*(const uint64_t *)a, *(const uint64_t *)b);
}

static double clock_offset_of(const struct trace_clock_sample *s)
{
    return (double)(int64_t)(s->remote - s->local);
}

/* Marks, in every window of time, the samples whose bracket is in its lowest quarter (at least
 * one). */
static int clock_choose(const struct trace_clock_sample *s, uint32_t count, uint8_t *used)
{
    uint64_t first = UINT64_MAX, last = 0;
    MK_FREED uint64_t *brackets = malloc(count * sizeof *brackets);
    if (!brackets)
        return -ENOMEM;
    for (uint32_t i = 0; i < count; i++) {
        first = s[i].local < first ? s[i].local : first;
        last = s[i].local > last ? s[i].local : last;
    }
    uint64_t width = (last - first) / WINDOWS + 1;
    for (uint32_t w = 0; w < WINDOWS; w++) {
        uint32_t n = 0;
        for (uint32_t i = 0; i < count; i++)
            if ((s[i].local - first) / width == w)
                brackets[n++] = s[i].bracket;
        if (!n)
            continue;
        qsort(brackets, n, sizeof *brackets, clock_compare_u64);
        uint64_t limit = brackets[n / 4];
        for (uint32_t i = 0; i < count; i++)
            if ((s[i].local - first) / width == w)
                used[i] = s[i].bracket <= limit;
    }
    return 0;
}

/* A drift that the samples' span determines and that two clocks can have; else none, and the
 * residual says the rest. */
static double clock_plausible(const struct trace_clock *c, double drift)
{
    return c->drift_error < TRACE_DRIFT_UNKNOWN && fabs(drift) < MAX_DRIFT ? drift : 0;
}

/* Weighted least squares over the used samples. A sample's weight is 1 / bracket^2. */
static void clock_fit_line(struct trace_clock *c, const struct trace_clock_sample *s,
                           uint32_t count, const uint8_t *used)
{
    double w = 0, wx = 0, wy = 0, wxx = 0, wxy = 0;
    double base = 0; /* offsets are large, their differences small: fit the differences */
    int have_base = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (!used[i])
            continue;
        if (!have_base) {
            base = clock_offset_of(&s[i]);
            have_base = 1;
        }
        double width = (double)s[i].bracket + 1, weight = 1 / (width * width);
        double x = (double)(int64_t)(s[i].local - c->reference), y = clock_offset_of(&s[i]) - base;
        w += weight, wx += weight * x, wy += weight * y, wxx += weight * x * x,
            wxy += weight * x * y;
    }
    double spread = wxx - wx * wx / w;
    c->drift = clock_plausible(c, spread > 0 ? (wxy - wx * wy / w) / spread : 0);
    c->offset = (int64_t)llround(base + (wy - c->drift * wx) / w);
}

/* A first line that a minority of false samples cannot move: the median of the slopes between
 * samples, then of the offsets (Theil, 1950; Sen, 1968). 0 or -ENOMEM. */
static int clock_fit_median(struct trace_clock *c, const struct trace_clock_sample *s,
                            uint32_t count, const uint8_t *used)
{
    size_t n = 0, pairs = (size_t)c->used * c->used / 2 + c->used + 1;
    MK_FREED double *values = malloc(pairs * sizeof *values);
    double base = 0;
    if (!values)
        return -ENOMEM;
    uint64_t far = (c->last - c->first) / 8; /* neighbours' slopes are all noise */
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t k = i + 1; used[i] && k < count; k++) {
            uint64_t apart =
                s[k].local > s[i].local ? s[k].local - s[i].local : s[i].local - s[k].local;
            if (used[k] && apart > far)
                values[n++] = (clock_offset_of(&s[k]) - clock_offset_of(&s[i])) /
                              (double)(int64_t)(s[k].local - s[i].local);
        }
    mk_sort(values, n);
    c->drift = clock_plausible(c, n ? values[n / 2] : 0);
    n = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (!used[i])
            continue;
        base = n ? base : clock_offset_of(&s[i]);
        values[n++] =
            clock_offset_of(&s[i]) - base - c->drift * (double)(int64_t)(s[i].local - c->reference);
    }
    mk_sort(values, n);
    c->offset = (int64_t)llround(base + values[n / 2]);
    return 0;
}

static double clock_error_of(const struct trace_clock *c, const struct trace_clock_sample *s)
{
    return fabs((double)((int64_t)s->remote - clock_map(c, s->local)));
}

/* Drops used samples that lie outside their own bracket by more than the typical miss: a clock
 * step, a garbled sample. */
static uint32_t clock_drop_outliers(const struct trace_clock *c, const struct trace_clock_sample *s,
                                    uint32_t count, uint8_t *used, uint64_t *scratch)
{
    uint32_t n = 0, dropped = 0;
    for (uint32_t i = 0; i < count; i++)
        if (used[i])
            scratch[n++] = (uint64_t)clock_error_of(c, &s[i]);
    if (n < 4)
        return 0;
    qsort(scratch, n, sizeof *scratch, clock_compare_u64);
    double limit = 4 * (double)scratch[n / 2] + 1;
    for (uint32_t i = 0; i < count; i++) {
        double e = used[i] ? clock_error_of(c, &s[i]) : 0;
        if (e > limit && e > (double)s[i].bracket / 2) {
            used[i] = 0;
            dropped++;
        }
    }
    return dropped;
}

static void clock_measure(struct trace_clock *c, const struct trace_clock_sample *s, uint32_t count,
                          const uint8_t *used)
{
    uint64_t widest = 0;
    c->first = UINT64_MAX, c->last = 0, c->used = 0, c->residual = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (!used[i])
            continue;
        c->used++;
        c->first = s[i].local < c->first ? s[i].local : c->first;
        c->last = s[i].local > c->last ? s[i].local : c->last;
        widest = s[i].bracket > widest ? s[i].bracket : widest;
    }
    double span = (double)(c->last - c->first);
    double error = span > 0 ? (double)(widest + 1) / span : 1;
    c->drift_error = error < TRACE_DRIFT_UNKNOWN ? error : TRACE_DRIFT_UNKNOWN;
}

int clock_fit(struct trace_clock *out, const struct trace_clock_sample *s, uint32_t count,
              uint8_t *mark)
{
    memset(out, 0, sizeof *out);
    out->samples = count;
    if (!count)
        return 0;
    MK_FREED uint8_t *used = calloc(count, 1);
    MK_FREED uint64_t *scratch = malloc(count * sizeof *scratch);
    int rc = used && scratch ? clock_choose(s, count, used) : -ENOMEM;
    if (rc)
        return rc;
    out->reference = s[0].local;
    clock_measure(out, s, count, used);
    rc = clock_fit_median(out, s, count, used);
    if (rc)
        return rc;
    clock_drop_outliers(out, s, count, used, scratch);
    clock_measure(out, s, count, used);
    clock_fit_line(out, s, count, used);
    for (int round = 0; round < 8 && clock_drop_outliers(out, s, count, used, scratch); round++) {
        clock_measure(out, s, count, used);
        clock_fit_line(out, s, count, used);
    }
    for (uint32_t i = 0; i < count; i++)
        if (used[i]) {
            uint64_t far = (uint64_t)clock_error_of(out, &s[i]) + (s[i].bracket + 1) / 2;
            out->residual = far > out->residual ? far : out->residual;
        }
    if (mark)
        memcpy(mark, used, count);
    return rc;
}

int64_t clock_map(const struct trace_clock *c, uint64_t local)
{
    double since = (double)(int64_t)(local - c->reference);
    return (int64_t)(local + (uint64_t)c->offset + (uint64_t)(int64_t)llround(c->drift * since));
}

uint64_t clock_residual(const struct trace_clock *c, uint64_t from, uint64_t to)
{
    if (!c->samples)
        return 0;
    uint64_t before = from < c->first ? c->first - from : 0,
             after = to > c->last ? to - c->last : 0;
    double drift = c->drift_error * (double)(before > after ? before : after);
    return c->residual + (drift < 1e18 ? (uint64_t)drift : (uint64_t)1e18);
}
