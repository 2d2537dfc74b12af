/* EFA devices that the test holds in its hand: the calls that the efa fabric makes, as a table.
 * What has been posted lies in one pool; tests/helpers/fake_efa_network.h moves it. What a device
 * forbids ends the test. */
#pragma once

#include "backends/efa/efa_api.h"
#include "tests/helpers/test.h"

enum { FAKE_DEVICES = 16, FAKE_MESSAGES = 8192, FAKE_REGIONS = 128 };

struct fake_cq {
    struct ibv_cq ibv;
    struct ibv_wc *ring;
    uint64_t head, tail, size;
};

struct fake_write {
    uint64_t id, from, to;
    uint32_t lkey, rkey, bytes, qpn, qkey, imm, device; /* device: the target's */
};

struct fake_qp {
    struct ibv_qp_ex ex; /* first */
    struct fake_device *device;
    struct fake_cq *send, *recv;
    int unsolicited, live;
    uint32_t qkey, receives, receives_most;
    uint32_t depth, used; /* used: until the completion has been polled */
    struct fake_write *batch, now;
    uint32_t batched, says_no;
};

struct fake_device {
    struct ibv_device ibv;
    struct ibv_context context;
    struct ibv_pd pd;
    struct fake_qp *qps[8];
    uint32_t qp_count;
    uint32_t handles[FAKE_DEVICES]; /* address handles to each other device */
};

struct fake_message {
    struct fake_qp *from;
    struct fake_write write;
    int placed, told; /* placed: bit per half */
    enum ibv_wc_status status;
};

static struct {
    struct fake_device devices[FAKE_DEVICES];
    struct ibv_mr regions[FAKE_REGIONS];
    uint32_t region_count;
    struct fake_message *messages[FAKE_MESSAGES];
    uint32_t message_count;
    uint32_t depth, receives, cqe, rdma, caps; /* what devices say they can do */
    uint32_t depth_really;                     /* 0: as they say */
    uint32_t no_memory;                        /* of 100 batches, so many find none */
    /* the message, from 1, that fails with fail_status; 0: none */
    uint32_t fail_message;
    enum ibv_wc_status fail_status;
    int post_error, poll_error; /* what handing over, and polling, says */
    int no_unsolicited;         /* QPs cannot be made so, whatever the capabilities say */
    uint64_t messages_made;
    uint64_t random;
    uint64_t delivered, most_waiting; /* immediates told; most in one receive queue's completions */
} fake;

static uint32_t fake_random(uint32_t below)
{
    fake.random ^= fake.random << 13;
    fake.random ^= fake.random >> 7;
    fake.random ^= fake.random << 17;
    return (uint32_t)(fake.random >> 11) % below;
}

/* ---- what a device is asked ---- */

static struct fake_device *fake_of(const struct ibv_context *context)
{
    return (struct fake_device *)(void *)((char *)(uintptr_t)context -
                                          offsetof(struct fake_device, context));
}

static struct ibv_device **fake_list(int *count)
{
    struct ibv_device **list = calloc(FAKE_DEVICES + 1, sizeof *list);
    for (int i = 0; i < FAKE_DEVICES; i++)
        list[i] = &fake.devices[i].ibv;
    *count = FAKE_DEVICES;
    return list;
}

static void fake_free_list(struct ibv_device **list)
{
    free(list);
}

static struct ibv_context *fake_open_device(struct ibv_device *device)
{
    return &((struct fake_device *)(void *)device)->context;
}

static int fake_close_device(struct ibv_context *context)
{
    return 0;
}

static int fake_query(struct ibv_context *context, struct ibv_device_attr *attr)
{
    *attr = (struct ibv_device_attr){.max_cqe = (int)fake.cqe, .phys_port_cnt = 1};
    return 0;
}

static int fake_query_port(struct ibv_context *context, uint8_t port,
                           struct _compat_ibv_port_attr *attr)
{
    struct ibv_port_attr a = {.state = IBV_PORT_ACTIVE, .max_msg_sz = 8192, .gid_tbl_len = 1};
    memcpy(attr, &a, offsetof(struct ibv_port_attr, link_layer));
    return 0;
}

static int fake_query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid)
{
    memset(gid, 0, sizeof *gid);
    gid->raw[0] = 0xfe;
    gid->raw[15] = (uint8_t)(fake_of(context) - fake.devices);
    return 0;
}

static int fake_query_efa(struct ibv_context *context, struct efadv_device_attr *attr,
                          uint32_t bytes)
{
    *attr = (struct efadv_device_attr){.max_sq_wr = fake.depth,
                                       .max_rq_wr = fake.receives,
                                       .device_caps = fake.caps,
                                       .max_rdma_size = fake.rdma};
    return 0;
}

static struct ibv_pd *fake_alloc_pd(struct ibv_context *context)
{
    struct fake_device *d = fake_of(context);
    d->pd.context = context;
    return &d->pd;
}

