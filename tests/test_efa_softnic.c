/* softnic's EFA device keeps the rules of SRD: no order, every request completed once by itself,
 * ibv_wr_* only, one SGE for RDMA, no inline RDMA, receives taken by writes with immediate, and
 * address handles on both sides. */
#include "tests/helpers/efa_end.h"
#include "tests/helpers/sanitized.h"

#include <endian.h>

enum { SIZE = 4 << 20 };

static struct efa_end a, b;

static int pair(void **state)
{
    nic_configure(
        "reorder=2ms,fail-wr=none,drop-peer=none,efa-rdma=1073741824,efa-depth=4096,copy=auto");
    a = efa_open("softefa0", SIZE, EFA_DEPTH, 0);
    b = efa_open("softefa1", SIZE, EFA_DEPTH, 0);
    a.peer = efa_ah(&a, &b);
    b.peer = efa_ah(&b, &a);
    return 0;
}

static int part(void **state)
{
    efa_close(&a);
    efa_close(&b);
    return 0;
}

CASE_WITH(test_device, pair, part)
{
    struct efadv_device_attr attr;
    assert_int_equal(efa.query_device(a.context, &attr, sizeof attr), 0);
    assert_int_equal(attr.max_sq_wr, 4096);
    assert_int_equal(attr.max_rdma_size, 1u << 30);
    assert_int_equal(attr.inline_buf_size, 32);
    assert_true(attr.device_caps & EFADV_DEVICE_ATTR_CAPS_RNR_RETRY);
    nic_configure("efa-rdma=65536,efa-depth=64");
    assert_int_equal(efa.query_device(a.context, &attr, sizeof attr), 0);
    assert_int_equal(attr.max_rdma_size, 65536);
    assert_null(efa_qp(&a, 65, 0));
    assert_int_equal(efa.query_device(a.context, &attr, 8), EINVAL);
    nic_configure("efa-caps=write"); /* EFA's generations */
    assert_null(efa_qp(&a, 8, EFA_UNSOLICITED));
    assert_int_equal(errno, EOPNOTSUPP);
    nic_configure("efa-caps=read");
    assert_int_equal(efa.query_device(a.context, &attr, sizeof attr), 0);
    assert_false(attr.device_caps & 1 << 3);
    assert_null(efa_qp(&a, 8, 0)); /* with writes */
    nic_configure("efa-caps=unsolicited");

    struct ibv_context *rc = efa_device_open("soft0");
    struct ibv_pd *pd = nic.ibv_alloc_pd(rc);
    struct ibv_qp_init_attr init = {
        .qp_type = IBV_QPT_RC, .send_cq = a.send_cq, .recv_cq = a.recv_cq};
    assert_int_equal(efa.query_device(rc, &attr, sizeof attr), EOPNOTSUPP); /* not an EFA device */
    assert_null(efa.create_driver_qp(pd, &init, EFADV_QP_DRIVER_TYPE_SRD));
    assert_int_equal(errno, EOPNOTSUPP);
    assert_null(nic.ibv_create_qp(a.pd, &init)); /* and EFA has no RC */
    assert_int_equal(errno, EOPNOTSUPP);
    nic.ibv_dealloc_pd(pd);
    nic.ibv_close_device(rc);
}

