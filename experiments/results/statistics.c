#include "experiments/results/statistics.h"
#include "core/base/random.h"
#include "core/base/scoped.h"
#include "core/base/sorted.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define DRAWS 2000u
/* Above so many values the median of a draw is taken by its rank, which is then nearly normal. */
#define MANY 400u

double stat_quantile(const double *sorted, uint32_t count, double q)
{
    double at = q * (count - 1);
    uint32_t below = (uint32_t)at;
    if (below + 1 >= count)
        return sorted[count - 1];
    return sorted[below] + (at - below) * (sorted[below + 1] - sorted[below]);
}

double stat_outlier_bound(const double *sorted, uint32_t count)
{
    double low = stat_quantile(sorted, count, 0.25), high = stat_quantile(sorted, count, 0.75);
    return high + 3 * (high - low);
}

static uint32_t statistics_below(uint64_t *state, uint32_t below)
{
    return (uint32_t)((mk_random(state) >> 32) * below >> 32);
}

/* One of (0, 1). */
static double statistics_unit(uint64_t *state)
{
    return ((double)(mk_random(state) >> 11) + 0.5) * 0x1p-53;
}

/* The median of as many values as there are, drawn with replacement from sorted ones. What is
 * counted is how often each was drawn: sorting would take longer than all else together. */
static double statistics_draw_median(const struct stat_job *j, uint32_t *times, uint64_t *state)
{
    if (j->count > MANY) {
        double z = sqrt(-2 * log(statistics_unit(state))) * cos(2 * M_PI * statistics_unit(state));
        double q = 0.5 + z * 0.5 / sqrt(j->count);
        return stat_quantile(j->ms, j->count, q < 0 ? 0 : q > 1 ? 1 : q);
    }
    for (uint32_t i = 0; i < j->count; i++)
        times[i] = 0;
    for (uint32_t i = 0; i < j->count; i++)
        times[statistics_below(state, j->count)]++;
    double low = 0;
    for (uint32_t i = 0, seen = 0; i < j->count; i++) {
        uint32_t before = seen;
        seen += times[i];
        if (before <= (j->count - 1) / 2 && seen > (j->count - 1) / 2)
            low = j->ms[i];
        if (before <= j->count / 2 && seen > j->count / 2)
            return (low + j->ms[i]) / 2;
    }
    return low;
}

/* The median over jobs of their medians, as they are. */
static double statistics_median(const struct stat_job *jobs, uint32_t count, double *room)
{
    for (uint32_t i = 0; i < count; i++)
        room[i] = stat_quantile(jobs[i].ms, jobs[i].count, 0.5);
    mk_sort(room, count);
    return stat_quantile(room, count, 0.5);
}

static double statistics_draw(const struct stat_job *jobs, uint32_t count, double *room,
                              uint32_t *times, uint64_t *state)
{
    for (uint32_t i = 0; i < count; i++)
        room[i] = statistics_draw_median(&jobs[count > 1 ? statistics_below(state, count) : 0],
                                         times, state);
    mk_sort(room, count);
    return stat_quantile(room, count, 0.5);
}

/* The median and DRAWS drawn ones. */
static int statistics_bootstrap(const struct stat_job *all, uint32_t count, uint64_t seed,
                                double *median, double *drawn)
{
    MK_FREED struct stat_job *jobs = calloc(count ? count : 1, sizeof *jobs);
    MK_FREED double *room = calloc(count ? count : 1, sizeof *room);
    uint32_t times[MANY], used = 0;
    uint64_t state = seed;
    int rc = jobs && room ? 0 : -ENOMEM;
    for (uint32_t i = 0; i < count && !rc; i++)
        if (all[i].count)
            jobs[used++] = all[i];
    *median = NAN;
    for (uint32_t i = 0; i < DRAWS; i++)
        drawn[i] = NAN;
    if (!rc && used) {
        *median = statistics_median(jobs, used, room);
        for (uint32_t i = 0; i < DRAWS; i++)
            drawn[i] = statistics_draw(jobs, used, room, times, &state);
    }
    return rc;
}

static void statistics_take(struct stat_interval *out, double median, double *drawn, double error)
{
    *out = (struct stat_interval){NAN, NAN, NAN};
    if (isnan(median))
        return;
    mk_sort(drawn, DRAWS);
    *out = (struct stat_interval){median, stat_quantile(drawn, DRAWS, error / 2),
                                  stat_quantile(drawn, DRAWS, 1 - error / 2)};
}

double stat_spread(const struct stat_job *jobs, uint32_t count)
{
    double least = INFINITY, most = 0;
    for (uint32_t i = 0; i < count; i++)
        if (jobs[i].count) {
            double low = stat_quantile(jobs[i].ms, jobs[i].count, 0.25),
                   high = stat_quantile(jobs[i].ms, jobs[i].count, 0.75);
            least = low < least ? low : least;
            most = high > most ? high : most;
        }
    return least > 0 && most > least ? most / least : 1;
}

int stat_interval(struct stat_interval *out, const struct stat_job *jobs, uint32_t count,
                  uint64_t seed)
{
    double drawn[DRAWS], median;
    int rc = statistics_bootstrap(jobs, count, seed, &median, drawn);
    if (!rc)
        statistics_take(out, median, drawn, 0.05);
    return rc;
}

int stat_compare(struct stat_difference *out, const struct stat_job *a, uint32_t a_count,
                 const struct stat_job *b, uint32_t b_count, double error, uint64_t seed)
{
    double of_a[DRAWS], of_b[DRAWS], one, other;
    int rc = statistics_bootstrap(a, a_count, seed, &one, of_a);
    /* another seed: the draws of the two are independent */
    rc = rc ? rc : statistics_bootstrap(b, b_count, ~seed, &other, of_b);
    if (rc)
        return rc;
    for (uint32_t i = 0; i < DRAWS; i++)
        of_b[i] /= of_a[i];
    statistics_take(&out->ratio, other / one, of_b, error);
    out->verdict = out->ratio.high < 1  ? STAT_FASTER
                   : out->ratio.low > 1 ? STAT_SLOWER
                                        : STAT_NO_DIFFERENCE;
    return 0;
}

const char *stat_say(const struct stat_difference *d, char text[STAT_TEXT])
{
    const struct stat_interval *r = &d->ratio;
    int faster = d->verdict == STAT_FASTER, none = d->verdict == STAT_NO_DIFFERENCE;
    double sign = faster ? -100 : 100, up = r->high - r->median, down = r->median - r->low;
    double half = (up + down) / 2;
    char doubt[40];
    if (isnan(r->median)) {
        snprintf(text, STAT_TEXT, "not measured");
        return text;
    }
    /* A ratio's interval often reaches further up than down: then both ends are told, and so they
     * are where one number for both would reach across "no difference". */
    if (fabs(up - down) <= 0.2 * half && (none || half < fabs(r->median - 1)))
        snprintf(doubt, sizeof doubt, "+- %.1f", 100 * half);
    else
        snprintf(doubt, sizeof doubt, none ? "%+.1f to %+.1f" : "%.1f to %.1f",
                 sign * ((faster ? r->high : r->low) - 1),
                 sign * ((faster ? r->low : r->high) - 1));
    if (none)
        snprintf(text, STAT_TEXT, "no difference seen (%+.1f %%, %s)", 100 * (r->median - 1),
                 doubt);
    else
        snprintf(text, STAT_TEXT, "%s by %.1f %%%s %s", faster ? "faster" : "slower",
                 sign * (r->median - 1), *doubt == '+' ? "" : ",", doubt);
    return text;
}
