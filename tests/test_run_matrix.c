/* `mkernel run OP --check` is right for every operator over every fabric on every form of cluster,
 * at sizes that divide nothing, however tokens are routed; with --deterministic several runs give
 * the same bits, over either fabric. */
#include "tests/helpers/command.h"

#include <fcntl.h>
#include "tests/helpers/test.h"

#define SECONDS 60

static const char *const fabrics[] = {"verbs", "efa"};
#if defined __SANITIZE_THREAD__ || defined __SANITIZE_ADDRESS__ /* ten times as slow */
#define LAUNCHES "3"
static const unsigned forms[][2] = {{2, 2}};
#else
#define LAUNCHES "10"
static const unsigned forms[][2] = {{1, 1}, {1, 4}, {2, 1}, {2, 2}, {3, 2}, {4, 1}};
#endif

static struct command_run r;
static unsigned runs;

static void run(const char *line, const char *environment)
{
    command_start(&r, line, environment, NULL);
    command_finish(&r, SECONDS);
    if (r.status != 0 || !strstr(r.out_text, "verdict   right") || !strstr(r.err_text, "all right"))
        fail_msg("mkernel %s: status %d signal %d after %.1f s\n%s%s", line, r.status, r.signal,
                 r.seconds, r.out_text, r.err_text);
    runs++;
}

static void run_form(const char *op, const unsigned form[2], const char *fabric,
                     const char *options)
{
    char line[512];
    snprintf(line, sizeof line,
             "run %s --exec host --nic soft --fabric %s --nodes %u --gpus %u --iters " LAUNCHES
             " --check %s",
             op, fabric, form[0], form[1], options);
    run(line, NULL);
}

#define EACH_FORM(body)                                                                            \
    for (size_t form = 0; form < sizeof forms / sizeof *forms; form++)                             \
        for (size_t fabric = 0; fabric < sizeof fabrics / sizeof *fabrics; fabric++) {             \
            unsigned world = forms[form][0] * forms[form][1];                                      \
            char options[256];                                                                     \
            body                                                                                   \
        }
#define RUN(op, ...)                                                                               \
    (snprintf(options, sizeof options, __VA_ARGS__),                                               \
     run_form(op, forms[form], fabrics[fabric], options))

static void gemm(const char *op)
{
    EACH_FORM({
        RUN(op, "--shape %u,40,72", 33 * world);
        RUN(op,
            "--shape %u,200,328 --b-layout nk --tile 32,40 --chunk-rows 64 --pieces %d --seed 2",
            65 * world, !strcmp(op, "gemm_rs") && forms[form][0] == 1 ? 1 : 3);
        RUN(op, "--shape %u,136,8 --deterministic --burst 9 --warmup 0 --shots %d", 17 * world,
            forms[form][0] == 1 && fabric ? 1 : 2);
        RUN(op, "--shape %u,8,8 --burst 1", world);
    })
}

CASE(test_ag_gemm)
{
    gemm("ag_gemm");
}

CASE(test_gemm_rs)
{
    gemm("gemm_rs");
}

CASE(test_gemm_ar)
{
    gemm("gemm_ar");
}

CASE(test_ring_attention)
{
    EACH_FORM({
        RUN("ring_attention", "--attention 2,%u,3,1,64", 33 * world);
        RUN("ring_attention", "--attention 1,%u,4,4,128 --causal --tile 40,24 --chunk-rows 40",
            2 * 37 * world);
        RUN("ring_attention",
            "--attention 3,%u,6,2,64 --causal --deterministic --burst 9 --warmup 0", 2 * 5 * world);
        RUN("ring_attention", "--attention 1,%u,1,1,64", world);
    })
}

/* Numbers of tokens that divide nothing; with `none` the last eighth of them is not there, and no
 * token of the last rank's. Of `few`, every other expert gets no token. A tile of moe_ffn is half
 * gate. */
