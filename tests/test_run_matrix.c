/* `mkernel run OP --check` is right for every operator over every fabric on every form of cluster,
 * at sizes that divide nothing, however tokens are routed; EFA's devices reorder what they carry, one
 * a rank or several, with short requests, full queues and posted receives. With --deterministic
 * several runs give the same bits, over either fabric. */
/* LIMIT=600 */
#include "tests/helpers/run_right.h"

static const char *const fabrics[] = {"verbs", "efa"};

/* EFA networks, which the runs take in turn: late and out of order by up to 0.3 ms, and more or less
 * room. */
static const struct {
    char *softnic, *efa;
    int rails;
} networks[] = {
    {"SOFTNIC=reorder=300us", "MK_EFA=", 1},
    {"SOFTNIC=reorder=100us,efa-rdma=4096", "MK_EFA=stripe=256", 4},
    {"SOFTNIC=reorder=200us,efa-depth=64", "MK_EFA=stripe=1024,window=12,depth=8", 2},
    {"SOFTNIC=reorder=50us,efa-caps=write,copy=stream", "MK_EFA=stripe=512,window=16", 3},
};

#if defined __SANITIZE_THREAD__ || defined __SANITIZE_ADDRESS__ /* ten times as slow */
#define LAUNCHES "3"
static const unsigned forms[][2] = {{2, 2}};
#else
#define LAUNCHES "10"
static const unsigned forms[][2] = {{1, 1}, {1, 4}, {2, 1}, {2, 2}, {3, 2}, {4, 1}};
#endif

/* ---- every form of cluster, both fabrics ---- */

/* `options` with the number behind each '*' times the ranks. */
static void with_ranks(const char *options, unsigned world, char *out, size_t size)
{
    size_t used = 0;
    for (char *c = (char *)options; *c && used + 12 < size;)
        if (*c == '*')
            used += (size_t)snprintf(out + used, size - used, "%u",
                                     world * (unsigned)strtoul(c + 1, &c, 10));
        else
            out[used++] = *c++;
    out[used] = '\0';
}

static void everywhere(const char *op, const char *const *options, size_t count)
{
    static unsigned turn;
    for (size_t i = 0; i < COUNT(forms) * COUNT(fabrics) * count; i++) {
        const unsigned *form = forms[i / count / COUNT(fabrics)];
        const size_t efa = i / count % COUNT(fabrics),
                     n = (turn++ + i / count / COUNT(fabrics)) % COUNT(networks);
        char line[512], own[256];
        with_ranks(options[i % count], form[0] * form[1], own, sizeof own);
        snprintf(line, sizeof line,
                 "run %s --exec host --nic soft --fabric %s --rails %d --nodes %u --gpus %u "
                 "--iters " LAUNCHES " --check %s",
                 op, fabrics[efa], efa ? networks[n].rails : 1, form[0], form[1], own);
        right(line, efa ? networks[n].softnic : NULL, efa ? networks[n].efa : NULL,
              efa && form[0] > 1 ? "efa over softefa" : "");
    }
}

CASE(test_gemms_everywhere)
{
    static const char *const ops[] = {"ag_gemm", "gemm_rs", "gemm_ar"};
    static const char *const options[] = {
        "--shape *33,40,72",
        "--shape *65,200,328 --b-layout nk --tile 32,40 --chunk-rows 64 --seed 2",
        "--shape *17,136,8 --deterministic --burst 9 --warmup 0",
        "--shape *1,8,8 --burst 1",
    };
    for (size_t i = 0; i < COUNT(ops); i++)
        everywhere(ops[i], options, COUNT(options));
}

CASE(test_ring_attention_everywhere)
{
    static const char *const options[] = {
        "--attention 2,*33,3,1,64",
        "--attention 1,*74,4,4,128 --causal --tile 40,24 --chunk-rows 40",
        "--attention 3,*10,6,2,64 --causal --deterministic --burst 9 --warmup 0",
        "--attention 1,*1,1,1,64",
    };
    everywhere("ring_attention", options, COUNT(options));
}

/* Numbers of tokens that divide nothing; with `none` the last eighth of them is not there, and no
 * token of the last rank's. Of `few`, every other expert gets no token. */
CASE(test_moe_everywhere)
{
    static const char *const options[] = {
        "--moe 21,64,40,*3,1 --routing even",
        "--moe 37,200,72,*8,8 --routing even --b-layout nk",
        "--moe 23,136,64,*1,1 --routing one --seed 3",
        "--moe 13,72,8,*8,8 --routing one --deterministic",
        "--moe 19,40,40,*3,3 --routing none --burst 9 --warmup 0 --deterministic",
        "--moe 19,8,40,*8,8 --routing none",
    };
    static const char *const few[] = {
        "--moe 25,72,136,*16,8 --routing few --tile 16,48 --chunk-rows 8"};
    static const char *const few_of_dispatch[] = {
        "--moe 25,72,136,*16,8 --routing few --tile 16,40 --chunk-rows 8"};
    everywhere("moe_dispatch_gemm", options, COUNT(options));
    everywhere("moe_dispatch_gemm", few_of_dispatch, 1);
    everywhere("moe_ffn", options, COUNT(options));
    everywhere("moe_ffn", few, 1); /* half of a tile is gate */
}

/* ---- bits ---- */

static void bits_of(const char *line, const char *environment, char bits[17])
{
    char path[] = "/tmp/mkernel_test_json_XXXXXX", with_json[512], text[4096] = "";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    snprintf(with_json, sizeof with_json, "%s --json %s", line, path);
    right(with_json, environment, NULL, "");
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
    static const char *const troubles[] = {"SOFTNIC=delay=1ms~0.1", "SOFTNIC=reorder=300us"};
    for (size_t op = 0; op < COUNT(ops); op++) {
        char first[17] = "";
        for (size_t fabric = 0; fabric < COUNT(fabrics); fabric++) {
            char line[256], split[320], seed[320], other[17];
            snprintf(line, sizeof line,
                     "run %s --deterministic --exec host --nic soft --fabric %s --nodes 3 --gpus 2 "
                     "--check --iters " LAUNCHES,
                     ops[op].options, fabrics[fabric]);
            snprintf(split, sizeof split, "%s --roles %s", line, ops[op].roles);
            snprintf(seed, sizeof seed, "%s --seed 2", line);
            bits_of(line, NULL, other);
            if (!fabric)
                memcpy(first, other, sizeof first);
            assert_string_equal(first, other);
            bits_of(line, troubles[fabric], other);
            assert_string_equal(first, other);
            bits_of(split, NULL, other);
            assert_string_equal(first, other);
            bits_of(seed, NULL, other);
            assert_string_not_equal(first, other);
        }
    }
}
