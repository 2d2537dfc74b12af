/* Registration cuts the heap into flags and data: relaxed ordering for the data alone; device
 * memory by DMA-BUF, then by its address; what was registered is given back where the other half
 * fails, and the sentence says what would help. */
#include "backends/verbs/mr.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>
#include "tests/helpers/test.h"

enum { FLAGS = 8192, BYTES = 1 << 20 };

/* A NIC that takes what the test lets it take, and remembers. */
struct call {
    char way; /* 'a': plain, 'i': with optional access, 'd': DMA-BUF */
    uint64_t address, length, offset;
    unsigned access;
};

static struct call calls[8];
static int call_count, live, refuse_from, refuse_dmabuf, refuse_errno, open_fds;
static struct ibv_mr mrs[8];

static struct ibv_mr *take(struct call c, int refuse)
{
    if (call_count >= refuse_from || refuse) {
        errno = refuse_errno;
        return NULL;
    }
    calls[call_count] = c;
    live++;
    return &mrs[call_count++];
}

static struct ibv_mr *plain(struct ibv_pd *pd, void *address, size_t length, int access)
{
    return take((struct call){'a', (uintptr_t)address, length, 0, (unsigned)access}, 0);
}

static struct ibv_mr *optional(struct ibv_pd *pd, void *address, size_t length, uint64_t iova,
                               unsigned access)
{
    assert_int_equal(iova, (uintptr_t)address);
    return take((struct call){'i', (uintptr_t)address, length, 0, access}, 0);
}

static struct ibv_mr *dmabuf(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova,
                             int fd, int access)
{
    assert_true(fcntl(fd, F_GETFD) >= 0);
    return take((struct call){'d', iova, length, offset, (unsigned)access}, refuse_dmabuf);
}

static int dereg(struct ibv_mr *mr)
{
    live--;
    return 0;
}

static char *cuda_base = (char *)(uintptr_t)0x7f0000000000ull; /* never read */
static int exports;

static int export_dmabuf(void *base, uint64_t bytes, int *fd, uint64_t *offset)
{
    if (exports)
        return exports;
    *fd = open("/dev/null", O_RDONLY);
    open_fds = *fd;
    /* the allocation began before the heap */
    *offset = (uint64_t)((char *)base - cuda_base) + 65536;
    return 0;
}

static int in_order;

static int writes_in_order(void)
{
    return in_order;
}

static const struct mr_memory_ops cuda_ops = {.export_dmabuf = export_dmabuf,
                                              .writes_in_order = writes_in_order};
static struct ibv_device device = {.name = "nic0"};
static struct ibv_context context = {.device = &device};
static struct ibv_pd pd = {.context = &context};
static struct verbs_api api;
static struct mr_set set;
static char error[320];

static int setup(void **state)
{
    api = (struct verbs_api){
        .reg_mr = plain, .reg_mr_iova2 = optional, .reg_dmabuf_mr = dmabuf, .dereg_mr = dereg};
    call_count = live = refuse_dmabuf = exports = 0;
    refuse_from = 8;
    refuse_errno = EFAULT;
    error[0] = '\0';
    in_order = 1;
    mr_provide(MK_MEMORY_CUDA, &cuda_ops);
    return 0;
}

static int go(enum mk_memory memory, int relaxed)
{
    struct mr_heap heap = {memory, cuda_base, FLAGS, BYTES};
    return mr_register(&api, &pd, &heap, relaxed, &set, error, sizeof error);
}

