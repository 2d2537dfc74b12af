/* What is said of times that were measured: medians, their intervals, and whether two differ. A
 * difference that is there is seen; one that is not is not made up. */
#include <math.h>

#include "tests/helpers/test.h"

#include "core/base/sorted.h"
#include "experiments/results/statistics.h"

enum { JOBS = 5, LAUNCHES = 40 };

static uint64_t drawn;

static double unit(void)
{
    drawn = drawn * 6364136223846793005ull + 1442695040888963407ull;
    return ((double)(drawn >> 11) + 0.5) * 0x1p-53;
}

static double normal(void)
{
    return sqrt(-2 * log(unit())) * cos(2 * M_PI * unit());
}

/* Jobs that differ by 1 %, launches inside one by 3 %, and now and then one that took twice as
 * long. */
static void measure(struct stat_job jobs[JOBS], double ms[JOBS][LAUNCHES], double typical)
{
    for (int j = 0; j < JOBS; j++) {
        double job = typical * (1 + 0.01 * normal());
        for (int i = 0; i < LAUNCHES; i++)
            ms[j][i] = job * (1 + 0.03 * fabs(normal())) * (unit() < 0.02 ? 2 : 1);
        mk_sort(ms[j], LAUNCHES);
        jobs[j] = (struct stat_job){ms[j], LAUNCHES};
    }
}

CASE(quantiles_are_those_of_the_definition)
{
    const double four[] = {1, 2, 3, 10};
    assert_true(stat_quantile(four, 4, 0.5) == 2.5);
    assert_true(stat_quantile(four, 4, 0) == 1);
    assert_true(stat_quantile(four, 4, 1) == 10);
    assert_true(fabs(stat_quantile(four, 4, 0.95) - 8.95) < 1e-12);
    assert_true(stat_quantile(four, 1, 0.99) == 1);
}

CASE(medians_are_of_jobs_not_of_launches)
{
    /* one job of many launches does not outvote two of few */
    static double many[100], one[] = {1}, two[] = {2};
    struct stat_interval i;
    for (int k = 0; k < 100; k++)
        many[k] = 9;
    const struct stat_job jobs[] = {{many, 100}, {one, 1}, {two, 1}};
    assert_int_equal(stat_interval(&i, jobs, 3, 1), 0);
    assert_true(i.median == 2 && i.low == 1 && i.high == 9);
    assert_int_equal(stat_interval(&i, NULL, 0, 1), 0);
    assert_true(isnan(i.median) && isnan(i.low));
}

/* Of 200 pairs that are alike few may be called different: an interval of 95 % errs in 5 of 100,
 * the medians of five jobs somewhat oftener or less often. Of those that are 5 % apart most are
 * seen, and with the right sign. */
CASE(differences_are_seen_and_not_made_up)
{
    int made_up = 0, seen = 0, wrong_way = 0, held = 0;
    drawn = 7;
    for (int k = 0; k < 200; k++) {
        struct stat_job a[JOBS], b[JOBS], c[JOBS];
        double of_a[JOBS][LAUNCHES], of_b[JOBS][LAUNCHES], of_c[JOBS][LAUNCHES];
        struct stat_difference d;
        measure(a, of_a, 1);
        measure(b, of_b, 1);
        measure(c, of_c, 0.95);
        assert_int_equal(stat_compare(&d, a, JOBS, b, JOBS, 0.05, (uint64_t)k), 0);
        made_up += d.verdict != STAT_NO_DIFFERENCE;
        assert_int_equal(stat_compare(&d, a, JOBS, c, JOBS, 0.05, (uint64_t)k), 0);
        seen += d.verdict == STAT_FASTER;
        wrong_way += d.verdict == STAT_SLOWER;
        held += d.ratio.low < 0.95 && d.ratio.high > 0.95;
    }
    print_message("alike: %d of 200 called different; 5 %% apart: %d seen, %d hold it\n", made_up,
                  seen, held);
    assert_true(made_up <= 20);
    assert_true(seen >= 180);
    assert_int_equal(wrong_way, 0);
    assert_true(held >= 170);
}

/* Drawing jobs is what makes intervals honest: launches alone would call every job another. */
CASE(jobs_that_differ_widen_the_interval)
{
    static double ms[2][LAUNCHES];
    struct stat_interval together, alone;
    drawn = 3;
    for (int j = 0; j < 2; j++) {
        for (int i = 0; i < LAUNCHES; i++)
            ms[j][i] = (j ? 1.2 : 1.0) * (1 + 0.001 * normal());
        mk_sort(ms[j], LAUNCHES);
    }
    const struct stat_job jobs[] = {{ms[0], LAUNCHES}, {ms[1], LAUNCHES}};
    stat_interval(&together, jobs, 2, 1);
    stat_interval(&alone, jobs, 1, 1);
    assert_true(together.high - together.low > 0.15);
    assert_true(alone.high - alone.low < 0.002);
}

