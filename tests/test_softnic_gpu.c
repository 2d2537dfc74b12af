/* softnic moves GPU memory by copy engine alone, and keeps RC's promises there: data before flag,
 * completions only when the bytes are there, the responder's checks, and no copy after a region is
 * gone. The GPU is a fake one whose memory the CPU cannot touch. */
#define OWN_MAIN
#include "softnic_load.h"

#include "tests/helpers/fake_gpu.h"

enum {
    GPU = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE,
    MIB = 1 << 20,
    CHUNKS = 48,
    SLOT = 300 << 10
};

static struct ibv_context *context;
static struct end a, b;
static struct ibv_mr *from, *to; /* allocation 0, of a; allocation 1, of b */

static int setup(void **state)
{
    fake_gpu.slow_ns = fake_gpu.fail_copies = fake_gpu.opens = fake_gpu.closes =
        fake_gpu.copies_device = 0;
    memset(fake_gpu.engine[1], 0, FAKE_ALLOCATION_BYTES);
    context = nic_open(0);
    a = end_new(context, MIB);
    b = end_new(context, MIB);
    from = nic.ibv_reg_mr(a.pd, fake_gpu.device[0], FAKE_ALLOCATION_BYTES, GPU);
    to = nic.ibv_reg_mr(b.pd, fake_gpu.device[1], FAKE_ALLOCATION_BYTES, GPU);
    assert_true(from && to);
    ends_connect(&a, &b);
    return 0;
}

static int teardown(void **state)
{
    fake_gpu_hold(0);
    if (from)
        nic.ibv_dereg_mr(from);
    if (to)
        nic.ibv_dereg_mr(to);
    end_close(&a);
    end_close(&b);
    assert_int_equal(nic.ibv_close_device(context), 0);
    assert_int_equal(fake_gpu.contexts, 0);
    return 0;
}

/* The far end is allocation 1 at `offset`. */
static struct address gpu_target(void)
{
    return (struct address){.rkey = to->rkey, .buffer = (uintptr_t)fake_gpu.device[1]};
}

static void post_write(uint64_t id, size_t source, size_t target, uint32_t bytes)
{
    struct ibv_sge sge = {(uintptr_t)fake_gpu.device[0] + source, bytes, from->lkey};
    struct ibv_send_wr wr = end_wr(IBV_WR_RDMA_WRITE, id, &sge, gpu_target(), target);
    assert_int_equal(end_post(&a, &wr), 0);
}

static void post_flag(uint64_t id, size_t target, uint64_t value)
{
    struct ibv_sge sge = {(uintptr_t)&value, 8, 0};
    struct ibv_send_wr wr = end_wr(IBV_WR_RDMA_WRITE, id, &sge, gpu_target(), target);
    wr.send_flags |= IBV_SEND_INLINE;
    assert_int_equal(end_post(&a, &wr), 0);
}

static uint64_t flag_at(size_t offset)
{
    return __atomic_load_n((uint64_t *)(void *)(fake_gpu.engine[1] + offset), __ATOMIC_ACQUIRE);
}

static void fill(uint8_t *bytes, size_t size)
{
    for (size_t i = 0; i < size; i += 8) {
        uint64_t word = (uint64_t)random() << 33 ^ (uint64_t)random();
        memcpy(bytes + i, &word, 8);
    }
}

CASE_WITH(test_completes_when_there, setup, teardown)
{
    fill(fake_gpu.engine[0], 2 * MIB);
    fake_gpu_hold(1);
    post_write(1, 64, 4096, MIB + 8);
    post_flag(2, 8, 77);
    assert_true(cq_silent(a.send_cq, 50));
    fake_gpu_hold(0);
    cq_expect(a.send_cq, 1, IBV_WC_SUCCESS);
    assert_memory_equal(fake_gpu.engine[1] + 4096, fake_gpu.engine[0] + 64, MIB + 8);
    cq_expect(a.send_cq, 2, IBV_WC_SUCCESS);
    assert_int_equal(flag_at(8), 77);
    assert_true(fake_gpu.copies_device >= 1);
}

/* Small and large, from host memory in frames, by direct reading and through the socket; and out of
 * the GPU. */
