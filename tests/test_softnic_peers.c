/* Two processes joined by softnic keep RC's promises: data before flag, nothing lost when a link
 * comes back, a clean error within timeout x (retries + 1) when the peer dies, and at least 2 GB/s
 * with 256 KB writes. */
#include "softnic_load.h"

#include <signal.h>

enum { SIZE = 8 << 20, CHUNK = 256 << 10, FLAG = SIZE - 64 };

/* A child process that opens its own device, connects to this one, and runs `body`. */
struct peer {
    pid_t pid;
    int fd;
    struct end mine;
    struct address address;
};

static void tell(int fd, const void *data, size_t size)
{
    assert_int_equal(write(fd, data, size), (ssize_t)size);
}

static void hear(int fd, void *data, size_t size)
{
    assert_int_equal(read(fd, data, size), (ssize_t)size);
}

/* Checks of the child: no cmocka there, its jumps belong to the parent. */
#define CHILD(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "child: line %d: %s\n", __LINE__, #condition);                         \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)

static void exchange(int fd, struct end *e, struct address *peer)
{
    struct address mine = end_address(e);
    char ready = 1;
    tell(fd, &mine, sizeof(mine));
    hear(fd, peer, sizeof(*peer));
    end_connect(e, *peer);
    tell(fd, &ready, 1);
    hear(fd, &ready, 1);
}

static struct peer peer_start(const char *options,
                              void (*body)(struct end *e, struct address to, int fd))
{
    int fds[2];
    struct peer p = {0};
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    fflush(NULL);
    p.pid = fork();
    assert_true(p.pid >= 0);
    if (!p.pid) {
        struct address to;
        alarm(60);
        close(fds[0]);
        nic_load();
        nic_configure(options);
        struct ibv_context *context = nic_open(1);
        struct end e = end_new(context, SIZE);
        exchange(fds[1], &e, &to);
        body(&e, to, fds[1]);
        end_close(&e);
        CHILD(!nic.ibv_close_device(context));
        _exit(0);
    }
    close(fds[1]);
    p.fd = fds[0];
    nic_load();
    nic_configure(options);
    p.mine = end_new(nic_open(0), SIZE);
    p.mine.timeout = 12; /* 16.8 ms */
    p.mine.retry_cnt = 2;
    exchange(p.fd, &p.mine, &p.address);
    return p;
}

static void peer_end(struct peer *p, int expected_status)
{
    int status;
    char over = 1;
    if (!expected_status)
        tell(p->fd, &over, 1);
    assert_int_equal(waitpid(p->pid, &status, 0), p->pid);
    assert_int_equal(status, expected_status);
    struct ibv_context *context = p->mine.context;
    end_close(&p->mine);
    nic.ibv_close_device(context);
    close(p->fd);
}

static void wait_until_over(struct end *e, struct address to, int fd)
{
    char over;
    CHILD(read(fd, &over, 1) == 1);
}

/* The child checks each chunk when it sees its flag, and raises the flag on the parent's side. */
static void check_rounds(struct end *e, struct address to, int fd)
{
    uint64_t *flag = (uint64_t *)(void *)(e->buffer + FLAG);
    for (uint64_t round = 1; round <= 200; round++) {
        double end = test_seconds() + 20;
        while (__atomic_load_n(flag, __ATOMIC_ACQUIRE) < round) {
            CHILD(test_seconds() < end);
            usleep(10);
        }
        for (int i = 0; i < CHUNK; i += 61)
            CHILD(e->buffer[i] == (uint8_t)round);
        CHILD(e->buffer[CHUNK - 1] == (uint8_t)round);
        struct ibv_sge sge = {(uintptr_t)&round, 8, 0};
        struct ibv_send_wr wr = end_wr(IBV_WR_RDMA_WRITE, round, &sge, to, FLAG);
        wr.send_flags |= IBV_SEND_INLINE;
        CHILD(!end_post(e, &wr));
        struct ibv_wc wc = cq_take(e->send_cq);
        CHILD(wc.status == IBV_WC_SUCCESS && wc.wr_id == round);
    }
    wait_until_over(e, to, fd);
}

static void data_before_flag(const char *options)
{
    struct peer p = peer_start(options, check_rounds);
    struct end *e = &p.mine;
    uint64_t *answer = (uint64_t *)(void *)(e->buffer + FLAG);
    for (uint64_t round = 1; round <= 200; round++) {
        memset(e->buffer, (int)round, CHUNK);
        struct ibv_sge data = {(uintptr_t)e->buffer, CHUNK, e->mr->lkey},
                       word = {(uintptr_t)&round, 8, 0};
        struct ibv_send_wr wr[2] = {end_wr(IBV_WR_RDMA_WRITE, 1, &data, p.address, 0),
                                    end_wr(IBV_WR_RDMA_WRITE, round, &word, p.address, FLAG)};
        wr[0].send_flags = 0;
        wr[0].next = &wr[1];
        wr[1].send_flags |= IBV_SEND_INLINE;
        assert_int_equal(end_post(e, wr), 0);
        cq_expect(e->send_cq, round, IBV_WC_SUCCESS);
        for (double end = test_seconds() + 20; __atomic_load_n(answer, __ATOMIC_ACQUIRE) < round;
             usleep(10))
            assert_true(test_seconds() < end);
    }
    peer_end(&p, 0);
}

