/* An option table takes exactly what it says: right values arrive, and everything else is refused
 * with one sentence that names the option. */
#include "experiments/common/nearest.h"
#include "experiments/common/options.h"
#include "tests/helpers/test.h"

#include <sys/resource.h>
#include <sys/wait.h>

static const char *const execs[] = {"host", "cuda"}, *const no_pace[] = {"none"};

struct values {
    int check, exec, dump;
    uint64_t shape[3], some[3], iters, pace, timeout, bytes;
    const char *trace;
    struct mk_role_split roles;
};

#define AT(field) .offset = offsetof(struct values, field)
static const struct option_spec specs[] = {
    {"check", OPTION_FLAG, AT(check), .help = "check it"},
    {"exec", OPTION_WORD, AT(exec), "host|cuda", "executor", .words = execs, .word_count = 2},
    {"shape", OPTION_NUMBERS, AT(shape), "M,N,K",
     "shape of the global problem, which is long enough that the help has to "
     "break the line somewhere between two words",
     1, 1000000, 3},
    {"some", OPTION_NUMBERS, AT(some), "M,N|M,N,K", "two or three", 1, 99, 3, .least = 2},
    {"iters", OPTION_NUMBERS, AT(iters), "N", "launches", 1, 1000},
    {"timeout", OPTION_SECONDS, AT(timeout), "SECONDS", "bound", 1000000, 3600000000000ull,
     .contexts = 1},
    {"bytes", OPTION_BYTES, AT(bytes), "BYTES", "size", 1, (uint64_t)1 << 40, .contexts = 2},
    {"trace", OPTION_TEXT, AT(trace), "FILE", "file", .max = 20},
    {"pace", OPTION_NUMBERS, AT(pace), "NS|none", "throttle", 1, 9, .words = no_pace},
    {"roles", OPTION_ROLES, AT(roles), "compute=..", "split"},
    {"dump", OPTION_WORD, AT(dump), "cuda", "a word that may be left out", .words = execs,
     .word_count = 2, .bare = 1},
};
static const struct option_table table = {"test OP", "tests", specs, sizeof specs / sizeof *specs,
                                          "  mkernel test x\n"};

static struct values values;
static struct options_found found;
static char error[256];

static int parse(const char *line)
{
    static char copy[512];
    char *argv[32], *save;
    int argc = 1;
    argv[0] = "test";
    snprintf(copy, sizeof copy, "%s", line);
    for (char *word = strtok_r(copy, " ", &save); word; word = strtok_r(NULL, " ", &save))
        argv[argc++] = strcmp(word, "''") ? word : "";
    memset(&values, 0, sizeof values);
    error[0] = 0;
    return options_parse(&table, argc, argv, &values, &found, error, sizeof error);
}

CASE(a_word_that_may_be_left_out)
{
    assert_int_equal(parse("--dump cuda --check"), 0); /* what follows is no value */
    assert_true(options_given(&table, &found, "dump") && values.dump == 0 && values.check);
    assert_true(found.word_count == 1 && !strcmp(found.words[0], "cuda"));
    assert_int_equal(parse("--check --dump"), 0);
    assert_true(options_given(&table, &found, "dump") && values.dump == 0);
    assert_int_equal(parse("--dump=cuda"), 0);
    assert_int_equal(values.dump, 1);
    assert_int_equal(parse("--dump=cud"), -EINVAL);
    assert_non_null(strstr(error, "--dump cud"));
    assert_int_equal(parse("--dump="), -EINVAL);
    assert_int_equal(parse("--dump --dump=host"), -EINVAL);
    assert_int_equal(parse("--exec"), -EINVAL); /* others need theirs */
}

