/* Every error of a softnic connection ends in the status that a real device reports, on both sides,
 * and nothing that was refused has touched memory. */
#define OWN_MAIN
#include "softnic_load.h"

static struct ibv_context *context,
    *other; /* two devices: errors and events of one do not show on the other */
static struct end a, b;
static struct address to_b;

static int setup(void **state)
{
    nic_load();
    context = nic_open(0);
    other = nic_open(1);
    return 0;
}

static int teardown(void **state)
{
    return nic.ibv_close_device(context) | nic.ibv_close_device(other);
}

static int open_pair(void **state)
{
    a = end_new(context, 1 << 16);
    b = end_new(other, 1 << 16);
    memset(a.buffer, 0x11, a.size);
    memset(b.buffer, 0xee, b.size);
    to_b = end_address(&b);
    return 0;
}

static int open_connected(void **state)
{
    open_pair(state);
    ends_connect(&a, &b);
    return 0;
}

static int close_pair(void **state)
{
    end_close(&a);
    end_close(&b);
    return 0;
}

static void expect_untouched(void)
{
    for (size_t i = 0; i < b.size; i++)
        assert_int_equal(b.buffer[i], 0xee);
}

/* The bad request fails with `status`, what follows it is flushed, and both QPs are in error. */
static void fails_with(struct ibv_send_wr *bad, enum ibv_wc_status status)
{
    struct ibv_sge sge = {(uintptr_t)a.buffer, 8, a.mr->lkey};
    struct ibv_send_wr good = end_wr(IBV_WR_RDMA_WRITE, 1, &sge, to_b, 65528), after = good;
    good.next = bad;
    bad->wr_id = 2;
    bad->send_flags &= ~(unsigned)IBV_SEND_SIGNALED; /* errors are reported all the same */
    bad->next = &after;
    after.wr_id = 3;
    after.send_flags = 0;
    memset(b.buffer + 65528, 0x11, 8);
    assert_int_equal(end_post(&a, &good), 0);
    cq_expect(a.send_cq, 1, IBV_WC_SUCCESS);
    cq_expect(a.send_cq, 2, status);
    cq_expect(a.send_cq, 3, IBV_WC_WR_FLUSH_ERR);
    assert_int_equal(end_state(&a), IBV_QPS_ERR);
    memset(b.buffer + 65528, 0xee, 8);
    expect_untouched();
}

static void access_fails(struct ibv_send_wr *wr)
{
    assert_int_equal(end_receive(&b, 50, 0, 64), 0);
    fails_with(wr, IBV_WC_REM_ACCESS_ERR);
    cq_expect(b.recv_cq, 50, IBV_WC_WR_FLUSH_ERR);
    assert_int_equal(end_state(&b), IBV_QPS_ERR);
    async_expect(&b, IBV_EVENT_QP_ACCESS_ERR);
}

static struct ibv_sge sge8(void)
{
    return (struct ibv_sge){(uintptr_t)a.buffer, 8, a.mr->lkey};
}

CASE(bounds)
{
    static const struct {
        int64_t offset;
        uint32_t length;
    } wrong[] = {{65536, 1}, {65529, 8}, {-1, 8}, {-8, 8}, {0, 65537}, {1, 65536}, {1 << 20, 8}};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        open_connected(state);
        struct end large = end_new(context, 1 << 17);
        struct ibv_sge sge = {(uintptr_t)large.buffer, wrong[i].length, 0};
        struct ibv_mr *mr = nic.ibv_reg_mr(a.pd, large.buffer, large.size, NIC_ALL);
        sge.lkey = mr->lkey;
        struct ibv_send_wr wr = end_wr(i % 2 ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE, 2, &sge, to_b,
                                       (uint64_t)wrong[i].offset);
        access_fails(&wr);
        nic.ibv_dereg_mr(mr);
        end_close(&large);
        close_pair(state);
    }
}

CASE_WITH(wrong_rkey, open_connected, close_pair)
{
    struct ibv_sge sge = sge8();
    struct ibv_send_wr wr = end_wr(IBV_WR_RDMA_WRITE, 2, &sge, to_b, 0);
    wr.wr.rdma.rkey = b.mr->lkey; /* a local key opens nothing from outside */
    access_fails(&wr);
}

