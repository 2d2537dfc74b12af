/* The efa fabric between two heaps in GPU memory, which the CPU cannot touch: a kernel that polls a
 * flag there sees all bytes of its put, over devices that reorder, split and spread them. What
 * --exec cuda --fabric efa does, with a fake GPU; the owner of the memory copies a flag as soon as
 * it is told to, beside the copy engine's queue, as a second stream may. */
#define OWN_MAIN
#include "tests/softnic_load.h"

#include "tests/helpers/fake_gpu.h"

#include "backends/efa/efa.h"

enum { FLAG_BYTES = 4096, FLAGS = 16, PUTS = 320, SLOT = 48 << 10 };

static struct fabric *fabrics[2];
static char error[256];
static uint32_t flags_copied;

static int64_t copy_flag(void *to, const void *from, uint64_t bytes, enum memory_way way)
{
    uint64_t value, *word = fake_reach((uintptr_t)to);
    assert_true(bytes == 8 && way == MEMORY_FROM_HOST && word);
    memcpy(&value, from, 8);
    assert_true(__atomic_load_n(word, __ATOMIC_RELAXED) < value); /* flags never go back */
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
    return flags_copied++;
}

static int copied(int64_t ticket)
{
    return 1;
}

static void *pinned(uint64_t bytes)
{
    return calloc(1, bytes);
}

static const struct mr_memory_ops owner = {
    .pinned = pinned, .unpin = free, .copy = copy_flag, .copied = copied};

static void open_both(const char *options)
{
    char addresses[2 * 4096];
    mr_provide(MK_MEMORY_CUDA, &owner);
    for (uint32_t rank = 0; rank < 2; rank++) {
        uint32_t peer = 1 - rank;
        struct efa_config c = {.end = {.nics = {.soft = 1, .count = 2},
                                       .heap = {MK_MEMORY_CUDA, fake_gpu.device[rank], FLAG_BYTES,
                                                FAKE_ALLOCATION_BYTES},
                                       .rank = rank,
                                       .world = 2,
                                       .peers = &peer,
                                       .peer_count = 1}};
        for (uint32_t i = 0; i < 2; i++)
            snprintf(c.end.nics.devices[i], sizeof c.end.nics.devices[i], "softefa%u",
                     2 * rank + i);
        efa_options_default(&c.options);
        assert_int_equal(efa_options_parse(&c.options, options, error, sizeof error), 0);
        if (efa_open(&fabrics[rank], &c, error, sizeof error))
            fail_msg("%s", error);
    }
    size_t bytes = fabrics[0]->ops->address_bytes(fabrics[0]);
    for (uint32_t rank = 0; rank < 2; rank++)
        fabrics[rank]->ops->address(fabrics[rank], addresses + rank * bytes);
    for (uint32_t rank = 0; rank < 2; rank++) {
        uint32_t peer = 1 - rank;
        if (fabrics[rank]->ops->connect(fabrics[rank], addresses, &peer, 1, error, sizeof error))
            fail_msg("%s", error);
    }
    double begun = test_seconds();
    for (int left = 3; left;) {
        for (int rank = 0; rank < 2; rank++)
            if (left >> rank & 1) {
                int result = fabrics[rank]->ops->warm_up(fabrics[rank], error, sizeof error);
                assert_true(!result || result == -EAGAIN);
                left &= ~(!result << rank);
            }
        assert_true(test_seconds() - begun < 10);
    }
}

static uint64_t bytes_of(uint32_t put)
{
    return put % 7 ? 16 + put * 2654435761u % (SLOT / 16) * 16 : 0; /* some are flags alone */
}

/* Put i is the (i / FLAGS + 1)-th to flag i % FLAGS. All that the flags of rank 1 announce is
 * there. */
static uint32_t look(void)
{
    uint32_t seen = 0;
    for (uint32_t i = 0; i < PUTS; i++) {
        uint64_t value = __atomic_load_n((uint64_t *)(void *)fake_gpu.engine[1] + 1 + i % FLAGS,
                                         __ATOMIC_ACQUIRE);
        size_t at = FLAG_BYTES + (size_t)i * SLOT;
        if (value <= i / FLAGS)
            continue;
        seen++;
        if (memcmp(fake_gpu.engine[1] + at, fake_gpu.engine[0] + at, bytes_of(i)))
            fail_msg("flag %u is %llu, and put %u is not there", 1 + i % FLAGS,
                     (unsigned long long)value, i);
    }
    return seen;
}

static void run(const char *options)
{
    struct fabric_completion done[8];
    uint32_t put = 0, completed = 0;
    double begun = test_seconds();
    memset(fake_gpu.engine[1], 0, FAKE_ALLOCATION_BYTES);
    for (size_t i = 0; i < FAKE_ALLOCATION_BYTES / 8; i++)
        ((uint64_t *)(void *)fake_gpu.engine[0])[i] = (i + 1) * 0x9e3779b97f4a7c15u;
    flags_copied = 0;
    open_both(options);
    begun = test_seconds();
    fake_gpu_hold(1); /* the engine stands still: no bytes come, and no flag of theirs */
    while (completed < PUTS || look() < PUTS) {
        uint64_t at = FLAG_BYTES + (uint64_t)put * SLOT;
        if (test_seconds() - begun > 0.3)
            fake_gpu_hold(0);
        struct fabric_put p = {.peer = 1,
                               .flag = 1 + put % FLAGS,
                               .value = put / FLAGS + 1,
                               .source = at,
                               .destination = at,
                               .bytes = bytes_of(put),
                               .cookie = put};
        int result = put < PUTS ? fabrics[0]->ops->put(fabrics[0], &p) : -EAGAIN;
        assert_true(!result || result == -EAGAIN);
        put += !result;
        fabrics[0]->ops->flush(fabrics[0]);
        for (int rank = 0; rank < 2; rank++) {
            int n = fabrics[rank]->ops->poll(fabrics[rank], done, 8);
            for (int i = 0; i < n; i++) {
                assert_int_equal(done[i].status, 0);
                completed += done[i].cookie != FABRIC_NO_PUT;
            }
            if (rank && n)
                look();
        }
        assert_true(test_seconds() - begun < 60);
    }
    assert_int_equal(flags_copied, PUTS);
    for (int rank = 0; rank < 2; rank++)
        fabrics[rank]->ops->close(fabrics[rank]);
    mr_provide(MK_MEMORY_CUDA, NULL);
    assert_int_equal(fake_gpu.contexts, 0);
}

CASE(test_reordered)
{
    nic_configure("reorder=300us,fail-wr=none,copy=auto");
    fake_gpu.slow_ns = 2000;
    run("stripe=16384,max_rdma=4096");
}

CASE(test_slow_engine)
{
    nic_configure("reorder=20us,fail-wr=none,copy=auto");
    fake_gpu.slow_ns = 100000;
    run("unsolicited=0,window=64");
}

int main(void)
{
    nic_load();
    return cmocka_run_group_tests(test_cases, fake_gpu_begin, fake_gpu_end);
}