CASE(fewer_numbers_where_that_is_allowed)
{
    assert_int_equal(parse("--some 4,5"), 0);
    assert_int_equal(values.some[1], 5);
    assert_int_equal(values.some[2], 0);
    assert_int_equal(parse("--some 4,5,6"), 0);
    assert_int_equal(values.some[2], 6);
    const char *const bad[] = {"--some 4", "--some 4,", "--some 4,5,", "--some 4,5,6,7",
                               "--some 4,0"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_true(parse(bad[i]) < 0);
}

/* A word that stands for the least number, which is not written as one. */
CASE(test_word_of_a_number)
{
    assert_int_equal(parse("--pace none"), 0);
    assert_int_equal(values.pace, 1);
    assert_int_equal(parse("--pace 2"), 0);
    assert_int_equal(values.pace, 2);
    assert_int_equal(parse("--pace 1"), -EINVAL);
    assert_string_equal(error, "--pace 1: out of range, it takes 2 to 9, or none");
}

CASE(test_values)
{
    assert_int_equal(
        parse("op --check --exec cuda --shape 390,200,328 --iters=50 --timeout 0.25 --bytes 256KB "
              "--trace t.db --roles compute=2,inter_send=1 second"),
        0);
    assert_int_equal(values.check, 1);
    assert_int_equal(values.pace, 0);
    assert_int_equal(values.exec, 1);
    assert_int_equal(values.shape[0], 390);
    assert_int_equal(values.shape[1], 200);
    assert_int_equal(values.shape[2], 328);
    assert_int_equal(values.iters, 50);
    assert_int_equal(values.timeout, 250000000);
    assert_int_equal(values.bytes, 256 * 1024);
    assert_string_equal(values.trace, "t.db");
    assert_int_equal(values.roles.ctas[MK_COMPUTE], 2);
    assert_int_equal(values.roles.ctas[MK_INTRA_COMM], 0);
    assert_int_equal(values.roles.ctas[MK_INTER_SEND], 1);
    assert_int_equal(found.word_count, 2);
    assert_string_equal(found.words[1], "second");
    assert_true(options_given(&table, &found, "shape"));
    assert_int_equal(parse("--shape=1,2,3"), 0);
    assert_false(options_given(&table, &found, "iters"));
    assert_int_equal(parse("op -h"), 0);
    assert_true(found.help);
}

CASE(test_units)
{
    uint64_t v;
    const struct {
        const char *text;
        uint64_t ns;
    } seconds[] = {{"10", 10000000000ull},    {"10s", 10000000000ull}, {"1.5", 1500000000},
                   {"500ms", 500000000},      {"0.5ms", 500000},       {"20us", 20000},
                   {"0.123456789", 123456789}};
    for (size_t i = 0; i < sizeof seconds / sizeof *seconds; i++) {
        assert_int_equal(options_seconds(seconds[i].text, 0, UINT64_MAX, &v), 0);
        assert_int_equal(v, seconds[i].ns);
    }
    const struct {
        const char *text;
        uint64_t bytes;
    } sizes[] = {{"1", 1},          {"4096B", 4096},   {"1k", 1024},
                 {"256KB", 262144}, {"2MiB", 2 << 20}, {"3G", 3ull << 30}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        assert_int_equal(options_bytes(sizes[i].text, 0, UINT64_MAX, &v), 0);
        assert_int_equal(v, sizes[i].bytes);
    }
    const char *const not_seconds[] = {"",   "s",  ".5",  "1.",   "1.5.2", "1m", "1 s",
                                       "-1", "+1", "1e3", "0x10", "inf",   "nan"};
    for (size_t i = 0; i < sizeof not_seconds / sizeof *not_seconds; i++)
        assert_int_equal(options_seconds(not_seconds[i], 0, UINT64_MAX, &v), -EINVAL);
    const char *const not_bytes[] = {"", "KB", "1KBB", "1XB", "1.5K", "-1", "1 KB", "1Kx", "1KK"};
    for (size_t i = 0; i < sizeof not_bytes / sizeof *not_bytes; i++)
        assert_int_equal(options_bytes(not_bytes[i], 0, UINT64_MAX, &v), -EINVAL);
    assert_int_equal(options_bytes("18446744073709551615", 0, UINT64_MAX, &v), 0);
    assert_int_equal(options_bytes("18446744073709551616", 0, UINT64_MAX, &v), -ERANGE);
    assert_int_equal(options_bytes("99999999999T", 0, UINT64_MAX, &v), -ERANGE);
    assert_int_equal(options_seconds("18446744073709551615", 0, UINT64_MAX, &v), -ERANGE);
    const char *const beyond[] = {"0", "65", "4294967297", "18446744073709551617"};
    for (size_t i = 0; i < sizeof beyond / sizeof *beyond; i++)
        assert_int_equal(options_whole(beyond[i], 1, 64, &v), -ERANGE);
    const char *const not_whole[] = {"", "-1", "+1", " 1", "1 ", "1.0", "1x", "-4294967295"};
    for (size_t i = 0; i < sizeof not_whole / sizeof *not_whole; i++)
        assert_int_equal(options_whole(not_whole[i], 1, 64, &v), -EINVAL);
    assert_int_equal(options_whole("64", 1, 64, &v), 0);
    assert_int_equal(v, 64);
}

CASE(test_refusals)
{
    const struct {
        const char *line, *says;
    } wrong[] = {
        {"--chekc", "did you mean --check?"},
        {"--hlep", "did you mean --help?"},
        {"--xyzzyx", "no option --xyzzyx"},
        {"-c", "no option -c"},
        {"--", "no option --"},
        {"--check --check", "--check is there twice"},
        {"--iters 1 --iters=1", "--iters is there twice"},
        {"--check=1", "--check takes no value"},
        {"--iters", "--iters needs a value"},
        {"--iters --check", "--iters needs a value"},
        {"--iters=", "--iters"},
        {"--iters ''", "not a valid value"},
        {"--iters 0", "out of range, it takes 1 to 1000"},
        {"--iters 1001", "out of range"},
        {"--iters 18446744073709551617", "out of range"},
        {"--iters -5", "not a valid value"},
        {"--iters 5x", "not a valid value"},
        {"--iters 0x5", "not a valid value"},
        {"--iters 1e2", "not a valid value"},
        {"--shape 1,2", "--shape 1,2: not a valid value, it takes M,N,K"},
        {"--shape 1,2,3,4", "not a valid value"},
        {"--shape 1,,3", "not a valid value"},
        {"--shape 1,2,0", "out of range"},
        {"--shape 99999999999999999999999,2,3", "out of range"},
        {"--timeout 0", "0.001 to 3600 seconds"},
        {"--timeout forever", "not a valid value"},
        {"--exec gpu", "host|cuda"},
        {"--exec hots", "did you mean host?"},
        {"--trace ''", "1 to 20 characters"},
        {"--trace aaaaaaaaaaaaaaaaaaaaa", "1 to 20 characters"},
        {"--roles compute", "roles are written"},
        {"--roles ''", "roles are written"},
        {"--roles compute=1,", "roles are written"},
        {"--roles compte=1", "did you mean compute?"},
        {"--roles compute=1,xyzzy=1", "there is no role xyzzy (roles are compute, intra_comm"},
        {"--roles compute=1,compute=2", "twice"},
        {"--roles compute=x", "not a number"},
        {"--roles compute=1x", "not a number"},
        {"--roles compute=1w", "not a number of CTAs from 0 to 65535"},
        {"--roles compute=1,inter_send=2w", "not a number of CTAs from 0 to 65535"},
        {"--roles compute=1,intra_comm=0w", "nor 1w to 3w, warps of each compute block"},
        {"--roles compute=1,intra_comm=4w", "nor 1w to 3w, warps of each compute block"},
        {"--roles intra_comm=2w", "leaves no CTA"},
        {"--roles compute=65536", "not a number"},
        {"--roles compute=18446744073709551617", "not a number"},
        {"a b c d e f g h i", "i is one argument too many"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        int result = parse(wrong[i].line);
        if (result != -EINVAL || !strstr(error, wrong[i].says))
            fail_msg("%s: %d, \"%s\" lacks \"%s\"", wrong[i].line, result, error, wrong[i].says);
        assert_null(strchr(error, '\n'));
    }
}

CASE(test_contexts)
{
    assert_int_equal(parse("--timeout 1 --check"), 0);
    assert_null(options_check(&table, &found, 1, "ag_gemm", error, sizeof error));
    assert_non_null(options_check(&table, &found, 2, "moe_ffn", error, sizeof error));
    assert_string_equal(error, "moe_ffn does not take --timeout");
}

/* What was given is a bit of 64: one option more ends the program, whatever its line says. */
CASE(test_a_table_has_64_options)
{
    static struct option_spec many[OPTIONS_MOST + 1];
    struct option_table full = {.specs = many, .count = OPTIONS_MOST};
    char *argv[] = {"test", "--check"};
    for (uint32_t i = 0; i <= OPTIONS_MOST; i++)
        many[i] = (struct option_spec){.name = i == OPTIONS_MOST - 1 ? "check" : "other",
                                       .type = OPTION_FLAG,
                                       .offset = offsetof(struct values, check)};
    assert_int_equal(options_parse(&full, 2, argv, &values, &found, error, sizeof error), 0);
    assert_true(found.given == (uint64_t)1 << 63);
    full.count++;
    pid_t child = fork();
    if (!child) {
        setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
        options_parse(&full, 1, argv, &values, &found, error, sizeof error);
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

CASE(test_help_names_everything)
{
    char *text;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    options_help(&table, out);
    fclose(out);
    for (size_t i = 0; i < table.count; i++) {
        char name[40];
        snprintf(name, sizeof name, "--%s", specs[i].name);
        assert_non_null(strstr(text, name));
    }
    assert_non_null(strstr(text, "mkernel test x"));
    for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1)
        assert_true(end - line <= 104);
    free(text);
}

CASE(test_nearest)
{
    const char *const words[] = {"run", "bench", "sim", "tune", "trace", "tui", "info"};
    assert_string_equal(nearest_word("rnu", words, 7), "run");
    assert_string_equal(nearest_word("benhc", words, 7), "bench");
    assert_string_equal(nearest_word("inf", words, 7), "info");
    assert_null(nearest_word("quaternion", words, 7));
    assert_null(nearest_word("", words, 7));
    char longest[200];
    memset(longest, 'a', sizeof longest - 1);
    longest[199] = 0;
    assert_null(nearest_word(longest, words, 7));
}