CASE_WITH(test_mixed, setup, teardown)
{
    static const uint32_t sizes[] = {1, 8, 4096, 5000, 700000};
    static const char *const ways[] = {"copy=auto", "copy=stream"};
    fill(fake_gpu.engine[0], MIB);
    for (int way = 0; way < 2; way++) {
        if (way) { /* a link finds out how to copy when it is made */
            teardown(state);
            nic_configure(ways[way]);
            setup(state);
        }
        for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
            fill(a.buffer, MIB);
            memset(b.buffer, 0, MIB);
            struct ibv_sge sge = {(uintptr_t)a.buffer + 24, sizes[i], a.mr->lkey};
            struct ibv_send_wr wr =
                end_wr(IBV_WR_RDMA_WRITE, 3, &sge, gpu_target(), 4096 * (i + 1));
            assert_int_equal(end_post(&a, &wr), 0);
            cq_expect(a.send_cq, 3, IBV_WC_SUCCESS);
            assert_memory_equal(fake_gpu.engine[1] + 4096 * (i + 1), a.buffer + 24, sizes[i]);
            sge = (struct ibv_sge){(uintptr_t)fake_gpu.device[0] + 40, sizes[i], from->lkey};
            wr = end_wr(IBV_WR_RDMA_WRITE, 4, &sge, end_address(&b), 128);
            assert_int_equal(end_post(&a, &wr), 0);
            cq_expect(a.send_cq, 4, IBV_WC_SUCCESS);
            assert_memory_equal(b.buffer + 128, fake_gpu.engine[0] + 40, sizes[i]);
        }
    }
    nic_configure("copy=auto");
}

/* Inside one GPU the driver might copy with a kernel, so softnic goes by way of host memory. */
CASE_WITH(test_one_gpu, setup, teardown)
{
    struct ibv_mr *beside = nic.ibv_reg_mr(b.pd, fake_gpu.device[2], FAKE_ALLOCATION_BYTES, GPU);
    assert_non_null(beside);
    fill(fake_gpu.engine[0], 5 * MIB);
    struct ibv_sge sge = {(uintptr_t)fake_gpu.device[0] + 16, 4 * MIB + 24, from->lkey};
    struct ibv_send_wr wr =
        end_wr(IBV_WR_RDMA_WRITE, 1, &sge,
               (struct address){.rkey = beside->rkey, .buffer = (uintptr_t)fake_gpu.device[2]}, 8);
    for (int i = 0; i < 4; i++) /* more than the pinned ring holds */
        assert_int_equal(end_post(&a, &wr), 0);
    for (int i = 0; i < 4; i++)
        cq_expect(a.send_cq, 1, IBV_WC_SUCCESS);
    assert_memory_equal(fake_gpu.engine[2] + 8, fake_gpu.engine[0] + 16, 4 * MIB + 24);
    assert_int_equal(fake_gpu.copies_device, 0);
    assert_int_equal(nic.ibv_dereg_mr(beside), 0);
}

/* While the engine is busy copies are gathered, and then come in an order of their own: yet a flag
 * comes after what was before it, and what was written last to a place stays. */
struct gathered_write {
    size_t from, to;
    uint64_t flag; /* instead of a copy; 0: a copy */
    uint32_t bytes;
};

static struct gathered_write gathered_write(uint64_t i)
{
    switch (i % 10) {
    case 3: /* over the end of the last copy */
        return (struct gathered_write){64 * i, 4096 + 8192 * ((i - 1) % 37) + 5000, 0, 2000};
    case 6: /* a flag, twice, */
    case 7:
        return (struct gathered_write){0, i / 10 % 5 * 8, i, 8};
    case 8: /* and a copy over every other */
        if (i / 10 % 2)
            return (struct gathered_write){8 * i, i / 10 % 5 * 8, 0, 8};
        /* fall through */
    default:
        return (struct gathered_write){64 * i, 4096 + 8192 * (i % 37), 0, 6000};
    }
}

static void gathered(void)
{
    enum { WRITES = 100 };
    uint8_t *wanted = calloc(1, 2 * MIB);
    assert_non_null(wanted);
    fill(fake_gpu.engine[0], 2 * MIB);
    memset(fake_gpu.engine[1], 0, 2 * MIB);
    fake_gpu_hold(1);
    for (uint64_t i = 0; i < WRITES; i++) {
        struct gathered_write w = gathered_write(i);
        if (w.flag)
            post_flag(i, w.to, w.flag);
        else
            post_write(i, w.from, w.to, w.bytes);
        memcpy(wanted + w.to, w.flag ? (uint8_t *)&w.flag : fake_gpu.engine[0] + w.from, w.bytes);
    }
    fake_gpu_hold(0);
    for (uint64_t i = 0; i < WRITES; i++)
        cq_expect(a.send_cq, i, IBV_WC_SUCCESS);
    assert_memory_equal(fake_gpu.engine[1], wanted, 2 * MIB);
    free(wanted);
}

