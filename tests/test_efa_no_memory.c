/* Where any single allocation fails, the fabrics (verbs, efa, staged) and the choice of a NIC are
 * made or refused with -errno and a sentence, everything given back, and without a crash; softnic,
 * which they stand on here, too. */
#include "backends/efa/efa.h"
#include "backends/nic.h"
#include "backends/stage.h"
#include "tests/helpers/fake_copier.h"
#include "tests/helpers/verbs_pair.h"
#include "tests/helpers/test.h"
#include "tests/helpers/no_memory.h"

static int open_verbs_pair(char *text, size_t size)
{
    static struct pair_rank r[2];
    memset(r, 0, sizeof r);
    int result = pair_open(r, 1 << 20, "qps=2,depth=64");
    if (result)
        snprintf(text, size, "%s%s", r[0].error, r[1].error);
    for (int i = 0; i < 2; i++)
        pair_rank_close(&r[i]);
    return result;
}

static int open_efa_pair(char *text, size_t size)
{
    static const uint32_t peers[2] = {1, 0};
    static char heaps[2][1 << 16] __attribute__((aligned(4096))), addresses[2][4096];
    struct fabric *f[2] = {NULL, NULL};
    int result = 0;
    for (uint32_t i = 0; i < 2 && !result; i++) {
        struct efa_config c = {.end = {.nics = {.soft = 1, .count = 1, .devices = {"softefa0"}},
                                       .rank = i,
                                       .world = 2,
                                       .peers = &peers[i],
                                       .peer_count = 1,
                                       .heap = {MK_MEMORY_HOST, heaps[i], 4096, sizeof heaps[i]}}};
        efa_options_default(&c.options);
        c.options.depth = 64;
        result = efa_open(&f[i], &c, text, size);
    }
    for (uint32_t i = 0; i < 2 && !result; i++)
        f[i]->ops->address(f[i], (char *)addresses + i * f[i]->ops->address_bytes(f[i]));
    for (uint32_t i = 0; i < 2 && !result; i++) {
        result = f[i]->ops->connect(f[i], addresses, &peers[i], 1, text, size);
        if (result && !text[0])
            snprintf(text, size, "%s", strerror(-result)); /* as net.c says it */
    }
    for (int i = 0; i < 2; i++)
        if (f[i])
            f[i]->ops->close(f[i]);
    return result;
}

static int choose_a_nic(char *text, size_t size)
{
    struct nic_choice choice;
    struct nic_request r = {.names = "soft", .local_ranks = 2};
    return nic_choose(&choice, &r, text, size);
}

static int stage_over_verbs(void *context, struct fabric **out, const struct stage_memory *memory,
                            char *text, size_t size)
{
    static struct verbs_api api;
    static const uint32_t peer = 1;
    struct verbs_rc_config c = {.api = &api,
                                .end = {.nics = {.soft = 1, .count = 1, .devices = {"soft0"}},
                                        .rank = 0,
                                        .world = 2,
                                        .peers = &peer,
                                        .peer_count = 1}};
    c.end.heap = (struct mr_heap){MK_MEMORY_HOST, memory->base, memory->flag_bytes, memory->bytes};
    verbs_options_default(&c.options);
    int result = verbs_api_open(&api, VERBS_SOFT, text, size);
    return result ? result : verbs_rc_open(out, &c, text, size);
}

static int open_a_stage(char *text, size_t size)
{
    static char heap[1 << 16];
    static const uint32_t peer = 1;
    struct fabric *f;
    struct stage_config c = {
        .ops = &fake_copier_ops,
        .heap = {.memory = MK_MEMORY_CUDA, .base = heap, .flag_bytes = 4096, .bytes = sizeof heap},
        .rank = 0,
        .world = 2,
        .peers = &peer,
        .peer_count = 1,
        .open_inner = stage_over_verbs};
    int result = stage_open(&f, &c, text, size);
    if (!result)
        f->ops->close(f);
    else if (!text[0])
        snprintf(text, size, "%s", strerror(-result)); /* as net.c says it */
    return result;
}

CASE(test_verbs)
{
    assert_true(fail_each(open_verbs_pair, 0) >= 20);
}

CASE(test_efa)
{
    assert_true(fail_each(open_efa_pair, 0) >= 20);
}

CASE(test_stage)
{
    assert_true(fail_each(open_a_stage, 0) >= 10);
}

CASE(test_choice)
{
    assert_true(fail_each(choose_a_nic, 0) >= 5);
}

static int begin(void **state)
{
    return pair_softnic("link=roce");
}

FIXTURE(begin, NULL)
