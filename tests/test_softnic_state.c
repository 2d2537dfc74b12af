/* A softnic QP takes exactly the transitions and attribute masks that a real device takes, and
 * refuses the rest. */
#include "tests/helpers/softnic_pair.h"

static const int init_mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
static const int rtr_mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                            IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
static const int rts_mask = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                            IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;

static struct ibv_qp_attr valid(enum ibv_qp_state to)
{
    return (struct ibv_qp_attr){.qp_state = to,
                                .cur_qp_state = IBV_QPS_RTS,
                                .port_num = 1,
                                .path_mtu = IBV_MTU_1024,
                                .dest_qp_num = 0x123456,
                                .max_dest_rd_atomic = 1,
                                .max_rd_atomic = 1,
                                .timeout = 14,
                                .retry_cnt = 7,
                                .rnr_retry = 7,
                                .min_rnr_timer = 12,
                                .ah_attr = {.dlid = 1, .port_num = 1}};
}

static int move(struct end *e, enum ibv_qp_state to, int mask)
{
    struct ibv_qp_attr attr = valid(to);
    return nic.ibv_modify_qp(e->qp, &attr, mask);
}

static void bring(struct end *e, enum ibv_qp_state to)
{
    assert_int_equal(move(e, IBV_QPS_RESET, IBV_QP_STATE), 0);
    if (to == IBV_QPS_RESET)
        return;
    if (to == IBV_QPS_ERR) {
        assert_int_equal(move(e, IBV_QPS_ERR, IBV_QP_STATE), 0);
        return;
    }
    assert_int_equal(move(e, IBV_QPS_INIT, init_mask), 0);
    if (to != IBV_QPS_INIT)
        assert_int_equal(move(e, IBV_QPS_RTR, rtr_mask), 0);
    if (to == IBV_QPS_RTS || to == IBV_QPS_SQD)
        assert_int_equal(move(e, IBV_QPS_RTS, rts_mask), 0);
    if (to == IBV_QPS_SQD)
        assert_int_equal(move(e, IBV_QPS_SQD, IBV_QP_STATE), 0);
}

static int mask_to(enum ibv_qp_state to, enum ibv_qp_state from)
{
    if (to == IBV_QPS_INIT)
        return from == IBV_QPS_INIT ? IBV_QP_STATE : init_mask;
    if (to == IBV_QPS_RTR)
        return rtr_mask;
    if (to == IBV_QPS_RTS && from == IBV_QPS_RTR)
        return rts_mask;
    return IBV_QP_STATE;
}

CASE(every_pair_of_states)
{
    static const enum ibv_qp_state states[] = {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR,
                                               IBV_QPS_RTS,   IBV_QPS_SQD,  IBV_QPS_ERR};
    /* rows: from, columns: to, in the order above; the specification's figure of the QP state
     * diagram */
    static const char allowed[6][7] = {"110001", "111001", "100101", "100111", "100111", "100001"};
    struct end e = end_new(context, 4096);
    for (int from = 0; from < 6; from++)
        for (int to = 0; to < 6; to++) {
            bring(&e, states[from]);
            int expected = allowed[from][to] == '1' ? 0 : EINVAL;
            int got = move(&e, states[to], mask_to(states[to], states[from]));
            if (got != expected)
                fail_msg("state %d to %d: got %d, want %d", states[from], states[to], got,
                         expected);
            assert_int_equal(end_state(&e), states[expected ? from : to]);
        }
    end_close(&e);
}