CASE_WITH(test_gathered, setup, teardown)
{
    fake_gpu.batches = 0;
    gathered();
    assert_true(fake_gpu.batches > 0);
}

/* A driver before 12.8. */
CASE_WITH(test_gathered_one_by_one, setup, teardown)
{
    __typeof__(fake_cuda.copy_batch) call = fake_cuda.copy_batch;
    fake_cuda.copy_batch = NULL;
    gathered();
    fake_cuda.copy_batch = call;
}

/* A flag in host memory behind data in GPU memory, and a receive. */
CASE_WITH(test_host_after_gpu, setup, teardown)
{
    fill(fake_gpu.engine[0], MIB);
    fake_gpu.slow_ns = 2000000;
    uint64_t value = 5, *flag = (uint64_t *)(void *)b.buffer;
    *flag = 0;
    struct ibv_sge sge = {(uintptr_t)&value, 8, 0};
    struct ibv_send_wr wr = end_wr(IBV_WR_RDMA_WRITE, 2, &sge, end_address(&b), 0);
    wr.send_flags |= IBV_SEND_INLINE;
    post_write(1, 0, 0, MIB);
    assert_int_equal(end_post(&a, &wr), 0);
    for (double end = test_seconds() + 10;
         !__atomic_load_n(flag, __ATOMIC_ACQUIRE) && test_seconds() < end;)
        usleep(10);
    assert_memory_equal(fake_gpu.engine[1], fake_gpu.engine[0], MIB);
    cq_expect(a.send_cq, 1, IBV_WC_SUCCESS);
    cq_expect(a.send_cq, 2, IBV_WC_SUCCESS);

    struct ibv_sge into = {(uintptr_t)fake_gpu.device[1] + MIB, 9000, to->lkey};
    struct ibv_recv_wr receive = {.wr_id = 6, .sg_list = &into, .num_sge = 1}, *bad;
    assert_int_equal(ibv_post_recv(b.qp, &receive, &bad), 0);
    struct ibv_sge out = {(uintptr_t)fake_gpu.device[0] + 8, 9000, from->lkey};
    wr = end_wr(IBV_WR_SEND, 7, &out, gpu_target(), 0);
    assert_int_equal(end_post(&a, &wr), 0);
    cq_expect(b.recv_cq, 6, IBV_WC_SUCCESS);
    assert_memory_equal(fake_gpu.engine[1] + MIB, fake_gpu.engine[0] + 8, 9000);
    cq_expect(a.send_cq, 7, IBV_WC_SUCCESS);
}

/* The refused request takes nothing along: what was before it is there and complete. */
CASE_WITH(test_bounds, setup, teardown)
{
    fill(fake_gpu.engine[0], MIB);
    fake_gpu.slow_ns = 2000000;
    post_write(1, 0, 0, MIB);
    post_write(2, 0, FAKE_ALLOCATION_BYTES - 4096, 4104);
    cq_expect(a.send_cq, 1, IBV_WC_SUCCESS);
    assert_memory_equal(fake_gpu.engine[1], fake_gpu.engine[0], MIB);
    cq_expect(a.send_cq, 2, IBV_WC_REM_ACCESS_ERR);
    async_expect(&b, IBV_EVENT_QP_ACCESS_ERR);
}