static int fake_dealloc_pd(struct ibv_pd *pd)
{
    return 0;
}

static struct ibv_mr *fake_reg_mr(struct ibv_pd *pd, void *address, size_t length, int access)
{
    assert_true(fake.region_count < FAKE_REGIONS);
    struct ibv_mr *mr = &fake.regions[fake.region_count++];
    uint32_t key = fake.region_count;
    *mr = (struct ibv_mr){.context = pd->context,
                          .pd = pd,
                          .addr = address,
                          .length = length,
                          .lkey = key * 2,
                          .rkey = key * 2 + 1};
    return mr;
}

static int fake_dereg_mr(struct ibv_mr *mr)
{
    mr->length = 0;
    return 0;
}

static int fake_no_event(struct ibv_context *context, struct ibv_async_event *event)
{
    return -1;
}

/* ---- completions ---- */

static struct ibv_cq *fake_create_cq(struct ibv_context *context, int cqe, void *cq_context,
                                     struct ibv_comp_channel *channel, int vector)
{
    struct fake_cq *cq = calloc(1, sizeof *cq);
    cq->ibv.context = context;
    cq->size = (uint64_t)cqe;
    cq->ring = calloc((size_t)cqe, sizeof *cq->ring);
    return &cq->ibv;
}

static int fake_destroy_cq(struct ibv_cq *ibv)
{
    struct fake_cq *cq = (struct fake_cq *)(void *)ibv;
    free(cq->ring);
    free(cq);
    return 0;
}

static void fake_push(struct fake_cq *cq, const struct ibv_wc *wc)
{
    if (cq->tail - cq->head == cq->size)
        fail_msg("a completion queue of %d entries overruns", (int)cq->size);
    cq->ring[cq->tail++ % cq->size] = *wc;
    if (wc->opcode & IBV_WC_RECV && cq->tail - cq->head > fake.most_waiting)
        fake.most_waiting = cq->tail - cq->head;
}

static struct fake_qp *fake_find(const struct fake_device *d, uint32_t qpn)
{
    for (uint32_t i = 0; i < d->qp_count; i++)
        if (d->qps[i]->ex.qp_base.qp_num == qpn)
            return d->qps[i];
    return NULL;
}

static int fake_poll_cq(struct ibv_cq *ibv, int max, struct ibv_wc *wc)
{
    struct fake_cq *cq = (struct fake_cq *)(void *)ibv;
    int n = 0;
    if (fake.poll_error)
        return -1;
    for (; n < max && cq->head != cq->tail; n++) {
        wc[n] = cq->ring[cq->head++ % cq->size];
        if (!(wc[n].opcode & IBV_WC_RECV))
            fake_find(fake_of(ibv->context), wc[n].qp_num)->used--;
    }
    return n;
}

static int fake_post_recv(struct ibv_qp *ibv, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    struct fake_qp *qp = (struct fake_qp *)(void *)ibv;
    for (; wr; wr = wr->next) {
        *bad = wr;
        if (!wr->num_sge)
            fail_msg("a receive without a buffer");
        if (qp->receives == qp->receives_most || fake_random(100) < fake.no_memory)
            return ENOMEM;
        qp->receives++;
    }
    return 0;
}

/* ---- queue pairs ---- */

static void fake_wr_start(struct ibv_qp_ex *ex)
{
    struct fake_qp *qp = (struct fake_qp *)(void *)ex;
    qp->batched = 0;
}

static void fake_wr_write(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t remote, __be32 imm)
{
    struct fake_qp *qp = (struct fake_qp *)(void *)ex;
    qp->now = (struct fake_write){.id = ex->wr_id, .to = remote, .rkey = rkey, .imm = imm};
}

static void fake_wr_sge(struct ibv_qp_ex *ex, uint32_t lkey, uint64_t address, uint32_t bytes)
{
    struct fake_qp *qp = (struct fake_qp *)(void *)ex;
    qp->now.lkey = lkey;
    qp->now.from = address;
    qp->now.bytes = bytes;
}

static void fake_wr_target(struct ibv_qp_ex *ex, struct ibv_ah *ah, uint32_t qpn, uint32_t qkey)
{
    struct fake_qp *qp = (struct fake_qp *)(void *)ex;
    qp->now.device = ah->handle;
    qp->now.qpn = qpn;
    qp->now.qkey = qkey;
    assert_true(qp->batched < qp->depth + 1);
    qp->batch[qp->batched++] = qp->now;
}