static void moe(const char *op, const char *tile, const char *more)
{
    EACH_FORM({
        RUN(op, "--moe 21,64,40,%u,1 --routing even%s", 3 * world, more);
        RUN(op, "--moe 37,200,72,%u,8 --routing even --b-layout nk", 8 * world);
        RUN(op, "--moe 23,136,64,%u,1 --routing one --seed 3%s", world, more);
        RUN(op, "--moe 13,72,8,%u,8 --routing one%s", 8 * world, more);
        RUN(op, "--moe 25,72,136,%u,8 --routing few --tile %s --chunk-rows 8", 16 * world, tile);
        RUN(op, "--moe 19,40,40,%u,%u --routing none --burst 9 --warmup 0%s", 2 * world,
            world > 1 ? 3 : 2, more);
        RUN(op, "--moe 19,8,40,%u,8 --routing none", 8 * world);
    })
}

CASE(test_moe_dispatch_gemm)
{
    moe("moe_dispatch_gemm", "16,40", "");
}

CASE(test_moe_ffn)
{
    moe("moe_ffn", "16,48", " --deterministic");
}

/* ---- bits ---- */

static void bits_of(const char *line, const char *environment, char bits[17])
{
    char path[] = "/tmp/mkernel_test_json_XXXXXX", with_json[512], text[4096] = "";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    snprintf(with_json, sizeof with_json, "%s --json %s", line, path);
    run(with_json, environment);
    fd = open(path, O_RDONLY); /* not the file from before: the result was put in its place */
    assert_true(fd >= 0);
    assert_true(read(fd, text, sizeof text - 1) > 0);
    close(fd);
    unlink(path);
    const char *at = strstr(text, "\"bits\": \"");
    assert_non_null(at);
    snprintf(bits, 17, "%.16s", at + strlen("\"bits\": \""));
}

/* The same inputs over the other fabric, with other numbers of CTAs, and with a network that delays
 * one message in ten or reorders them all: the same bits. Other inputs: other bits. */
CASE(test_deterministic)
{
    static const struct {
        const char *options, *roles;
    } ops[] = {
        {"ag_gemm --shape 390,72,104", "compute=3,intra_comm=2,inter_send=2"},
        {"gemm_rs --shape 390,72,104", "compute=3,inter_send=2"},
        {"gemm_ar --shape 390,72,104", "compute=3,intra_comm=2,inter_send=2"},
        {"ring_attention --attention 1,132,4,2,64 --causal", "compute=3,intra_comm=2,inter_send=2"},
        {"moe_dispatch_gemm --moe 24,64,40,12,3", "compute=3,intra_comm=2,inter_send=2"},
        {"moe_ffn --moe 24,64,40,12,3", "compute=3,intra_comm=2,inter_send=2,inter_reduce=2"},
    };
    static const char *const networks[] = {"SOFTNIC=delay=1ms~0.1", "SOFTNIC=reorder=300us"};
    for (size_t op = 0; op < sizeof ops / sizeof *ops; op++) {
        char first[17] = "";
        for (size_t fabric = 0; fabric < sizeof fabrics / sizeof *fabrics; fabric++) {
            char line[256], split[320], seed[320], other[17];
            snprintf(line, sizeof line,
                     "run %s --deterministic --exec host --nic soft --fabric %s --nodes 3 --gpus 2 "
                     "--check "
                     "--iters " LAUNCHES,
                     ops[op].options, fabrics[fabric]);
            snprintf(split, sizeof split, "%s --roles %s", line, ops[op].roles);
            snprintf(seed, sizeof seed, "%s --seed 2", line);
            bits_of(line, NULL, other);
            if (!fabric)
                memcpy(first, other, sizeof first);
            assert_string_equal(first, other);
            bits_of(line, networks[fabric], other);
            assert_string_equal(first, other);
            bits_of(split, NULL, other);
            assert_string_equal(first, other);
            bits_of(seed, NULL, other);
            assert_string_not_equal(first, other);
        }
    }
}

CASE(test_all_ran)
{
    unsigned ways = sizeof forms / sizeof *forms * sizeof fabrics / sizeof *fabrics;
    print_message("%u runs\n", runs);
    assert_int_equal(runs, ways * (3 * 4 + 4 + 2 * 7) + 6 * 2 * 4);
}