CASE_WITH(rkey_of_another_domain, open_connected, close_pair)
{
    struct ibv_pd *pd = nic.ibv_alloc_pd(other);
    struct ibv_mr *mr = nic.ibv_reg_mr(pd, b.buffer, b.size, NIC_ALL);
    struct ibv_sge sge = sge8();
    struct ibv_send_wr wr = end_wr(IBV_WR_RDMA_WRITE, 2, &sge, to_b, 0);
    wr.wr.rdma.rkey = mr->rkey;
    access_fails(&wr);
    nic.ibv_dereg_mr(mr);
    nic.ibv_dealloc_pd(pd);
}

CASE(region_without_permission)
{
    static const struct {
        enum ibv_wr_opcode opcode;
        int missing;
    } cases[] = {{IBV_WR_RDMA_WRITE, IBV_ACCESS_REMOTE_WRITE},
                 {IBV_WR_RDMA_READ, IBV_ACCESS_REMOTE_READ},
                 {IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_ACCESS_REMOTE_ATOMIC}};
    for (int by_qp = 0; by_qp < 2; by_qp++)
        for (int i = 0; i < 3; i++) {
            open_pair(state);
            struct ibv_mr *mr = nic.ibv_reg_mr(b.pd, b.buffer, b.size,
                                               by_qp ? NIC_ALL : NIC_ALL & ~cases[i].missing);
            b.access = by_qp ? NIC_ALL & ~cases[i].missing : NIC_ALL;
            if (by_qp && cases[i].missing == IBV_ACCESS_REMOTE_WRITE)
                b.access |= IBV_ACCESS_LOCAL_WRITE;
            ends_connect(&a, &b);
            struct ibv_sge sge = sge8();
            struct ibv_send_wr wr = end_wr(cases[i].opcode, 2, &sge, to_b, 0);
            if (cases[i].opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
                wr.wr.atomic.remote_addr = to_b.buffer;
                wr.wr.atomic.rkey = mr->rkey;
                wr.wr.atomic.compare_add = 1;
            } else {
                wr.wr.rdma.rkey = mr->rkey;
            }
            if (!(by_qp && cases[i].missing == IBV_ACCESS_REMOTE_WRITE)) {
                access_fails(&wr);
            } else { /* the write that access_fails sends first is refused already */
                assert_int_equal(end_post(&a, &wr), 0);
                cq_expect(a.send_cq, 2, IBV_WC_REM_ACCESS_ERR);
                expect_untouched();
            }
            nic.ibv_dereg_mr(mr);
            close_pair(state);
        }
}

CASE(local_key)
{
    /* a key that does not exist; a remote key; outside of the region; a READ into a region without
     * local write */
    for (int i = 0; i < 4; i++) {
        open_connected(state);
        struct ibv_mr *read_only = nic.ibv_reg_mr(a.pd, a.buffer, a.size, 0);
        struct ibv_sge sge[2] = {sge8(), sge8()};
        struct ibv_send_wr wr =
            end_wr(i == 3 ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE, 2, sge, to_b, 0);
        wr.num_sge = 2;
        if (i == 0)
            sge[1].lkey = 0xffff00;
        else if (i == 1)
            sge[1].lkey = a.mr->rkey;
        else if (i == 2)
            sge[1].addr += a.size - 7;
        else
            sge[1].lkey = read_only->lkey;
        fails_with(&wr, IBV_WC_LOC_PROT_ERR);
        assert_int_equal(end_state(&b), IBV_QPS_RTS); /* the peer has not heard of it */
        nic.ibv_dereg_mr(read_only);
        close_pair(state);
    }
}

CASE_WITH(receive_too_small, open_connected, close_pair)
{
    assert_int_equal(end_receive(&b, 50, 0, 7), 0);
    assert_int_equal(end_receive(&b, 51, 0, 64), 0);
    struct ibv_sge sge = sge8();
    struct ibv_send_wr wr = end_wr(IBV_WR_SEND, 2, &sge, to_b, 0);
    fails_with(&wr, IBV_WC_REM_INV_REQ_ERR);
    cq_expect(b.recv_cq, 50, IBV_WC_LOC_LEN_ERR);
    cq_expect(b.recv_cq, 51, IBV_WC_WR_FLUSH_ERR);
    assert_int_equal(end_state(&b), IBV_QPS_ERR);
}