static void both_halves(char flags_way, char data_way, int relaxed)
{
    assert_int_equal(call_count, 2);
    assert_int_equal(calls[0].way, flags_way);
    assert_int_equal(calls[0].address, (uintptr_t)cuda_base);
    assert_int_equal(calls[0].length, FLAGS);
    /* never relaxed */
    assert_int_equal(calls[0].access, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    assert_int_equal(calls[1].way, data_way);
    assert_int_equal(calls[1].address, (uintptr_t)cuda_base + FLAGS);
    assert_int_equal(calls[1].length, BYTES - FLAGS);
    assert_int_equal(calls[1].access,
                     calls[0].access | (relaxed ? IBV_ACCESS_RELAXED_ORDERING : 0));
    assert_int_equal(set.relaxed, relaxed);
    mr_deregister(&api, &set);
    mr_deregister(&api, &set); /* twice is once */
    assert_int_equal(live, 0);
}

CASE_WITH(test_host, setup, NULL)
{
    assert_int_equal(go(MK_MEMORY_HOST, 1), 0);
    both_halves('a', 'i', 1);
    setup(state);
    assert_int_equal(go(MK_MEMORY_HOST, 0), 0);
    both_halves('a', 'a', 0);
    setup(state);
    api.reg_mr_iova2 = NULL; /* an old library */
    assert_int_equal(go(MK_MEMORY_HOST, 1), 0);
    both_halves('a', 'a', 0);
}

CASE_WITH(test_dmabuf, setup, NULL)
{
    assert_int_equal(go(MK_MEMORY_CUDA, 1), 0);
    assert_string_equal(set.how, "DMA-BUF");
    assert_int_equal(calls[1].offset, 65536 + FLAGS);
    assert_int_equal(fcntl(open_fds, F_GETFD), -1); /* closed: the registration holds it */
    both_halves('d', 'd', 1);
}

CASE_WITH(test_peer_memory, setup, NULL)
{
    refuse_dmabuf = 1;
    assert_int_equal(go(MK_MEMORY_CUDA, 1), 0);
    assert_string_equal(set.how, "peer memory");
    both_halves('a', 'i', 1);
    setup(state);
    exports = -ENOTSUP;
    assert_int_equal(go(MK_MEMORY_CUDA, 1), 0);
    assert_string_equal(set.how, "peer memory");
    both_halves('a', 'i', 1);
    setup(state);
    api.reg_dmabuf_mr = NULL;
    assert_int_equal(go(MK_MEMORY_CUDA, 1), 0);
    both_halves('a', 'i', 1);
}

CASE_WITH(test_neither, setup, NULL)
{
    refuse_from = 0;
    assert_int_equal(go(MK_MEMORY_CUDA, 1), -EOPNOTSUPP);
    assert_non_null(strstr(error, "nic0 cannot register GPU memory"));
    assert_non_null(strstr(error, "nvidia_peermem"));
    setup(state);
    mr_provide(MK_MEMORY_CUDA, NULL);
    assert_int_equal(go(MK_MEMORY_CUDA, 1), -EOPNOTSUPP);
    assert_int_equal(call_count, 0);
}

/* A GPU that does not order a NIC's writes gets none, though the NIC could. */
CASE_WITH(test_unordered, setup, NULL)
{
    in_order = 0;
    assert_int_equal(go(MK_MEMORY_CUDA, 1), -EOPNOTSUPP);
    assert_int_equal(call_count, 0);
    assert_non_null(strstr(error, "in order"));
    assert_int_equal(go(MK_MEMORY_HOST, 0), 0);
    mr_deregister(&api, &set);
}

CASE_WITH(test_half, setup, NULL)
{
    struct rlimit limit = {1 << 20, RLIM_INFINITY};
    struct rlimit before;
    getrlimit(RLIMIT_MEMLOCK, &before);
    limit.rlim_max = before.rlim_max;
    if (limit.rlim_max != RLIM_INFINITY && limit.rlim_cur > limit.rlim_max)
        limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_MEMLOCK, &limit);
    refuse_from = 1; /* the flags go, the data does not */
    refuse_errno = ENOMEM;
    assert_int_equal(go(MK_MEMORY_HOST, 1), -ENOMEM);
    assert_int_equal(live, 0);
    assert_null(set.flags);
    assert_non_null(strstr(error, "ulimit -l"));
    setrlimit(RLIMIT_MEMLOCK, &before);
}

CASE_WITH(test_layouts, setup, NULL)
{
    const struct mr_heap bad[] = {{MK_MEMORY_HOST, cuda_base, 0, BYTES},
                                  {MK_MEMORY_HOST, cuda_base, 100, BYTES},
                                  {MK_MEMORY_HOST, cuda_base, BYTES, FLAGS},
                                  {(enum mk_memory)7, cuda_base, FLAGS, BYTES}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(mr_register(&api, &pd, &bad[i], 1, &set, error, sizeof error), -EINVAL);
    const struct mr_heap flags_only = {MK_MEMORY_HOST, cuda_base, FLAGS, FLAGS};
    assert_int_equal(mr_register(&api, &pd, &flags_only, 1, &set, error, sizeof error), 0);
    assert_null(set.data);
    assert_int_equal(call_count, 1);
}