/* Post-time refusals; none leaves anything in the queue. */
CASE_WITH(test_refused_requests, pair, part)
{
    struct ibv_sge sge[2] = {{(uintptr_t)a.buffer, 8, a.mr->lkey},
                             {(uintptr_t)a.buffer + 64, 8, a.mr->lkey}};
    struct ibv_send_wr wr = {.opcode = IBV_WR_SEND, .sg_list = sge, .num_sge = 1}, *bad = NULL;
    assert_int_equal(ibv_post_send(a.qp, &wr, &bad), EOPNOTSUPP);
    assert_ptr_equal(bad, &wr);
    assert_null(a.ex->wr_atomic_fetch_add);

    ibv_wr_start(a.ex); /* two SGEs */
    ibv_wr_rdma_write(a.ex, b.mr->rkey, (uintptr_t)b.buffer);
    ibv_wr_set_sge_list(a.ex, 2, sge);
    ibv_wr_set_ud_addr(a.ex, a.peer, b.qp->qp_num, EFA_QKEY);
    assert_int_equal(ibv_wr_complete(a.ex), EINVAL);

    ibv_wr_start(a.ex); /* inline RDMA */
    ibv_wr_rdma_write(a.ex, b.mr->rkey, (uintptr_t)b.buffer);
    ibv_wr_set_inline_data(a.ex, a.buffer, 8);
    ibv_wr_set_ud_addr(a.ex, a.peer, b.qp->qp_num, EFA_QKEY);
    assert_int_equal(ibv_wr_complete(a.ex), EINVAL);

    ibv_wr_start(a.ex); /* 33 bytes inline */
    ibv_wr_send(a.ex);
    ibv_wr_set_inline_data(a.ex, a.buffer, 33);
    ibv_wr_set_ud_addr(a.ex, a.peer, b.qp->qp_num, EFA_QKEY);
    assert_int_equal(ibv_wr_complete(a.ex), EINVAL);

    ibv_wr_start(a.ex); /* no target */
    ibv_wr_rdma_write(a.ex, b.mr->rkey, (uintptr_t)b.buffer);
    ibv_wr_set_sge(a.ex, a.mr->lkey, (uintptr_t)a.buffer, 8);
    assert_int_equal(ibv_wr_complete(a.ex), EINVAL);

    nic_configure("efa-rdma=4096");
    assert_int_equal(efa_write(&a, &b, 1, 0, 4097, 0), EINVAL);
    assert_int_equal(efa_receive(&b, 1, 0), EINVAL); /* a receive without an SGE */
    assert_true(cq_silent(a.send_cq, 5));
}

/* All arrive, once each and whole, and not in the order of their posting; nor do they complete in
 * it. */