static int fake_wr_complete(struct ibv_qp_ex *ex)
{
    struct fake_qp *qp = (struct fake_qp *)(void *)ex;
    uint32_t depth =
        fake.depth_really && fake.depth_really < qp->depth ? fake.depth_really : qp->depth;
    if (qp->used + qp->batched > depth || fake_random(100) < fake.no_memory)
        return ENOMEM;
    if (fake.post_error)
        return fake.post_error;
    for (uint32_t i = 0; i < qp->batched; i++) {
        assert_true(fake.message_count < FAKE_MESSAGES);
        struct fake_message *m = calloc(1, sizeof *m);
        m->from = qp;
        m->write = qp->batch[i];
        if (++fake.messages_made == fake.fail_message)
            m->status = fake.fail_status;
        fake.messages[fake.message_count++] = m;
    }
    qp->used += qp->batched;
    return 0;
}

static struct ibv_qp *fake_create_qp(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr,
                                     struct efa_qp_attr *efa, uint32_t bytes)
{
    struct fake_device *d = fake_of(context);
    if (fake.no_unsolicited && efa->flags) {
        errno = EINVAL;
        return NULL;
    }
    struct fake_qp *qp = calloc(1, sizeof *qp);
    assert_true(attr->cap.max_send_wr <= fake.depth && attr->cap.max_recv_wr <= fake.receives);
    qp->device = d;
    qp->send = (struct fake_cq *)(void *)attr->send_cq;
    qp->recv = (struct fake_cq *)(void *)attr->recv_cq;
    qp->unsolicited = efa->flags & EFA_QP_UNSOLICITED_WRITE;
    qp->depth = attr->cap.max_send_wr;
    qp->receives_most = attr->cap.max_recv_wr;
    qp->batch = calloc(qp->depth + 1, sizeof *qp->batch);
    qp->live = 1;
    qp->ex.qp_base.context = context;
    qp->ex.qp_base.qp_num =
        100 + d->qp_count; /* the same on every device: a sender is known by both numbers */
    qp->ex.wr_start = fake_wr_start;
    qp->ex.wr_rdma_write_imm = fake_wr_write;
    qp->ex.wr_set_sge = fake_wr_sge;
    qp->ex.wr_set_ud_addr = fake_wr_target;
    qp->ex.wr_complete = fake_wr_complete;
    d->qps[d->qp_count++] = qp;
    return &qp->ex.qp_base;
}

static int fake_modify_qp(struct ibv_qp *ibv, struct ibv_qp_attr *attr, int mask)
{
    if (mask & IBV_QP_QKEY)
        ((struct fake_qp *)(void *)ibv)->qkey = attr->qkey;
    return 0;
}

static int fake_destroy_qp(struct ibv_qp *ibv)
{
    ((struct fake_qp *)(void *)ibv)->live = 0;
    return 0;
}

static struct ibv_qp_ex *fake_to_ex(struct ibv_qp *ibv)
{
    return (struct ibv_qp_ex *)(void *)ibv;
}

static struct ibv_ah *fake_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
    struct ibv_ah *ah = calloc(1, sizeof *ah);
    ah->context = pd->context;
    ah->handle = attr->grh.dgid.raw[15];
    fake_of(pd->context)->handles[ah->handle]++;
    return ah;
}

static int fake_destroy_ah(struct ibv_ah *ah)
{
    fake_of(ah->context)->handles[ah->handle]--;
    free(ah);
    return 0;
}

/* Numbers of handles are a device's own. */
static uint16_t fake_ahn(const struct fake_device *d, uint32_t target)
{
    return (uint16_t)((target * 5 + (uint32_t)(d - fake.devices)) % 61);
}

static int fake_query_ah(struct ibv_ah *ah, struct efadv_ah_attr *attr, uint32_t bytes)
{
    *attr = (struct efadv_ah_attr){.ahn = fake_ahn(fake_of(ah->context), ah->handle)};
    return 0;
}

static const char *fake_status(enum ibv_wc_status status)
{
    return status == IBV_WC_REM_OP_ERR ? "remote operation error" : "an error";
}

static const struct efa_api fake_api = {.verbs = {.provider = VERBS_SOFT,
                                                  .get_device_list = fake_list,
                                                  .free_device_list = fake_free_list,
                                                  .open_device = fake_open_device,
                                                  .close_device = fake_close_device,
                                                  .query_device = fake_query,
                                                  .query_port = fake_query_port,
                                                  .query_gid = fake_query_gid,
                                                  .get_async_event = fake_no_event,
                                                  .alloc_pd = fake_alloc_pd,
                                                  .dealloc_pd = fake_dealloc_pd,
                                                  .reg_mr = fake_reg_mr,
                                                  .dereg_mr = fake_dereg_mr,
                                                  .create_cq = fake_create_cq,
                                                  .destroy_cq = fake_destroy_cq,
                                                  .modify_qp = fake_modify_qp,
                                                  .destroy_qp = fake_destroy_qp,
                                                  .wc_status_str = fake_status},
                                        .create_ah = fake_create_ah,
                                        .destroy_ah = fake_destroy_ah,
                                        .qp_to_qp_ex = fake_to_ex,
                                        .query_device = fake_query_efa,
                                        .query_ah = fake_query_ah,
                                        .create_qp_ex = fake_create_qp};