CASE_WITH(test_registration, setup, teardown)
{
    assert_null(nic.ibv_reg_mr(a.pd, fake_gpu.device[0], 4096, GPU | IBV_ACCESS_REMOTE_READ));
    assert_int_equal(errno, EOPNOTSUPP);
    assert_null(nic.ibv_reg_mr(a.pd, fake_gpu.device[2] + 4096, FAKE_ALLOCATION_BYTES, GPU));
    assert_int_equal(errno, EFAULT);
    nic_configure("gpu=refuse");
    assert_null(nic.ibv_reg_mr(a.pd, fake_gpu.device[2], 4096, GPU));
    assert_int_equal(errno, EFAULT);
    nic_configure("gpu=copy");
    assert_int_not_equal(nic.softnic_configure("gpu=maybe"), 0);
    /* after the links were made */
    struct ibv_mr *more = nic.ibv_reg_mr(a.pd, fake_gpu.device[2], 4096, GPU);
    assert_non_null(more);
    struct ibv_sge sge = {(uintptr_t)fake_gpu.device[2], 4096, more->lkey};
    struct ibv_send_wr wr = end_wr(IBV_WR_RDMA_WRITE, 1, &sge, gpu_target(), 0);
    fill(fake_gpu.engine[2], 4096);
    assert_int_equal(end_post(&a, &wr), 0);
    cq_expect(a.send_cq, 1, IBV_WC_SUCCESS);
    assert_memory_equal(fake_gpu.engine[1], fake_gpu.engine[2], 4096);
    assert_int_equal(nic.ibv_dereg_mr(more), 0);

    sge = (struct ibv_sge){(uintptr_t)fake_gpu.device[0], 4096, from->lkey};
    wr = end_wr(IBV_WR_RDMA_READ, 2, &sge, end_address(&b), 0);
    assert_int_equal(end_post(&a, &wr), 0);
    cq_expect(a.send_cq, 2, IBV_WC_LOC_PROT_ERR);
}

CASE_WITH(test_copy_fails, setup, teardown)
{
    fake_gpu.fail_copies = 1;
    post_write(1, 0, 0, 4096);
    cq_expect(a.send_cq, 1, IBV_WC_REM_OP_ERR);
    assert_int_equal(end_state(&b), IBV_QPS_ERR);
}

/* A message longer than what can be staged, whose copies never end, fails: what is staged is not
 * overwritten for the rest of it. */
CASE_WITH(test_engine_hangs, setup, teardown)
{
    enum { BYTES = 12 * MIB };
    uint8_t *host = malloc(BYTES);
    struct ibv_mr *mr = nic.ibv_reg_mr(a.pd, host, BYTES, GPU);
    assert_true(host && mr);
    fill(host, BYTES);
    fake_gpu_hold(1);
    struct ibv_sge sge = {(uintptr_t)host, BYTES, mr->lkey};
    struct ibv_send_wr wr = end_wr(IBV_WR_RDMA_WRITE, 1, &sge, gpu_target(), 0);
    assert_int_equal(end_post(&a, &wr), 0);
    struct ibv_wc wc = cq_take(a.send_cq);
    fake_gpu_hold(0);
    assert_int_equal(wc.wr_id, 1);
    assert_int_not_equal(wc.status, IBV_WC_SUCCESS);
    nic.ibv_dereg_mr(mr);
    free(host);
}

CASE_WITH(test_deregistering_waits, setup, teardown)
{
    fake_gpu.slow_ns = 20000000;
    post_write(1, 0, 0, MIB);
    while (!__atomic_load_n(&fake_gpu.copies_device, __ATOMIC_ACQUIRE))
        usleep(100);
    assert_int_equal(nic.ibv_dereg_mr(to), 0);
    to = NULL;
    pthread_mutex_lock(&fake_gpu.lock);
    assert_true(fake_gpu.head == fake_gpu.tail);
    pthread_mutex_unlock(&fake_gpu.lock);
    cq_expect(a.send_cq, 1, IBV_WC_SUCCESS);
}

/* Without options a device with GPU memory does 50 GB/s, however fast the copy engine is. */
CASE_WITH(test_default_speed, setup, teardown)
{
    double begun = test_seconds();
    for (int i = 0; i < 100; i++)
        post_write((uint64_t)i, 0, 0, MIB);
    for (int i = 0; i < 100; i++)
        cq_expect(a.send_cq, (uint64_t)i, IBV_WC_SUCCESS);
    double least = 100.0 * MIB / 50e9;
    assert_true(test_seconds() - begun >= least);
}

/* ---- two processes ---- */

static uint32_t chunk_bytes(uint32_t i)
{
    return 16 + (i * 7919 * 8 + i) % (SLOT - 4096) / 8 * 8;
}