CASE_WITH(test_no_order, pair, part)
{
    enum { N = 200, BYTES = 16384 };
    uint32_t displaced = 0, sent_displaced = 0;
    bool seen[N] = {false}, sent[N] = {false};
    for (size_t i = 0; i < N * BYTES / 8; i++)
        ((uint64_t *)(void *)a.buffer)[i] = i * 0x9e3779b97f4a7c15u + 1;
    for (uint32_t i = 0; i < N; i++)
        assert_int_equal(efa_receive(&b, i, 1), 0);
    for (uint32_t i = 0; i < N; i++)
        assert_int_equal(efa_write(&a, &b, i, i * BYTES, BYTES, i), 0);
    for (uint32_t i = 0; i < N; i++) {
        struct ibv_wc wc = cq_take(b.recv_cq);
        assert_int_equal(wc.status, IBV_WC_SUCCESS);
        assert_int_equal(wc.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
        assert_int_equal(wc.byte_len, BYTES);
        assert_int_equal(wc.src_qp, a.qp->qp_num);
        assert_int_equal(wc.wr_id, i); /* receives are taken in order */
        uint32_t which = be32toh(wc.imm_data);
        assert_true(which < N && !seen[which]);
        seen[which] = true;
        displaced += which != i;
        assert_memory_equal(b.buffer + which * BYTES, a.buffer + which * BYTES,
                            BYTES); /* whole when it is told */
    }
    for (uint32_t i = 0; i < N; i++) {
        struct ibv_wc wc = cq_take(a.send_cq);
        assert_int_equal(wc.status, IBV_WC_SUCCESS);
        assert_true(wc.wr_id < N && !sent[wc.wr_id]);
        sent[wc.wr_id] = true;
        sent_displaced += wc.wr_id != i;
    }
    assert_true(cq_silent(a.send_cq, 5) && cq_silent(b.recv_cq, 5));
    assert_true(displaced > N / 4 && sent_displaced > N / 4);
}

/* Bytes of a message come in any order: of one whose last fragment is refused, earlier ones may be
 * missing too. */
CASE_WITH(test_bytes_in_any_order, pair, part)
{
    enum { ROUNDS = 20, STEP = 4096, FRAGMENTS = 16 };
    const size_t from = SIZE - (FRAGMENTS - 1) * STEP;
    struct efa_end c = efa_open("softefa2", from + FRAGMENTS * STEP, EFA_DEPTH, 0);
    struct ibv_ah *back = efa_ah(&b, &c);
    uint32_t there = 0, missing = 0;
    c.peer = efa_ah(&c, &b);
    for (int round = 1; round <= ROUNDS; round++) {
        memset(c.buffer, round, c.size);
        assert_int_equal(efa_write(&c, &b, 1, from, FRAGMENTS * STEP, 0), 0);
        cq_expect(c.send_cq, 1, IBV_WC_REM_ACCESS_ERR);
        for (size_t at = from; at < SIZE; at += STEP) {
            there += b.buffer[at] == round && b.buffer[at + STEP - 1] == round;
            missing += b.buffer[at] != round && b.buffer[at + STEP - 1] != round;
        }
    }
    assert_int_equal(there + missing, ROUNDS * (FRAGMENTS - 1));
    assert_true(there > ROUNDS && missing > ROUNDS);
    efa.destroy_ah(back);
    efa_close(&c);
}

CASE_WITH(test_full_queue, pair, part)
{
    struct efa_end small = efa_open("softefa2", 4096, 8, 0);
    int posted = 0, error = 0;
    small.peer = efa_ah(&small, &b);
    struct ibv_ah *back = efa_ah(&b, &small);
    for (int i = 0; i < 64; i++)
        assert_int_equal(efa_receive(&b, (uint64_t)i, 1), 0);
    while (posted < 64 && !(error = efa_write(&small, &b, (uint64_t)posted, 0, 64, 0)))
        posted++;
    assert_int_equal(error, ENOMEM);
    /* completed or not: a slot is free when its completion has been polled */
    assert_int_equal(posted, 8);
    cq_take(small.send_cq);
    assert_int_equal(efa_write(&small, &b, 8, 0, 64, 0), 0);
    assert_int_equal(efa_write(&small, &b, 9, 0, 64, 0), ENOMEM);
    for (int i = 0; i < 8; i++)
        assert_int_equal(cq_take(small.send_cq).status, IBV_WC_SUCCESS);
    efa.destroy_ah(back);
    efa_close(&small);
}

CASE_WITH(test_receives_are_taken, pair, part)
{
    assert_int_equal(efa_write(&a, &b, 1, 0, 4096, 7), 0);
    assert_true(cq_silent(a.send_cq, 20)); /* waits for a receive: RNR retries without end */
    assert_int_equal(efa_receive(&b, 5, 1), 0);
    cq_expect(b.recv_cq, 5, IBV_WC_SUCCESS);
    cq_expect(a.send_cq, 1, IBV_WC_SUCCESS);
    assert_int_equal(efa_receive(&b, 6, 1), 0);
    ibv_wr_start(a.ex); /* without an immediate none is taken */
    a.ex->wr_id = 2;
    ibv_wr_rdma_write(a.ex, b.mr->rkey, (uintptr_t)b.buffer);
    ibv_wr_set_sge(a.ex, a.mr->lkey, (uintptr_t)a.buffer, 64);
    ibv_wr_set_ud_addr(a.ex, a.peer, b.qp->qp_num, EFA_QKEY);
    assert_int_equal(ibv_wr_complete(a.ex), 0);
    cq_expect(a.send_cq, 2, IBV_WC_SUCCESS);
    assert_true(cq_silent(b.recv_cq, 5));

    struct efa_end few = efa_open("softefa2", 4096, 8, 0),
                   open = efa_open("softefa3", 4096, 8, EFA_UNSOLICITED);
    few.peer = efa_ah(&few, &open);
    open.peer = efa_ah(&open, &few);
    assert_int_equal(efa_write(&few, &open, 3, 0, 64, 99), 0); /* unsolicited: none is needed */
    cq_expect(few.send_cq, 3, IBV_WC_SUCCESS);
    struct ibv_wc wc = cq_take(open.recv_cq);
    assert_int_equal(be32toh(wc.imm_data), 99);
    assert_int_equal(efa_to(&few, IBV_QPS_RESET, 0, 0), 0);
    assert_int_equal(efa_to(&few, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY, 0),
                     0);
    assert_int_equal(efa_to(&few, IBV_QPS_RTR, 0, 0), 0);
    assert_int_equal(efa_to(&few, IBV_QPS_RTS, IBV_QP_SQ_PSN | IBV_QP_RNR_RETRY, 1), 0);
    struct efa_end none = efa_open("softefa1", 4096, 8, 0); /* has no receive */
    none.peer = efa_ah(&none, &few);
    struct ibv_ah *to_none = efa_ah(&few, &none), *kept = few.peer;
    few.peer = to_none;
    assert_int_equal(efa_write(&few, &none, 4, 0, 64, 0), 0);
    cq_expect(few.send_cq, 4, IBV_WC_RNR_RETRY_EXC_ERR);
    few.peer = kept;
    efa.destroy_ah(to_none);
    efa_close(&none);
    efa_close(&few);
    efa_close(&open);
}

/* A target that does not know the writer refuses its write; a send needs no such knowledge. */
CASE_WITH(test_stranger, pair, part)
{
    assert_int_equal(efa.destroy_ah(b.peer), 0);
    b.peer = NULL;
    assert_int_equal(efa_receive(&b, 1, 1), 0);
    assert_int_equal(efa_write(&a, &b, 1, 0, SIZE, 7), 0);
    cq_expect(a.send_cq, 1, IBV_WC_REM_OP_ERR);
    ibv_wr_start(a.ex);
    a.ex->wr_id = 2;
    ibv_wr_send_imm(a.ex, htobe32(5));
    ibv_wr_set_inline_data(a.ex, a.buffer, 32);
    ibv_wr_set_ud_addr(a.ex, a.peer, b.qp->qp_num, EFA_QKEY);
    assert_int_equal(ibv_wr_complete(a.ex), 0);
    cq_expect(a.send_cq, 2, IBV_WC_SUCCESS);
    assert_int_equal(cq_take(b.recv_cq).slid, 0xffff);

    b.peer = efa_ah(&b, &a); /* and the QP goes on: errors are a request's own */
    assert_int_equal(efa_receive(&b, 2, 1), 0);
    assert_int_equal(efa_write(&a, &b, 3, 0, SIZE, 7), 0);
    cq_expect(a.send_cq, 3, IBV_WC_SUCCESS);
    struct efadv_ah_attr ah;
    assert_int_equal(efa.query_ah(b.peer, &ah, sizeof ah), 0);
    assert_int_equal(cq_take(b.recv_cq).slid, ah.ahn);
}

static int write_to(uint64_t id, uint32_t qpn, uint32_t qkey, uint32_t rkey, uint64_t address,
                    uint32_t lkey)
{
    ibv_wr_start(a.ex);
    a.ex->wr_id = id;
    ibv_wr_rdma_write(a.ex, rkey, address);
    ibv_wr_set_sge(a.ex, lkey, (uintptr_t)a.buffer, 8192);
    ibv_wr_set_ud_addr(a.ex, a.peer, qpn, qkey);
    return ibv_wr_complete(a.ex);
}

CASE_WITH(test_errors_are_the_requests_own, pair, part)
{
    uint32_t qpn = b.qp->qp_num, rkey = b.mr->rkey, lkey = a.mr->lkey;
    uint64_t there = (uintptr_t)b.buffer;
    const struct {
        uint32_t qpn, qkey, rkey;
        uint64_t address;
        uint32_t lkey;
        enum ibv_wc_status status;
    } cases[] = {{qpn, EFA_QKEY, rkey + 256, there, lkey, IBV_WC_REM_ACCESS_ERR},
                 {qpn, EFA_QKEY, rkey, there + SIZE - 100, lkey, IBV_WC_REM_ACCESS_ERR},
                 {qpn, EFA_QKEY + 1, rkey, there, lkey, IBV_WC_REM_INV_RD_REQ_ERR},
                 {qpn + 9, EFA_QKEY, rkey, there, lkey, IBV_WC_REM_INV_RD_REQ_ERR},
                 {qpn, EFA_QKEY, rkey, there, lkey + 256, IBV_WC_LOC_PROT_ERR},
                 {qpn, EFA_QKEY, rkey, there, lkey, IBV_WC_SUCCESS}};
    for (uint64_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(write_to(i, cases[i].qpn, cases[i].qkey, cases[i].rkey, cases[i].address,
                                  cases[i].lkey),
                         0);
        cq_expect(a.send_cq, i, cases[i].status);
    }
    nic_configure("fail-wr=REM_ABORT_ERR@2");
    for (uint64_t i = 0; i < 3; i++) {
        assert_int_equal(write_to(i, qpn, EFA_QKEY, rkey, there, lkey), 0);
        cq_expect(a.send_cq, i, i == 1 ? IBV_WC_REM_ABORT_ERR : IBV_WC_SUCCESS);
    }
    nic_configure("fail-wr=none");
    assert_int_equal(efa_to(&a, IBV_QPS_ERR, 0, 0), 0);
    assert_int_equal(write_to(9, qpn, EFA_QKEY, rkey, there, lkey), 0);
    cq_expect(a.send_cq, 9, IBV_WC_WR_FLUSH_ERR);
}

CASE_WITH(test_read, pair, part)
{
    for (int stream = 0; stream < 2; stream++) {
        nic_configure(stream ? "copy=stream" : "copy=auto");
        for (size_t i = 0; i < SIZE; i++)
            b.buffer[i] = (uint8_t)(i * 7 + (size_t)stream);
        memset(a.buffer, 0, SIZE);
        ibv_wr_start(a.ex);
        a.ex->wr_id = 4;
        ibv_wr_rdma_read(a.ex, b.mr->rkey, (uintptr_t)b.buffer);
        ibv_wr_set_sge(a.ex, a.mr->lkey, (uintptr_t)a.buffer, SIZE);
        ibv_wr_set_ud_addr(a.ex, a.peer, b.qp->qp_num, EFA_QKEY);
        assert_int_equal(ibv_wr_complete(a.ex), 0);
        cq_expect(a.send_cq, 4, IBV_WC_SUCCESS);
        assert_memory_equal(a.buffer, b.buffer, SIZE);
    }
}

CASE_WITH(test_lost_peer, pair, part)
{
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(efa_receive(&b, i, 1), 0);
    assert_int_equal(efa_write(&a, &b, 0, 0, 64, 0), 0);
    cq_expect(a.send_cq, 0, IBV_WC_SUCCESS);
    nic_configure("drop-peer=softefa1");
    double from = test_seconds();
    assert_int_equal(efa_write(&a, &b, 1, 0, 64, 0), 0);
    cq_expect(a.send_cq, 1, IBV_WC_RESP_TIMEOUT_ERR);
    assert_true(test_seconds() - from < BUSY);
    nic_configure("drop-peer=none");
    assert_int_equal(efa_write(&a, &b, 2, 0, 64, 0), 0); /* it is back, and the QP has gone on */
    cq_expect(a.send_cq, 2, IBV_WC_SUCCESS);
}

static int setup(void **state)
{
    efa_load();
    return 0;
}

FIXTURE(setup, NULL)