CASE_WITH(receive_key, open_connected, close_pair)
{
    struct ibv_sge to = {(uintptr_t)b.buffer, 64, b.mr->rkey}, from = sge8();
    struct ibv_recv_wr recv = {.wr_id = 50, .sg_list = &to, .num_sge = 1}, *bad;
    assert_int_equal(ibv_post_recv(b.qp, &recv, &bad), 0);
    struct ibv_send_wr wr = end_wr(IBV_WR_SEND, 2, &from, to_b, 0);
    fails_with(&wr, IBV_WC_REM_OP_ERR);
    cq_expect(b.recv_cq, 50, IBV_WC_LOC_PROT_ERR);
    assert_int_equal(end_state(&b), IBV_QPS_ERR);
}

CASE_WITH(misaligned_atomic, open_connected, close_pair)
{
    struct ibv_sge sge = sge8();
    struct ibv_send_wr wr = end_wr(IBV_WR_ATOMIC_FETCH_AND_ADD, 2, &sge, to_b, 0);
    wr.wr.atomic.remote_addr = to_b.buffer + 4;
    wr.wr.atomic.rkey = to_b.rkey;
    fails_with(&wr, IBV_WC_REM_INV_REQ_ERR);
    async_expect(&b, IBV_EVENT_QP_REQ_ERR);
}

/* Until `a` has sent something again. */
static void wait_for_retry(void)
{
    struct softnic_counters counters = {0};
    for (double end = test_seconds() + 10; !counters.retransmissions && test_seconds() < end;
         usleep(500))
        assert_int_equal(nic.softnic_counters(context, a.qp->qp_num, &counters), 0);
    assert_true(counters.retransmissions > 0);
}

/* A receive that is late is waited for; one that never comes ends after rnr_retry tries. */
CASE_WITH(receiver_not_ready, open_pair, close_pair)
{
    a.rnr_retry = 7; /* without end: however late this thread posts the receive */
    b.min_rnr_timer = 14;
    ends_connect(&a, &b);
    struct ibv_sge sge = sge8();
    struct ibv_send_wr wr = end_wr(IBV_WR_SEND, 1, &sge, to_b, 0);
    assert_int_equal(end_post(&a, &wr), 0);
    wait_for_retry();
    assert_int_equal(end_receive(&b, 50, 0, 64), 0);
    cq_expect(a.send_cq, 1, IBV_WC_SUCCESS);
    cq_expect(b.recv_cq, 50, IBV_WC_SUCCESS);

    close_pair(state);
    open_pair(state);
    a.rnr_retry = 3;
    b.min_rnr_timer = 14; /* 1.28 ms */
    ends_connect(&a, &b);
    double start = test_seconds();
    sge = sge8();
    wr = end_wr(IBV_WR_SEND, 2, &sge, to_b, 0);
    assert_int_equal(end_post(&a, &wr), 0);
    cq_expect(a.send_cq, 2, IBV_WC_RNR_RETRY_EXC_ERR);
    assert_true(test_seconds() - start > 0.0038); /* three waits */
    struct softnic_counters counters;
    assert_int_equal(nic.softnic_counters(context, a.qp->qp_num, &counters), 0);
    assert_true(counters.retransmissions >= 3);
    assert_int_equal(end_state(&b), IBV_QPS_RTS);
}

/* A PSN that the other side does not expect, and a QP that is not there, look like silence. */
CASE(nobody_answers)
{
    for (int i = 0; i < 3; i++) {
        open_pair(state);
        struct address from_a = end_address(&a), wrong = to_b;
        if (i == 0)
            from_a.psn ^= 0x100;
        else if (i == 1)
            wrong.qpn ^= 0x7ff; /* the same process, another QP */
        else
            wrong.qpn ^= 0x7ff000; /* a context that does not exist */
        a.timeout = 10;            /* 4.2 ms */
        a.retry_cnt = 2;
        end_connect(&a, wrong);
        end_connect(&b, from_a);
        struct ibv_sge sge = sge8();
        struct ibv_send_wr wr = end_wr(IBV_WR_RDMA_WRITE, 2, &sge, to_b, 0);
        double start = test_seconds();
        assert_int_equal(end_post(&a, &wr), 0);
        cq_expect(a.send_cq, 2, IBV_WC_RETRY_EXC_ERR);
        double took = test_seconds() - start;
        assert_true(took > 3 * 0.00419 && took < 10);
        expect_untouched();
        close_pair(state);
    }
}

