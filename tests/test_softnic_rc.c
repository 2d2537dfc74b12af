/* A softnic RC connection moves every kind of message, in order, to exactly the bytes that were
 * named. */
#define OWN_MAIN
#include "tests/helpers/softnic_pair.h"

#include <fcntl.h>

static int connect_pair(void **state)
{
    pair_connect(state);
    for (size_t i = 0; i < a.size; i++) {
        a.buffer[i] = (uint8_t)random();
        b.buffer[i] = 0xee;
    }
    return 0;
}

static int close_pair(void **state)
{
    end_close(&a);
    end_close(&b);
    nic_configure("copy=auto");
    return 0;
}

/* The two ways that data can take. The choice is a new link's, and the pair is connected after
 * it. */
static int connect_stream(void **state)
{
    struct ibv_context *other;
    nic_configure("copy=stream");
    other = context;
    context = nic_open(1);
    connect_pair(state);
    *state = other;
    return 0;
}

static int close_stream(void **state)
{
    struct ibv_context *other = *state;
    end_close(&a);
    end_close(&b);
    nic.ibv_close_device(context);
    context = other;
    nic_configure("copy=auto");
    return 0;
}

static void sizes(enum ibv_wr_opcode opcode)
{
    static const uint32_t lengths[] = {0,    1,     7,     8,     63,     4095,   4096,
                                       4097, 32767, 32768, 65537, 262144, 1000003};
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        uint32_t n = lengths[i];
        memset(b.buffer, 0xee, b.size);
        struct ibv_sge sge = {(uintptr_t)a.buffer + 3, n, a.mr->lkey};
        struct ibv_send_wr wr = end_wr(opcode, i, &sge, to_b, 5);
        wr.imm_data = htobe32(77);
        bool receives = opcode != IBV_WR_RDMA_WRITE;
        if (receives)
            assert_int_equal(end_receive(&b, 100 + i, 5, 1 << 20 >> 1 < n ? n : 1 << 19), 0);
        assert_int_equal(end_post(&a, &wr), 0);
        cq_expect(a.send_cq, i, IBV_WC_SUCCESS);
        if (receives) {
            struct ibv_wc wc = cq_take(b.recv_cq);
            assert_int_equal(wc.status, IBV_WC_SUCCESS);
            assert_int_equal(wc.wr_id, 100 + i);
            assert_int_equal(wc.byte_len, n);
            assert_int_equal(wc.src_qp, a.qp->qp_num);
            assert_int_equal(wc.opcode, opcode == IBV_WR_RDMA_WRITE_WITH_IMM
                                            ? IBV_WC_RECV_RDMA_WITH_IMM
                                            : IBV_WC_RECV);
            bool imm = opcode != IBV_WR_SEND;
            assert_int_equal(wc.wc_flags & IBV_WC_WITH_IMM, imm ? IBV_WC_WITH_IMM : 0);
            if (imm)
                assert_int_equal(wc.imm_data, htobe32(77));
        }
        assert_memory_equal(b.buffer + 5, a.buffer + 3, n);
        assert_int_equal(b.buffer[4], 0xee);
        assert_int_equal(b.buffer[5 + n], 0xee);
    }
}

static void write_sizes(void **state)
{
    sizes(IBV_WR_RDMA_WRITE);
}

static void write_imm_sizes(void **state)
{
    sizes(IBV_WR_RDMA_WRITE_WITH_IMM);
}

static void send_sizes(void **state)
{
    sizes(IBV_WR_SEND);
    sizes(IBV_WR_SEND_WITH_IMM);
}

static void read_sizes(void **state)
{
    static const uint32_t lengths[] = {0, 1, 4096, 65537, 1000003};
    for (size_t i = 0; i < b.size; i++)
        b.buffer[i] = (uint8_t)random();
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        memset(a.buffer, 0xee, a.size);
        struct ibv_sge sge = {(uintptr_t)a.buffer + 9, lengths[i], a.mr->lkey};
        struct ibv_send_wr wr = end_wr(IBV_WR_RDMA_READ, i, &sge, to_b, 2);
        assert_int_equal(end_post(&a, &wr), 0);
        cq_expect(a.send_cq, i, IBV_WC_SUCCESS);
        assert_memory_equal(a.buffer + 9, b.buffer + 2, lengths[i]);
        assert_int_equal(a.buffer[8], 0xee);
        assert_int_equal(a.buffer[9 + lengths[i]], 0xee);
    }
}

