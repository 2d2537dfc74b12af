/* The line fitted through bracketed clock samples is off by no more than the residual that it
 * claims, whatever skew, drift, queueing and outliers the samples have. */
#include "tests/helpers/test.h"
#include "tracer/clock.h"

#define SECOND 1000000000ull

static uint64_t seed = 20260101;

static double uniform(void)
{
    seed = seed * 6364136223846793005ull + 1442695040888963407ull;
    return (double)(seed >> 11) * 0x1p-53;
}

struct world {
    double offset, drift; /* remote = local + offset + drift * local */
};

static int64_t truth(const struct world *w, uint64_t local)
{
    return (int64_t)local + (int64_t)(w->offset + w->drift * (double)local);
}

/* A sample whose two ways take unequal times: the reading lies anywhere in its bracket. */
static struct trace_clock_sample sample(const struct world *w, uint64_t at, double bracket)
{
    double lean = (uniform() - 0.5) * bracket;
    return (struct trace_clock_sample){at, (uint64_t)truth(w, (uint64_t)((double)at + lean)),
                                       (uint64_t)bracket};
}

static uint32_t make(struct trace_clock_sample *s, const struct world *w, uint64_t first,
                     uint64_t last, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        double queue = uniform() < 0.3 ? 200000 * uniform() : 0; /* three in ten meet traffic */
        s[i] = sample(w, first + (last - first) * i / count, 2000 + 3000 * uniform() + queue);
    }
    return count;
}

/* The worst miss of the line over from .. to. */
static double worst(const struct trace_clock *c, const struct world *w, uint64_t from, uint64_t to)
{
    double most = 0;
    for (int i = 0; i <= 1000; i++) {
        uint64_t at = from + (to - from) / 1000 * (uint64_t)i;
        double miss = (double)(clock_map(c, at) - truth(w, at));
        miss = miss < 0 ? -miss : miss;
        most = miss > most ? miss : most;
    }
    return most;
}

CASE(test_skew_and_drift)
{
    static struct trace_clock_sample s[512];
    for (int round = 0; round < 200; round++) {
        struct world w = {(uniform() - 0.3) * 1e15, (uniform() - 0.5) * 2e-4};
        uint64_t begin = 5 * SECOND + (uint64_t)(uniform() * 1e15),
                 end = begin + (uint64_t)(uniform() * 60e9) + SECOND;
        w.offset -= w.offset + (double)begin < 0 ? w.offset : 0; /* clocks do not go below 0 */
        uint32_t n = make(s, &w, begin, begin + SECOND / 100, 64);
        n += make(s + n, &w, end, end + SECOND / 100, 64);
        struct trace_clock c;
        assert_int_equal(clock_fit(&c, s, n, NULL), 0);
        double miss = worst(&c, &w, begin, end);
        if (miss > (double)c.residual + 2)
            fail_msg("round %d: off by %.0f ns, claims %llu", round, miss,
                     (unsigned long long)c.residual);
        if (c.residual > 20000)
            fail_msg("round %d: brackets of 2 to 5 us give a residual of %llu ns", round,
                     (unsigned long long)c.residual);
        if (c.drift - w.drift > 2e-5 || w.drift - c.drift > 2e-5)
            fail_msg("round %d: drift %g, truly %g", round, c.drift, w.drift);
    }
}

/* A sample taken while the clock was being set is far outside its own bracket: it does not pull the
 * line. */
CASE(test_outliers)
{
    static struct trace_clock_sample s[128];
    struct world w = {123456789, 12e-6};
    uint8_t used[128];
    make(s, &w, SECOND, 11 * SECOND, 128);
    for (int i = 5; i < 128; i += 23) {
        s[i].remote += 40000000;
        s[i].bracket = 1000; /* and claims to be the best */
    }
    struct trace_clock c;
    assert_int_equal(clock_fit(&c, s, 128, used), 0);
    assert_true(worst(&c, &w, SECOND, 11 * SECOND) <= (double)c.residual);
    assert_true(c.residual < 20000);
    for (int i = 5; i < 128; i += 23)
        assert_int_equal(used[i], 0);
    assert_true(c.used >= 16 && c.samples == 128);
}

/* Samples from one moment say nothing of drift: none is made up, and the claim grows with the
 * distance. */
CASE(test_one_moment)
{
    static struct trace_clock_sample s[64];
    struct world w = {-5e8, 30e-6};
    make(s, &w, 100 * SECOND, 100 * SECOND + SECOND / 1000, 64);
    struct trace_clock c;
    assert_int_equal(clock_fit(&c, s, 64, NULL), 0);
    assert_true(c.drift == 0);
    uint64_t claim = clock_residual(&c, 90 * SECOND, 100 * SECOND);
    assert_true(claim > c.residual);
    assert_true(worst(&c, &w, 90 * SECOND, 100 * SECOND) <= (double)claim);
}

CASE(test_few)
{
    struct trace_clock c;
    struct trace_clock_sample one = {1000, 5000, 100};
    assert_int_equal(clock_fit(&c, NULL, 0, NULL), 0);
    assert_int_equal(clock_map(&c, 777), 777);
    assert_int_equal(clock_residual(&c, 0, SECOND), 0);
    assert_int_equal(clock_fit(&c, &one, 1, NULL), 0);
    assert_int_equal(clock_map(&c, 1000), 5000);
    assert_int_equal(c.residual, 50);
    struct trace_clock_sample same[3] = {one, one, one};
    assert_int_equal(clock_fit(&c, same, 3, NULL), 0);
    assert_int_equal(clock_map(&c, 1000), 5000);
}
