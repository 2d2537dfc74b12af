/* What scripts read: the JSON of `run`, `bench` and `sim` is JSON, says what was run, and is not
 * left half written. */
#include "tests/helpers/command.h"
#include "tests/helpers/json.h"
#include <sys/stat.h>

#include "tests/helpers/folder.h"

static struct command_run r;

/* `mkernel LINE --json FILE`; the file's tree, which the caller frees. */
static struct json *result_of(const char *line)
{
    static char text[16384];
    char path[96], all[1024];
    snprintf(path, sizeof path, "%s/result.json", folder);
    snprintf(all, sizeof all, "%s --json %s", line, path);
    command_start(&r, all, NULL);
    command_finish(&r, 120);
    if (r.status)
        fail_msg("mkernel %s: status %d, \"%s\"", all, r.status, r.err_text);
    test_read_file(path, text, sizeof text);
    unlink(path);
    struct json *j = json_read(text);
    if (!j)
        fail_msg("mkernel %s: no JSON: %s", all, text);
    return j;
}

static const char *text_of(const struct json *j, const char *key)
{
    const struct json *value = json_get(j, key);
    return value && value->type == JSON_STRING ? value->string : "";
}

static double number_of(const struct json *j, const char *key)
{
    const struct json *value = json_get(j, key);
    if (!value || (value->type != JSON_NUMBER && value->type != JSON_BOOL))
        fail_msg("no number \"%s\"", key);
    return value->number;
}

CASE(test_run)
{
    struct json *j = result_of("run gemm_rs --exec host --nic soft --nodes 2 --gpus 1 --shape "
                               "64,64,64 --iters 3 --deterministic "
                               "--b-layout nk --check");
    assert_string_equal(text_of(j, "command"), "run");
    assert_string_equal(text_of(j, "op"), "gemm_rs");
    assert_string_equal(text_of(j, "b_layout"), "nk");
    assert_string_equal(text_of(j, "verdict"), "right");
    assert_true(number_of(j, "deterministic") == 1);
    assert_true(number_of(j, "launches") == 3);
    assert_true(number_of(j, "ms") > 0);
    assert_non_null(json_get(j, "shape"));
    json_free(j);
    j = result_of("run moe_ffn --exec host --gpus 2 --iters 2 --moe 16,64,40,4,2 --back fp8 "
                  "--check");
    assert_string_equal(text_of(j, "back"), "fp8");
    assert_string_equal(text_of(j, "verdict"), "right");
    json_free(j);
    j = result_of("bench moe_dispatch_gemm --exec host --iters 2 --warmup 0 --moe 16,64,40,4,2 "
                  "--routing few");
    assert_string_equal(text_of(j, "command"), "bench");
    assert_string_equal(text_of(j, "routing"), "few");
    assert_true(number_of(j, "deterministic") == 0);
    assert_non_null(json_get(j, "moe"));
    assert_null(json_get(j, "shape")); /* what a plan makes of it is nobody's M, N, K */
    json_free(j);
    j = result_of("bench moe_dispatch_gemm --exec host --iters 2 --warmup 0 --moe 64,64,40,16,4 "
                  "--skew 1.5");
    assert_string_equal(text_of(j, "skew"), "1.5");
    assert_string_equal(text_of(j, "verdict"), "right");
    json_free(j);
    j = result_of("bench moe_dispatch_gemm --exec host --iters 2 --warmup 0 --moe 64,64,40,16,4 "
                  "--skew zipf:1.2");
    assert_string_equal(text_of(j, "skew"), "1.2");
    json_free(j);
    j = result_of("bench moe_ffn --exec host --iters 2 --warmup 0 --moe 64,64,40,16,4 --skew one");
    assert_null(json_get(j, "skew"));
    assert_string_equal(text_of(j, "routing"), "one");
    assert_string_equal(text_of(j, "verdict"), "right");
    json_free(j);
}

/* Twice the same figures: the clock is virtual. */
CASE(test_sim)
{
    double ms[2];
    for (int i = 0; i < 2; i++) {
        struct json *j =
            result_of("sim gemm_ar --nodes 2 --gpus 2 --shape 256,64,64 --launches 2 --seed 5");
        assert_string_equal(text_of(j, "command"), "sim");
        assert_string_equal(text_of(j, "op"), "gemm_ar");
        assert_true(number_of(j, "seed") == 5 && number_of(j, "launches") == 2);
        assert_true(number_of(j, "network_bytes") > 0 && number_of(j, "nvlink_bytes") > 0);
        assert_true(number_of(j, "efficiency") > 0 && number_of(j, "efficiency") <= 1);
        assert_true(number_of(json_get(j, "cluster"), "network_bytes_per_s") == 49e9);
        ms[i] = number_of(j, "ms");
        json_free(j);
    }
    assert_true(ms[0] > 0 && ms[0] == ms[1]);
}

/* 8 MB to the peer by 264 warps, each of which gives 512 bytes in 4 us. */
CASE(test_sim_keeps_the_pace)
{
    struct json *j = result_of("sim ag_gemm --nodes 1 --gpus 2 --shape 4096,512,2048 --pace 4000");
    double ms = number_of(j, "ms");
    assert_true(number_of(j, "nvlink_bytes") == 8 << 20);
    if (!(ms >= 0.248 && ms < 0.3))
        fail_msg("%g ms", ms);
    json_free(j);
}