/* More READs than may be outstanding, with writes between them. */
static void many_reads(void **state)
{
    for (size_t i = 0; i < 100; i++)
        memcpy(b.buffer + i * 8, &i, 8);
    for (size_t i = 0; i < 100; i++) {
        struct ibv_sge sge = {(uintptr_t)a.buffer + i * 8, 8, a.mr->lkey};
        struct ibv_send_wr wr = end_wr(IBV_WR_RDMA_READ, i, &sge, to_b, i * 8);
        assert_int_equal(end_post(&a, &wr), 0);
    }
    for (size_t i = 0; i < 100; i++)
        cq_expect(a.send_cq, i, IBV_WC_SUCCESS);
    assert_memory_equal(a.buffer, b.buffer, 800);
}

/* Data by several entries on both sides: gathered by the sender, scattered by the receiver. */
static void sge_lists(void **state)
{
    struct ibv_sge from[4] = {{(uintptr_t)a.buffer + 100, 10, a.mr->lkey},
                              {(uintptr_t)a.buffer + 5000, 20000, a.mr->lkey},
                              {(uintptr_t)a.buffer + 7, 0, a.mr->lkey},
                              {(uintptr_t)a.buffer + 1, 33, a.mr->lkey}};
    struct ibv_sge to[3] = {{(uintptr_t)b.buffer + 64, 15000, b.mr->lkey},
                            {(uintptr_t)b.buffer + 30000, 1, b.mr->lkey},
                            {(uintptr_t)b.buffer + 40000, 9000, b.mr->lkey}};
    uint8_t *want = malloc(20043);
    memcpy(want, a.buffer + 100, 10);
    memcpy(want + 10, a.buffer + 5000, 20000);
    memcpy(want + 20010, a.buffer + 1, 33);
    struct ibv_recv_wr recv = {.wr_id = 5, .sg_list = to, .num_sge = 3}, *bad_recv;
    assert_int_equal(ibv_post_recv(b.qp, &recv, &bad_recv), 0);
    struct ibv_send_wr wr = end_wr(IBV_WR_SEND, 6, from, to_b, 0);
    wr.num_sge = 4;
    assert_int_equal(end_post(&a, &wr), 0);
    cq_expect(a.send_cq, 6, IBV_WC_SUCCESS);
    struct ibv_wc wc = cq_take(b.recv_cq);
    assert_int_equal(wc.byte_len, 20043);
    assert_memory_equal(b.buffer + 64, want, 15000);
    assert_memory_equal(b.buffer + 30000, want + 15000, 1);
    assert_memory_equal(b.buffer + 40000, want + 15001, 5042);
    assert_int_equal(b.buffer[40000 + 5042], 0xee);
    free(want);
}

/* Inline data needs no key, and its memory may be reused when the call returns. */
static void inline_data(void **state)
{
    uint64_t words[4];
    for (uint64_t i = 0; i < 200; i++) {
        for (int k = 0; k < 4; k++)
            words[k] = i * 4 + (uint64_t)k;
        struct ibv_sge sge[2] = {{(uintptr_t)words, 16, 0xdead}, {(uintptr_t)(words + 2), 16, 0}};
        struct ibv_send_wr wr = end_wr(IBV_WR_RDMA_WRITE, i, sge, to_b, i * 32);
        wr.num_sge = 2;
        wr.send_flags = IBV_SEND_INLINE | (i == 199 ? IBV_SEND_SIGNALED : 0);
        assert_int_equal(end_post(&a, &wr), 0);
        memset(words, 0xff, sizeof(words));
    }
    cq_expect(a.send_cq, 199, IBV_WC_SUCCESS);
    for (uint64_t i = 0; i < 800; i++)
        assert_int_equal(((uint64_t *)(void *)b.buffer)[i], i);
    struct ibv_sge big = {(uintptr_t)a.buffer, 4096, a.mr->lkey};
    struct ibv_send_wr wr = end_wr(IBV_WR_RDMA_WRITE, 1, &big, to_b, 0);
    wr.send_flags = IBV_SEND_INLINE;
    assert_int_equal(end_post(&a, &wr), ENOMEM); /* more than the device takes inline */
}

/* Unsignaled requests complete silently and keep their slots until a later signaled one is
 * polled. */