static void child(int fd)
{
    struct address far, near;
    fake_gpu_engine_start();
    nic.softnic_provide_cuda(&fake_cuda);
    context = nic_open(1);
    a = end_new(context, 4096);
    from = nic.ibv_reg_mr(a.pd, fake_gpu.device[0], FAKE_ALLOCATION_BYTES, GPU);
    near = end_address(&a);
    if (!from || write(fd, &near, sizeof(near)) != sizeof(near) ||
        read(fd, &far, sizeof(far)) != sizeof(far))
        _exit(1);
    end_connect(&a, far);
    char ready;
    if (write(fd, "r", 1) != 1 || read(fd, &ready, 1) != 1)
        _exit(2);
    for (uint32_t i = 0; i < CHUNKS; i++) {
        struct ibv_sge sge = {(uintptr_t)fake_gpu.device[0] + i * 64, chunk_bytes(i), from->lkey};
        uint64_t value = i + 1;
        struct ibv_sge flag = {(uintptr_t)&value, 8, 0};
        struct ibv_send_wr data =
            end_wr(IBV_WR_RDMA_WRITE, i, &sge, far, 4096 + (uint64_t)i * SLOT);
        struct ibv_send_wr raise = end_wr(IBV_WR_RDMA_WRITE, i, &flag, far, 0);
        data.send_flags = 0;
        data.next = &raise;
        raise.send_flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED;
        if (end_post(&a, &data))
            _exit(3);
    }
    struct ibv_wc wc;
    uint32_t done = 0;
    for (double end = test_seconds() + 20; done < CHUNKS && test_seconds() < end;)
        if (ibv_poll_cq(a.send_cq, 1, &wc) == 1) {
            if (wc.status || wc.wr_id != done++)
                _exit(4);
        }
    if (done < CHUNKS || write(fd, "d", 1) != 1 || read(fd, &ready, 1) != 1)
        _exit(5);
    _exit(0);
}

CASE(test_two_processes)
{
    int fds[2], status;
    char done;
    fill(fake_gpu.engine[0], 4 * MIB);
    memset(fake_gpu.engine[1], 0, FAKE_ALLOCATION_BYTES);
    fake_gpu.slow_ns = 200000;
    fake_gpu.opens = fake_gpu.closes = fake_gpu.copies_device = 0;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    fake_gpu_engine_stop(); /* a fork takes no thread along */
    pid_t pid = fork();
    if (!pid) {
        alarm(60);
        child(fds[1]);
    }
    assert_int_equal(fake_gpu_engine_start(), 0);
    context = nic_open(0);
    b = end_new(context, 4096);
    to = nic.ibv_reg_mr(b.pd, fake_gpu.device[1], FAKE_ALLOCATION_BYTES, GPU);
    struct address near = end_address(&b), far;
    near.rkey = to->rkey;
    near.buffer = (uintptr_t)fake_gpu.device[1];
    assert_int_equal(read(fds[0], &far, sizeof(far)), sizeof(far));
    assert_int_equal(write(fds[0], &near, sizeof(near)), sizeof(near));
    end_connect(&b, far);
    assert_int_equal(read(fds[0], &done, 1), 1);
    assert_int_equal(__atomic_load_n(&fake_gpu.opens, __ATOMIC_ACQUIRE),
                     1); /* before the sender was ready to send */
    assert_int_equal(write(fds[0], "r", 1), 1);
    uint64_t checked = 0;
    for (double end = test_seconds() + 20; checked < CHUNKS && test_seconds() < end;) {
        uint64_t flag = flag_at(0);
        for (; checked < flag; checked++)
            if (memcmp(fake_gpu.engine[1] + 4096 + checked * SLOT,
                       fake_gpu.engine[0] + checked * 64, chunk_bytes((uint32_t)checked)))
                fail_msg("flag %d was there before its data", (int)flag);
    }
    assert_int_equal(checked, CHUNKS);
    assert_int_equal(read(fds[0], &done, 1), 1);
    assert_int_equal(write(fds[0], "r", 1), 1);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_int_equal(nic.ibv_dereg_mr(to), 0);
    end_close(&b);
    assert_int_equal(nic.ibv_close_device(context), 0);
    /* from GPU to GPU, though a mapping has the ordinal of the process that opened it */
    assert_true(fake_gpu.copies_device >= CHUNKS);
    assert_int_equal(fake_gpu.opens, 1); /* once, not once per message */
    assert_int_equal(fake_gpu.closes, 1);
    assert_int_equal(fake_gpu.contexts, 0);
}

int main(void)
{
    nic_load();
    return cmocka_run_group_tests(test_cases, fake_gpu_begin, fake_gpu_end);
}