/* A full disk: status 3, one sentence, and no half of a file. */
CASE(test_disk_full)
{
    static const char *const lines[] = {"sim ag_gemm --shape 64,64,64",
                                        "bench ring --commands 1000 --rounds 1"};
    char path[96], command[2048], mkernel[1024];
    command_path(mkernel, sizeof mkernel);
    snprintf(path, sizeof path, "%s/result.json", folder);
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        /* SIGXFSZ ignored, a limit of no bytes: writes fail as on a full disk, and only to files */
        snprintf(command, sizeof command, "trap '' XFSZ; ulimit -f 0; exec %s %s --json %s",
                 mkernel, lines[i], path);
        command_start_program(&r, "/bin/sh", (char *[]){"sh", "-c", command, NULL});
        command_finish(&r, 120);
        if (r.status != 3 || command_lines(r.err_text) != 1 || !strstr(r.err_text, path) ||
            access(path, F_OK) == 0)
            fail_msg("mkernel %s: status %d, \"%s\", the file is%s there", lines[i], r.status,
                     r.err_text, access(path, F_OK) ? " not" : "");
    }
}

/* `mkernel LINE`; 1 where its standard output is the result and nothing else, JSON or a CSV that
 * begins with `header`. */
static void expect_only_result(const char *line, const char *header)
{
    command_start(&r, line, NULL);
    command_finish(&r, 240);
    struct json *j = header ? NULL : json_read(r.out_text);
    if (r.status || (header ? strncmp(r.out_text, header, strlen(header)) != 0 : !j))
        fail_msg("mkernel %s: status %d, \"%s\" \"%s\"", line, r.status, r.out_text, r.err_text);
    json_free(j);
}

/* A result that goes to standard output is there alone: the table is on standard error, or, with
 * --quiet, nowhere. */
CASE(test_standard_output)
{
#define RUN " ag_gemm --exec host --shape 64,64,64 --iters 2 "
    static const struct {
        const char *line, *header, *table; /* header: of a CSV; table: what only a table says */
    } lines[] = {
        {"run" RUN "--json /dev/stdout", NULL, "verdict   done"},
        {"bench" RUN "--json /dev/stdout", NULL, "verdict   right"},
        {"bench" RUN "--csv /dev/stdout", "op,", "verdict   right"},
        {"sim ag_gemm --shape 64,64,64 --json /dev/stdout", NULL, "ideal "},
        {"bench ring --commands 1000 --rounds 1 --json /dev/stdout", NULL, "median[M/s]"},
        {"bench fabric --nic soft --size 64 --iters 20 --test bw --json /dev/stdout", NULL,
         "MsgRate"},
        {"bench fabric --nic soft --size 64 --iters 20 --test lat --csv /dev/stdout", "test,",
         "t_typical"},
        {"tune" RUN "--tuning none --verify --rounds 1 --space pieces=1 --csv /dev/stdout", "op,",
         "of best"},
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        char quiet[512];
        expect_only_result(lines[i].line, lines[i].header);
        if (!strstr(r.err_text, lines[i].table))
            fail_msg("mkernel %s: no table on standard error: \"%s\"", lines[i].line, r.err_text);
        snprintf(quiet, sizeof quiet, "%s --quiet", lines[i].line);
        expect_only_result(quiet, lines[i].header);
        if (strstr(r.err_text, lines[i].table))
            fail_msg("mkernel %s: a table: \"%s\"", quiet, r.err_text);
    }
    command_start(&r, "run" RUN "--quiet", NULL);
    command_finish(&r, 120);
    assert_int_equal(r.status + (int)r.out_used, 0);
    assert_int_equal(command_lines(r.err_text), 1);
}

/* Standard output is a file: the result stands there, behind what was written before it, and
 * nothing takes its place. */
CASE(test_standard_output_is_a_file)
{
    char mkernel[1024], command[2048], text[16384], path[96];
    struct stat there;
    command_path(mkernel, sizeof mkernel);
    snprintf(command, sizeof command,
             "cd %s; { echo first; %s run ag_gemm --exec host --shape 64,64,64 --iters 1 --json "
             "both; } >both",
             folder, mkernel);
    command_start_program(&r, "/bin/sh", (char *[]){"sh", "-c", command, NULL});
    command_finish(&r, 120);
    assert_int_equal(r.status, 0);
    assert_non_null(strstr(r.err_text, "verdict   done"));
    snprintf(path, sizeof path, "%s/both", folder);
    test_read_file(path, text, sizeof text);
    assert_memory_equal(text, "first\n{", 7);
    struct json *j = json_read(text + 6);
    assert_non_null(j);
    json_free(j);

    snprintf(command, sizeof command,
             "cd %s; ln -s /proc/self/fd/1 out; %s run ag_gemm --exec host --shape 64,64,64 "
             "--iters 1 --trace out >table",
             folder, mkernel);
    command_start_program(&r, "/bin/sh", (char *[]){"sh", "-c", command, NULL});
    command_finish(&r, 120);
    assert_int_equal(r.status, 2);
    assert_non_null(strstr(r.err_text, "it is standard input, output or error"));
    snprintf(path, sizeof path, "%s/out", folder);
    assert_true(lstat(path, &there) == 0 && S_ISLNK(there.st_mode));
}

FIXTURE(folder_make, folder_remove)