static void full_send_queue(void **state)
{
    struct ibv_sge sge = {(uintptr_t)a.buffer, 8, a.mr->lkey};
    struct ibv_send_wr wr = end_wr(IBV_WR_RDMA_WRITE, 0, &sge, to_b, 0);
    wr.send_flags = 0;
    for (int i = 0; i < 255; i++)
        assert_int_equal(end_post(&a, &wr), 0);
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr_id = 42;
    assert_int_equal(end_post(&a, &wr), 0);
    assert_int_equal(end_post(&a, &wr), ENOMEM);
    usleep(20000); /* all of it has long been acknowledged, and this end has not polled */
    assert_int_equal(end_post(&a, &wr), ENOMEM);
    cq_expect(a.send_cq, 42, IBV_WC_SUCCESS);
    assert_true(cq_silent(a.send_cq, 5));
    struct ibv_send_wr list[2] = {wr, wr}, *bad = NULL;
    list[0].next = &list[1];
    list[1].num_sge = 99;
    assert_int_equal(ibv_post_send(a.qp, list, &bad), EINVAL);
    assert_ptr_equal(bad, &list[1]);
    cq_expect(a.send_cq, 42, IBV_WC_SUCCESS); /* the one before the bad one counts */
}

static void atomics(void **state)
{
    uint64_t *word = (uint64_t *)(void *)(b.buffer + 64), *result = (uint64_t *)(void *)a.buffer;
    *word = 1000;
    for (uint64_t i = 0; i < 50; i++) {
        struct ibv_sge sge = {(uintptr_t)a.buffer, 8, a.mr->lkey};
        struct ibv_send_wr wr = end_wr(IBV_WR_ATOMIC_FETCH_AND_ADD, i, &sge, to_b, 64);
        wr.wr.atomic.remote_addr = to_b.buffer + 64;
        wr.wr.atomic.rkey = to_b.rkey;
        wr.wr.atomic.compare_add = 7;
        assert_int_equal(end_post(&a, &wr), 0);
        cq_expect(a.send_cq, i, IBV_WC_SUCCESS);
        assert_int_equal(*result, 1000 + 7 * i);
        wr.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
        wr.wr.atomic.compare_add = i % 2 ? 1007 + 7 * i : 1; /* matches every other time */
        wr.wr.atomic.swap = 1007 + 7 * i;
        assert_int_equal(end_post(&a, &wr), 0);
        cq_expect(a.send_cq, i, IBV_WC_SUCCESS);
        assert_int_equal(*result, 1007 + 7 * i);
        assert_int_equal(*word, 1007 + 7 * i);
    }
}

/* Data, then a flag on the same QP: a thread that sees the flag sees the data. */
static void data_before_flag(void **state)
{
    enum { ROUNDS = 300, BYTES = 50000 };
    volatile uint64_t *flag = (volatile uint64_t *)(void *)(b.buffer + 65536);
    *flag = 0;
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        uint32_t n = 1 + (uint32_t)random() % BYTES;
        memset(a.buffer, (int)(round & 0xff), n);
        struct ibv_sge data = {(uintptr_t)a.buffer, n, a.mr->lkey},
                       word = {(uintptr_t)&round, 8, 0};
        struct ibv_send_wr wr[2] = {end_wr(IBV_WR_RDMA_WRITE, 1, &data, to_b, 0),
                                    end_wr(IBV_WR_RDMA_WRITE, 2, &word, to_b, 65536)};
        wr[0].send_flags = 0;
        wr[1].send_flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED;
        wr[0].next = &wr[1];
        assert_int_equal(end_post(&a, wr), 0);
        double end = test_seconds() + 10;
        while (__atomic_load_n(flag, __ATOMIC_ACQUIRE) != round)
            if (test_seconds() > end)
                fail_msg("no flag");
        for (uint32_t i = 0; i < n; i++)
            if (b.buffer[i] != (round & 0xff))
                fail_msg("round %d: byte %u of %u is old", (int)round, i, n);
        cq_expect(a.send_cq, 2, IBV_WC_SUCCESS);
    }
}

/* Several connections fill one link at the same time; none of them is forgotten when it has room
 * again. */