CASE(data_before_flag_by_either_copy)
{
    data_before_flag("copy=direct");
    data_before_flag("copy=stream");
}

CASE(peer_dies)
{
    struct peer p = peer_start("copy=auto", wait_until_over);
    struct end *e = &p.mine;
    struct ibv_sge sge = {(uintptr_t)e->buffer, CHUNK, e->mr->lkey};
    struct ibv_send_wr wr = end_wr(IBV_WR_RDMA_WRITE, 1, &sge, p.address, 0);
    assert_int_equal(end_post(e, &wr), 0);
    cq_expect(e->send_cq, 1, IBV_WC_SUCCESS);
    kill(p.pid, SIGKILL);
    int status;
    assert_int_equal(waitpid(p.pid, &status, 0), p.pid);
    double start = test_seconds();
    for (uint64_t i = 2; i < 12; i++) {
        wr.wr_id = i;
        wr.send_flags = 0;
        assert_int_equal(end_post(e, &wr), 0);
    }
    cq_expect(e->send_cq, 2, IBV_WC_RETRY_EXC_ERR);
    double took = test_seconds() - start;
    assert_true(took > 0.045 && took < 10); /* 3 x 16.8 ms */
    for (uint64_t i = 3; i < 12; i++)
        cq_expect(e->send_cq, i, IBV_WC_WR_FLUSH_ERR);
    assert_int_equal(end_state(e), IBV_QPS_ERR);
    wr.wr_id = 12;
    assert_int_equal(end_post(e, &wr), 0);
    cq_expect(e->send_cq, 12, IBV_WC_WR_FLUSH_ERR);
    struct ibv_context *context = e->context;
    end_close(e);
    nic.ibv_close_device(context);
    close(p.fd);
}

/* A child that the peer has forked does not keep its connections open. */
static void leave_a_child(struct end *e, struct address to, int fd)
{
    pid_t pid = fork();
    if (!pid) {
        pause();
        _exit(0);
    }
    CHILD(write(fd, &pid, sizeof(pid)) == sizeof(pid));
    wait_until_over(e, to, fd);
}

CASE(peer_dies_and_its_child_lives)
{
    struct peer p = peer_start("copy=auto", leave_a_child);
    struct end *e = &p.mine;
    pid_t grandchild;
    int status;
    hear(p.fd, &grandchild, sizeof(grandchild));
    kill(p.pid, SIGKILL);
    assert_int_equal(waitpid(p.pid, &status, 0), p.pid);
    struct ibv_sge sge = {(uintptr_t)e->buffer, 64, e->mr->lkey};
    struct ibv_send_wr wr = end_wr(IBV_WR_RDMA_WRITE, 1, &sge, p.address, 0);
    assert_int_equal(end_post(e, &wr), 0);
    cq_expect(e->send_cq, 1, IBV_WC_RETRY_EXC_ERR);
    kill(grandchild, SIGKILL);
    struct ibv_context *context = e->context;
    end_close(e);
    nic.ibv_close_device(context);
    close(p.fd);
}

/* Killed in the middle of a stream of writes, wherever that is. */
CASE(peer_dies_under_load)
{
    for (int attempt = 0; attempt < 5; attempt++) {
        struct peer p = peer_start(attempt % 2 ? "copy=stream" : "copy=auto", wait_until_over);
        struct end *e = &p.mine;
        struct ibv_sge sge = {(uintptr_t)e->buffer, CHUNK, e->mr->lkey};
        struct ibv_send_wr wr = end_wr(IBV_WR_RDMA_WRITE, 0, &sge, p.address, 0);
        enum ibv_wc_status status = IBV_WC_SUCCESS;
        unsigned posted = 0, done = 0;
        double end = test_seconds() + 20, kill_at = test_seconds() + 0.02 + attempt * 0.007;
        bool killed = false;
        while (status == IBV_WC_SUCCESS && test_seconds() < end) {
            while (posted - done < 16 && !end_post(e, &wr))
                posted++;
            struct ibv_wc wc[16];
            int n = ibv_poll_cq(e->send_cq, 16, wc);
            for (int i = 0; i < n && status == IBV_WC_SUCCESS; i++, done++)
                status = wc[i].status;
            if (!killed && test_seconds() > kill_at) {
                kill(p.pid, SIGKILL);
                killed = true;
            }
        }
        assert_int_equal(status, IBV_WC_RETRY_EXC_ERR);
        int exit_status;
        waitpid(p.pid, &exit_status, 0);
        struct ibv_context *context = e->context;
        end_close(e);
        nic.ibv_close_device(context);
        close(p.fd);
    }
}