/* A peer that becomes ready within the retries loses nothing. */
CASE_WITH(late_peer, open_pair, close_pair)
{
    a.timeout = 14; /* 67 ms */
    a.retry_cnt = 7;
    end_connect(&a, to_b);
    struct ibv_sge sge = sge8();
    for (uint64_t i = 0; i < 20; i++) {
        struct ibv_send_wr wr = end_wr(IBV_WR_RDMA_WRITE, i, &sge, to_b, i * 8);
        assert_int_equal(end_post(&a, &wr), 0);
    }
    wait_for_retry();
    end_connect(&b, end_address(&a));
    for (uint64_t i = 0; i < 20; i++)
        cq_expect(a.send_cq, i, IBV_WC_SUCCESS);
    for (int i = 0; i < 160; i++)
        assert_int_equal(b.buffer[i], 0x11);
}

CASE_WITH(moved_to_error, open_connected, close_pair)
{
    for (uint64_t i = 0; i < 5; i++)
        assert_int_equal(end_receive(&a, i, 0, 64), 0);
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
    assert_int_equal(nic.ibv_modify_qp(a.qp, &attr, IBV_QP_STATE), 0);
    for (uint64_t i = 0; i < 5; i++)
        cq_expect(a.recv_cq, i, IBV_WC_WR_FLUSH_ERR);
    attr.qp_state = IBV_QPS_RESET; /* and it can be used again */
    assert_int_equal(nic.ibv_modify_qp(a.qp, &attr, IBV_QP_STATE), 0);
    assert_int_equal(nic.ibv_modify_qp(b.qp, &attr, IBV_QP_STATE), 0);
    ends_connect(&a, &b);
    struct ibv_sge sge = sge8();
    struct ibv_send_wr wr = end_wr(IBV_WR_RDMA_WRITE, 7, &sge, to_b, 0);
    assert_int_equal(end_post(&a, &wr), 0);
    cq_expect(a.send_cq, 7, IBV_WC_SUCCESS);
}

CASE_WITH(overrun, open_pair, close_pair)
{
    struct ibv_cq *small = nic.ibv_create_cq(context, 4, NULL, NULL, 0);
    struct ibv_qp_init_attr init = {.send_cq = small,
                                    .recv_cq = small,
                                    .qp_type = IBV_QPT_RC,
                                    .cap = {64, 1, 1, 1, 0},
                                    .sq_sig_all = 1};
    struct end c = a;
    c.qp = nic.ibv_create_qp(a.pd, &init);
    end_connect(&c, to_b);
    end_connect(&b, end_address(&c));
    struct ibv_sge sge = sge8();
    struct ibv_send_wr wr = end_wr(IBV_WR_RDMA_WRITE, 1, &sge, to_b, 0);
    wr.send_flags = 0; /* all of them are signaled by sq_sig_all */
    for (int i = 0; i < small->cqe + 1; i++)
        assert_int_equal(end_post(&c, &wr), 0);
    async_expect(&c, IBV_EVENT_CQ_ERR);
    async_expect(&c, IBV_EVENT_QP_FATAL);
    assert_int_equal(end_state(&c), IBV_QPS_ERR);
    nic.ibv_destroy_qp(c.qp);
    assert_int_equal(nic.ibv_destroy_cq(small), 0);
}

CASE_WITH(drained, open_connected, close_pair)
{
    struct ibv_sge sge = sge8();
    struct ibv_send_wr wr = end_wr(IBV_WR_RDMA_WRITE, 1, &sge, to_b, 0);
    assert_int_equal(end_post(&a, &wr), 0);
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1};
    assert_int_equal(nic.ibv_modify_qp(a.qp, &attr, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY), 0);
    async_expect(&a, IBV_EVENT_SQ_DRAINED);
    cq_expect(a.send_cq, 1, IBV_WC_SUCCESS);
    wr.wr_id = 2;
    assert_int_equal(end_post(&a, &wr), 0); /* waits */
    assert_true(cq_silent(a.send_cq, 10));
    attr.qp_state = IBV_QPS_RTS;
    assert_int_equal(nic.ibv_modify_qp(a.qp, &attr, IBV_QP_STATE), 0);
    cq_expect(a.send_cq, 2, IBV_WC_SUCCESS);
}

int main(void)
{
    return cmocka_run_group_tests(test_cases, setup, teardown);
}
