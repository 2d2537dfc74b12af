/* softnic is as slow as it is told to be, fails when it is told to, and refuses a string that it
 * does not understand. */
#define OWN_MAIN
#include "tests/helpers/softnic_pair.h"

static int close_pair(void **state)
{
    nic_configure("bw=unlimited,latency=0ns,delay=0ns,fail-wr=none,drop-peer=none,only=all,seed=1");
    end_close(&a);
    end_close(&b);
    return 0;
}

static double timed(enum ibv_wr_opcode opcode, uint32_t length, int count)
{
    double start = test_seconds();
    for (int i = 0; i < count; i++) {
        struct ibv_sge sge = {(uintptr_t)a.buffer, length, a.mr->lkey};
        struct ibv_send_wr wr = end_wr(opcode, (uint64_t)i, &sge, to_b, 0);
        assert_int_equal(end_post(&a, &wr), 0);
    }
    for (int i = 0; i < count; i++)
        cq_expect(a.send_cq, (uint64_t)i, IBV_WC_SUCCESS);
    return test_seconds() - start;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
static const double slack = 4;
#else
static const double slack = 1.4;
#endif

/* The lower bound is exact. The upper one leaves room for a busy machine, so the best of some runs
 * counts. */
static void takes(enum ibv_wr_opcode opcode, uint32_t length, int count, double expected)
{
    double best = 1e9;
    for (int i = 0; i < 60 && best > expected * slack; i++) {
        double took = timed(opcode, length, count);
        if (took < expected * 0.999)
            fail_msg("%d x %u bytes took %.3f ms, at least %.3f expected", count, length,
                     took * 1e3, expected * 1e3);
        best = took < best ? took : best;
    }
    double load[1] = {0};
    if (best > expected * slack && getloadavg(load, 1) == 1 &&
        load[0] > 2 * (double)sysconf(_SC_NPROCESSORS_ONLN)) {
        print_message("skipped: the machine is busy (load %.1f)\n", load[0]);
        skip();
    }
    if (best > expected * slack)
        fail_msg("%d x %u bytes took %.3f ms, about %.3f expected", count, length, best * 1e3,
                 expected * 1e3);
}

CASE_WITH(bandwidth, pair_connect, close_pair)
{
    nic_configure("bw=500MB/s");
    takes(IBV_WR_RDMA_WRITE, 262144, 80, 80 * 262144 / 500e6);
    takes(IBV_WR_RDMA_READ, 262144, 80, 80 * 262144 / 500e6);
    nic_configure("bw=800Mb/s"); /* bits */
    takes(IBV_WR_RDMA_WRITE, 100000, 20, 20 * 100000 / 100e6);
}

/* Two QPs of a device share its wire. */
CASE_WITH(shared_wire, pair_connect, close_pair)
{
    struct end c = end_new(context, 1 << 20), d = end_new(context, 1 << 20);
    ends_connect(&c, &d);
    struct address to_d = end_address(&d);
    nic_configure("bw=100MB/s");
    double start = test_seconds();
    for (int i = 0; i < 2; i++) {
        struct end *e = i ? &c : &a;
        struct ibv_sge sge = {(uintptr_t)e->buffer, 1000000, e->mr->lkey};
        struct ibv_send_wr wr = end_wr(IBV_WR_RDMA_WRITE, 1, &sge, i ? to_d : to_b, 0);
        assert_int_equal(end_post(e, &wr), 0);
    }
    cq_expect(a.send_cq, 1, IBV_WC_SUCCESS);
    cq_expect(c.send_cq, 1, IBV_WC_SUCCESS);
    assert_true(test_seconds() - start > 0.01999);
    end_close(&c);
    end_close(&d);
}

/* One device of several is slow, delays, or fails; the others do not. */
CASE_WITH(one_device, pair_connect, close_pair)
{
    nic_configure("bw=10MB/s,latency=20ms,fail-wr=REM_OP_ERR@2,only=soft1");
    double best = 1e9;
    for (int i = 0; i < 60 && best >= 0.02; i++) { /* on soft0 */
        double took = timed(IBV_WR_RDMA_WRITE, 100000, 8);
        best = took < best ? took : best;
    }
    assert_true(best < 0.02);
    nic_configure("only=soft0,fail-wr=none,latency=0ns");
    takes(IBV_WR_RDMA_WRITE, 100000, 8, 0.08);
    struct ibv_context *other = nic_open(1);
    struct end c = end_new(other, 1 << 20), d = end_new(other, 1 << 20);
    ends_connect(&c, &d);
    struct ibv_sge sge = {(uintptr_t)c.buffer, 1000000, c.mr->lkey};
    struct ibv_send_wr wr = end_wr(IBV_WR_RDMA_WRITE, 1, &sge, end_address(&d), 0);
    best = 1e9;
    for (int i = 0; i < 60 && best >= 0.05; i++) {
        double start = test_seconds(), took;
        assert_int_equal(end_post(&c, &wr), 0);
        cq_expect(c.send_cq, 1, IBV_WC_SUCCESS);
        took = test_seconds() - start;
        best = took < best ? took : best;
    }
    assert_true(best < 0.05); /* opened with the option set: 100 ms were it for all */
    end_close(&c);
    end_close(&d);
    assert_int_equal(nic.ibv_close_device(other), 0);
}

/* A write's completion needs the way there and the way back, and messages in flight do not wait for
 * each other. */
CASE_WITH(latency, pair_connect, close_pair)
{
    nic_configure("latency=10ms");
    takes(IBV_WR_RDMA_WRITE, 8, 1, 0.020);
    takes(IBV_WR_RDMA_WRITE, 8, 50, 0.020);
    takes(IBV_WR_RDMA_READ, 8, 1, 0.020);
}

/* The data is not there before the latency is over. */
CASE_WITH(arrives_after_latency, pair_connect, close_pair)
{
    nic_configure("latency=20ms");
    uint64_t one = 1, *flag = (uint64_t *)(void *)b.buffer;
    struct ibv_sge sge = {(uintptr_t)&one, 8, 0};
    struct ibv_send_wr wr = end_wr(IBV_WR_RDMA_WRITE, 1, &sge, to_b, 0);
    wr.send_flags |= IBV_SEND_INLINE;
    double start = test_seconds();
    assert_int_equal(end_post(&a, &wr), 0);
    while (!__atomic_load_n(flag, __ATOMIC_ACQUIRE))
        assert_true(test_seconds() - start < 10);
    assert_true(test_seconds() - start > 0.01999);
    cq_expect(a.send_cq, 1, IBV_WC_SUCCESS);
    assert_true(test_seconds() - start > 0.03999);
}

/* Bit i is set when message i took at least `seconds`. */
static uint32_t slow_messages(const char *options, double seconds, int count)
{
    uint32_t slow = 0;
    nic_configure("delay=0ns,seed=9"); /* from the beginning, also after other tests */
    nic_configure(options);
    for (int i = 0; i < count; i++)
        if (timed(IBV_WR_RDMA_WRITE, 8, 1) > seconds * 0.999)
            slow |= 1u << i;
    return slow;
}

CASE_WITH(delay, pair_connect, close_pair)
{
    uint32_t slow = 0;
    for (int i = 0; i < 10 && slow != 1u << 2;
         i++) { /* a busy machine may be slow elsewhere too, but not every time */
        slow = slow_messages("delay=30ms@3", 0.030, 5);
        assert_true(slow & 1u << 2);
    }
    assert_int_equal(slow, 1u << 2);
    /* A delayed message holds back what is behind it on its QP: the order stays. */
    nic_configure("delay=0ns");
    nic_configure("delay=30ms@1");
    assert_true(timed(IBV_WR_RDMA_WRITE, 8, 10) > 0.02999);
}

/* Those that are slow every time: a busy machine makes others slow, but not the same ones. */
static uint32_t always_slow(const char *options)
{
    uint32_t slow = ~0u;
    for (int i = 0; i < 4; i++)
        slow &= slow_messages(options, 0.020, 24);
    return slow;
}

/* The same seed picks the same messages, another one others. */
CASE_WITH(seeded_delay, pair_connect, close_pair)
{
    uint32_t first = 0, second = 1, other = always_slow("delay=20ms~0.3,seed=8");
    for (int i = 0; i < 5 && first != second; i++) {
        first = always_slow("delay=20ms~0.3,seed=7");
        second = always_slow("delay=20ms~0.3,seed=7");
    }
    assert_int_equal(first, second);
    assert_int_not_equal(first, other);
    assert_in_range(__builtin_popcount(first), 2, 14);
}

CASE_WITH(failed_request, pair_connect, close_pair)
{
    nic_configure("fail-wr=REM_OP_ERR@3");
    struct ibv_sge sge = {(uintptr_t)a.buffer, 8, a.mr->lkey};
    for (uint64_t i = 1; i <= 5; i++) {
        struct ibv_send_wr wr = end_wr(IBV_WR_RDMA_WRITE, i, &sge, to_b, 0);
        assert_int_equal(end_post(&a, &wr), 0);
    }
    cq_expect(a.send_cq, 1, IBV_WC_SUCCESS);
    cq_expect(a.send_cq, 2, IBV_WC_SUCCESS);
    cq_expect(a.send_cq, 3, IBV_WC_REM_OP_ERR);
    cq_expect(a.send_cq, 4, IBV_WC_WR_FLUSH_ERR);
    cq_expect(a.send_cq, 5, IBV_WC_WR_FLUSH_ERR);
    assert_int_equal(end_state(&a), IBV_QPS_ERR);
}

/* The device goes silent after so many messages. */
CASE_WITH(drop_after, pair_connect, close_pair)
{
    nic_configure("drop-peer=soft0@5");
    struct ibv_sge sge = {(uintptr_t)a.buffer, 8, a.mr->lkey};
    for (uint64_t i = 1; i <= 7; i++) {
        struct ibv_send_wr wr = end_wr(IBV_WR_RDMA_WRITE, i, &sge, to_b, 0);
        assert_int_equal(end_post(&a, &wr), 0);
        if (i < 5)
            cq_expect(a.send_cq, i, IBV_WC_SUCCESS);
    }
    cq_expect(a.send_cq, 5, IBV_WC_RETRY_EXC_ERR);
    cq_expect(a.send_cq, 6, IBV_WC_WR_FLUSH_ERR);
    cq_expect(a.send_cq, 7, IBV_WC_WR_FLUSH_ERR);
}

/* The link breaks at any moment and comes back within the retries: every message arrives once, in
 * order. */
CASE_WITH(broken_link, pair_connect, close_pair)
{
    enum { MESSAGES = 400 };
    struct ibv_context *there = nic_open(1);
    struct end near = end_new(context, 1 << 16), far = end_new(there, 1 << 16);
    near.retry_cnt = 7;
    ends_connect(&near, &far);
    uint32_t sent = 0, done = 0, received = 0;
    struct softnic_counters counters = {0};
    for (double end = test_seconds() + 30; received < sent || done < sent || !sent;) {
        assert_true(test_seconds() < end);
        assert_int_equal(nic.softnic_counters(context, near.qp->qp_num, &counters), 0);
        /* As many more as it takes until a break has caught one on its way. */
        while ((sent < MESSAGES || !counters.retransmissions) && sent - done < 16) {
            assert_int_equal(end_receive(&far, sent, sent % 64 * 8, 8), 0);
            uint64_t value = sent;
            struct ibv_sge sge = {(uintptr_t)&value, 8, 0};
            struct ibv_send_wr wr =
                end_wr(IBV_WR_SEND_WITH_IMM, sent, &sge, (struct address){0}, 0);
            wr.imm_data = sent++;
            wr.send_flags |= IBV_SEND_INLINE;
            assert_int_equal(end_post(&near, &wr), 0);
            if (random() % 8 == 0) {
                nic_configure("drop-peer=soft1");
                nic_configure("drop-peer=none");
            }
        }
        struct ibv_wc wc;
        if (ibv_poll_cq(near.send_cq, 1, &wc)) {
            assert_int_equal(wc.status, IBV_WC_SUCCESS);
            assert_int_equal(wc.wr_id, done++);
        }
        if (ibv_poll_cq(far.recv_cq, 1, &wc)) {
            assert_int_equal(wc.status, IBV_WC_SUCCESS);
            assert_int_equal(wc.wr_id, received);
            assert_int_equal(wc.imm_data, received);
            assert_int_equal(*(uint64_t *)(void *)(far.buffer + received % 64 * 8), received);
            received++;
        }
    }
    assert_true(cq_silent(far.recv_cq, 5));
    assert_true(counters.retransmissions > 0);
    end_close(&near);
    end_close(&far);
    nic.ibv_close_device(there);
}

CASE_WITH(counters, pair_connect, close_pair)
{
    struct softnic_counters before, after, qp;
    assert_int_equal(nic.softnic_counters(context, 0, &before), 0);
    timed(IBV_WR_RDMA_WRITE, 1000, 7);
    timed(IBV_WR_RDMA_READ, 300, 2);
    assert_int_equal(nic.softnic_counters(context, a.qp->qp_num, &qp), 0);
    assert_int_equal(qp.sent_bytes, 7000);
    assert_int_equal(qp.sent_messages, 9);
    assert_int_equal(qp.received_bytes, 600);
    assert_int_equal(nic.softnic_counters(context, b.qp->qp_num, &qp), 0);
    assert_int_equal(qp.received_bytes, 7000);
    assert_int_equal(qp.received_messages, 7);
    assert_int_equal(qp.sent_bytes, 600);
    assert_int_equal(nic.softnic_counters(context, 0, &after), 0);
    assert_int_equal(after.sent_bytes - before.sent_bytes, 7600);
    assert_int_equal(nic.softnic_counters(context, a.qp->qp_num ^ 0x800, &qp), -ENOENT);
}

CASE_WITH(refused_strings, pair_connect, close_pair)
{
    static const char *const wrong[] = {
        "bw=50",
        "bw=50GB",
        "bw=-1GB/s",
        "bw=fast",
        "bw=0GB/s",
        "latency=3",
        "latency=3 us",
        "latency=us",
        "latency=3usx",
        "latency=1e3",
        "devices=0",
        "devices=65",
        "devices=two",
        "devices=2x",
        "drop-peer=1",
        "drop-peer=soft",
        "drop-peer=soft1@",
        "drop-peer=soft99",
        "fail-wr=3",
        "fail-wr=3:REM_OP_ERR",
        "fail-wr=FATAL_ERR@0",
        "fail-wr=NO_SUCH@3",
        "fail-wr=SUCCESS@3",
        "delay=1ms@0",
        "delay=1ms~2",
        "delay=1ms@1~1",
        "seed=x",
        "link=eth",
        "copy=fast",
        "colour=red",
        "bw",
        "=3",
        "bw=1GB/s,",
        ",",
        "seed=1,seed=2",
        "seed=18446744073709551616",
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        int error = nic.softnic_configure(wrong[i]);
        if (error != -EINVAL)
            fail_msg("\"%s\" was taken", wrong[i]);
        assert_memory_equal(nic.softnic_error(), "SOFTNIC: ", 9);
    }
    assert_true(timed(IBV_WR_RDMA_WRITE, 8, 1) < 5); /* none of them has changed anything */
    nic_configure("bw=1.5GB/s,latency=0.5us,devices=2,seed=3,link=ib,copy=auto,delay=0s");
    assert_string_equal(nic.softnic_error(), "");
}

/* Runs this program in an environment; what it says on stderr is in `said`. Returns its exit
 * status. */
static int run_with(const char *options, const char *mode, char *said, size_t size)
{
    char path[512], command[700];
    fflush(NULL);
    ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 1);
    path[length < 0 ? 0 : length] = 0;
    snprintf(command, sizeof(command), "SOFTNIC='%s' %s %s 2>&1 >/dev/null", options, path, mode);
    FILE *p = popen(command, "r");
    assert_non_null(p);
    said[fread(said, 1, size - 1, p)] = 0;
    int status = pclose(p);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* A wrong environment is an error of the first call, with its sentence, which goes to stderr once
 * where the program does not ask for it; the right one gives the devices. */
CASE(environment)
{
    static const char sentence[] = "SOFTNIC: latency=1: the value must be a time up to 60s with a "
                                   "unit: ns, us, ms or s; softnic "
                                   "shows no device\n";
    char said[1024];
    assert_int_equal(run_with("devices=3,efa=0,link=roce", "good", said, sizeof(said)), 0);
    assert_string_equal(said, "");
    assert_int_equal(run_with("devices=3,latency=1", "bad", said, sizeof(said)), 0);
    assert_string_equal(said, sentence);
    assert_int_equal(run_with("devices=3,latency=1", "asks", said, sizeof(said)), 0);
    assert_string_equal(said, "");
}

static int run_in_environment(const char *mode)
{
    int count = -1;
    nic_load();
    if (!strcmp(mode, "asks"))
        nic.softnic_silent();
    struct ibv_device **list = nic.ibv_get_device_list(&count);
    if (strcmp(mode, "good") != 0)
        return list || errno != EINVAL || count || !strstr(nic.softnic_error(), "latency=1") ||
               nic.ibv_get_device_list(&count); /* the second time it is not said again */
    struct ibv_port_attr port;
    struct ibv_context *roce = nic.ibv_open_device(list[2]);
    union ibv_gid gid;
    if (count != 3 || strcmp(nic.ibv_get_device_name(list[2]), "soft2") || !roce)
        return 1;
    if (verbs_get_ctx(roce)->query_port(roce, 1, &port, sizeof(port)) ||
        port.link_layer != IBV_LINK_LAYER_ETHERNET || port.lid)
        return 2;
    /* on Ethernet a path without a global route is refused, and one with it connects */
    struct end x = end_new(roce, 4096), y = end_new(roce, 4096);
    if (end_to_init(&x) || !end_to_rtr(&x, end_address(&y)))
        return 3;
    for (int index = 0; index < port.gid_tbl_len; index++) {
        struct end *ends[2] = {&x, &y};
        if (nic.ibv_query_gid(roce, 1, index, &gid))
            return 4;
        for (int i = 0; i < 2; i++) {
            struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};
            nic.ibv_modify_qp(ends[i]->qp, &attr, IBV_QP_STATE);
            attr = (struct ibv_qp_attr){
                .qp_state = IBV_QPS_RTR,
                .path_mtu = IBV_MTU_1024,
                .dest_qp_num = ends[!i]->qp->qp_num,
                .rq_psn = ends[!i]->psn,
                .ah_attr = {.port_num = 1,
                            .is_global = 1,
                            .grh = {.dgid = gid, .sgid_index = (uint8_t)index}}};
            if (end_to_init(ends[i]) ||
                nic.ibv_modify_qp(ends[i]->qp, &attr,
                                  IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                      IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
                                      IBV_QP_MIN_RNR_TIMER) ||
                end_to_rts(ends[i]))
                return 5;
        }
        struct ibv_sge sge = {(uintptr_t)x.buffer, 8, x.mr->lkey};
        struct ibv_send_wr wr = end_wr(IBV_WR_RDMA_WRITE, 1, &sge, end_address(&y), 0);
        if (end_post(&x, &wr) || cq_take(x.send_cq).status != IBV_WC_SUCCESS)
            return 6;
    }
    end_close(&x);
    end_close(&y);
    nic.ibv_free_device_list(list);
    return nic.ibv_close_device(roce);
}

int main(int argc, char **argv)
{
    if (argc == 2) /* the child of `environment` */
        return run_in_environment(argv[1]);
    return cmocka_run_group_tests(test_cases, setup, teardown);
}