/* Silent for ever: an error within the bound. Silent for less than the retries: nothing lost,
 * nothing twice. */
CASE(dropped_peer)
{
    struct peer p = peer_start("copy=auto", wait_until_over);
    struct end *e = &p.mine;
    uint64_t *result = (uint64_t *)(void *)e->buffer;
    for (uint64_t round = 0; round < 100; round++) {
        struct ibv_sge sge = {(uintptr_t)e->buffer, 8, e->mr->lkey};
        struct ibv_send_wr wr = end_wr(IBV_WR_ATOMIC_FETCH_AND_ADD, round, &sge, p.address, 0);
        wr.wr.atomic.remote_addr = p.address.buffer;
        wr.wr.atomic.rkey = p.address.rkey;
        wr.wr.atomic.compare_add = 1;
        assert_int_equal(end_post(e, &wr), 0);
        if (round % 5 == 0) { /* now the answer may be lost, or the request, or neither */
            for (int spin = (int)(random() % 2000); spin; spin--)
                __asm__ volatile("");
            nic_configure("drop-peer=soft1");
            nic_configure("drop-peer=none");
        }
        cq_expect(e->send_cq, round, IBV_WC_SUCCESS);
        assert_int_equal(*result, round); /* each was added exactly once */
    }
    nic_configure("drop-peer=soft1");
    struct ibv_sge sge = {(uintptr_t)e->buffer, 8, e->mr->lkey};
    struct ibv_send_wr wr = end_wr(IBV_WR_RDMA_WRITE, 1000, &sge, p.address, 64);
    double start = test_seconds();
    assert_int_equal(end_post(e, &wr), 0);
    cq_expect(e->send_cq, 1000, IBV_WC_RETRY_EXC_ERR);
    double took = test_seconds() - start;
    assert_true(took > 0.045 && took < 10);
    nic_configure("drop-peer=none");
    peer_end(&p, 0);
}

/* Best of three, or of up to twelve while it is less than `enough`: others may be using the
 * cores. */
static double bandwidth(const char *options, double enough)
{
    struct peer p = peer_start(options, wait_until_over);
    struct end *e = &p.mine;
    const unsigned total = 1000;
    double best = 0;
    unsigned trials = 0;
    memset(e->buffer, 5, SIZE);
    while (trials < 3 || (trials < 12 && best < enough)) {
        unsigned posted = 0, done = 0;
        trials++;
        double start = test_seconds();
        while (done < total) {
            while (posted < total && posted - done < 32) {
                uint64_t offset = posted % 31 * CHUNK;
                struct ibv_sge sge = {(uintptr_t)e->buffer + offset, CHUNK, e->mr->lkey};
                struct ibv_send_wr wr = end_wr(IBV_WR_RDMA_WRITE, posted, &sge, p.address, offset);
                assert_int_equal(end_post(e, &wr), 0);
                posted++;
            }
            struct ibv_wc wc[16];
            int n = ibv_poll_cq(e->send_cq, 16, wc);
            for (int i = 0; i < n; i++)
                assert_int_equal(wc[i].status, IBV_WC_SUCCESS);
            done += (unsigned)n;
            assert_true(test_seconds() - start < 30);
        }
        double rate = (double)total * CHUNK / (test_seconds() - start) * 1e-9;
        best = rate > best ? rate : best;
    }
    struct softnic_counters counters;
    assert_int_equal(nic.softnic_counters(e->context, e->qp->qp_num, &counters), 0);
    assert_int_equal(counters.sent_bytes, (uint64_t)trials * total * CHUNK);
    assert_int_equal(counters.sent_messages, trials * total);
    assert_int_equal(counters.retransmissions, 0);
    peer_end(&p, 0);
    return best;
}

CASE(bandwidth_of_256k_writes)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    print_message("skipped: a sanitizer's speed says nothing\n");
    skip();
#endif
    double load[1] = {0}, direct = bandwidth("copy=direct", 2.0),
           stream = bandwidth("copy=stream", 0);
    print_message(
        "256 KB writes: %.2f GB/s out of the peer's memory, %.2f GB/s through the socket\n", direct,
        stream);
    if (direct < 2.0 && getloadavg(load, 1) == 1 &&
        load[0] > (double)sysconf(_SC_NPROCESSORS_ONLN)) {
        print_message("skipped: the machine is busy (load %.1f)\n", load[0]);
        skip();
    }
    assert_true(direct >= 2.0);
}