static void crowded_link(void **state)
{
    enum { PAIRS = 6, WRITES = 8 };
    struct end from[PAIRS], to[PAIRS];
    for (int i = 0; i < PAIRS; i++) {
        from[i] = end_new(context, 1 << 20);
        to[i] = end_new(context, 1 << 20);
        ends_connect(&from[i], &to[i]);
        memset(from[i].buffer, i + 1, 1 << 20);
    }
    for (uint64_t k = 0; k < WRITES; k++)
        for (int i = 0; i < PAIRS; i++) {
            struct ibv_sge sge = {(uintptr_t)from[i].buffer, 1 << 20, from[i].mr->lkey};
            struct ibv_send_wr wr = end_wr(IBV_WR_RDMA_WRITE, k, &sge, end_address(&to[i]), 0);
            assert_int_equal(end_post(&from[i], &wr), 0);
        }
    for (int i = 0; i < PAIRS; i++) {
        for (uint64_t k = 0; k < WRITES; k++)
            cq_expect(from[i].send_cq, k, IBV_WC_SUCCESS);
        assert_memory_equal(to[i].buffer, from[i].buffer, 1 << 20);
        end_close(&from[i]);
        end_close(&to[i]);
    }
}

static void completion_channel(void **state)
{
    struct ibv_comp_channel *channel = nic.ibv_create_comp_channel(context);
    struct ibv_cq *cq = nic.ibv_create_cq(context, 64, &b, channel, 0), *got;
    void *cq_context;
    assert_int_equal(nic.ibv_destroy_comp_channel(channel), EBUSY);
    struct ibv_qp_init_attr init = {
        .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = {4, 4, 1, 1, 0}};
    struct end c = a, d = b;
    c.qp = nic.ibv_create_qp(a.pd, &init);
    d.qp = nic.ibv_create_qp(b.pd, &init);
    ends_connect(&c, &d);
    assert_int_equal(end_receive(&d, 1, 0, 8), 0);
    assert_int_equal(ibv_req_notify_cq(cq, 1),
                     0); /* solicited only: the sender's own completion does not wake */
    struct ibv_sge sge = {(uintptr_t)a.buffer, 8, a.mr->lkey};
    struct ibv_send_wr wr = end_wr(IBV_WR_SEND, 2, &sge, to_b, 0);
    wr.send_flags |= IBV_SEND_SOLICITED;
    assert_int_equal(end_post(&c, &wr), 0);
    assert_int_equal(nic.ibv_get_cq_event(channel, &got, &cq_context), 0);
    assert_ptr_equal(got, cq);
    assert_ptr_equal(cq_context, &b);
    nic.ibv_ack_cq_events(cq, 1);
    cq_take(cq);
    cq_take(cq);
    fcntl(channel->fd, F_SETFL, O_NONBLOCK);
    /* one event for one arming */
    assert_int_equal(nic.ibv_get_cq_event(channel, &got, &cq_context), -1);
    assert_int_equal(errno, EAGAIN);
    nic.ibv_destroy_qp(c.qp);
    nic.ibv_destroy_qp(d.qp);
    assert_int_equal(nic.ibv_destroy_cq(cq), 0);
    assert_int_equal(nic.ibv_destroy_comp_channel(channel), 0);
}

