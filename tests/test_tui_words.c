/* Times, sizes and queries mean what they say, in both directions, and everything else is refused
 * with a sentence. */
#include <math.h>
#include "tests/helpers/test.h"
#include "tui/cells.h"
#include "tui/words.h"

CASE(lengths_have_three_or_four_digits)
{
    static const struct {
        double ns;
        const char *text;
    } known[] = {{0, "0 ns"},         {7, "7 ns"},
                 {999, "999 ns"},     {1000, "1.00 µs"},
                 {38200, "38.20 µs"}, {152400, "152.4 µs"},
                 {1e6, "1.00 ms"},    {4.76e9, "4.76 s"},
                 {-1500, "-1.50 µs"}, {123456789, "123.5 ms"}};
    char out[32];
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        assert_string_equal(words_length(out, known[i].ns), known[i].text);
}

CASE(a_time_shows_what_a_column_resolves)
{
    char out[32];
    assert_string_equal(words_time(out, 1204310, 10), "1.20431 ms");
    assert_string_equal(words_time(out, 1204310, 1000), "1.204 ms");
    assert_string_equal(words_time(out, 1204310, 5e5), "1.2 ms");
    assert_string_equal(words_time(out, 0, 1), "0 ns");
}

CASE(times_go_out_and_in)
{
    char out[32], error[96];
    double back;
    int relative;
    srand(1);
    for (int i = 0; i < 2000; i++) {
        double ns = floor(pow(10, rand() % 12) * (1 + rand() % 1000 / 1000.0));
        assert_int_equal(words_parse_time(words_time(out, ns, 1), &back, &relative, error), 0);
        assert_true(fabs(back - ns) <= 1e-9 * ns + 0.5);
        assert_false(relative);
    }
}

CASE(widths_count_columns_and_not_bytes)
{
    char out[32];
    assert_int_equal(cells_columns(words_length_in(out, 10, 38200)), 10);
    assert_int_equal(cells_columns(words_length_in(out, 10, 38)), 10);
    assert_int_equal(cells_columns(words_length_in(out, 2, 38200)), 8);
}

CASE(a_time_needs_a_number_and_a_unit)
{
    static const char *const bad[] = {"",       "5",     "ms",     "5 lightyears",
                                      "nan ms", "inf s", "1.5ms2", "epoch"};
    char error[96];
    double ns;
    int relative;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        error[0] = 0;
        assert_int_equal(words_parse_time(bad[i], &ns, &relative, error), -EINVAL);
        assert_true(strlen(error) > 10);
    }
    assert_int_equal(words_parse_time(" -20 us", &ns, &relative, error), 0);
    assert_true(relative && ns == -20000);
    assert_int_equal(words_parse_time("1.5 µs", &ns, &relative, error), 0);
    assert_true(!relative && ns == 1500);
}

CASE(a_query_takes_what_it_names)
{
    struct query q;
    char error[96];
    assert_int_equal(words_parse_query("wait network rank 0-3 cta 7 >10us", &q, error), 0);
    assert_int_equal(q.classes, 1u << SPAN_WAIT_NETWORK);
    assert_true(query_takes_track(&q, 3, 0, 7));
    assert_false(query_takes_track(&q, 4, 0, 7));
    assert_false(query_takes_track(&q, 3, 0, 8));
    assert_true(q.shortest == 10000 && query_needs_events(&q));
    assert_int_equal(words_parse_query("wait", &q, error), 0);
    assert_int_equal(q.classes,
                     1u << SPAN_WAIT_DATA | 1u << SPAN_WAIT_ROOM | 1u << SPAN_WAIT_NETWORK);
    assert_int_equal(words_parse_query("role compute copy", &q, error), 0);
    assert_int_equal(q.classes, 1u << SPAN_COPY);
    assert_int_equal(q.roles, 1);
    assert_false(query_needs_events(&q));
    assert_int_equal(words_parse_query("", &q, error), 0);
    assert_true(query_takes_track(&q, 99, 3, 12345));
}

CASE(other_words_are_refused)
{
    static const char *const bad[] = {"elephant",
                                      "rank",
                                      "rank x",
                                      "rank 3-1",
                                      "tile",
                                      "tile 1-2",
                                      "role",
                                      "role idle",
                                      ">10",
                                      "<",
                                      "rank 99999999999999999999-0",
                                      "chunk -4"};
    struct query q;
    char error[96];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        error[0] = 0;
        assert_int_equal(words_parse_query(bad[i], &q, error), -EINVAL);
        assert_true(strlen(error) > 10);
    }
}

CASE(whatever_is_typed_ends)
{
    struct query q;
    char error[96], text[80];
    double ns;
    int relative;
    srand(2);
    for (int i = 0; i < 50000; i++) {
        int n = rand() % 79;
        for (int k = 0; k < n; k++)
            text[k] =
                (char)(rand() % 4 ? " rankctewit0123456789-><.us"[rand() % 27] : 1 + rand() % 255);
        text[n] = 0;
        words_parse_query(text, &q, error);
        words_parse_time(text, &ns, &relative, error);
    }
}

/* Monochrome says the same as colour: no two meanings share a glyph, neither in UTF-8 nor in
 * ASCII. */
CASE(every_class_has_its_own_glyph)
{
    for (int i = 0; i < SPAN_CLASSES; i++)
        for (int k = 0; k < i; k++) {
            assert_int_not_equal(span_look[i].glyph, span_look[k].glyph);
            assert_int_not_equal(cells_ascii(span_look[i].glyph), cells_ascii(span_look[k].glyph));
        }
    for (int i = 0; i < SPAN_CLASSES; i++) {
        assert_int_not_equal(cells_ascii(span_look[i].glyph), cells_ascii(SPAN_LITTLE_COMPUTE));
        assert_int_not_equal(cells_ascii(span_look[i].glyph), cells_ascii(SPAN_LITTLE_COPY));
    }
    for (int i = 0; i < OVERLAP_CLASSES; i++)
        for (int k = 0; k < i; k++)
            assert_int_not_equal(cells_ascii(overlap_look[i].glyph),
                                 cells_ascii(overlap_look[k].glyph));
}

/* A trace cannot send escape sequences, wide or broken characters to the terminal. */
CASE(text_of_a_file_is_made_harmless)
{
    char text[] = "a\033[2J\x9b\xff\xe4\xb8\xad"
                  "b\xe2\x88";
    cells_clean(text);
    assert_string_equal(text, "a?[2J???b?");
    char good[] = "12 µs · 2×2";
    cells_clean(good);
    assert_string_equal(good, "12 µs · 2×2");
}