CASE(required_attributes)
{
    struct end e = end_new(context, 4096);
    const struct {
        enum ibv_qp_state from, to;
        int mask;
    } steps[] = {{IBV_QPS_RESET, IBV_QPS_INIT, init_mask},
                 {IBV_QPS_INIT, IBV_QPS_RTR, rtr_mask},
                 {IBV_QPS_RTR, IBV_QPS_RTS, rts_mask}};
    for (int s = 0; s < 3; s++)
        for (int bit = 0; bit < 26; bit++) {
            bring(&e, steps[s].from);
            if (1 << bit == IBV_QP_STATE)
                continue;
            if (steps[s].mask & 1 << bit) /* each one of them is needed */
                assert_int_equal(move(&e, steps[s].to, steps[s].mask & ~(1 << bit)), EINVAL);
            /* strangers */
            else if (1 << bit &
                     (IBV_QP_QKEY | IBV_QP_CAP | IBV_QP_PATH_MIG_STATE | IBV_QP_RATE_LIMIT))
                assert_int_equal(move(&e, steps[s].to, steps[s].mask | 1 << bit), EINVAL);
            assert_int_equal(end_state(&e), steps[s].from);
        }
    end_close(&e);
}

CASE(wrong_values)
{
    struct end e = end_new(context, 4096);
    struct ibv_qp_attr attr = valid(IBV_QPS_INIT);
    bring(&e, IBV_QPS_RESET);
    attr.port_num = 2;
    assert_int_equal(nic.ibv_modify_qp(e.qp, &attr, init_mask), EINVAL);
    bring(&e, IBV_QPS_INIT);
#define REFUSES(to, mask, change)                                                                  \
    attr = valid(to);                                                                              \
    attr.change;                                                                                   \
    assert_int_equal(nic.ibv_modify_qp(e.qp, &attr, mask), EINVAL)
    REFUSES(IBV_QPS_RTR, rtr_mask, path_mtu = 6);
    REFUSES(IBV_QPS_RTR, rtr_mask, max_dest_rd_atomic = 17);
    REFUSES(IBV_QPS_RTR, rtr_mask, min_rnr_timer = 32);
    REFUSES(IBV_QPS_RTR, rtr_mask, ah_attr.port_num = 0);
    REFUSES(IBV_QPS_RTR, rtr_mask, dest_qp_num = 1 << 24);
    REFUSES(IBV_QPS_RTR, rtr_mask, ah_attr.is_global = 1); /* with a GID of zeros */
    bring(&e, IBV_QPS_RTR);
    REFUSES(IBV_QPS_RTS, rts_mask, timeout = 32);
    REFUSES(IBV_QPS_RTS, rts_mask, retry_cnt = 8);
    REFUSES(IBV_QPS_RTS, rts_mask, rnr_retry = 8);
    REFUSES(IBV_QPS_RTS, rts_mask, max_rd_atomic = 17);
    bring(&e, IBV_QPS_RTS);
    attr = valid(IBV_QPS_RTS);
    attr.cur_qp_state = IBV_QPS_SQD; /* it is not */
    assert_int_equal(nic.ibv_modify_qp(e.qp, &attr, IBV_QP_STATE | IBV_QP_CUR_STATE), EINVAL);
    end_close(&e);
}

CASE(posting_by_state)
{
    struct end e = end_new(context, 4096);
    struct ibv_sge sge = {(uintptr_t)e.buffer, 8, e.mr->lkey};
    struct ibv_send_wr wr = end_wr(IBV_WR_SEND, 1, &sge, (struct address){0}, 0);
    bring(&e, IBV_QPS_RESET);
    assert_int_equal(end_post(&e, &wr), EINVAL);
    assert_int_equal(end_receive(&e, 1, 0, 8), EINVAL);
    bring(&e, IBV_QPS_INIT);
    assert_int_equal(end_post(&e, &wr), EINVAL);
    assert_int_equal(end_receive(&e, 1, 0, 8), 0);
    bring(&e, IBV_QPS_RTR);
    assert_int_equal(end_post(&e, &wr), EINVAL);
    bring(&e, IBV_QPS_ERR);
    assert_int_equal(end_post(&e, &wr), 0);
    cq_expect(e.send_cq, 1, IBV_WC_WR_FLUSH_ERR);
    assert_int_equal(end_receive(&e, 2, 0, 8), 0);
    cq_expect(e.recv_cq, 2, IBV_WC_WR_FLUSH_ERR);
    end_close(&e);
}