/* Above 400 launches the median of a draw is taken by its rank: that must not change what is
 * said. */
CASE(many_launches_have_the_same_interval)
{
    static double few[400], many[401];
    struct stat_interval a, b;
    drawn = 5;
    for (int i = 0; i < 401; i++)
        many[i] = 1 + unit();
    memcpy(few, many, sizeof few);
    mk_sort(few, 400);
    mk_sort(many, 401);
    stat_interval(&a, &(struct stat_job){few, 400}, 1, 1);
    stat_interval(&b, &(struct stat_job){many, 401}, 1, 1);
    print_message("400: %.4f to %.4f, 401: %.4f to %.4f\n", a.low, a.high, b.low, b.high);
    assert_true(fabs(a.low - b.low) < 0.02 && fabs(a.high - b.high) < 0.02);
    assert_true(a.high - a.low > 0.05 && b.high - b.low > 0.05);
}

/* Who asks of many pairs at once gives each less room for error: of 20 tables of 20 pairs that are
 * alike hardly any may have a false alarm. */
CASE(many_pairs_at_once_are_no_false_alarm)
{
    int alarms = 0, plain = 0;
    drawn = 13;
    for (int t = 0; t < 20; t++) {
        int any = 0, any_plain = 0;
        for (int k = 0; k < 20; k++) {
            struct stat_job a[JOBS], b[JOBS];
            double of_a[JOBS][LAUNCHES], of_b[JOBS][LAUNCHES];
            struct stat_difference d;
            measure(a, of_a, 1);
            measure(b, of_b, 1);
            stat_compare(&d, a, JOBS, b, JOBS, 0.05 / 20, (uint64_t)k);
            any |= d.verdict == STAT_SLOWER;
            stat_compare(&d, a, JOBS, b, JOBS, 0.05, (uint64_t)k);
            any_plain |= d.verdict == STAT_SLOWER;
        }
        alarms += any;
        plain += any_plain;
    }
    print_message("false alarms in %d of 20 tables, without the correction in %d\n", alarms, plain);
    assert_true(alarms <= 3 && plain > alarms);
}

CASE(the_same_seed_says_the_same)
{
    struct stat_job jobs[JOBS];
    double ms[JOBS][LAUNCHES];
    struct stat_interval one, again;
    drawn = 11;
    measure(jobs, ms, 1);
    stat_interval(&one, jobs, JOBS, 42);
    stat_interval(&again, jobs, JOBS, 42);
    assert_memory_equal(&one, &again, sizeof one);
}

CASE(sentences_say_how_much_and_how_sure)
{
    char text[STAT_TEXT];
    struct stat_difference d = {{0.96, 0.95, 0.97}, STAT_FASTER};
    assert_string_equal(stat_say(&d, text), "faster by 4.0 % +- 1.0");
    d = (struct stat_difference){{1.25, 1.2, 1.3}, STAT_SLOWER};
    assert_string_equal(stat_say(&d, text), "slower by 25.0 % +- 5.0");
    d = (struct stat_difference){{0.996, 0.98, 1.01}, STAT_NO_DIFFERENCE};
    assert_string_equal(stat_say(&d, text), "no difference seen (-0.4 %, +- 1.5)");
    d = (struct stat_difference){{1.4, 1.05, 2.3}, STAT_SLOWER};
    assert_string_equal(stat_say(&d, text), "slower by 40.0 %, 5.0 to 130.0");
    d = (struct stat_difference){{0.7, 0.65, 0.9}, STAT_FASTER};
    assert_string_equal(stat_say(&d, text), "faster by 30.0 %, 10.0 to 35.0");
    d = (struct stat_difference){{1.1, 0.95, 1.9}, STAT_NO_DIFFERENCE};
    assert_string_equal(stat_say(&d, text), "no difference seen (+10.0 %, -5.0 to +90.0)");
    /* as it was said of a real pair, "+- 207.1" would be faster by 20 %, too */
    d = (struct stat_difference){{2.866, 1.10, 5.25}, STAT_SLOWER};
    assert_string_equal(stat_say(&d, text), "slower by 186.6 %, 10.0 to 425.0");
    d = (struct stat_difference){{1.1, 1.001, 1.22}, STAT_SLOWER};
    assert_string_equal(stat_say(&d, text), "slower by 10.0 %, 0.1 to 22.0");
    d = (struct stat_difference){{NAN, NAN, NAN}, STAT_NO_DIFFERENCE};
    assert_string_equal(stat_say(&d, text), "not measured");
}

CASE(outliers_are_far_above_the_quartiles)
{
    const double ms[] = {1, 1.1, 1.2, 1.3, 1.4, 5};
    double bound = stat_outlier_bound(ms, 6);
    assert_true(bound > 1.4 && bound < 5);
}