static void extended_calls(void **state)
{
    struct ibv_cq_init_attr_ex cq_attr = {.cqe = 16,
                                          .wc_flags = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_IMM |
                                                      IBV_WC_EX_WITH_COMPLETION_TIMESTAMP};
    struct ibv_cq_ex *cq = ibv_create_cq_ex(context, &cq_attr);
    assert_non_null(cq);
    struct ibv_qp_init_attr_ex init = {
        .send_cq = ibv_cq_ex_to_cq(cq),
        .recv_cq = ibv_cq_ex_to_cq(cq),
        .qp_type = IBV_QPT_RC,
        .cap = {4, 4, 2, 2, 32},
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .pd = a.pd,
        .send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM};
    struct end c = a, d = b;
    c.qp = verbs_get_ctx(context)->create_qp_ex(context, &init);
    assert_non_null(c.qp);
    init.pd = b.pd;
    d.qp = verbs_get_ctx(context)->create_qp_ex(context, &init);
    ends_connect(&c, &d);
    assert_null(nic.ibv_qp_to_qp_ex(a.qp));
    struct ibv_qp_ex *ex = nic.ibv_qp_to_qp_ex(c.qp);
    assert_non_null(ex);
    assert_int_equal(end_receive(&d, 9, 0, 8), 0);

    ibv_wr_start(ex);
    ibv_wr_abort(ex);
    ibv_wr_start(ex);
    ex->wr_id = 1;
    ex->wr_flags = 0;
    ibv_wr_rdma_write(ex, to_b.rkey, to_b.buffer);
    struct ibv_sge sge[2] = {{(uintptr_t)a.buffer, 5000, a.mr->lkey},
                             {(uintptr_t)a.buffer + 9000, 1000, a.mr->lkey}};
    ibv_wr_set_sge_list(ex, 2, sge);
    ex->wr_id = 2;
    ex->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_rdma_write_imm(ex, to_b.rkey, to_b.buffer + 6000, htobe32(5));
    ibv_wr_set_inline_data(ex, (char[]){"flag"}, 4);
    assert_int_equal(ibv_wr_complete(ex), 0);

    struct ibv_poll_cq_attr poll = {0};
    bool sent = false, received = false;
    for (double end = test_seconds() + 10; test_seconds() < end && !(sent && received);) {
        if (ibv_start_poll(cq, &poll))
            continue;
        do {
            assert_int_equal(cq->status, IBV_WC_SUCCESS);
            if (ibv_wc_read_opcode(cq) == IBV_WC_RECV_RDMA_WITH_IMM) {
                received = true;
                assert_int_equal(cq->wr_id, 9);
                assert_int_equal(ibv_wc_read_imm_data(cq), htobe32(5));
                assert_int_equal(ibv_wc_read_byte_len(cq), 4);
                assert_true(ibv_wc_read_completion_ts(cq) > 0);
            } else {
                sent = true;
                assert_int_equal(cq->wr_id, 2);
            }
        } while (!ibv_next_poll(cq));
        ibv_end_poll(cq);
    }
    assert_true(sent && received);
    assert_memory_equal(b.buffer, a.buffer, 5000);
    assert_memory_equal(b.buffer + 5000, a.buffer + 9000, 1000);
    assert_memory_equal(b.buffer + 6000, "flag", 4);

    ibv_wr_start(ex); /* five into a queue of four: none of them is posted */
    for (int i = 0; i < 5; i++) {
        ex->wr_flags = IBV_SEND_SIGNALED;
        ibv_wr_rdma_write(ex, to_b.rkey, to_b.buffer);
        ibv_wr_set_sge(ex, a.mr->lkey, (uintptr_t)a.buffer, 8);
    }
    assert_int_equal(ibv_wr_complete(ex), ENOMEM);
    assert_true(cq_silent(ibv_cq_ex_to_cq(cq), 10));
    nic.ibv_destroy_qp(c.qp);
    nic.ibv_destroy_qp(d.qp);
    assert_int_equal(nic.ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), 0);
}

/* A region may be addressed from any base, and its keys die with it. */
static void iova(void **state)
{
    struct ibv_mr *mr = nic.ibv_reg_mr_iova2(b.pd, b.buffer + 4096, 4096, 0x10, NIC_ALL);
    struct ibv_sge sge = {(uintptr_t)a.buffer, 100, a.mr->lkey};
    struct ibv_send_wr wr =
        end_wr(IBV_WR_RDMA_WRITE, 1, &sge, (struct address){.rkey = mr->rkey, .buffer = 0x10}, 50);
    assert_int_equal(end_post(&a, &wr), 0);
    cq_expect(a.send_cq, 1, IBV_WC_SUCCESS);
    assert_memory_equal(b.buffer + 4096 + 50, a.buffer, 100);
    nic.ibv_dereg_mr(mr);
    assert_int_equal(end_post(&a, &wr), 0);
    cq_expect(a.send_cq, 1, IBV_WC_REM_ACCESS_ERR);
}

int main(void)
{
#define PAIR(f) cmocka_unit_test_setup_teardown(f, connect_pair, close_pair)
#define STREAM(f)                                                                                  \
    {                                                                                              \
#f " (stream)", f, connect_stream, close_stream, NULL                                      \
    }
    const struct CMUnitTest tests[] = {
        PAIR(write_sizes),
        PAIR(write_imm_sizes),
        PAIR(send_sizes),
        PAIR(read_sizes),
        PAIR(many_reads),
        PAIR(sge_lists),
        PAIR(inline_data),
        PAIR(full_send_queue),
        PAIR(atomics),
        PAIR(data_before_flag),
        PAIR(completion_channel),
        PAIR(extended_calls),
        PAIR(iova),
        STREAM(write_sizes),
        STREAM(write_imm_sizes),
        STREAM(send_sizes),
        STREAM(read_sizes),
        STREAM(many_reads),
        STREAM(sge_lists),
        STREAM(data_before_flag),
        PAIR(crowded_link),
        STREAM(crowded_link),
    };
    srandom((unsigned)time(NULL));
    return cmocka_run_group_tests(tests, setup, teardown);
}