CASE(creation_limits)
{
    struct ibv_pd *pd = nic.ibv_alloc_pd(context);
    struct ibv_cq *cq = nic.ibv_create_cq(context, 16, NULL, NULL, 0);
    struct ibv_device_attr device;
    assert_int_equal(nic.ibv_query_device(context, &device), 0);
    struct ibv_qp_init_attr good = {
        .send_cq = cq,
        .recv_cq = cq,
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1}};
#define REFUSED_QP(error, change)                                                                  \
    do {                                                                                           \
        struct ibv_qp_init_attr init = good;                                                       \
        init.change;                                                                               \
        assert_null(nic.ibv_create_qp(pd, &init));                                                 \
        assert_int_equal(errno, error);                                                            \
    } while (0)
    REFUSED_QP(EOPNOTSUPP, qp_type = IBV_QPT_UD);
    REFUSED_QP(EINVAL, cap.max_send_wr = (uint32_t)device.max_qp_wr + 1);
    REFUSED_QP(EINVAL, cap.max_recv_sge = (uint32_t)device.max_sge + 1);
    REFUSED_QP(EINVAL, cap.max_inline_data = 1 << 16);
    REFUSED_QP(EINVAL, send_cq = NULL);
    assert_null(nic.ibv_create_cq(context, device.max_cqe + 1, NULL, NULL, 0));
    assert_int_equal(errno, EINVAL);

    struct ibv_qp *qp = nic.ibv_create_qp(pd, &good);
    assert_non_null(qp);
    assert_int_equal(nic.ibv_destroy_cq(cq), EBUSY);
    assert_int_equal(nic.ibv_dealloc_pd(pd), EBUSY);
    assert_int_equal(nic.ibv_destroy_qp(qp), 0);
    assert_int_equal(nic.ibv_destroy_cq(cq), 0);
    assert_int_equal(nic.ibv_dealloc_pd(pd), 0);
}

CASE(registration)
{
    struct ibv_pd *pd = nic.ibv_alloc_pd(context);
    void *hole = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(hole, 8192);
    assert_null(nic.ibv_reg_mr(pd, hole, 8192, IBV_ACCESS_LOCAL_WRITE));
    assert_int_equal(errno, EFAULT);
    static char buffer[64];
    assert_null(nic.ibv_reg_mr(pd, buffer, 64, IBV_ACCESS_REMOTE_WRITE)); /* needs local write */
    assert_int_equal(errno, EINVAL);
    assert_null(nic.ibv_reg_mr(pd, buffer, 64, IBV_ACCESS_ON_DEMAND));
    assert_int_equal(errno, EOPNOTSUPP);
    struct ibv_mr *mr = nic.ibv_reg_mr_iova2(pd, buffer, 64, 0,
                                             IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING);
    assert_non_null(mr);
    assert_int_not_equal(mr->lkey, mr->rkey);
    assert_int_equal(nic.ibv_dealloc_pd(pd), EBUSY);
    assert_int_equal(nic.ibv_dereg_mr(mr), 0);
    assert_int_equal(nic.ibv_dealloc_pd(pd), 0);
}

CASE(what_is_not_there)
{
    struct ibv_pd *pd = nic.ibv_alloc_pd(context);
    struct ibv_srq_init_attr srq = {.attr = {.max_wr = 1}};
    struct ibv_ah_attr ah = {0};
    errno = 0;
    assert_null(nic.ibv_reg_dmabuf_mr(pd, 0, 4096, 0, 0, 0));
    assert_int_equal(errno, EOPNOTSUPP);
    errno = 0;
    assert_null(nic.ibv_create_srq(pd, &srq));
    assert_int_equal(errno, EOPNOTSUPP);
    errno = 0;
    assert_null(nic.ibv_create_ah(pd, &ah));
    assert_int_equal(errno, EOPNOTSUPP);
    errno = 0;
    assert_null(ibv_alloc_mw(pd, IBV_MW_TYPE_1));
    assert_int_equal(errno, EOPNOTSUPP);
    assert_int_equal(nic.ibv_dealloc_pd(pd), 0);
}

FIXTURE(setup, teardown)
